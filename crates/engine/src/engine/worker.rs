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

use super::choice::{Decision, Group};
use super::{Completion, Job, JobId, Key, Outbox, Queued, Session, Shared, lock};
use crate::backend::{BackendKey, Done, Queue, Task};
use crate::engine::dispatch::Backends;
use crate::error::{BackendError, JobError};
use crate::operation::{Class, OperationKind};

/// Completions are handed out at least this often while a batch is being computed: a result should
/// not wait for its neighbours, and one wake-up of a connection costs a few microseconds.
const FLUSH_INTERVAL: Duration = Duration::from_micros(150);

/// The same while more than [`DEEP`] tasks are left: whoever has that many under way waits for the
/// last one anyway. One wake-up then serves five RSA-2048 signatures or ninety P-256 ones; with the
/// shorter interval each RSA result cost the client a wake-up of its own (docs/benchmarks).
const DEEP_FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// Tasks left, in the batch and behind it, from which on a worker counts as deep in work.
const DEEP: usize = 16;

/// The body of a worker thread.
pub(crate) fn run(shared: &Shared, class: Class) {
    serve(shared, class, wait_for_work);
}

/// The body of the express worker of a class. Operations cannot be interrupted, so a job that comes while
/// every worker is busy would wait for the rest of an operation of another owner, which takes as long as
/// its own. The express worker serves owners that have nothing in service and were not given more than the
/// others; the operating system shares the cores between it and the workers. With one owner alone it never
/// runs.
pub(crate) fn run_express(shared: &Shared, class: Class) {
    serve(shared, class, wait_for_unserved);
}

/// Sleeps until there is work and takes some of it; false when the engine stops.
type Wait = fn(&Shared, Class, ready: &mut Vec<Queued>, expired: &mut Vec<Queued>) -> bool;

