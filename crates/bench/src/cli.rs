// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench`, and the functions that run it. The binary only parses and calls.

use std::path::PathBuf;

use clap::Args;

mod crypto;
mod sizes;
mod tls;

pub use self::crypto::{CryptoArgs, CryptoKey, CryptoPart, LanesKind, run_crypto};
pub use self::sizes::{SizesArgs, SizesWorkerArgs, run_sizes, run_sizes_worker};
pub use self::tls::{TlsArgs, run_tls};
use crate::error::BenchError;
pub use crate::keys::KeyKind;
use crate::pool;
pub use crate::pool::Workload;
pub use crate::tls::{Mode, Part, Server, TlsVersion};

/// Bound on rounds: beyond, a run takes hours and says nothing new.
const MAX_ROUNDS: u64 = 100;

/// Bound on handshakes at a time: the gateways' generated configurations hold so many.
const MAX_CONCURRENCY: u64 = 2048;

/// Bound on jobs in flight: the bound of one connection to a node, with room.
const MAX_IN_FLIGHT: u64 = 4096;

const POOL_EXAMPLE: &str = "\
Examples:
  millrace bench pool
  millrace bench pool --operation ecdsa-sign --rounds 9 --json pool.json
  millrace bench pool --pool unix:/run/millrace/node.sock

A private node is started and stopped unless --pool names one.";

/// Operations through a node, against the same library called directly
///
/// Interleaved rounds on pinned cores: the library called directly, then the
/// same operations through a node over its unix socket, pipelined and one at
/// a time. Outputs are checked in every round; a wrong one ends the run.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = POOL_EXAMPLE)]
pub struct PoolArgs {
    /// Operations to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Workload::RsaPkcs1Sign, Workload::RsaPssSign, Workload::EcdsaSign, Workload::Ed25519Sign, Workload::X25519Derive])]
    pub operation: Vec<Workload>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub rounds: u64,
    /// Seconds per measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,
    /// Jobs in flight when pipelined
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=MAX_IN_FLIGHT))]
    pub window: u64,
    /// Jobs in flight for the table of latencies, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256], value_parser = clap::value_parser!(u64).range(1..=MAX_IN_FLIGHT))]
    pub depth: Vec<u64>,
    /// A running node to measure, unix:PATH [default: a private one]
    #[arg(long, value_name = "ENDPOINT")]
    pub pool: Option<String>,
    /// Reach the private node over TCP with mutual TLS 1.3 on loopback, not over its unix socket
    #[arg(long, conflicts_with = "pool")]
    pub tcp: bool,
    /// Core of the node and of the direct calls [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub node_core: Option<usize>,
    /// Core of the client [default: the second usable one]
    #[arg(long, value_name = "CORE")]
    pub load_core: Option<usize>,
    /// Write the report with its raw rounds as JSON, to a file or - (instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs `millrace bench pool`.
///
/// # Errors
/// Why there are no figures; a wrong output or a counter that does not add up is one reason.
pub fn run_pool(args: &PoolArgs) -> Result<(), BenchError> {
    pool::run(args)
}

/// # Errors
/// [`BenchError::Usage`] for a `--seconds` outside of what the measurement allows.
pub(crate) fn check_seconds(
    seconds: f64,
    allowed: &std::ops::RangeInclusive<f64>,
) -> Result<(), BenchError> {
    if allowed.contains(&seconds) {
        return Ok(());
    }
    let (least, most) = (allowed.start(), allowed.end());
    Err(BenchError::Usage(format!(
        "--seconds must be between {least} and {most}"
    )))
}
