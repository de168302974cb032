// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The figures: raw rounds, their comparison, and whether everything verified.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use millrace_sampler::{Profile, SymbolClass};
use serde::Serialize;

use super::observer::{LoadObserver, Seen};
use super::plan::{Cell, Handshake, TlsPlan};
use super::short::{Short, ShortLoad};
use super::testbed::{LoadFigures, Measurement};
use super::{KeyPlace, TlsServer};
use crate::bench_key::BenchKey;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::report::BenchReport;
use crate::stats::Spread;

/// Version of the JSON report: raised when a field changes its meaning.
pub(super) const SCHEMA: u32 = 2;

/// Promised and aimed-at share of the offload ceiling that the pool saves: the rest is the cost of asking the pool.
const MUST_SAVE: f64 = 0.85;
const AIM_TO_SAVE: f64 = 0.95;

/// CPU time, in microseconds, that a pooled P-256 handshake may cost the gateway more than a local one: the
/// signature itself takes 14 µs there, so nothing that leaves the process can save any.
const MAX_ADDED_US: f64 = 40.0;
const AIM_ADDED_US: f64 = 10.0;

/// Promised and aimed-at share of the requests that the ceiling allows a gateway's core, where the gateway is the
/// bottleneck: 51 to 79 % were measured on a test bed that cannot keep it busy.
const MUST_REACH: f64 = 0.9;
const AIM_TO_REACH: f64 = 0.95;

/// Promised ratio of handshakes of a worker that does not block, while operations take 5 ms; the aim is the number
/// of connections.
const MUST_GAIN: f64 = 30.0;

/// The report of `bench tls`.
pub(super) type TlsReport = BenchReport<TlsPlan, TlsFigures>;

/// The figures of `bench tls`.
#[derive(Debug, Default, Serialize)]
pub(super) struct TlsFigures {
    /// The reason why the ceilings are those of `openssl speed`, not sampled.
    pub(super) not_sampled: Option<String>,
    /// Microseconds of one signature by OpenSSL on the gateway's core, per round, by key.
    pub(super) openssl_sign_us: BTreeMap<BenchKey, Vec<f64>>,
    pub(super) cells: Cells<Handshake, Measurement>,
    pub(super) short_cells: Cells<Short, ShortLoad>,
    pub(super) savings: Vec<Saving>,
    pub(super) short_gains: Vec<ShortGain>,
    pub(super) profiles: Vec<CellProfile>,
}

/// All cells of one sort of work, in their order.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Cells<W, R>(Vec<CellRounds<W, R>>);

/// All rounds of one cell.
#[derive(Debug, Serialize)]
pub(super) struct CellRounds<W, R> {
    #[serde(flatten)]
    pub(super) cell: Cell<W>,
    pub(super) rounds: Vec<R>,
}