fn serve(shared: &Shared, class: Class, wait: Wait) {
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
    let turn = turn(shared, class);
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
    let mut most = share.next_multiple_of(shared.batch).min(turn);
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

/// The same by class where all backends compute on the worker's core: about a millisecond of work, beside
/// which the lock of the queue costs nothing, and after which an owner that came meanwhile has its turn.
const CPU_TURN: [usize; 3] = [64, 16, 4];

/// Jobs that a worker takes at once, at most.
fn turn(shared: &Shared, class: Class) -> usize {
    if shared.all_on_cpu {
        CPU_TURN[class.index()].next_multiple_of(shared.batch)
    } else {
        MAX_BATCH
    }
}

/// Runs batches of jobs on queues that it owns, one per backend, opened at first use.
pub(crate) struct Runner {
    slots: Vec<Slot>,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    done: Vec<Done>,
    /// What of the batch was decided together and is measured together.
    shares: Vec<Share>,
}

/// The jobs of a batch that cost the same and that more than one backend can serve, as far as one backend
/// serves them.
#[derive(Clone, Copy)]
struct Share {
    group: Group,
    /// Who can serve them, as a mask.
    able: u32,
    /// How many of the group there are in the batch.
    waiting: usize,
    /// How many of them are in this share.
    jobs: usize,
    backend: usize,
    unplaced: usize,
    left: usize,
    placed: Instant,
    /// How long a backend on the CPU was busy with them.
    busy: Duration,
    /// Whether one of them failed, so that the time says nothing.
    spoiled: bool,
}

impl Share {
    fn assign(&mut self, backend: usize, jobs: usize) {
        self.backend = backend;
        self.jobs = jobs;
        self.unplaced = jobs;
        self.left = jobs;
    }
}

/// One backend as this runner sees it.
struct Slot {
    queue: Option<Box<dyn Queue>>,
    waiting: VecDeque<Task>,
    busy: bool,
}

/// What is remembered of a job while a backend holds its task.
struct InFlight {
    id: JobId,
    session: Session,
    key: Arc<Key>,
    arrived: Instant,
    backend: usize,
    /// Backends that had this job, as a mask.
    tried: u32,
    /// The share of the batch that it belongs to on its first try, if there was a choice.
    share: Option<usize>,
}

impl Runner {
    pub(crate) fn new(backends: &Backends) -> Self {
        let slot = || Slot {
            queue: None,
            waiting: VecDeque::new(),
            busy: false,
        };
        Self {
            slots: (0..backends.len()).map(|_| slot()).collect(),
            in_flight: Vec::new(),
            free: Vec::new(),
            done: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Runs a batch to its end. `behind` tells how many jobs wait behind it.
    pub(crate) fn run(
        &mut self,
        shared: &Shared,
        class: Class,
        batch: Vec<Queued>,
        behind: impl Fn() -> usize,
    ) {
        let mut outbox = Outbox::of(class);
        self.share_out(shared, &batch);
        for Queued { job, arrived } in batch {
            let Job {
                id,
                session,
                key,
                operation,
                input,
                deadline: _,
            } = job;
            let share = self.take_share(&key, operation.kind());
            let origin = InFlight {
                id,
                session,
                key,
                arrived,
                backend: 0,
                tried: 0,
                share,
            };
            // The token and the backend's name of the key are filled in by `place`.
            let task = Task {
                token: 0,
                key: BackendKey(0),
                operation,
                input,
            };
            self.place(shared, origin, task, JobError::NotOffered, &mut outbox);
        }
        let mut flushed = Instant::now();
        while self.turn(shared, &mut outbox) {
            let elapsed = flushed.elapsed();
            let left = || self.in_flight.len() - self.free.len() + behind();
            let due =
                elapsed >= FLUSH_INTERVAL && (elapsed >= DEEP_FLUSH_INTERVAL || left() <= DEEP);
            if due {
                outbox.flush(shared);
                flushed = Instant::now();
            }
        }
        outbox.flush(shared);
    }

    /// Decides who serves the jobs of a batch for which there is a choice, all of one kind together.
    fn share_out(&mut self, shared: &Shared, batch: &[Queued]) {
        self.shares.clear();
        let placed = Instant::now();
        for Queued { job, .. } in batch {
            let able = job.key.able(job.operation.kind());
            if able.count_ones() < 2 {
                continue;
            }
            let group = Group::of(job.operation.kind(), job.key.info.key_type);
            let same = |share: &&mut Share| share.group == group && share.able == able;
            match self.shares.iter_mut().find(same) {
                Some(share) => share.waiting += 1,
                None => self.shares.push(Share {
                    group,
                    able,
                    waiting: 1,
                    jobs: 0,
                    backend: 0,
                    unplaced: 0,
                    left: 0,
                    placed,
                    busy: Duration::ZERO,
                    spoiled: false,
                }),
            }
        }
        for at in 0..self.shares.len() {
            let mut share = self.shares[at];
            let Decision { serving, trial } =
                shared
                    .backends
                    .decide(share.group, share.waiting, share.able);
            let mut rest = share.waiting;
            if let Some((backend, tried)) = trial {
                rest -= tried;
                share.assign(backend, tried);
                self.shares.push(share);
            }
            self.shares[at].assign(serving, rest);
        }
    }

    /// The share of the next job of this kind, if there was a choice.
    fn take_share(&mut self, key: &Key, kind: OperationKind) -> Option<usize> {
        let able = key.able(kind);
        if able.count_ones() < 2 {
            return None;
        }
        let group = Group::of(kind, key.info.key_type);
        let open = |share: &Share| share.group == group && share.able == able && share.unplaced > 0;
        let share = self.shares.iter().position(open)?;
        self.shares[share].unplaced -= 1;
        Some(share)
    }

    /// One job of a share went elsewhere or failed.
    fn spoil(&mut self, share: Option<usize>) {
        if let Some(share) = share.and_then(|share| self.shares.get_mut(share)) {
            share.spoiled = true;
        }
    }

    /// Tasks of a backend on the CPU took it so long together.
    fn charge(&mut self, elapsed: Duration) {
        let each = elapsed / u32::try_from(self.done.len()).unwrap_or(u32::MAX).max(1);
        for done in &self.done {
            let origin = self.in_flight.get(done.task.token as usize);
            let share = origin.and_then(|origin| origin.as_ref()?.share);
            if let Some(share) = share.and_then(|share| self.shares.get_mut(share)) {
                share.busy += each;
            }
        }
    }

    /// A job of a share ended with a result. With the last one the share is measured.
    fn count(&mut self, shared: &Shared, share: usize) {
        let Some(share) = self.shares.get_mut(share) else {
            return;
        };
        share.left = share.left.saturating_sub(1);
        if share.left > 0 || share.spoiled {
            return;
        }
        let spent = if shared.backends.is_on_cpu(share.backend) {
            share.busy
        } else {
            share.placed.elapsed()
        };
        let Share {
            group,
            waiting,
            jobs,
            backend,
            ..
        } = *share;
        shared.backends.record(group, waiting, jobs, backend, spent);
    }

    /// Gives a task to the backend that was decided on, or else to the best one that has not had it,
    /// or ends its job with `otherwise`.
    fn place(
        &mut self,
        shared: &Shared,
        mut origin: InFlight,
        mut task: Task,
        otherwise: JobError,
        outbox: &mut Outbox,
    ) {
        let able = origin.key.able(task.operation.kind());
        let mut decided = origin.share.map(|share| self.shares[share].backend);
        while let Some(index) = decided
            .take()
            .or_else(|| shared.backends.first(able & !origin.tried))
        {
            origin.tried |= 1 << index;
            let name = origin.key.names.get(index).copied().flatten();
            let (Some(name), true) = (name, self.open(shared, index)) else {
                self.spoil(origin.share.take());
                continue;
            };
            origin.backend = index;
            task.key = name;
            task.token = self.remember(origin);
            self.slots[index].waiting.push_back(task);
            return;
        }
        let queue_time = origin.arrived.elapsed();
        let completion = Completion {
            id: origin.id,
            result: Err(otherwise),
            served_by: None,
            queue_time,
            service_time: Duration::ZERO,
        };
        outbox.push(origin.session, completion);
    }

    /// Makes sure that there is a queue to this backend.
    fn open(&mut self, shared: &Shared, index: usize) -> bool {
        let slot = &mut self.slots[index];
        if slot.queue.is_none() {
            slot.queue = shared.backends.backend(index).open_queue().ok();
        }
        slot.queue.is_some()
    }

    fn remember(&mut self, origin: InFlight) -> u32 {
        if let Some(token) = self.free.pop() {
            self.in_flight[token as usize] = Some(origin);
            return token;
        }
        self.in_flight.push(Some(origin));
        // A batch is at most MAX_BATCH jobs.
        u32::try_from(self.in_flight.len() - 1).unwrap_or(u32::MAX)
    }

    fn recall(&mut self, token: u32) -> Option<InFlight> {
        let origin = self.in_flight.get_mut(token as usize)?.take()?;
        self.free.push(token);
        Some(origin)
    }

    /// One round over all backends: submit, poll, settle. False when nothing is left to do.
    fn turn(&mut self, shared: &Shared, outbox: &mut Outbox) -> bool {
        let mut progress = false;
        let mut left = false;
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if slot.waiting.is_empty() && !slot.busy {
                continue;
            }
            let Some(queue) = slot.queue.as_mut() else {
                continue;
            };
            let (waiting, done) = (&mut slot.waiting, &mut self.done);
            let start = (!self.shares.is_empty()).then(Instant::now);
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
                        self.charge(start.elapsed());
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
        let left = left
            || self
                .slots
                .iter()
                .any(|slot| slot.busy || !slot.waiting.is_empty());
        if left && !progress {
            // A device is working: let others use the core meanwhile.
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
        let Some(mut origin) = self.recall(task.token) else {
            return;
        };
        let kind = shared.backends.kind(origin.backend);
        let series = shared.statistics.series(kind, task.operation.kind());
        let result = match result {
            Ok(output) => {
                if let Some(share) = origin.share {
                    self.count(shared, share);
                }
                Ok(output)
            }
            Err(error) => {
                self.spoil(origin.share.take());
                series.failed.fetch_add(1, Ordering::Relaxed);
                if error == BackendError::Fault {
                    shared.statistics.faults.fetch_add(1, Ordering::Relaxed);
                    shared.backends.quarantine(origin.backend);
                }
                if error.retry_elsewhere() {
                    shared.statistics.retried.fetch_add(1, Ordering::Relaxed);
                    let otherwise = match error {
                        BackendError::NotOffered => JobError::NotOffered,
                        _ => JobError::Failed,
                    };
                    self.place(shared, origin, task, otherwise, outbox);
                    return;
                }
                Err(JobError::BadInput)
            }
        };
        let queue_time = origin.arrived.elapsed().saturating_sub(service_time);
        if result.is_ok() {
            series.completed.fetch_add(1, Ordering::Relaxed);
            series.queue_time.record(queue_time);
            series.service_time.record(service_time);
        }
        let served_by = Some(kind);
        let completion = Completion {
            id: origin.id,
            result,
            served_by,
            queue_time,
            service_time,
        };
        outbox.push(origin.session, completion);
    }

    /// After a panic inside a backend: forget the queue, pass over the backend, try what waited for
    /// it elsewhere, and end what it held.
    fn abandon(&mut self, shared: &Shared, index: usize, outbox: &mut Outbox) {
        shared.statistics.panics.fetch_add(1, Ordering::Relaxed);
        shared.backends.quarantine(index);
        let slot = &mut self.slots[index];
        slot.queue = None;
        slot.busy = false;
        let waiting = std::mem::take(&mut slot.waiting);
        for task in waiting {
            if let Some(mut origin) = self.recall(task.token) {
                self.spoil(origin.share.take());
                self.place(shared, origin, task, JobError::Failed, outbox);
            }
        }
        let finished: Vec<u32> = self.done.iter().map(|done| done.task.token).collect();
        for token in 0..self.in_flight.len() {
            let token = u32::try_from(token).unwrap_or(u32::MAX);
            let held = self.in_flight[token as usize]
                .as_ref()
                .is_some_and(|origin| origin.backend == index && !finished.contains(&token));
            let Some(origin) = held.then(|| self.recall(token)).flatten() else {
                continue;
            };
            let completion = Completion {
                id: origin.id,
                result: Err(JobError::Failed),
                served_by: None,
                queue_time: origin.arrived.elapsed(),
                service_time: Duration::ZERO,
            };
            outbox.push(origin.session, completion);
        }
    }
}
