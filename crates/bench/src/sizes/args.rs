// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench sizes`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use millrace_edge::bulk_sizes;

use super::{Known, MAX_SIZE, ROWS, SizeRow, find};
use crate::options::{MAX_ROUNDS, number, output_file, output_folder, time_within};
use crate::report::OutputArgs;

/// Bound on one slice: at this length a run over everything takes hours.
const MAX_SLICE: Duration = Duration::from_secs(10);

const SIZES_EXAMPLE: &str = include_str!("../../texts/help-sizes.txt");

/// Measure ciphers, hashes and keys by size and library, with crossovers
///
/// Each library runs in a separate process, in interleaved slices on one
/// core. An operation is complete: a packet sealed under a new nonce, a
/// signature over a message; every output is checked. The line through the
/// sizes (t = set-up + bytes / speed) shows the size above which one library
/// beats another, and the gain at the size of your packets.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = SIZES_EXAMPLE,
    mut_arg("json", |json| json
        .help("Print JSON (schema: share/doc/millrace/bench-sizes.schema.json)")
        .long_help(None::<&str>))
)]
pub struct SizesArgs {
    /// Algorithms to measure, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = row(), hide_possible_values = true)]
    pub(crate) algorithms: Vec<&'static SizeRow>,
    /// Sizes in bytes, separated by commas [default: 16,64,256,1024,8192,16384]
    ///
    /// That of --packet is always there.
    #[arg(hide_short_help = true, long, value_name = "LIST", value_delimiter = ',', default_values_t = [16, 64, 256, 1024, 8192, 16384], hide_default_value = true, value_parser = number(1..=MAX_SIZE))]
    pub(crate) sizes: Vec<usize>,
    /// Implementations, separated by commas [default: openssl,openssl-no-aes,aws-lc]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', default_values_t = [Known::Openssl, Known::OpensslNoAes, Known::AwsLc], hide_default_value = true)]
    pub(crate) implementations: Vec<Known>,
    /// A further libcrypto (OpenSSL 3.0 or later) by its path; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) libcrypto: Vec<PathBuf>,
    /// Size of the packets that matter, in bytes
    #[arg(hide_short_help = true, long, value_name = "BYTES", default_value_t = 1420, value_parser = number(1..=MAX_SIZE))]
    pub(crate) packet: usize,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time of a measurement
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "40ms", value_parser = time_within(Duration::from_millis(1)..=MAX_SLICE))]
    pub(crate) slice: Duration,
    /// Core that computes [default: the first usable one]
    #[arg(hide_short_help = true, long, value_name = "CORE")]
    pub(crate) core: Option<usize>,
    /// Compare two runs that --output saved, instead of measuring
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with = "reference")]
    pub(crate) compare: Vec<PathBuf>,
    /// Print published figures, each with its source and reliability, instead of measuring
    #[arg(hide_short_help = true, long)]
    pub(crate) reference: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Write one line per algorithm, size and implementation
    #[arg(hide_short_help = true, long, value_name = "FILE", value_parser = output_file())]
    pub(crate) csv: Option<PathBuf>,
    /// Save the sizes above which kernel ciphers beat OpenSSL, for the provider's `kernel_bulk`
    #[arg(hide_short_help = true, long, value_name = "FILE", num_args = 0..=1, default_missing_value = bulk_sizes::DEFAULT_FILE, conflicts_with_all = ["compare", "reference"], value_parser = output_file())]
    pub(crate) save_crossovers: Option<PathBuf>,
    /// Write plots into a folder, one for each cipher and hash, and one for the keys
    #[arg(long, value_name = "DIR", value_parser = output_folder())]
    pub(crate) svg_dir: Option<PathBuf>,
}

/// One library in a separate process: a child of `bench sizes`.
#[derive(Clone, Debug, Args)]
pub struct SizesWorkerArgs {
    /// The libcrypto [default: AWS-LC]
    #[arg(long, value_name = "FILE")]
    pub(crate) libcrypto: Option<PathBuf>,
    /// An interface of the kernel, instead of a library
    #[arg(long, value_name = "NAME", conflicts_with = "libcrypto")]
    pub(crate) kernel: Option<String>,
}

/// Accepts the name of an algorithm.
fn row() -> impl TypedValueParser<Value = &'static SizeRow> {
    let names = PossibleValuesParser::new(ROWS.map(|row| row.name));
    names.try_map(|name| find(&name).ok_or("expected one of the listed values"))
}
