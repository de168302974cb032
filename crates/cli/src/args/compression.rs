// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace compression` and `millrace compress`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{DryRunArg, MetricsArg, interval, number};

const COMPRESSION_EXAMPLE: &str = "\
Examples:
  millrace compression
  millrace compression --json
  millrace compression --metrics > millrace.prom

--metrics is for the text collector of Prometheus' node exporter; on Debian it
reads /var/lib/prometheus/node-exporter. Run the command as root: another user
sees only processes of their own.";

/// Show what the compression library does in this machine's servers
///
/// For each server that has libmillrace_zlib.so loaded: responses, bytes
/// before and after, the engines, verification, and the reasons for which
/// streams were left to zlib. A server's workers share one row.
#[derive(Debug, Args)]
#[command(after_long_help = COMPRESSION_EXAMPLE)]
pub(crate) struct CompressionReportArgs {
    /// Print JSON (schema: share/doc/millrace/compression.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) format: MetricsArg,
}

const COMPRESS_EXAMPLE: &str = "\
Examples:
  millrace compress /var/www/html
  millrace compress --formats gz,br --dry-run /var/www/html
  millrace compress --watch /srv/app/static

In nginx: `gzip_static on;`, and with Debian's libnginx-mod-http-brotli-static
`brotli_static on;`. A response then costs no compression at all.";

/// Compress static files once, beside the originals
///
/// Writes FILE.gz, FILE.br and FILE.zst, at the highest level, where that is
/// smaller than FILE, with the time and the mode of FILE. A file whose time has
/// not changed is left alone. Each output is decompressed and compared before
/// it gets its name.
#[derive(Debug, Args)]
#[command(after_long_help = COMPRESS_EXAMPLE)]
pub(crate) struct CompressArgs {
    /// Folder with the files of a site
    pub(crate) dir: PathBuf,
    /// Formats, separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "gz,br,zst"
    )]
    pub(crate) formats: Vec<CompressFormat>,
    /// Endings of files to compress, separated by commas
    ///
    /// Default: html,htm,css,js,mjs,json,map,xml,svg,txt,wasm,ttf,otf,ico,webmanifest
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "html,htm,css,js,mjs,json,map,xml,svg,txt,wasm,ttf,otf,ico,webmanifest",
        hide_default_value = true,
        value_parser = ending
    )]
    pub(crate) endings: Vec<String>,
    /// Shortest file to compress, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub(crate) min_length: u64,
    /// Threads that compress [default: one for each core]
    #[arg(long, value_name = "N", value_parser = number::<u16>(1..=256))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    /// Keep running, and compress what changes
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) watch: bool,
    /// Time between two readings
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print JSON (schema: share/doc/millrace/compressed.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

fn ending(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("expected endings without blanks, separated by commas: html,css".to_owned());
    }
    Ok(text.to_owned())
}

/// A format of compressed files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressFormat {
    /// gzip, by libdeflate at level 12
    Gz,
    /// Brotli at level 11
    Br,
    /// Zstandard at level 19
    Zst,
}
