// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations through a node.
//!
//! Pipelined, this thread keeps a fixed number of jobs in flight, while the client's I/O thread takes completions,
//! as in a gateway with many connections. Blocking, one thread does one job after the other: the latency at
//! concurrency 1.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use millrace_client::{ClientError, Endpoint, NodeReply, Pool, PoolConfig, RemoteKey};
use millrace_operation::sync::lock;
use millrace_operation::{Operation, PrivateKey};

use crate::cores;
use crate::error::BenchError;
use crate::stats::Latencies;
use crate::workload::{Checks, Requests};

/// Deadline of a job: far above anything that a healthy node takes, so that a hang ends the run.
const DEADLINE: Duration = Duration::from_secs(10);

/// The load is topped up when this part of it has ended: often enough that the node never starves,
/// seldom enough that jobs leave in batches, as they do from a busy gateway.
const TOP_UP: usize = 4;

/// The jobs of one round through a node.
#[derive(Default)]
pub(crate) struct RemoteRound {
    pub(crate) jobs: u64,
    pub(crate) per_s: f64,
    /// CPU time of this whole process: client and load generator.
    pub(crate) client_cpu: Duration,
    pub(crate) latencies: Latencies,
    /// Times in the node's queue, and with a backend, as the completions say.
    pub(crate) queued: Latencies,
    pub(crate) served: Latencies,
    /// Number of jobs that each backend served, as the completions say.
    pub(crate) served_by: BTreeMap<&'static str, u64>,
}

impl RemoteRound {
    /// CPU time per job, in microseconds.
    pub(crate) fn each_us(&self, cpu: Duration) -> f64 {
        cpu.as_secs_f64() * 1e6 / self.jobs as f64
    }
}

/// The keys, operation and inputs of a case, for any thread.
#[derive(Clone)]
pub(super) struct Parcel {
    keys: Vec<PrivateKey>,
    operation: Operation,
    inputs: Vec<Vec<u8>>,
}

impl Parcel {
    pub(super) fn of(requests: &Requests<'_>) -> Self {
        Self {
            keys: requests.keys.private_keys().collect(),
            operation: requests.operation.clone(),
            inputs: requests.inputs().collect(),
        }
    }
}

/// A connection to a node that has the keys of a case in its session, for any thread.
pub(super) struct Sender {
    pool: Pool,
    keys: Vec<RemoteKey>,
    parcel: Parcel,
}

impl Sender {
    /// Connects, and imports the keys into the session.
    pub(super) fn open(endpoint: &Endpoint, parcel: Parcel) -> Result<Self, ClientError> {
        let pool = Pool::new(PoolConfig::new(vec![endpoint.clone()]).agent("millrace-bench"));
        let import = |key: &PrivateKey| pool.import_key(key.clone(), Instant::now() + DEADLINE);
        Ok(Self { keys: parcel.keys.iter().map(import).collect::<Result<_, _>>()?, pool, parcel })
    }

    /// Sends request number `index`; `done` is called once, on the client's I/O thread.
    pub(super) fn send(
        &self,
        index: usize,
        deadline: Instant,
        done: Box<dyn FnOnce(Result<NodeReply, ClientError>) + Send>,
    ) -> Result<(), ClientError> {
        let operation = self.parcel.operation.clone();
        let input = self.input(index).clone();
        let sent = self.pool.submit(self.key(index), operation, input, deadline, done);
        sent.map(drop)
    }

    fn key(&self, index: usize) -> &RemoteKey {
        &self.keys[index % self.keys.len()]
    }

    fn input(&self, index: usize) -> &Vec<u8> {
        &self.parcel.inputs[index % self.parcel.inputs.len()]
    }
}

/// A [`Sender`] whose outputs are verified.
pub(crate) struct RemotePool<'a> {
    sender: Sender,
    requests: &'a Requests<'a>,
}

impl<'a> RemotePool<'a> {
    /// Connects, and imports the keys into the session.
    pub(crate) fn open(
        endpoint: &Endpoint,
        requests: &'a Requests<'a>,
    ) -> Result<Self, BenchError> {
        let sender = Sender::open(endpoint, Parcel::of(requests));
        let sender = sender.map_err(|error| failed(requests, &error))?;
        Ok(Self { sender, requests })
    }

