// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The figures: raw rounds, their comparison, the numbers to reach, and whether everything verified.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::plan::{LocalCell, LocalMode, LocalPlan, USUAL_TICKETS};
use crate::bench_key::BenchKey;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::report::BenchReport;
use crate::stats::{MeanRatio, Spread};
use crate::tls::TlsServer;
use crate::tls::load::TlsGroup;

/// Version of the JSON report: raised when a field changes its meaning.
pub(super) const SCHEMA: u32 = 1;

/// The condition of the promises.
const CONDITION: &str = "release build, server and client on cores of their own";

/// The report of `bench tls --local`.
pub(super) type LocalReport = BenchReport<LocalPlan, LocalFigures>;

/// One load on one server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LocalRound {
    pub(super) completed: u64,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) elapsed_s: f64,
    /// CPU time of the server for each handshake.
    pub(super) server_cpu_us: f64,
    /// Number of operations that the provider computed in the server, by primitive.
    pub(super) computed: BTreeMap<String, u64>,
    /// Fetches that the cache answered, and all that it saw.
    pub(super) fetches: (u64, u64),
    /// Private-key operations of the node.
    pub(super) signed: u64,
}

/// All rounds of one server.
#[derive(Debug, Serialize)]
pub(super) struct CellRounds {
    #[serde(flatten)]
    pub(super) cell: LocalCell,
    pub(super) rounds: Vec<LocalRound>,
}

/// MeasuredBackend of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LocalQuestion {
    /// Millrace against the same server and group without it.
    Local,
    /// The post-quantum group by Millrace against the server's own X25519: it has no other.
    PostQuantum,
    /// One ticket against two, both with Millrace.
    OneTicket,
    /// Local primitives and one ticket against the server as it is.
    LocalOneTicket,
    /// Local primitives and the private key in a pool, against the server as it is.
    LocalAndPool,
}

/// A server against its peer.
#[derive(Debug, Serialize)]
pub(super) struct LocalComparison {
    pub(super) question: LocalQuestion,
    pub(super) ours: LocalCell,
    pub(super) peer: LocalCell,
    /// CPU time per handshake in microseconds, by rounds.
    pub(super) ours_us: Spread,
    pub(super) peer_us: Spread,
    /// Geometric mean of the ratios within rounds, with the range that holds it with a probability of 95 %.
    pub(super) ratio: MeanRatio,
    /// Operations that the provider computed for each handshake of ours.
    pub(super) computed_each: BTreeMap<String, f64>,
}

/// The figures of `bench tls --local`.
#[derive(Debug, Serialize)]
pub(super) struct LocalFigures {
    pub(super) servers: Vec<CellRounds>,
    pub(super) comparisons: Vec<LocalComparison>,
}

impl LocalFigures {
    /// Compares each server with its peers, round by round.
    pub(super) fn compare(
        plan: &LocalPlan,
        mut rounds: BTreeMap<LocalCell, Vec<LocalRound>>,
    ) -> Self {
        let servers: Vec<CellRounds> = plan
            .cells
            .iter()
            .filter_map(|cell| {
                let rounds = rounds.remove(cell)?;
                Some(CellRounds { cell: *cell, rounds })
            })
            .collect();
        let of = |cell: LocalCell| servers.iter().find(|server| server.cell == cell);
        let comparisons = servers.iter().flat_map(|ours| {
            let questions = questions(ours.cell, plan.stock_has_hybrid()).into_iter();
            questions.filter_map(move |(question, peer)| ours.against(question, of(peer)?))
        });
        Self { comparisons: comparisons.collect(), servers }
    }

    /// # Errors
    /// [`BenchError::Wrong`] with every server that had failures, or that computed nothing itself where it should.
    pub(super) fn verdict(&self) -> Result<(), BenchError> {
        let problems: Vec<String> = self.servers.iter().filter_map(CellRounds::problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(BenchError::Wrong(problems.join("; "))) }
    }
}

impl CellRounds {
    pub(super) fn completed(&self) -> u64 {
        self.rounds.iter().map(|round| round.completed).sum()
    }

