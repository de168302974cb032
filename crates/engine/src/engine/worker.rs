// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Workers: take what waits in their class, run it on queues of the backends, hand out completions.

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::WorkerThread;
use super::choice::Group;
use super::dispatch::Backends;
use super::job::{Completion, Job, JobId, Key, Queued, Session};
use super::measure::{BatchPlan, PartId};
use super::shared::{Outbox, Shared, lock};
use crate::backend::{BackendKey, Done, Queue, Task};
use crate::error::{BackendError, JobError};
use crate::operation::Class;

/// Completions are handed out at least this often while a batch is being computed: a result should
/// not wait for its neighbours, and one wake-up of a connection costs a few microseconds.
const FLUSH_INTERVAL: Duration = Duration::from_micros(150);

/// The same while more than [`DEEP`] tasks are left: a client with that many in flight waits for the
/// last one anyway. One wake-up then serves five RSA-2048 signatures or ninety P-256 ones; with the
/// shorter interval each RSA result cost the client a wake-up of its own (docs/benchmarks).
const DEEP_FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// Remaining tasks (batch plus queue) above which the longer flush interval applies.
const DEEP: usize = 16;

/// The body of a worker thread.
///
/// Operations cannot be interrupted, so a job that comes while every worker is busy would wait for the rest of
/// an operation of another owner, which takes as long as its own. The express worker of a class serves owners
/// that have nothing in service and were not given more than the others; the operating system shares the cores
/// between it and the workers. With one owner alone it never runs.
pub(super) fn run(shared: &Shared, class: Class, worker: WorkerThread) {
    let wait = match worker {
        WorkerThread::Regular(_) => wait_for_work,
        WorkerThread::Express => wait_for_unserved,
    };
    let mut runner = Runner::new(&shared.backends);
    let mut batch = Vec::new();
    let mut expired = Vec::new();
    while wait(shared, class, &mut batch, &mut expired) {
        shared.end(
            expired
                .drain(..)
                .map(|queued| (queued, JobError::Expired))
                .collect(),
        );
        let behind = || lock(&shared.classes[class.index()].state).queue.len();
        runner.run(shared, class, std::mem::take(&mut batch), behind);
    }
}

/// Sleeps until there is work and takes a fair share of it; false when the engine stops.
fn wait_for_work(
    shared: &Shared,
    class: Class,
    ready: &mut Vec<Queued>,
    expired: &mut Vec<Queued>,
) -> bool {
    let most_jobs = most_jobs(shared, class);
    let class = &shared.classes[class.index()];
    let mut state = lock(&class.state);
    while state.queue.is_empty() {
        if state.stopping {
            return false;
        }
        state.idle_workers += 1;
        state = class
            .work
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
        state.idle_workers -= 1;
    }
    // A share, not everything: the other workers of the class should have something to do as well.
    // But no less than fills the lanes of a backend, where a few cost what one does.
    let share = state.queue.len().div_ceil(shared.workers);
    let mut most = share.next_multiple_of(shared.batch).min(most_jobs);
    if shared.all_on_cpu && state.queue.owners_waiting() > 1 {
        most = most.min(shared.batch);
    }
    state.queue.pop(most, Instant::now(), ready, expired);
    let express = state.needs_express();
    drop(state);
    if express {
        class.express.notify_one();
    }
    true
}