    /// Blocking calls from this thread, one after the other, with a pause between them.
    pub(crate) fn blocking(
        &self,
        duration: Duration,
        pause: Duration,
    ) -> Result<RemoteRound, BenchError> {
        let mut tally = self.tally();
        let cpu = cores::own_cpu_time();
        let start = Instant::now();
        let mut index = 0;
        while start.elapsed() < duration {
            let Sender { pool, parcel, .. } = &self.sender;
            let key = self.sender.key(index);
            let input = self.sender.input(index);
            let sent = Instant::now();
            let reply = pool.call(key, &parcel.operation, input, sent + DEADLINE);
            tally.take(index, sent.elapsed(), reply);
            index += 1;
            if !pause.is_zero() {
                thread::sleep(pause);
            }
        }
        let cpu = cores::own_cpu_time().saturating_sub(cpu);
        self.finish(tally, start.elapsed(), cpu)
    }

    /// `window` jobs in flight, topped up from this thread.
    pub(crate) fn pipelined(
        &self,
        window: usize,
        duration: Duration,
    ) -> Result<RemoteRound, BenchError> {
        let top_up = (window / TOP_UP).max(1);
        let shared = Arc::new(PipelinedRound {
            tally: Mutex::new(self.tally()),
            feeder: thread::current(),
            wake_at: top_up,
        });
        let cpu = cores::own_cpu_time();
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < duration {
            let ended = shared.ended();
            if window - (sent - ended) < top_up {
                thread::park_timeout(DEADLINE);
                continue;
            }
            for _ in 0..window - (sent - ended) {
                self.submit(sent, &shared)?;
                sent += 1;
            }
        }
        let deadline = Instant::now() + DEADLINE;
        while shared.ended() < sent {
            if Instant::now() > deadline {
                let case = self.requests.case;
                return Err(BenchError::Wrong(format!("{case}: jobs never ended")));
            }
            thread::park_timeout(Duration::from_millis(1));
        }
        let elapsed = start.elapsed();
        let cpu = cores::own_cpu_time().saturating_sub(cpu);
        let tally = std::mem::take(&mut *shared.lock());
        self.finish(tally, elapsed, cpu)
    }

    fn tally(&self) -> Tally {
        Tally { max_samples: self.requests.max_samples, ..Tally::default() }
    }

    fn submit(&self, index: usize, shared: &Arc<PipelinedRound>) -> Result<(), BenchError> {
        let shared = Arc::clone(shared);
        let sent = Instant::now();
        let done = move |result| shared.take(index, sent.elapsed(), result);
        self.sender
            .send(index, sent + DEADLINE, Box::new(done))
            .map_err(|error| failed(self.requests, &error))
    }

    fn finish(
        &self,
        tally: Tally,
        elapsed: Duration,
        cpu: Duration,
    ) -> Result<RemoteRound, BenchError> {
        if let Some(error) = tally.failure {
            return Err(failed(self.requests, &error));
        }
        tally.checks.verify(self.requests)?;
        Ok(RemoteRound {
            jobs: tally.ended as u64,
            per_s: tally.ended as f64 / elapsed.as_secs_f64(),
            client_cpu: cpu,
            latencies: tally.latencies,
            queued: tally.queued,
            served: tally.served,
            served_by: tally.served_by,
        })
    }
}

/// The state shared by the thread that feeds and the one that takes completions.
struct PipelinedRound {
    tally: Mutex<Tally>,
    feeder: Thread,
    /// The feeder is woken each time this number of further jobs has ended.
    wake_at: usize,
}

impl PipelinedRound {
    fn lock(&self) -> std::sync::MutexGuard<'_, Tally> {
        lock(&self.tally)
    }

    fn ended(&self) -> usize {
        self.lock().ended
    }

    fn take(&self, index: usize, latency: Duration, result: Result<NodeReply, ClientError>) {
        let mut tally = self.lock();
        tally.take(index, latency, result);
        if tally.ended.is_multiple_of(self.wake_at) {
            drop(tally);
            self.feeder.unpark();
        }
    }
}

#[derive(Default)]
struct Tally {
    max_samples: usize,
    ended: usize,
    latencies: Latencies,
    queued: Latencies,
    served: Latencies,
    checks: Checks,
    served_by: BTreeMap<&'static str, u64>,
    failure: Option<ClientError>,
}

impl Tally {
    fn take(&mut self, index: usize, latency: Duration, result: Result<NodeReply, ClientError>) {
        self.ended += 1;
        match result {
            Ok(reply) => {
                self.latencies.push(latency);
                self.queued.push(reply.queue_time);
                self.served.push(reply.service_time);
                let backend = reply.served_by.map_or("unknown", |backend| backend.name());
                *self.served_by.entry(backend).or_default() += 1;
                self.checks.keep(self.max_samples, index, || reply.output.to_vec());
            }
            Err(error) => self.failure = Some(error),
        }
    }
}

fn failed(requests: &Requests<'_>, error: &ClientError) -> BenchError {
    BenchError::Wrong(format!("{} through the node: {error}", requests.case))
}
