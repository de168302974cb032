// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool --overload`: goodput and latency of a node from a tenth of its peak to five times as much.

use std::time::Duration;

use serde::Serialize;

use super::open::{Offered, OpenRound, offer};
use super::remote::{Parcel, RemotePool, Sender};
use super::{FirstCase, NodeUnderTest, PoolPlan, measure_first_case};
use crate::cores;
use crate::error::BenchError;
use crate::goals::Goal;
use crate::plot::{self, Axis, LineChart, PlotLine, Value};
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::{median, range, table};
use crate::workload::Requests;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// Loads, as parts of the peak.
const LOADS: [f64; 10] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0, 3.0, 5.0];

/// Time after which the result of a job is useless: a tenth of what a provider waits by default.
const BUDGET: Duration = Duration::from_millis(200);

/// The figures of `bench pool --overload`.
#[derive(Debug, Serialize)]
pub(super) struct Overload {
    measured: Vec<OverloadedNode>,
}

type OverloadReport = BenchReport<PoolPlan, Overload>;

#[derive(Debug, Serialize)]
struct OverloadedNode {
    workers: usize,
    /// Closed loop, in each round.
    peaks_per_s: Vec<f64>,
    loads: Vec<AtFactor>,
}

#[derive(Debug, Serialize)]
struct AtFactor {
    factor: f64,
    rounds: Vec<OverloadRound>,
}

#[derive(Debug, Serialize)]
struct OverloadRound {
    #[serde(flatten)]
    open: OpenRound,
    /// Jobs that the node computed, by its own counters; less the good ones, its wasted work.
    computed_per_s: f64,
    /// CPU time of the node, in cores.
    node_cores: f64,
    /// CPU time of client and load generator, in cores.
    load_cores: f64,
}

/// Measures the first case with each worker count.
pub(super) fn measure(plan: PoolPlan) -> Result<OverloadReport, BenchError> {
    let steps = 1 + LOADS.len() as u64;
    let (measured, goals) = measure_first_case(&plan, steps, OverloadedNode::measure)?;
    let mut report = BenchReport::new("pool-overload", SCHEMA, plan, Overload { measured });
    report.goals = goals;
    Ok(report)
}

impl OverloadedNode {
    fn measure(
        first: &FirstCase<'_>,
        progress: &mut Progress,
    ) -> Result<(Self, Vec<Goal>), BenchError> {
        let FirstCase { plan, case, requests, workers } = *first;
        let node = NodeUnderTest::start(plan, workers)?;
        let remote = RemotePool::open(&node.endpoint, requests)?;
        let sender = Sender::open(&node.endpoint, Parcel::of(requests))
            .map_err(|error| BenchError::Setup(format!("cannot connect: {error}")))?;
        let rounds = |factor| AtFactor { factor, rounds: Vec::new() };
        let mut measured =
            Self { workers, peaks_per_s: Vec::new(), loads: LOADS.map(rounds).into() };
        for round in 0..plan.rounds {
            let number = round + 1;
            progress.now(&format!("{case}, {workers} workers, peak, round {number}"))?;
            let peak = remote.pipelined(plan.window, plan.duration)?.per_s;
            measured.peaks_per_s.push(peak);
            progress.step();
            for (index, load) in measured.loads.iter_mut().enumerate() {
                let factor = load.factor;
                progress.now(&format!("{case}, {workers} workers, {factor} of the peak"))?;
                let seed = round * 100 + index as u64;
                let offered = || offer(&sender, factor * peak, plan.duration, BUDGET, seed);
                load.rounds.push(OverloadRound::of(&node, requests, plan.duration, offered)?);
                progress.step();
            }
        }
        let goal = Goal::at_least(
            format!("goodput at 5 times the peak load / peak, workers: {workers}"),
            0.90,
            0.97,
            measured.goodput_at(LOADS.len() - 1),
        );
        Ok((measured, goal.into_iter().collect()))
    }
}