    fn cpu_us(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|round| round.server_cpu_us)
    }

    /// Number of operations for each handshake, by primitive.
    pub(super) fn computed_each(&self) -> BTreeMap<String, f64> {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (name, count) in self.rounds.iter().flat_map(|round| &round.computed) {
            *sums.entry(name.clone()).or_default() += count;
        }
        sums.into_iter().map(|(name, sum)| (name, sum as f64 / self.completed() as f64)).collect()
    }

    /// The share of fetches that the cache answered; `None` if it saw none.
    pub(super) fn cached(&self) -> Option<f64> {
        let add = |(hits, all): (u64, u64), round: &LocalRound| {
            (hits + round.fetches.0, all + round.fetches.1)
        };
        let (hits, all) = self.rounds.iter().fold((0, 0), add);
        (all > 0).then(|| hits as f64 / all as f64)
    }

    fn against(&self, question: LocalQuestion, peer: &Self) -> Option<LocalComparison> {
        Some(LocalComparison {
            question,
            ours: self.cell,
            peer: peer.cell,
            ours_us: Spread::of(self.cpu_us())?,
            peer_us: Spread::of(peer.cpu_us())?,
            ratio: MeanRatio::of_ratios(self.cpu_us(), peer.cpu_us())?,
            computed_each: self.computed_each(),
        })
    }

    /// A handshake that OpenSSL's default provider computed looks the same, so the counters decide whether this was the
    /// server that its name says.
    fn problem(&self) -> Option<String> {
        let cell = self.cell;
        let completed = self.completed();
        let failed: u64 = self.rounds.iter().flat_map(|round| round.failures.values()).sum();
        if failed > 0 {
            let reasons = self.rounds.iter().flat_map(|round| round.failures.keys());
            let reasons: std::collections::BTreeSet<_> = reasons.collect();
            return Some(format!("{cell}: {failed} handshakes failed {reasons:?}"));
        }
        let computed: u64 = self.rounds.iter().flat_map(|round| round.computed.values()).sum();
        let signed: u64 = self.rounds.iter().map(|round| round.signed).sum();
        match cell.mode {
            LocalMode::Stock => None,
            LocalMode::Local | LocalMode::LocalAndPool if computed < completed => Some(format!(
                "{cell}: the provider counts {computed} operations for {completed} handshakes: OpenSSL's default \
                 provider computed them"
            )),
            LocalMode::LocalAndPool if signed < completed => Some(format!(
                "{cell}: the node counts {signed} signatures for {completed} handshakes"
            )),
            LocalMode::Local | LocalMode::LocalAndPool => None,
        }
    }
}

/// The comparisons of a server, with the peer of each.
fn questions(ours: LocalCell, has_hybrid: bool) -> Vec<(LocalQuestion, LocalCell)> {
    let with = |mode, tickets| LocalCell { mode, tickets, ..ours };
    let stock = with(LocalMode::Stock, USUAL_TICKETS);
    let stock = if ours.group == TlsGroup::X25519MLKEM768 && !has_hybrid {
        LocalCell { group: TlsGroup::X25519, ..stock }
    } else {
        stock
    };
    match (ours.mode, ours.tickets) {
        (LocalMode::Stock, _) => Vec::new(),
        (LocalMode::LocalAndPool, _) => vec![(LocalQuestion::LocalAndPool, stock)],
        (LocalMode::Local, 1) => vec![
            (LocalQuestion::OneTicket, with(LocalMode::Local, USUAL_TICKETS)),
            (LocalQuestion::LocalOneTicket, stock),
        ],
        (LocalMode::Local, _) if stock.group == ours.group => vec![(LocalQuestion::Local, stock)],
        (LocalMode::Local, _) => vec![(LocalQuestion::PostQuantum, stock)],
    }
}

/// The promised and the aimed-at ratio of a comparison; `None` where nothing is promised.
#[rustfmt::skip]
fn numbers(question: LocalQuestion, ours: LocalCell, has_hybrid: bool) -> Option<[f64; 2]> {
    use BenchKey::{P256, Rsa2048};
    use LocalQuestion::{Local, LocalAndPool, LocalOneTicket, OneTicket, PostQuantum};
    use TlsServer::{Haproxy, Nginx};
    use TlsGroup::{X25519, X25519MLKEM768};
    Some(match (question, ours.server, ours.key, ours.group) {
        (Local, Nginx, P256, X25519) if has_hybrid => [0.86, 0.75],
        (Local, Nginx, P256, X25519)               => [0.85, 0.75],
        (Local, Nginx, P256, X25519MLKEM768)       => [0.77, 0.70],
        (Local, Haproxy, P256, X25519)             => [0.85, 0.78],
        (Local, Nginx, Rsa2048, X25519)            => [0.90, 0.85],
        (PostQuantum, Nginx, P256, _)              => [1.00, 0.95],
        (OneTicket, _, P256, _)                    => [0.96, 0.93],
        (LocalAndPool, Nginx, P256, X25519)        => [1.00, 0.90],
        (Local | PostQuantum | OneTicket | LocalOneTicket | LocalAndPool, ..) => return None,
    })
}

