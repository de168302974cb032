// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The servers of a run, and what each of them is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::machine::first_line;
use crate::options::{MEASUREMENT, check_seconds};
use crate::process::{command, need};
use crate::tls::load::{TlsCipher, TlsGroup};
use crate::tls::plan::{find_preload, unique};
use crate::tls::{TlsArgs, TlsServer};

/// Session tickets that OpenSSL sends after a full handshake unless configured otherwise.
pub(super) const USUAL_TICKETS: u32 = 2;

/// The first OpenSSL with ML-KEM.
const ML_KEM_SINCE: [u32; 2] = [3, 5];

/// Place where the ephemeral part of a handshake is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(super) enum LocalMode {
    /// The server's OpenSSL, which is as the distribution ships it.
    Stock,
    /// Millrace's libraries in the server's process; the key is a plain PEM file.
    Local,
    /// Millrace's libraries in the server's process; a node has the private key.
    #[strum(to_string = "local and pool")]
    LocalAndPool,
}

/// One server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct LocalCell {
    pub(super) server: TlsServer,
    pub(super) threads: usize,
    pub(super) key: BenchKey,
    pub(super) group: TlsGroup,
    pub(super) mode: LocalMode,
    pub(super) tickets: u32,
}

impl LocalCell {
    /// The name of the server without its mode and tickets.
    pub(super) fn group_name(&self) -> String {
        let threads = match (self.server, self.threads) {
            (TlsServer::Nginx, _) => String::new(),
            (TlsServer::Haproxy, 1) => ", 1 thread".to_owned(),
            (TlsServer::Haproxy, threads) => format!(", {threads} threads"),
        };
        format!("{}{threads}, {}, {}", self.server, self.key, self.group)
    }
}

impl fmt::Display for LocalCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.group_name(), self.mode)?;
        if self.tickets == 1 {
            f.write_str(", 1 ticket")?;
        }
        Ok(())
    }
}

/// The meaning of the options.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LocalPlan {
    pub(super) cells: Vec<LocalCell>,
    pub(super) cipher: TlsCipher,
    /// The value of the provider's setting `local`.
    pub(super) primitives: String,
    pub(super) rounds: u64,
    pub(super) duration: Duration,
    pub(super) concurrency: usize,
    pub(super) gateway_core: usize,
    pub(super) load_core: usize,
    /// The command that stands before each server, by its words.
    pub(super) under: Vec<String>,
    /// The OpenSSL below the servers, as its program says.
    pub(super) openssl: String,
    /// Version that each server prints, in the order of `cells`.
    pub(super) versions: Vec<String>,
    #[serde(skip)]
    pub(super) provider: Option<PathBuf>,
    #[serde(skip)]
    pub(super) preload: PathBuf,
}

impl LocalPlan {
    pub(super) fn new(args: &TlsArgs) -> Result<Self, BenchError> {
        let (rounds, seconds) = if args.demo { (6, 0.25) } else { (12, 0.5) };
        let seconds = args.seconds.unwrap_or(seconds);
        check_seconds(seconds, &MEASUREMENT)?;
        let (gateway_core, load_core) = cores::two(args.gateway_core, args.load.load_core)?;
        let preload = args.preload.clone().or_else(find_preload);
        let preload = preload.ok_or_else(|| {
            let remedy = "run `make build`, or name it with --preload";
            BenchError::missing("libmillrace_preload.so", remedy)
        })?;
        let under: Vec<String> = args
            .under
            .iter()
            .map(String::as_str)
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect();
        let openssl = first_line("openssl", program(&under, "openssl")?.arg("version"));
        let servers = match &*args.servers {
            [] => vec![TlsServer::Nginx],
            servers => unique(servers),
        };
        let versions = servers.iter().map(|server| {
            let name = server.to_string();
            Ok(first_line(&name, program(&under, &name)?.arg("-v")))
        });
        Ok(Self {
            cells: cells(args, &servers, has_ml_kem(&openssl)),
            cipher: args.cipher,
            primitives: args.primitives.clone(),
            rounds: args.rounds.unwrap_or(rounds),
            duration: Duration::from_secs_f64(seconds),
            concurrency: args.concurrency,
            gateway_core,
            load_core,
            versions: versions.collect::<Result<_, BenchError>>()?,
            under,
            openssl,
            provider: args.provider.clone(),
            preload,
        })
    }

    /// The cores of a server: one per thread, from the gateway's on, as many as there are.
    pub(super) fn cores(&self, cell: &LocalCell) -> Result<Vec<usize>, BenchError> {
        let usable = cores::usable()?;
        let others = usable.iter().filter(|core| **core != self.gateway_core);
        let cores = std::iter::once(&self.gateway_core).chain(others);
        Ok(cores.take(cell.threads).copied().collect())
    }

    /// Whether the OpenSSL below the servers has the post-quantum group by itself.
    pub(super) fn stock_has_hybrid(&self) -> bool {
        has_ml_kem(&self.openssl)
    }

    /// Whether a node is needed.
    pub(super) fn pools(&self) -> bool {
        let mut cells = self.cells.iter();
        cells.any(|cell| cell.mode == LocalMode::LocalAndPool)
    }

    /// The keys that servers have, each once.
    pub(super) fn keys(&self) -> Vec<BenchKey> {
        unique(&self.cells.iter().map(|cell| cell.key).collect::<Vec<_>>())
    }
}

