// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool`: operations through a node against the same library called directly.
//!
//! ```text
//!   core 0                              core 1
//!   A  the library, called directly     (idle)
//!   B  the software backend's queue     (idle)
//!   C  a node, for each worker count ◄─ unix socket ─ this process: client, pipelined, then one at a time
//! ```
//!
//! A, B and C alternate in each round, in another order each time, each after a warm-up. All get the same keys and
//! inputs: where a node takes a digest, so does the library. B is the peer of the goals, because it is the
//! same library called with the least around it, verification included. `openssl speed` on the same core is a
//! further peer, by CPU time.
//!
//! `--fairness`, `--tenants` and `--overload` measure something else: see [`fairness`], [`tenants`] and [`overload`].

mod args;
mod fairness;
mod open;
mod overload;
pub(crate) mod remote;
mod results;
mod tenants;

use std::time::Duration;

use millrace_client::Endpoint;
use millrace_operation::OperationKind;
use serde::Serialize;

pub use self::args::PoolArgs;
pub(crate) use self::fairness::give_way;
use self::remote::RemotePool;
use self::results::{Depth, MeasuredCase, NodeRound, PoolReport, PoolRound};
use crate::cores;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::node::{NodeOptions, NodeProcess};
use crate::options::{MEASUREMENT, check_seconds};
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::speed::openssl_rate;
use crate::stats::order;
use crate::workload::{Case, Contender, Keys, MeasuredBackend, Requests};

/// Outputs that are kept per round to be verified after it: all of them in short rounds, else an even sample.
/// A P-256 verification takes three times as long as the signature, so verifying each would take longer
/// than the measurement.
const MAX_SAMPLES: usize = 4096;

/// Work before each measurement, the same for the library and for nodes, so that caches, connections and
/// clock frequencies have settled.
const WARM_UP: Duration = Duration::from_millis(200);

/// Runs `millrace bench pool`.
///
/// # Errors
/// Why there are no figures; a wrong output or a counter that does not add up is one reason.
pub fn run_pool(args: &PoolArgs) -> Result<(), BenchError> {
    let plan = PoolPlan::new(args)?;
    cores::pin(plan.load_core)?;
    if args.fairness {
        let report = fairness::measure(plan, args)?;
        report.deliver(&args.report, &fairness::render(&report))?;
        return report.goals.require(args.report.require);
    }
    if args.tenants {
        let report = tenants::measure(plan)?;
        report.deliver(&args.report, &tenants::render(&report))?;
        return report.goals.require(args.report.require);
    }
    if args.overload {
        let report = overload::measure(plan)?;
        report.deliver(&args.report, &overload::render(&report))?;
        if let Some(path) = &args.plot.svg {
            let picture = overload::plots(&report)?;
            std::fs::write(path, picture).map_err(BenchError::file("write", path))?;
        }
        return report.goals.require(args.report.require);
    }
    let report = measure(plan)?;
    report.deliver(&args.report, &results::render(&report))?;
    report.goals.require(args.report.require)
}

/// The meaning of the options.
#[derive(Clone, Debug, Serialize)]
struct PoolPlan {
    cases: Vec<Case>,
    rounds: u64,
    duration: Duration,
    window: usize,
    depths: Vec<usize>,
    /// Worker threads per class of the private nodes, one node for each entry.
    workers: Vec<usize>,
    node_core: usize,
    load_core: usize,
    /// A running node; `None` for private ones.
    pool: Option<String>,
    /// Reach the private nodes over TCP.
    tcp: bool,
}

impl PoolPlan {
    fn new(args: &PoolArgs) -> Result<Self, BenchError> {
        check_seconds(args.seconds, &MEASUREMENT)?;
        let (node_core, load_core) = cores::two(args.node_core, args.load.load_core)?;
        let case = |operation: &OperationKind| {
            let unknown = || BenchError::Usage(format!("{operation} is not measured"));
            Case::first_of(*operation).ok_or_else(unknown)
        };
        Ok(Self {
            cases: args.operations.iter().map(case).collect::<Result<_, _>>()?,
            rounds: args.rounds,
            duration: Duration::from_secs_f64(args.seconds),
            window: args.window,
            depths: args.depths.clone(),
            workers: cores::worker_counts(&args.workers)?,
            node_core,
            load_core,
            pool: args.pool.clone(),
            tcp: args.tcp,
        })
    }
}

