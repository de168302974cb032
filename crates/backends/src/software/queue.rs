// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hot path: holds tasks with their keys, and runs one per poll on the calling thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use millrace_engine::backend::{Done, Queue, Task};

use super::keys::LoadedKey;
use super::operations;
use crate::key_table::KeyTable;

/// Capacity of a queue, in tasks. More would gain nothing, because they run one by one, and would keep them
/// from other workers. Fewer would access the dispatcher's queue too often.
pub(super) const CAPACITY: usize = 32;

pub(super) struct SoftwareQueue {
    keys: Arc<KeyTable<LoadedKey>>,
    /// Tasks with their keys, looked up on submission. Closing a key later does not affect its tasks.
    waiting: VecDeque<(Task, Option<Arc<LoadedKey>>)>,
}

impl SoftwareQueue {
    pub(super) fn new(keys: Arc<KeyTable<LoadedKey>>) -> Self {
        Self { keys, waiting: VecDeque::with_capacity(CAPACITY) }
    }
}

impl Queue for SoftwareQueue {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let taken = tasks.len().min(CAPACITY - self.waiting.len());
        for task in tasks.drain(..taken) {
            let key = self.keys.find(task.key);
            self.waiting.push_back((task, key));
        }
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        if let Some((task, key)) = self.waiting.pop_front() {
            let start = Instant::now();
            let result = operations::run_task(key.as_deref(), &task);
            done.push(Done { task, result, service_time: start.elapsed() });
        }
        self.waiting.len()
    }
}
