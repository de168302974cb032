// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was measured: raw rounds, their summary, the tables, and whether everything verified.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Mode;
use super::plan::{Cell, Plan};
use super::testbed::Measurement;
use crate::error::BenchError;
use crate::keys::KeyKind;
use crate::machine::Machine;
use crate::report::Table;
use crate::stats::{Latencies, Spread};

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// A report.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: u32,
    benchmark: &'static str,
    machine: Machine,
    plan: Plan,
    /// By key: microseconds that one signature takes OpenSSL on the gateway's core, per round.
    openssl_sign_us: BTreeMap<KeyKind, Vec<f64>>,
    cells: Vec<Rounds>,
    savings: Vec<Saving>,
}

/// All rounds of one cell.
#[derive(Debug, Serialize)]
struct Rounds {
    #[serde(flatten)]
    cell: Cell,
    rounds: Vec<Measurement>,
}

/// Local against pooled, for one server, key and version.
#[derive(Debug, Serialize)]
struct Saving {
    #[serde(flatten)]
    pooled: Cell,
    /// Handshakes per second that were offered to both.
    per_s: f64,
    /// CPU time per handshake of the local gateway, in microseconds.
    local_us: Spread,
    /// CPU time per handshake that left the gateway, in microseconds.
    saved_us: Spread,
    /// The signature's share of the local gateway's CPU time: the most that could be saved.
    offload_ceiling: Spread,
    /// How much of the offload ceiling was saved, at equal load.
    saved_of_ceiling: Spread,
    /// The same with as many handshakes as go: where the gateways are busiest, but not equally so.
    full_load_saved_of_ceiling: Spread,
}

impl Results {
    pub(super) fn new(machine: Machine, plan: &Plan) -> Self {
        Self {
            schema: SCHEMA,
            benchmark: "tls",
            machine,
            plan: plan.clone(),
            openssl_sign_us: BTreeMap::new(),
            cells: Vec::new(),
            savings: Vec::new(),
        }
    }

    pub(super) fn add_operation(&mut self, key: KeyKind, rate: f64) {
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

    /// Compares local with pooled, round by round. To be called once, after the last round.
    pub(super) fn finish(&mut self) {
        self.cells.sort_by_key(|rounds| rounds.cell);
        self.savings = self
            .cells
            .iter()
            .filter_map(|rounds| self.saving(rounds))
            .collect();
    }

    fn saving(&self, pooled: &Rounds) -> Option<Saving> {
        let twin = Cell {
            mode: Mode::Local,
            ..pooled.cell
        };
        let local = self.cells.iter().find(|rounds| rounds.cell == twin)?;
        if !pooled.cell.mode.is_pooled() {
            return None;
        }
        let sign = self.openssl_sign_us.get(&pooled.cell.key)?;
        let cpu = |round: &Measurement| round.paced.gateway_cpu_us;
        let full = |round: &Measurement| round.closed.gateway_cpu_us;
        let full_pairs = || {
            local
                .rounds
                .iter()
                .map(full)
                .zip(pooled.rounds.iter().map(full))
                .zip(sign)
        };
        let pairs = || {
            local
                .rounds
                .iter()
                .map(cpu)
                .zip(pooled.rounds.iter().map(cpu))
                .zip(sign)
        };
        Some(Saving {
            pooled: pooled.cell,
            per_s: pooled.rounds.first()?.paced.offered_per_s?,
            local_us: Spread::of(local.rounds.iter().map(cpu))?,
            saved_us: Spread::of(pairs().map(|((local, pooled), _)| local - pooled))?,
            offload_ceiling: Spread::of(pairs().map(|((local, _), sign)| sign / local))?,
            saved_of_ceiling: Spread::of(
                pairs().map(|((local, pooled), sign)| (local - pooled) / sign),
            )?,
            full_load_saved_of_ceiling: Spread::of(
                full_pairs().map(|((local, pooled), sign)| (local - pooled) / sign),
            )?,
        })
    }

    /// The tables, and what they mean.
    pub(super) fn render(&self, demo: bool) -> String {
        let mut text = format!("{}\n\n{}\n", self.machine.describe(), self.setting());
        for &server in &self.plan.servers {
            let head = format!("\n{server}\n");
            text.push_str(&head);
            text.push_str(&self.handshakes(server).render());
        }
        if !self.savings.is_empty() {
            text.push_str(
                "\nGateway CPU saved per handshake at equal load, median (range over the rounds)\n",
            );
            text.push_str(&self.saved().render());
        }
        if demo {
            text.push_str(EXPLANATION);
        }
        text
    }

    fn setting(&self) -> String {
        let plan = &self.plan;
        let sharing = if plan.gateway_core == plan.load_core {
            format!(
                "everything shares core {}: figures are not comparable",
                plan.load_core
            )
        } else {
            format!(
                "gateway alone on core {}; node and load generator together on core {}",
                plan.gateway_core, plan.load_core
            )
        };
        format!(
            "Full handshakes, {} at a time, every signature checked; {} interleaved rounds of {:.1} s as many \
             as go\nand {:.1} s at equal load; {sharing}",
            plan.concurrency,
            plan.rounds,
            plan.duration.as_secs_f64(),
            plan.duration.as_secs_f64(),
        )
    }

    fn handshakes(&self, server: super::Server) -> Table {
        let mut table = Table::new(&[
            "key",
            "TLS",
            "mode",
            "handshakes/s",
            "p50 ms",
            "p99 ms",
            "gateway CPU ms",
            "other core CPU ms",
            "handshakes",
            "pool served",
            "share",
            "failed",
        ]);
        for rounds in self
            .cells
            .iter()
            .filter(|rounds| rounds.cell.server == server)
        {
            table.row(rounds.row());
        }
        table
    }

    fn saved(&self) -> Table {
        let mut table = Table::new(&[
            "server",
            "key",
            "TLS",
            "mode",
            "at/s",
            "local ms",
            "saved ms",
            "ceiling % of local",
            "saved % of ceiling",
            "same, full load",
        ]);
        for Saving {
            pooled,
            per_s,
            local_us,
            saved_us,
            offload_ceiling,
            saved_of_ceiling,
            full_load_saved_of_ceiling,
        } in &self.savings
        {
            table.row([
                pooled.server.to_string(),
                pooled.key.to_string(),
                pooled.tls.to_string(),
                pooled.mode.to_string(),
                format!("{per_s:.0}"),
                local_us.map(|us| us / 1e3).show(3),
                saved_us.map(|us| us / 1e3).show(3),
                offload_ceiling.map(|share| share * 100.0).show(0),
                saved_of_ceiling.map(|share| share * 100.0).show(0),
                full_load_saved_of_ceiling
                    .map(|share| share * 100.0)
                    .show(0),
            ]);
        }
        table
    }

    /// Whether all that was counted is right.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] with every cell that had failures or whose counters do not add up.
    pub(super) fn verdict(&self) -> Result<(), BenchError> {
        let problems: Vec<String> = self.cells.iter().filter_map(Rounds::problem).collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(BenchError::Wrong(problems.join("; ")))
        }
    }
}

