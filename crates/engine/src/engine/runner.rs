// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Runs jobs on queues of the backends, and collects completions.
//!
//! ```text
//!  batch ──accept──► BackendSlot: waiting ──submit──► Queue ──poll──► settle ──► completion or next backend
//!    ▲                                                  │
//!    └── Intake: more jobs, while a device works ◄── nothing to do: spin, then sleep
//! ```

use std::collections::VecDeque;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use millrace_operation::{Class, JobError};

use super::backend_set::{BackendIndex, BackendSet};
use super::dispatch::{Backends, OpenQueue};
use super::in_flight::{InFlight, InFlightTable};
use super::job::{Completion, CompletionBatch, Job, Queued};
use super::measure::BatchPlans;
use super::shared::{SWEEP_INTERVAL, Shared};
use crate::backend::{BackendKey, Done, Pace, Task};
use crate::error::BackendError;

/// Completions are delivered at least this often while a batch is being computed: a result should
/// not wait for its neighbours, and one wake-up of a connection costs a few microseconds.
const FLUSH_INTERVAL: Duration = Duration::from_micros(150);

/// Time between flushes while more than [`DEEP_QUEUE`] tasks are left: a client with that many in flight waits for the
/// last one anyway. One wake-up then serves five RSA-2048 signatures or ninety P-256 ones; with the
/// shorter interval each RSA result cost the client a wake-up of its own (docs/benchmarks).
const DEEP_FLUSH_INTERVAL: Duration = Duration::from_millis(1);

/// Remaining tasks (batch plus queue) above which the longer flush interval applies.
const DEEP_QUEUE: usize = 16;

/// Jobs that a worker takes at once at most, where a device serves: enough to fill every lane of every backend
/// several times.
const MAX_BATCH: usize = 256;

/// Tasks beyond the capacity of its devices that a runner holds, so that a slot that becomes free is filled in
/// the same poll. Few, because these jobs are out of the fair queue.
const OVERFLOW: usize = 16;

/// A device that is full and returns nothing for this long counts as stuck: jobs that other backends can serve
/// go there. Several times what an operation takes on a device.
const STUCK_AFTER: Duration = Duration::from_millis(5);

/// Time for which a runner passes over a backend that gave it no queue: asking costs system calls, and instances of a
/// device become free when another process ends.
const QUEUE_RETRY: Duration = Duration::from_secs(1);

/// Time for which a runner skips a backend whose empty queue took no task: a device that lost answers. Jobs that only
/// it can serve are still offered to it.
const PUSH_BACK_PAUSE: Duration = Duration::from_millis(50);

/// Source of further jobs for a runner that waits for a device.
pub(super) trait Intake {
    /// Number of jobs that wait.
    fn behind(&self) -> usize;

    /// Takes up to `most` jobs that wait, if there are any.
    fn take(&mut self, _most: usize, _ready: &mut Vec<Queued>) {}

    /// Sleeps for `time`, less if a job comes and the runner has room for it.
    fn sleep(&self, time: Duration, _has_room: bool) {
        thread::sleep(time);
    }
}

/// No jobs but those of the first batch.
pub(super) struct NoIntake;

impl Intake for NoIntake {
    fn behind(&self) -> usize {
        0
    }
}

/// Runs batches of jobs on queues that it owns, one per backend, opened at first use.
pub(super) struct Runner {
    backends: Vec<BackendSlot>,
    in_flight: InFlightTable,
    plans: BatchPlans,
    done: Vec<Done>,
    /// Time at which tasks were last compared with their deadlines.
    swept: Instant,
}

/// One backend as this runner sees it.
struct BackendSlot {
    is_device: bool,
    queue: Option<OpenQueue>,
    /// Time at which the backend refused a queue; it is asked again after [`QUEUE_RETRY`].
    refused: Option<Instant>,
    /// Time at which it last took nothing although nothing was in flight; see [`PUSH_BACK_PAUSE`].
    pushed_back: Option<Instant>,
    waiting: VecDeque<Task>,
    /// Tasks in the queue, those that are lost included.
    in_flight: usize,
    /// Time at which the queue last took or returned a task.
    progress: Instant,
}