impl LocalComparison {
    /// The question in words.
    pub(super) fn what(&self) -> String {
        let name = self.ours.group_name();
        match self.question {
            LocalQuestion::Local => format!("{name}: local / stock"),
            LocalQuestion::PostQuantum => format!("{name}: local / stock with X25519"),
            LocalQuestion::OneTicket => format!("{name}: local, 1 ticket / 2 tickets"),
            LocalQuestion::LocalOneTicket => format!("{name}: local, 1 ticket / stock"),
            LocalQuestion::LocalAndPool => format!("{name}: local and pool / stock"),
        }
    }
}

/// The goals, each with its condition.
pub(super) fn goals(report: &LocalReport) -> Goals {
    let plan = &report.plan;
    let holds = !cfg!(debug_assertions) && plan.gateway_core != plan.load_core;
    let goal = |comparison: &LocalComparison| {
        let [must, aim] = numbers(comparison.question, comparison.ours, plan.stock_has_hybrid())?;
        let what = format!("server CPU per handshake, {}", comparison.what());
        let goal = Goal::at_most_on_average(what, must, aim, comparison.ratio);
        Some(goal.only_if(CONDITION, holds))
    };
    Goals(report.figures.comparisons.iter().filter_map(goal).collect())
}

/// File of the last run of this user on this machine: `$XDG_CACHE_HOME/millrace/tls-local.json`, else below `~/.cache`;
/// `None` for a user without a home. `millrace advise tls` reads it.
#[must_use]
pub fn saved() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(cache?.join("millrace/tls-local.json"))
}

/// Keeps a run for advice. A cache that cannot be written is not a reason to fail after a measurement.
pub(super) fn save(report: &LocalReport) {
    let Some(file) = saved() else { return };
    if let Some(folder) = file.parent()
        && fs::create_dir_all(folder).is_ok()
        && let Ok(text) = serde_json::to_vec(report)
    {
        let _ = fs::write(file, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(group: TlsGroup, mode: LocalMode, tickets: u32) -> LocalCell {
        LocalCell {
            server: TlsServer::Nginx,
            threads: 1,
            key: BenchKey::P256,
            group,
            mode,
            tickets,
        }
    }

    fn rounds(cell: LocalCell, cpu: &[f64], computed: u64) -> CellRounds {
        let round = |us: &f64| LocalRound {
            completed: 10,
            failures: BTreeMap::new(),
            elapsed_s: 1.0,
            server_cpu_us: *us,
            computed: [("X25519".to_owned(), computed)].into(),
            fetches: (3, 4),
            signed: 0,
        };
        CellRounds { cell, rounds: cpu.iter().map(round).collect() }
    }

    #[test]
    fn silent_export_to_the_default_provider_is_no_result() {
        let local = cell(TlsGroup::X25519, LocalMode::Local, 2);
        let problem = rounds(local, &[1.0], 9).problem().expect("too few");
        assert!(problem.contains("9 operations for 10 handshakes"), "{problem}");
        assert!(rounds(local, &[1.0], 20).problem().is_none());
        let stock = cell(TlsGroup::X25519, LocalMode::Stock, 2);
        assert!(rounds(stock, &[1.0], 0).problem().is_none());
        let pooled = cell(TlsGroup::X25519, LocalMode::LocalAndPool, 2);
        let problem = rounds(pooled, &[1.0], 20).problem().expect("no signature");
        assert!(problem.contains("0 signatures"), "{problem}");
    }

    #[test]
    fn hybrid_of_an_old_openssl_is_compared_with_stock_x25519() {
        let local = cell(TlsGroup::X25519MLKEM768, LocalMode::Local, 2);
        let [(question, peer)] = questions(local, false)[..] else {
            panic!("one comparison");
        };
        assert_eq!(question, LocalQuestion::PostQuantum);
        assert_eq!((peer.group, peer.mode), (TlsGroup::X25519, LocalMode::Stock));
        assert_eq!(numbers(question, local, false), Some([1.0, 0.95]));
        let [(question, peer)] = questions(local, true)[..] else {
            panic!("one comparison");
        };
        assert_eq!((question, peer.group), (LocalQuestion::Local, local.group));
        assert_eq!(numbers(question, local, true), Some([0.77, 0.70]));
    }

    #[test]
    fn comparison_pairs_the_rounds() {
        let stock = rounds(cell(TlsGroup::X25519, LocalMode::Stock, 2), &[100.0, 400.0], 0);
        let local = rounds(cell(TlsGroup::X25519, LocalMode::Local, 2), &[80.0, 320.0], 20);
        let found = local.against(LocalQuestion::Local, &stock).expect("a comparison");
        assert!((found.ratio.mean - 0.8).abs() < 1e-9 && (found.ratio.high - 0.8).abs() < 1e-9);
        assert!((found.computed_each["X25519"] - 2.0).abs() < 1e-9);
        assert_eq!(local.cached(), Some(0.75));
    }
}