/// Requests of the first case, for the nodes with one worker count.
struct FirstCase<'a> {
    plan: &'a PoolPlan,
    case: Case,
    requests: &'a Requests<'a>,
    workers: usize,
}

/// Measures the first case with each worker count. `of_node` makes `steps` steps of progress in each round.
fn measure_first_case<T>(
    plan: &PoolPlan,
    steps: u64,
    of_node: impl Fn(&FirstCase<'_>, &mut Progress) -> Result<(T, Vec<Goal>), BenchError>,
) -> Result<(Vec<T>, Goals), BenchError> {
    let Some(&case) = plan.cases.first() else {
        return Err(BenchError::Usage("name an operation".to_owned()));
    };
    let mut progress = Progress::start(plan.workers.len() as u64 * plan.rounds * steps)?;
    let keys = Keys::generate(case.key)?;
    let requests = &Requests::new(case, &keys)?;
    let mut measured = Vec::new();
    let mut goals = Vec::new();
    for &workers in &plan.workers {
        progress.now("starting a node")?;
        let first = FirstCase { plan, case, requests, workers };
        let (one, of_one) = of_node(&first, &mut progress)?;
        measured.push(one);
        goals.extend(of_one);
    }
    Ok((measured, Goals(goals)))
}

/// A node that this run started, or the one that `--pool` names.
struct NodeUnderTest {
    endpoint: Endpoint,
    /// Worker threads per class; `None` for a node that was not started here.
    workers: Option<usize>,
    node: Option<NodeProcess>,
}

impl NodeUnderTest {
    fn start_all(plan: &PoolPlan) -> Result<Vec<Self>, BenchError> {
        let Some(pool) = &plan.pool else {
            let workers = plan.workers.iter();
            return workers.map(|workers| Self::start(plan, *workers)).collect();
        };
        let unknown = |error| BenchError::Usage(format!("--pool: {error}"));
        Ok(vec![Self { endpoint: pool.parse().map_err(unknown)?, workers: None, node: None }])
    }

    fn start(plan: &PoolPlan, workers: usize) -> Result<Self, BenchError> {
        let node = NodeProcess::start(&NodeOptions {
            workers,
            software_only: true,
            tcp: plan.tcp,
            ..NodeOptions::on(plan.node_core)
        })?;
        Ok(Self {
            endpoint: if plan.tcp { node.tcp_endpoint("bench")? } else { node.endpoint() },
            workers: Some(workers),
            node: Some(node),
        })
    }

    /// The sum of the node's counters; `None` for a node that others use too.
    fn completed(&self) -> Result<Option<u64>, BenchError> {
        let completed = self.node.as_ref().map(NodeProcess::completed).transpose()?;
        Ok(completed.map(|by_operation| by_operation.values().sum()))
    }

    fn cpu_time(&self) -> Duration {
        self.node.as_ref().map_or(Duration::ZERO, NodeProcess::cpu_time)
    }
}

fn measure(plan: PoolPlan) -> Result<PoolReport, BenchError> {
    let steps = plan.rounds + plan.depths.len() as u64;
    let mut progress = Progress::start(plan.cases.len() as u64 * steps)?;
    progress.now("starting nodes")?;
    let mut nodes = NodeUnderTest::start_all(&plan)?;
    let mut operations = Vec::new();
    for &case in &plan.cases {
        let keys = Keys::generate(case.key)?;
        let mut requests = Requests::new(case, &keys)?;
        requests.max_samples = MAX_SAMPLES;
        let remotes = nodes.iter().map(|node| RemotePool::open(&node.endpoint, &requests));
        let mut peers = PoolPeers {
            plan: &plan,
            library: requests.has_library().then(Contender::library),
            queue: Contender::backend(MeasuredBackend::Software, 1, &keys)?,
            requests: &requests,
            remotes: remotes.collect::<Result<_, _>>()?,
        };
        let mut rounds = Vec::new();
        let mut by_depth = Vec::new();
        for number in 0..plan.rounds {
            progress.now(&format!("{case}, round {}", number + 1))?;
            rounds.push(peers.round(number, &nodes)?);
            let mut own = nodes.iter_mut().filter_map(|node| node.node.as_mut());
            own.try_for_each(NodeProcess::check)?;
            progress.step();
        }
        for &depth in &plan.depths {
            progress.now(&format!("{case}, {depth} at a time"))?;
            for (remote, node) in peers.remotes.iter().zip(&nodes) {
                let round = remote.pipelined(depth, plan.duration)?;
                by_depth.push(Depth::new(node.workers, depth, &round));
            }
            progress.step();
        }
        operations.push(MeasuredCase { case, rounds, by_depth });
    }
    let goals = results::goals(&operations);
    let figures = results::Operations { operations };
    let mut report = BenchReport::new("pool", results::SCHEMA, plan, figures);
    report.goals = goals;
    Ok(report)
}

/// The peers of one round.
struct PoolPeers<'a> {
    plan: &'a PoolPlan,
    requests: &'a Requests<'a>,
    /// Direct calls of the library; `None` if it has no interface for the case.
    library: Option<Contender>,
    queue: Contender,
    remotes: Vec<RemotePool<'a>>,
}

