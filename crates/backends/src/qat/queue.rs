// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hot path: requests to one instance of a card, shared with the queues of other workers.
//!
//! A submission encodes and blinds the input and hands it to the card. A poll collects answers, takes the
//! blinding out, and verifies each by a public operation. What the card does not answer in time ends as
//! failed, and its slot stays in use.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_engine::backend::{Done, Queue, Task};
use millrace_engine::{BackendError, Output};
use zeroize::Zeroizing;

use super::card::{Card, Instance, Running};
use super::keys::QatKey;
use super::sys::{Answer, SLOTS, Submitted};
use crate::blinding::Blinding;
use crate::key_table::KeyTable;
use crate::raw_rsa;
use crate::software::operations;

/// A key, the encoded input, the same blinded, and the blinding.
type Prepared = (Arc<QatKey>, Zeroizing<Vec<u8>>, Zeroizing<Vec<u8>>, Blinding);

pub(super) struct QatQueue {
    card: Arc<Card>,
    keys: Arc<KeyTable<QatKey>>,
    running: Arc<Running>,
    instance: usize,
    seat: usize,
    next_ticket: u64,
    /// Tasks for which the instance has had no room, or was in use by another thread.
    waiting: VecDeque<Task>,
    /// Jobs by ticket, so the oldest comes first.
    jobs: BTreeMap<u64, Job>,
    /// Tasks that ended without a request: refused, or computed on AWS-LC.
    refused: Vec<Done>,
}

/// A task whose request the card has.
struct Job {
    task: Task,
    key: Arc<QatKey>,
    input: Zeroizing<Vec<u8>>,
    blinding: Blinding,
    started: Instant,
    until: Instant,
}

