// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The cells of a run, their order and the cores.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::short::{self, Short, ShortPath};
use super::{KeyPlace, Part, TlsArgs, TlsServer, TlsVersion};
use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::keys::POOLED_KEYS;
use crate::options::{MEASUREMENT, check_seconds};
use crate::stats::order;

/// Places of the preload library, relative to this binary: in a build tree and in an installation.
const PRELOAD_PLACES: [&str; 2] =
    ["libmillrace_preload.so", "../lib/millrace/libmillrace_preload.so"];

/// One combination that is measured: a server, its work, and the place of the private-key work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Cell<W> {
    pub(super) server: TlsServer,
    #[serde(flatten)]
    pub(super) work: W,
    pub(super) mode: KeyPlace,
}

/// Handshakes, with or without requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Handshake {
    pub(super) key: BenchKey,
    pub(super) tls: TlsVersion,
}

impl<W: Copy + fmt::Display> Cell<W> {
    /// This cell in another mode.
    pub(super) fn with(self, mode: KeyPlace) -> Self {
        Self { mode, ..self }
    }

    /// The name of the cells that are compared in several modes.
    pub(super) fn group(&self) -> String {
        format!("{}, {}", self.server, self.work)
    }
}

impl<W: Copy + fmt::Display> fmt::Display for Cell<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.group(), self.mode)
    }
}

impl fmt::Display for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, TLS {}", self.key, self.tls)
    }
}

/// The meaning of the options.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TlsPlan {
    pub(super) parts: Vec<Part>,
    pub(super) servers: Vec<TlsServer>,
    pub(super) keys: Vec<BenchKey>,
    pub(super) versions: Vec<TlsVersion>,
    pub(super) modes: Vec<KeyPlace>,
    pub(super) rounds: u64,
    pub(super) duration: Duration,
    /// Delay of the node's answers.
    pub(super) latency: Duration,
    pub(super) concurrency: usize,
    pub(super) request_concurrency: usize,
    pub(super) gateway_core: usize,
    pub(super) load_core: usize,
    /// Leaves out servers without the preload library, where there is one.
    #[serde(skip)]
    recommended_only: bool,
    #[serde(skip)]
    pub(super) provider: Option<PathBuf>,
    #[serde(skip)]
    pub(super) preload: Option<PathBuf>,
}

impl TlsPlan {
    pub(super) fn new(args: &TlsArgs) -> Result<Self, BenchError> {
        let (rounds, seconds) = if args.demo { (2, 0.5) } else { (5, 1.0) };
        let seconds = args.seconds.unwrap_or(seconds);
        check_seconds(seconds, &MEASUREMENT)?;
        let (gateway_core, load_core) = cores::two(args.gateway_core, args.load.load_core)?;
        let mut modes = unique(&args.modes);
        if modes.is_empty() {
            modes = vec![KeyPlace::Local, KeyPlace::Pooled, KeyPlace::PooledPreload];
        }
        let preload = args.preload.clone().or_else(find_preload);
        if preload.is_none() {
            modes.retain(|mode| *mode != KeyPlace::PooledPreload);
        }
        let parts = unique(&args.parts);
        if parts.contains(&Part::Short) {
            short::need_ab()?;
        }
        if let Some(key) = args.keys.iter().find(|key| !POOLED_KEYS.contains(key)) {
            let problem =
                format!("--keys {key} needs --local: pools are measured with RSA-2048 and P-256");
            return Err(BenchError::Usage(problem));
        }
        Ok(Self {
            recommended_only: args.demo && args.modes.is_empty(),
            parts,
            servers: or_all(&args.servers, [TlsServer::Haproxy, TlsServer::Nginx]),
            keys: or_all(&args.keys, POOLED_KEYS),
            versions: unique(&args.versions),
            modes,
            rounds: args.rounds.unwrap_or(rounds),
            duration: Duration::from_secs_f64(seconds),
            latency: args.delay,
            concurrency: args.concurrency,
            request_concurrency: args.request_concurrency,
            gateway_core,
            load_core,
            provider: args.provider.clone(),
            preload,
        })
    }

    /// Each server with each work, in each mode; the modes in the order of this round.
    pub(super) fn in_modes<W: Copy>(&self, work: &[W], round: u64) -> Vec<Cell<W>> {
        let modes = self.modes();
        let modes: Vec<KeyPlace> =
            order(modes.len(), round).into_iter().map(|place| modes[place]).collect();
        let mut cells = Vec::new();
        for &server in &self.servers {
            for &work in work {
                cells.extend(modes.iter().map(|&mode| Cell { server, work, mode }));
            }
        }
        cells
    }

    /// Keys and versions of handshakes, empty if no part needs them.
    pub(super) fn handshakes(&self) -> Vec<Handshake> {
        let needed = self.parts.iter().any(|part| *part != Part::Short);
        let keys = self.keys.iter().filter(|_| needed);
        keys.flat_map(|&key| self.versions.iter().map(move |&tls| Handshake { key, tls })).collect()
    }

    /// Short connections, empty if that part was not chosen.
    pub(super) fn shorts(&self) -> Vec<Short> {
        let chosen = self.parts.contains(&Part::Short);
        let paths = ShortPath::ALL.into_iter().filter(|_| chosen);
        paths.map(|path| Short { path }).collect()
    }