impl PoolPeers<'_> {
    /// Everything once: the direct calls and each node, in an order of the round's own.
    fn round(&mut self, number: u64, nodes: &[NodeUnderTest]) -> Result<PoolRound, BenchError> {
        let mut round = PoolRound::default();
        for turn in order(2 + nodes.len(), number) {
            match turn {
                0 => self.library(&mut round)?,
                1 => self.queue(&mut round)?,
                turn => {
                    let remote = &self.remotes[turn - 2];
                    let node = &nodes[turn - 2];
                    round.nodes.push(self.through(remote, node)?);
                }
            }
        }
        round.nodes.sort_by_key(|node| node.workers);
        Ok(round)
    }

    fn library(&mut self, round: &mut PoolRound) -> Result<(), BenchError> {
        let plan = self.plan;
        let requests = self.requests;
        if let Some(library) = &mut self.library {
            let rate = library.measure_on(plan.node_core, WARM_UP, requests, plan.duration)?;
            round.library_per_s = Some(rate.per_s);
        }
        if let Some(algorithm) = requests.case.speed {
            round.openssl_per_s = Some(openssl_rate(plan.node_core, algorithm, 1)?);
        }
        Ok(())
    }

    fn queue(&mut self, round: &mut PoolRound) -> Result<(), BenchError> {
        let plan = self.plan;
        let requests = self.requests;
        let queue = &mut self.queue;
        let rate = queue.measure_on(plan.node_core, WARM_UP, requests, plan.duration)?;
        round.queue_per_s = rate.per_s;
        round.queue_cpu_us = 1e6 / rate.per_core_s;
        // On this core, where the blocking client is measured too.
        self.queue.measure(requests, WARM_UP)?;
        let direct = self.queue.measure(requests, plan.duration / 2)?;
        round.direct_p50_us = direct.latencies.quantile_us(0.5);
        Ok(())
    }

    fn through(
        &self,
        remote: &RemotePool<'_>,
        node: &NodeUnderTest,
    ) -> Result<NodeRound, BenchError> {
        remote.pipelined(self.plan.window, WARM_UP)?;
        let completed = node.completed()?;
        let cpu = node.cpu_time();
        let pipelined = remote.pipelined(self.plan.window, self.plan.duration)?;
        let cpu = node.cpu_time().saturating_sub(cpu);
        if let (Some(before), Some(after)) = (completed, node.completed()?)
            && after - before != pipelined.jobs
        {
            let counted = after - before;
            let jobs = pipelined.jobs;
            let message = format!("the node counts {counted} jobs, the client {jobs}");
            return Err(BenchError::Wrong(message));
        }
        let blocking = remote.blocking(self.plan.duration, Duration::ZERO)?;
        Ok(NodeRound {
            workers: node.workers,
            jobs: pipelined.jobs,
            per_s: pipelined.per_s,
            p50_us: pipelined.latencies.quantile_us(0.5),
            p99_us: pipelined.latencies.quantile_us(0.99),
            client_cpu_us: pipelined.each_us(pipelined.client_cpu),
            cpu_us: pipelined.each_us(cpu),
            served_by: pipelined.served_by,
            blocking_p50_us: blocking.latencies.quantile_us(0.5),
            blocking_p99_us: blocking.latencies.quantile_us(0.99),
        })
    }
}
