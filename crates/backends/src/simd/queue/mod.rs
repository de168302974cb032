// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hot path: each poll runs one batch of up to four tasks with keys of one size, on the calling thread.
//!
//! A batch takes the tasks that wait when `poll` is called: the oldest, and the next ones of its size in
//! their order. No task waits for a batch to fill. If there are too few for lanes to be faster, the oldest
//! runs alone on AWS-LC.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use millrace_engine::BackendError;
use millrace_engine::backend::{Done, Queue, Task};
use millrace_operation::Output;
use zeroize::Zeroizing;

use super::keys::{Blinding, LaneKey, SIZES, SimdKey};
use super::lanes::Lanes;
use super::operations;
use super::rsa::{REQUESTS, RsaRequest, Workspace};
use crate::key_table::KeyTable;
use crate::software::operations::run_task;

/// Capacity of a queue, in tasks: eight batches. That is enough to fill batches from tasks of three sizes,
/// and few enough that other workers get their share.
pub(super) const CAPACITY: usize = 8 * REQUESTS;

/// Counters over all queues since their backend was made, for tests and measurements.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) single: AtomicU64,
    pub(super) batches: [AtomicU64; REQUESTS],
}

/// A task with its key, looked up when the task was submitted. Closing the key later does not affect the
/// task.
struct WaitingTask {
    task: Task,
    key: Option<Arc<SimdKey>>,
}

impl WaitingTask {
    /// Index of the key's size in [`SIZES`]; `None` if the key does not run in lanes.
    fn size(&self) -> Option<usize> {
        let lanes = self.key.as_ref()?.lanes.as_ref()?;
        Some(lanes.size.index)
    }
}

/// A queue of the simd backend.
pub(super) struct SimdQueue<L> {
    lanes: L,
    /// Fewest tasks for which lanes are used.
    lanes_from: usize,
    keys: Arc<KeyTable<SimdKey>>,
    waiting: VecDeque<WaitingTask>,
    /// One workspace per size, allocated when first needed.
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

    /// Takes the oldest task and the next ones of its size out of the queue, up to a full batch.
    fn next_batch(&mut self) -> Vec<WaitingTask> {
        let mut batch: Vec<_> = self.waiting.pop_front().into_iter().collect();
        let Some(size) = batch.first().and_then(WaitingTask::size) else {
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

    /// Computes a batch in lanes. Results are in the order of the tasks.
    fn compute(&mut self, batch: &[WaitingTask], size: usize) -> Vec<Result<Output, BackendError>> {
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

    /// Runs the private operation on every block that was encoded without error.
    fn exponentiate(
        &mut self,
        batch: &[WaitingTask],
        blocks: &mut [Result<Zeroizing<Vec<u8>>, BackendError>],
        size: usize,
    ) {
        let workspace =
            self.workspaces[size].get_or_insert_with(|| Box::new(Workspace::new(&SIZES[size])));
        let keys: Vec<Option<&LaneKey>> = batch
            .iter()
            .zip(&*blocks)
            .map(|(waiting, block)| waiting.key.as_ref().filter(|_| block.is_ok())?.lanes.as_ref())
            .collect();
        let blindings = blindings(workspace, self.lanes, &keys);
        let mut requests = Vec::with_capacity(REQUESTS);
        let mut answers = Vec::with_capacity(REQUESTS);
        for (at, ((block, key), blinding)) in blocks.iter_mut().zip(keys).zip(blindings).enumerate()
        {
            match (block, key, blinding) {
                (Ok(block), Some(key), Ok(blinding)) => {
                    answers.push(at);
                    requests.push(RsaRequest { key, blinding, block });
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
            self.waiting.push_back(WaitingTask { task, key });
        }
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        let start = Instant::now();
        let mut batch = self.next_batch();
        let size = batch.first().and_then(WaitingTask::size);
        let results = match size {
            Some(size) if batch.len() >= self.lanes_from => {
                self.counters.batches[batch.len() - 1].fetch_add(1, Ordering::Relaxed);
                self.compute(&batch, size)
            }
            _ => {
                // Only the oldest runs now; the others return to their positions in the queue.
                for waiting in batch.drain(1.min(batch.len())..).rev() {
                    self.waiting.push_front(waiting);
                }
                self.counters.single.fetch_add(batch.len() as u64, Ordering::Relaxed);
                batch.iter().map(run_single).collect()
            }
        };
        let service_time = start.elapsed();
        for (waiting, result) in batch.into_iter().zip(results) {
            done.push(Done { task: waiting.task, result, service_time });
        }
        self.waiting.len()
    }
}

/// Gets a blinding pair for each request: from the key's store, or fresh if the store is empty.
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
    let mut fresh =
        if lacking.is_empty() { Vec::new() } else { workspace.blind(lanes, &lacking) }.into_iter();
    stored
        .into_iter()
        .map(|pair| pair.or_else(|| fresh.next()).unwrap_or(Err(BackendError::Failed)))
        .collect()
}

/// Runs one task on AWS-LC.
fn run_single(waiting: &WaitingTask) -> Result<Output, BackendError> {
    run_task(waiting.key.as_ref().map(|key| &key.software), &waiting.task)
}

#[cfg(test)]
mod fault_tests;
