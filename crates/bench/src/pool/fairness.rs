// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool --fairness`: the latency of one identity while another floods the node.
//!
//! ```text
//!   core 0      core 1
//!   node  ◄──── victim: one identity, one connection, a job 2 ms after the last has ended
//!         ◄──── flood:  another identity, N connections with M jobs in flight each
//! ```
//!
//! Both are client certificates over TCP with mutual TLS. Each round measures the victim alone and under the flood, in
//! changing order, and yields the ratio of its latencies. Jobs of the flood that the node refuses (`busy`) are
//! counted and sent again after a pause. The clients share a core; the flood's client threads have the lowest
//! priority there, so that the victim waits for the node and not for the flood's client work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_client::{ClientError, Endpoint};
use millrace_operation::OperationKind;
use serde::Serialize;

use super::PoolPlan;
use super::args::{POOL_OPERATIONS, PoolArgs};
use super::remote::{Parcel, RemotePool, Sender};
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::node::{NodeOptions, NodeProcess};
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::{Spread, order};
use crate::table::{median, range, sharing, table};
use crate::workload::{Case, Keys, Requests};

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 2;

/// Deadline of a flood's job: longer than the longest queue that the node's limits allow.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time between two jobs of the victim. One job after the other would take two thirds of a core, more than the
/// half that is its share beside one other identity, and the queue would hold it back for that.
const THINK_TIME: Duration = Duration::from_millis(2);

/// Time that the flood runs before the victim is measured, so that the queue is full.
const FILL_TIME: Duration = Duration::from_millis(500);

/// Interval of checks which connections of the flood have room, and delay after a refusal: 200 per second are nothing
/// beside the load.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The figures of `bench pool --fairness`.
#[derive(Debug, Serialize)]
pub(super) struct Fairness {
    connections: usize,
    in_flight: usize,
    measured: Vec<FairnessCase>,
}

/// The report of `bench pool --fairness`.
type FairnessReport = BenchReport<PoolPlan, Fairness>;

