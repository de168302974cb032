// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! OpenVPN: its work per packet costs more than the cipher, so packet size and the kernel data channel come
//! first.

use super::limits::{JUMBO_MTU, PATH_MTU, PING_S, RENEGOTIATE_S, RESTART_S, TUN_MTU};
use super::{choice, ciphers, tls_groups, tls_versions};
use crate::advise::algorithm::{Cipher, ExchangeGroup};
use crate::advise::facts::{AdviseFacts, words};
use crate::advise::software::since;
use crate::advise::{AdviceChoice, AdviseRequest, Topic};
use crate::network::TUNNEL_OVERHEAD;

/// An OpenVPN tunnel. Lists are in order of preference.
#[derive(Clone, Debug)]
pub(crate) struct OpenvpnAdvice {
    /// Ciphers of the data channel.
    pub(crate) ciphers: Vec<Cipher>,
    /// Groups of the control channel's TLS.
    pub(crate) groups: Vec<ExchangeGroup>,
    /// The control channel accepts no TLS 1.2.
    pub(crate) tls13_only: bool,
    /// Seconds until the data channel gets a new key.
    pub(crate) rekey_s: u32,
    /// Largest packet inside the tunnel, in bytes.
    pub(crate) tun_mtu: u32,
    /// Largest packet outside, in bytes, to which TCP segments are cut; 0: they are not.
    pub(crate) mssfix: u32,
    /// Seconds of silence until the peer is probed.
    pub(crate) ping_s: u32,
    /// Seconds of silence until the tunnel restarts.
    pub(crate) restart_s: u32,
    /// The kernel encrypts (DCO).
    pub(crate) dco: bool,
}

/// The settings of OpenVPN for this machine and goal, and the choices with their reasons.
pub(crate) fn decide(
    facts: &AdviseFacts,
    request: &AdviseRequest,
) -> (OpenvpnAdvice, Vec<AdviceChoice>) {
    let (ciphers, cipher) = ciphers(facts, request);
    let cipher =
        cipher.with("DCO supports only AES-GCM and ChaCha20-Poly1305, which include integrity");
    let (groups, group) = tls_groups(facts, request.goal, "fast on every processor");
    let reason = "for the control channel; older versions are deprecated (RFC 8996)";
    let (tls13_only, protocol) = tls_versions(request.goal, reason);
    let (dco, offload) = dco(facts);
    let (tun_mtu, mssfix, mtu) = mtu(facts, dco);
    let ping_s = PING_S.of(request.goal);
    let restart_s = RESTART_S.of(request.goal);
    let rekey_s = RENEGOTIATE_S.of(request.goal);
    let plan = OpenvpnAdvice {
        ciphers,
        groups,
        tls13_only,
        rekey_s,
        tun_mtu,
        mssfix,
        ping_s,
        restart_s,
        dco,
    };
    let choices = vec![
        offload,
        mtu,
        cipher,
        protocol,
        choice(
            Topic::Authentication,
            "certificates or fingerprints, with tls-crypt",
            "every session has a key exchange, so a key stolen later cannot decrypt earlier traffic; \
             packets of strangers are dropped before any public-key operation",
        ),
        group,
        choice(
            Topic::Lifetime,
            format!("{rekey_s} s"),
            "a new key costs one handshake, during which the old key stays in use",
        ),
        choice(
            Topic::DeadPeers,
            format!("probed after {ping_s} s of silence, dead after {restart_s} s"),
            "only silent tunnels are probed, so it costs nothing under load",
        ),
        choice(
            Topic::Compression,
            "off",
            "the sizes of compressed packets reveal their content (VORACLE), and DCO cannot compress; \
             OpenVPN 2.7 never sends compressed packets",
        ),
    ];
    (plan, choices)
}

fn dco(facts: &AdviseFacts) -> (bool, AdviceChoice) {
    let version = facts.software.openvpn.as_deref();
    let new = since(version, [2, 7, 0]);
    let kernel_has = facts.dco_in_tree || facts.kernel_since([6, 16, 0]);
    let (dco, value, reason) = if new && kernel_has {
        (true, "DCO with the kernel's ovpn", "packets stay in the kernel, on all processors")
    } else if since(version, [2, 6, 0]) && !new && facts.dco_separate {
        (true, "DCO with ovpn-dco-v2", "packets stay in the kernel, on all processors")
    } else {
        (
            false,
            "none yet: one process on one processor",
            "DCO is the largest possible gain here: it needs Linux 6.16 with OpenVPN 2.7, or the module \
             ovpn-dco-v2 with OpenVPN 2.6 (which cannot use the kernel's own)",
        )
    };
    let choice = choice(Topic::Offload, value, reason)
        .with(words("OpenVPN", version))
        .with(words("Linux", facts.kernel.as_deref()));
    (dco, choice)
}

/// MTU inside, largest packet outside to which TCP segments are clamped (0: not clamped), and the choice.
fn mtu(facts: &AdviseFacts, dco: bool) -> (u32, u32, AdviceChoice) {
    let path = facts.mtu.unwrap_or(PATH_MTU).min(PATH_MTU);
    let (inside, clamp, reason) = match facts.mtu {
        Some(link) if link >= JUMBO_MTU => (
            link - TUNNEL_OVERHEAD,
            0,
            "the cost is per packet: with 9000 bytes a gigabyte cost 3.5 times less than with 1420. Only if \
             every link of the path carries it",
        ),
        Some(link) if link < TUN_MTU => (
            link.saturating_sub(TUNNEL_OVERHEAD),
            path,
            "the card carries less than Ethernet's 1500 bytes: a packet that does not fit is split in two, or \
             lost",
        ),
        _ if dco => (
            path - TUNNEL_OVERHEAD,
            path,
            "the kernel does not clamp TCP segments as OpenVPN's process does (README.dco.md), so the \
             interface tells senders what fits",
        ),
        _ => (
            TUN_MTU,
            path,
            "the usual path carries no more; TCP segments are clamped to fit. On a path with jumbo frames a \
             larger MTU is the cheapest gain",
        ),
    };
    let evidence = facts.mtu.map_or_else(
        || "no card reports its MTU".to_owned(),
        |mtu| format!("the smallest MTU of the cards is {mtu}"),
    );
    let choice = choice(Topic::Mtu, format!("{inside} bytes inside"), reason).with(evidence);
    (inside, clamp, choice)
}