    /// The modes that a server is measured in.
    pub(super) fn modes(&self) -> Vec<KeyPlace> {
        let recommended = self.modes.contains(&KeyPlace::PooledPreload);
        let modes = self.modes.iter().copied();
        modes
            .filter(|mode| !(self.recommended_only && recommended && *mode == KeyPlace::Pooled))
            .collect()
    }

    /// Whether the goals apply to this pooled mode: the recommended one, or in its absence the one that does
    /// not block.
    pub(super) fn counts(&self, server: TlsServer, mode: KeyPlace) -> bool {
        if self.modes.contains(&KeyPlace::PooledPreload) {
            mode == KeyPlace::PooledPreload
        } else {
            server != TlsServer::Nginx
        }
    }

    /// Modes that the demonstration leaves out although they were not deselected.
    pub(super) fn left_out(&self) -> impl Iterator<Item = KeyPlace> + use<> {
        let all = self.modes.clone();
        let measured = self.modes();
        all.into_iter().filter(move |mode| !measured.contains(mode))
    }

    /// The keys that gateways have: those that are measured, and the one of short connections.
    pub(super) fn keys_to_make(&self) -> Vec<BenchKey> {
        let mut keys = self.keys.clone();
        if self.parts.contains(&Part::Short) {
            keys.push(BenchKey::Rsa2048);
        }
        unique(&keys)
    }

    /// Number of steps of progress.
    pub(super) fn steps(&self) -> u64 {
        let work = self.handshakes().len() + self.shorts().len();
        let cells = self.servers.len() * work * self.modes().len();
        self.rounds * (cells + self.speeds().len()) as u64
    }

    /// The keys that `openssl speed` measures too, as a second opinion.
    pub(super) fn speeds(&self) -> Vec<BenchKey> {
        let chosen = self.parts.contains(&Part::Handshakes);
        self.keys.iter().copied().filter(|_| chosen).collect()
    }

    pub(super) fn pools(&self) -> bool {
        self.modes.iter().any(|mode| mode.is_pooled())
    }
}

/// The preload library beside this binary, or where a package puts it.
pub(super) fn find_preload() -> Option<PathBuf> {
    let binary = env::current_exe().ok()?;
    let folder = binary.parent()?;
    PRELOAD_PLACES.iter().map(|place| folder.join(place)).find(|path| path.is_file())
}

/// The values that the user gave, or all values if there are none.
fn or_all<T: Copy + Ord>(typed: &[T], all: [T; 2]) -> Vec<T> {
    unique(if typed.is_empty() { &all } else { typed })
}

/// The same values, sorted, each once.
pub(super) fn unique<T: Copy + Ord>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(typed: &[&str]) -> TlsPlan {
        let typed = [&["--preload", "/nonexistent.so"][..], typed].concat();
        TlsPlan::new(&TlsArgs::typed(&typed).expect("arguments")).expect("a plan")
    }

    #[test]
    fn key_that_is_measured_in_the_process_alone_is_refused_with_the_option() {
        let words = ["--preload", "/nonexistent.so", "--parts", "handshakes", "--keys", "p-384"];
        let error = TlsPlan::new(&TlsArgs::typed(&words).expect("arguments")).expect_err("no plan");
        assert!(error.to_string().contains("--keys p-384 needs --local"), "{error}");
    }

    #[test]
    fn demo_leaves_out_pooled_without_preload_and_says_so() {
        let whole = plan(&["--parts", "handshakes"]);
        let all = [KeyPlace::Local, KeyPlace::Pooled, KeyPlace::PooledPreload];
        assert_eq!(whole.modes(), all);
        let order = |round| whole.in_modes(&whole.handshakes(), round);
        assert_eq!(order(0).len(), 2 * 2 * (3 + 3));
        let first: std::collections::BTreeSet<KeyPlace> =
            (0..20).map(|round| order(round)[0].mode).collect();
        assert_eq!(first.len(), 3, "each mode comes first in some round");
        assert_eq!(whole.left_out().count(), 0);
        assert!(!whole.counts(TlsServer::Haproxy, KeyPlace::Pooled));
        let demo = plan(&["--parts", "handshakes", "--demo"]);
        assert_eq!(demo.modes(), [KeyPlace::Local, KeyPlace::PooledPreload]);
        assert!(demo.left_out().eq([KeyPlace::Pooled]));
    }

    #[test]
    fn parts_say_which_cells_and_keys_there_are() {
        let handshakes = plan(&["--parts", "handshakes", "--keys", "p-256"]);
        assert!(handshakes.shorts().is_empty());
        assert_eq!(handshakes.keys_to_make(), [BenchKey::P256]);
        assert_eq!(handshakes.steps(), 5 * (2 * (3 + 3) + 1));
        if short::need_ab().is_err() {
            millrace_testkit::skip!("no ab");
        }
        let short = plan(&["--parts", "short", "--keys", "p-256"]);
        assert!(short.handshakes().is_empty() && short.speeds().is_empty());
        assert_eq!(short.in_modes(&short.shorts(), 0).len(), 2 * (3 + 3));
        assert_eq!(short.keys_to_make(), [BenchKey::Rsa2048, BenchKey::P256]);
    }
}
