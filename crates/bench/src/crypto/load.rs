// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Latency by offered load: an engine on one core, jobs that arrive at random times from another.
//!
//! *Open loop*: arrivals are drawn beforehand (a Poisson process) and do not depend on the ends of jobs, and a
//! latency counts from the time at which the job *should* have arrived. So a pause of the engine delays every job
//! that arrives during it, and none is left out because the generator had to wait.

use std::collections::BTreeMap;
use std::fmt;
use std::hint;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use millrace_engine::{
    Completion, CompletionSink, Engine, EngineConfig, EngineSession, Job, Key, Owner,
};
use millrace_operation::BackendKind;
use serde::Serialize;

use super::CryptoPlan;
use crate::arrivals::arrivals;
use crate::bench_key::BenchKey;
use crate::cores;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::stats::Latencies;
use crate::workload::{Case, Checks, Contender, Keys, MeasuredBackend, Requests};

/// Jobs in flight while the peak is measured: enough for full batches, few enough for a node.
const WINDOW: usize = 64;

/// A load lasts this many times as long as a measurement: a p99 needs hundreds of jobs.
const LOAD_FACTOR: u32 = 5;

/// Deadline of a job: far above anything that is not a hang.
const DEADLINE: Duration = Duration::from_secs(20);

/// The generator sleeps until this long before an arrival and then watches the clock: a sleep ends up to
/// this late.
const SPIN_BEFORE: Duration = Duration::from_micros(150);

/// The backends of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ServingBackends(pub(super) Vec<MeasuredBackend>);

impl fmt::Display for ServingBackends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(MeasuredBackend::to_string).collect();
        f.write_str(&names.join(" + "))
    }
}

/// Latencies at one load, in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtLoad {
    /// Load, in percent of the same round's peak.
    pub(super) percent: u64,
    pub(super) offered_per_s: f64,
    pub(super) jobs: usize,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Number of jobs that each backend served.
    pub(super) served_by: BTreeMap<&'static str, u64>,
}

/// One round of one engine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadRound {
    /// Closed loop, [`WINDOW`] jobs in flight.
    pub(super) peak_per_s: f64,
    /// One job at a time: the median through the engine, and of the library called directly.
    pub(super) lone_p50_us: f64,
    pub(super) direct_p50_us: f64,
    pub(super) loads: Vec<AtLoad>,
}

/// The rounds of one case with one set of backends.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Loaded {
    pub(super) operation: String,
    pub(super) key: BenchKey,
    pub(super) serving: ServingBackends,
    pub(super) rounds: Vec<LoadRound>,
}

/// Measures one case with each set of backends, interleaved.
pub(super) fn measure(
    plan: &CryptoPlan,
    case: Case,
    keys: &Keys,
    progress: &mut Progress,
) -> Result<Vec<Loaded>, BenchError> {
    let requests = Requests::new(case, keys)?;
    let mut all = Vec::new();
    for serving in servings(plan, case) {
        let driver = LoadDriver::start(plan, &requests, &serving)?;
        driver.closed(WINDOW, plan.duration)?;
        let loaded = Loaded {
            operation: case.operation.to_string(),
            key: case.key,
            serving,
            rounds: Vec::new(),
        };
        all.push((driver, loaded));
    }
    for round in 0..plan.rounds {
        for (driver, loaded) in &mut all {
            let what = format!("{case} on {}, by load, round {}", loaded.serving, round + 1);
            progress.now(&what)?;
            loaded.rounds.push(driver.round(plan, round, progress)?);
        }
        progress.step();
    }
    Ok(all.into_iter().map(|(_, loaded)| loaded).collect())
}

/// The first other backend with this operation beside the software backend, and the software backend alone.
fn servings(plan: &CryptoPlan, case: Case) -> Vec<ServingBackends> {
    let offering = plan.subjects.iter().copied();
    let offering = offering.filter(|subject| subject.offers(case.operation));
    let (software, others): (Vec<MeasuredBackend>, Vec<MeasuredBackend>) =
        offering.partition(|subject| *subject == MeasuredBackend::Software);
    let beside = others.first().map(|other| vec![*other, MeasuredBackend::Software]);
    let alone = software.first().map(|software| vec![*software]);
    beside.into_iter().chain(alone).map(ServingBackends).collect()
}

