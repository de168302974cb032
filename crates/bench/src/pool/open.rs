// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Jobs that arrive at random times, whatever has become of those before (open loop): what a node does under more load
//! than it can take. A latency counts from the time at which the job should have been sent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millrace_client::{ClientError, NodeReply};
use millrace_operation::sync::lock;
use serde::Serialize;

use super::remote::Sender;
use crate::arrivals::arrivals;
use crate::error::BenchError;
use crate::stats::Latencies;
use crate::workload::Requests;

/// Outputs of one measurement that are verified.
const SAMPLES: u64 = 256;

/// Time after the last arrival in which all jobs must have ended, beyond their deadline.
const GRACE: Duration = Duration::from_secs(20);

/// Outcomes of the jobs of one measurement.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct OpenRound {
    pub(super) offered_per_s: f64,
    /// Jobs that ended with a result by their deadline.
    pub(super) good_per_s: f64,
    /// Jobs that node or client refused.
    pub(super) refused_per_s: f64,
    /// Jobs that ended in another way.
    pub(super) failed_per_s: f64,
    /// Latency of the good ones.
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

#[derive(Default)]
struct OpenCounts {
    good: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    latencies: Mutex<Latencies>,
    samples: Mutex<Vec<(usize, Vec<u8>)>>,
}

impl OpenCounts {
    fn ended(&self) -> u64 {
        [&self.good, &self.refused, &self.failed]
            .map(|count| count.load(Ordering::Acquire))
            .iter()
            .sum()
    }

    fn take(&self, index: usize, due: Instant, result: Result<NodeReply, ClientError>) {
        let count = match result {
            Ok(reply) => {
                let latency = due.elapsed();
                lock(&self.latencies).push(latency);
                if self.good.load(Ordering::Relaxed) < SAMPLES {
                    lock(&self.samples).push((index, reply.output.to_vec()));
                }
                &self.good
            }
            Err(ClientError::Busy | ClientError::Job(_)) => &self.refused,
            Err(_) => &self.failed,
        };
        count.fetch_add(1, Ordering::Release);
    }
}

/// The figures of a measurement, and outputs that are not verified yet.
pub(super) struct Offered {
    round: OpenRound,
    samples: Vec<(usize, Vec<u8>)>,
}

impl Offered {
    /// The figures, if the outputs are right.
    pub(super) fn verified(self, requests: &Requests<'_>) -> Result<OpenRound, BenchError> {
        for (index, output) in self.samples {
            requests.check(index, &output)?;
        }
        Ok(self.round)
    }
}

/// Offers `per_s` jobs per second, each with `budget` from its arrival, while `time` runs; then waits for their ends.
pub(super) fn offer(
    sender: &Sender,
    per_s: f64,
    time: Duration,
    budget: Duration,
    seed: u64,
) -> Result<Offered, BenchError> {
    let counts = Arc::new(OpenCounts::default());
    let arrivals = arrivals(per_s, time, seed);
    let start = Instant::now();
    for (index, after) in arrivals.iter().enumerate() {
        let due = start + *after;
        // Without spinning: the client's I/O thread shares this core. A late wake-up sends several jobs, and their
        // latencies count from when they were due.
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let of_job = Arc::clone(&counts);
        let done = move |result| of_job.take(index, due, result);
        match sender.send(index, due + budget, Box::new(done)) {
            Ok(()) => {}
            Err(error) => counts.take(index, due, Err(error)),
        }
    }
    let offered = arrivals.len() as u64;
    let until = Instant::now() + budget + GRACE;
    while counts.ended() < offered {
        if Instant::now() > until {
            return Err(BenchError::Wrong("jobs never ended".to_owned()));
        }
        thread::sleep(Duration::from_millis(1));
    }
    let samples = std::mem::take(&mut *lock(&counts.samples));
    let seconds = time.as_secs_f64();
    let rate = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / seconds;
    let latencies = lock(&counts.latencies);
    let round = OpenRound {
        offered_per_s: offered as f64 / seconds,
        good_per_s: rate(&counts.good),
        refused_per_s: rate(&counts.refused),
        failed_per_s: rate(&counts.failed),
        p50_us: latencies.quantile_us(0.5),
        p99_us: latencies.quantile_us(0.99),
    };
    drop(latencies);
    Ok(Offered { round, samples })
}
