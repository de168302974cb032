// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench`, and the functions that run it. The binary only parses and calls.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_engine::OperationKind;

mod crypto;
mod sizes;
mod tls;

pub use self::crypto::{CryptoArgs, CryptoPart, LanesKind, run_crypto};
pub use self::sizes::{SizesArgs, SizesWorkerArgs, run_sizes, run_sizes_worker};
pub use self::tls::{TlsArgs, run_tls};
use crate::error::BenchError;
pub use crate::goals::Reach;
use crate::pool;
pub use crate::tls::{Mode, Part, Server, TlsVersion};
pub use crate::workload::BenchKey;

/// Bound on rounds: beyond, a run takes hours and says nothing new.
const MAX_ROUNDS: u64 = 100;

/// Bound on handshakes at a time: the gateways' generated configurations allow this number.
const MAX_CONCURRENCY: u64 = 2048;

/// Bound on jobs in flight: the bound of one connection to a node, with room.
const MAX_IN_FLIGHT: u64 = 4096;

/// Bound on connections and worker threads: what a node allows one identity.
const MAX_CONNECTIONS: u64 = 1024;

/// The operations that `bench pool` measures unless others are named.
pub(crate) const POOL_OPERATIONS: [OperationKind; 5] = [
    OperationKind::RsaPkcs1Sign,
    OperationKind::RsaPssSign,
    OperationKind::EcdsaSign,
    OperationKind::Ed25519Sign,
    OperationKind::X25519,
];

const POOL_EXAMPLE: &str = "\
Examples:
  millrace bench pool
  millrace bench pool --operation ecdsa-sign --rounds 9 --json pool.json
  millrace bench pool --pool unix:/run/millrace/node.sock
  millrace bench pool --fairness --workers 1 --rounds 7

A private node is started and stopped unless --pool names one.";

/// Operations through a node, against the same library called directly
///
/// Interleaved rounds on pinned cores: the library called directly, and the
/// same operations through a node over its unix socket, pipelined and one at
/// a time. Outputs are checked in every round; a wrong one ends the run.
/// With --fairness: the latency of one identity, alone and while another
/// identity keeps the node's queue full.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = POOL_EXAMPLE)]
pub struct PoolArgs {
    /// Operations to measure, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = operation, default_values_t = POOL_OPERATIONS)]
    pub operation: Vec<OperationKind>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub rounds: u64,
    /// Seconds per measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,
    /// Jobs in flight when pipelined
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count(MAX_IN_FLIGHT))]
    pub window: usize,
    /// Jobs in flight for the table of latencies, separated by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256], value_parser = count(MAX_IN_FLIGHT))]
    pub depth: Vec<usize>,
    /// Worker threads of the private nodes, separated by commas [default: 1 and one for each core]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count(MAX_CONNECTIONS))]
    pub workers: Vec<usize>,
    /// A running node to measure, unix:PATH [default: a private one]
    #[arg(long, value_name = "ENDPOINT")]
    pub pool: Option<String>,
    /// Reach the private node over TCP with mutual TLS 1.3 on loopback, not over its unix socket
    #[arg(long, conflicts_with = "pool")]
    pub tcp: bool,
    /// Measure what one identity loses while another floods the node, instead of throughput
    #[arg(long)]
    pub fairness: bool,
    /// Connections of the identity that floods
    #[arg(long, value_name = "N", default_value_t = 40, requires = "fairness", value_parser = count(MAX_CONNECTIONS))]
    pub flood_connections: usize,
    /// Jobs in flight on each of them
    #[arg(long, value_name = "N", default_value_t = 250, requires = "fairness", value_parser = count(MAX_IN_FLIGHT))]
    pub flood_jobs: usize,
    /// Core of the node and of the direct calls [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub node_core: Option<usize>,
    /// Core of the client [default: the second usable one]
    #[arg(long, value_name = "CORE")]
    pub load_core: Option<usize>,
    /// Write the report with its raw rounds as JSON, to a file or - (instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Fail if a number to reach is not reached this far
    #[arg(long, value_enum, value_name = "HOW_FAR")]
    pub require: Option<Reach>,
}

/// Runs `millrace bench pool`.
///
/// # Errors
/// Why there are no figures; a wrong output or a counter that does not add up is one reason.
pub fn run_pool(args: &PoolArgs) -> Result<(), BenchError> {
    pool::run(args)
}

/// Accepts a number from 1 to `most`.
fn count(most: u64) -> impl TypedValueParser<Value = usize> {
    clap::value_parser!(u64)
        .range(1..=most)
        .map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// Accepts the name of a type of key.
fn key(names: &'static [&'static str]) -> impl TypedValueParser<Value = BenchKey> {
    PossibleValuesParser::new(names).try_map(|name| name.parse::<BenchKey>())
}

fn operation(name: &str) -> Result<OperationKind, String> {
    OperationKind::from_name(name)
        .ok_or_else(|| one_of(OperationKind::ALL.iter().map(|kind| kind.name())))
}

fn one_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    format!("there are: {}", names.collect::<Vec<_>>().join(", "))
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