/// A program, under the command that stands before it.
pub(super) fn program(under: &[String], name: &str) -> Result<Command, BenchError> {
    let Some((first, rest)) = under.split_first() else {
        return Ok(command(&need(name, name)?));
    };
    let mut command = command(Path::new(first));
    command.args(rest).arg(name);
    Ok(command)
}

/// Whether an OpenSSL that calls itself so (`OpenSSL 3.5.7 …`) has ML-KEM.
fn has_ml_kem(openssl: &str) -> bool {
    let version = openssl.strip_prefix("OpenSSL ").unwrap_or_default();
    let numbers = version.split(['.', ' ']).map_while(|word| word.parse().ok());
    numbers.take(2).collect::<Vec<u32>>() >= ML_KEM_SINCE.to_vec()
}

/// Every server that is measured. Those that are compared with each other stand together.
fn cells(args: &TlsArgs, servers: &[TlsServer], has_hybrid: bool) -> Vec<LocalCell> {
    let keys = match &*args.keys {
        [] => vec![BenchKey::P256],
        keys => unique(keys),
    };
    let groups = unique(&args.groups);
    let threads = unique(&args.threads);
    let mut cells = Vec::new();
    for &server in servers {
        let threads = if server == TlsServer::Nginx { &[1][..] } else { &threads };
        for (&threads, &key) in
            threads.iter().flat_map(|threads| keys.iter().map(move |key| (threads, key)))
        {
            let cell =
                |group, mode, tickets| LocalCell { server, threads, key, group, mode, tickets };
            for &group in &groups {
                let stock = LocalMode::Stock;
                let usual = USUAL_TICKETS;
                if group == TlsGroup::X25519 || has_hybrid {
                    cells.push(cell(group, stock, usual));
                } else {
                    // The peer of a group that the server does not have without us is its X25519.
                    cells.push(cell(TlsGroup::X25519, stock, usual));
                }
                cells.push(cell(group, LocalMode::Local, usual));
                if args.tickets.contains(&1) {
                    cells.push(cell(group, LocalMode::Local, 1));
                }
                if args.with_pool {
                    cells.push(cell(group, LocalMode::LocalAndPool, usual));
                }
            }
        }
    }
    cells.sort_unstable();
    cells.dedup();
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(typed: &[&str], has_hybrid: bool) -> Vec<String> {
        let args = TlsArgs::typed(&[&["--local"][..], typed].concat()).expect("arguments");
        let servers =
            if args.servers.is_empty() { vec![TlsServer::Nginx] } else { args.servers.clone() };
        let cells = cells(&args, &servers, has_hybrid);
        cells.iter().map(LocalCell::to_string).collect()
    }

    #[test]
    fn hybrid_of_an_old_openssl_is_compared_with_its_x25519() {
        let expected = [
            "nginx, p-256, X25519, stock",
            "nginx, p-256, X25519, local",
            "nginx, p-256, X25519MLKEM768, local",
        ];
        assert_eq!(names(&["--tickets", "2"], false), expected);
        assert_eq!(names(&[], false).len(), 5, "one ticket beside two");
        assert_eq!(
            names(&["--tickets", "2", "--groups", "x25519mlkem768"], false),
            [expected[0], expected[2]]
        );
        let new = names(&["--tickets", "2", "--groups", "x25519mlkem768"], true);
        assert_eq!(new, ["nginx, p-256, X25519MLKEM768, stock", expected[2]]);
    }

    #[test]
    fn every_row_of_the_promised_numbers_has_its_servers() {
        let typed = [
            "--servers",
            "haproxy",
            "--threads",
            "1,2",
            "--groups",
            "x25519",
            "--with-pool",
            "--keys",
            "rsa-2048",
        ];
        let found = names(&typed, false);
        assert_eq!(found.len(), 2 * 4, "{found:?}");
        let last = "haproxy, 2 threads, rsa-2048, X25519, local and pool";
        assert_eq!(found.last().map(String::as_str), Some(last));
        assert!(found.contains(&"haproxy, 1 thread, rsa-2048, X25519, local, 1 ticket".to_owned()));
    }

    #[test]
    fn version_decides_whether_openssl_has_the_hybrid() {
        assert!(has_ml_kem("OpenSSL 3.5.7 9 Jun 2026 (Library: OpenSSL 3.5.7)"));
        assert!(has_ml_kem("OpenSSL 4.0.0-beta1"));
        assert!(!has_ml_kem("OpenSSL 3.0.19 27 Jan 2026") && !has_ml_kem("no openssl"));
        assert!(!has_ml_kem("LibreSSL 3.8.2"));
    }

    #[test]
    fn options_of_the_other_benchmark_are_refused() {
        for words in [
            &["--versions", "1.3"][..],
            &["--modes", "local"],
            &["--parts", "short"],
            &["--profile"],
            &["--delay", "5ms"],
        ] {
            assert!(TlsArgs::typed(&[&["--local"][..], words].concat()).is_err(), "{words:?}");
        }
        for words in [
            &["--groups", "x25519"][..],
            &["--threads", "2"],
            &["--tickets", "1"],
            &["--under", "x"],
        ] {
            assert!(TlsArgs::typed(words).is_err(), "{words:?} needs --local");
        }
    }
}
