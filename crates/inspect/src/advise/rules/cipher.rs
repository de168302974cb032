// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The order of ciphers: [`order`] decides, [`explain`] says why.

use super::choice;
use crate::advise::algorithm::Cipher;
use crate::advise::facts::{AdviseFacts, Aes, QatUse};
use crate::advise::sizes::SizeVerdict;
use crate::advise::{AdviceChoice, AdviseRequest, Goal, Subject, Topic};

/// Set-up time of a request to an engine behind `/dev/crypto`: a published measurement (Annapurna Alpine, Netgear
/// R9000, AES-256-CBC, 16 to 8192 bytes), fitted by t = set-up + bytes / speed.
const ENGINE_SETUP_US: f64 = 12.2;

/// Speed of that engine by the same fit.
const ENGINE_MB_S: f64 = 558.0;

/// Speed of the same machine's processor without the engine.
const PROCESSOR_MB_S: f64 = 59.0;

/// The rule that applies to this machine and request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The kernel gives IPsec's AES-GCM to a device.
    GcmDevice,
    /// QAT serves IPsec with AES-CBC and HMAC only.
    QatCbc,
    /// The kernel allows approved algorithms only.
    Fips,
    /// The processor computes several AES blocks at once.
    WideAes,
    /// The processor has AES instructions.
    AesInstructions,
    /// The processor has no AES instructions.
    NoAes,
    /// The kernel does not use the processor's AES instructions for IPsec.
    PortableAes,
    /// Whether the processor has AES instructions is unknown.
    UnknownAes,
}

/// The order of ciphers, and everything that led to it.
#[derive(Clone, Debug)]
struct Decision {
    rule: Rule,
    /// Comparison of AES-GCM with ChaCha20-Poly1305 in the saved run, if there is one that may decide.
    measured: Option<SizeVerdict>,
    /// The cipher that the saved run proved fastest on the processor.
    fastest: Option<Cipher>,
    /// The ciphers in order of preference.
    order: Vec<Cipher>,
}

/// Why, in words.
struct Reason {
    text: String,
    evidence: Vec<String>,
}

/// The ciphers in order of preference, and the choice that reports them.
pub(super) fn ciphers(facts: &AdviseFacts, request: &AdviseRequest) -> (Vec<Cipher>, AdviceChoice) {
    let decision = order(facts, request);
    let reason = explain(&decision, facts, request);
    let names: Vec<&str> = decision.order.iter().map(|cipher| cipher.names().name).collect();
    let mut choice = choice(Topic::Cipher, names.join(", then "), reason.text);
    choice.evidence = reason.evidence;
    (decision.order, choice)
}

fn order(facts: &AdviseFacts, request: &AdviseRequest) -> Decision {
    let aes: &[Cipher] = match request.goal {
        Goal::Security => &[Cipher::Aes256Gcm],
        Goal::Throughput | Goal::Latency => &[Cipher::Aes128Gcm, Cipher::Aes256Gcm],
    };
    let aes_first = [aes, &[Cipher::ChaCha20Poly1305]].concat();
    let chacha_first = [&[Cipher::ChaCha20Poly1305], aes].concat();
    let rule = rule(facts, request);
    let mut order = match rule {
        Rule::GcmDevice | Rule::Fips => aes.to_vec(),
        Rule::QatCbc => vec![Cipher::Aes256CbcSha256, Cipher::Aes256Gcm],
        Rule::WideAes | Rule::AesInstructions | Rule::UnknownAes => aes_first.clone(),
        Rule::NoAes | Rule::PortableAes => chacha_first.clone(),
    };
    // A run measures OpenSSL, which uses the instructions that this kernel does not.
    let sizes = request.sizes.as_ref().filter(|_| !facts.fips && rule != Rule::PortableAes);
    let measured = sizes.map(|sizes| {
        let model = facts.model.as_deref();
        let packet = request.packet_bytes;
        sizes.compare(model, aes[0], Cipher::ChaCha20Poly1305, packet)
    });
    let on_processor = match &measured {
        Some(SizeVerdict::Faster(_)) => Some(aes_first),
        Some(SizeVerdict::Slower(_)) => Some(chacha_first),
        Some(SizeVerdict::NoDifference(_) | SizeVerdict::NotBoth | SizeVerdict::OtherProcessor)
        | None => None,
    };
    let fastest = on_processor.as_ref().map(|ciphers| ciphers[0]);
    if let Some(ciphers) = on_processor {
        // The run measured the processor, so a device's cipher keeps the first place.
        order.truncate(usize::from(rule == Rule::QatCbc));
        order.extend(ciphers);
    }
    Decision { rule, measured, fastest, order }
}

