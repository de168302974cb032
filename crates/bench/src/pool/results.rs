// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What `bench pool` measured: raw rounds, the tables, and the comparison with the numbers to reach.

use std::collections::BTreeMap;

use millrace_engine::OperationKind;
use serde::Serialize;

use super::PoolPlan;
use super::remote::RemoteRound;
use crate::goals::{Goal, Goals};
use crate::machine::Machine;
use crate::report::{Table, median, table};
use crate::stats::Spread;
use crate::workload::Case;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 2;

/// One round of one case.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct PoolRound {
    /// The library through its own interface, on the node's core; none where it has no interface.
    pub(super) library_per_s: Option<f64>,
    /// The same library through the software backend's queue, on the node's core.
    pub(super) queue_per_s: f64,
    /// CPU time per operation: unlike the rate it does not suffer from what else runs.
    pub(super) queue_cpu_us: f64,
    /// `openssl speed` on the node's core.
    pub(super) openssl_per_s: Option<f64>,
    /// The software backend's queue on the client's core: what a blocking caller would have had.
    pub(super) direct_p50_us: f64,
    /// One entry per worker count.
    pub(super) nodes: Vec<NodeRound>,
}

/// One node in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeRound {
    /// Worker threads per class; none for a node that was not started here.
    pub(super) workers: Option<usize>,
    /// Pipelined.
    pub(super) per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// CPU time of the node per job.
    pub(super) cpu_us: f64,
    /// CPU time of client and load generator per job.
    pub(super) client_cpu_us: f64,
    pub(super) jobs: u64,
    /// By backend, as the completions say.
    pub(super) served_by: BTreeMap<String, u64>,
    /// One at a time, from a blocking caller.
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
        let (per_s, latencies) = (round.per_s, &round.latencies);
        let (p50_us, p99_us) = (latencies.quantile_us(0.5), latencies.quantile_us(0.99));
        Self {
            workers,
            in_flight,
            per_s,
            p50_us,
            p99_us,
        }
    }
}

#[derive(Debug, Serialize)]
struct MeasuredCase {
    #[serde(flatten)]
    case: Case,
    rounds: Vec<PoolRound>,
    by_depth: Vec<Depth>,
}

/// The report of `bench pool`.
#[derive(Debug, Serialize)]
pub(super) struct PoolReport {
    schema: u32,
    benchmark: &'static str,
    machine: Machine,
    plan: PoolPlan,
    operations: Vec<MeasuredCase>,
    pub(super) goals: Goals,
}

impl MeasuredCase {
    fn spread(&self, value: impl Fn(&PoolRound) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds.iter().filter_map(value))
    }

    fn show(&self, decimals: usize, value: impl Fn(&PoolRound) -> Option<f64>) -> String {
        median(self.spread(value), decimals)
    }

    /// Over the rounds of the node in column `node`.
    fn of_node(
        &self,
        node: usize,
        value: impl Fn(&PoolRound, &NodeRound) -> f64,
    ) -> Option<Spread> {
        self.spread(|round| Some(value(round, round.nodes.get(node)?)))
    }

    fn range(
        &self,
        decimals: usize,
        node: usize,
        value: impl Fn(&PoolRound, &NodeRound) -> f64,
    ) -> String {
        self.of_node(node, value)
            .map_or_else(String::new, |spread| spread.show(decimals))
    }

    /// The columns of nodes with their worker counts.
    fn nodes(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        let first = self.rounds.first().map_or(&[][..], |round| &round.nodes);
        first.iter().map(|node| node.workers).enumerate()
    }
}

/// One line of a table: a case, the column of its node, and that node's workers.
type Row<'a> = (&'a MeasuredCase, usize, Option<usize>);

fn count(workers: Option<usize>) -> String {
    workers.map_or_else(|| "?".to_owned(), |workers| workers.to_string())
}

impl PoolReport {
    pub(super) fn new(plan: &PoolPlan) -> Self {
        Self {
            schema: SCHEMA,
            benchmark: "pool",
            machine: Machine::here(),
            plan: plan.clone(),
            operations: Vec::new(),
            goals: Goals::default(),
        }
    }

    pub(super) fn add(&mut self, case: Case, rounds: Vec<PoolRound>, by_depth: Vec<Depth>) {
        let measured = MeasuredCase {
            case,
            rounds,
            by_depth,
        };
        for (node, workers) in measured.nodes() {
            self.goals.extend(goals(&measured, node, workers));
        }
        self.operations.push(measured);
    }

    /// The tables.
    pub(super) fn render(&self) -> String {
        let plan = &self.plan;
        let transport = match (plan.tcp, &plan.pool) {
            (true, _) => "TCP with mutual TLS 1.3 on loopback",
            (false, None) => "its unix socket",
            (false, Some(_)) => "the endpoint that was named",
        };
        let mut text = format!(
            "{}\n\nNodes and direct calls on core {}, client on core {}{}, over {transport};\n\
             {} rounds of {:.1} s, interleaved in changing order, each after a warm-up;\n\
             {} jobs in flight when pipelined; rates by the clock; outputs checked in every round\n\n",
            self.machine.describe(),
            plan.node_core,
            plan.load_core,
            crate::report::sharing(plan.node_core, plan.load_core),
            plan.rounds,
            plan.duration.as_secs_f64(),
            plan.window,
        );
        text.push_str(&self.throughput().render());
        text.push_str("\nOne at a time, from a blocking caller\n");
        text.push_str(&self.latency().render());
        if !plan.depths.is_empty() {
            text.push_str("\nBy jobs in flight: operations/s, p50 µs, p99 µs\n");
            text.push_str(&self.by_depth().render());
        }
        text + &self.goals.render()
    }

