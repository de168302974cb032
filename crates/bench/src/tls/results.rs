// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was measured: raw rounds, their summary, and whether everything verified.

use std::collections::{BTreeMap, BTreeSet};

use millrace_sampler::{Class, Profile};
use serde::Serialize;

use super::observer::{Observer, Seen};
use super::plan::{Cell, TlsPlan};
use super::short::{ShortCell, ShortLoad};
use super::testbed::{Load, Measurement};
use super::{Mode, Server};
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::machine::Machine;
use crate::stats::Spread;
use crate::workload::BenchKey;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 2;

/// Of the offload ceiling, what has to be saved, and what is aimed at.
const MUST_SAVE: f64 = 0.85;
const AIM_TO_SAVE: f64 = 0.95;

/// CPU time, in microseconds, that a pooled P-256 handshake may cost the gateway more than a local one: the
/// signature itself takes 14 µs there, so nothing that leaves the process can save any.
const MOST_ADDED_US: f64 = 40.0;
const AIM_ADDED_US: f64 = 10.0;

/// Of the requests that the ceiling allows a gateway's core, what has to be reached.
const MUST_REACH: f64 = 0.9;
const AIM_TO_REACH: f64 = 0.95;

/// How many times as many handshakes a worker that does not block has to do while operations take 5 ms;
/// what is aimed at is that as many wait as there are connections.
const MUST_GAIN: f64 = 30.0;

/// The report of `bench tls`.
#[derive(Debug, Serialize)]
pub(super) struct TlsReport {
    schema: u32,
    benchmark: &'static str,
    pub(super) machine: Machine,
    pub(super) plan: TlsPlan,
    /// Why the ceilings are not sampled but those of `openssl speed`.
    pub(super) not_sampled: Option<String>,
    /// By key: microseconds that one signature takes OpenSSL on the gateway's core, per round.
    openssl_sign_us: BTreeMap<BenchKey, Vec<f64>>,
    pub(super) cells: Vec<Rounds>,
    pub(super) short_cells: Vec<ShortRounds>,
    pub(super) savings: Vec<Saving>,
    pub(super) short_gains: Vec<ShortGain>,
    pub(super) profiles: Vec<CellProfile>,
    pub(super) goals: Goals,
}

/// All rounds of one cell.
#[derive(Debug, Serialize)]
pub(super) struct Rounds {
    #[serde(flatten)]
    pub(super) cell: Cell,
    pub(super) rounds: Vec<Measurement>,
}

/// All rounds of one cell with short connections.
#[derive(Debug, Serialize)]
pub(super) struct ShortRounds {
    #[serde(flatten)]
    pub(super) cell: ShortCell,
    pub(super) rounds: Vec<ShortLoad>,
}

/// Local against pooled, for one server, key and version.
#[derive(Debug, Serialize)]
pub(super) struct Saving {
    #[serde(flatten)]
    pub(super) pooled: Cell,
    /// At equal load: half of what the local gateway does at most.
    pub(super) equal: Saved,
    /// With as many handshakes as go: where the gateways are busiest, but not equally so.
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
    /// The same as `openssl speed` has it: one signature in a loop, over the CPU time of a handshake.
    pub(super) speed_ceiling: Spread,
    /// How much of the offload ceiling was saved.
    pub(super) saved_of_ceiling: Spread,
}

/// Short connections, local against pooled.
#[derive(Debug, Serialize)]
pub(super) struct ShortGain {
    #[serde(flatten)]
    pub(super) pooled: ShortCell,
    /// How many times as many requests a second of the gateway's CPU time serves.
    pub(super) per_cpu: Spread,
    /// How many times as many the ceiling allows: 1 / (1 - share of private-key work).
    pub(super) allowed: Option<f64>,
    /// The first over the second.
    pub(super) of_allowed: Option<Spread>,
}

/// Where the CPU time of a gateway goes.
#[derive(Debug, Serialize)]
pub(super) struct CellProfile {
    pub(super) cell: String,
    /// What is compared with each other.
    pub(super) group: String,
    pub(super) mode: Mode,
    /// CPU time per handshake or request, in microseconds, median of the rounds.
    pub(super) cpu_us: f64,
    pub(super) profile: Profile,
}

