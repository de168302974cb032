// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report of `bench pool`: raw rounds, the tables, and the comparison with the goals.

use std::collections::BTreeMap;

use millrace_operation::OperationKind;
use serde::Serialize;

use super::PoolPlan;
use super::remote::RemoteRound;
use crate::goals::{Goal, Goals};
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::{ReportTable, median, range, sharing, table};
use crate::workload::Case;

/// Version of the JSON report: raised when a field changes its meaning.
pub(super) const SCHEMA: u32 = 2;

/// One round of one case.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PoolRound {
    /// Operations per second of the library through its own interface, on the node's core; `None` where it has no
    /// interface.
    pub(super) library_per_s: Option<f64>,
    /// Operations per second of the same library through the software backend's queue, on the node's core.
    pub(super) queue_per_s: f64,
    /// CPU time per operation: unlike the rate, other programs on the core do not change it.
    pub(super) queue_cpu_us: f64,
    /// `openssl speed` on the node's core, per second of CPU time; all other rates are by the clock.
    pub(super) openssl_per_s: Option<f64>,
    /// The software backend's queue on the client's core: what a blocking caller would have had.
    pub(super) direct_p50_us: f64,
    /// One entry per worker count.
    pub(super) nodes: Vec<NodeRound>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeRound {
    /// Worker threads per class; `None` for a node that was not started here.
    pub(super) workers: Option<usize>,
    /// Operations per second with the jobs of `--window` in flight.
    pub(super) per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// CPU time of the node per job.
    pub(super) cpu_us: f64,
    /// CPU time of client and load generator per job.
    pub(super) client_cpu_us: f64,
    pub(super) jobs: u64,
    /// Number of jobs that each backend served, as the completions say.
    pub(super) served_by: BTreeMap<&'static str, u64>,
    /// Latency of a blocking caller that does one job at a time, µs.
    pub(super) blocking_p50_us: f64,
    pub(super) blocking_p99_us: f64,
}

/// Throughput and latency at one concurrency.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Depth {
    workers: Option<usize>,
    in_flight: usize,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Depth {
    pub(super) fn new(workers: Option<usize>, in_flight: usize, round: &RemoteRound) -> Self {
        Self {
            workers,
            in_flight,
            per_s: round.per_s,
            p50_us: round.latencies.quantile_us(0.5),
            p99_us: round.latencies.quantile_us(0.99),
        }
    }
}

/// All rounds of one case.
#[derive(Debug, Serialize)]
pub(super) struct MeasuredCase {
    #[serde(flatten)]
    pub(super) case: Case,
    pub(super) rounds: Vec<PoolRound>,
    pub(super) by_depth: Vec<Depth>,
}

/// The figures of `bench pool`.
#[derive(Debug, Serialize)]
pub(super) struct Operations {
    pub(super) operations: Vec<MeasuredCase>,
}

/// The report of `bench pool`.
pub(super) type PoolReport = BenchReport<PoolPlan, Operations>;

impl MeasuredCase {
    fn spread(&self, value: impl Fn(&PoolRound) -> Option<f64>) -> Option<Spread> {
        Spread::over(&self.rounds, value)
    }

    /// Spread of a value over the rounds of the node in column `node`.
    fn of_node(
        &self,
        node: usize,
        value: impl Fn(&PoolRound, &NodeRound) -> f64,
    ) -> Option<Spread> {
        self.spread(|round| Some(value(round, round.nodes.get(node)?)))
    }

    /// The columns of nodes with their worker counts.
    fn nodes(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        let first = self.rounds.first().map_or(&[][..], |round| &round.nodes);
        first.iter().map(|node| node.workers).enumerate()
    }
}

/// One line of a table: a case, the column of its node, and that node's workers.
type NodeRow<'a> = (&'a MeasuredCase, usize, Option<usize>);

/// Each case with each node.
fn rows(operations: &[MeasuredCase]) -> impl Iterator<Item = NodeRow<'_>> {
    let operations = operations.iter();
    operations
        .flat_map(|measured| measured.nodes().map(move |(node, workers)| (measured, node, workers)))
}

fn count(workers: Option<usize>) -> String {
    workers.map_or_else(|| "?".to_owned(), |workers| workers.to_string())
}

