// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench compression`.

use std::path::PathBuf;

use clap::Args;

use super::MAX_PAGE;
use super::corpus::KINDS;
use crate::options::{LoadCoreArg, MAX_ROUNDS, number};
use crate::report::{ReportArgs, SvgArg};

const COMPRESSION_EXAMPLE: &str = "\
Examples:
  millrace bench compression
  millrace bench compression --files /var/www/html --levels 1,5
  millrace bench compression --sizes 2000,50000 --rounds 9 --svg out.svg
  millrace bench compression --engines --kinds css,svg,xml,png --sizes 100000

The worker's CPU time is measured, so that a busy machine disturbs little.";

/// Measure compressed responses of nginx, with and without the library
///
/// Two nginx with one worker each on the same core: one as it is, one with
/// Millrace's library. Both serve the same pages in interleaved rounds, and
/// the CPU time of the workers is compared. Every page's body is decompressed
/// and compared with the page.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = COMPRESSION_EXAMPLE)]
pub struct CompressionArgs {
    /// Folder with your own files [default: documents on this machine]
    ///
    /// Their endings sort them into kinds.
    #[arg(long, value_name = "DIR")]
    pub(crate) files: Option<PathBuf>,
    /// Sizes in bytes, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1000,10000,100000,1000000", value_parser = number(1..=MAX_PAGE))]
    pub(crate) sizes: Vec<usize>,
    /// nginx's gzip_comp_level, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,6,9", value_parser = number::<u8>(1..=9))]
    pub(crate) levels: Vec<u8>,
    /// Kinds of content, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "html,json,js", value_parser = KINDS)]
    pub(crate) kinds: Vec<String>,
    /// Most different pages of each kind and size
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number::<usize>(1..=1_000))]
    pub(crate) pages: usize,
    /// Also measure nginx with each engine alone
    #[arg(long)]
    pub(crate) engines: bool,
    /// Run a short demonstration
    ///
    /// Two rounds of 100 KB at two levels, and only their table.
    #[arg(long, conflicts_with_all = ["sizes", "levels", "rounds", "engines"])]
    pub(crate) demo: bool,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// The compression library [default: found next to this binary]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) compression_library: Option<PathBuf>,
    /// Core of the two nginx [default: the first usable one]
    #[arg(hide_short_help = true, long, value_name = "CORE")]
    pub(crate) server_core: Option<usize>,
    #[command(flatten)]
    pub(crate) load: LoadCoreArg,
    #[command(flatten)]
    pub(crate) plot: SvgArg,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
