// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool --tenants`: a tenant that offers ten times its quota, beside another tenant's single jobs.
//!
//! Each round measures the victim alone and beside the flood, in changing order. The flood's completions after its
//! burst give the error of the quota.

use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::PoolPlan;
use super::fairness::give_way;
use super::open::{OpenRound, offer};
use super::remote::{Parcel, Remote, RemoteRound, Sender};
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::node::{Node, NodeOptions};
use crate::progress::Progress;
use crate::report::{BenchReport, median, range, table};
use crate::stats::{Spread, order};
use crate::workload::{Keys, Requests};

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

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
    alone_p50_us: f64,
    alone_p99_us: f64,
    beside_p50_us: f64,
    beside_p99_us: f64,
    flood: OpenRound,
}

/// Measures the first case with each worker count.
pub(super) fn measure(plan: PoolPlan) -> Result<TenantsReport, BenchError> {
    let Some(&case) = plan.cases.first() else {
        return Err(BenchError::Usage("name an operation".to_owned()));
    };
    let mut progress = Progress::start(plan.workers.len() as u64 * plan.rounds)?;
    let keys = Keys::generate(case.key)?;
    let requests = Requests::new(case, &keys)?;
    let (mut measured, mut goals) = (Vec::new(), Vec::new());
    for &workers in &plan.workers {
        progress.now("starting nodes")?;
        let options = |quota| NodeOptions {
            core: plan.node_core,
            workers,
            software_only: true,
            tcp: true,
            quota,
        };
        let peak = {
            let node = Node::start(&options(None))?;
            let remote = Remote::open(&node.endpoint(), &requests)?;
            remote
                .pipelined(plan.window, plan.duration.min(BURST))?
                .per_s
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate of operations per second is positive and far below 2^52"
        )]
        let quota = (peak * QUOTA) as u64;
        let mut node = Node::start(&options(Some(quota)))?;
        let victim = Remote::open(&node.tcp_endpoint("victim")?, &requests)?;
        // Its threads give way to the victim's on their common core: they stand for another machine.
        let (endpoint, parcel) = (node.tcp_endpoint("flood")?, Parcel::of(&requests));
        let connected = thread::scope(|scope| {
            let connect = || {
                give_way();
                Sender::open(&endpoint, parcel)
            };
            scope.spawn(connect).join()
        });
        let flood = connected
            .map_err(|_| BenchError::Setup("the flood's thread panicked".to_owned()))?
            .map_err(|error| BenchError::Setup(format!("the flood cannot connect: {error}")))?;
        victim.blocking(plan.duration / 4, THINK_TIME)?;
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            progress.now(&format!("{case}, {workers} workers, round {}", number + 1))?;
            rounds.push(round(&plan, number, quota, &victim, &flood, &requests)?);
            node.check()?;
            progress.step();
        }
        let what = format!("victim's p99 beside 10 times a quota / alone, workers: {workers}");
        let ratio = Spread::over(&rounds, |round: &TenantsRound| {
            round.beside_p99_us / round.alone_p99_us
        });
        goals.extend(Goal::at_most(what, 1.25, 1.10, ratio));
        let one = TenantsOfNode {
            workers,
            quota,
            rounds,
        };
        let what = format!("error of the quota, in per cent, workers: {workers}");
        goals.extend(Goal::at_most(
            what,
            2.0,
            1.0,
            one.error().map(|error| error.map(f64::abs)),
        ));
        measured.push(one);
    }
    let mut report = BenchReport::new("pool-tenants", SCHEMA, plan, Tenants { measured });
    report.goals = Goals(goals);
    Ok(report)
}

fn round(
    plan: &PoolPlan,
    number: u64,
    quota: u64,
    victim: &Remote<'_>,
    flood: &Sender,
    requests: &Requests<'_>,
) -> Result<TenantsRound, BenchError> {
    let offered = quota as f64 * OFFERED;
    let mut round = TenantsRound::default();
    let quantiles = |round: &RemoteRound| [0.5, 0.99].map(|part| round.latencies.quantile_us(part));
    for turn in order(2, number) {
        if turn == 0 {
            let alone = victim.blocking(plan.duration, THINK_TIME)?;
            [round.alone_p50_us, round.alone_p99_us] = quantiles(&alone);
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
            let beside = victim.blocking(plan.duration, THINK_TIME);
            (beside, flooding.join())
        });
        let beside = beside?;
        let flooded =
            flooded.map_err(|_| BenchError::Wrong("the flood's thread panicked".to_owned()))??;
        [round.beside_p50_us, round.beside_p99_us] = quantiles(&beside);
        round.flood = flooded.verified(requests)?;
    }
    Ok(round)
}

impl TenantsOfNode {
    /// Deviation of the flood's completions from its quota, in per cent.
    fn error(&self) -> Option<Spread> {
        let quota = self.quota as f64;
        Spread::over(&self.rounds, |round| {
            (round.flood.good_per_s / quota - 1.0) * 100.0
        })
    }
}

/// The table.
pub(super) fn render(report: &TenantsReport) -> String {
    let BenchReport { plan, figures, .. } = report;
    let over =
        |one: &TenantsOfNode, value: fn(&TenantsRound) -> f64| Spread::over(&one.rounds, value);
    #[rustfmt::skip]
    let table = table(&figures.measured, &[
        ("workers", &|one| one.workers.to_string()),
        ("alone p50 µs", &|one| median(over(one, |round| round.alone_p50_us), 0)),
        ("p99", &|one| median(over(one, |round| round.alone_p99_us), 0)),
        ("beside p50", &|one| median(over(one, |round| round.beside_p50_us), 0)),
        ("p99", &|one| median(over(one, |round| round.beside_p99_us), 0)),
        ("p99 ratio", &|one| range(over(one, |round| round.beside_p99_us / round.alone_p99_us), 2)),
        ("quota/s", &|one| one.quota.to_string()),
        ("offered/s", &|one| median(over(one, |round| round.flood.offered_per_s), 0)),
        ("done/s", &|one| median(over(one, |round| round.flood.good_per_s), 1)),
        ("error %", &|one| range(one.error(), 2)),
    ]);
    let case = plan
        .cases
        .first()
        .map(ToString::to_string)
        .unwrap_or_default();
    format!(
        "{}\n\n{case}: node on core {}, clients on core {}, TCP with mutual TLS 1.3; the flood offers {OFFERED} times\n\
         its quota (open loop); victim: one job at a time, {} ms after the last; {} rounds of {:.1} s, interleaved;\n\
         outputs checked\n\n{}{}",
        report.machine.describe(),
        plan.node_core,
        plan.load_core,
        THINK_TIME.as_millis(),
        plan.rounds,
        plan.duration.as_secs_f64(),
        table.render(),
        report.goals.render(),
    )
}