/// An engine and the jobs for it.
struct LoadDriver<'a> {
    requests: &'a Requests<'a>,
    engine: Engine,
    session: EngineSession,
    ended: Receiver<(Completion, Instant)>,
    keys: Vec<Arc<Key>>,
}

impl<'a> LoadDriver<'a> {
    /// Starts an engine with one worker per class; its threads stay on the plan's core.
    fn start(
        plan: &CryptoPlan,
        requests: &'a Requests<'a>,
        serving: &ServingBackends,
    ) -> Result<Self, BenchError> {
        let config = EngineConfig { workers: 1, ..EngineConfig::default() };
        let backends = serving.0.iter().map(|subject| subject.make()).collect();
        let engine = cores::pinned(plan.core, || Engine::start(config, backends))?
            .map_err(|error| BenchError::Setup(format!("cannot start an engine: {error}")))?;
        Self::on(engine, requests)
    }

    /// Loads the keys into an engine, which ends with the driver.
    fn on(engine: Engine, requests: &'a Requests<'a>) -> Result<Self, BenchError> {
        let (sink, ended) = channel();
        let session = engine.open_session(Arc::new(Sink(sink)), Owner::new(1, 1));
        let keys = requests.keys.private_keys().map(|key| engine.load_key(&key));
        let keys = keys.collect::<Result<_, _>>();
        Ok(Self {
            requests,
            session,
            ended,
            keys: keys
                .map_err(|error| BenchError::Setup(format!("the engine refused a key: {error}")))?,
            engine,
        })
    }

    fn round(
        &self,
        plan: &CryptoPlan,
        number: usize,
        progress: &Progress,
    ) -> Result<LoadRound, BenchError> {
        let time = plan.duration * LOAD_FACTOR;
        let lone = self.closed(1, plan.duration)?;
        // On this core: what a caller of the library would have had.
        let direct = Contender::library().measure(self.requests, plan.duration)?;
        let mut round = LoadRound {
            peak_per_s: self.closed(WINDOW, time / 2)?.per_s,
            lone_p50_us: lone.latencies.quantile_us(0.5),
            direct_p50_us: direct.latencies.quantile_us(0.5),
            loads: Vec::new(),
        };
        for &percent in &plan.loads {
            progress.check()?;
            let offered_per_s = round.peak_per_s * percent as f64 / 100.0;
            let ended = self.open(offered_per_s, time, percent + 1000 * number as u64)?;
            round.loads.push(AtLoad {
                percent,
                offered_per_s,
                jobs: ended.jobs,
                p50_us: ended.latencies.quantile_us(0.5),
                p99_us: ended.latencies.quantile_us(0.99),
                served_by: ended.served_by,
            });
        }
        Ok(round)
    }

    /// Closed loop: `window` jobs in flight.
    fn closed(&self, window: usize, time: Duration) -> Result<Ended<'_>, BenchError> {
        let mut ended = Ended::new(self.requests);
        let start = Instant::now();
        let mut sent = Vec::new();
        loop {
            // At least one window, however busy the machine is.
            let over = start.elapsed() >= time && !sent.is_empty();
            let waiting = sent.len() - ended.jobs;
            if over && waiting == 0 {
                break;
            }
            let room = if over { 0 } else { window - waiting };
            if room > 0 {
                let jobs = (sent.len()..sent.len() + room).map(|index| self.job(index));
                let jobs = jobs.collect();
                sent.resize(sent.len() + room, Instant::now());
                self.engine.submit(jobs);
            }
            for completion in self.completions()? {
                ended.take(completion, &sent)?;
            }
        }
        ended.finish(start)
    }

    /// Open loop: jobs arrive at random, `per_s` per second on average.
    fn open(&self, per_s: f64, time: Duration, seed: u64) -> Result<Ended<'_>, BenchError> {
        let arrivals = arrivals(per_s, time, seed);
        let start = Instant::now() + SPIN_BEFORE;
        let due: Vec<Instant> = arrivals.iter().map(|after| start + *after).collect();
        let mut ended = Ended::new(self.requests);
        for (index, due) in due.iter().enumerate() {
            wait_until(*due);
            self.engine.submit(vec![self.job(index)]);
        }
        while ended.jobs < due.len() {
            for completion in self.completions()? {
                ended.take(completion, &due)?;
            }
        }
        ended.finish(start)
    }

    /// All completions since the last call; waits until there is one.
    fn completions(&self) -> Result<impl Iterator<Item = (Completion, Instant)>, BenchError> {
        let never = |_| BenchError::Wrong("jobs never ended".to_owned());
        let first = self.ended.recv_timeout(DEADLINE).map_err(never)?;
        Ok([first].into_iter().chain(self.ended.try_iter()))
    }

    fn job(&self, index: usize) -> Job {
        Job {
            id: index as u64,
            session: self.session.clone(),
            key: Arc::clone(&self.keys[self.requests.key_of(index)]),
            operation: self.requests.operation.clone(),
            input: self.requests.input(index),
            deadline: Instant::now() + DEADLINE,
        }
    }
}

