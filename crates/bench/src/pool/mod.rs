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
//! A, B and C take turns in each round, in another order each time, each after a warm-up of its own. All get
//! the same keys and inputs: where a node takes a digest, the library is given the digest. B is the peer of
//! the numbers to reach, because it is the same library called with the least around it, verification
//! included. `openssl speed` on the same core is a further peer.
//!
//! With `--fairness` it measures something else: see [`fairness`].

mod fairness;
pub(crate) mod remote;
mod results;

use std::time::Duration;

use millrace_client::Endpoint;
use millrace_engine::OperationKind;
use serde::Serialize;
use tempfile::TempDir;

use self::remote::Remote;
use self::results::{Depth, NodeRound, PoolReport, PoolRound};
use crate::cli::{PoolArgs, check_seconds};
use crate::cores;
use crate::error::BenchError;
use crate::node::{Node, NodeOptions};
use crate::process::Stop;
use crate::progress::Progress;
use crate::report;
use crate::speed::openssl_rate;
use crate::stats::order;
use crate::workload::{Case, Contender, Keys, Requests, Subject};

/// Outputs that are kept per round to be verified after it: all of them in short rounds, else an even sample.
/// A P-256 verification takes three times as long as the signature, so verifying each would take longer
/// than the measurement.
const MAX_SAMPLES: usize = 4096;

/// Bounds of a measurement, in seconds: shorter ones are noise, longer ones a typing error.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

/// Work before each measurement, the same for the library and for nodes, so that caches, connections and
/// clock frequencies have settled.
const WARM_UP: Duration = Duration::from_millis(200);

/// Runs the measurement and prints it.
pub(crate) fn run(args: &PoolArgs) -> Result<(), BenchError> {
    let plan = PoolPlan::new(args)?;
    let stop = Stop::on_signals()?;
    cores::pin(plan.load_core)?;
    if args.fairness {
        let results = fairness::measure(&plan, args, &stop)?;
        report::deliver(&results, args.json.as_deref(), || results.render())?;
        return results.goals.require(args.require);
    }
    let results = measure(&plan, &stop)?;
    report::deliver(&results, args.json.as_deref(), || results.render())?;
    results.goals.require(args.require)
}

/// What the options mean.
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
    /// A node that runs already; nothing for private ones.
    pool: Option<String>,
    /// Reach the private nodes over TCP.
    tcp: bool,
}

impl PoolPlan {
    fn new(args: &PoolArgs) -> Result<Self, BenchError> {
        check_seconds(args.seconds, &SECONDS)?;
        let (node_core, load_core) = cores::two(args.node_core, args.load_core)?;
        let case = |operation: &OperationKind| {
            Case::first_of(*operation)
                .ok_or_else(|| BenchError::Usage(format!("{operation} is not measured")))
        };
        Ok(Self {
            cases: args.operation.iter().map(case).collect::<Result<_, _>>()?,
            rounds: args.rounds,
            duration: Duration::from_secs_f64(args.seconds),
            window: args.window,
            depths: args.depth.clone(),
            workers: cores::worker_counts(&args.workers)?,
            node_core,
            load_core,
            pool: args.pool.clone(),
            tcp: args.tcp,
        })
    }
}

/// A node under test and the folder that it lives in.
struct NodeUnderTest {
    endpoint: Endpoint,
    /// Worker threads per class; unknown for a node that was not started here.
    workers: Option<usize>,
    node: Option<Node>,
    _dir: Option<TempDir>,
}

impl NodeUnderTest {
    fn start_all(plan: &PoolPlan) -> Result<Vec<Self>, BenchError> {
        let Some(pool) = &plan.pool else {
            return plan
                .workers
                .iter()
                .map(|workers| Self::start(plan, *workers))
                .collect();
        };
        Ok(vec![Self {
            endpoint: parse(pool)?,
            workers: None,
            node: None,
            _dir: None,
        }])
    }

    fn start(plan: &PoolPlan, workers: usize) -> Result<Self, BenchError> {
        let dir = crate::process::temporary_folder()?;
        let options = NodeOptions {
            core: plan.node_core,
            workers,
            software_only: true,
            tcp: plan.tcp,
        };
        let node = Node::start(dir.path(), &options)?;
        let endpoint = match plan.tcp {
            true => node.tcp_endpoint("bench")?,
            false => parse(&node.endpoint())?,
        };
        Ok(Self {
            endpoint,
            workers: Some(workers),
            node: Some(node),
            _dir: Some(dir),
        })
    }

    /// What the node's own counters say; nothing for a node that others use too.
    fn completed(&self) -> Result<Option<u64>, BenchError> {
        let completed = self.node.as_ref().map(Node::completed).transpose()?;
        Ok(completed.map(|by_operation| by_operation.values().sum()))
    }

    fn cpu_time(&self) -> Duration {
        self.node.as_ref().map_or(Duration::ZERO, Node::cpu_time)
    }
}

fn parse(text: &str) -> Result<Endpoint, BenchError> {
    text.parse()
        .map_err(|error| BenchError::Usage(format!("--pool: {error}")))
}

