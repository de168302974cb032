// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The peer: the same operation without a node, on the calling thread.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, BackendKey, Queue, Task};

use super::workload::Job;
use super::{Sample, Samples};
use crate::cores;
use crate::error::BenchError;
use crate::stats::Latencies;

/// What a round of direct calls brought.
pub(super) struct DirectRound {
    pub(super) per_s: f64,
    /// CPU time per operation.
    pub(super) cpu_us: f64,
    pub(super) latencies: Latencies,
}

/// Calls the library itself, one operation after the other.
pub(super) fn library(job: &Job, duration: Duration) -> Result<DirectRound, BenchError> {
    run(job, duration, |index| job.run_library(index))
}

/// The software backend, called through its queue as an engine's worker would, but with one task at a
/// time and nothing else around it.
pub(super) struct Backed {
    key: BackendKey,
    queue: Box<dyn Queue>,
    // Keeps the key alive.
    _backend: Software,
}

impl Backed {
    pub(super) fn new(job: &Job) -> Result<Self, BenchError> {
        let backend = Software::new();
        let key = backend
            .open_key(&job.key)
            .map_err(|error| BenchError::Setup(format!("the software backend refused: {error}")))?;
        let queue = backend
            .open_queue()
            .map_err(|error| BenchError::Setup(format!("the software backend: {error}")))?;
        Ok(Self {
            key: key.key,
            queue,
            _backend: backend,
        })
    }

    pub(super) fn measure(
        &mut self,
        job: &Job,
        duration: Duration,
    ) -> Result<DirectRound, BenchError> {
        let mut tasks = VecDeque::with_capacity(1);
        let mut done = Vec::with_capacity(1);
        run(job, duration, |index| {
            let (operation, input) = (job.operation.clone(), job.input(index));
            tasks.push_back(Task {
                token: 0,
                key: self.key,
                operation,
                input,
            });
            self.queue.submit(&mut tasks);
            while self.queue.poll(&mut done) > 0 {}
            let result = done.pop().map(|done| done.result);
            match result {
                Some(Ok(output)) => Ok(output.to_vec()),
                Some(Err(error)) => Err(BenchError::Wrong(format!("{}: {error}", job.workload))),
                None => Err(BenchError::Wrong(format!("{}: no result", job.workload))),
            }
        })
    }
}

fn run(
    job: &Job,
    duration: Duration,
    mut operation: impl FnMut(usize) -> Result<Vec<u8>, BenchError>,
) -> Result<DirectRound, BenchError> {
    let mut latencies = Latencies::default();
    let mut samples = Samples::default();
    let cpu = cores::own_cpu_time();
    let start = Instant::now();
    let mut last = start;
    let mut index = 0;
    while last.duration_since(start) < duration {
        let output = operation(index)?;
        let now = Instant::now();
        latencies.push(now.duration_since(last));
        last = now;
        samples.offer(|| Sample { index, output });
        index += 1;
    }
    let cpu = cores::own_cpu_time().saturating_sub(cpu);
    samples.check(job)?;
    let operations = index as f64;
    Ok(DirectRound {
        per_s: operations / last.duration_since(start).as_secs_f64(),
        cpu_us: cpu.as_secs_f64() * 1e6 / operations,
        latencies,
    })
}