impl<W, R> Default for Cells<W, R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<W: Copy + Ord, R> Cells<W, R> {
    pub(super) fn add(&mut self, cell: Cell<W>, round: R) {
        match self.0.binary_search_by_key(&cell, |rounds| rounds.cell) {
            Ok(place) => self.0[place].rounds.push(round),
            Err(place) => self.0.insert(place, CellRounds { cell, rounds: vec![round] }),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &CellRounds<W, R>> {
        self.0.iter()
    }

    /// The rounds of a cell; empty if it was not measured.
    pub(super) fn of(&self, cell: Cell<W>) -> &[R] {
        let place = self.0.binary_search_by_key(&cell, |rounds| rounds.cell);
        place.map_or(&[], |place| &self.0[place].rounds)
    }

    /// A figure of one cell over that of another, within rounds.
    pub(super) fn ratio(
        &self,
        [ours, peer]: [Cell<W>; 2],
        value: impl Fn(&R) -> Option<f64>,
    ) -> Option<Spread> {
        let values = |cell| self.of(cell).iter().filter_map(&value);
        Spread::of_ratios(values(ours), values(peer))
    }
}

/// Local against pooled, for one server, key and version.
#[derive(Debug, Serialize)]
pub(super) struct Saving {
    #[serde(flatten)]
    pub(super) pooled: Cell<Handshake>,
    /// Saving at equal load: half of the local gateway's maximum.
    pub(super) equal: Saved,
    /// Saving at the maximum of each gateway: where they are busiest, but not equally so.
    pub(super) full: Saved,
}

/// Local against pooled under one sort of load.
#[derive(Debug, Serialize)]
pub(super) struct Saved {
    /// Handshakes per second of the local gateway.
    pub(super) per_s: f64,
    /// CPU time per handshake of the local gateway, in microseconds.
    pub(super) local_us: Spread,
    /// CPU time per handshake that left the gateway, in microseconds.
    pub(super) saved_us: Spread,
    /// The share of private-key work in the local gateway's CPU time, sampled in all rounds: the most
    /// that could be saved.
    pub(super) offload_ceiling: f64,
    /// Offload ceiling by `openssl speed`: one signature in a loop, over the CPU time of a handshake.
    pub(super) speed_ceiling: Spread,
    /// The saved share of the offload ceiling.
    pub(super) saved_of_ceiling: Spread,
}

/// Short connections, local against pooled.
#[derive(Debug, Serialize)]
pub(super) struct ShortGain {
    #[serde(flatten)]
    pub(super) pooled: Cell<Short>,
    /// Requests per second of the gateway's CPU time, pooled over local.
    pub(super) per_cpu: Spread,
    /// The ratio that the ceiling allows: 1 / (1 - share of private-key work).
    pub(super) allowed: Option<f64>,
    /// The first over the second.
    pub(super) of_allowed: Option<Spread>,
}

/// The CPU time of a gateway by class.
#[derive(Debug, Serialize)]
pub(super) struct CellProfile {
    pub(super) cell: String,
    /// The cells that are compared with each other.
    pub(super) group: String,
    pub(super) mode: KeyPlace,
    /// CPU time per handshake or request, in microseconds, median of the rounds.
    pub(super) cpu_us: f64,
    pub(super) profile: Profile,
}

impl TlsFigures {
    /// Compares local with pooled, round by round, after the last round.
    pub(super) fn compare(&mut self, observer: &LoadObserver) {
        self.not_sampled = observer.blind();
        let saving = |rounds: &CellRounds<Handshake, _>| self.saving(rounds.cell, observer);
        self.savings = self.cells.iter().filter_map(saving).collect();
        let gain = |rounds: &CellRounds<Short, _>| self.short_gain(rounds.cell, observer);
        self.short_gains = self.short_cells.iter().filter_map(gain).collect();
        let profiles = self.cells.iter().filter_map(|CellRounds { cell, rounds }| {
            let loads =
                rounds.iter().filter_map(|round| round.closed.as_ref().or(round.requests.as_ref()));
            let loads = loads.map(|load| (load.gateway_cpu_us, load.seen.as_ref()));
            CellProfile::of(*cell, loads, observer)
        });
        let short = self.short_cells.iter().filter_map(|CellRounds { cell, rounds }| {
            let loads = rounds.iter().map(|load| (load.gateway_cpu_us, load.seen.as_ref()));
            CellProfile::of(*cell, loads, observer)
        });
        self.profiles = profiles.chain(short).collect();
    }

    fn saving(&self, pooled: Cell<Handshake>, observer: &LoadObserver) -> Option<Saving> {
        let sign = self.openssl_sign_us.get(&pooled.work.key)?;
        let saved = |load: fn(&Measurement) -> Option<&LoadFigures>| {
            let loads = |mode| self.cells.of(pooled.with(mode)).iter().filter_map(load);
            let (local, pooled): (Vec<&LoadFigures>, Vec<&LoadFigures>) =
                (loads(KeyPlace::Local).collect(), loads(pooled.mode).collect());
            saved(&local, &pooled, sign, observer)
        };
        if !pooled.mode.is_pooled() {
            return None;
        }
        Some(Saving {
            pooled,
            equal: saved(|round| round.paced.as_ref())?,
            full: saved(|round| round.closed.as_ref())?,
        })
    }

    fn short_gain(&self, pooled: Cell<Short>, observer: &LoadObserver) -> Option<ShortGain> {
        let local = pooled.with(KeyPlace::Local);
        let cpu = |load: &ShortLoad| Some(load.gateway_cpu_us);
        let per_cpu = self.short_cells.ratio([local, pooled], cpu);
        let per_cpu = per_cpu.filter(|_| pooled.mode.is_pooled())?;
        let seen = self.short_cells.of(local).iter().filter_map(|load| load.seen.as_ref());
        let allowed = offloadable(seen, observer).map(|share| 1.0 / (1.0 - share));
        Some(ShortGain {
            pooled,
            per_cpu,
            allowed,
            of_allowed: allowed.map(|allowed| per_cpu.map(|gain| gain / allowed)),
        })
    }

    /// Whether all counters are right, for this number of requests at a time.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] with every cell that had failures or whose counters do not add up.
    pub(super) fn verdict(&self, concurrency: usize) -> Result<(), BenchError> {
        let cells = self.cells.iter().filter_map(CellRounds::<Handshake, _>::problem);
        let short = self.short_cells.iter().filter_map(|rounds| rounds.problem(concurrency));
        let problems: Vec<String> = cells.chain(short).collect();
        if problems.is_empty() { Ok(()) } else { Err(BenchError::Wrong(problems.join("; "))) }
    }
}

impl CellProfile {
    /// Profile from the CPU time and the samples of each load; `None` without samples.
    fn of<'a, W: Copy + Display>(
        cell: Cell<W>,
        loads: impl Iterator<Item = (f64, Option<&'a Seen>)>,
        observer: &LoadObserver,
    ) -> Option<Self> {
        let (cpu_us, seen): (Vec<f64>, Vec<_>) = loads.unzip();
        Some(Self {
            cell: cell.to_string(),
            group: cell.group(),
            mode: cell.mode,
            cpu_us: Spread::of(cpu_us)?.median,
            profile: observer.merged(seen.into_iter().flatten())?,
        })
    }
}

/// Compares the rounds of one sort of load.
fn saved(
    local: &[&LoadFigures],
    pooled: &[&LoadFigures],
    sign: &[f64],
    observer: &LoadObserver,
) -> Option<Saved> {
    let locals = || local.iter().map(|load| load.gateway_cpu_us);
    let pairs = || locals().zip(pooled.iter().map(|load| load.gateway_cpu_us));
    let speed_ceiling = Spread::of_ratios(sign.iter().copied(), locals())?;
    let seen = local.iter().filter_map(|load| load.seen.as_ref());
    let ceiling = offloadable(seen, observer).unwrap_or(speed_ceiling.median);
    let of_ceiling = pairs().map(|(local, pooled)| (local - pooled) / (local * ceiling));
    Some(Saved {
        per_s: Spread::of(local.iter().map(|load| load.handshakes_per_s))?.median,
        local_us: Spread::of(locals())?,
        saved_us: Spread::of(pairs().map(|(local, pooled)| local - pooled))?,
        offload_ceiling: ceiling,
        speed_ceiling,
        saved_of_ceiling: Spread::of(of_ceiling)?,
    })
}

/// The share of private-key work in all samples; `None` without any.
fn offloadable<'a>(seen: impl Iterator<Item = &'a Seen>, observer: &LoadObserver) -> Option<f64> {
    let profile = observer.merged(seen)?;
    let share = profile.sum(SymbolClass::is_private_key).share;
    (share > 0.0).then_some(share)
}

/// The goals, for the pooled mode that counts, each with its condition.
pub(super) fn goals(report: &TlsReport) -> Goals {
    let BenchReport { plan, figures, machine, .. } = report;
    if !plan.latency.is_zero() {
        return gains_by_waiting(plan, figures);
    }
    let mut goals = Vec::new();
    let without_ifma = !machine.uses_ifma();
    let counted = |saving: &&Saving| plan.counts(saving.pooled.server, saving.pooled.mode);
    for Saving { pooled, equal, full } in figures.savings.iter().filter(counted) {
        let group = pooled.group();
        for (load, saved, is_full) in [("equal load", equal, false), ("full load", full, true)] {
            goals.extend(if pooled.work.key == BenchKey::Rsa2048 {
                let what = format!("gateway CPU saved / ceiling, {group}, {load}");
                let condition = "full load, processor without AVX-512 IFMA";
                Goal::at_least(what, MUST_SAVE, AIM_TO_SAVE, saved.saved_of_ceiling)
                    .map(|goal| goal.only_if(condition, is_full && without_ifma))
            } else {
                let what = format!("gateway CPU added, µs, {group}, {load}");
                let added = saved.saved_us.map(|saved| -saved);
                Goal::at_most(what, MAX_ADDED_US, AIM_ADDED_US, added)
                    .map(|goal| goal.only_if("full load", is_full))
            });
        }
    }
    for gain in &figures.short_gains {
        let counts = plan.counts(gain.pooled.server, gain.pooled.mode);
        let measured = gain.of_allowed.filter(|_| counts);
        let what = format!("requests per gateway core / ceiling, {}", gain.pooled.group());
        let goal = Goal::at_least(what, MUST_REACH, AIM_TO_REACH, measured);
        let condition = "load generator and node on cores of their own";
        goals.extend(goal.map(|goal| goal.only_if(condition, false)));
    }
    Goals(goals)
}

/// The gain by a worker of nginx that does not block, when answers come late.
fn gains_by_waiting(plan: &TlsPlan, figures: &TlsFigures) -> Goals {
    let gain = |rounds: &CellRounds<Handshake, Measurement>| {
        let cell = rounds.cell;
        let waits = (cell.server, cell.mode) == (TlsServer::Nginx, KeyPlace::PooledPreload);
        let pair = [cell, cell.with(KeyPlace::Pooled)];
        let gain = figures.cells.ratio(pair, Measurement::handshakes_per_s);
        let work = cell.work;
        let latency = plan.latency.as_millis();
        let what =
            format!("handshakes/s of nginx, {work}, {latency} ms per operation / without preload");
        let concurrency = plan.concurrency as f64;
        let goal = Goal::at_least(what, MUST_GAIN, concurrency, gain.filter(|_| waits))?;
        Some(goal.only_if("--concurrency 30 or more", concurrency >= MUST_GAIN))
    };
    Goals(figures.cells.iter().filter_map(gain).collect())
}

impl CellRounds<Handshake, Measurement> {
    fn loads(&self) -> impl Iterator<Item = &LoadFigures> {
        self.rounds.iter().flat_map(Measurement::loads)
    }

