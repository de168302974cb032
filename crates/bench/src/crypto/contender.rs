// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Who computes: the library called directly, or a backend's queue that is handed so many tasks at once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use millrace_backends::cuda::Cuda;
use millrace_backends::simd::{Implementation, Simd};
use millrace_backends::software::Software;
use millrace_engine::BackendKind;
use millrace_engine::backend::{Backend, BackendKey, Done, Queue, Task};

use super::work::{Keys, Work};
use crate::cores;
use crate::error::BenchError;

/// From this batch on sizes double: a device with thousands of lanes would take all day.
const EACH_UP_TO: usize = 4;

/// How the lanes of the simd backend are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LanesKind {
    /// AVX-512 with IFMA
    Ifma,
    /// AVX-512F, products from doubles: what a processor without IFMA gets
    Fp52,
    /// Ordinary instructions, slow: the twin that the tests run everywhere
    Portable,
}

impl LanesKind {
    /// The name used in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ifma => "ifma",
            Self::Fp52 => "fp52",
            Self::Portable => "portable",
        }
    }

    /// Whether this processor has them.
    pub(super) fn is_available(self) -> bool {
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

impl fmt::Display for LanesKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A backend as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Subject {
    /// The software backend.
    Software,
    /// The simd backend on these lanes.
    Simd(LanesKind),
    /// The same, in lanes even where the backend would rather use the library for a task alone.
    SimdAlways(LanesKind),
    /// The cuda backend.
    Cuda,
}

impl Subject {
    pub(super) fn make(self) -> Arc<dyn Backend> {
        match self {
            Self::Software => Arc::new(Software::new()),
            Self::Cuda => Arc::new(Cuda::new()),
            Self::Simd(lanes) => Arc::new(Simd::with(lanes.implementation())),
            Self::SimdAlways(lanes) => Arc::new(Simd::with(lanes.implementation()).lanes_from(1)),
        }
    }

    pub(super) fn kind(self) -> BackendKind {
        match self {
            Self::Software => BackendKind::Software,
            Self::Simd(_) | Self::SimdAlways(_) => BackendKind::Simd,
            Self::Cuda => BackendKind::Cuda,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Software => f.pad("software"),
            Self::Cuda => f.pad("cuda"),
            Self::Simd(lanes) => f.pad(&format!("simd {lanes}")),
            Self::SimdAlways(lanes) => f.pad(&format!("simd {lanes}, always in lanes")),
        }
    }
}

/// How many tasks at once are worth measuring for a backend that computes `full` together.
pub(super) fn batches(full: usize) -> Vec<usize> {
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

/// Somebody who computes.
pub(super) struct Contender {
    /// None: the library, called directly.
    pub(super) subject: Option<Subject>,
    /// How many tasks are handed over at once.
    pub(super) at_once: usize,
    with: With,
    /// Operations per second, by round.
    pub(super) rates: Vec<f64>,
}

enum With {
    Library,
    Queue(Box<Handed>),
}

/// A queue with the keys of a work.
struct Handed {
    queue: Box<dyn Queue>,
    keys: Vec<BackendKey>,
    tasks: VecDeque<Task>,
    done: Vec<Done>,
    /// Whether it computes on the calling thread.
    on_cpu: bool,
    /// Keeps the keys open.
    _backend: Arc<dyn Backend>,
}

impl Contender {
    pub(super) fn library() -> Self {
        Self {
            subject: None,
            at_once: 1,
            with: With::Library,
            rates: Vec::new(),
        }
    }

    pub(super) fn backend(
        subject: Subject,
        at_once: usize,
        keys: &Keys,
    ) -> Result<Self, BenchError> {
        let refused =
            |error: String| BenchError::Setup(format!("the backend {subject} refused: {error}"));
        let backend = subject.make();
        let opened: Result<Vec<_>, _> = keys
            .private_keys()
            .map(|key| backend.open_key(&key).map(|opened| opened.key))
            .collect();
        let handed = Handed {
            queue: backend
                .open_queue()
                .map_err(|error| refused(error.to_string()))?,
            keys: opened.map_err(|error| refused(error.to_string()))?,
            tasks: VecDeque::with_capacity(at_once),
            done: Vec::with_capacity(at_once),
            on_cpu: backend.describe().on_cpu,
            _backend: backend,
        };
        Ok(Self {
            subject: Some(subject),
            at_once,
            with: With::Queue(Box::new(handed)),
            rates: Vec::new(),
        })
    }

    /// Computes for some time, with each output checked.
    pub(super) fn measure(&mut self, work: &Work<'_>, time: Duration) -> Result<Rate, BenchError> {
        let mut later = Later::new(work);
        let on_cpu = match &self.with {
            With::Library => true,
            With::Queue(handed) => handed.on_cpu,
        };
        let (start, busy) = (Instant::now(), cores::thread_cpu_time());
        let mut index = 0;
        // At least once, however busy the machine is.
        while index == 0 || start.elapsed() < time {
            match &mut self.with {
                With::Library => {
                    let output = work.library(index)?;
                    later.take(index, &output)?;
                }
                With::Queue(handed) => handed.run(work, index, self.at_once, &mut later)?,
            }
            index += self.at_once;
        }
        let busy = cores::thread_cpu_time().saturating_sub(busy);
        let elapsed = start.elapsed();
        later.check()?;
        let operations = index as f64;
        let per_s = operations / elapsed.as_secs_f64();
        let per_core_s = if on_cpu {
            operations / busy.as_secs_f64()
        } else {
            per_s
        };
        Ok(Rate { per_core_s, per_s })
    }
}

/// How fast somebody was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// Operations per second of the thread's processor time; of the clock, for a device.
    pub(super) per_core_s: f64,
    /// Operations per second by the clock, whatever else ran.
    pub(super) per_s: f64,
}

impl Handed {
    /// Hands over `count` tasks, from number `first` on, and waits until all are done.
    fn run(
        &mut self,
        work: &Work<'_>,
        first: usize,
        count: usize,
        later: &mut Later<'_>,
    ) -> Result<(), BenchError> {
        self.tasks.extend((0..count).map(|at| Task {
            token: u32::try_from(at).unwrap_or(u32::MAX),
            key: self.keys[work.key_of(first + at)],
            operation: work.operation.clone(),
            input: work.input(first + at),
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
                match done.result {
                    Ok(output) => later.take(index, &output)?,
                    Err(error) => {
                        return Err(BenchError::Wrong(format!("{}: {error}", work.case)));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Outputs on their way to being checked: compared at once, or a bounded choice of them afterwards.
pub(super) struct Later<'a> {
    work: &'a Work<'a>,
    needed: bool,
    kept: Vec<(usize, Vec<u8>)>,
}

impl<'a> Later<'a> {
    pub(super) fn new(work: &'a Work<'a>) -> Self {
        Self {
            work,
            needed: work.is_checked_later(),
            kept: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, index: usize, output: &[u8]) -> Result<(), BenchError> {
        if !self.work.is_expected(index, output) {
            return Err(self.work.wrong(index));
        }
        if self.needed {
            let most = self.work.max_samples();
            if self.kept.len() < most {
                self.kept.push((index, output.to_vec()));
            } else {
                // Spread over the round: the later ones take the places of earlier ones.
                self.kept[index % most] = (index, output.to_vec());
            }
        }
        Ok(())
    }

    pub(super) fn check(self) -> Result<(), BenchError> {
        self.kept
            .iter()
            .try_for_each(|(index, output)| self.work.check(*index, output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::work::{CASES, CryptoKey};

    #[test]
    fn batches_reach_from_one_to_full() {
        assert_eq!(batches(1), [1]);
        assert_eq!(batches(4), [1, 2, 3, 4]);
        assert_eq!(batches(24), [1, 2, 3, 4, 8, 16, 24]);
    }

    #[test]
    fn what_the_library_lacks_is_verified_by_openssl() {
        if crate::process::need("openssl").is_err() {
            eprintln!("SKIPPED: no openssl here");
            return;
        }
        for key in [CryptoKey::Dh2048, CryptoKey::Dsa2048] {
            let keys = Keys::generate(key).expect("keys");
            let case = CASES.iter().find(|case| case.key == key);
            let work = Work::new(*case.expect("a case"), &keys).expect("inputs");
            assert!(!work.has_library());
            let mut software = Contender::backend(Subject::Software, 1, &keys).expect("a backend");
            let rate = software.measure(&work, Duration::from_millis(5));
            assert!(rate.expect("right outputs").per_core_s > 0.0);
            assert!(work.check(3, b"nonsense").is_err(), "{key}");
        }
    }

    #[test]
    fn everybody_computes_the_same() {
        let keys = Keys::generate(CryptoKey::P256).expect("keys");
        let case = CASES.iter().find(|case| case.key == CryptoKey::P256);
        let work = Work::new(*case.expect("a case"), &keys).expect("inputs");
        let mut software = Contender::backend(Subject::Software, 3, &keys).expect("a backend");
        for contender in [&mut Contender::library(), &mut software] {
            let rate = contender.measure(&work, Duration::from_millis(5));
            assert!(rate.expect("right outputs").per_core_s > 0.0);
        }
    }
}
