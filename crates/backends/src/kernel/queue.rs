// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The hot path: hands blinded inputs to the callers, which all queues share.
//!
//! A poll collects answers, takes the blinding out, and verifies each by a public operation. A request that does not
//! end in time ends its task as failed; its caller stays with the kernel until the call returns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use millrace_engine::BackendError;
use millrace_engine::backend::{Done, Queue, Task};
use zeroize::Zeroizing;

use super::keys::{CallError, KernelKey};
use super::watch::Watch;
use crate::blinding::Blinding;
use crate::key_table::KeyTable;
use crate::raw_rsa;
use crate::software::rsa::is_own_root;

type CallResult = Result<Zeroizing<Vec<u8>>, CallError>;

pub(super) struct KernelQueue {
    watch: Arc<Watch>,
    keys: Arc<KeyTable<KernelKey>>,
    /// Tasks for which no caller was free, with the time of their submission.
    waiting: VecDeque<(Instant, Task)>,
    /// Jobs by ticket, so the oldest comes first.
    jobs: BTreeMap<u64, Job>,
    next_ticket: u64,
    /// Tasks that ended without a call.
    ended: Vec<Done>,
    sender: mpsc::Sender<(u64, CallResult)>,
    answers: mpsc::Receiver<(u64, CallResult)>,
}

/// A task that a caller has.
struct Job {
    task: Task,
    key: Arc<KernelKey>,
    input: Zeroizing<Vec<u8>>,
    blinding: Blinding,
    started: Instant,
    /// Whether the call has returned or was given up, the first of the two.
    over: Arc<AtomicBool>,
}

impl KernelQueue {
    pub(super) fn new(watch: Arc<Watch>, keys: Arc<KeyTable<KernelKey>>) -> Self {
        let (sender, answers) = mpsc::channel();
        Self {
            watch,
            keys,
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            next_ticket: 0,
            ended: Vec::new(),
            sender,
            answers,
        }
    }

    /// Hands tasks to callers that are free. While the backend is away, the next poll ends those that wait.
    fn start_waiting(&mut self) {
        if !self.watch.is_up() {
            return;
        }
        let permits = self.watch.callers.reserve(self.waiting.len());
        let tasks: Vec<_> = self.waiting.drain(..permits).collect();
        for (_, task) in tasks {
            if let Err(done) = self.start(task) {
                self.watch.callers.release();
                self.ended.push(done);
            }
        }
        if !self.waiting.is_empty() {
            self.watch.counters.full.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Hands a task to a caller, for which there is a permit; the end of the task if it needs no call.
    fn start(&mut self, task: Task) -> Result<(), Done> {
        let started = Instant::now();
        let end = |task, result| Done { task, result, service_time: started.elapsed() };
        let Some(key) = self.keys.find(task.key) else {
            return Err(end(task, Err(BackendError::Failed)));
        };
        if key.is_refused() {
            return Err(end(task, Err(BackendError::NotOffered)));
        }
        let software = &key.rsa.software;
        let input = match raw_rsa::prepare(software, &task.operation, &task.input) {
            Ok(input) => input,
            Err(error) => return Err(end(task, Err(error))),
        };
        // The kernel refuses such numbers, which would count as its error.
        if raw_rsa::secret(software).is_ok_and(|rsa| is_own_root(&rsa.modulus, &input)) {
            let result = raw_rsa::finish(software, &task.operation, &task.input, input);
            return Err(end(task, result));
        }
        let (blinded, blinding) = match key.rsa.blind(&input) {
            Ok(blinded) => blinded,
            Err(error) => return Err(end(task, Err(error))),
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let over = Arc::new(AtomicBool::new(false));
        let answers = self.sender.clone();
        let called = Arc::clone(&key);
        let returned = Arc::clone(&over);
        let counters = Arc::clone(&self.watch.counters);
        self.watch.callers.start_call(Box::new(move |calls| {
            let result = called.compute(calls, &blinded);
            if returned.swap(true, Ordering::AcqRel) {
                counters.slots_lost.fetch_sub(1, Ordering::Relaxed);
            }
            // The queue may be gone.
            let _ = answers.send((ticket, result));
        }));
        self.watch.counters.submitted.fetch_add(1, Ordering::Relaxed);
        let job = Job { task, key, input, blinding, started, over };
        self.jobs.insert(ticket, job);
        Ok(())
    }

    /// Verifies an answer and ends its task.
    fn settle(&self, job: Job, answer: CallResult) -> Done {
        let Job { task, key, input, blinding, started, over: _ } = job;
        let root = match answer {
            Ok(answer) => key.rsa.unblind(&input, &answer, blinding),
            Err(CallError::Refused) => Err(BackendError::NotOffered),
            Err(CallError::Kernel(error)) => {
                self.watch.failed(error);
                Err(BackendError::Failed)
            }
        };
        match &root {
            Ok(_) => self.watch.served(),
            Err(BackendError::Fault) => {
                self.watch.counters.faults.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        let software = &key.rsa.software;
        let result =
            root.and_then(|root| raw_rsa::finish(software, &task.operation, &task.input, root));
        Done { result, task, service_time: started.elapsed() }
    }

    /// Ends the tasks whose calls have not returned in time, and those that have waited for as long.
    fn give_up_late(&mut self, done: &mut Vec<Done>) {
        let limit = self.watch.answer_time;
        let late = |started: Instant| started.elapsed() > limit;
        let mut hanging = 0;
        while let Some(oldest) = self.jobs.first_entry()
            && late(oldest.get().started)
        {
            let job = oldest.remove();
            // Counted first: the call may return now and take itself out of the count.
            self.watch.counters.slots_lost.fetch_add(1, Ordering::Relaxed);
            if job.over.swap(true, Ordering::AcqRel) {
                self.watch.counters.slots_lost.fetch_sub(1, Ordering::Relaxed);
            } else {
                hanging += 1;
            }
            done.push(failed(job.task, job.started));
        }
        if hanging > 0 {
            self.watch.hangs(hanging);
        }
        let up = self.watch.is_up();
        while let Some((submitted, task)) = self.waiting.pop_front() {
            if up && !late(submitted) {
                self.waiting.push_front((submitted, task));
                break;
            }
            done.push(failed(task, submitted));
        }
    }
}

fn failed(task: Task, started: Instant) -> Done {
    Done { task, result: Err(BackendError::Failed), service_time: started.elapsed() }
}

impl Queue for KernelQueue {
    fn capacity(&self) -> usize {
        self.watch.callers.count
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let held = self.jobs.len() + self.waiting.len() + self.ended.len();
        let taken = tasks.len().min(self.capacity().saturating_sub(held));
        let now = Instant::now();
        self.waiting.extend(tasks.drain(..taken).map(|task| (now, task)));
        self.start_waiting();
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        while let Ok((ticket, answer)) = self.answers.try_recv() {
            if let Some(job) = self.jobs.remove(&ticket) {
                done.push(self.settle(job, answer));
            }
        }
        self.give_up_late(done);
        self.start_waiting();
        done.append(&mut self.ended);
        self.jobs.len() + self.waiting.len()
    }
}