    pub(super) fn completed(&self) -> u64 {
        self.loads().map(|load| load.completed).sum()
    }

    pub(super) fn served(&self) -> u64 {
        self.rounds.iter().flat_map(|round| round.served.values()).sum()
    }

    pub(super) fn failed(&self) -> u64 {
        self.loads().flat_map(|load| load.failures.values()).sum()
    }

    fn problem(&self) -> Option<String> {
        let cell = self.cell;
        let failed = self.failed();
        if failed > 0 {
            let reasons: BTreeSet<_> = self.loads().flat_map(|load| load.failures.keys()).collect();
            return Some(format!("{cell}: {failed} handshakes failed {reasons:?}"));
        }
        miscounted(cell, self.completed(), self.served())
    }
}

impl CellRounds<Short, ShortLoad> {
    pub(super) fn served(&self) -> u64 {
        self.rounds.iter().flat_map(|load| load.served.values()).sum()
    }

    /// ApacheBench opens more connections than it counts, about as many as it has at a time, and drops them at the
    /// end: some of these reached the private-key operation.
    fn problem(&self, concurrency: usize) -> Option<String> {
        let completed = self.rounds.iter().map(|load| load.completed).sum();
        let spare = (2 * concurrency * self.rounds.len()) as u64;
        let served = self.served();
        let expected = if self.cell.mode.is_pooled() {
            served.clamp(completed, completed + spare)
        } else {
            completed
        };
        miscounted(self.cell, expected, served)
    }
}

/// The problem if the node counts other operations than the clients.
fn miscounted<W: Copy + Display>(cell: Cell<W>, completed: u64, served: u64) -> Option<String> {
    let expected = if cell.mode.is_pooled() { completed } else { 0 };
    (served != expected)
        .then(|| format!("{cell}: the node counts {served} operations for {completed} handshakes"))
}