impl TlsReport {
    pub(super) fn new(plan: &TlsPlan) -> Self {
        Self {
            schema: SCHEMA,
            benchmark: "tls",
            machine: Machine::here(),
            plan: plan.clone(),
            not_sampled: None,
            openssl_sign_us: BTreeMap::new(),
            cells: Vec::new(),
            short_cells: Vec::new(),
            savings: Vec::new(),
            short_gains: Vec::new(),
            profiles: Vec::new(),
            goals: Goals::default(),
        }
    }

    pub(super) fn add_operation(&mut self, key: BenchKey, rate: f64) {
        self.openssl_sign_us
            .entry(key)
            .or_default()
            .push(1e6 / rate);
    }

    pub(super) fn add(&mut self, cell: Cell, measurement: Measurement) {
        match self.cells.iter_mut().find(|rounds| rounds.cell == cell) {
            Some(rounds) => rounds.rounds.push(measurement),
            None => self.cells.push(Rounds {
                cell,
                rounds: vec![measurement],
            }),
        }
    }

    pub(super) fn add_short(&mut self, cell: ShortCell, load: ShortLoad) {
        match self.short_cells.iter_mut().find(|one| one.cell == cell) {
            Some(rounds) => rounds.rounds.push(load),
            None => self.short_cells.push(ShortRounds {
                cell,
                rounds: vec![load],
            }),
        }
    }

    /// Compares local with pooled, round by round. To be called once, after the last round.
    pub(super) fn finish(&mut self, observer: &Observer) {
        self.not_sampled = observer.blind();
        self.cells.sort_by_key(|rounds| rounds.cell);
        self.short_cells.sort_by_key(|rounds| rounds.cell);
        let cells = self.cells.iter();
        self.savings = cells
            .filter_map(|rounds| self.saving(rounds, observer))
            .collect();
        let short = self.short_cells.iter();
        self.short_gains = short
            .filter_map(|rounds| self.short_gain(rounds, observer))
            .collect();
        self.profiles = self.profiles(observer);
        self.goals = self.goals();
    }

    fn saving(&self, pooled: &Rounds, observer: &Observer) -> Option<Saving> {
        let twin = Cell {
            mode: Mode::Local,
            ..pooled.cell
        };
        let local = self.cells.iter().find(|rounds| rounds.cell == twin)?;
        if !pooled.cell.mode.is_pooled() {
            return None;
        }
        let sign = self.openssl_sign_us.get(&pooled.cell.key)?;
        let saved = |load: fn(&Measurement) -> Option<&Load>| {
            let locals: Vec<&Load> = local.rounds.iter().filter_map(load).collect();
            let pooleds: Vec<&Load> = pooled.rounds.iter().filter_map(load).collect();
            saved(&locals, &pooleds, sign, observer)
        };
        Some(Saving {
            pooled: pooled.cell,
            equal: saved(|round| round.paced.as_ref())?,
            full: saved(|round| round.closed.as_ref())?,
        })
    }

    fn short_gain(&self, pooled: &ShortRounds, observer: &Observer) -> Option<ShortGain> {
        let twin = ShortCell {
            mode: Mode::Local,
            ..pooled.cell
        };
        let local = self.short_cells.iter().find(|one| one.cell == twin)?;
        if !pooled.cell.mode.is_pooled() {
            return None;
        }
        let pairs = local.rounds.iter().zip(&pooled.rounds);
        let per_cpu = Spread::of(pairs.map(|(a, b)| a.gateway_cpu_us / b.gateway_cpu_us))?;
        let seen = local.rounds.iter().filter_map(|load| load.seen.as_ref());
        let allowed = offloadable(seen, observer).map(|share| 1.0 / (1.0 - share));
        Some(ShortGain {
            pooled: pooled.cell,
            per_cpu,
            allowed,
            of_allowed: allowed.map(|allowed| per_cpu.map(|gain| gain / allowed)),
        })
    }

