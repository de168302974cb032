// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Facts, wish and measurement to choices with reasons. Here is what all subjects share: the cipher.

mod instead;
mod ipsec;
mod openvpn;
mod tls;

pub(crate) use self::ipsec::IpsecPlan;
pub(crate) use self::openvpn::OpenvpnPlan;
pub(crate) use self::tls::TlsPlan;

use super::algorithm::{Cipher, Group};
use super::facts::{Aes, Facts, QatUse};
use super::sizes::Verdict;
use super::{Choice, Goal, Instead, Subject, Topic, Wish};

/// A published measurement of one engine behind `/dev/crypto` (Annapurna Alpine, Netgear R9000,
/// AES-256-CBC, 16 to 8192 bytes), fitted by t = set-up + bytes / speed, and its processor's AES.
const ENGINE_SETUP_US: f64 = 12.2;
const ENGINE_MB_S: f64 = 558.0;
const PROCESSOR_MB_S: f64 = 59.0;

/// What was decided.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// What to do first.
    pub(crate) first: Vec<String>,
    /// The choices for people.
    pub(crate) choices: Vec<Choice>,
    /// Recipes that are not taken.
    pub(crate) instead: Vec<Instead>,
    /// The choices for formats.
    pub(crate) plan: Plan,
}

/// The choices of a subject, as values.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Ipsec(IpsecPlan),
    Openvpn(OpenvpnPlan),
    Tls(TlsPlan),
}

/// Decides.
pub(crate) fn decide(facts: &Facts, wish: &Wish) -> Decided {
    let (plan, choices) = match wish.subject {
        Subject::Ipsec => {
            let (plan, choices) = ipsec::decide(facts, wish);
            (Plan::Ipsec(plan), choices)
        }
        Subject::Openvpn => {
            let (plan, choices) = openvpn::decide(facts, wish);
            (Plan::Openvpn(plan), choices)
        }
        Subject::Tls => {
            let (plan, choices) = tls::decide(facts, wish);
            (Plan::Tls(plan), choices)
        }
    };
    Decided {
        first: first(facts, wish),
        choices,
        instead: instead::notes(facts, wish),
        plan,
    }
}

/// A choice.
fn choice(topic: Topic, value: impl Into<String>, reason: impl Into<String>) -> Choice {
    Choice {
        topic,
        value: value.into(),
        reason: reason.into(),
        evidence: Vec::new(),
    }
}

impl Choice {
    fn with(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }
}

fn first(facts: &Facts, wish: &Wish) -> Vec<String> {
    let mut first: Vec<String> = Vec::new();
    for slow in &facts.slow {
        let carried = match wish.subject {
            Subject::Ipsec => "IPsec's packets are the kernel's, but IKE uses it",
            Subject::Openvpn | Subject::Tls => "no choice of a cipher makes up for it",
        };
        first.push(format!(
            "{slow}. Replace it by a build with assembly first: {carried}"
        ));
    }
    if let (QatUse::Useless(why), Subject::Ipsec) = (&facts.qat, wish.subject) {
        first.push(format!(
            "{why}: it gives this tunnel nothing as it is; `millrace doctor` says what to do"
        ));
    }
    first
}

/// The ciphers in order of preference.
fn ciphers(facts: &Facts, wish: &Wish) -> (Vec<Cipher>, Choice) {
    let aes: &[Cipher] = match wish.goal {
        Goal::Security => &[Cipher::Aes256Gcm],
        Goal::Throughput | Goal::Latency => &[Cipher::Aes128Gcm, Cipher::Aes256Gcm],
    };
    let (mut order, reason, mut evidence) = by_rule(facts, wish, aes);
    let mut reason = reason;
    let chacha = Cipher::ChaCha20Poly1305;
    let named = (aes[0].measured_as(), chacha.measured_as());
    if let (Some(sizes), (Some(one), Some(other)), false) = (&wish.sizes, named, facts.fips) {
        let same = sizes.is_of(facts.model.as_deref());
        let verdict = same.then(|| sizes.compare(one, other, wish.packet_bytes));
        // The run knows nothing of a device: it decides what comes after it.
        let device = usize::from(order.first() == Some(&Cipher::Aes256CbcSha256));
        let decided = |aes_first: bool| {
            let pair: Vec<Cipher> = if aes_first {
                aes.iter().copied().chain([chacha]).collect()
            } else {
                [chacha].into_iter().chain(aes.iter().copied()).collect()
            };
            order[..device].iter().copied().chain(pair).collect()
        };
        let said = match verdict {
            Some(Some(Verdict::Faster(said))) => {
                order = decided(true);
                reason = measured(&reason, device, aes[0]);
                said
            }
            Some(Some(Verdict::Slower(said))) => {
                order = decided(false);
                reason = measured(&reason, device, chacha);
                said
            }
            Some(Some(Verdict::NoDifference(said))) => {
                format!("{said}: the ranges overlap, there is no difference to measure")
            }
            Some(None) => "the saved run has not both ciphers: it decides nothing".to_owned(),
            None => "the saved run is of another processor: it decides nothing".to_owned(),
        };
        let where_measured = if wish.subject == Subject::Ipsec {
            ", in OpenSSL: the kernel's code is other, on the same instructions"
        } else {
            ""
        };
        evidence.push(format!("{said}{where_measured} ({})", sizes.described()));
    }
    let names: Vec<&str> = order.iter().map(|cipher| cipher.name()).collect();
    let mut choice = choice(Topic::Cipher, names.join(", then "), reason);
    choice.evidence = evidence;
    (order, choice)
}

