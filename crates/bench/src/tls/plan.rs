// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What is measured, in which order, on which cores.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::{Mode, Server, TlsVersion};
use crate::cli::TlsArgs;
use crate::cores;
use crate::error::BenchError;
use crate::keys::KeyKind;

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
    pub(super) key: KeyKind,
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
pub(super) struct Plan {
    pub(super) servers: Vec<Server>,
    pub(super) keys: Vec<KeyKind>,
    pub(super) versions: Vec<TlsVersion>,
    pub(super) modes: Vec<Mode>,
    pub(super) rounds: u64,
    pub(super) duration: Duration,
    pub(super) concurrency: usize,
    pub(super) gateway_core: usize,
    pub(super) load_core: usize,
    #[serde(skip)]
    pub(super) provider: Option<PathBuf>,
    #[serde(skip)]
    pub(super) preload: Option<PathBuf>,
}

impl Plan {
    pub(super) fn new(args: &TlsArgs) -> Result<Self, BenchError> {
        let (rounds, seconds) = if args.demo { (3, 1.0) } else { (5, 2.0) };
        let seconds = args.seconds.unwrap_or(seconds);
        if !SECONDS.contains(&seconds) {
            return Err(BenchError::Usage(format!(
                "--seconds must be between {} and {}",
                SECONDS.start(),
                SECONDS.end()
            )));
        }
        let usable = cores::usable()?;
        let first = usable.first().copied().unwrap_or(0);
        let second = usable.get(1).copied().unwrap_or(first);
        for core in args.gateway_core.iter().chain(&args.load_core) {
            if !usable.contains(core) {
                return Err(BenchError::Usage(format!(
                    "core {core} is not usable: {usable:?} are"
                )));
            }
        }
        let mut modes = unique(&args.mode);
        let preload = args.preload.clone().or_else(find_preload);
        if preload.is_none() {
            modes.retain(|mode| *mode != Mode::PooledPreload);
        }
        Ok(Self {
            servers: unique(&args.server),
            keys: unique(&args.key),
            versions: unique(&args.tls),
            modes,
            rounds: args.rounds.unwrap_or(rounds),
            duration: Duration::from_secs_f64(seconds),
            concurrency: usize::try_from(args.concurrency).unwrap_or(usize::MAX),
            gateway_core: args.gateway_core.unwrap_or(first),
            load_core: args.load_core.unwrap_or(second),
            provider: args.provider.clone(),
            preload,
        })
    }

    /// The cells of one round: local and pooled next to each other, in alternating order, so that
    /// neither always comes first.
    pub(super) fn order(&self, round: u64) -> Vec<Cell> {
        let mut modes = self.modes.clone();
        if round % 2 == 1 {
            modes.reverse();
        }
        let mut cells = Vec::new();
        for &server in &self.servers {
            for &key in &self.keys {
                for &tls in &self.versions {
                    let fitting = modes.iter().filter(|mode| mode.fits(server));
                    cells.extend(fitting.map(|&mode| Cell {
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

    /// How many steps of progress there are.
    pub(super) fn steps(&self) -> u64 {
        self.rounds * (self.order(0).len() + self.keys.len()) as u64
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
