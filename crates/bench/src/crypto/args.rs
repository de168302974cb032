// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench crypto`.

use clap::Args;
use millrace_operation::{BackendKind, OperationKind};
use strum::VariantNames;

use super::CryptoPart;
use crate::bench_key::BenchKey;
use crate::options::{
    LoadCoreArg, MAX_CONNECTIONS, MAX_ROUNDS, duration, key, named, number, operation,
};
use crate::report::{ReportArgs, SvgArg};
use crate::workload::LanesKind;

const CRYPTO_EXAMPLE: &str = include_str!("../../texts/help-crypto.txt");

/// Measure operations on each backend, against AWS-LC and OpenSSL
///
/// Interleaved rounds on one pinned core: AWS-LC and `openssl speed`, then
/// each backend with one to a full batch of tasks at once. Then latency by
/// offered load (jobs arrive at random, whether or not others have ended),
/// and the gain that remains through a node on one core. Outputs are checked:
/// all that are known beforehand, 256 per measurement of randomised ones. A
/// wrong one ends the run. Takes about two minutes.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = CRYPTO_EXAMPLE)]
pub struct CryptoArgs {
    /// Operations to measure, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = operation(), hide_possible_values = true)]
    pub(crate) operations: Vec<OperationKind>,
    /// Types of keys to measure, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = key(BenchKey::VARIANTS))]
    pub(crate) keys: Vec<BenchKey>,
    /// Backends to measure, separated by commas [default: all usable ones]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(BackendKind::ALL, BackendKind::name), hide_possible_values = true)]
    pub(crate) backends: Vec<BackendKind>,
    /// Lanes of the simd backend, separated by commas [default: ifma,fp52, where usable]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub(crate) lanes: Vec<LanesKind>,
    /// Parts of the measurement, separated by commas [default: all]
    #[arg(hide_short_help = true, long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub(crate) parts: Vec<CryptoPart>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time per measurement
    ///
    /// Loads last five times as long.
    #[arg(long = "duration", value_name = "TIME", default_value = "150ms", value_parser = duration)]
    pub(crate) seconds: f64,
    /// Offered loads in percent of the measured peak, separated by commas [default: 30,50,70,90]
    #[arg(hide_short_help = true, long, value_name = "LIST", value_delimiter = ',', default_values_t = [30, 50, 70, 90], hide_default_value = true, value_parser = number::<u64>(1..=100))]
    pub(crate) loads: Vec<u64>,
    /// Worker threads of the node, separated by commas [default: 1 and one for each core]
    #[arg(hide_short_help = true, long, value_name = "LIST", value_delimiter = ',', value_parser = number(1..=MAX_CONNECTIONS))]
    pub(crate) workers: Vec<usize>,
    /// Core that computes [default: the first usable one]
    #[arg(hide_short_help = true, long, value_name = "CORE")]
    pub(crate) core: Option<usize>,
    #[command(flatten)]
    pub(crate) load: LoadCoreArg,
    #[command(flatten)]
    pub(crate) plot: SvgArg,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
