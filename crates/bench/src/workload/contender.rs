// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Implementations of a case: the library called directly, or a backend's queue that is handed a number
//! of tasks at once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use millrace_backends::cuda::Cuda;
use millrace_backends::simd::{Implementation, Simd};
use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, BackendKey, Done, Queue, Task};
use millrace_operation::{BackendKind, OperationKind};
use serde::{Deserialize, Serialize};

use super::{Checks, Keys, Requests};
use crate::cores;
use crate::error::BenchError;
use crate::stats::Latencies;

/// Batches of up to this size are measured one by one, larger ones in doubling sizes: a device has thousands
/// of lanes.
const EACH_UP_TO: usize = 4;

/// How the lanes of the simd backend are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum LanesKind {
    /// AVX-512 with IFMA
    Ifma,
    /// AVX-512F, products from doubles: what a processor without IFMA gets
    Fp52,
    /// Ordinary instructions, slow: what tests run on any processor
    Portable,
}

impl LanesKind {
    /// Whether this processor has the lanes.
    pub(crate) fn is_available(self) -> bool {
        self.implementation().is_available()
    }

    fn implementation(self) -> Implementation {
        match self {
            Self::Ifma => Implementation::Avx512Ifma,
            Self::Fp52 => Implementation::Avx512Fp52,
            Self::Portable => Implementation::Portable,
        }
    }
}

/// A backend as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum MeasuredBackend {
    Software,
    /// The simd backend on these lanes.
    #[strum(to_string = "simd {0}")]
    Simd(LanesKind),
    /// The simd backend on these lanes, even where it would use the library for a single task.
    #[strum(to_string = "simd {0}, always in lanes")]
    SimdAlways(LanesKind),
    Cuda,
}

impl MeasuredBackend {
    pub(crate) fn make(self) -> Arc<dyn Backend> {
        match self {
            Self::Software => Arc::new(Software::new()),
            Self::Cuda => Arc::new(Cuda::new()),
            Self::Simd(lanes) => Arc::new(Simd::with(lanes.implementation())),
            Self::SimdAlways(lanes) => Arc::new(Simd::with(lanes.implementation()).lanes_from(1)),
        }
    }

    /// Whether the backend has this operation.
    pub(crate) fn offers(self, operation: OperationKind) -> bool {
        let backend = self.make();
        backend.capabilities().iter().any(|row| row.operation == operation)
    }

    pub(crate) fn kind(self) -> BackendKind {
        match self {
            Self::Software => BackendKind::Software,
            Self::Simd(_) | Self::SimdAlways(_) => BackendKind::Simd,
            Self::Cuda => BackendKind::Cuda,
        }
    }
}

/// Batch sizes worth measuring for a backend that computes `full` tasks together.
pub(crate) fn batches(full: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=full.min(EACH_UP_TO)).collect();
    let mut size = 2 * EACH_UP_TO;
    while size <= full {
        sizes.push(size);
        size *= 2;
    }
    if !sizes.contains(&full) {
        sizes.push(full);
    }
    sizes
}

/// The library or a backend, ready to compute one case.
pub(crate) struct Contender {
    /// Backend; `None` for the library, called directly.
    pub(crate) subject: Option<MeasuredBackend>,
    /// Number of tasks in a batch.
    pub(crate) at_once: usize,
    handed: Option<Handed>,
}

/// A backend's queue with the keys of a case.
struct Handed {
    queue: Box<dyn Queue>,
    keys: Vec<BackendKey>,
    tasks: VecDeque<Task>,
    done: Vec<Done>,
    /// Whether the backend computes on the calling thread.
    on_cpu: bool,
    /// Keeps the keys open.
    _backend: Arc<dyn Backend>,
}

/// The rates of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredRate {
    /// Operations per second of the thread's CPU time; by the clock for a device.
    pub(crate) per_core_s: f64,
    /// Operations per second by the clock: suffers from whatever else runs.
    pub(crate) per_s: f64,
    /// Per call, which is a whole batch.
    pub(crate) latencies: Latencies,
}

impl Contender {
    pub(crate) fn library() -> Self {
        let subject = None;
        let handed = None;
        Self { subject, at_once: 1, handed }
    }