impl Drop for LoadDriver<'_> {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

pub(crate) fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > 2 * SPIN_BEFORE {
            thread::sleep(left - SPIN_BEFORE);
        } else {
            hint::spin_loop();
        }
    }
}

/// Passes completions on, with the time of their arrival.
struct Sink(Sender<(Completion, Instant)>);

impl CompletionSink for Sink {
    fn complete(&self, completions: &mut Vec<Completion>) {
        let now = Instant::now();
        for completion in completions.drain(..) {
            // The receiver is gone only when the measurement has ended.
            let _ = self.0.send((completion, now));
        }
    }
}

/// The completions of one loop.
struct Ended<'a> {
    jobs: usize,
    per_s: f64,
    latencies: Latencies,
    served_by: BTreeMap<&'static str, u64>,
    checks: Checks,
    requests: &'a Requests<'a>,
}

impl<'a> Ended<'a> {
    fn new(requests: &'a Requests<'a>) -> Self {
        Self {
            requests,
            jobs: 0,
            per_s: 0.0,
            latencies: Latencies::default(),
            served_by: BTreeMap::new(),
            checks: Checks::default(),
        }
    }

    /// One completion of a job that should have started at `since[id]`.
    fn take(
        &mut self,
        (completion, ended): (Completion, Instant),
        since: &[Instant],
    ) -> Result<(), BenchError> {
        let index = usize::try_from(completion.id).unwrap_or(usize::MAX);
        let output = completion
            .result
            .map_err(|error| BenchError::Wrong(format!("{}: {error}", self.requests.case)))?;
        let since = since.get(index).ok_or_else(|| self.requests.wrong(index))?;
        self.checks.take(self.requests, index, &output)?;
        self.latencies.push(ended.saturating_duration_since(*since));
        let name = completion.served_by.map_or("unknown", BackendKind::name);
        *self.served_by.entry(name).or_default() += 1;
        self.jobs += 1;
        Ok(())
    }

    fn finish(mut self, start: Instant) -> Result<Self, BenchError> {
        self.per_s = self.jobs as f64 / start.elapsed().as_secs_f64();
        std::mem::take(&mut self.checks).verify(self.requests)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use millrace_operation::OperationKind;

    use super::*;

    #[test]
    fn every_job_of_an_open_loop_ends_and_counts_from_its_arrival() {
        let keys = Keys::generate(BenchKey::P256).expect("keys");
        let case = Case::find(OperationKind::EcdsaSign, BenchKey::P256).expect("a case");
        let requests = Requests::new(case, &keys).expect("inputs");
        let core = cores::usable().expect("affinity")[0];
        let plan = CryptoPlan::for_tests(core);
        let serving = ServingBackends(vec![MeasuredBackend::Software]);
        let driver = LoadDriver::start(&plan, &requests, &serving).expect("an engine");
        let time = Duration::from_millis(50);
        let ended = driver.open(500.0, time, 3).expect("right outputs");
        assert_eq!(ended.jobs, arrivals(500.0, time, 3).len());
        assert_eq!(ended.served_by.get("software"), Some(&(ended.jobs as u64)));
        let closed = driver.closed(3, time).expect("right outputs");
        assert!(closed.jobs > 0);
    }
}
