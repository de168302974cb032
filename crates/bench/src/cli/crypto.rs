// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench crypto`.

use std::path::PathBuf;

use clap::Args;
use millrace_engine::{BackendKind, OperationKind};
use strum::VariantNames;

use super::{MAX_CONNECTIONS, MAX_ROUNDS, Reach, count, key, one_of, operation};
use crate::crypto;
pub use crate::crypto::CryptoPart;
use crate::error::BenchError;
use crate::workload::BenchKey;
pub use crate::workload::LanesKind;

const CRYPTO_EXAMPLE: &str = "\
Examples:
  millrace bench crypto
  millrace bench crypto --operation rsa-pkcs1-sign --key rsa-2048 --rounds 9
  millrace bench crypto --part loads --load 50,70,90 --svg latency.svg
  OPENSSL_ia32cap=:~0x200000 millrace bench crypto --lanes fp52

The last one compares as on a processor without AVX-512 IFMA: AWS-LC and
OpenSSL both read that variable. Without it, such a run of RSA-2048 is made
in a child, and its row is among the numbers to reach.";

/// Every operation on every backend, against AWS-LC and OpenSSL called directly
///
/// Interleaved rounds on one pinned core: AWS-LC and `openssl speed`, then
/// each backend with one to a full batch of tasks at once. Then latency by
/// offered load (jobs arrive at random, whether or not others have ended),
/// and how much of the gain survives the trip through a node on one core. Every output is
/// checked; a wrong one ends the run. Takes about two minutes.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = CRYPTO_EXAMPLE)]
pub struct CryptoArgs {
    /// Operations to measure, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = operation)]
    pub operation: Vec<OperationKind>,
    /// Types of keys to measure, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = key(BenchKey::VARIANTS))]
    pub key: Vec<BenchKey>,
    /// Backends to measure, separated by commas [default: all that are usable]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = backend)]
    pub backend: Vec<BackendKind>,
    /// How lanes of the simd backend are made [default: ifma and fp52, where usable]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub lanes: Vec<LanesKind>,
    /// Parts of the measurement, separated by commas [default: all]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub part: Vec<CryptoPart>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub rounds: u64,
    /// Seconds per measurement; loads last five times as long
    #[arg(long, value_name = "SECONDS", default_value_t = 0.15)]
    pub seconds: f64,
    /// Offered loads in percent of the measured peak, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [30, 50, 70, 90], value_parser = clap::value_parser!(u64).range(1..=100))]
    pub load: Vec<u64>,
    /// Worker threads of the node, separated by commas [default: 1 and one for each core]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count(MAX_CONNECTIONS))]
    pub workers: Vec<usize>,
    /// Core that computes [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// Core that jobs come from [default: the second usable one]
    #[arg(long, value_name = "CORE")]
    pub load_core: Option<usize>,
    /// Draw rates and latencies into an SVG file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the report with its raw rounds as JSON, to a file or - (instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Fail if a number to reach is not reached this far
    #[arg(long, value_enum, value_name = "HOW_FAR")]
    pub require: Option<Reach>,
}

/// Runs `millrace bench crypto`.
///
/// # Errors
/// Why there are no figures; a wrong output is one reason.
pub fn run_crypto(args: &CryptoArgs) -> Result<(), BenchError> {
    crypto::run(args)
}

fn backend(name: &str) -> Result<BackendKind, String> {
    let found = BackendKind::ALL.iter().find(|kind| kind.name() == name);
    found
        .copied()
        .ok_or_else(|| one_of(BackendKind::ALL.iter().map(|kind| kind.name())))
}