    #[rustfmt::skip]
    fn throughput(&self) -> Table {
        let of = |row: &Row<'_>, decimals, value: fn(&NodeRound) -> f64| {
            median(row.0.of_node(row.1, |_, node| value(node)), decimals)
        };
        let library = |&(one, node, _): &Row<'_>| {
            one.spread(|round| Some(round.nodes.get(node)?.per_s / round.library_per_s?))
        };
        table(self.rows(), &[
            ("operation", &|(one, ..)| one.case.operation.to_string()),
            ("key", &|(one, ..)| one.case.key.to_string()),
            ("workers", &|(.., workers)| count(*workers)),
            ("OpenSSL/s", &|(one, ..)| one.show(0, |round| round.openssl_per_s)),
            ("library/s", &|(one, ..)| one.show(0, |round| round.library_per_s)),
            ("backend/s", &|(one, ..)| one.show(0, |round| Some(round.queue_per_s))),
            ("node/s", &|row| of(row, 0, |node| node.per_s)),
            ("node / library", &|row| library(row).map_or_else(|| "-".to_owned(), |spread| spread.show(3))),
            ("node / backend", &|(one, node, _)| one.range(3, *node, |round, node| node.per_s / round.queue_per_s)),
            ("p50 µs", &|row| of(row, 0, |node| node.p50_us)),
            ("p99 µs", &|row| of(row, 0, |node| node.p99_us)),
            ("backend CPU µs", &|(one, ..)| one.show(1, |round| Some(round.queue_cpu_us))),
            ("node CPU µs", &|row| of(row, 1, |node| node.cpu_us)),
            ("client CPU µs", &|row| of(row, 2, |node| node.client_cpu_us)),
        ])
    }

    #[rustfmt::skip]
    fn latency(&self) -> Table {
        let of = |row: &Row<'_>, value: fn(&NodeRound) -> f64| {
            median(row.0.of_node(row.1, |_, node| value(node)), 1)
        };
        table(self.rows(), &[
            ("operation", &|(one, ..)| one.case.operation.to_string()),
            ("key", &|(one, ..)| one.case.key.to_string()),
            ("workers", &|(.., workers)| count(*workers)),
            ("direct p50 µs", &|(one, ..)| one.show(1, |round| Some(round.direct_p50_us))),
            ("node p50 µs", &|row| of(row, |node| node.blocking_p50_us)),
            ("node p99 µs", &|row| of(row, |node| node.blocking_p99_us)),
            ("added p50 µs", &|(one, node, _)| one.range(1, *node, |round, node| node.blocking_p50_us - round.direct_p50_us)),
        ])
    }

    fn by_depth(&self) -> Table {
        let heads: Vec<String> = self.plan.depths.iter().map(usize::to_string).collect();
        let mut head = vec!["operation", "key", "workers"];
        head.extend(heads.iter().map(String::as_str));
        let mut table = Table::new(&head);
        for (one, _, workers) in self.rows() {
            let depths = one.by_depth.iter().filter(|depth| depth.workers == workers);
            let cells = depths
                .map(|depth| format!("{:.0} {:.0} {:.0}", depth.per_s, depth.p50_us, depth.p99_us));
            let names = [
                one.case.operation.to_string(),
                one.case.key.to_string(),
                count(workers),
            ];
            table.row(names.into_iter().chain(cells));
        }
        table
    }

    /// Each case with each node.
    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let cases = self.operations.iter();
        cases.flat_map(|one| one.nodes().map(move |(node, workers)| (one, node, workers)))
    }
}

/// What is promised of a node with one worker per class, and shown of the others.
fn goals(one: &MeasuredCase, node: usize, workers: Option<usize>) -> Vec<Goal> {
    let promised = workers.is_none_or(|workers| workers == 1);
    let with = match workers {
        Some(1) | None => String::new(),
        Some(workers) => format!(", workers: {workers}"),
    };
    let mut goals = Vec::new();
    let mut add = |what: &str, at_most, must, aim, measured: Option<Spread>| {
        goals.extend(measured.map(|measured| {
            Goal::new(format!("{what}{with}"), at_most, must, aim, measured)
                .only_if("node with one worker per class", promised)
        }));
    };
    let ratio = one.of_node(node, |round, node| node.per_s / round.queue_per_s);
    let added = one.of_node(node, |round, node| {
        node.blocking_p50_us - round.direct_p50_us
    });
    let client = one.of_node(node, |round, node| node.client_cpu_us / round.queue_cpu_us);
    match one.case.operation {
        OperationKind::RsaPkcs1Sign => {
            add(
                "RSA-2048 sign through a node / called directly",
                false,
                0.95,
                0.98,
                ratio,
            );
            let what = "client CPU time per remote RSA-2048 sign / the same done locally";
            add(what, true, 1.0 / 40.0, 1.0 / 100.0, client);
        }
        OperationKind::EcdsaSign => {
            add(
                "P-256 sign through a node, pipelined / called directly",
                false,
                0.90,
                0.95,
                ratio,
            );
            let what = "latency added at concurrency 1, p50, P-256, µs";
            add(what, true, 30.0, 15.0, added);
        }
        OperationKind::Ed25519Sign => {
            add(
                "Ed25519 sign through a node, pipelined / called directly",
                false,
                0.85,
                0.90,
                ratio,
            );
        }
        _ => {}
    }
    goals
}