pub(super) fn render(report: &PoolReport) -> String {
    let plan = &report.plan;
    let operations = &report.figures.operations;
    let transport = match (plan.tcp, &plan.pool) {
        (true, _) => "TCP with mutual TLS 1.3 on loopback",
        (false, None) => "its unix socket",
        (false, Some(_)) => "the endpoint of --pool",
    };
    let mut text = format!(
        "{}\n\nNodes and direct calls on core {}, client on core {}{}, over {transport};\n\
         {} rounds of {:.1} s, interleaved in changing order, each after a warm-up;\n\
         {} jobs in flight when pipelined; rates by the clock, except OpenSSL's per second of CPU time;\n\
         outputs checked in every round\n\n",
        report.machine.describe(),
        plan.node_core,
        plan.load_core,
        sharing(plan.node_core, plan.load_core),
        plan.rounds,
        plan.duration.as_secs_f64(),
        plan.window,
    );
    text.push_str(&throughput(operations));
    text.push_str("\nOne at a time, from a blocking caller\n");
    text.push_str(&latency(operations));
    if !plan.depths.is_empty() {
        text.push_str("\nBy jobs in flight: operations/s, p50 µs, p99 µs\n");
        text.push_str(&by_depth(operations, &plan.depths));
    }
    text + &report.goals.render()
}

#[rustfmt::skip]
fn throughput(operations: &[MeasuredCase]) -> String {
    let of = |&(measured, node, _): &NodeRow<'_>, decimals, value: fn(&NodeRound) -> f64| {
        median(measured.of_node(node, |_, node| value(node)), decimals)
    };
    let library = |&(measured, node, _): &NodeRow<'_>| {
        measured.spread(|round| Some(round.nodes.get(node)?.per_s / round.library_per_s?))
    };
    table(rows(operations), &[
        ("operation", &|(measured, ..)| measured.case.operation.to_string()),
        ("key", &|(measured, ..)| measured.case.key.to_string()),
        ("workers", &|(.., workers)| count(*workers)),
        ("OpenSSL/CPU s", &|(measured, ..)| median(measured.spread(|round| round.openssl_per_s), 0)),
        ("library/s", &|(measured, ..)| median(measured.spread(|round| round.library_per_s), 0)),
        ("backend/s", &|(measured, ..)| median(measured.spread(|round| Some(round.queue_per_s)), 0)),
        ("node/s", &|row| of(row, 0, |node| node.per_s)),
        ("node / library", &|row| range(library(row), 3)),
        ("node / backend", &|(measured, node, _)| range(measured.of_node(*node, of_queue), 3)),
        ("p50 µs", &|row| of(row, 0, |node| node.p50_us)),
        ("p99 µs", &|row| of(row, 0, |node| node.p99_us)),
        ("backend CPU µs", &|(measured, ..)| median(measured.spread(|round| Some(round.queue_cpu_us)), 1)),
        ("node CPU µs", &|row| of(row, 1, |node| node.cpu_us)),
        ("client CPU µs", &|row| of(row, 2, |node| node.client_cpu_us)),
    ])
    .render()
}

#[rustfmt::skip]
fn latency(operations: &[MeasuredCase]) -> String {
    let of = |&(measured, node, _): &NodeRow<'_>, value: fn(&NodeRound) -> f64| {
        median(measured.of_node(node, |_, node| value(node)), 1)
    };
    table(rows(operations), &[
        ("operation", &|(measured, ..)| measured.case.operation.to_string()),
        ("key", &|(measured, ..)| measured.case.key.to_string()),
        ("workers", &|(.., workers)| count(*workers)),
        ("direct p50 µs", &|(measured, ..)| median(measured.spread(|round| Some(round.direct_p50_us)), 1)),
        ("node p50 µs", &|row| of(row, |node| node.blocking_p50_us)),
        ("node p99 µs", &|row| of(row, |node| node.blocking_p99_us)),
        ("added p50 µs", &|(measured, node, _)| range(measured.of_node(*node, added_us), 1)),
    ])
    .render()
}

/// The rate of the node by that of its backend's queue.
fn of_queue(round: &PoolRound, node: &NodeRound) -> f64 {
    node.per_s / round.queue_per_s
}

/// The latency that the node adds to an operation.
fn added_us(round: &PoolRound, node: &NodeRound) -> f64 {
    node.blocking_p50_us - round.direct_p50_us
}

