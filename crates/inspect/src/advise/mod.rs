// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Recommended configuration for this machine: cipher, integrity, group, lifetimes, and their reasons.
//!
//! Pure rules over a report: they measure nothing and change nothing. A saved measurement
//! (`millrace bench sizes --output FILE`) outranks a rule.
//!
//! ```text
//! algorithm.rs  all algorithms that may be recommended; forbidden ones have no name here
//! software.rs   installed versions of the programs to configure
//! facts.rs      the few facts of a report that matter for decisions
//! sizes.rs      a saved measurement of ciphers
//! handshakes.rs a saved measurement of handshakes
//! rules/        facts, request and measurement → choices with reasons
//! formats.rs    choices → swanctl.conf, OpenVPN, nginx, HAProxy, `set` commands
//! ```
//!
//! ```
//! use millrace_inspect::advise::{Subject, AdviseRequest, advise, software};
//! use millrace_inspect::report::Report;
//! use millrace_hostfs::Root;
//!
//! let root = Root::open("fixtures/atom-c3000")?;
//! let software = software::section(&root);
//! let advice = advise(&Report::of(&root), &software, &AdviseRequest::of(Subject::Ipsec));
//! assert!(advice.configuration.contains("esp_proposals = aes256-sha256"));
//! # Ok::<(), millrace_hostfs::OpenError>(())
//! ```

mod algorithm;
mod facts;
mod formats;
pub mod handshakes;
mod rules;
pub mod sizes;
pub mod software;

use schemars::JsonSchema;
use serde::Serialize;

use self::facts::AdviseFacts;
use self::handshakes::HandshakeRun;
use self::sizes::Sizes;
use self::software::InstalledSoftware;
use crate::report::Report;
use crate::section::{Section, Unread};

/// Largest packet size in a request, in bytes: the limit of IP.
pub const MAX_PACKET_BYTES: u32 = 65_535;

/// Packet size of most tunnels on the Internet, in bytes.
pub const USUAL_PACKET_BYTES: u32 = 1_400;

/// The subject of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// IPsec with IKEv2, encrypted by the kernel
    Ipsec,
    /// An OpenVPN tunnel
    Openvpn,
    /// A TLS server
    Tls,
}

impl Subject {
    /// The formats for this subject, the default first.
    #[must_use]
    pub fn formats(self) -> &'static [AdviceFormat] {
        match self {
            Self::Ipsec => &[AdviceFormat::Swanctl, AdviceFormat::Vyos],
            Self::Openvpn => &[AdviceFormat::Openvpn, AdviceFormat::Vyos],
            Self::Tls => &[AdviceFormat::Nginx, AdviceFormat::Haproxy],
        }
    }
}

/// The priority of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Bits and handshakes per second
    #[default]
    Throughput,
    /// Low latency, also at the tail
    Latency,
    /// The widest margin against future attacks
    Security,
}

/// The format of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum AdviceFormat {
    /// strongSwan's swanctl.conf
    Swanctl,
    /// OpenVPN 2.6 and later
    Openvpn,
    /// nginx, inside `http` or `server`
    Nginx,
    /// HAProxy's section `global`
    Haproxy,
    /// `set` commands of VyOS 1.4 and later
    Vyos,
}

/// A request for advice.
#[derive(Clone, Debug)]
pub struct AdviseRequest {
    /// The subject of the configuration.
    pub subject: Subject,
    /// The priority.
    pub goal: Goal,
    /// Size of the packets that matter, in bytes.
    pub packet_bytes: u32,
    /// Output format; the subject's default if the subject cannot be written in this one.
    pub format: AdviceFormat,
    /// A saved measurement; it outranks a rule.
    pub sizes: Option<Sizes>,
    /// A saved measurement of handshakes that a server computes itself.
    pub handshakes: Option<HandshakeRun>,
    /// Whether the kernel encrypts the packets of IPsec; otherwise the daemon does, with the processor's instructions
    /// whatever the kernel uses.
    pub kernel_esp: bool,
}

