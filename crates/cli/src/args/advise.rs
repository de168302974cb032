// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace advise`.

use std::path::PathBuf;

use clap::Args;
use millrace_inspect::advise::{AdviceFormat, Goal, MAX_PACKET_BYTES, Subject, USUAL_PACKET_BYTES};

use super::{ExaminedRootArg, number};

const ADVISE_EXAMPLE: &str = "\
Examples:
  millrace advise ipsec
  millrace advise ipsec --goal security --format vyos
  millrace advise openvpn --root gateway-7.tar.gz
  millrace bench sizes --output sizes.json
  millrace advise openvpn --sizes-run sizes.json --packet 1400
  millrace bench tls --local
  millrace advise tls --goal latency --json | jq -r .configuration

The command changes nothing and measures nothing. It applies documented rules
to this machine's hardware and software; a saved measurement
(--sizes-run, --handshakes-run) outranks them.";

/// Recommend settings of IPsec, OpenVPN or a TLS server
///
/// Cipher, integrity, groups, lifetimes, packet sizes, replay window, offload:
/// chosen from what `millrace inspect` finds, with the reason and the
/// evidence; then the configuration, with the reasons as comments. Algorithms
/// that current practice forbids are never chosen.
#[derive(Debug, Args)]
#[command(after_long_help = ADVISE_EXAMPLE)]
pub(crate) struct AdviseArgs {
    /// Kind of tunnel or server to configure
    #[arg(value_enum, value_name = "SUBJECT")]
    pub(crate) subject: Subject,
    /// Goal to prefer where several conflict
    #[arg(long, value_name = "GOAL", value_enum, default_value_t = Goal::Throughput)]
    pub(crate) goal: Goal,
    /// Format of the configuration
    ///
    /// ipsec: swanctl (the default), vyos; openvpn: openvpn (the default),
    /// vyos; tls: nginx (the default), haproxy.
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) format: Option<AdviceFormat>,
    /// Size of the packets that matter, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = USUAL_PACKET_BYTES,
        value_parser = number(1..=MAX_PACKET_BYTES)
    )]
    pub(crate) packet: u32,
    /// A run saved by `millrace bench sizes --output FILE`; it decides between ciphers
    #[arg(long, value_name = "FILE")]
    pub(crate) sizes_run: Option<PathBuf>,
    /// A run saved by `millrace bench tls --local --output FILE` [default: this user's last run on this machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) handshakes_run: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tree: ExaminedRootArg,
    /// Print JSON (schema: share/doc/millrace/advise.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}
