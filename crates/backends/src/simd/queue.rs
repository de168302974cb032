// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The fast face: one batch of up to four tasks with keys of one size per poll, on the calling thread.
//!
//! A batch is made of what waits when `poll` is called: the oldest task, and the next ones of its size in
//! their order. Nothing waits for company. With too few of them for lanes to pay, the oldest runs alone on
//! AWS-LC.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use millrace_engine::backend::{Done, Queue, Task};
use millrace_engine::{BackendError, Output};
use zeroize::Zeroizing;

use super::keys::{Blinding, LaneKey, SIZES, SimdKey};
use super::lanes::Lanes;
use super::operations;
use super::rsa::{REQUESTS, Request, Workspace};
use crate::software::{KeyTable, operations as alone};

/// How many tasks a queue holds: eight batches, so that tasks of three sizes in one queue still find
/// company, and few enough that other workers get their share.
pub(super) const CAPACITY: usize = 8 * REQUESTS;

/// What queues have done since their backend was made. For tests and measurements.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) alone: AtomicU64,
    pub(super) batches: [AtomicU64; REQUESTS],
}

/// A task with the key that its name had when it came, so that closing it does not hurt the task.
struct Waiting {
    task: Task,
    key: Option<Arc<SimdKey>>,
}

impl Waiting {
    /// The size of its lanes, if it has any.
    fn size(&self) -> Option<usize> {
        let lanes = self.key.as_ref()?.lanes.as_ref()?;
        Some(lanes.size.index)
    }
}

/// A queue of the simd backend.
pub(super) struct SimdQueue<L> {
    lanes: L,
    /// From how many tasks on lanes are used.
    lanes_from: usize,
    keys: Arc<KeyTable<SimdKey>>,
    waiting: VecDeque<Waiting>,
    /// One per size, made when first needed.
    workspaces: [Option<Box<Workspace>>; SIZES.len()],
    counters: Arc<Counters>,
}

impl<L: Lanes> SimdQueue<L> {
    pub(super) fn new(
        lanes: L,
        lanes_from: usize,
        keys: Arc<KeyTable<SimdKey>>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            lanes,
            lanes_from,
            keys,
            waiting: VecDeque::with_capacity(CAPACITY),
            workspaces: Default::default(),
            counters,
        }
    }

    /// Takes the oldest task and its company out of the queue.
    fn next_batch(&mut self) -> Vec<Waiting> {
        let mut batch: Vec<_> = self.waiting.pop_front().into_iter().collect();
        let Some(size) = batch.first().and_then(Waiting::size) else {
            return batch;
        };
        let mut at = 0;
        while batch.len() < REQUESTS && at < self.waiting.len() {
            if self.waiting[at].size() == Some(size) {
                batch.extend(self.waiting.remove(at));
            } else {
                at += 1;
            }
        }
        batch
    }

    /// Computes a batch in lanes; results in the order of the tasks.
    fn compute(&mut self, batch: &[Waiting], size: usize) -> Vec<Result<Output, BackendError>> {
        let mut blocks: Vec<Result<Zeroizing<Vec<u8>>, BackendError>> = batch
            .iter()
            .map(|waiting| match &waiting.key {
                Some(key) => operations::prepare(key, &waiting.task.operation, &waiting.task.input),
                None => Err(BackendError::Failed),
            })
            .collect();
        self.exponentiate(batch, &mut blocks, size);
        batch
            .iter()
            .zip(blocks)
            .map(|(waiting, block)| {
                let key = waiting.key.as_ref().ok_or(BackendError::Failed)?;
                operations::finish(key, &waiting.task.operation, &waiting.task.input, block?)
            })
            .collect()
    }

    /// The private operation on every block that is there.
    fn exponentiate(
        &mut self,
        batch: &[Waiting],
        blocks: &mut [Result<Zeroizing<Vec<u8>>, BackendError>],
        size: usize,
    ) {
        let workspace =
            self.workspaces[size].get_or_insert_with(|| Box::new(Workspace::new(&SIZES[size])));
        let keys: Vec<Option<&LaneKey>> = batch
            .iter()
            .zip(&*blocks)
            .map(|(waiting, block)| {
                waiting
                    .key
                    .as_ref()
                    .filter(|_| block.is_ok())?
                    .lanes
                    .as_ref()
            })
            .collect();
        let blindings = blindings(workspace, self.lanes, &keys);
        let mut requests = Vec::with_capacity(REQUESTS);
        let mut answers = Vec::with_capacity(REQUESTS);
        for (at, ((block, key), blinding)) in blocks.iter_mut().zip(keys).zip(blindings).enumerate()
        {
            match (block, key, blinding) {
                (Ok(block), Some(key), Ok(blinding)) => {
                    answers.push(at);
                    requests.push(Request {
                        key,
                        blinding,
                        block,
                    });
                }
                (block @ Ok(_), _, Err(error)) => *block = Err(error),
                _ => {}
            }
        }
        if requests.is_empty() {
            return;
        }
        let results = workspace.private(self.lanes, requests);
        for (at, result) in answers.into_iter().zip(results) {
            if let Err(error) = result {
                blocks[at] = Err(error);
            }
        }
    }
}

