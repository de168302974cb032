// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench pool`: operations through a node against the same library called directly.
//!
//! ```text
//!   core 0                              core 1
//!   A  this process calls the library   (idle)
//!   B  the node, one worker per class ◄─ unix socket ─ this process: client, pipelined
//!   C  the node                       ◄─ unix socket ─ this process: client, one at a time
//! ```
//!
//! A, B and C alternate, so that what is compared shares the machine's mood. A is measured twice: the
//! library through its own interface, and through the software backend's queue (which adds Millrace's
//! own verification). `openssl speed` on the same core is the second peer.

mod direct;
pub(crate) mod remote;
mod results;
pub(crate) mod workload;

use std::time::Duration;

use millrace_client::Endpoint;
use serde::Serialize;
use tempfile::TempDir;

use self::direct::Backed;
use self::remote::Remote;
use self::results::{Depth, Results, Round};
use self::workload::Job;
pub use self::workload::Workload;
use crate::cli::{PoolArgs, check_seconds};
use crate::cores;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::node::{Node, NodeOptions};
use crate::process::Stop;
use crate::progress::Progress;
use crate::report;
use crate::speed::openssl_sign_rate;

/// Outputs that are kept per round to be checked after it. All of them in short rounds, else every
/// second, fourth, …: a P-256 verification takes three times as long as the signature, so checking
/// each would take longer than the measurement.
const MAX_SAMPLES: usize = 4096;

/// Bounds of a measurement, in seconds: shorter ones are noise, longer ones a typing error.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=600.0;

/// Load before the first round, so that connections and clock frequencies have settled.
const WARM_UP: Duration = Duration::from_millis(200);

/// Runs the measurement and prints it.
pub(crate) fn run(args: &PoolArgs) -> Result<(), BenchError> {
    let plan = Plan::new(args)?;
    let stop = Stop::on_signals()?;
    cores::pin(plan.load_core)?;
    let results = measure(&plan, &stop)?;
    match &args.json {
        Some(path) if path.as_os_str() == "-" => report::write_json(&results, path),
        json => {
            report::print(&results.render())?;
            json.as_ref()
                .map_or(Ok(()), |path| report::write_json(&results, path))
        }
    }
}

/// What the options mean.
#[derive(Clone, Debug, Serialize)]
struct Plan {
    workloads: Vec<Workload>,
    rounds: u64,
    duration: Duration,
    window: usize,
    depths: Vec<usize>,
    node_core: usize,
    load_core: usize,
    /// A node that runs already; nothing for a private one.
    pool: Option<String>,
    /// Reach the private node over TCP.
    tcp: bool,
}

impl Plan {
    fn new(args: &PoolArgs) -> Result<Self, BenchError> {
        check_seconds(args.seconds, &SECONDS)?;
        let (node_core, load_core) = cores::two(args.node_core, args.load_core)?;
        let size = |value: &u64| usize::try_from(*value).unwrap_or(usize::MAX);
        let mut workloads = args.operation.clone();
        workloads.sort_unstable();
        workloads.dedup();
        Ok(Self {
            workloads,
            rounds: args.rounds,
            duration: Duration::from_secs_f64(args.seconds),
            window: size(&args.window),
            depths: args.depth.iter().map(size).collect(),
            node_core,
            load_core,
            pool: args.pool.clone(),
            tcp: args.tcp,
        })
    }
}

/// The node under test and the folder that it lives in.
struct Subject {
    endpoint: Endpoint,
    node: Option<Node>,
    _dir: Option<TempDir>,
}