fn rule(facts: &AdviseFacts, request: &AdviseRequest) -> Rule {
    let ipsec = request.subject == Subject::Ipsec;
    // A device relieves the processor, but adds latency; VAES is faster than any device.
    let device_pays = ipsec && request.goal == Goal::Throughput && facts.aes != Aes::Wide;
    let qat_serves = matches!(facts.qat, QatUse::Serves(_));
    match facts.aes {
        _ if device_pays && facts.gcm_device.is_some() => Rule::GcmDevice,
        _ if device_pays && qat_serves && facts.esp_card.is_none() => Rule::QatCbc,
        _ if facts.fips => Rule::Fips,
        Aes::Wide => Rule::WideAes,
        Aes::Instructions => Rule::AesInstructions,
        Aes::None => Rule::NoAes,
        Aes::Portable => Rule::PortableAes,
        Aes::Unknown => Rule::UnknownAes,
    }
}

fn explain(decision: &Decision, facts: &AdviseFacts, request: &AdviseRequest) -> Reason {
    let ipsec = request.subject == Subject::Ipsec;
    let by_rule = rule_text(decision.rule, ipsec, &facts.qat);
    let text = match decision.fastest {
        None => by_rule,
        Some(cipher) if decision.rule == Rule::QatCbc => {
            format!("{by_rule}. Without the device, {} was measured fastest", cipher.names().name)
        }
        Some(cipher) => format!("{} was measured fastest", cipher.names().name),
    };
    let mut evidence = vec![facts.aes_evidence.clone()];
    match (decision.rule, &facts.gcm_device, &facts.qat) {
        (Rule::GcmDevice, Some(device), _) => {
            evidence.push(format!("the kernel gives AES-GCM to {device}"));
        }
        (_, _, QatUse::Serves(served)) if ipsec => evidence.push(served.clone()),
        _ => {}
    }
    match decision.rule {
        Rule::Fips => evidence.push("the kernel is in FIPS mode".to_owned()),
        Rule::NoAes => evidence.extend(router_engine(facts, request.packet_bytes)),
        Rule::PortableAes if request.sizes.is_some() => evidence.push(
            "the saved run measured OpenSSL with instructions that this kernel does not use: it decides nothing"
                .to_owned(),
        ),
        _ => {}
    }
    if let (Some(verdict), Some(sizes)) = (&decision.measured, &request.sizes) {
        let context = if ipsec {
            ", in OpenSSL; the kernel has other code for the same instructions"
        } else {
            ""
        };
        evidence.push(format!("{verdict}{context} ({})", sizes.described()));
    }
    Reason { text, evidence }
}

/// The reason of a rule, and what it adds beside a device that a tunnel could use.
#[rustfmt::skip]
fn rule_text(rule: Rule, ipsec: bool, qat: &QatUse) -> String {
    let beside_qat = match rule {
        Rule::WideAes if ipsec && *qat != QatUse::None => ", faster than a device that gets packets one by one",
        Rule::AesInstructions if ipsec && matches!(qat, QatUse::Serves(_)) => {
            ": no wait for a device, and a full-length check value"
        }
        _ => "",
    };
    let text = match rule {
        Rule::GcmDevice => "a device computes it, and the processor is free for the packets",
        Rule::QatCbc =>
            "the kernel's driver gives QAT no AES-GCM: only AES-CBC with HMAC uses the device. AES-GCM on \
             the processor comes second: try both under your load, because QAT's published gain (270 to \
             778 Mbit/s on an Atom C3000) is over AES-CBC on the processor",
        Rule::Fips => "this kernel allows approved algorithms only, and AES-GCM is the fastest of them",
        Rule::WideAes => "the processor computes several AES blocks at once",
        Rule::AesInstructions => "the processor has instructions for AES and GHASH",
        Rule::NoAes =>
            "without AES instructions, ChaCha20-Poly1305 is several times as fast as AES-GCM, and its \
             time does not depend on the key",
        Rule::PortableAes =>
            "the kernel computes AES in portable code although the processor has instructions; until it \
             uses them, ChaCha20-Poly1305 is faster",
        Rule::UnknownAes =>
            "nearly every current processor has AES instructions; whether this one has them is unknown, \
             so measure: `millrace bench sizes --output FILE`",
    };
    format!("{text}{beside_qat}")
}

/// Whether a router's engine could pay off at this packet size, by the one published measurement.
fn router_engine(facts: &AdviseFacts, packet: u32) -> Option<String> {
    let engine = facts.cbc_device.as_ref()?;
    let bytes = f64::from(packet);
    let gain = (bytes / PROCESSOR_MB_S) / (ENGINE_SETUP_US + bytes / ENGINE_MB_S);
    let crossover = ENGINE_SETUP_US / (1.0 / PROCESSOR_MB_S - 1.0 / ENGINE_MB_S);
    let access = if facts.dev_crypto { ", also through /dev/crypto" } else { "" };
    let verdict = if gain > 1.0 {
        format!(
            "at {packet} bytes such an engine was {gain:.1} times as fast as its processor's AES-CBC: measure it \
             against ChaCha20-Poly1305 before you use it"
        )
    } else {
        format!("at {packet} bytes such an engine is slower than its processor")
    };
    Some(format!(
        "{engine} computes AES-CBC{access}; in a published measurement (Netgear R9000) it paid off from \
         {crossover:.0} bytes: {verdict}"
    ))
}
