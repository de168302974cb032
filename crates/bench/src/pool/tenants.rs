// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool --tenants`: a tenant that offers ten times its quota, beside another tenant's single jobs.
//!
//! Each round measures the victim alone and beside the flood, in changing order. The flood's completions after its
//! burst give the error of the quota.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::fairness::{flooders, give_way};
use super::open::{OpenRound, offer};
use super::remote::{Parcel, RemotePool, Sender};
use super::{FirstCase, PoolPlan, measure_first_case};
use crate::error::BenchError;
use crate::goals::Goal;
use crate::node::{NodeOptions, NodeProcess};
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::{Spread, order};
use crate::table::{median, range, table};
use crate::workload::Requests;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 2;

/// The quota, as a part of the node's peak.
const QUOTA: f64 = 0.2;

/// Rate that the flood offers, as a multiple of its quota.
const OFFERED: f64 = 10.0;

/// Time after which the burst of a quota (one second of it) is used up at ten times its rate.
const BURST: Duration = Duration::from_secs(2);

/// Pause between two jobs of the victim, as in `--fairness`.
const THINK_TIME: Duration = Duration::from_millis(2);

/// Time after which the flood's jobs are useless.
const BUDGET: Duration = Duration::from_millis(500);

/// The figures of `bench pool --tenants`.
#[derive(Debug, Serialize)]
pub(super) struct Tenants {
    measured: Vec<TenantsOfNode>,
}

type TenantsReport = BenchReport<PoolPlan, Tenants>;

#[derive(Debug, Serialize)]
struct TenantsOfNode {
    workers: usize,
    quota: u64,
    rounds: Vec<TenantsRound>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct TenantsRound {
    alone: TenantVictim,
    beside: TenantVictim,
    flood: OpenRound,
}

/// The victim's jobs in one half of a round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct TenantVictim {
    p50_us: f64,
    p99_us: f64,
    /// Of the time in the node's queue, and of the time with a backend.
    queued_p99_us: f64,
    served_p99_us: f64,
    /// Processor time of the node in that half.
    node_cores: f64,
}

impl TenantVictim {
    fn measure(
        plan: &PoolPlan,
        node: &NodeProcess,
        victim: &RemotePool<'_>,
    ) -> Result<Self, BenchError> {
        let start = Instant::now();
        let cpu = node.cpu_time();
        let round = victim.blocking(plan.duration, THINK_TIME)?;
        let cpu = node.cpu_time().saturating_sub(cpu);
        Ok(Self {
            p50_us: round.latencies.quantile_us(0.5),
            p99_us: round.latencies.quantile_us(0.99),
            queued_p99_us: round.queued.quantile_us(0.99),
            served_p99_us: round.served.quantile_us(0.99),
            node_cores: cpu.as_secs_f64() / start.elapsed().as_secs_f64(),
        })
    }
}

/// Measures the first case with each worker count.
pub(super) fn measure(plan: PoolPlan) -> Result<TenantsReport, BenchError> {
    let (measured, goals) = measure_first_case(&plan, 1, TenantsOfNode::measure)?;
    let mut report = BenchReport::new("pool-tenants", SCHEMA, plan, Tenants { measured });
    report.goals = goals;
    Ok(report)
}

impl TenantsOfNode {
    fn measure(
        first: &FirstCase<'_>,
        progress: &mut Progress,
    ) -> Result<(Self, Vec<Goal>), BenchError> {
        let FirstCase { plan, case, requests, workers } = *first;
        let quota = quota(first)?;
        let mut node = NodeProcess::start(&options(first, Some(quota)))?;
        let victim = RemotePool::open(&node.tcp_endpoint("victim")?, requests)?;
        let flood = flooders(&node.tcp_endpoint("flood")?, &Parcel::of(requests), 1)?;
        victim.blocking(plan.duration / 4, THINK_TIME)?;
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            progress.now(&format!("{case}, {workers} workers, round {}", number + 1))?;
            let parties = Parties { node: &node, victim: &victim, flood: &flood[0] };
            rounds.push(round(plan, number, quota, &parties, requests)?);
            node.check()?;
            progress.step();
        }
        let measured = Self { workers, quota, rounds };
        let goals = measured.goals();
        Ok((measured, goals))
    }

    fn goals(&self) -> Vec<Goal> {
        let workers = self.workers;
        let ratio = Spread::over(&self.rounds, |round: &TenantsRound| {
            round.beside.p99_us / round.alone.p99_us
        });
        let what = format!("victim's p99 beside 10 times a quota / alone, workers: {workers}");
        let latency = Goal::at_most(what, 1.25, 1.10, ratio);
        let what = format!("error of the quota, in per cent, workers: {workers}");
        let error = self.error().map(|error| error.map(f64::abs));
        let error = Goal::at_most(what, 2.0, 1.0, error);
        latency.into_iter().chain(error).collect()
    }
}