impl BackendSlot {
    fn new(is_device: bool) -> Self {
        Self {
            is_device,
            queue: None,
            refused: None,
            pushed_back: None,
            waiting: VecDeque::new(),
            in_flight: 0,
            progress: Instant::now(),
        }
    }

    fn held(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    fn capacity(&self) -> usize {
        self.queue.as_ref().map_or(0, |open| open.queue.capacity())
    }

    /// Whether this is a device that has no room and has returned nothing for [`STUCK_AFTER`].
    fn is_stuck(&self, now: Instant) -> bool {
        self.is_device
            && self.queue.is_some()
            && self.held() >= self.capacity()
            && now.saturating_duration_since(self.progress) >= STUCK_AFTER
    }

    fn refused_lately(&self, now: Instant) -> bool {
        self.refused.is_some_and(|refused| now.saturating_duration_since(refused) < QUEUE_RETRY)
    }

    fn pushed_back_lately(&self, now: Instant) -> bool {
        self.pushed_back.is_some_and(|last| now.saturating_duration_since(last) < PUSH_BACK_PAUSE)
    }
}

/// Result of polling the backends once, or one of them; of several the greatest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Round {
    /// Only devices work, and none has a result.
    Waiting,
    /// A backend took something, and none returned anything.
    Taken,
    /// A backend returned something.
    Answers,
    /// No task is left.
    Empty,
}

/// A job for which a backend is wanted.
struct Unplaced {
    job: InFlight,
    task: Task,
    /// Error with which the job ends if no backend takes it.
    otherwise: JobError,
}

impl Runner {
    pub(super) fn new(backends: &Backends) -> Self {
        let indexes = (0..backends.len()).map(BackendIndex);
        Self {
            backends: indexes.map(|index| BackendSlot::new(!backends.is_on_cpu(index))).collect(),
            in_flight: InFlightTable::default(),
            plans: BatchPlans::default(),
            done: Vec::new(),
            swept: Instant::now(),
        }
    }

    /// Jobs to take at once where a device serves, while nothing is in flight.
    pub(super) fn first_turn(&self) -> usize {
        match self.device_capacity() {
            0 => MAX_BATCH,
            capacity => (capacity + OVERFLOW).min(MAX_BATCH),
        }
    }

    /// Runs a batch to its end, and what it takes from `intake` while a device works.
    pub(super) fn run(
        &mut self,
        shared: &Shared,
        class: Class,
        batch: Vec<Queued>,
        intake: &mut impl Intake,
    ) {
        let mut completed = CompletionBatch::of(class);
        self.accept(shared, batch, &mut completed);
        let mut more = Vec::new();
        let mut flushed = Instant::now();
        let mut wait = Wait::default();
        loop {
            let round = self.poll_backends(shared, &mut completed);
            if round == Round::Empty {
                break;
            }
            let room = self.room();
            if room > 0 {
                intake.take(room, &mut more);
            }
            let took = !more.is_empty();
            self.accept(shared, std::mem::take(&mut more), &mut completed);
            self.end_lost(shared, &mut completed);
            if round == Round::Waiting && !took {
                shared.deliver(&mut completed);
                flushed = Instant::now();
                wait.once(self.pace(), |time| intake.sleep(time, room > 0));
                continue;
            }
            // Not after a submission alone: its answer is far away.
            if round == Round::Answers {
                wait = Wait::default();
            }
            let elapsed = flushed.elapsed();
            if elapsed >= DEEP_FLUSH_INTERVAL
                || (elapsed >= FLUSH_INTERVAL
                    && self.in_flight.len() + intake.behind() <= DEEP_QUEUE)
            {
                shared.deliver(&mut completed);
                flushed = Instant::now();
            }
        }
        shared.deliver(&mut completed);
    }