/// One case with one node.
#[derive(Debug, Serialize)]
struct FairnessCase {
    #[serde(flatten)]
    case: Case,
    workers: usize,
    rounds: Vec<FairnessRound>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct FairnessRound {
    alone: FairnessVictim,
    flooded: FairnessVictim,
    /// Completed jobs of the flood per second, and refused ones.
    flood_per_s: f64,
    refused_per_s: f64,
}

/// The figures of the victim.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct FairnessVictim {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures every case with every worker count.
pub(super) fn measure(plan: PoolPlan, args: &PoolArgs) -> Result<FairnessReport, BenchError> {
    if plan.pool.is_some() {
        let problem = "--fairness needs private nodes: leave out --pool";
        return Err(BenchError::Usage(problem.into()));
    }
    let mut cases = plan.cases.clone();
    // A slow operation shows the queue; of the usual list that is an RSA-2048 signature.
    cases.retain(|case| cases_asked(args) || case.operation == OperationKind::RsaPkcs1Sign);
    let steps = (cases.len() * plan.workers.len()) as u64 * plan.rounds;
    let mut progress = Progress::start(steps)?;
    let mut measured = Vec::new();
    let mut goals = Vec::new();
    for &workers in &plan.workers {
        progress.now("starting a node")?;
        let mut node = NodeProcess::start(&NodeOptions {
            workers,
            software_only: true,
            tcp: true,
            ..NodeOptions::on(plan.node_core)
        })?;
        let victim = node.tcp_endpoint("victim")?;
        let flood = node.tcp_endpoint("flood")?;
        for &case in &cases {
            let keys = Keys::generate(case.key)?;
            let requests = Requests::new(case, &keys)?;
            let victim = RemotePool::open(&victim, &requests)?;
            let flood = Flood::connect(&flood, &requests, args)?;
            victim.blocking(plan.duration / 4, THINK_TIME)?;
            let mut rounds = Vec::new();
            for number in 0..plan.rounds {
                let what = format!("{case}, {workers} workers, round {}", number + 1);
                progress.now(&what)?;
                rounds.push(round(&plan, number, &victim, &flood)?);
                node.check()?;
                progress.step();
            }
            let measured_case = FairnessCase { case, workers, rounds };
            goals.extend(measured_case.goal());
            measured.push(measured_case);
        }
    }
    let figures =
        Fairness { connections: args.flood_connections, in_flight: args.flood_jobs, measured };
    let mut report = BenchReport::new("pool-fairness", SCHEMA, plan, figures);
    report.goals = Goals(goals);
    Ok(report)
}

impl FairnessCase {
    /// The promise to an identity within its share. The workers of the node have the lowest priority, and a victim
    /// whose jobs take longer than its pause asks for more than the half that is its share of the core.
    fn goal(&self) -> Option<Goal> {
        let Self { case, workers, rounds } = self;
        let what = format!("{case}, victim's p99 under a flood / alone, workers: {workers}");
        let alone = Spread::over(rounds, |round| round.alone.p50_us)?;
        let within_share = alone.median < THINK_TIME.as_secs_f64() * 1e6;
        let p99 = Spread::over(rounds, FairnessRound::p99_ratio);
        Some(Goal::at_most(what, 1.10, 1.0, p99)?.only_if(
            "victim within its share of the core, workers of the lowest priority",
            within_share,
        ))
    }
}

/// Whether the user named operations: then all of them are measured.
fn cases_asked(args: &PoolArgs) -> bool {
    args.operations.len() < POOL_OPERATIONS.len()
}

fn round(
    plan: &PoolPlan,
    number: u64,
    victim: &RemotePool<'_>,
    flood: &Flood,
) -> Result<FairnessRound, BenchError> {
    let one_at_a_time = || -> Result<FairnessVictim, BenchError> {
        let round = victim.blocking(plan.duration, THINK_TIME)?;
        let quantile = |fraction| round.latencies.quantile_us(fraction);
        Ok(FairnessVictim { per_s: round.per_s, p50_us: quantile(0.5), p99_us: quantile(0.99) })
    };
    let mut round = FairnessRound::default();
    for turn in order(2, number) {
        if turn == 0 {
            round.alone = one_at_a_time()?;
            continue;
        }
        let (flooded, done, refused, time) = flood.during(one_at_a_time)?;
        round.flooded = flooded;
        round.flood_per_s = done as f64 / time.as_secs_f64();
        round.refused_per_s = refused as f64 / time.as_secs_f64();
    }
    Ok(round)
}

/// The identity that floods.
struct Flood {
    connections: Vec<Sender>,
    in_flight: usize,
    counts: Arc<FloodCounts>,
}

#[derive(Default)]
struct FloodCounts {
    /// Jobs in flight, per connection.
    in_flight: Vec<AtomicUsize>,
    done: AtomicU64,
    refused: AtomicU64,
}

impl Flood {
    fn connect(
        endpoint: &Endpoint,
        requests: &Requests<'_>,
        args: &PoolArgs,
    ) -> Result<Self, BenchError> {
        let count = args.flood_connections;
        let parcel = Parcel::of(requests);
        Ok(Self {
            connections: flooders(endpoint, &parcel, count)?,
            in_flight: args.flood_jobs,
            counts: Arc::new(FloodCounts {
                in_flight: (0..count).map(|_| AtomicUsize::new(0)).collect(),
                ..FloodCounts::default()
            }),
        })
    }

