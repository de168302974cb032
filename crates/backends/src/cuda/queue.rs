// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hot path: launches of up to [`LAUNCH_TASKS`] tasks on several streams of the device.
//!
//! A poll collects the launches that have ended. It then starts a launch on each free stream: the oldest
//! waiting task, and the next ones with the same size of key and the same public exponent, in their order. No
//! task waits for a launch to fill. A launch occupies only a few multiprocessors, so a task that arrives
//! while the device is busy waits for one such launch and not for the whole device. If too few tasks wait for
//! a launch to be cheaper, the poll runs the oldest on AWS-LC.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_engine::BackendError;
use millrace_engine::backend::{Done, Pace, Queue, Task};
use millrace_operation::Output;
use zeroize::Zeroizing;

use super::device::{CudaStream, Launch, LaunchEntry, LaunchOutcome};
use super::job::{LaunchGroup, QueuedJob};
use super::keys::{CudaKey, Pair, PairUse, Resident, Size};
use super::operations;
use super::variants::SIZES;
use super::{CudaShared, DeviceState};

/// Most tasks of a launch: four blocks of 16, which occupy a few multiprocessors.
pub(super) const LAUNCH_TASKS: usize = 64;

/// Streams of a queue for keys of one size: one computes, one is filled, one is collected, and one waits on the
/// device, so that the device has work when a launch ends.
const STREAMS: usize = 4;

/// Capacity of a queue, in tasks: full launches on all streams of one size of key.
pub(super) const CAPACITY: usize = STREAMS * LAUNCH_TASKS;

/// A launch takes milliseconds, so a result that waits for 0.2 ms more is not noticed, and a worker that looks
/// that often uses little of its core.
const PACE: Pace = Pace {
    spin: Duration::from_micros(5),
    first: Duration::from_micros(25),
    longest: Duration::from_micros(200),
};

/// Interval, in results, at which the host verifies one again. This also covers the transfer from the device.
const SAMPLE: u64 = 64;

/// A task with everything that a launch needs.
struct Ready {
    waiting: QueuedJob,
    key: Arc<CudaKey>,
    block: Zeroizing<Vec<u8>>,
    pair: Pair,
    /// The random number for a pair that the launch must make.
    random: Option<Zeroizing<Vec<u8>>>,
}

/// A stream and the launch in flight on it.
struct LaunchStream {
    stream: Box<dyn CudaStream>,
    running: Option<Running>,
}

struct Running {
    tasks: Vec<Ready>,
    started: Instant,
}

pub(super) struct CudaQueue {
    shared: Arc<CudaShared>,
    waiting: VecDeque<QueuedJob>,
    /// Streams per size of key, opened when first needed.
    streams: [Vec<LaunchStream>; SIZES.len()],
    results: u64,
}

impl CudaQueue {
    pub(super) fn new(shared: Arc<CudaShared>) -> Self {
        Self {
            shared,
            waiting: VecDeque::with_capacity(CAPACITY),
            streams: Default::default(),
            results: 0,
        }
    }

    fn in_flight(&self) -> usize {
        let running = self.streams.iter().flatten().filter_map(|stream| stream.running.as_ref());
        running.map(|running| running.tasks.len()).sum()
    }

    /// Returns the results of the launches that have ended.
    fn collect(&mut self, done: &mut Vec<Done>) {
        for stream in self.streams.iter_mut().flatten() {
            let Some(running) = stream.running.take() else {
                continue;
            };
            match stream.stream.is_done() {
                Ok(false) => stream.running = Some(running),
                Ok(true) => {
                    settle(&self.shared, running, stream.stream.take(), &mut self.results, done)
                }
                Err(error) => {
                    self.shared.health.note(&error);
                    fail(running, done);
                }
            }
        }
        if self.shared.health.is_lost() {
            for stream in std::mem::take(&mut self.streams).into_iter().flatten() {
                if let Some(running) = stream.running {
                    fail(running, done);
                }
            }
        }
    }