    /// Decides where the jobs go.
    fn accept(&mut self, shared: &Shared, batch: Vec<Queued>, completed: &mut CompletionBatch) {
        if batch.is_empty() {
            return;
        }
        let now = Instant::now();
        let avoided = self.avoided(shared, now);
        let on_devices = self.held_by_devices();
        let candidates = |job: &Job| job.able().minus(avoided).or(job.able());
        self.plans.begin(
            batch.iter().map(|Queued { job, .. }| (job.group(), candidates(job))),
            on_devices,
            |group, jobs, able| shared.backends.decide(group, jobs, on_devices, able),
            now,
        );
        for Queued { job, arrived } in batch {
            let able = candidates(&job);
            let (part, planned) = self.plans.place(job.group(), able).unzip();
            let backend = planned.or_else(|| shared.backends.first(able));
            let Job { id, session, key, operation, input, deadline } = job;
            let job = InFlight {
                id,
                session,
                key,
                arrived,
                deadline,
                backend: BackendIndex::default(),
                tried: BackendSet::EMPTY,
                part,
            };
            // The token and the backend's key are filled in by `place`.
            let task = Task { token: 0, key: BackendKey(0), operation, input };
            let unplaced = Unplaced { job, task, otherwise: JobError::NotOffered };
            self.place(shared, unplaced, backend, completed);
        }
    }

    /// Backends that refused a queue or pushed back lately, that are stuck, or whose queue was opened before the
    /// backend went away.
    fn avoided(&self, shared: &Shared, now: Instant) -> BackendSet {
        let slots = (0..).map(BackendIndex).zip(&self.backends);
        let avoided = slots.filter(|(index, slot)| {
            slot.refused_lately(now)
                || slot.pushed_back_lately(now)
                || slot.is_stuck(now)
                || self.is_stale(shared, *index)
        });
        avoided.map(|(index, _)| index).collect()
    }

    /// Whether the queue was opened before the backend went away, and still has tasks.
    fn is_stale(&self, shared: &Shared, index: BackendIndex) -> bool {
        let slot = &self.backends[index.0];
        let generation = shared.backends.generation(index);
        slot.held() > 0 && slot.queue.as_ref().is_some_and(|open| open.generation != generation)
    }

    fn devices(&self) -> impl Iterator<Item = &BackendSlot> {
        self.backends.iter().filter(|slot| slot.is_device)
    }

    fn held_by_devices(&self) -> usize {
        self.devices().map(BackendSlot::held).sum()
    }

    fn holds_cpu_work(&self) -> bool {
        let mut slots = self.backends.iter();
        slots.any(|slot| !slot.is_device && slot.held() > 0)
    }

    fn device_capacity(&self) -> usize {
        self.devices().map(BackendSlot::capacity).sum()
    }

    /// Number of jobs to take now: none while the CPU has work here, so that the other workers get it, and none without
    /// tasks on a device. A stuck device does not hold up the jobs of others.
    fn room(&self) -> usize {
        let held = self.held_by_devices();
        if held == 0 || self.holds_cpu_work() {
            return 0;
        }
        let limit = (self.device_capacity() + OVERFLOW).min(MAX_BATCH);
        if held < limit {
            return limit - held;
        }
        let now = Instant::now();
        let stuck = self.devices().any(|slot| slot.is_stuck(now));
        // Jobs that only the stuck device can serve are held until their deadlines, so they have a bound.
        if stuck && held < MAX_BATCH + OVERFLOW { OVERFLOW } else { 0 }
    }

