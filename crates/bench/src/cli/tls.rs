// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench tls`.

use std::path::PathBuf;

use clap::Args;

use super::{MAX_CONCURRENCY, MAX_ROUNDS, count, key};
use crate::keys::GATEWAY_KEYS;
use crate::report::ReportArgs;
use crate::tls::{Mode, Part, Server, TlsVersion};
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
/// rounds: handshakes/s, requests/s, latency, CPU time of the gateway, and the
/// saved share of the CPU time that could be saved.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = TLS_EXAMPLE)]
pub struct TlsArgs {
    /// Parts of the measurement, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Handshakes, Part::Requests, Part::Short])]
    pub(crate) part: Vec<Part>,
    /// Servers to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Server::Haproxy, Server::Nginx])]
    pub(crate) server: Vec<Server>,
    /// Keys to measure, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = key(&GATEWAY_KEYS), default_values_t = [BenchKey::Rsa2048, BenchKey::P256])]
    pub(crate) key: Vec<BenchKey>,
    /// TLS versions to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [TlsVersion::Tls12, TlsVersion::Tls13])]
    pub(crate) tls: Vec<TlsVersion>,
    /// Place of the private-key work, separated by commas [default: all; --demo leaves out modes that block]
    ///
    /// pooled-preload loads the library that makes nginx asynchronous and lets
    /// both servers read the pool's answers themselves; it is left out where
    /// there is no such library.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) mode: Vec<Mode>,
    /// Interleaved rounds of everything [default: 5; 2 with --demo]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub(crate) rounds: Option<u64>,
    /// Seconds per load; each round has up to four [default: 1; 0.5 with --demo]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Milliseconds by which each answer of the node is delayed, as if the node were far away
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=MAX_LATENCY_MS))]
    pub(crate) latency: u64,
    /// Handshakes at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(MAX_CONCURRENCY))]
    pub(crate) concurrency: usize,
    /// Requests at a time, each over a new connection
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = count(MAX_CONCURRENCY))]
    pub(crate) request_concurrency: usize,
    /// The provider module [default: found next to this binary]
    #[arg(long, value_name = "FILE")]
    pub(crate) provider: Option<PathBuf>,
    /// The preload library [default: found next to this binary]
    #[arg(long, value_name = "FILE")]
    pub(crate) preload: Option<PathBuf>,
    /// Core of the gateway [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub(crate) gateway_core: Option<usize>,
    /// Core of the node and the load generator [default: the second usable one]
    #[arg(long, value_name = "CORE")]
    pub(crate) load_core: Option<usize>,
    /// A demonstration: short rounds, and an explanation of the figures
    #[arg(long)]
    pub(crate) demo: bool,
    /// Also print the gateways' CPU time by class of operation
    #[arg(long)]
    pub(crate) profile: bool,
    /// Also write plots
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