impl<L: Lanes> Queue for SimdQueue<L> {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let taken = tasks.len().min(CAPACITY - self.waiting.len());
        for task in tasks.drain(..taken) {
            let key = self.keys.find(task.key);
            self.waiting.push_back(Waiting { task, key });
        }
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        let start = Instant::now();
        let mut batch = self.next_batch();
        let size = batch.first().and_then(Waiting::size);
        let results = match size {
            Some(size) if batch.len() >= self.lanes_from => {
                self.counters.batches[batch.len() - 1].fetch_add(1, Ordering::Relaxed);
                self.compute(&batch, size)
            }
            _ => {
                // Only the oldest is computed; the others keep their places.
                for waiting in batch.drain(1.min(batch.len())..).rev() {
                    self.waiting.push_front(waiting);
                }
                self.counters
                    .alone
                    .fetch_add(batch.len() as u64, Ordering::Relaxed);
                batch.iter().map(run_alone).collect()
            }
        };
        let service_time = start.elapsed();
        for (waiting, result) in batch.into_iter().zip(results) {
            done.push(Done {
                task: waiting.task,
                result,
                service_time,
            });
        }
        self.waiting.len()
    }
}

/// A blinding pair for each key: from its store while that lasts, then fresh.
fn blindings<L: Lanes>(
    workspace: &mut Workspace,
    lanes: L,
    keys: &[Option<&LaneKey>],
) -> Vec<Result<Blinding, BackendError>> {
    let stored: Vec<_> = keys
        .iter()
        .map(|key| match key {
            Some(key) => key.take_blinding().map(Ok),
            None => Some(Err(BackendError::Failed)),
        })
        .collect();
    let lacking: Vec<_> = keys
        .iter()
        .zip(&stored)
        .filter(|(_, stored)| stored.is_none())
        .filter_map(|(key, _)| *key)
        .collect();
    let mut fresh = if lacking.is_empty() {
        Vec::new()
    } else {
        workspace.blind(lanes, &lacking)
    }
    .into_iter();
    stored
        .into_iter()
        .map(|pair| {
            pair.or_else(|| fresh.next())
                .unwrap_or(Err(BackendError::Failed))
        })
        .collect()
}

/// One task on AWS-LC.
fn run_alone(waiting: &Waiting) -> Result<Output, BackendError> {
    match &waiting.key {
        Some(key) => alone::run(&key.software, &waiting.task.operation, &waiting.task.input),
        None => Err(BackendError::Failed),
    }
}

#[cfg(test)]
#[path = "fault_tests.rs"]
mod fault_tests;
