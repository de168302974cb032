// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace vpn bench`.

use std::path::PathBuf;

use clap::Args;

use super::{MAX_ROUNDS, count, named};
use crate::report::ReportArgs;
use crate::vpn::{CASES, LinkCase, MAX_FLOWS};

const VPN_EXAMPLE: &str = "\
Examples:
  millrace vpn bench
  millrace vpn bench --case one,two-pinned,one-tuned --rounds 5
  millrace vpn bench --json > vpn.json

It needs root, /dev/net/tun, openvpn and iperf3. Both ends run on this
machine, so that rates are a lower bound; CPU seconds per gigabyte of one end
say what a core of a gateway carries.";

/// Measure links between two network namespaces on this machine
///
/// Real tunnels under iperf3, in interleaved runs: no tunnel, one process with
/// each cipher, several processes, pinned and not, jumbo frames. For each:
/// throughput, latency under load, CPU seconds per gigabyte of each end, and
/// the bound on the gain by an accelerator. Then a member of four is killed
/// under load. Bytes are compared at the other end before each load.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = VPN_EXAMPLE)]
pub struct VpnArgs {
    /// Cases, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(&CASES, |case: &'static LinkCase| case.name))]
    pub(crate) case: Vec<&'static LinkCase>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time of load per measurement, whole seconds
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", default_value = "4s", value_parser = super::time::whole_seconds(1..=60))]
    pub(crate) seconds: u64,
    /// Parallel TCP connections: several for each member
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(MAX_FLOWS))]
    pub(crate) flows: usize,
    /// Do not kill a member of four under load
    #[arg(long)]
    pub(crate) no_loss: bool,
    /// Write plots
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