fn measure(plan: &PoolPlan, stop: &Stop) -> Result<PoolReport, BenchError> {
    let depths = plan.depths.len() as u64;
    let mut progress = Progress::new(plan.cases.len() as u64 * (plan.rounds + depths));
    progress.now("starting nodes");
    let mut nodes = NodeUnderTest::start_all(plan)?;
    let mut results = PoolReport::new(plan);
    for &case in &plan.cases {
        let keys = Keys::generate(case.key)?;
        let mut requests = Requests::new(case, &keys)?;
        requests.max_samples = MAX_SAMPLES;
        let remotes: Result<Vec<_>, _> = nodes
            .iter()
            .map(|node| Remote::open(&node.endpoint, &requests))
            .collect();
        let mut peers = Peers {
            plan,
            library: requests.has_library().then(Contender::library),
            queue: Contender::backend(Subject::Software, 1, &keys)?,
            requests: &requests,
            remotes: remotes?,
        };
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            progress.now(&format!("{case}, round {}", number + 1));
            rounds.push(peers.round(number, &nodes)?);
            for node in nodes.iter_mut().filter_map(|node| node.node.as_mut()) {
                node.check()?;
            }
            stop.check()?;
            progress.step();
        }
        let mut by_depth = Vec::new();
        for &depth in &plan.depths {
            progress.now(&format!("{case}, {depth} at a time"));
            for (remote, node) in peers.remotes.iter().zip(&nodes) {
                let round = remote.pipelined(depth, plan.duration)?;
                by_depth.push(Depth::new(node.workers, depth, &round));
            }
            stop.check()?;
            progress.step();
        }
        results.add(case, rounds, by_depth);
    }
    Ok(results)
}

/// What is compared within one round.
struct Peers<'a> {
    plan: &'a PoolPlan,
    requests: &'a Requests<'a>,
    /// None where the library has no interface for the case.
    library: Option<Contender>,
    queue: Contender,
    remotes: Vec<Remote<'a>>,
}

impl Peers<'_> {
    /// Everything once: the direct calls and each node, in an order of the round's own.
    fn round(&mut self, number: u64, nodes: &[NodeUnderTest]) -> Result<PoolRound, BenchError> {
        let mut round = PoolRound::default();
        for turn in order(2 + nodes.len(), number) {
            match turn {
                0 => self.library(&mut round)?,
                1 => self.queue(&mut round)?,
                node => {
                    let node = node - 2;
                    round
                        .nodes
                        .push(self.through(&self.remotes[node], &nodes[node])?);
                }
            }
        }
        round.nodes.sort_by_key(|node| node.workers);
        Ok(round)
    }

    fn library(&mut self, round: &mut PoolRound) -> Result<(), BenchError> {
        let (plan, requests) = (self.plan, self.requests);
        if let Some(library) = &mut self.library {
            let rate = cores::pinned(plan.node_core, || {
                library.measure(requests, WARM_UP)?;
                library.measure(requests, plan.duration)
            })??;
            round.library_per_s = Some(rate.per_s);
        }
        if let Some(algorithm) = requests.case.speed {
            round.openssl_per_s = Some(openssl_rate(plan.node_core, algorithm, 1)?);
        }
        Ok(())
    }

    fn queue(&mut self, round: &mut PoolRound) -> Result<(), BenchError> {
        let (plan, requests) = (self.plan, self.requests);
        let rate = cores::pinned(plan.node_core, || {
            self.queue.measure(requests, WARM_UP)?;
            self.queue.measure(requests, plan.duration)
        })??;
        round.queue_per_s = rate.per_s;
        round.queue_cpu_us = 1e6 / rate.per_core_s;
        // On this core, where the blocking client is measured too.
        self.queue.measure(requests, WARM_UP)?;
        let direct = self.queue.measure(requests, plan.duration / 2)?;
        round.direct_p50_us = direct.latencies.quantile_us(0.5);
        Ok(())
    }

    fn through(&self, remote: &Remote<'_>, node: &NodeUnderTest) -> Result<NodeRound, BenchError> {
        remote.pipelined(self.plan.window, WARM_UP)?;
        let completed = node.completed()?;
        let cpu = node.cpu_time();
        let pipelined = remote.pipelined(self.plan.window, self.plan.duration)?;
        let cpu = node.cpu_time().saturating_sub(cpu);
        if let (Some(before), Some(after)) = (completed, node.completed()?)
            && after - before != pipelined.jobs
        {
            let (counted, jobs) = (after - before, pipelined.jobs);
            let message = format!("the node counts {counted} jobs, the client {jobs}");
            return Err(BenchError::Wrong(message));
        }
        let blocking = remote.blocking(self.plan.duration)?;
        Ok(NodeRound {
            workers: node.workers,
            jobs: pipelined.jobs,
            per_s: pipelined.per_s,
            p50_us: pipelined.latencies.quantile_us(0.5),
            p99_us: pipelined.latencies.quantile_us(0.99),
            client_cpu_us: pipelined.client_cpu_us,
            cpu_us: cpu.as_secs_f64() * 1e6 / pipelined.jobs as f64,
            served_by: pipelined.served_by,
            blocking_p50_us: blocking.latencies.quantile_us(0.5),
            blocking_p99_us: blocking.latencies.quantile_us(0.99),
        })
    }
}
