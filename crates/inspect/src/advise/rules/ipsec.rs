// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! IPsec with IKEv2: the kernel encrypts the packets, so its implementations matter.

use super::limits::{
    DPD_DELAY_S, ESP_OUTER, ESP_REKEY_S, ESP_TRAILER, ETHERNET_MTU, IKE_REKEY_S, NARROW_WINDOW,
    WIDE_WINDOW, WIDEST_WINDOW,
};
use super::{choice, ciphers, groups, names, segment};
use crate::advise::algorithm::{Cipher, ExchangeGroup, Prf};
use crate::advise::facts::{AdviseFacts, QatUse, words};
use crate::advise::software::since;
use crate::advise::{AdviceChoice, AdviseRequest, Goal, Topic};

/// An IPsec tunnel with IKEv2. Lists are in order of preference.
#[derive(Clone, Debug)]
pub(crate) struct IpsecAdvice {
    /// Ciphers of the packets (ESP).
    pub(crate) esp: Vec<Cipher>,
    /// Ciphers of the key exchange (IKE): those of `esp` that include integrity.
    pub(crate) ike: Vec<Cipher>,
    /// Function that derives keys in IKE.
    pub(crate) prf: Prf,
    pub(crate) groups: Vec<ExchangeGroup>,
    /// Seconds until the packets get a new key.
    pub(crate) esp_rekey_s: u32,
    /// Seconds until IKE gets a new key.
    pub(crate) ike_rekey_s: u32,
    /// Largest packet inside the tunnel, in bytes, that leaves in one piece.
    pub(crate) mtu: u32,
    /// Largest TCP segment in such a packet, in bytes.
    pub(crate) mss: u32,
    /// Packets by which one may arrive late.
    pub(crate) replay_window: u32,
    /// Seconds of silence until the peer is probed.
    pub(crate) dpd_delay_s: u32,
    /// One security association for each processor.
    pub(crate) per_cpu: bool,
    /// The network card encrypts.
    pub(crate) card: bool,
}

/// The settings of IPsec for this machine and goal, and the choices with their reasons.
pub(crate) fn decide(
    facts: &AdviseFacts,
    request: &AdviseRequest,
) -> (IpsecAdvice, Vec<AdviceChoice>) {
    let (esp, cipher) = ciphers(facts, request);
    let (prf, prf_choice) = prf(request.goal);
    let (groups, group) = group(facts, request.goal);
    let (replay_window, window) = window(facts, &esp);
    let (per_cpu, associations) = per_cpu(facts, request.goal);
    let (card, offload) = card(facts, &esp);
    let esp_rekey_s = ESP_REKEY_S.of(request.goal);
    let ike_rekey_s = IKE_REKEY_S.of(request.goal);
    let dpd_delay_s = DPD_DELAY_S.of(request.goal);
    let link = facts.mtu.unwrap_or(ETHERNET_MTU);
    let mtu = inner_mtu(link, &esp);
    let plan = IpsecAdvice {
        ike: esp.iter().copied().filter(|proposal| proposal.is_aead()).collect(),
        esp,
        prf,
        groups,
        esp_rekey_s,
        ike_rekey_s,
        mtu,
        mss: segment(mtu),
        replay_window,
        dpd_delay_s,
        per_cpu,
        card,
    };
    let choices = vec![
        choice(
            Topic::Protocol,
            "IKEv2",
            "IKEv1 is deprecated (RFC 9395) and supports none of the choices below",
        ),
        choice(
            Topic::Authentication,
            "certificates",
            "a pre-shared key that people can remember is open to brute force offline",
        ),
        cipher,
        prf_choice,
        group,
        choice(
            Topic::Lifetime,
            format!("ESP {esp_rekey_s} s or 2^31 packets, IKE {ike_rekey_s} s"),
            "a new key costs one exchange; the bound on packets exists because sequence numbers run out, at \
             10 Gbit/s of small packets within minutes",
        ),
        choice(
            Topic::Mtu,
            format!("{mtu} bytes inside, TCP segments of {}", segment(mtu)),
            "a packet that does not fit is split in two, and each half costs as much as a whole packet",
        )
        .with(match facts.mtu {
            Some(mtu) => format!("the smallest MTU of the cards is {mtu}"),
            None => format!("no card reports its MTU: {ETHERNET_MTU} is assumed"),
        }),
        window,
        choice(
            Topic::DeadPeers,
            format!("probed after {dpd_delay_s} s of silence"),
            "only silent tunnels are probed, so it costs nothing under load; IKEv2 gives up by its \
             retransmission timeout, not by a timeout of this check",
        ),
        associations,
        offload,
    ];
    (plan, choices)
}