    /// Rhythm of polls for the devices that work. A backend on the CPU that returned nothing is polled again at once.
    fn pace(&self) -> Pace {
        if self.holds_cpu_work() {
            return Pace { spin: Duration::MAX, ..Pace::default() };
        }
        let working = self.devices().filter(|slot| slot.in_flight > 0);
        let paces = working.filter_map(|slot| Some(slot.queue.as_ref()?.queue.pace()));
        paces.min_by_key(|pace| pace.longest).unwrap_or_default()
    }

    /// Gives a task to the backend of the plan, or else to the best one that has not had it, or ends its job.
    fn place(
        &mut self,
        shared: &Shared,
        Unplaced { mut job, mut task, otherwise }: Unplaced,
        mut planned: Option<BackendIndex>,
        completed: &mut CompletionBatch,
    ) {
        let able = job.key.able(task.operation.kind());
        while let Some(index) =
            planned.take().or_else(|| shared.backends.first(able.minus(job.tried)))
        {
            job.tried = job.tried.with(index);
            let opened = job.key.in_backend(index).filter(|_| self.has_queue(shared, index));
            let Some(backend_key) = opened else {
                self.invalidate(&mut job);
                continue;
            };
            job.backend = index;
            task.key = backend_key;
            task.token = self.in_flight.insert(job);
            let slot = &mut self.backends[index.0];
            if slot.held() == 0 {
                slot.progress = Instant::now();
            }
            slot.waiting.push_back(task);
            return;
        }
        job.failed(otherwise, completed);
    }

    /// Makes sure that there is a queue to this backend, if it gives one.
    fn has_queue(&mut self, shared: &Shared, index: BackendIndex) -> bool {
        if self.is_stale(shared, index) {
            return false;
        }
        let slot = &mut self.backends[index.0];
        let generation = shared.backends.generation(index);
        // Dropped before another is asked for: the backend may have one alone.
        slot.queue = slot.queue.take().filter(|open| open.generation == generation);
        if slot.queue.is_some() {
            return true;
        }
        let now = Instant::now();
        if slot.refused_lately(now) {
            return false;
        }
        slot.queue = shared.backends.open_queue(index);
        slot.refused = slot.queue.is_none().then_some(now);
        slot.queue.is_some()
    }

    /// Gives a job to another backend than the one that had it, or ends it.
    fn retry(&mut self, shared: &Shared, mut unplaced: Unplaced, completed: &mut CompletionBatch) {
        self.invalidate(&mut unplaced.job);
        self.place(shared, unplaced, None, completed);
    }

    /// The job goes to another backend than planned, so the part of the batch to which it belonged is not measured.
    fn invalidate(&mut self, job: &mut InFlight) {
        if let Some(part) = job.part.take() {
            self.plans.invalidate(part);
        }
    }

    /// The job was served as planned: records what its part of the batch cost once the part is complete.
    fn note_measurement(&mut self, shared: &Shared, job: &InFlight) {
        let Some(part) = job.part else {
            return;
        };
        let measured = if shared.backends.is_on_cpu(job.backend) {
            self.plans.finish_on_cpu(part)
        } else {
            self.plans.finish_on_device(part, Instant::now())
        };
        if let Some(measured) = measured {
            shared.backends.record(&measured);
        }
    }

    /// Divides the time that a call took evenly among the tasks it completed.
    fn add_busy_time(&mut self, elapsed: Duration) {
        let each = elapsed / u32::try_from(self.done.len()).unwrap_or(u32::MAX).max(1);
        for done in &self.done {
            if let Some(part) = self.in_flight.get(done.task.token).and_then(|job| job.part) {
                self.plans.add_busy_time(part, each);
            }
        }
    }

    /// One round over all backends.
    fn poll_backends(&mut self, shared: &Shared, completed: &mut CompletionBatch) -> Round {
        let mut round = Round::Waiting;
        for index in (0..self.backends.len()).map(BackendIndex) {
            round = round.max(self.poll_one(shared, index, completed));
        }
        let is_empty = self.backends.iter().all(|slot| slot.held() == 0);
        if is_empty { Round::Empty } else { round }
    }

