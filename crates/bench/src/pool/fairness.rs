// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool --fairness`: what one identity loses while another floods the node.
//!
//! ```text
//!   core 0      core 1
//!   node  ◄──── victim: one identity, one connection, one job at a time
//!         ◄──── flood:  another identity, N connections with M jobs in flight each
//! ```
//!
//! Both are client certificates over TCP with mutual TLS. In each round the victim is measured alone and
//! under the flood, in changing order; the ratio of its latencies is taken within the round. The flood's
//! jobs that the node refuses (`busy`) are counted and sent again after a pause. The clients share a core; the
//! flood's client threads have the lowest priority there, so that the victim waits for the node and not for
//! the flood's own client work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millrace_client::{ClientError, Endpoint};
use millrace_engine::OperationKind;
use serde::Serialize;

use super::PoolPlan;
use super::remote::{Parcel, Remote, Sender};
use crate::cli::PoolArgs;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::machine::Machine;
use crate::node::{Node, NodeOptions};
use crate::process::{Stop, temporary_folder};
use crate::progress::Progress;
use crate::report::{median, sharing, table};
use crate::stats::{Spread, order};
use crate::workload::{Case, Keys, Requests};

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// Deadline of a flood's job: longer than the longest queue that the node's limits allow.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long the flood runs before the victim is measured, so that the queue is full.
const FILL: Duration = Duration::from_millis(500);

/// Between two looks at which connections of the flood have room, and after a refusal.
const PAUSE: Duration = Duration::from_millis(5);

/// The report of `bench pool --fairness`.
#[derive(Debug, Serialize)]
pub(super) struct FairnessReport {
    schema: u32,
    benchmark: &'static str,
    machine: Machine,
    plan: PoolPlan,
    connections: usize,
    in_flight: usize,
    measured: Vec<FairnessCase>,
    pub(super) goals: Goals,
}

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
    alone: Victim,
    flooded: Victim,
    /// Jobs of the flood per second that were done, and that were refused.
    flood_per_s: f64,
    refused_per_s: f64,
}

/// The victim's own figures.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Victim {
    per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures every case with every worker count.
pub(super) fn measure(
    plan: &PoolPlan,
    args: &PoolArgs,
    stop: &Stop,
) -> Result<FairnessReport, BenchError> {
    if plan.pool.is_some() {
        return Err(BenchError::Usage(
            "--fairness needs nodes of its own: leave out --pool".into(),
        ));
    }
    let mut report = FairnessReport {
        schema: SCHEMA,
        benchmark: "pool-fairness",
        machine: Machine::here(),
        plan: plan.clone(),
        connections: args.flood_connections,
        in_flight: args.flood_jobs,
        measured: Vec::new(),
        goals: Goals::default(),
    };
    let mut cases = plan.cases.clone();
    // A slow operation shows the queue; of the usual list RSA-2048 signatures are that.
    cases.retain(|case| cases_asked(args) || case.operation == OperationKind::RsaPkcs1Sign);
    let mut progress = Progress::new((cases.len() * plan.workers.len()) as u64 * plan.rounds);
    for &workers in &plan.workers {
        progress.now("starting a node");
        let dir = temporary_folder()?;
        let options = NodeOptions {
            core: plan.node_core,
            workers,
            software_only: true,
            tcp: true,
        };
        let mut node = Node::start(dir.path(), &options)?;
        let (victim, flood) = (node.tcp_endpoint("victim")?, node.tcp_endpoint("flood")?);
        for &case in &cases {
            let keys = Keys::generate(case.key)?;
            let requests = Requests::new(case, &keys)?;
            let victim = Remote::open(&victim, &requests)?;
            let flood = Flood::connect(&flood, &requests, args)?;
            victim.blocking(plan.duration / 4)?;
            let mut measured = FairnessCase {
                case,
                workers,
                rounds: Vec::new(),
            };
            for number in 0..plan.rounds {
                progress.now(&format!("{case}, {workers} workers, round {}", number + 1));
                measured.rounds.push(round(plan, number, &victim, &flood)?);
                node.check()?;
                stop.check()?;
                progress.step();
            }
            report.add(measured);
        }
    }
    Ok(report)
}

/// Whether the user named operations: then all of them are measured.
fn cases_asked(args: &PoolArgs) -> bool {
    args.operation.len() < crate::cli::POOL_OPERATIONS.len()
}