fn prf(goal: Goal) -> (Prf, AdviceChoice) {
    let prf = match goal {
        Goal::Security => Prf::Sha384,
        Goal::Throughput | Goal::Latency => Prf::Sha256,
    };
    let reason = "AES-GCM and ChaCha20-Poly1305 provide integrity, but no function to derive keys";
    (prf, choice(Topic::Prf, prf.name(), reason))
}

fn group(facts: &AdviseFacts, goal: Goal) -> (Vec<ExchangeGroup>, AdviceChoice) {
    let strongswan = facts.software.strongswan.as_deref();
    let can = since(strongswan, [6, 0, 0]) && facts.openssl_since([3, 5, 0]);
    let hybrid = can && goal != Goal::Latency && !facts.fips;
    let groups = groups(facts, goal, hybrid);
    let mut reason = "each rekey does a fresh DH exchange (perfect forward secrecy)".to_owned();
    reason.push_str(match (can, goal) {
        (true, Goal::Latency) => {
            "; ML-KEM is possible, but adds an exchange before the first packet"
        }
        (true, _) => "; with ML-KEM, so that traffic recorded today stays secret",
        (false, _) => "; adding ML-KEM needs strongSwan 6.0 with OpenSSL 3.5",
    });
    let choice = choice(Topic::Group, names(&groups), reason)
        .with(words("strongSwan", strongswan))
        .with(facts.openssl_words());
    (groups, choice)
}

fn window(facts: &AdviseFacts, esp: &[Cipher]) -> (u32, AdviceChoice) {
    let cbc = esp.first() == Some(&Cipher::Aes256CbcSha256);
    let by_qat = cbc && matches!(facts.qat, QatUse::Serves(_));
    let (window, reason) = if by_qat || facts.gcm_device.is_some() {
        let reason = "the device answers out of order: a narrow window drops late packets as if they were \
             replayed";
        (WIDEST_WINDOW, reason)
    } else if facts.processors > 1 {
        let reason = "several processors reorder packets; packets outside the window are dropped";
        (WIDE_WINDOW, reason)
    } else {
        let reason = "one processor keeps packets in order; the network may reorder them";
        (NARROW_WINDOW, reason)
    };
    let processors = facts.processors;
    let choice = choice(Topic::ReplayWindow, format!("{window} packets"), reason);
    (window, choice.with(format!("processors: {processors}")))
}

fn per_cpu(facts: &AdviseFacts, goal: Goal) -> (bool, AdviceChoice) {
    let strongswan = facts.software.strongswan.as_deref();
    let can = since(strongswan, [6, 0, 2]) && facts.kernel_since([6, 13, 0]);
    let useful = facts.processors > 1 && goal != Goal::Security;
    let (value, reason) = match (can, useful) {
        (true, true) => ("one SA per CPU", "only one CPU at a time serves an SA (RFC 9611)"),
        (false, true) => (
            "one SA for all CPUs",
            "one SA per CPU needs strongSwan 6.0.2 and Linux 6.13 (RFC 9611)",
        ),
        (_, false) => {
            ("one SA for all CPUs", "more SAs would not help the priority of this request")
        }
    };
    let choice = choice(Topic::PerCpu, value, reason)
        .with(words("strongSwan", strongswan))
        .with(words("Linux", facts.kernel.as_deref()));
    (can && useful, choice)
}

fn card(facts: &AdviseFacts, esp: &[Cipher]) -> (bool, AdviceChoice) {
    let aead = esp.first().is_some_and(|first| first.is_aead());
    match &facts.esp_card {
        Some(card) if aead => {
            let reason = "the card encrypts packets itself; the processor encrypts those that the card cannot";
            let choice = choice(Topic::Offload, "by the card, where possible", reason)
                .with(format!("{card} offers esp-hw-offload"));
            (true, choice)
        }
        _ => {
            let reason = "no card is known to encrypt IPsec packets";
            (false, choice(Topic::Offload, "none by a card", reason))
        }
    }
}

/// The largest packet whose encrypted form fits the link with any of the proposals.
fn inner_mtu(link: u32, esp: &[Cipher]) -> u32 {
    let fits = esp.iter().map(|cipher| {
        let added = cipher.esp();
        let room = link.saturating_sub(ESP_OUTER + added.fixed);
        (room / added.multiple * added.multiple).saturating_sub(ESP_TRAILER)
    });
    fits.min().unwrap_or(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_mtu_leaves_room_for_the_largest_overhead() {
        assert_eq!(inner_mtu(1500, &[Cipher::Aes128Gcm]), 1438);
        assert_eq!(inner_mtu(1500, &[Cipher::Aes256CbcSha256]), 1422);
        assert_eq!(inner_mtu(0, &[Cipher::Aes128Gcm]), 0);
        assert_eq!(inner_mtu(9000, &[]), 9000);
    }
}
