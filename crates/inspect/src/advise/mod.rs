// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What to configure on this machine: cipher, integrity, group, lifetimes, and their reasons.
//!
//! Pure rules over what the report shows: nothing is measured and nothing is changed here. A
//! measurement that somebody saved (`millrace bench sizes --json FILE`) outranks a rule.
//!
//! ```text
//! algorithm.rs  every algorithm that may be advised: what is forbidden has no name here
//! software.rs   which versions of the programs to be configured are installed
//! facts.rs      the few facts of a report that decide
//! sizes.rs      a saved measurement, read with care
//! rules/        facts, wish and measurement to choices with reasons
//! formats/      choices written as swanctl.conf, OpenVPN, nginx, HAProxy and `set` commands
//! ```
//!
//! ```
//! use millrace_inspect::advise::{Subject, Wish, advise, software};
//! use millrace_inspect::report::Report;
//! use millrace_hostfs::Root;
//!
//! let root = Root::open("fixtures/atom-c3000")?;
//! let software = software::section(&root);
//! let advice = advise(&Report::of(&root), &software, &Wish::of(Subject::Ipsec));
//! assert!(advice.configuration.contains("esp_proposals = aes256-sha256"));
//! # Ok::<(), millrace_hostfs::OpenError>(())
//! ```

mod algorithm;
mod facts;
mod formats;
mod rules;
pub mod sizes;
pub mod software;

use schemars::JsonSchema;
use serde::Serialize;

use self::facts::Facts;
use self::sizes::Sizes;
use self::software::Software;
use crate::report::{Report, Section, Unread};

/// Largest packet that advice is given for, in bytes: that of IP.
pub const MAX_PACKET_BYTES: u32 = 65_535;

/// Packets of most tunnels on the Internet, in bytes.
pub const USUAL_PACKET_BYTES: u32 = 1_400;

/// What is to be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// IPsec with IKEv2, carried by the kernel.
    Ipsec,
    /// An OpenVPN tunnel.
    Openvpn,
    /// A TLS server.
    Tls,
}

impl Subject {
    /// The formats in which it can be written, the usual one first.
    #[must_use]
    pub fn formats(self) -> &'static [Format] {
        match self {
            Self::Ipsec => &[Format::Swanctl, Format::Vyos],
            Self::Openvpn => &[Format::Openvpn, Format::Vyos],
            Self::Tls => &[Format::Nginx, Format::Haproxy],
        }
    }
}

/// What matters most to whoever asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Bits per second and handshakes per second.
    #[default]
    Throughput,
    /// Short waits, also at the tail.
    Latency,
    /// The widest margin against what may be found out later.
    Security,
}

/// How a configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// strongSwan's `swanctl.conf`.
    Swanctl,
    /// OpenVPN 2.6 and later.
    Openvpn,
    /// nginx, inside of `http` or `server`.
    Nginx,
    /// HAProxy, the section `global`.
    Haproxy,
    /// The `set` commands of VyOS 1.4 and later.
    Vyos,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// What is to be configured.
    pub subject: Subject,
    /// What matters most.
    pub goal: Goal,
    /// Bytes of the packets that count.
    pub packet_bytes: u32,
    /// How to write it; the subject's usual one if it cannot be written so.
    pub format: Format,
    /// A measurement, which outranks a rule.
    pub sizes: Option<Sizes>,
}

impl Wish {
    /// For throughput, usual packets and the usual format, without a measurement.
    #[must_use]
    pub fn of(subject: Subject) -> Self {
        Self {
            subject,
            goal: Goal::default(),
            packet_bytes: USUAL_PACKET_BYTES,
            format: subject.formats()[0],
            sizes: None,
        }
    }
}

/// What a choice is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// Versions of the protocol.
    Protocol,
    /// How the peers know each other.
    Authentication,
    /// Cipher and integrity.
    Cipher,
    /// The pseudo-random function of IKE.
    Prf,
    /// Where keys are agreed on.
    Group,
    /// When keys are replaced.
    Lifetime,
    /// Packet sizes.
    Mtu,
    /// How far packets may overtake each other.
    ReplayWindow,
    /// How a dead peer is noticed.
    DeadPeers,
    /// One security association per processor.
    Processors,
    /// What a card or the kernel takes over.
    Offload,
    /// Compression inside of the tunnel.
    Compression,
    /// How sessions are resumed.
    Resumption,
    /// Sizes of TLS records.
    Records,
    /// Certificates and their keys.
    Keys,
}

impl Topic {
    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Authentication => "authentication",
            Self::Cipher => "cipher",
            Self::Prf => "PRF",
            Self::Group => "group",
            Self::Lifetime => "lifetimes",
            Self::Mtu => "packet size",
            Self::ReplayWindow => "replay window",
            Self::DeadPeers => "dead peers",
            Self::Processors => "processors",
            Self::Offload => "offload",
            Self::Compression => "compression",
            Self::Resumption => "resumption",
            Self::Records => "records",
            Self::Keys => "keys",
        }
    }
}

/// One choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Choice {
    /// What it is about
    pub topic: Topic,
    /// What to take
    pub value: String,
    /// Why
    pub reason: String,
    /// What of this machine, or which measurement, says so
    pub evidence: Vec<String>,
}

/// A recipe that is often copied, and why it is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Instead {
    /// The recipe
    pub of: String,
    /// Why not
    pub because: String,
}

/// What to configure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Advice {
    /// Version of this form; it grows when a field changes its meaning or goes, not when one comes
    pub format: u32,
    /// Whether it is for the machine itself, rather than for files of one
    pub live: bool,
    /// What is configured
    pub subject: Subject,
    /// What matters most
    pub goal: Goal,
    /// Bytes of the packets that count
    pub packet_bytes: u32,
    /// What to do before anything of this pays
    pub first: Vec<String>,
    /// The choices
    pub choices: Vec<Choice>,
    /// Recipes that are often copied, and why they are not taken
    pub instead: Vec<Instead>,
    /// How the configuration is written
    pub written_for: Format,
    /// The configuration; reasons are its comments
    pub configuration: String,
    /// What could not be read of what decides: it is taken for unknown, not for absent
    pub unread: Vec<Unread>,
}

impl Advice {
    /// The version of the form.
    pub const FORMAT: u32 = 1;

    /// The JSON schema of advice, as text.
    #[must_use]
    pub fn schema() -> String {
        // A schema is made of maps and texts: writing it cannot fail.
        let mut text =
            serde_json::to_string_pretty(&schemars::schema_for!(Self)).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Decides.
#[must_use]
pub fn advise(report: &Report, software: &Section<Software>, wish: &Wish) -> Advice {
    let known = software.known.clone().unwrap_or_default();
    let facts = Facts::of(report, &known);
    let format = if wish.subject.formats().contains(&wish.format) {
        wish.format
    } else {
        wish.subject.formats()[0]
    };
    let decided = rules::decide(&facts, wish);
    let configuration = formats::write(&decided, format);
    let unread = [
        &report.cpu.unread,
        &report.kernel.unread,
        &report.qat.unread,
        &software.unread,
    ];
    Advice {
        format: Advice::FORMAT,
        live: report.live,
        subject: wish.subject,
        goal: wish.goal,
        packet_bytes: wish.packet_bytes,
        first: decided.first,
        choices: decided.choices,
        instead: decided.instead,
        written_for: format,
        configuration,
        unread: unread.into_iter().flatten().cloned().collect(),
    }
}