impl Subject {
    fn start(plan: &Plan) -> Result<Self, BenchError> {
        let parse = |text: &str| {
            text.parse::<Endpoint>()
                .map_err(|error| BenchError::Usage(format!("--pool: {error}")))
        };
        if let Some(pool) = &plan.pool {
            return Ok(Self {
                endpoint: parse(pool)?,
                node: None,
                _dir: None,
            });
        }
        let dir = tempfile::Builder::new()
            .prefix("millrace-bench-")
            .tempdir()
            .map_err(BenchError::system("create a temporary folder"))?;
        let node = Node::start(
            dir.path(),
            &NodeOptions {
                core: plan.node_core,
                workers: 1,
                software_only: true,
                tcp: plan.tcp,
            },
        )?;
        let endpoint = match node.tcp_endpoint()? {
            Some(tcp) => tcp,
            None => parse(&node.endpoint())?,
        };
        Ok(Self {
            endpoint,
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

fn measure(plan: &Plan, stop: &Stop) -> Result<Results, BenchError> {
    let depths = plan.depths.len() as u64;
    let mut progress = Progress::new(plan.workloads.len() as u64 * (plan.rounds + depths));
    progress.now("starting a node");
    let mut subject = Subject::start(plan)?;
    let mut results = Results::new(Machine::here(), plan);
    for &workload in &plan.workloads {
        let job = Job::new(workload)?;
        let mut backed = Backed::new(&job)?;
        let remote = Remote::open(&subject.endpoint, &job)?;
        remote.pipelined(plan.window, WARM_UP)?;
        let mut rounds = Vec::new();
        for number in 0..plan.rounds {
            progress.now(&format!("{workload}, round {}", number + 1));
            let mut peers = Peers {
                plan,
                job: &job,
                backed: &mut backed,
                remote: &remote,
            };
            rounds.push(peers.round(number, &subject)?);
            if let Some(node) = &mut subject.node {
                node.check()?;
            }
            stop.check()?;
            progress.step();
        }
        let mut by_depth = Vec::new();
        for &depth in &plan.depths {
            progress.now(&format!("{workload}, {depth} at a time"));
            let round = remote.pipelined(depth, plan.duration)?;
            by_depth.push(Depth::new(depth, round));
            stop.check()?;
            progress.step();
        }
        results.add(workload, rounds, by_depth);
    }
    Ok(results)
}

/// What is compared within one round.
struct Peers<'a> {
    plan: &'a Plan,
    job: &'a Job,
    backed: &'a mut Backed,
    remote: &'a Remote<'a>,
}

impl Peers<'_> {
    /// Direct and remote in turn; which comes first alternates.
    fn round(&mut self, number: u64, subject: &Subject) -> Result<Round, BenchError> {
        let mut round = Round::default();
        if number.is_multiple_of(2) {
            self.direct(&mut round)?;
            self.through_the_node(&mut round, subject)?;
        } else {
            self.through_the_node(&mut round, subject)?;
            self.direct(&mut round)?;
        }
        Ok(round)
    }

    fn direct(&mut self, round: &mut Round) -> Result<(), BenchError> {
        let (plan, job) = (self.plan, self.job);
        let library = cores::pinned(plan.node_core, || direct::library(job, plan.duration))??;
        round.library_per_s = library.per_s;
        round.library_cpu_us = library.cpu_us;
        let backed = cores::pinned(plan.node_core, || self.backed.measure(job, plan.duration))??;
        round.queue_per_s = backed.per_s;
        round.queue_cpu_us = backed.cpu_us;
        if let Some(key) = job.workload.speed_key() {
            round.openssl_per_s = Some(openssl_sign_rate(plan.node_core, key, 1)?);
        }
        // On this core, where the blocking client is measured too.
        round.direct_p50_us = direct::library(job, plan.duration / 2)?
            .latencies
            .quantile_us(0.5);
        Ok(())
    }

    fn through_the_node(&self, round: &mut Round, subject: &Subject) -> Result<(), BenchError> {
        let completed = subject.completed()?;
        let cpu = subject.cpu_time();
        let mut remote = self
            .remote
            .pipelined(self.plan.window, self.plan.duration)?;
        let cpu = subject.cpu_time().saturating_sub(cpu);
        if let (Some(before), Some(after)) = (completed, subject.completed()?)
            && after - before != remote.jobs
        {
            let (counted, jobs) = (after - before, remote.jobs);
            let message = format!("the node counts {counted} jobs, the client {jobs}");
            return Err(BenchError::Wrong(message));
        }
        round.jobs = remote.jobs;
        round.node_per_s = remote.per_s;
        round.node_p50_us = remote.latencies.quantile_us(0.5);
        round.node_p99_us = remote.latencies.quantile_us(0.99);
        round.client_cpu_us = remote.client_cpu_us;
        round.node_cpu_us = cpu.as_secs_f64() * 1e6 / remote.jobs as f64;
        round.served_by = remote.served_by;
        let mut blocking = self.remote.blocking(self.plan.duration)?;
        round.blocking_p50_us = blocking.latencies.quantile_us(0.5);
        round.blocking_p99_us = blocking.latencies.quantile_us(0.99);
        Ok(())
    }
}

/// An output that is checked after its round.
struct Sample {
    index: usize,
    output: Vec<u8>,
}

/// A bounded, evenly spread choice of outputs: when it is full, every second one goes and from then on
/// only half as many are taken.
struct Samples {
    kept: Vec<Sample>,
    offered: usize,
    every: usize,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            offered: 0,
            every: 1,
        }
    }
}

impl Samples {
    fn offer(&mut self, sample: impl FnOnce() -> Sample) {
        if self.offered.is_multiple_of(self.every) {
            if self.kept.len() == MAX_SAMPLES {
                let mut keep = false;
                self.kept.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.every *= 2;
            }
            if self.offered.is_multiple_of(self.every) {
                self.kept.push(sample());
            }
        }
        self.offered += 1;
    }

    fn check(&self, job: &Job) -> Result<(), BenchError> {
        if self.kept.is_empty() {
            return Err(BenchError::Wrong(format!(
                "{}: nothing was done",
                job.workload
            )));
        }
        self.kept
            .iter()
            .try_for_each(|sample| job.check(sample.index, &sample.output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stay_bounded_and_evenly_spread() {
        let mut samples = Samples::default();
        for index in 0..5 * MAX_SAMPLES {
            samples.offer(|| Sample {
                index,
                output: Vec::new(),
            });
        }
        assert!(samples.kept.len() <= MAX_SAMPLES && samples.kept.len() > MAX_SAMPLES / 2);
        let step = samples.every;
        assert!(
            samples
                .kept
                .iter()
                .enumerate()
                .all(|(at, sample)| sample.index == at * step)
        );
    }
}
