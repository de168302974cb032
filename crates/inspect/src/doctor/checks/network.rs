// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Packet sizes of tunnels and of the cards below them.

use crate::doctor::{ConfiguredProgram, Facts, Finding};
use crate::network::{InterfaceKind, TUNNEL_OVERHEAD};

/// Bytes that a tunnel adds to a packet over IPv4; IPv6 adds 20 more.
fn overhead(kind: InterfaceKind) -> Option<u32> {
    match kind {
        // IPv4 20, UDP 8, header 16, tag 16.
        InterfaceKind::Wireguard => Some(60),
        // IPv4 20, UDP 8, opcode and peer 4, packet id 4, tag 16.
        InterfaceKind::Ovpn | InterfaceKind::Tun => Some(52),
        // IPsec reports the path MTU to senders itself.
        InterfaceKind::Xfrm | InterfaceKind::Card | InterfaceKind::Virtual => None,
    }
}

pub(super) fn tunnel_mtu(facts: &Facts<'_>) -> Option<Finding> {
    let interfaces = &facts.network()?.interfaces;
    let (below_mtu, below) = interfaces
        .iter()
        .filter(|interface| interface.kind == InterfaceKind::Card)
        .filter_map(|interface| Some((interface.mtu_bytes?, interface.name.as_str())))
        .max()?;
    // OpenVPN in user space clamps TCP segments by itself, unless mssfix is 0.
    let unclamped = facts
        .settings(ConfiguredProgram::Openvpn, "mssfix")
        .any(|(_, setting)| setting.number() == Some(0));
    let too_large = interfaces
        .iter()
        .filter(|interface| interface.kind != InterfaceKind::Tun || unclamped)
        .filter_map(|interface| {
            let mtu = interface.mtu_bytes?;
            let overhead = overhead(interface.kind)?;
            let name = &interface.name;
            (mtu.saturating_add(overhead) > below_mtu).then(|| {
                format!("sys/class/net/{name}/mtu: {mtu}; with {overhead} bytes of overhead it exceeds {below}'s \
                    {below_mtu}")
            })
        });
    let fits = below_mtu.saturating_sub(TUNNEL_OVERHEAD);
    Finding::warning()
        .evidence(too_large)
        .impact("Each full packet is sent as two fragments, or lost where fragments are dropped: half the throughput, \
            or connections that hang after the first bytes.")
        .advise(format!("ip link set dev TUNNEL mtu {fits}        # fits through {below} in any tunnel, also over \
            IPv6"))
        .run("nft add rule inet filter forward tcp flags syn tcp option maxseg size set rt mtu        # for TCP \
            through the tunnel")
        .advise("If the path itself carries 9000 bytes, raise the card's MTU instead: up to 3.5 times less CPU time \
            per GB (OpenVPN, measured).")
        .if_evident()
}
