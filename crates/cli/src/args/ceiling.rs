// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace inspect ceiling`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use millrace_bench::cli::SvgArg;

use super::{number, time_within};

const CEILING_EXAMPLE: &str = "\
Examples:
  millrace inspect ceiling --pid $(pidof haproxy)
  millrace inspect ceiling --pid $(cat /run/nginx.pid) --duration 30s --json
  millrace inspect ceiling --pid 4711 --rate 1200 --svg ceiling.svg
  millrace inspect ceiling -- openssl speed -seconds 3 rsa2048

Descendants of a process are sampled as well. Sampling interrupts a process
997 times per second of its CPU time, which costs about 1.3 % in a virtual
machine. It needs root, or CAP_PERFMON and CAP_SYS_PTRACE.";

/// Sample a live process: the bound on the gain by any accelerator
///
/// Reports which share of its CPU time is private-key operations, symmetric
/// encryption, hashing, the kernel and so on, and the largest possible speed-up
/// if a pool did the private-key operations. A new libcrypto is first
/// calibrated for about 20 seconds: each operation runs by itself in the
/// `openssl` program, which identifies the functions of a stripped library.
#[derive(Debug, Args)]
#[command(after_long_help = CEILING_EXAMPLE)]
pub(crate) struct CeilingArgs {
    /// Process to sample, with its descendants; separate several by spaces or commas
    #[arg(
        long,
        value_name = "PID",
        num_args = 1..,
        value_delimiter = ',',
        conflicts_with = "command"
    )]
    pub(crate) pid: Vec<u32>,
    /// Sampling time [default: 10s; with a command, until it ends]
    #[arg(long, value_name = "TIME", value_parser = time_within(Duration::from_secs(1)..=Duration::from_secs(3600)))]
    pub(crate) duration: Option<Duration>,
    /// Samples per second of CPU time
    #[arg(long, value_name = "HZ", default_value_t = 997, value_parser = number::<u32>(1..=10_000))]
    pub(crate) frequency: u32,
    /// Requests per second during sampling; adds the CPU time per request
    #[arg(long, value_name = "PER_SECOND")]
    pub(crate) rate: Option<f64>,
    /// Calibrate again, and do not store the result
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Also list the functions with the most CPU time
    #[arg(long)]
    pub(crate) functions: bool,
    /// Print JSON (schema: share/doc/millrace/ceiling.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) plot: SvgArg,
    /// Command to start and sample; it is killed if it has not ended after --duration
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}
