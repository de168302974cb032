// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was typed for `millrace advise`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use millrace_inspect::advise::{Format, Goal, MAX_PACKET_BYTES, Subject, USUAL_PACKET_BYTES};

const ADVISE_EXAMPLE: &str = "\
Examples:
  millrace advise ipsec
  millrace advise ipsec --goal security --format vyos
  millrace advise openvpn --root gateway-7.tar.gz
  millrace bench sizes --json sizes.json
  millrace advise openvpn --sizes sizes.json --packet 1400
  millrace advise tls --goal latency --json | jq -r .configuration

Nothing is changed and nothing is measured. What the machine has decides, by
rules that are said; a saved measurement (--sizes) outranks them.";

/// Say what to configure on this machine for IPsec, OpenVPN or a TLS server, and why
///
/// Cipher, integrity, groups, lifetimes, packet sizes, replay window, offload:
/// chosen from what `millrace inspect` finds, with the reason and the
/// evidence; then the configuration, with the reasons as comments. What
/// current practice forbids is never chosen.
#[derive(Debug, Args)]
#[command(after_long_help = ADVISE_EXAMPLE)]
pub(crate) struct AdviseArgs {
    /// What is to be configured
    #[arg(value_enum, value_name = "WHAT")]
    pub(crate) subject: SubjectName,
    /// What matters most
    #[arg(long, value_name = "GOAL", value_enum, default_value_t = GoalName::Throughput)]
    pub(crate) goal: GoalName,
    /// How to write the configuration
    ///
    /// ipsec: swanctl (the default), vyos; openvpn: openvpn (the default),
    /// vyos; tls: nginx (the default), haproxy.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) format: Option<FormatName>,
    /// Bytes of the packets that count
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = USUAL_PACKET_BYTES,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_PACKET_BYTES))
    )]
    pub(crate) packet: u32,
    /// A run saved by `millrace bench sizes --json FILE`: it decides between ciphers
    #[arg(long, value_name = "FILE")]
    pub(crate) sizes: Option<PathBuf>,
    /// Look at this folder or bundle instead of this machine
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub(crate) root: PathBuf,
    /// Print JSON (schema: docs/reference/advise.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is to be configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SubjectName {
    /// IPsec with IKEv2
    Ipsec,
    /// An OpenVPN tunnel
    Openvpn,
    /// A TLS server
    Tls,
}

/// What matters most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GoalName {
    /// Bits and handshakes per second
    Throughput,
    /// Short waits
    Latency,
    /// The widest margin
    Security,
}

/// How to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatName {
    /// The swanctl.conf of strongSwan
    Swanctl,
    /// OpenVPN 2.6 and later
    Openvpn,
    /// nginx
    Nginx,
    /// The section global of HAProxy
    Haproxy,
    /// The set commands of VyOS 1.4 and later
    Vyos,
}

impl From<SubjectName> for Subject {
    fn from(name: SubjectName) -> Self {
        match name {
            SubjectName::Ipsec => Self::Ipsec,
            SubjectName::Openvpn => Self::Openvpn,
            SubjectName::Tls => Self::Tls,
        }
    }
}

impl From<GoalName> for Goal {
    fn from(name: GoalName) -> Self {
        match name {
            GoalName::Throughput => Self::Throughput,
            GoalName::Latency => Self::Latency,
            GoalName::Security => Self::Security,
        }
    }
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Swanctl => Self::Swanctl,
            FormatName::Openvpn => Self::Openvpn,
            FormatName::Nginx => Self::Nginx,
            FormatName::Haproxy => Self::Haproxy,
            FormatName::Vyos => Self::Vyos,
        }
    }
}