    pub(crate) fn backend(
        subject: MeasuredBackend,
        at_once: usize,
        keys: &Keys,
    ) -> Result<Self, BenchError> {
        let refused = |error: &dyn fmt::Display| {
            BenchError::Setup(format!("the backend {subject} refused: {error}"))
        };
        let backend = subject.make();
        let opened = keys.private_keys().map(|key| {
            let opened = backend.open_key(&key).map_err(|error| refused(&error))?;
            Ok(opened.key)
        });
        let handed = Handed {
            keys: opened.collect::<Result<_, BenchError>>()?,
            queue: backend.open_queue().map_err(|error| refused(&error))?,
            tasks: VecDeque::with_capacity(at_once),
            done: Vec::with_capacity(at_once),
            on_cpu: backend.describe().on_cpu,
            _backend: backend,
        };
        Ok(Self { subject: Some(subject), at_once, handed: Some(handed) })
    }

    /// Measures on a core, after a warm-up there.
    pub(crate) fn measure_on(
        &mut self,
        core: usize,
        warm_up: Duration,
        requests: &Requests<'_>,
        time: Duration,
    ) -> Result<MeasuredRate, BenchError> {
        cores::pinned(core, || {
            self.measure(requests, warm_up)?;
            self.measure(requests, time)
        })?
    }

    /// Computes for some time, at least once, with the outputs checked.
    pub(crate) fn measure(
        &mut self,
        requests: &Requests<'_>,
        time: Duration,
    ) -> Result<MeasuredRate, BenchError> {
        let mut checks = Checks::default();
        let mut latencies = Latencies::default();
        let on_cpu = self.handed.as_ref().is_none_or(|handed| handed.on_cpu);
        let start = Instant::now();
        let busy = cores::thread_cpu_time();
        let mut last = start;
        let mut index = 0;
        while index == 0 || last.duration_since(start) < time {
            match &mut self.handed {
                None => checks.take(requests, index, &requests.library(index)?)?,
                Some(handed) => handed.run(requests, index, self.at_once, &mut checks)?,
            }
            index += self.at_once;
            let now = Instant::now();
            latencies.push(now.duration_since(last));
            last = now;
        }
        let busy = cores::thread_cpu_time().saturating_sub(busy);
        checks.verify(requests)?;
        let operations = index as f64;
        let per_s = operations / last.duration_since(start).as_secs_f64();
        Ok(MeasuredRate {
            per_core_s: if on_cpu { operations / busy.as_secs_f64() } else { per_s },
            per_s,
            latencies,
        })
    }
}

impl Handed {
    /// Hands over `count` tasks, from request number `first` on, and waits until all are done.
    fn run(
        &mut self,
        requests: &Requests<'_>,
        first: usize,
        count: usize,
        checks: &mut Checks,
    ) -> Result<(), BenchError> {
        self.tasks.extend((0..count).map(|offset| Task {
            token: u32::try_from(offset).unwrap_or(u32::MAX),
            key: self.keys[requests.key_of(first + offset)],
            operation: requests.operation.clone(),
            input: requests.input(first + offset),
        }));
        let mut left = count;
        while left > 0 {
            if !self.tasks.is_empty() {
                self.queue.submit(&mut self.tasks);
            }
            self.queue.poll(&mut self.done);
            left -= self.done.len();
            for done in self.done.drain(..) {
                let index = first + done.task.token as usize;
                let output = done
                    .result
                    .map_err(|error| BenchError::Wrong(format!("{}: {error}", requests.case)))?;
                checks.take(requests, index, &output)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_key::BenchKey;
    use crate::workload::CASES;

    #[test]
    fn batches_reach_from_one_to_full() {
        assert_eq!(batches(1), [1]);
        assert_eq!(batches(4), [1, 2, 3, 4]);
        assert_eq!(batches(24), [1, 2, 3, 4, 8, 16, 24]);
    }

    #[test]
    fn library_and_backends_yield_verified_outputs() {
        for key in [BenchKey::P256, BenchKey::Dh2048, BenchKey::Dsa2048, BenchKey::MlDsa44] {
            let keys = Keys::generate(key).expect("keys");
            let case = CASES.iter().find(|case| case.key == key).expect("a case");
            let requests = Requests::new(*case, &keys).expect("inputs");
            let mut contenders =
                vec![Contender::backend(MeasuredBackend::Software, 3, &keys).expect("a backend")];
            if requests.has_library() {
                contenders.push(Contender::library());
            }
            for contender in &mut contenders {
                let rate = contender.measure(&requests, Duration::from_millis(5));
                assert!(rate.expect("right outputs").per_core_s > 0.0);
            }
            assert!(requests.check(3, b"nonsense").is_err(), "{key}");
        }
    }
}