    /// Submits to one backend, polls it, and settles what it returns.
    fn poll_one(
        &mut self,
        shared: &Shared,
        index: BackendIndex,
        completed: &mut CompletionBatch,
    ) -> Round {
        let slot = &mut self.backends[index.0];
        let Some(open) = slot.queue.as_mut().filter(|_| slot.waiting.len() + slot.in_flight > 0)
        else {
            return Round::Waiting;
        };
        let queue = &mut open.queue;
        let waiting = &mut slot.waiting;
        let done = &mut self.done;
        let start = (!self.plans.is_empty()).then(Instant::now);
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            let taken = if waiting.is_empty() { 0 } else { queue.submit(waiting) };
            (taken, queue.poll(done))
        }));
        let Ok((taken, in_flight)) = polled else {
            self.abandon(shared, index, completed);
            self.settle_done(shared, completed);
            return Round::Waiting;
        };
        slot.in_flight = in_flight;
        let answered = !self.done.is_empty();
        let pushed_back = taken == 0 && in_flight == 0 && !answered && !slot.waiting.is_empty();
        if taken > 0 || answered {
            slot.progress = Instant::now();
        }
        if let Some(start) = start {
            self.add_busy_time(start.elapsed());
        }
        self.settle_done(shared, completed);
        if pushed_back {
            self.place_elsewhere(shared, index, completed);
        }
        match (answered, taken) {
            (true, _) => Round::Answers,
            (false, 0) => Round::Waiting,
            (false, _) => Round::Taken,
        }
    }

    /// Settles what the backend that was just polled has returned.
    fn settle_done(&mut self, shared: &Shared, completed: &mut CompletionBatch) {
        let mut done = std::mem::take(&mut self.done);
        for done in done.drain(..) {
            self.settle(shared, done, completed);
        }
        // Kept for its memory.
        self.done = done;
    }

    /// Gives the tasks that a backend does not take to others; those that no other can serve stay.
    fn place_elsewhere(
        &mut self,
        shared: &Shared,
        index: BackendIndex,
        completed: &mut CompletionBatch,
    ) {
        let slot = &mut self.backends[index.0];
        slot.pushed_back = Some(Instant::now());
        let mut moved = Vec::new();
        let mut kept = VecDeque::new();
        for task in std::mem::take(&mut slot.waiting) {
            let others = self
                .in_flight
                .get(task.token)
                .map(|job| job.key.able(task.operation.kind()).minus(job.tried));
            match others.and_then(|others| shared.backends.first(others)) {
                Some(_) => moved.push(task),
                None => kept.push_back(task),
            }
        }
        slot.waiting = kept;
        for task in moved {
            if let Some(job) = self.in_flight.remove(task.token) {
                self.retry(shared, Unplaced { job, task, otherwise: JobError::Failed }, completed);
            }
        }
    }

    /// Turns what a backend answered into a completion or into another try.
    fn settle(&mut self, shared: &Shared, done: Done, completed: &mut CompletionBatch) {
        let Done { task, result, service_time } = done;
        let Some(mut job) = self.in_flight.remove(task.token) else {
            return;
        };
        let kind = shared.backends.kind(job.backend);
        let series = shared.statistics.series(kind, task.operation.kind());
        let result = match result {
            Ok(output) => {
                self.note_measurement(shared, &job);
                Ok(output)
            }
            Err(error) => {
                series.failed.fetch_add(1, Ordering::Relaxed);
                if error == BackendError::Fault {
                    shared.statistics.faults.fetch_add(1, Ordering::Relaxed);
                    shared.backends.quarantine(job.backend);
                }
                if error.retry_elsewhere() {
                    shared.statistics.retried.fetch_add(1, Ordering::Relaxed);
                    let otherwise = error.if_untried();
                    self.retry(shared, Unplaced { job, task, otherwise }, completed);
                    return;
                }
                self.invalidate(&mut job);
                Err(error.if_untried())
            }
        };
        let queue_time = job.arrived.elapsed().saturating_sub(service_time);
        if result.is_ok() {
            series.completed.fetch_add(1, Ordering::Relaxed);
            series.queue_time.record(queue_time);
            series.service_time.record(service_time);
        }
        let completion = Completion {
            id: job.id,
            result,
            served_by: Some(kind),
            queue_time,
            service_time,
            retry_after: None,
        };
        completed.push(job.session, completion);
    }

    /// After a panic inside a backend: forget the queue, pass over the backend, try what waited for
    /// it elsewhere, and end what it held.
    fn abandon(&mut self, shared: &Shared, index: BackendIndex, completed: &mut CompletionBatch) {
        shared.statistics.panics.fetch_add(1, Ordering::Relaxed);
        shared.backends.quarantine(index);
        let waiting = self.forget_queue(index);
        let mut held = self.in_flight.held_by(index);
        for task in waiting {
            held.retain(|token| *token != task.token);
            if let Some(job) = self.in_flight.remove(task.token) {
                self.retry(shared, Unplaced { job, task, otherwise: JobError::Failed }, completed);
            }
        }
        // What it completed before it panicked is settled as usual.
        held.retain(|token| self.done.iter().all(|done| done.task.token != *token));
        for token in held {
            if let Some(mut job) = self.in_flight.remove(token) {
                self.invalidate(&mut job);
                job.failed(JobError::Failed, completed);
            }
        }
    }

    /// Drops the queue with what it has in flight, and returns the tasks that it had not yet taken.
    fn forget_queue(&mut self, index: BackendIndex) -> VecDeque<Task> {
        let slot = &mut self.backends[index.0];
        slot.queue = None;
        slot.in_flight = 0;
        self.in_flight.forget_lost(index);
        std::mem::take(&mut slot.waiting)
    }

    /// Ends the jobs that a device has held beyond their deadlines. A queue with nothing in flight but such
    /// tasks is dropped: they may never come back, and each occupies a place in it.
    fn end_lost(&mut self, shared: &Shared, completed: &mut CompletionBatch) {
        if self.held_by_devices() == 0 {
            return;
        }
        let now = Instant::now();
        if now.saturating_duration_since(self.swept) < SWEEP_INTERVAL {
            return;
        }
        self.swept = now;
        for index in (0..self.backends.len()).map(BackendIndex) {
            let slot = &mut self.backends[index.0];
            if !slot.is_device || slot.held() == 0 {
                continue;
            }
            let mut ended = Vec::new();
            for task in std::mem::take(&mut slot.waiting) {
                let job = self.in_flight.get(task.token);
                if job.is_some_and(|job| job.deadline <= now) {
                    ended.extend(self.in_flight.remove(task.token));
                } else {
                    slot.waiting.push_back(task);
                }
            }
            let lost = self.in_flight.lose(index, |job| job.deadline <= now);
            if !lost.is_empty() {
                shared.backends.note_lost(index, lost.len());
            }
            for mut job in ended.into_iter().chain(lost) {
                self.invalidate(&mut job);
                job.failed(JobError::Expired, completed);
            }
            let slot = &self.backends[index.0];
            if slot.in_flight > 0 && self.in_flight.held_by(index).is_empty() {
                self.forget_queue(index);
            }
        }
    }
}

/// Waiting for devices: how long nothing came, and how long the last sleep was.
#[derive(Default)]
struct Wait {
    since: Option<Instant>,
    slept: Duration,
}

impl Wait {
    /// Waits once: yields the core while the time without a result is short, and sleeps later.
    fn once(&mut self, pace: Pace, sleep: impl FnOnce(Duration)) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < pace.spin {
            thread::yield_now();
            return;
        }
        self.slept = (self.slept * 2).clamp(pace.first.min(pace.longest), pace.longest);
        sleep(self.slept);
    }
}