/// Sleeps until an owner that has nothing in service waits although all workers are busy, and takes as many
/// of its jobs as a backend computes together; false when the engine stops.
fn wait_for_unserved(
    shared: &Shared,
    class: Class,
    ready: &mut Vec<Queued>,
    expired: &mut Vec<Queued>,
) -> bool {
    let class = &shared.classes[class.index()];
    let mut state = lock(&class.state);
    while !state.needs_express() {
        if state.stopping {
            return false;
        }
        state = class
            .express
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
    state
        .queue
        .pop_unserved(shared.batch, Instant::now(), ready, expired);
    true
}

/// Jobs that a worker takes at once at most, where a device serves: enough to fill every lane of every backend
/// several times.
const MAX_BATCH: usize = 256;

/// The same by class where all backends compute on the worker's core: about a millisecond of P-256, two
/// batches of RSA-2048 in lanes (2 to 5 ms), a few operations of slow keys. The lock of the queue costs nothing beside that, and an owner that came during it has
/// its turn next.
const CPU_TURN: [usize; 3] = [64, 16, 4];

/// Jobs that a worker takes at once, at most.
fn most_jobs(shared: &Shared, class: Class) -> usize {
    if shared.all_on_cpu {
        CPU_TURN[class.index()].next_multiple_of(shared.batch)
    } else {
        MAX_BATCH
    }
}

/// Runs batches of jobs on queues that it owns, one per backend, opened at first use.
pub(super) struct Runner {
    backends: Vec<BackendSlot>,
    in_flight: InFlightTable,
    plan: BatchPlan,
    done: Vec<Done>,
}

/// One backend as this runner sees it.
#[derive(Default)]
struct BackendSlot {
    queue: Option<Box<dyn Queue>>,
    /// When the backend refused a queue; it is asked again [`QUEUE_RETRY`] later.
    refused: Option<Instant>,
    waiting: VecDeque<Task>,
    busy: bool,
}

/// How long a runner passes over a backend that gave it no queue: asking costs system calls, and instances of
/// a device become free when another process ends.
const QUEUE_RETRY: Duration = Duration::from_secs(1);

/// What is remembered of a job while a backend holds its task.
struct InFlight {
    id: JobId,
    session: Session,
    key: Arc<Key>,
    arrived: Instant,
    backend: usize,
    /// Backends that had this job, as a mask.
    tried: u32,
    /// The part of the batch that it is measured with, on its first try and if there was a choice.
    part: Option<PartId>,
}

/// Jobs that backends hold, by the token of their task.
#[derive(Default)]
struct InFlightTable {
    jobs: Vec<Option<InFlight>>,
    free: Vec<u32>,
}

impl InFlightTable {
    fn insert(&mut self, job: InFlight) -> u32 {
        if let Some(token) = self.free.pop() {
            self.jobs[token as usize] = Some(job);
            return token;
        }
        self.jobs.push(Some(job));
        // A batch is at most MAX_BATCH jobs.
        u32::try_from(self.jobs.len() - 1).unwrap_or(u32::MAX)
    }

    fn get(&self, token: u32) -> Option<&InFlight> {
        self.jobs.get(token as usize)?.as_ref()
    }

    fn remove(&mut self, token: u32) -> Option<InFlight> {
        let job = self.jobs.get_mut(token as usize)?.take()?;
        self.free.push(token);
        Some(job)
    }

    fn len(&self) -> usize {
        self.jobs.len() - self.free.len()
    }

    /// Tokens of the jobs that a backend holds.
    fn held_by(&self, backend: usize) -> Vec<u32> {
        let tokens = (0_u32..).zip(&self.jobs);
        let held = tokens.filter(|(_, job)| job.as_ref().is_some_and(|job| job.backend == backend));
        held.map(|(token, _)| token).collect()
    }
}

impl InFlight {
    /// The end of a job that no backend has answered.
    fn failed(self, error: JobError, outbox: &mut Outbox) {
        let queue_time = self.arrived.elapsed();
        let completion = Completion {
            id: self.id,
            result: Err(error),
            served_by: None,
            queue_time,
            service_time: Duration::ZERO,
        };
        outbox.push(self.session, completion);
    }
}

impl Runner {
    pub(super) fn new(backends: &Backends) -> Self {
        Self {
            backends: (0..backends.len())
                .map(|_| BackendSlot::default())
                .collect(),
            in_flight: InFlightTable::default(),
            plan: BatchPlan::default(),
            done: Vec::new(),
        }
    }

    /// Runs a batch to its end. `behind` tells how many jobs wait behind it.
    pub(super) fn run(
        &mut self,
        shared: &Shared,
        class: Class,
        batch: Vec<Queued>,
        behind: impl Fn() -> usize,
    ) {
        let mut outbox = Outbox::of(class);
        let refused = self.refused(Instant::now());
        let able = |job: &Job| match job.key.able(job.operation.kind()) {
            able if able & !refused != 0 => able & !refused,
            able => able,
        };
        let group = |job: &Job| Group::of(job.operation.kind(), job.key.info.key_type);
        let jobs = batch
            .iter()
            .map(|queued| (group(&queued.job), able(&queued.job)));
        let decide = |group, jobs, able| shared.backends.decide(group, jobs, able);
        self.plan.begin(jobs, decide, Instant::now());
        for Queued { job, arrived } in batch {
            let placed = self.plan.place(group(&job), able(&job));
            let (part, planned) = placed.unzip();
            let Job {
                id,
                session,
                key,
                operation,
                input,
                deadline: _,
            } = job;
            let job = InFlight {
                id,
                session,
                key,
                arrived,
                backend: 0,
                tried: 0,
                part,
            };
            // The token and the backend's name of the key are filled in by `place`.
            let task = Task {
                token: 0,
                key: BackendKey(0),
                operation,
                input,
            };
            self.place(
                shared,
                job,
                task,
                planned,
                JobError::NotOffered,
                &mut outbox,
            );
        }
        let mut flushed = Instant::now();
        while self.poll_backends(shared, &mut outbox) {
            let elapsed = flushed.elapsed();
            let left = || self.in_flight.len() + behind();
            let due =
                elapsed >= FLUSH_INTERVAL && (elapsed >= DEEP_FLUSH_INTERVAL || left() <= DEEP);
            if due {
                outbox.flush(shared);
                flushed = Instant::now();
            }
        }
        outbox.flush(shared);
    }

    /// Backends that refused a queue lately, as a mask.
    fn refused(&self, now: Instant) -> u32 {
        let lately = |refused: Instant| now.saturating_duration_since(refused) < QUEUE_RETRY;
        let slots = self.backends.iter().enumerate();
        let refused = slots.filter(|(_, slot)| slot.refused.is_some_and(lately));
        refused.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// Gives a task to the backend of the plan, or else to the best one that has not had it, or ends its
    /// job with `otherwise`.
    fn place(
        &mut self,
        shared: &Shared,
        mut job: InFlight,
        mut task: Task,
        mut planned: Option<usize>,
        otherwise: JobError,
        outbox: &mut Outbox,
    ) {
        let able = job.key.able(task.operation.kind());
        while let Some(index) = planned
            .take()
            .or_else(|| shared.backends.first(able & !job.tried))
        {
            job.tried |= 1 << index;
            let name = job.key.names.get(index).copied().flatten();
            let (Some(name), true) = (name, self.has_queue(shared, index)) else {
                self.invalidate(&mut job);
                continue;
            };
            job.backend = index;
            task.key = name;
            task.token = self.in_flight.insert(job);
            self.backends[index].waiting.push_back(task);
            return;
        }
        job.failed(otherwise, outbox);
    }

    /// Makes sure that there is a queue to this backend, if it gives one.
    fn has_queue(&mut self, shared: &Shared, index: usize) -> bool {
        let slot = &mut self.backends[index];
        if slot.queue.is_some() {
            return true;
        }
        let now = Instant::now();
        if slot
            .refused
            .is_some_and(|refused| now.saturating_duration_since(refused) < QUEUE_RETRY)
        {
            return false;
        }
        slot.queue = shared.backends.open_queue(index);
        slot.refused = slot.queue.is_none().then_some(now);
        slot.queue.is_some()
    }

    /// The job goes to another backend than planned: what it was to be measured with says nothing.
    fn invalidate(&mut self, job: &mut InFlight) {
        if let Some(part) = job.part.take() {
            self.plan.invalidate(part);
        }
    }

    /// Divides the time that a call took evenly among the tasks it completed.
    fn add_busy_time(&mut self, elapsed: Duration) {
        let each = elapsed / u32::try_from(self.done.len()).unwrap_or(u32::MAX).max(1);
        for done in &self.done {
            if let Some(part) = self.in_flight.get(done.task.token).and_then(|job| job.part) {
                self.plan.add_busy_time(part, each);
            }
        }
    }

    /// One round over all backends: submit, poll, settle. False when nothing is left to do.
    fn poll_backends(&mut self, shared: &Shared, outbox: &mut Outbox) -> bool {
        let mut progress = false;
        let mut left = false;
        for index in 0..self.backends.len() {
            let slot = &mut self.backends[index];
            if slot.waiting.is_empty() && !slot.busy {
                continue;
            }
            let Some(queue) = slot.queue.as_mut() else {
                continue;
            };
            let (waiting, done) = (&mut slot.waiting, &mut self.done);
            let start = (!self.plan.is_empty()).then(Instant::now);
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                let taken = if waiting.is_empty() {
                    0
                } else {
                    queue.submit(waiting)
                };
                (taken, queue.poll(done))
            }));
            match outcome {
                Ok((taken, in_flight)) => {
                    slot.busy = in_flight > 0;
                    progress |= taken > 0 || !self.done.is_empty();
                    left = true;
                    if let Some(start) = start {
                        self.add_busy_time(start.elapsed());
                    }
                }
                Err(_) => self.abandon(shared, index, outbox),
            }
            let mut done = std::mem::take(&mut self.done);
            for done in done.drain(..) {
                self.settle(shared, done, outbox);
            }
            self.done = done;
        }
        left |= self
            .backends
            .iter()
            .any(|slot| slot.busy || !slot.waiting.is_empty());
        if left && !progress {
            // A device is working: let others use the core in this time.
            thread::yield_now();
        }
        left
    }

    /// Turns what a backend answered into a completion or into another try.
    fn settle(&mut self, shared: &Shared, done: Done, outbox: &mut Outbox) {
        let Done {
            task,
            result,
            service_time,
        } = done;
        let Some(mut job) = self.in_flight.remove(task.token) else {
            return;
        };
        let kind = shared.backends.kind(job.backend);
        let series = shared.statistics.series(kind, task.operation.kind());
        let result = match result {
            Ok(output) => {
                if let Some(part) = job.part {
                    let on_cpu = shared.backends.is_on_cpu(job.backend);
                    if let Some(measured) = self.plan.finish(part, on_cpu, Instant::now()) {
                        shared.backends.record(&measured);
                    }
                }
                Ok(output)
            }
            Err(error) => {
                self.invalidate(&mut job);
                series.failed.fetch_add(1, Ordering::Relaxed);
                if error == BackendError::Fault {
                    shared.statistics.faults.fetch_add(1, Ordering::Relaxed);
                    shared.backends.quarantine(job.backend);
                }
                if error.retry_elsewhere() {
                    shared.statistics.retried.fetch_add(1, Ordering::Relaxed);
                    let otherwise = match error {
                        BackendError::NotOffered => JobError::NotOffered,
                        _ => JobError::Failed,
                    };
                    self.place(shared, job, task, None, otherwise, outbox);
                    return;
                }
                Err(JobError::BadInput)
            }
        };
        let queue_time = job.arrived.elapsed().saturating_sub(service_time);
        if result.is_ok() {
            series.completed.fetch_add(1, Ordering::Relaxed);
            series.queue_time.record(queue_time);
            series.service_time.record(service_time);
        }
        let served_by = Some(kind);
        let completion = Completion {
            id: job.id,
            result,
            served_by,
            queue_time,
            service_time,
        };
        outbox.push(job.session, completion);
    }

    /// After a panic inside a backend: forget the queue, pass over the backend, try what waited for
    /// it elsewhere, and end what it held.
    fn abandon(&mut self, shared: &Shared, index: usize, outbox: &mut Outbox) {
        shared.statistics.panics.fetch_add(1, Ordering::Relaxed);
        shared.backends.quarantine(index);
        let BackendSlot { waiting, .. } = std::mem::take(&mut self.backends[index]);
        let mut held = self.in_flight.held_by(index);
        for task in waiting {
            held.retain(|token| *token != task.token);
            if let Some(mut job) = self.in_flight.remove(task.token) {
                self.invalidate(&mut job);
                self.place(shared, job, task, None, JobError::Failed, outbox);
            }
        }
        // What it completed before it panicked is settled as usual.
        held.retain(|token| self.done.iter().all(|done| done.task.token != *token));
        for token in held {
            if let Some(job) = self.in_flight.remove(token) {
                job.failed(JobError::Failed, outbox);
            }
        }
    }
}
