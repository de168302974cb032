// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What is measured, in which order, on which cores.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::short::{self, Path, ShortCell};
use super::{Mode, Part, Server, TlsVersion};
use crate::cli::{TlsArgs, check_seconds};
use crate::cores;
use crate::error::BenchError;
use crate::stats::order;
use crate::workload::BenchKey;

/// Bounds of a measurement, in seconds: shorter ones are noise, longer ones a typing error.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

/// Where the preload library is, relative to this binary: a build tree or an installation.
const PRELOAD_PLACES: [&str; 2] = [
    "libmillrace_preload.so",
    "../lib/millrace/libmillrace_preload.so",
];

/// One combination that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Cell {
    pub(super) server: Server,
    pub(super) key: BenchKey,
    pub(super) tls: TlsVersion,
    pub(super) mode: Mode,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, TLS {}, {}",
            self.server, self.key, self.tls, self.mode
        )
    }
}

/// What the options mean.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TlsPlan {
    pub(super) parts: Vec<Part>,
    pub(super) servers: Vec<Server>,
    pub(super) keys: Vec<BenchKey>,
    pub(super) versions: Vec<TlsVersion>,
    pub(super) modes: Vec<Mode>,
    pub(super) rounds: u64,
    pub(super) duration: Duration,
    /// For how long answers of the node are held back.
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
        check_seconds(seconds, &SECONDS)?;
        let (gateway_core, load_core) = cores::two(args.gateway_core, args.load_core)?;
        let mut modes = unique(&args.mode);
        if modes.is_empty() {
            modes = vec![Mode::Local, Mode::Pooled, Mode::PooledPreload];
        }
        let preload = args.preload.clone().or_else(find_preload);
        if preload.is_none() {
            modes.retain(|mode| *mode != Mode::PooledPreload);
        }
        let parts = unique(&args.part);
        if parts.contains(&Part::Short) {
            short::need_ab()?;
        }
        Ok(Self {
            recommended_only: args.demo && args.mode.is_empty(),
            parts,
            servers: unique(&args.server),
            keys: unique(&args.key),
            versions: unique(&args.tls),
            modes,
            rounds: args.rounds.unwrap_or(rounds),
            duration: Duration::from_secs_f64(seconds),
            latency: Duration::from_millis(args.latency),
            concurrency: args.concurrency,
            request_concurrency: args.request_concurrency,
            gateway_core,
            load_core,
            provider: args.provider.clone(),
            preload,
        })
    }

    /// The cells of one round: the modes of a server, key and version next to each other, in an order
    /// that is permuted from round to round.
    pub(super) fn order(&self, round: u64) -> Vec<Cell> {
        let mut cells = Vec::new();
        if !self.parts.iter().any(|part| *part != Part::Short) {
            return cells;
        }
        for &server in &self.servers {
            for &key in &self.keys {
                for &tls in &self.versions {
                    let modes = self.ordered(round);
                    cells.extend(modes.into_iter().map(|mode| Cell {
                        server,
                        key,
                        tls,
                        mode,
                    }));
                }
            }
        }
        cells
    }

    /// The cells with short connections of one round.
    pub(super) fn short_order(&self, round: u64) -> Vec<ShortCell> {
        let mut cells = Vec::new();
        if !self.parts.contains(&Part::Short) {
            return cells;
        }
        for &server in &self.servers {
            for path in Path::ALL {
                let modes = self.ordered(round);
                cells.extend(
                    modes
                        .into_iter()
                        .map(|mode| ShortCell { server, path, mode }),
                );
            }
        }
        cells
    }

    /// The modes that a server is measured in.
    pub(super) fn modes(&self) -> Vec<Mode> {
        let recommended = self.modes.contains(&Mode::PooledPreload);
        let modes = self.modes.iter().copied();
        modes
            .filter(|mode| !(self.recommended_only && recommended && *mode == Mode::Pooled))
            .collect()
    }

    /// Whether the goals apply to this pooled mode: the recommended one, or in its absence the one that does
    /// not block.
    pub(super) fn counts(&self, server: Server, mode: Mode) -> bool {
        if self.modes.contains(&Mode::PooledPreload) {
            mode == Mode::PooledPreload
        } else {
            server != Server::Nginx
        }
    }

    /// The modes in the order of this round.
    fn ordered(&self, round: u64) -> Vec<Mode> {
        let modes = self.modes();
        order(modes.len(), round)
            .into_iter()
            .map(|place| modes[place])
            .collect()
    }

    /// Modes that the demonstration leaves out although they were not deselected.
    pub(super) fn left_out(&self) -> impl Iterator<Item = Mode> {
        let modes = self.modes();
        self.modes
            .iter()
            .copied()
            .filter(move |mode| !modes.contains(mode))
    }

    /// The keys that gateways have: those that are measured, and the one of short connections.
    pub(super) fn keys_to_make(&self) -> Vec<BenchKey> {
        let mut keys = self.keys.clone();
        if self.parts.contains(&Part::Short) {
            keys.push(BenchKey::Rsa2048);
        }
        unique(&keys)
    }

    /// How many steps of progress there are.
    pub(super) fn steps(&self) -> u64 {
        let cells = self.order(0).len() + self.short_order(0).len() + self.speeds().len();
        self.rounds * cells as u64
    }

    /// The keys that `openssl speed` is asked about, as a second opinion.
    pub(super) fn speeds(&self) -> Vec<BenchKey> {
        if self.parts.contains(&Part::Handshakes) {
            self.keys.clone()
        } else {
            Vec::new()
        }
    }

    pub(super) fn pools(&self) -> bool {
        self.modes.iter().any(|mode| mode.is_pooled())
    }
}

