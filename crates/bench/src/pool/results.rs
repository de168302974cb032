// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was measured: raw rounds, the tables, and the comparison with the numbers to reach.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Plan;
use super::remote::RemoteRound;
use super::workload::Workload;
use crate::goals::{self, Goal};
use crate::machine::Machine;
use crate::report::Table;
use crate::stats::Spread;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// One round of one operation.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Round {
    /// The library through its own interface, on the node's core.
    pub(super) library_per_s: f64,
    /// CPU time per operation: unlike the rate it does not suffer from what else runs.
    pub(super) library_cpu_us: f64,
    /// The software backend's queue, on the node's core.
    pub(super) queue_per_s: f64,
    pub(super) queue_cpu_us: f64,
    /// `openssl speed` on the node's core.
    pub(super) openssl_per_s: Option<f64>,
    /// Through the node, pipelined.
    pub(super) node_per_s: f64,
    pub(super) node_p50_us: f64,
    pub(super) node_p99_us: f64,
    /// CPU time of the node per job.
    pub(super) node_cpu_us: f64,
    /// CPU time of client and load generator per job.
    pub(super) client_cpu_us: f64,
    pub(super) jobs: u64,
    /// By backend, as the completions say.
    pub(super) served_by: BTreeMap<String, u64>,
    /// The library, on the load generator's core: what a blocking caller would have had.
    pub(super) direct_p50_us: f64,
    /// Through the node, one at a time from a blocking caller.
    pub(super) blocking_p50_us: f64,
    pub(super) blocking_p99_us: f64,
}

/// Throughput and latency at one concurrency.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Depth {
    in_flight: usize,
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Depth {
    pub(super) fn new(in_flight: usize, mut round: RemoteRound) -> Self {
        Self {
            in_flight,
            per_s: round.per_s,
            p50_us: round.latencies.quantile_us(0.5),
            p99_us: round.latencies.quantile_us(0.99),
        }
    }
}

#[derive(Debug, Serialize)]
struct Measured {
    operation: Workload,
    key: &'static str,
    rounds: Vec<Round>,
    by_depth: Vec<Depth>,
}

/// A report.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    schema: u32,
    benchmark: &'static str,
    machine: Machine,
    plan: Plan,
    operations: Vec<Measured>,
    goals: Vec<Goal>,
}

impl Measured {
    fn spread(&self, value: impl Fn(&Round) -> f64) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(value))
    }

    fn show(&self, decimals: usize, value: impl Fn(&Round) -> f64) -> String {
        let median = self.spread(value).map_or(0.0, |spread| spread.median);
        format!("{median:.decimals$}")
    }

    fn range(&self, decimals: usize, value: impl Fn(&Round) -> f64) -> String {
        self.spread(value)
            .map_or_else(String::new, |spread| spread.show(decimals))
    }
}