    /// Floods while `f` runs. Returns its value, the jobs done and refused in that time, and the time.
    fn during<T>(
        &self,
        f: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(T, u64, u64, Duration), BenchError> {
        let running = AtomicBool::new(true);
        let counted = || {
            let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
            (read(&self.counts.done), read(&self.counts.refused))
        };
        let measured = thread::scope(|scope| {
            scope.spawn(|| self.feed(&running));
            thread::sleep(FILL_TIME);
            let before = counted();
            let start = Instant::now();
            let value = f();
            let after = counted();
            let time = start.elapsed();
            running.store(false, Ordering::Relaxed);
            Ok((value?, after.0 - before.0, after.1 - before.1, time))
        });
        // Jobs under way end before the victim is measured alone.
        let deadline = Instant::now() + DEADLINE;
        while self.counts.in_flight.iter().any(|count| count.load(Ordering::Acquire) > 0) {
            if Instant::now() > deadline {
                return Err(BenchError::Wrong("jobs of the flood never ended".into()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        measured
    }

    /// Keeps every connection full.
    fn feed(&self, running: &AtomicBool) {
        give_way();
        let mut index = 0;
        while running.load(Ordering::Relaxed) {
            for (number, connection) in self.connections.iter().enumerate() {
                let under_way = &self.counts.in_flight[number];
                while under_way.load(Ordering::Acquire) < self.in_flight {
                    under_way.fetch_add(1, Ordering::AcqRel);
                    let counts = Arc::clone(&self.counts);
                    let done = move |result: Result<_, _>| {
                        let count = match result {
                            Ok(_) => &counts.done,
                            Err(_) => &counts.refused,
                        };
                        count.fetch_add(1, Ordering::Relaxed);
                        counts.in_flight[number].fetch_sub(1, Ordering::AcqRel);
                    };
                    let deadline = Instant::now() + DEADLINE;
                    if connection.send(index, deadline, Box::new(done)).is_err() {
                        // Refused before it was sent: `done` is not called.
                        under_way.fetch_sub(1, Ordering::AcqRel);
                        break;
                    }
                    index += 1;
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Opens the connections of a flood. The client's I/O threads inherit the priority of the thread that first uses a
/// connection: they give way to the victim's on their common core, since they stand for another machine.
pub(super) fn flooders(
    endpoint: &Endpoint,
    parcel: &Parcel,
    count: usize,
) -> Result<Vec<Sender>, BenchError> {
    let connect = || -> Result<Vec<Sender>, ClientError> {
        give_way();
        (0..count).map(|_| Sender::open(endpoint, parcel.clone())).collect()
    };
    thread::scope(|scope| scope.spawn(connect).join())
        .map_err(|_| BenchError::Setup("the flood's thread panicked".to_owned()))?
        .map_err(|error| BenchError::Setup(format!("the flood cannot connect: {error}")))
}

/// Gives the calling thread, and the threads that it starts, the lowest priority.
pub(crate) fn give_way() {
    /// The lowest priority there is.
    const LOWEST: i32 = 19;
    // It cannot fail: a thread may always lower its own priority.
    let _ = rustix::process::nice(LOWEST);
}

pub(super) fn render(report: &FairnessReport) -> String {
    let BenchReport { plan, figures, .. } = report;
    let over = |measured: &FairnessCase, value: fn(&FairnessRound) -> f64| {
        Spread::over(&measured.rounds, value)
    };
    let show = |measured: &FairnessCase, value| median(over(measured, value), 0);
    #[rustfmt::skip]
    let table = table(&figures.measured, &[
        ("case", &|measured| measured.case.to_string()),
        ("workers", &|measured| measured.workers.to_string()),
        ("alone p50", &|measured| show(measured, |round| round.alone.p50_us)),
        ("p99", &|measured| show(measured, |round| round.alone.p99_us)),
        ("flooded p50", &|measured| show(measured, |round| round.flooded.p50_us)),
        ("p99", &|measured| show(measured, |round| round.flooded.p99_us)),
        ("p50 ratio", &|measured| range(over(measured, |round| round.flooded.p50_us / round.alone.p50_us), 2)),
        ("p99 ratio", &|measured| range(over(measured, FairnessRound::p99_ratio), 2)),
        ("victim/s", &|measured| show(measured, |round| round.flooded.per_s)),
        ("flood/s", &|measured| show(measured, |round| round.flood_per_s)),
        ("refused/s", &|measured| show(measured, |round| round.refused_per_s)),
    ]);
    format!(
        "{}\n\nNode on core {}, clients on core {}{}, TCP with mutual TLS 1.3 on loopback;\n\
         victim: one job at a time, {} ms after the last; flood: {} connections of another identity with {} jobs in flight each;\n\
         {} rounds of {:.1} s, interleaved in changing order; latencies in µs; outputs checked\n\n{}{}",
        report.machine.describe(),
        plan.node_core,
        plan.load_core,
        sharing(plan.node_core, plan.load_core),
        THINK_TIME.as_millis(),
        figures.connections,
        figures.in_flight,
        plan.rounds,
        plan.duration.as_secs_f64(),
        table.render(),
        report.goals.render(),
    )
}

impl FairnessRound {
    fn p99_ratio(&self) -> f64 {
        self.flooded.p99_us / self.alone.p99_us
    }
}