/// The preload library beside this binary, or where a package puts it.
fn find_preload() -> Option<PathBuf> {
    let binary = env::current_exe().ok()?;
    let folder = binary.parent()?;
    PRELOAD_PLACES
        .iter()
        .map(|place| folder.join(place))
        .find(|path| path.is_file())
}

/// The same values, sorted, each once.
fn unique<T: Copy + Ord>(values: &[T]) -> Vec<T> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: TlsArgs,
    }

    fn plan(typed: &[&str]) -> TlsPlan {
        let typed = ["tls", "--preload", "/nonexistent.so"].iter().chain(typed);
        TlsPlan::new(&Typed::parse_from(typed).args).expect("a plan")
    }

    #[test]
    fn demo_leaves_out_pooled_without_preload_and_says_so() {
        let whole = plan(&["--part", "handshakes"]);
        let all = [Mode::Local, Mode::Pooled, Mode::PooledPreload];
        assert_eq!(whole.modes(), all);
        assert_eq!(whole.order(0).len(), 2 * 2 * (3 + 3));
        let first: std::collections::BTreeSet<Mode> =
            (0..20).map(|round| whole.order(round)[0].mode).collect();
        assert_eq!(first.len(), 3, "each mode comes first in some round");
        assert_eq!(whole.left_out().count(), 0);
        assert!(!whole.counts(Server::Haproxy, Mode::Pooled));
        let demo = plan(&["--part", "handshakes", "--demo"]);
        assert_eq!(demo.modes(), [Mode::Local, Mode::PooledPreload]);
        assert!(demo.left_out().eq([Mode::Pooled]));
    }

    #[test]
    fn parts_say_which_cells_and_keys_there_are() {
        let handshakes = plan(&["--part", "handshakes", "--key", "p-256"]);
        assert!(handshakes.short_order(0).is_empty());
        assert_eq!(handshakes.keys_to_make(), [BenchKey::P256]);
        assert_eq!(handshakes.steps(), 5 * (2 * (3 + 3) + 1));
        if short::need_ab().is_err() {
            eprintln!("skipped: no ab");
            return;
        }
        let short = plan(&["--part", "short", "--key", "p-256"]);
        assert!(short.order(0).is_empty() && short.speeds().is_empty());
        assert_eq!(short.short_order(0).len(), 2 * (3 + 3));
        assert_eq!(short.keys_to_make(), [BenchKey::Rsa2048, BenchKey::P256]);
    }
}
