// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rules: from facts, request and measurement to choices with reasons.

mod cipher;
mod ipsec;
mod limits;
mod openvpn;
mod rejected;
mod tls;

use self::cipher::ciphers;
pub(crate) use self::ipsec::IpsecAdvice;
pub(in crate::advise) use self::limits::REKEY_PACKETS;
pub(crate) use self::openvpn::OpenvpnAdvice;
pub(crate) use self::tls::TlsAdvice;
use super::algorithm::ExchangeGroup;
use super::facts::{AdviseFacts, QatUse};
use super::{AdviceChoice, AdviseRequest, Goal, RejectedAlternative, Subject, Topic};

/// Everything that the rules decide about one request.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    /// Steps to take before this configuration pays off.
    pub(crate) first: Vec<String>,
    /// The choices with their reasons, as a page shows them.
    pub(crate) choices: Vec<AdviceChoice>,
    /// Recipes that a user may know, with the reason against each.
    pub(crate) rejected_alternatives: Vec<RejectedAlternative>,
    /// The choices as values, for the writers of configurations.
    pub(crate) plan: AdvicePlan,
}

/// The choices for one subject, as values.
#[derive(Clone, Debug)]
pub(crate) enum AdvicePlan {
    Ipsec(IpsecAdvice),
    Openvpn(OpenvpnAdvice),
    Tls(TlsAdvice),
}

pub(crate) fn decide(facts: &AdviseFacts, request: &AdviseRequest) -> Decided {
    let (plan, choices) = match request.subject {
        Subject::Ipsec => {
            let (plan, choices) = ipsec::decide(facts, request);
            (AdvicePlan::Ipsec(plan), choices)
        }
        Subject::Openvpn => {
            let (plan, choices) = openvpn::decide(facts, request);
            (AdvicePlan::Openvpn(plan), choices)
        }
        Subject::Tls => {
            let (plan, choices) = tls::decide(facts, request);
            (AdvicePlan::Tls(plan), choices)
        }
    };
    Decided {
        first: first(facts, request.subject),
        choices,
        rejected_alternatives: rejected::alternatives(facts, request),
        plan,
    }
}

/// A choice without evidence.
fn choice(topic: Topic, value: impl Into<String>, reason: impl Into<String>) -> AdviceChoice {
    AdviceChoice { topic, value: value.into(), reason: reason.into(), evidence: Vec::new() }
}

impl AdviceChoice {
    fn with(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }
}

fn first(facts: &AdviseFacts, subject: Subject) -> Vec<String> {
    let why = match subject {
        Subject::Ipsec => "the kernel encrypts IPsec's packets, but IKE uses this library",
        Subject::Openvpn | Subject::Tls => "no choice of a cipher compensates for it",
    };
    let slow = facts.slow.iter();
    let mut first: Vec<String> = slow
        .map(|slow| format!("{slow}. Replace it by a build with assembly first: {why}"))
        .collect();
    if let Some(load) = &facts.load_aes {
        first.push(format!(
            "{}. Load the modules with the processor's instructions (`{load}`; `millrace doctor --only \
             kernel-portable-aes` says more), then ask again: AES-GCM will be the fastest cipher",
            facts.aes_evidence
        ));
    }
    if let (QatUse::Useless(why), Subject::Ipsec) = (&facts.qat, subject) {
        first.push(format!(
            "{why}: in this state this tunnel gains nothing from it; `millrace doctor` shows the remedy"
        ));
    }
    first
}

/// The groups in order of preference.
fn groups(facts: &AdviseFacts, goal: Goal, hybrid: bool) -> Vec<ExchangeGroup> {
    let secure = goal == Goal::Security;
    let groups: &[ExchangeGroup] = match (facts.fips, secure) {
        (true, true) => &[ExchangeGroup::P384],
        (true, false) => &[ExchangeGroup::P256, ExchangeGroup::P384],
        (false, true) => &[ExchangeGroup::P384, ExchangeGroup::Curve25519],
        (false, false) => &[ExchangeGroup::Curve25519, ExchangeGroup::P256],
    };
    let hybrid = (hybrid && !facts.fips).then_some(ExchangeGroup::Curve25519MlKem768);
    hybrid.into_iter().chain(groups.iter().copied()).collect()
}

/// The groups of TLS, and the choice that reports them; `fast` says why the others are chosen.
fn tls_groups(facts: &AdviseFacts, goal: Goal, fast: &str) -> (Vec<ExchangeGroup>, AdviceChoice) {
    let hybrid = facts.openssl_since([3, 5, 0]) && !facts.fips;
    let groups = groups(facts, goal, hybrid);
    let reason = if hybrid {
        "with ML-KEM, so that traffic recorded today stays secret".to_owned()
    } else {
        format!("{fast}; adding ML-KEM needs OpenSSL 3.5")
    };
    let choice = choice(Topic::Group, names(&groups), reason).with(facts.openssl_words());
    (groups, choice)
}

/// Whether only TLS 1.3 is offered, and the choice that reports it.
fn tls_versions(goal: Goal, reason: &str) -> (bool, AdviceChoice) {
    let tls13_only = goal == Goal::Security;
    let value = if tls13_only { "TLS 1.3" } else { "TLS 1.2 and 1.3" };
    (tls13_only, choice(Topic::Protocol, value, reason))
}

fn names(groups: &[ExchangeGroup]) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.names().name).collect();
    names.join(", then ")
}

/// Largest TCP segment in a packet of `packet` bytes: without the headers of IPv4 and TCP.
fn segment(packet: u32) -> u32 {
    packet.saturating_sub(40)
}
