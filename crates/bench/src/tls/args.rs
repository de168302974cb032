// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench tls`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{KeyPlace, Part, TlsCipher, TlsGroup, TlsServer, TlsVersion};
use crate::bench_key::BenchKey;
use crate::keys::GATEWAY_KEYS;
use crate::options::{
    LoadCoreArg, MAX_CONCURRENCY, MAX_ROUNDS, duration, key, number, time_within,
};
use crate::report::{ReportArgs, SvgArg};

const TLS_EXAMPLE: &str = include_str!("../../texts/help-tls.txt");

/// Longest time that answers can be held back: the provider gives up after two seconds.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Bound on HAProxy's threads: its own.
const MAX_THREADS: usize = 64;

/// Heading of the options that only `--local` reads.
const LOCAL: &str = "With --local";

/// Accepts what a line of openssl.cnf can have as a list of words.
fn words(typed: &str) -> Result<String, &'static str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ',';
    if typed.is_empty() || !typed.chars().all(is_word) {
        return Err("expected words with commas between");
    }
    Ok(typed.to_owned())
}

/// Measure TLS handshakes of real gateways, with the key there and in the pool
///
/// Starts a node and, for each server, one gateway with plain PEM keys
/// (local) and one with files that only name keys of the pool (pooled).
/// Drives full handshakes, checks each signature, and compares in interleaved
/// rounds: handshakes/s, requests/s, latency, CPU time of the gateway, and the
/// saved share of the CPU time that could be saved. The node and the load
/// generator share a core.
///
/// With --local: what a server's own process gains from `gateway --local`, in
/// CPU time per full TLS 1.3 handshake. No node, and nothing on this machine
/// is changed.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = TLS_EXAMPLE)]
pub struct TlsArgs {
    /// Parts of the measurement, separated by commas [default: handshakes,requests,short]
    #[arg(hide_short_help = true, long, value_name = "LIST", value_enum, value_delimiter = ',', default_values_t = [Part::Handshakes, Part::Requests, Part::Short], hide_default_value = true)]
    pub(crate) parts: Vec<Part>,
    /// Servers, separated by commas [default: haproxy,nginx; nginx with --local]
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) servers: Vec<TlsServer>,
    /// Types of keys to measure, separated by commas [default: rsa-2048,p-256; p-256 with --local]
    ///
    /// Only --local takes p-384, p-521 and ed25519.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = key(&GATEWAY_KEYS))]
    pub(crate) keys: Vec<BenchKey>,
    /// TLS versions to measure, separated by commas [default: 1.2,1.3]
    #[arg(hide_short_help = true, long, value_name = "LIST", value_enum, value_delimiter = ',', default_values_t = [TlsVersion::Tls12, TlsVersion::Tls13], hide_default_value = true)]
    pub(crate) versions: Vec<TlsVersion>,
    /// Places of the private-key work, separated by commas [default: all]
    ///
    /// --demo leaves out modes that block.
    ///
    /// pooled-preload loads the library that makes nginx asynchronous and lets
    /// both servers read the pool's answers themselves; it is left out where
    /// there is no such library.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(crate) modes: Vec<KeyPlace>,
    /// Interleaved rounds [default: 5; 2 with --demo; 12 with --local, 6 with both]
    #[arg(long, value_name = "N", value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: Option<u64>,
    /// Time per measurement [default: 1s; 500ms with --demo; half of it with --local]
    #[arg(long = "duration", value_name = "TIME", value_parser = duration)]
    pub(crate) seconds: Option<f64>,
    /// Delay each answer of the node by this time, as if the node were far away
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "0s", value_parser = time_within(Duration::ZERO..=MAX_DELAY))]
    pub(crate) delay: Duration,
    /// Handshakes at a time
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 16, value_parser = number(1..=MAX_CONCURRENCY))]
    pub(crate) concurrency: usize,
    /// Requests at a time, each over a new connection
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 100, value_parser = number(1..=MAX_CONCURRENCY))]
    pub(crate) request_concurrency: usize,
    /// The provider module [default: found next to this binary]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) provider: Option<PathBuf>,
    /// The preload library [default: found next to this binary]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) preload: Option<PathBuf>,
    /// Core of the gateway [default: the first usable one]
    #[arg(hide_short_help = true, long, value_name = "CORE")]
    pub(crate) gateway_core: Option<usize>,
    #[command(flatten)]
    pub(crate) load: LoadCoreArg,
    /// Measure handshakes that the server computes in its own process
    ///
    /// Compared with the same server without the provider.
    ///
    /// The provider computes their ephemeral part, and the preload library
    /// spares OpenSSL repeated look-ups. Every handshake is verified, with its
    /// group and tickets; the provider's counters prove what was computed there.
    #[arg(long, conflicts_with_all = ["parts", "versions", "modes", "delay", "request_concurrency", "profile"])]
    pub(crate) local: bool,
    /// Key exchange groups, separated by commas [default: both]
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL, value_name = "LIST", value_enum, value_delimiter = ',', default_values_t = [TlsGroup::X25519, TlsGroup::X25519MLKEM768], hide_default_value = true)]
    pub(crate) groups: Vec<TlsGroup>,
    /// Session tickets after a handshake, separated by commas: OpenSSL sends 2, and 1 is advised
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL, value_name = "LIST", value_delimiter = ',', default_value = "2,1", value_parser = number::<u32>(1..=2))]
    pub(crate) tickets: Vec<u32>,
    /// Threads of HAProxy, separated by commas
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL, value_name = "LIST", value_delimiter = ',', default_values_t = [1], value_parser = number(1..=MAX_THREADS))]
    pub(crate) threads: Vec<usize>,
    /// Cipher of TLS 1.3
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL, value_name = "CIPHER", value_enum, default_value_t = TlsCipher::Aes128)]
    pub(crate) cipher: TlsCipher,
    /// Primitives, separated by commas; all; or on, those that are faster than OpenSSL here
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL, value_name = "LIST", default_value = "on", value_parser = words)]
    pub(crate) primitives: String,
    /// Also with the private key in a pool: a node on the core of the load generator
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL)]
    pub(crate) with_pool: bool,
    /// Command that stands before each server, to take servers and OpenSSL of another system
    ///
    /// The command gets the server's name and arguments, and keeps its process id:
    /// `scripts/in-root.sh target/debian13` runs the servers of Debian 13 that
    /// `scripts/debian13.sh` has unpacked.
    #[arg(hide_short_help = true, long, requires = "local", help_heading = LOCAL, value_name = "COMMAND")]
    pub(crate) under: Option<String>,
    /// Run a short demonstration
    ///
    /// Rounds are short, and the figures are explained.
    #[arg(long)]
    pub(crate) demo: bool,
    /// Also print the gateways' CPU time by class of operation
    #[arg(hide_short_help = true, long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) plot: SvgArg,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

#[cfg(test)]
impl TlsArgs {
    /// The arguments of `bench tls` with these words.
    pub(crate) fn typed(words: &[&str]) -> Result<Self, clap::Error> {
        #[derive(clap::Parser)]
        struct Typed {
            #[command(flatten)]
            args: TlsArgs,
        }
        use clap::Parser as _;
        Typed::try_parse_from(["tls"].iter().chain(words)).map(|typed| typed.args)
    }
}