    /// Starts a launch with waiting tasks, or runs the oldest on AWS-LC if there are too few. Returns false
    /// when nothing more can be started now.
    fn start(&mut self, done: &mut Vec<Done>) -> bool {
        let Some(oldest) = self.waiting.front() else {
            return false;
        };
        let group = oldest.group().filter(|_| !self.shared.health.is_lost());
        let resident = oldest.resident().map(|resident| Arc::clone(&resident.size));
        let (Some(group), Some(size)) = (group, resident) else {
            self.run_oldest_on_cpu(done);
            return false;
        };
        let peers = self.waiting.iter().filter(|other| other.group() == Some(group));
        if peers.take(size.device_from).count() < size.device_from {
            // Run one task only: launches in flight soon have results to collect.
            self.run_oldest_on_cpu(done);
            return false;
        }
        let Some(stream) = self.free_stream(group, &size) else {
            return false;
        };
        let batch = self.next_batch(group);
        self.launch(group, stream, batch, done);
        true
    }

    /// Index of a stream without a launch in flight.
    fn free_stream(&mut self, group: LaunchGroup, size: &Size) -> Option<usize> {
        let streams = &mut self.streams[group.size];
        if let Some(free) = streams.iter().position(|stream| stream.running.is_none()) {
            return Some(free);
        }
        if streams.len() >= STREAMS {
            return None;
        }
        match size.store.open_stream(LAUNCH_TASKS) {
            Ok(stream) => streams.push(LaunchStream { stream, running: None }),
            Err(error) => {
                self.shared.health.note(&error);
                // Without any stream no launch could ever start.
                if streams.is_empty() {
                    self.shared.health.give_up(&error);
                }
                return None;
            }
        }
        Some(streams.len() - 1)
    }

    /// Takes the tasks of this group out of the queue, the oldest first, up to a full launch.
    fn next_batch(&mut self, group: LaunchGroup) -> Vec<QueuedJob> {
        let mut batch = Vec::with_capacity(LAUNCH_TASKS);
        for _ in 0..self.waiting.len() {
            let Some(waiting) = self.waiting.pop_front() else {
                break;
            };
            if batch.len() < LAUNCH_TASKS && waiting.group() == Some(group) {
                batch.push(waiting);
            } else {
                self.waiting.push_back(waiting);
            }
        }
        batch
    }

    /// Launches a batch on a stream. Tasks that cannot be launched end at once.
    fn launch(
        &mut self,
        group: LaunchGroup,
        stream: usize,
        batch: Vec<QueuedJob>,
        done: &mut Vec<Done>,
    ) {
        let started = Instant::now();
        let mut ready = Vec::with_capacity(batch.len());
        for waiting in batch {
            match prepare(waiting) {
                Ok(task) => ready.push(task),
                Err((waiting, Preparation::NoPair)) => {
                    let result = operations::run_on_cpu(&waiting);
                    self.shared.counters.on_cpu.fetch_add(1, Ordering::Relaxed);
                    finish(waiting, result, started, done);
                }
                Err((waiting, Preparation::Error(error))) => {
                    finish(waiting, Err(error), started, done)
                }
            }
        }
        if ready.is_empty() {
            return;
        }
        let entries: Vec<_> = ready.iter().filter_map(|task| task.entry(&task.block)).collect();
        let make: Vec<_> =
            ready.iter().filter_map(|task| task.entry(task.random.as_ref()?)).collect();
        let launch = Launch { exponent: group.exponent, make: &make, tasks: &entries };
        let stream = &mut self.streams[group.size][stream];
        let launched = stream.stream.launch(&launch);
        let running = Running { tasks: ready, started };
        match launched {
            Ok(()) => {
                let counters = &self.shared.counters;
                counters.launches.fetch_add(1, Ordering::Relaxed);
                counters.launched.fetch_add(running.tasks.len() as u64, Ordering::Relaxed);
                stream.running = Some(running);
            }
            Err(error) => {
                self.shared.health.note(&error);
                fail(running, done);
            }
        }
    }

    /// Runs the oldest task on AWS-LC.
    fn run_oldest_on_cpu(&mut self, done: &mut Vec<Done>) {
        let Some(waiting) = self.waiting.pop_front() else {
            return;
        };
        let started = Instant::now();
        self.shared.counters.on_cpu.fetch_add(1, Ordering::Relaxed);
        let result = operations::run_on_cpu(&waiting);
        finish(waiting, result, started, done);
    }
}