    fn profiles(&self, observer: &Observer) -> Vec<CellProfile> {
        let mut profiles = Vec::new();
        for Rounds { cell, rounds } in &self.cells {
            let loads = rounds
                .iter()
                .filter_map(|round| round.closed.as_ref().or(round.requests.as_ref()));
            let cpu = Spread::of(loads.clone().map(|load| load.gateway_cpu_us));
            let profile = observer.merged(loads.filter_map(|load| load.seen.as_ref()));
            if let (Some(cpu), Some(profile)) = (cpu, profile) {
                profiles.push(CellProfile {
                    cell: cell.to_string(),
                    group: format!("{}, {}, TLS {}", cell.server, cell.key, cell.tls),
                    mode: cell.mode,
                    cpu_us: cpu.median,
                    profile,
                });
            }
        }
        for ShortRounds { cell, rounds } in &self.short_cells {
            let cpu = Spread::of(rounds.iter().map(|load| load.gateway_cpu_us));
            let profile = observer.merged(rounds.iter().filter_map(|load| load.seen.as_ref()));
            if let (Some(cpu), Some(profile)) = (cpu, profile) {
                profiles.push(CellProfile {
                    cell: cell.to_string(),
                    group: format!("{}, AES128-SHA, {}", cell.server, cell.path),
                    mode: cell.mode,
                    cpu_us: cpu.median,
                    profile,
                });
            }
        }
        profiles
    }

    /// The numbers to reach, for the pooled mode that counts, each with its condition.
    fn goals(&self) -> Goals {
        if !self.plan.latency.is_zero() {
            return self.gains_by_waiting();
        }
        let mut goals = Goals::default();
        let without_ifma = !self.machine.uses_ifma();
        let counted = |saving: &&Saving| self.plan.counts(saving.pooled.server, saving.pooled.mode);
        for saving in self.savings.iter().filter(counted) {
            let Cell {
                server, key, tls, ..
            } = saving.pooled;
            for (load, saved) in [("equal load", &saving.equal), ("full load", &saving.full)] {
                let full = load == "full load";
                let goal = if key == BenchKey::Rsa2048 {
                    let what =
                        format!("gateway CPU saved / ceiling, {server}, {key}, TLS {tls}, {load}");
                    Goal::at_least(what, MUST_SAVE, AIM_TO_SAVE, saved.saved_of_ceiling).only_if(
                        "full load, processor without AVX-512 IFMA",
                        full && without_ifma,
                    )
                } else {
                    let what = format!("gateway CPU added, µs, {server}, {key}, TLS {tls}, {load}");
                    let added = saved.saved_us.map(|saved| -saved);
                    Goal::at_most(what, MOST_ADDED_US, AIM_ADDED_US, added)
                        .only_if("full load", full)
                };
                goals.extend([goal]);
            }
        }
        for gain in &self.short_gains {
            let ShortCell { server, path, mode } = gain.pooled;
            if let (Some(measured), true) = (gain.of_allowed, self.plan.counts(server, mode)) {
                let what =
                    format!("requests per gateway core / ceiling, {server}, AES128-SHA, {path}");
                goals.extend([Goal::at_least(what, MUST_REACH, AIM_TO_REACH, measured)
                    .only_if("load generator and node on cores of their own", false)]);
            }
        }
        goals
    }

    /// What it brings that a worker of nginx does not block, when answers come late.
    fn gains_by_waiting(&self) -> Goals {
        let rates = |cell: Cell| {
            let rounds = self.cells.iter().find(|rounds| rounds.cell == cell)?;
            let closed = rounds
                .rounds
                .iter()
                .filter_map(|round| round.closed.as_ref());
            Some(closed.map(|load| load.handshakes_per_s).collect::<Vec<_>>())
        };
        let gain = |rounds: &Rounds| {
            let cell = rounds.cell;
            let waits = cell.server == Server::Nginx && cell.mode == Mode::PooledPreload;
            let blocking = Cell {
                mode: Mode::Pooled,
                ..cell
            };
            let (with, without) = (rates(cell).filter(|_| waits)?, rates(blocking)?);
            let gain = Spread::of(
                with.iter()
                    .zip(without)
                    .map(|(with, without)| with / without),
            )?;
            let Cell { key, tls, .. } = cell;
            let latency = self.plan.latency.as_millis();
            Some(Goal::at_least(
                format!(
                    "handshakes/s of nginx, {key}, TLS {tls}, {latency} ms per operation / without preload"
                ),
                MUST_GAIN,
                self.plan.concurrency as f64,
                gain,
            ))
        };
        self.cells.iter().filter_map(gain).collect()
    }