impl QatQueue {
    pub(super) fn new(
        card: Arc<Card>,
        keys: Arc<KeyTable<QatKey>>,
        running: Arc<Running>,
        (instance, seat): (usize, usize),
    ) -> Self {
        Self {
            card,
            keys,
            running,
            instance,
            seat,
            next_ticket: 0,
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    fn instance(&self) -> &Instance {
        &self.running.instances[self.instance]
    }

    /// Hands a task to the card; gives it back if there is no room.
    fn start(&mut self, task: Task) -> Option<Task> {
        let started = Instant::now();
        let refused =
            |task, error| Done { task, result: Err(error), service_time: started.elapsed() };
        let (key, input, blinded, blinding) = match self.prepare(&task) {
            Ok(Some(prepared)) => prepared,
            Ok(None) => {
                let key = self.keys.find(task.key);
                let result = operations::run_task(key.as_ref().map(|key| &key.rsa.software), &task);
                self.refused.push(Done { result, ..refused(task, BackendError::Failed) });
                return None;
            }
            Err(error) => {
                self.refused.push(refused(task, error));
                return None;
            }
        };
        let on_card = key.on_card(&self.card.library, self.running.number);
        let (Some(on_card), owner) = (on_card, (self.seat, self.next_ticket)) else {
            self.refused.push(refused(task, BackendError::Failed));
            return None;
        };
        // Another queue has it: the room was looked up a moment ago.
        let Some(mut ring) = self.running.instances[self.instance].try_ring() else {
            return Some(task);
        };
        if self.running.is_over() {
            self.refused.push(refused(task, BackendError::Failed));
            return None;
        }
        let counters = &self.running.instances[self.instance].counters;
        match ring.submit(&on_card, &blinded, owner) {
            Submitted::Taken => {
                counters.submitted.fetch_add(1, Ordering::Relaxed);
                self.running.instances[self.instance].note(&ring);
                let until = started + self.card.answer_time(key.rsa.len());
                let job = Job { task, key, input, blinding, started, until };
                self.jobs.insert(self.next_ticket, job);
                self.next_ticket += 1;
            }
            Submitted::Full => {
                counters.full.fetch_add(1, Ordering::Relaxed);
                return Some(task);
            }
            Submitted::NotOffered => self.refused.push(refused(task, BackendError::NotOffered)),
            Submitted::Failed => {
                // A library that refuses requests does not recover by itself: 24.02 after a reset, for one.
                self.running.want_restart();
                self.refused.push(refused(task, BackendError::Failed));
            }
        }
        None
    }

    /// Encodes and blinds the input; none for a key that the card does not take.
    fn prepare(&self, task: &Task) -> Result<Option<Prepared>, BackendError> {
        if self.running.is_over() || self.instance().is_silent() {
            return Err(BackendError::Failed);
        }
        let key = self.keys.find(task.key).ok_or(BackendError::Failed)?;
        if !key.is_for_card() {
            return Ok(None);
        }
        let input = raw_rsa::prepare(&key.rsa.software, &task.operation, &task.input)?;
        let (blinded, blinding) = key.rsa.blind(&input)?;
        Ok(Some((key, input, blinded, blinding)))
    }

    /// Verifies an answer and ends its task.
    fn settle(&self, job: Job, answer: Result<Zeroizing<Vec<u8>>, ()>) -> Done {
        let counters = &self.instance().counters;
        let result = match answer {
            Ok(answer) => job.key.rsa.unblind(&job.input, &answer, job.blinding),
            Err(()) => Err(BackendError::Failed),
        };
        match &result {
            Ok(_) => counters.served.fetch_add(1, Ordering::Relaxed),
            Err(BackendError::Fault) => counters.faults.fetch_add(1, Ordering::Relaxed),
            Err(_) => 0,
        };
        let task = job.task;
        let decode = |root| -> Result<Output, BackendError> {
            raw_rsa::finish(&job.key.rsa.software, &task.operation, &task.input, root)
        };
        Done { result: result.and_then(decode), task, service_time: job.started.elapsed() }
    }

    /// Hands tasks to the card while it has room.
    fn start_waiting(&mut self) {
        let room = match self.instance().try_ring() {
            Some(ring) => SLOTS - ring.in_flight(),
            None => 0,
        };
        for _ in 0..room {
            let Some(task) = self.waiting.pop_front() else {
                break;
            };
            if let Some(task) = self.start(task) {
                self.waiting.push_front(task);
                break;
            }
        }
    }

    fn fail_all(&mut self, done: &mut Vec<Done>) {
        done.extend(self.waiting.drain(..).map(|task| Done {
            task,
            result: Err(BackendError::Failed),
            service_time: Duration::ZERO,
        }));
        for (_, job) in std::mem::take(&mut self.jobs) {
            done.push(self.settle(job, Err(())));
        }
    }

    /// Ends the tasks that have waited for too long.
    fn give_up_late(&mut self, done: &mut Vec<Done>) {
        let now = Instant::now();
        if self.jobs.values().next().is_none_or(|oldest| oldest.until > now) {
            return;
        }
        let late = self.jobs.iter().filter(|(_, job)| job.until <= now);
        let late: Vec<u64> = late.map(|(ticket, _)| *ticket).collect();
        self.instance().lose(&self.running, self.seat, &late);
        for ticket in late {
            if let Some(job) = self.jobs.remove(&ticket) {
                done.push(self.settle(job, Err(())));
            }
        }
    }
}

impl Queue for QatQueue {
    fn capacity(&self) -> usize {
        SLOTS
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let room = SLOTS.saturating_sub(self.jobs.len() + self.waiting.len() + self.refused.len());
        let taken = tasks.len().min(room);
        self.waiting.extend(tasks.drain(..taken));
        self.start_waiting();
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        done.append(&mut self.refused);
        if self.running.is_over() {
            self.fail_all(done);
            return 0;
        }
        for Answer { owner, output } in self.instance().collect(self.seat) {
            if let Some(job) = self.jobs.remove(&owner.1) {
                done.push(self.settle(job, output));
            }
        }
        self.give_up_late(done);
        self.start_waiting();
        done.append(&mut self.refused);
        self.jobs.len() + self.waiting.len()
    }
}

impl Drop for QatQueue {
    fn drop(&mut self) {
        self.instance().leave(self.seat);
    }
}
