// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench sizes`.

use std::path::PathBuf;

use clap::Args;

use super::MAX_ROUNDS;
use crate::error::BenchError;
use crate::sizes;

/// Bound on one slice, in milliseconds.
const MAX_SLICE_MS: u64 = 10_000;

const SIZES_EXAMPLE: &str = "\
Examples:
  millrace bench sizes
  millrace bench sizes --algorithm aes-256-gcm,chacha20-poly1305 --packet 1372
  millrace bench sizes --library /opt/firmware/usr/lib/libcrypto.so.3
  millrace bench sizes --json before.json --csv before.csv --svg plots
  millrace bench sizes --compare before.json after.json
  millrace bench sizes --reference

Implementations: openssl (this machine's libcrypto.so.3), openssl-no-aes (the
same without the processor's AES and carry-less multiplication, everything
else left on), aws-lc (what a node computes with). The first is what the
others are compared with.";

/// Ciphers, hashes and keys by size and library, with crossovers
///
/// Every library in a process of its own, in interleaved slices on one core.
/// An operation is a whole one: a packet sealed under a new nonce, a
/// signature over a message; every output is checked. The line through the
/// sizes (t = set-up + bytes / speed) says above which size one beats
/// another, and what it gains at the packets that you really have.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = SIZES_EXAMPLE)]
pub struct SizesArgs {
    /// Algorithms to measure, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub algorithm: Vec<String>,
    /// Sizes in bytes, separated by commas; that of --packet is always there
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [16, 64, 256, 1024, 8192, 16384])]
    pub size: Vec<usize>,
    /// Implementations, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = sizes::implementation_names().map(str::to_owned))]
    pub implementation: Vec<String>,
    /// A further libcrypto (OpenSSL 3.0 or later) by its path; may be given again
    #[arg(long, value_name = "FILE")]
    pub library: Vec<PathBuf>,
    /// The packet size that gains are given for, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1420)]
    pub packet: usize,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub rounds: u64,
    /// Milliseconds per measurement
    #[arg(long, value_name = "MS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..=MAX_SLICE_MS))]
    pub slice_ms: u64,
    /// Core to measure on [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// Compare two runs that --json saved, instead of measuring
    #[arg(long, value_names = ["BEFORE", "AFTER"], num_args = 2, conflicts_with = "reference")]
    pub compare: Vec<PathBuf>,
    /// Print published figures, each with its source and how far to trust it, instead of measuring
    #[arg(long)]
    pub reference: bool,
    /// Write the report with its raw rounds as JSON, to a file or - (instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write one line per algorithm, size and implementation
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write plots into a folder, one for each cipher and hash, and one for the keys
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}

/// One library in a process of its own: what `bench sizes` starts.
#[derive(Clone, Debug, Args)]
pub struct SizesWorkerArgs {
    /// The libcrypto; without, AWS-LC
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
}

/// Runs `millrace bench sizes`.
///
/// # Errors
/// Why there are no figures; a wrong output is one reason.
pub fn run_sizes(args: &SizesArgs) -> Result<(), BenchError> {
    sizes::run(args)
}

/// Runs the child of `millrace bench sizes`.
///
/// # Errors
/// The conversation with the parent broke.
pub fn run_sizes_worker(args: &SizesWorkerArgs) -> Result<(), BenchError> {
    sizes::run_worker(args)
}