    /// Whether all that was counted is right.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] with every cell that had failures or whose counters do not add up.
    pub(super) fn verdict(&self) -> Result<(), BenchError> {
        let cells = self.cells.iter().filter_map(Rounds::problem);
        let concurrency = self.plan.request_concurrency;
        let short = self
            .short_cells
            .iter()
            .filter_map(|rounds| rounds.problem(concurrency));
        let problems: Vec<String> = cells.chain(short).collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(BenchError::Wrong(problems.join("; ")))
        }
    }
}

/// Compares the rounds of one sort of load.
fn saved(local: &[&Load], pooled: &[&Load], sign: &[f64], observer: &Observer) -> Option<Saved> {
    let locals = || local.iter().map(|load| load.gateway_cpu_us);
    let pairs = || locals().zip(pooled.iter().map(|load| load.gateway_cpu_us));
    let local_us = Spread::of(locals())?;
    let speed_ceiling = Spread::of(locals().zip(sign).map(|(local, sign)| sign / local))?;
    let seen = local.iter().filter_map(|load| load.seen.as_ref());
    let ceiling = offloadable(seen, observer).unwrap_or(speed_ceiling.median);
    Some(Saved {
        per_s: Spread::of(local.iter().map(|load| load.handshakes_per_s))?.median,
        local_us,
        saved_us: Spread::of(pairs().map(|(local, pooled)| local - pooled))?,
        offload_ceiling: ceiling,
        speed_ceiling,
        saved_of_ceiling: Spread::of(
            pairs().map(|(local, pooled)| (local - pooled) / (local * ceiling)),
        )?,
    })
}

/// The share of private-key work in all that was seen; none if nothing was.
fn offloadable<'a>(seen: impl Iterator<Item = &'a Seen>, observer: &Observer) -> Option<f64> {
    let profile = observer.merged(seen)?;
    let share = profile.sum(Class::is_private_key).share;
    (share > 0.0).then_some(share)
}

impl Rounds {
    pub(super) fn completed(&self) -> u64 {
        let loads = self.rounds.iter().flat_map(Measurement::loads);
        loads.map(|load| load.completed).sum()
    }

    pub(super) fn served(&self) -> u64 {
        self.rounds
            .iter()
            .flat_map(|round| round.served.values())
            .sum()
    }

    /// Reasons of failures, one entry each time.
    fn failures(&self) -> impl Iterator<Item = (&String, &u64)> {
        let loads = self.rounds.iter().flat_map(Measurement::loads);
        loads.flat_map(|load| &load.failures)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failures().map(|(_, count)| count).sum()
    }

    fn problem(&self) -> Option<String> {
        let (completed, served, failed) = (self.completed(), self.served(), self.failed());
        if failed > 0 {
            let reasons: BTreeSet<_> = self.failures().map(|(reason, _)| reason).collect();
            return Some(format!(
                "{}: {failed} handshakes failed {reasons:?}",
                self.cell
            ));
        }
        miscounted(&self.cell, self.cell.mode, completed, served)
    }
}

impl ShortRounds {
    pub(super) fn completed(&self) -> u64 {
        self.rounds.iter().map(|load| load.completed).sum()
    }

    pub(super) fn served(&self) -> u64 {
        let counts = self.rounds.iter().flat_map(|load| load.served.values());
        counts.sum()
    }

    /// ApacheBench opens about as many connections more as it has at a time, and drops them at the end:
    /// some of these reached the private-key operation.
    fn problem(&self, concurrency: usize) -> Option<String> {
        let (completed, served) = (self.completed(), self.served());
        let spare = (2 * concurrency * self.rounds.len()) as u64;
        let expected = if self.cell.mode.is_pooled() && served > completed {
            served.min(completed + spare)
        } else {
            completed
        };
        miscounted(&self.cell, self.cell.mode, expected, served)
    }
}

/// What to say if the node counts something else than the clients.
fn miscounted(
    cell: &impl std::fmt::Display,
    mode: Mode,
    completed: u64,
    served: u64,
) -> Option<String> {
    let expected = if mode.is_pooled() { completed } else { 0 };
    (served != expected)
        .then(|| format!("{cell}: the node counts {served} operations for {completed} handshakes"))
}