impl Results {
    pub(super) fn new(machine: Machine, plan: &Plan) -> Self {
        Self {
            schema: SCHEMA,
            benchmark: "pool",
            machine,
            plan: plan.clone(),
            operations: Vec::new(),
            goals: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, operation: Workload, rounds: Vec<Round>, by_depth: Vec<Depth>) {
        let key = operation.key_name();
        self.operations.push(Measured {
            operation,
            key,
            rounds,
            by_depth,
        });
        self.goals = self.goals();
    }

    fn goals(&self) -> Vec<Goal> {
        let find = |wanted| self.operations.iter().find(|one| one.operation == wanted);
        let mut goals = Vec::new();
        let rsa = find(Workload::RsaPkcs1Sign);
        let ecdsa = find(Workload::EcdsaSign);
        let ratio = |round: &Round| round.node_per_s / round.library_per_s;
        if let Some(spread) = rsa.and_then(|rsa| rsa.spread(ratio)) {
            let what = "RSA-2048 sign through a node / library called directly";
            goals.push(Goal::at_least(what, 0.95, 0.98, spread));
        }
        if let Some(spread) = ecdsa.and_then(|ecdsa| ecdsa.spread(ratio)) {
            let what = "P-256 sign through a node, pipelined / library called directly";
            goals.push(Goal::at_least(what, 0.90, 0.95, spread));
        }
        let added = |round: &Round| round.blocking_p50_us - round.direct_p50_us;
        if let Some(spread) = ecdsa.and_then(|ecdsa| ecdsa.spread(added)) {
            let what = "latency added at concurrency 1, p50, P-256, microseconds";
            goals.push(Goal::at_most(what, 30.0, 15.0, spread));
        }
        let client = |round: &Round| round.client_cpu_us / round.library_cpu_us;
        if let Some(spread) = rsa.and_then(|rsa| rsa.spread(client)) {
            let what = "client CPU time per remote RSA-2048 sign / the same done locally";
            goals.push(Goal::at_most(what, 1.0 / 40.0, 1.0 / 100.0, spread));
        }
        goals
    }

    /// The tables.
    pub(super) fn render(&self) -> String {
        let plan = &self.plan;
        let sharing = if plan.node_core == plan.load_core {
            " (the same: figures are not comparable)"
        } else {
            ""
        };
        let transport = match (plan.tcp, &plan.pool) {
            (true, _) => "TCP with mutual TLS 1.3 on loopback",
            (false, None) => "its unix socket",
            (false, Some(_)) => "the endpoint that was named",
        };
        let mut text = format!(
            "{}\n\nNode and direct calls on core {}, client on core {}{sharing}, over {transport};\n\
             {} rounds of {:.1} s, interleaved;\n{} jobs in flight when pipelined; outputs checked in every round\n\n",
            self.machine.describe(),
            plan.node_core,
            plan.load_core,
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
        if !self.goals.is_empty() {
            text.push_str("\nNumbers to reach, median (range over the rounds)\n");
            text.push_str(&goals::table(&self.goals).render());
        }
        text
    }

    fn throughput(&self) -> Table {
        let mut table = Table::new(&[
            "operation",
            "key",
            "OpenSSL/s",
            "library/s",
            "backend/s",
            "node/s",
            "node / library",
            "node / backend",
            "p50 µs",
            "p99 µs",
            "library CPU µs",
            "node CPU µs",
            "client CPU µs",
        ]);
        for one in &self.operations {
            let openssl = Spread::of(one.rounds.iter().filter_map(|round| round.openssl_per_s));
            table.row([
                one.operation.to_string(),
                one.key.to_owned(),
                openssl.map_or_else(|| "-".to_owned(), |spread| format!("{:.0}", spread.median)),
                one.show(0, |round| round.library_per_s),
                one.show(0, |round| round.queue_per_s),
                one.show(0, |round| round.node_per_s),
                one.range(3, |round| round.node_per_s / round.library_per_s),
                one.range(3, |round| round.node_per_s / round.queue_per_s),
                one.show(0, |round| round.node_p50_us),
                one.show(0, |round| round.node_p99_us),
                one.show(1, |round| round.library_cpu_us),
                one.show(1, |round| round.node_cpu_us),
                one.show(2, |round| round.client_cpu_us),
            ]);
        }
        table
    }

    fn latency(&self) -> Table {
        let mut table = Table::new(&[
            "operation",
            "key",
            "direct p50 µs",
            "node p50 µs",
            "node p99 µs",
            "added p50 µs",
        ]);
        for one in &self.operations {
            table.row([
                one.operation.to_string(),
                one.key.to_owned(),
                one.show(1, |round| round.direct_p50_us),
                one.show(1, |round| round.blocking_p50_us),
                one.show(1, |round| round.blocking_p99_us),
                one.range(1, |round| round.blocking_p50_us - round.direct_p50_us),
            ]);
        }
        table
    }

    fn by_depth(&self) -> Table {
        let heads: Vec<String> = self.plan.depths.iter().map(usize::to_string).collect();
        let mut head = vec!["operation", "key"];
        head.extend(heads.iter().map(String::as_str));
        let mut table = Table::new(&head);
        for one in &self.operations {
            let cells = one
                .by_depth
                .iter()
                .map(|depth| format!("{:.0} {:.0} {:.0}", depth.per_s, depth.p50_us, depth.p99_us));
            let named = [one.operation.to_string(), one.key.to_owned()];
            table.row(named.into_iter().chain(cells));
        }
        table
    }
}