fn round(
    plan: &PoolPlan,
    number: u64,
    victim: &Remote<'_>,
    flood: &Flood,
) -> Result<FairnessRound, BenchError> {
    let one_at_a_time = || -> Result<Victim, BenchError> {
        let round = victim.blocking(plan.duration)?;
        let quantile = |fraction| round.latencies.quantile_us(fraction);
        Ok(Victim {
            per_s: round.per_s,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
        })
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
    /// By connection: jobs under way.
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
        let (count, parcel) = (args.flood_connections, Parcel::of(requests));
        // The client's I/O threads inherit the priority of the thread that first uses the connection.
        let connect = || -> Result<Vec<Sender>, ClientError> {
            give_way();
            (0..count)
                .map(|_| Sender::open(endpoint, parcel.clone()))
                .collect()
        };
        let connections = thread::scope(|scope| scope.spawn(connect).join());
        let connections = connections
            .map_err(|_| BenchError::Setup("the flood's thread panicked".to_owned()))?
            .map_err(|error| BenchError::Setup(format!("the flood cannot connect: {error}")))?;
        let in_flight = (0..count).map(|_| AtomicUsize::new(0)).collect();
        let counts = Arc::new(FloodCounts {
            in_flight,
            ..FloodCounts::default()
        });
        Ok(Self {
            connections,
            in_flight: args.flood_jobs,
            counts,
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
            thread::sleep(FILL);
            let (before, start) = (counted(), Instant::now());
            let value = f();
            let (after, time) = (counted(), start.elapsed());
            running.store(false, Ordering::Relaxed);
            Ok((value?, after.0 - before.0, after.1 - before.1, time))
        });
        // What is under way ends before the victim is measured alone.
        let deadline = Instant::now() + DEADLINE;
        let under_way = |count: &AtomicUsize| count.load(Ordering::Acquire) > 0;
        while self.counts.in_flight.iter().any(under_way) {
            if Instant::now() > deadline {
                return Err(BenchError::Wrong(
                    "jobs of the flood never ended".to_owned(),
                ));
            }
            thread::sleep(PAUSE);
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
                        let count = if result.is_ok() {
                            &counts.done
                        } else {
                            &counts.refused
                        };
                        count.fetch_add(1, Ordering::Relaxed);
                        counts.in_flight[number].fetch_sub(1, Ordering::AcqRel);
                    };
                    if connection
                        .send(index, Instant::now() + DEADLINE, Box::new(done))
                        .is_err()
                    {
                        // Refused before it was sent: `done` is not called.
                        under_way.fetch_sub(1, Ordering::AcqRel);
                        break;
                    }
                    index += 1;
                }
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Gives the calling thread, and the threads that it starts, the lowest priority.
fn give_way() {
    /// The lowest priority there is.
    const LOWEST: i32 = 19;
    // It cannot fail: a thread may always lower its own priority.
    let _ = rustix::process::nice(LOWEST);
}

impl FairnessReport {
    fn add(&mut self, measured: FairnessCase) {
        let what = format!(
            "{}, victim's p99 under a flood / alone, workers: {}",
            measured.case, measured.workers
        );
        let p99 = measured.spread(|round| round.flooded.p99_us / round.alone.p99_us);
        self.goals
            .extend(p99.map(|p99| Goal::at_most(what, 1.25, 1.10, p99)));
        self.measured.push(measured);
    }

    /// The table.
    pub(super) fn render(&self) -> String {
        let plan = &self.plan;
        let mut text = format!(
            "{}\n\nNode on core {}, clients on core {}{}, TCP with mutual TLS 1.3 on loopback;\n\
             victim: one job at a time; flood: {} connections of another identity with {} jobs in flight each;\n\
             {} rounds of {:.1} s, interleaved in changing order; latencies in µs; outputs checked\n\n",
            self.machine.describe(),
            plan.node_core,
            plan.load_core,
            sharing(plan.node_core, plan.load_core),
            self.connections,
            self.in_flight,
            plan.rounds,
            plan.duration.as_secs_f64(),
        );
        let show =
            |one: &FairnessCase, value: fn(&FairnessRound) -> f64| median(one.spread(value), 0);
        let range = |one: &FairnessCase, value: fn(&FairnessRound) -> f64| {
            one.spread(value)
                .map_or_else(String::new, |spread| spread.show(2))
        };
        #[rustfmt::skip]
        let table = table(&self.measured, &[
            ("case", &|one| one.case.to_string()),
            ("workers", &|one| one.workers.to_string()),
            ("alone p50", &|one| show(one, |round| round.alone.p50_us)),
            ("p99", &|one| show(one, |round| round.alone.p99_us)),
            ("flooded p50", &|one| show(one, |round| round.flooded.p50_us)),
            ("p99", &|one| show(one, |round| round.flooded.p99_us)),
            ("p50 ratio", &|one| range(one, |round| round.flooded.p50_us / round.alone.p50_us)),
            ("p99 ratio", &|one| range(one, |round| round.flooded.p99_us / round.alone.p99_us)),
            ("victim/s", &|one| show(one, |round| round.flooded.per_s)),
            ("flood/s", &|one| show(one, |round| round.flood_per_s)),
            ("refused/s", &|one| show(one, |round| round.refused_per_s)),
        ]);
        text.push_str(&table.render());
        text + &self.goals.render()
    }
}

impl FairnessCase {
    fn spread(&self, value: impl Fn(&FairnessRound) -> f64) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(value))
    }
}