fn by_depth(operations: &[MeasuredCase], depths: &[usize]) -> String {
    let heads = ["operation", "key", "workers"].map(str::to_owned).into_iter();
    let mut table = ReportTable::new(heads.chain(depths.iter().map(usize::to_string)));
    for (measured, _, workers) in rows(operations) {
        let depths = measured.by_depth.iter().filter(|depth| depth.workers == workers);
        let cells = depths
            .map(|depth| format!("{:.0} {:.0} {:.0}", depth.per_s, depth.p50_us, depth.p99_us));
        let Case { operation, key, .. } = measured.case;
        let names = [operation.to_string(), key.to_string(), count(workers)];
        table.row(names.into_iter().chain(cells));
    }
    table.render()
}

/// The goals: promised for a node with one worker per class, shown for the others.
pub(super) fn goals(operations: &[MeasuredCase]) -> Goals {
    let mut goals = Vec::new();
    for (measured, node, workers) in rows(operations) {
        let with = match workers {
            Some(1) | None => String::new(),
            Some(workers) => format!(", workers: {workers}"),
        };
        let through = measured.of_node(node, of_queue);
        let client = measured.of_node(node, |round, node| node.client_cpu_us / round.queue_cpu_us);
        let added = measured.of_node(node, added_us);
        let named = |what: &str| format!("{what}{with}");
        let promised = match measured.case.operation {
            OperationKind::RsaPkcs1Sign => {
                let rate = named("RSA-2048 sign through a node / called directly");
                let cpu = "client CPU time per remote RSA-2048 sign / the same done locally";
                [
                    Goal::at_least(rate, 0.95, 0.98, through),
                    Goal::at_most(named(cpu), 1.0 / 40.0, 1.0 / 100.0, client),
                ]
            }
            OperationKind::EcdsaSign => {
                let rate = named("P-256 sign through a node, pipelined / called directly");
                let latency = named("latency added at concurrency 1, p50, P-256, µs");
                [
                    Goal::at_least(rate, 0.90, 0.95, through),
                    Goal::at_most(latency, 30.0, 15.0, added),
                ]
            }
            OperationKind::Ed25519Sign => {
                let rate = named("Ed25519 sign through a node, pipelined / called directly");
                [Goal::at_least(rate, 0.85, 0.90, through), None]
            }
            _ => [None, None],
        };
        let is_promised = workers.is_none_or(|workers| workers == 1);
        let condition = "node with one worker per class";
        let promised = promised.into_iter().flatten();
        goals.extend(promised.map(|goal| goal.only_if(condition, is_promised)));
    }
    Goals(goals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_key::BenchKey;

    /// A busy machine: the library gets a quarter of the CPU time, so its rate by the clock is a quarter of
    /// OpenSSL's by CPU time.
    #[test]
    fn rates_by_cpu_time_are_labelled_and_no_ratio_mixes_them_with_the_clock() {
        let node = NodeRound {
            workers: Some(1),
            per_s: 1_000.0,
            p50_us: 1.0,
            p99_us: 1.0,
            cpu_us: 250.0,
            client_cpu_us: 2.0,
            jobs: 1,
            served_by: BTreeMap::new(),
            blocking_p50_us: 1.0,
            blocking_p99_us: 1.0,
        };
        let round = PoolRound {
            library_per_s: Some(1_000.0),
            queue_per_s: 1_000.0,
            queue_cpu_us: 250.0,
            openssl_per_s: Some(4_000.0),
            direct_p50_us: 1.0,
            nodes: vec![node],
        };
        let case = Case::find(OperationKind::RsaPkcs1Sign, BenchKey::Rsa2048).expect("a case");
        let operations = [MeasuredCase { case, rounds: vec![round], by_depth: Vec::new() }];
        let text = throughput(&operations);
        let cells = |line: &str| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (heads, row) = (
            cells(text.lines().next().expect("heads")),
            cells(text.lines().nth(1).expect("a row")),
        );
        for (head, cell) in heads.iter().zip(&row) {
            match head.as_str() {
                "OpenSSL/CPU s" => assert_eq!(cell, "4000"),
                head if head.contains(" / ") => {
                    assert_eq!(cell, "1.000 (1.000 to 1.000)", "{head}")
                }
                head => assert!(!head.contains("OpenSSL"), "{head}"),
            }
        }
        assert!(heads.iter().any(|head| head == "OpenSSL/CPU s"), "{heads:?}");
    }
}
