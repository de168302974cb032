// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench tls`.

use std::path::PathBuf;

use clap::Args;

use super::{MAX_CONCURRENCY, MAX_ROUNDS, Reach, count, key};
use crate::error::BenchError;
use crate::keys::GATEWAY_KEYS;
use crate::tls::{self, Mode, Part, Server, TlsVersion};
use crate::workload::BenchKey;

const TLS_EXAMPLE: &str = "\
Examples:
  millrace bench tls
  millrace bench tls --server haproxy --key rsa-2048 --rounds 9 --json tls.json
  millrace bench tls --part handshakes --profile --svg tls.svg
  millrace bench tls --part short --server nginx
  millrace bench tls --part handshakes --server nginx --mode pooled,pooled-preload --latency 5 --concurrency 200

Needs the haproxy, nginx, openssl and apache2-utils packages. Everything runs
on this machine in a temporary folder: the gateway alone on one core, the node
and the load generator on another. The offload ceiling is sampled, which needs
root or CAP_PERFMON; without, it is taken from `openssl speed`.";

/// Longest time that answers can be held back, in milliseconds: the provider gives up after two seconds.
const MAX_LATENCY_MS: u64 = 1000;

/// TLS handshakes through real gateways, with the key on the gateway and in the pool
///
/// Starts a node and, for each server, one gateway with plain PEM keys
/// (local) and one with files that only name keys of the pool (pooled).
/// Drives full handshakes, checks each signature, and compares in interleaved
/// rounds: handshakes/s, requests/s, latency, CPU time of the gateway, and how
/// much of what could be saved was saved.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = TLS_EXAMPLE)]
pub struct TlsArgs {
    /// What to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Handshakes, Part::Requests, Part::Short])]
    pub part: Vec<Part>,
    /// Servers to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Server::Haproxy, Server::Nginx])]
    pub server: Vec<Server>,
    /// Keys to measure, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = key(&GATEWAY_KEYS), default_values_t = [BenchKey::Rsa2048, BenchKey::P256])]
    pub key: Vec<BenchKey>,
    /// TLS versions to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [TlsVersion::Tls12, TlsVersion::Tls13])]
    pub tls: Vec<TlsVersion>,
    /// Where the private-key work happens, separated by commas [default: all; --demo leaves out what blocks]
    ///
    /// pooled-preload is with the library that makes nginx asynchronous and has
    /// both servers read the pool's answers themselves; it is left out where
    /// there is no such library.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub mode: Vec<Mode>,
    /// Interleaved rounds of everything [default: 5; 2 with --demo]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub rounds: Option<u64>,
    /// Seconds per load; each round has up to four [default: 1; 0.5 with --demo]
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// Milliseconds for which each answer of the node is held back, as if it were far away
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=MAX_LATENCY_MS))]
    pub latency: u64,
    /// Handshakes at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(MAX_CONCURRENCY))]
    pub concurrency: usize,
    /// Requests at a time, each over a connection of its own
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count(MAX_CONCURRENCY))]
    pub request_concurrency: usize,
    /// The provider module [default: found next to this binary]
    #[arg(long, value_name = "FILE")]
    pub provider: Option<PathBuf>,
    /// The preload library [default: found next to this binary]
    #[arg(long, value_name = "FILE")]
    pub preload: Option<PathBuf>,
    /// Core of the gateway [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub gateway_core: Option<usize>,
    /// Core of the node and the load generator [default: the second usable one]
    #[arg(long, value_name = "CORE")]
    pub load_core: Option<usize>,
    /// A walking tour: short rounds, and words about what is seen
    #[arg(long)]
    pub demo: bool,
    /// Also print where the gateways' CPU time goes, by class of operation
    #[arg(long)]
    pub profile: bool,
    /// Write the report with its raw rounds as JSON, to a file or - (instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write plots
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Fail if a number to reach is not reached this far
    #[arg(long, value_enum, value_name = "HOW_FAR")]
    pub require: Option<Reach>,
}

/// Runs `millrace bench tls`.
///
/// # Errors
/// Why there are no figures, or that a verification failed (after the tables, which show where).
pub fn run_tls(args: &TlsArgs) -> Result<(), BenchError> {
    tls::run(args)
}