impl AdviseRequest {
    /// A request for throughput, the usual packet size and the default format, without a measurement.
    #[must_use]
    pub fn of(subject: Subject) -> Self {
        Self {
            subject,
            goal: Goal::default(),
            packet_bytes: USUAL_PACKET_BYTES,
            format: subject.formats()[0],
            sizes: None,
            handshakes: None,
            kernel_esp: true,
        }
    }
}

/// The topic of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[derive(strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Topic {
    /// Versions of the protocol.
    Protocol,
    /// Authentication of the peers.
    Authentication,
    /// Cipher and integrity.
    Cipher,
    /// The pseudo-random function of IKE.
    #[strum(serialize = "PRF")]
    Prf,
    /// Key exchange group.
    Group,
    /// When keys are replaced.
    #[strum(serialize = "lifetimes")]
    Lifetime,
    /// Packet sizes.
    #[strum(serialize = "packet size")]
    Mtu,
    /// Distance by which packets may arrive out of order.
    #[strum(serialize = "replay window")]
    ReplayWindow,
    /// Detection of a dead peer.
    #[strum(serialize = "dead peers")]
    DeadPeers,
    /// One security association (SA) per CPU.
    #[serde(rename = "processors")]
    #[strum(serialize = "per-CPU SAs")]
    PerCpu,
    /// Work for a card or the kernel.
    Offload,
    /// Compression inside the tunnel.
    Compression,
    /// Session resumption.
    Resumption,
    /// Session tickets after a full handshake.
    Tickets,
    /// Place where the ephemeral part of a handshake is computed.
    Handshakes,
    /// Sizes of TLS records.
    Records,
    /// Certificates and their keys.
    Keys,
}

impl Topic {
    /// The heading on a page.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A recommended value, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AdviceChoice {
    /// The question that the choice answers
    pub topic: Topic,
    /// The recommended value
    pub value: String,
    /// Why this value, in one sentence
    pub reason: String,
    /// Facts about this machine, or a measurement, that support it
    pub evidence: Vec<String>,
}

/// A recipe that is often copied, and why it is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RejectedAlternative {
    /// The setting, as guides write it
    pub recipe: String,
    /// Why it is rejected
    pub reason: String,
}

/// The recommended configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Advice {
    /// Version of this format; it grows when a field changes its meaning or disappears
    pub format: u32,
    /// True for the machine itself, false for a folder or bundle
    pub live: bool,
    /// The subject of the configuration
    pub subject: Subject,
    /// The priority
    pub goal: Goal,
    /// Size of the packets that matter, in bytes
    pub packet_bytes: u32,
    /// Steps to take before this configuration pays off
    pub first: Vec<String>,
    /// One choice for each topic, in the order of the page
    pub choices: Vec<AdviceChoice>,
    /// Recipes that are often copied, and why they are rejected
    pub rejected_alternatives: Vec<RejectedAlternative>,
    /// Format of the configuration
    pub written_for: AdviceFormat,
    /// The configuration, with the reasons as comments
    pub configuration: String,
    /// Facts that could not be read; the rules treat them as unknown, not as absent
    pub unread: Vec<Unread>,
}

impl Advice {
    /// The current version of the JSON format. 2: `instead` is `rejected_alternatives`.
    pub const FORMAT: u32 = 2;
}

/// Recommends a configuration for the machine that `report` and `software` describe.
#[must_use]
pub fn advise(
    report: &Report,
    software: &Section<InstalledSoftware>,
    request: &AdviseRequest,
) -> Advice {
    let known = software.known.clone().unwrap_or_default();
    let facts = AdviseFacts::of(report, &known, request);
    let format = if request.subject.formats().contains(&request.format) {
        request.format
    } else {
        request.subject.formats()[0]
    };
    let decided = rules::decide(&facts, request);
    let configuration = formats::write(&decided, format);
    let unread = [&report.cpu.unread, &report.kernel.unread, &report.qat.unread, &software.unread];
    Advice {
        format: Advice::FORMAT,
        live: report.live,
        subject: request.subject,
        goal: request.goal,
        packet_bytes: request.packet_bytes,
        first: decided.first,
        choices: decided.choices,
        rejected_alternatives: decided.rejected_alternatives,
        written_for: format,
        configuration,
        unread: unread.into_iter().flatten().cloned().collect(),
    }
}