impl Ready {
    fn entry<'a>(&self, input: &'a [u8]) -> Option<LaunchEntry<'a>> {
        let resident = self.key.resident.as_ref()?;
        Some(LaunchEntry { slot: resident.slot, pair: self.pair.place, input })
    }
}

impl Queue for CudaQueue {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let room = CAPACITY.saturating_sub(self.waiting.len() + self.in_flight());
        let taken = tasks.len().min(room);
        for task in tasks.drain(..taken) {
            let key = self.shared.keys.find(task.key);
            self.waiting.push_back(QueuedJob { task, key });
        }
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        self.collect(done);
        if matches!(self.shared.state(), DeviceState::Lost(_)) {
            // The dispatcher retries these tasks on another backend, and routes later ones around this
            // backend.
            let started = Instant::now();
            for waiting in std::mem::take(&mut self.waiting) {
                finish(waiting, Err(BackendError::Failed), started, done);
            }
        }
        while self.start(done) {}
        self.waiting.len() + self.in_flight()
    }

    fn pace(&self) -> Pace {
        PACE
    }
}

/// Why a task is not launched.
enum Preparation {
    /// No blinding pair is free and there is no room for a new one.
    NoPair,
    Error(BackendError),
}

/// Encodes the input of a task and takes a blinding pair for it.
fn prepare(waiting: QueuedJob) -> Result<Ready, (QueuedJob, Preparation)> {
    let Some(key) = waiting.key.clone() else {
        return Err((waiting, Preparation::Error(BackendError::Failed)));
    };
    let block = match operations::prepare(&key, &waiting) {
        Ok(block) => block,
        Err(error) => return Err((waiting, Preparation::Error(error))),
    };
    let Some(pair) = key.resident.as_ref().and_then(Resident::take_pair) else {
        return Err((waiting, Preparation::NoPair));
    };
    let random = if pair.uses > 0 {
        None
    } else {
        match key.draw() {
            Ok(random) => Some(random),
            Err(error) => {
                give_back(&key, pair, PairUse::Failed);
                return Err((waiting, Preparation::Error(error)));
            }
        }
    };
    Ok(Ready { waiting, key, block, pair, random })
}

fn give_back(key: &CudaKey, pair: Pair, pair_use: PairUse) {
    if let Some(resident) = &key.resident {
        resident.return_pair(pair, pair_use);
    }
}

/// Turns the outcomes of a launch into results.
fn settle(
    shared: &CudaShared,
    running: Running,
    outcomes: Vec<LaunchOutcome>,
    results: &mut u64,
    done: &mut Vec<Done>,
) {
    let mut outcomes = outcomes.into_iter();
    for task in running.tasks {
        let Ready { waiting, key, block, pair, random: _ } = task;
        *results += 1;
        let outcome = outcomes.next().flatten().filter(|result| {
            !results.is_multiple_of(SAMPLE) || operations::is_root(&key, &block, result)
        });
        let result = match outcome {
            Some(result) => {
                give_back(&key, pair, PairUse::Verified);
                operations::finish(&key, &waiting, result)
            }
            None => {
                give_back(&key, pair, PairUse::Failed);
                shared.counters.faults.fetch_add(1, Ordering::Relaxed);
                Err(BackendError::Fault)
            }
        };
        finish(waiting, result, running.started, done);
    }
}

/// Ends the tasks of a launch whose outcome is unknown; the dispatcher retries them on another backend.
fn fail(running: Running, done: &mut Vec<Done>) {
    for task in running.tasks {
        give_back(&task.key, task.pair, PairUse::Failed);
        finish(task.waiting, Err(BackendError::Failed), running.started, done);
    }
}

fn finish(
    waiting: QueuedJob,
    result: Result<Output, BackendError>,
    started: Instant,
    done: &mut Vec<Done>,
) {
    done.push(Done { task: waiting.task, result, service_time: started.elapsed() });
}