impl OverloadRound {
    /// Measures what a node did for the jobs of `offer`, whose arrivals take `time`.
    fn of(
        node: &NodeUnderTest,
        requests: &Requests<'_>,
        time: Duration,
        offer: impl FnOnce() -> Result<Offered, BenchError>,
    ) -> Result<Self, BenchError> {
        let completed = || -> Result<u64, BenchError> { Ok(node.completed()?.unwrap_or_default()) };
        let before = completed()?;
        let cpu = || [node.cpu_time(), cores::own_cpu_time()];
        let cpu_before = cpu();
        let offered = offer()?;
        let [node_cores, load_cores] = [0, 1].map(|of| {
            let used = cpu()[of].saturating_sub(cpu_before[of]);
            used.as_secs_f64() / time.as_secs_f64()
        });
        Ok(Self {
            open: offered.verified(requests)?,
            computed_per_s: (completed()? - before) as f64 / time.as_secs_f64(),
            node_cores,
            load_cores,
        })
    }
}

impl OverloadedNode {
    /// Goodput at a load by the peak of the same round.
    fn goodput_at(&self, load: usize) -> Option<Spread> {
        let rounds = self.loads.get(load)?.rounds.iter();
        Spread::of_ratios(
            rounds.map(|round| round.open.good_per_s),
            self.peaks_per_s.iter().copied(),
        )
    }

    fn line(&self, value: impl Fn(usize) -> Option<Spread>) -> PlotLine {
        let points = self.loads.iter().enumerate();
        PlotLine {
            name: format!("{} workers", self.workers),
            points: points
                .filter_map(|(index, load)| Some((load.factor, Value::from(value(index)?))))
                .collect(),
        }
    }
}

/// Goodput and p99 by load, as pictures.
pub(super) fn plots(report: &OverloadReport) -> Result<String, BenchError> {
    let nodes = &report.figures.measured;
    let x = || Axis::logarithmic("offered load / peak");
    let p99 = |node: &OverloadedNode, index: usize| {
        Spread::over(&node.loads[index].rounds, |round| round.open.p99_us / 1000.0)
    };
    let goodput = LineChart {
        title: "Goodput by offered load".to_owned(),
        x: x(),
        y: Axis::linear("goodput / peak"),
        series: nodes.iter().map(|node| node.line(|index| node.goodput_at(index))).collect(),
    };
    let latency = LineChart {
        title: "99th percentile of the latency of good jobs".to_owned(),
        x: x(),
        y: Axis::logarithmic("p99 (ms)"),
        series: nodes.iter().map(|node| node.line(|index| p99(node, index))).collect(),
    };
    Ok(plot::stack(&[goodput.render()?, latency.render()?]))
}

pub(super) fn render(report: &OverloadReport) -> String {
    let BenchReport { plan, figures, .. } = report;
    let rows = figures.measured.iter().flat_map(|node| {
        let loads = node.loads.iter().enumerate();
        loads.map(move |(index, load)| (node, index, load))
    });
    type Row<'a> = (&'a OverloadedNode, usize, &'a AtFactor);
    let over = |(_, _, load): &Row<'_>, value: fn(&OverloadRound) -> f64| {
        Spread::over(&load.rounds, value)
    };
    #[rustfmt::skip]
    let table = table(rows, &[
        ("workers", &|(node, _, _)| node.workers.to_string()),
        ("load", &|(_, _, load)| load.factor.to_string()),
        ("offered/s", &|row| median(over(row, |round| round.open.offered_per_s), 0)),
        ("good/s", &|row| median(over(row, |round| round.open.good_per_s), 0)),
        ("good / peak", &|(node, index, _)| range(node.goodput_at(*index), 3)),
        ("refused/s", &|row| median(over(row, |round| round.open.refused_per_s), 0)),
        ("failed/s", &|row| median(over(row, |round| round.open.failed_per_s), 0)),
        ("computed/s", &|row| median(over(row, |round| round.computed_per_s), 0)),
        ("p50 ms", &|row| median(over(row, |round| round.open.p50_us / 1000.0), 2)),
        ("p99 ms", &|row| median(over(row, |round| round.open.p99_us / 1000.0), 2)),
        ("node cores", &|row| median(over(row, |round| round.node_cores), 2)),
        ("load cores", &|row| median(over(row, |round| round.load_cores), 2)),
    ]);
    let case = plan.cases.first().map(ToString::to_string).unwrap_or_default();
    format!(
        "{}\n\n{case}: open loop, jobs with {} ms from their arrival, node on core {}, client on core {};\n\
         {} rounds of {:.1} s; outputs checked\n\n{}{}",
        report.machine.describe(),
        BUDGET.as_millis(),
        plan.node_core,
        plan.load_core,
        plan.rounds,
        plan.duration.as_secs_f64(),
        table.render(),
        report.goals.render(),
    )
}