fn measured(rule: &str, device: usize, winner: Cipher) -> String {
    if device == 0 {
        format!("{} was measured to be the fastest", winner.name())
    } else {
        format!(
            "{rule}. Behind the device, {} was measured to be the fastest",
            winner.name()
        )
    }
}

fn by_rule(facts: &Facts, wish: &Wish, aes: &[Cipher]) -> (Vec<Cipher>, String, Vec<String>) {
    let ipsec = wish.subject == Subject::Ipsec;
    let mut evidence = vec![facts.aes_evidence.clone()];
    let with = |tail: &[Cipher]| aes.iter().chain(tail).copied().collect::<Vec<_>>();
    let busy = wish.goal == Goal::Throughput && facts.aes != Aes::Wide;
    if let (Some(device), true) = (&facts.gcm_device, ipsec && busy) {
        evidence.push(format!("the kernel gives AES-GCM to {device}"));
        let reason = "a device computes it, and the processor is free for the packets";
        return (with(&[]), reason.to_owned(), evidence);
    }
    if let (QatUse::Serves(served), true) = (&facts.qat, ipsec) {
        evidence.push(served.clone());
        if busy && facts.esp_card.is_none() {
            let order = [Cipher::Aes256CbcSha256, Cipher::Aes256Gcm].to_vec();
            let reason = "the driver of the kernel gives QAT no AES-GCM: only AES-CBC with HMAC goes \
                 to the device. AES-GCM on the processor comes second: try both under your load, \
                 for the published gain of QAT (270 to 778 Mbit/s on an Atom C3000) is over AES-CBC on \
                 the processor";
            return (order, reason.to_owned(), evidence);
        }
    }
    if facts.fips {
        let reason =
            "only approved algorithms are allowed here, and AES-GCM is the fastest of them";
        evidence.push("the kernel is in FIPS mode".to_owned());
        return (with(&[]), reason.to_owned(), evidence);
    }
    let chacha = Cipher::ChaCha20Poly1305;
    match facts.aes {
        Aes::Wide => {
            let mut reason = "the processor computes several blocks of AES at once".to_owned();
            if ipsec && facts.qat != QatUse::None {
                reason.push_str(": more than a device gives packets that come one by one");
            }
            (with(&[chacha]), reason, evidence)
        }
        Aes::Instructions => {
            let mut reason = "the processor computes AES and GHASH itself".to_owned();
            if ipsec && matches!(facts.qat, QatUse::Serves(_)) {
                reason.push_str(": no wait for a device, and no short check value");
            }
            (with(&[chacha]), reason, evidence)
        }
        Aes::None => {
            let reason = "without instructions for AES, ChaCha20-Poly1305 is several times as fast as \
                 AES-GCM, and takes the same time whatever the key";
            evidence.extend(engine(facts, wish.packet_bytes));
            (
                [chacha].into_iter().chain(with(&[])).collect(),
                reason.to_owned(),
                evidence,
            )
        }
        Aes::Unknown => {
            let reason = "nearly every processor of today computes AES itself; that it is not known \
                 of this one is worth a measurement: `millrace bench sizes --json FILE`";
            (with(&[chacha]), reason.to_owned(), evidence)
        }
    }
}

/// Whether an engine of a router could pay at this size, by the one measurement that is published.
fn engine(facts: &Facts, packet: u32) -> Option<String> {
    let engine = facts.cbc_device.as_ref()?;
    let bytes = f64::from(packet);
    let gain = (bytes / PROCESSOR_MB_S) / (ENGINE_SETUP_US + bytes / ENGINE_MB_S);
    let crossover = ENGINE_SETUP_US / (1.0 / PROCESSOR_MB_S - 1.0 / ENGINE_MB_S);
    let door = if facts.dev_crypto {
        ", also by /dev/crypto"
    } else {
        ""
    };
    let verdict = if gain > 1.0 {
        format!(
            "at {packet} bytes such an engine gave {gain:.1} times its processor's AES-CBC: worth a \
             measurement against ChaCha20-Poly1305, not more"
        )
    } else {
        format!("at {packet} bytes such an engine is slower than its processor")
    };
    Some(format!(
        "{engine} takes AES-CBC{door}; a published measurement (Netgear R9000) paid from {crossover:.0} \
         bytes on: {verdict}"
    ))
}

/// The groups in order of preference.
fn groups(facts: &Facts, goal: Goal, hybrid: bool) -> Vec<Group> {
    let mut groups = Vec::new();
    if facts.fips {
        return match goal {
            Goal::Security => vec![Group::P384],
            Goal::Throughput | Goal::Latency => vec![Group::P256, Group::P384],
        };
    }
    if hybrid {
        groups.push(Group::Curve25519MlKem768);
    }
    groups.extend(match goal {
        Goal::Security => [Group::P384, Group::Curve25519],
        Goal::Throughput | Goal::Latency => [Group::Curve25519, Group::P256],
    });
    groups
}

fn names(groups: &[Group]) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
    names.join(", then ")
}

/// Largest segment of TCP in packets of so many bytes: without the headers of IPv4 and TCP.
fn segment(packet: u32) -> u32 {
    packet.saturating_sub(40)
}