fn options(first: &FirstCase<'_>, quota: Option<u64>) -> NodeOptions {
    NodeOptions {
        core: first.plan.node_core,
        workers: first.workers,
        software_only: true,
        tcp: true,
        quota,
    }
}

/// The quota in operations per second: a part of the peak of a node that has none.
fn quota(first: &FirstCase<'_>) -> Result<u64, BenchError> {
    let node = NodeProcess::start(&options(first, None))?;
    let remote = RemotePool::open(&node.endpoint(), first.requests)?;
    let duration = first.plan.duration.min(BURST);
    let peak = remote.pipelined(first.plan.window, duration)?.per_s;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of operations per second is positive and far below 2^52"
    )]
    Ok((peak * QUOTA) as u64)
}

/// A node with its two clients.
struct Parties<'a> {
    node: &'a NodeProcess,
    victim: &'a RemotePool<'a>,
    flood: &'a Sender,
}

fn round(
    plan: &PoolPlan,
    number: u64,
    quota: u64,
    parties: &Parties<'_>,
    requests: &Requests<'_>,
) -> Result<TenantsRound, BenchError> {
    let offered = quota as f64 * OFFERED;
    let Parties { node, victim, flood } = *parties;
    let mut round = TenantsRound::default();
    for turn in order(2, number) {
        if turn == 0 {
            round.alone = TenantVictim::measure(plan, node, victim)?;
            // The quota fills up again.
            thread::sleep(BURST);
            continue;
        }
        // The burst is used up first.
        offer(flood, offered, BURST, BUDGET, number)?.verified(requests)?;
        let (beside, flooded) = thread::scope(|scope| {
            let flooding = scope.spawn(|| {
                give_way();
                offer(flood, offered, plan.duration, BUDGET, number + 1000)
            });
            let beside = TenantVictim::measure(plan, node, victim);
            (beside, flooding.join())
        });
        round.beside = beside?;
        let flooded =
            flooded.map_err(|_| BenchError::Wrong("the flood's thread panicked".to_owned()))??;
        round.flood = flooded.verified(requests)?;
    }
    Ok(round)
}

impl TenantsOfNode {
    /// Deviation of the flood's completions from its quota, in per cent.
    fn error(&self) -> Option<Spread> {
        let quota = self.quota as f64;
        Spread::over(&self.rounds, |round| (round.flood.good_per_s / quota - 1.0) * 100.0)
    }
}

pub(super) fn render(report: &TenantsReport) -> String {
    let BenchReport { plan, figures, .. } = report;
    let over =
        |node: &TenantsOfNode, value: fn(&TenantsRound) -> f64| Spread::over(&node.rounds, value);
    #[rustfmt::skip]
    let table = table(&figures.measured, &[
        ("workers", &|node| node.workers.to_string()),
        ("alone p50 µs", &|node| median(over(node, |round| round.alone.p50_us), 0)),
        ("p99", &|node| median(over(node, |round| round.alone.p99_us), 0)),
        ("beside p50", &|node| median(over(node, |round| round.beside.p50_us), 0)),
        ("p99", &|node| median(over(node, |round| round.beside.p99_us), 0)),
        ("p99 ratio", &|node| range(over(node, |round| round.beside.p99_us / round.alone.p99_us), 2)),
        ("quota/s", &|node| node.quota.to_string()),
        ("offered/s", &|node| median(over(node, |round| round.flood.offered_per_s), 0)),
        ("done/s", &|node| median(over(node, |round| round.flood.good_per_s), 1)),
        ("error %", &|node| range(node.error(), 2)),
    ]);
    #[rustfmt::skip]
    let inside = self::table(&figures.measured, &[
        ("workers", &|node| node.workers.to_string()),
        ("alone p99 µs: queue", &|node| median(over(node, |round| round.alone.queued_p99_us), 0)),
        ("backend", &|node| median(over(node, |round| round.alone.served_p99_us), 0)),
        ("beside: queue", &|node| median(over(node, |round| round.beside.queued_p99_us), 0)),
        ("backend", &|node| median(over(node, |round| round.beside.served_p99_us), 0)),
        ("cores of the node alone", &|node| median(over(node, |round| round.alone.node_cores), 2)),
        ("beside", &|node| median(over(node, |round| round.beside.node_cores), 2)),
    ]);
    let case = plan.cases.first().map(ToString::to_string).unwrap_or_default();
    format!(
        "{}\n\n{case}: node on core {}, clients on core {}, TCP with mutual TLS 1.3; the flood offers {OFFERED} times\n\
         its quota (open loop); victim: one job at a time, {} ms after the last; {} rounds of {:.1} s, interleaved;\n\
         outputs checked\n\n{}\n{}{}",
        report.machine.describe(),
        plan.node_core,
        plan.load_core,
        THINK_TIME.as_millis(),
        plan.rounds,
        plan.duration.as_secs_f64(),
        table.render(),
        inside.render(),
        report.goals.render(),
    )
}