impl Rounds {
    fn completed(&self) -> u64 {
        self.rounds
            .iter()
            .map(|round| round.closed.completed + round.paced.completed)
            .sum()
    }

    fn served(&self) -> u64 {
        self.rounds
            .iter()
            .flat_map(|round| round.served.values())
            .sum()
    }

    /// Reasons of failures, one entry each time.
    fn failures(&self) -> impl Iterator<Item = (&String, &u64)> {
        let rounds = self.rounds.iter();
        rounds.flat_map(|round| round.closed.failures.iter().chain(&round.paced.failures))
    }

    fn failed(&self) -> u64 {
        self.failures().map(|(_, count)| count).sum()
    }

    fn median(&self, value: impl Fn(&Measurement) -> f64) -> f64 {
        Spread::of(self.rounds.iter().map(value)).map_or(0.0, |spread| spread.median)
    }

    fn row(&self) -> Vec<String> {
        let mut latencies = Latencies::default();
        for round in &self.rounds {
            latencies.extend(&round.closed.latencies);
        }
        let (completed, served) = (self.completed(), self.served());
        let other = |round: &Measurement| round.closed.node_cpu_us + round.closed.generator_cpu_us;
        vec![
            self.cell.key.to_string(),
            self.cell.tls.to_string(),
            self.cell.mode.to_string(),
            format!("{:.0}", self.median(|round| round.closed.handshakes_per_s)),
            format!("{:.2}", latencies.quantile_us(0.5) / 1e3),
            format!("{:.2}", latencies.quantile_us(0.99) / 1e3),
            format!(
                "{:.3}",
                self.median(|round| round.closed.gateway_cpu_us) / 1e3
            ),
            format!("{:.3}", self.median(other) / 1e3),
            completed.to_string(),
            served.to_string(),
            format!("{:.0} %", 100.0 * served as f64 / completed.max(1) as f64),
            self.failed().to_string(),
        ]
    }

    fn problem(&self) -> Option<String> {
        let (completed, served, failed) = (self.completed(), self.served(), self.failed());
        let expected = if self.cell.mode.is_pooled() {
            completed
        } else {
            0
        };
        if failed > 0 {
            let reasons: BTreeSet<_> = self.failures().map(|(reason, _)| reason).collect();
            return Some(format!(
                "{}: {failed} handshakes failed {reasons:?}",
                self.cell
            ));
        }
        (served != expected).then(|| {
            format!(
                "{}: the node counts {served} operations for {completed} handshakes",
                self.cell
            )
        })
    }
}

const EXPLANATION: &str = "
local:   the key is a PEM file on the gateway; OpenSSL signs there.
pooled:  the gateway has a file that only names the key. The key and the work
         are in the node, whose own counters are the column \"pool served\".
share:   operations served by the pool per handshake.
gateway CPU ms: CPU time of the whole gateway process tree per handshake, as
         many as go. What was saved is compared at equal load, half of that.
offload ceiling: the signature's share of the local gateway's CPU time, the
         most that any accelerator could save; the signature's cost is taken
         from `openssl speed` on the gateway's core in the same run.
pooled in nginx: it has no asynchronous mode, so its one worker waits while the
         pool signs. pooled-preload: a library makes it asynchronous.
Where node and load generator share a core they bound pooled handshakes/s; with
a pool on other machines the gateway CPU time is what decides.
";
