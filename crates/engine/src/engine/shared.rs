// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! State that the threads of an engine share: the queue of each class, and completions on their way to their sinks.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_operation::{Class, JobError, sync::lock};

use super::SWEEP_INTERVAL;
use super::dispatch::Backends;
use super::job::{Completion, EngineSession, Queued};
use super::runner::{Alone, Runner};
use crate::queue::{Contention, FairQueue, Waiting};
use crate::stats::Statistics;

/// A batch of at most this many fast jobs may run on the thread that brought it: at 10 to 25 µs each
/// it holds up that thread's other work for no longer than a wake-up under load would.
const INLINE_MAX: usize = 2;

/// [`INLINE_MAX`] with one worker per class, that is on one core: a worker would run on the same core, so handing a
/// batch over costs two switches and a wake-up for nothing (a tenth of P-256's rate, docs/benchmarks). Bounded to about
/// a millisecond, because other connections wait for that thread.
const INLINE_MAX_ALONE: usize = 64;

/// The queue of one class and what goes with it under the same lock.
pub(super) struct ClassState {
    pub(super) queue: FairQueue<Queued>,
    pub(super) contention: Contention,
    pub(super) idle_workers: usize,
    /// Whether the express worker sleeps.
    pub(super) express_idle: bool,
    /// [`Placement::express_first`](super::Placement::express_first).
    pub(super) express_first: bool,
    pub(super) stopping: bool,
}

pub(super) struct ClassQueue {
    pub(super) state: Mutex<ClassState>,
    /// Wakes the workers.
    pub(super) work: Condvar,
    /// Wakes the express worker.
    pub(super) express: Condvar,
}

/// A job that ends without service.
pub(super) struct Unserved {
    queued: Queued,
    error: JobError,
    retry_after: Option<Duration>,
}

impl Unserved {
    pub(super) const fn new(queued: Queued, error: JobError) -> Self {
        Self { queued, error, retry_after: None }
    }
}

impl ClassState {
    /// Time after which the client of a job that would wait too long should try again.
    fn retry_after(&self, queued: &Queued) -> Option<Duration> {
        let left = queued.deadline().saturating_duration_since(queued.arrived);
        self.queue.retry_after(queued.owner(), left)
    }

    /// The refused job, with `retry_after` set to half of its owner's projected wait: by then half of the owner's
    /// backlog is served, so a retry finds room.
    fn refused(&self, queued: Queued) -> Unserved {
        let wait = self.queue.projected_wait(queued.owner());
        Unserved { retry_after: wait.map(|wait| wait / 2), ..Unserved::new(queued, JobError::Busy) }
    }

    /// Whether the express worker has something to do: an owner below its share has nothing in service, and no
    /// regular worker is free, or those give way to it. With nothing in service at all, regular workers take what
    /// waits, unless they give way and an owner has a single job.
    pub(super) fn has_express_work(&self) -> bool {
        let no_worker_free = self.queue.is_serving() && self.idle_workers == 0;
        (self.express_first || no_worker_free) && self.queue.has_unserved()
    }

    /// Whether to wake the express worker.
    pub(super) fn needs_express(&self) -> bool {
        self.express_idle && self.has_express_work()
    }
}

pub(super) struct Shared {
    pub(super) backends: Arc<Backends>,
    pub(super) statistics: Statistics,
    pub(super) classes: [ClassQueue; 3],
    pub(super) workers: usize,
    /// The largest batch that a backend computes together on a worker's core.
    pub(super) batch: usize,
    /// Whether every backend that serves a class computes on the core of the worker that calls it, by class.
    pub(super) on_cpu_alone: [bool; 3],
    /// Runners for jobs computed on the submitting thread.
    pub(super) inline: Mutex<Vec<Runner>>,
    pub(super) in_flight: AtomicUsize,
    pub(super) next_session: AtomicU64,
    pub(super) draining: AtomicBool,
    pub(super) stopping: Mutex<bool>,
    pub(super) stop_signal: Condvar,
}

impl Shared {
    /// Why a job is refused before it is queued, if it is.
    pub(super) fn refusal(&self, queued: &Queued) -> Option<JobError> {
        let job = &queued.job;
        let key_type = job.key.info.key_type;
        if self.draining.load(Ordering::Acquire) {
            return Some(JobError::Draining);
        }
        if let Err(error) = job.operation.check(key_type, &job.input) {
            return Some(error);
        }
        if job.deadline <= queued.arrived {
            return Some(JobError::Expired);
        }
        let able = job.key.able(job.operation.kind());
        able.is_empty().then_some(JobError::NotOffered)
    }

    /// Runs a small batch of the fast class on this thread if nothing waits before it; else returns it.
    /// While several owners use the class, a batch that takes longer than a wake-up goes to the queue,
    /// where the owners take turns.
    pub(super) fn try_inline(
        &self,
        class: Class,
        batch: Vec<Queued>,
        now: Instant,
    ) -> Option<Vec<Queued>> {
        let (Class::Fast, Some(first)) = (class, batch.first()) else {
            return Some(batch);
        };
        let owner = first.owner();
        // The jobs of one call are of one session in practice; several owners would need one charge each.
        let one_owner = batch.iter().all(|queued| queued.owner() == owner);
        let needs_device = batch.iter().any(|Queued { job, .. }| {
            let able = job.key.able(job.operation.kind());
            !able.minus(self.backends.on_cpu()).is_empty()
        });
        {
            let mut state = lock(&self.classes[class.index()].state);
            let shared = state.contention.note(owner.id(), now);
            let alone = self.workers == 1 && !shared;
            let limit = if alone { INLINE_MAX_ALONE } else { INLINE_MAX };
            if !one_owner
                || needs_device
                || batch.len() > limit
                || !state.queue.is_empty()
                || state.stopping
            {
                return Some(batch);
            }
            state.queue.pass(owner, batch.len(), batch.iter().map(Queued::cost).sum());
        }
        self.statistics.ran_inline.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let runner = lock(&self.inline).pop();
        let mut runner = runner.unwrap_or_else(|| Runner::new(&self.backends));
        runner.run(self, class, batch, &mut Alone);
        lock(&self.inline).push(runner);
        None
    }

    pub(super) fn enqueue(&self, class: Class, batch: Vec<Queued>, ended: &mut Vec<Unserved>) {
        let class = &self.classes[class.index()];
        let mut state = lock(&class.state);
        for queued in batch {
            if state.stopping {
                ended.push(Unserved::new(queued, JobError::Draining));
            } else if let Some(pause) = state.retry_after(&queued) {
                ended.push(Unserved {
                    retry_after: Some(pause),
                    ..Unserved::new(queued, JobError::Busy)
                });
            } else if let Some(refused) = state.queue.push(queued) {
                ended.push(state.refused(refused));
            }
        }
        let express = state.needs_express();
        // The express worker takes one job at least.
        let left = state.queue.len().saturating_sub(usize::from(express));
        let wake = state.idle_workers.min(left);
        drop(state);
        for _ in 0..wake {
            class.work.notify_one();
        }
        if express {
            class.express.notify_one();
        }
    }

    /// Ends the service of jobs that a worker or the calling thread ran.
    pub(super) fn release(&self, class: Class, sessions: &[(EngineSession, Vec<Completion>)]) {
        let class = &self.classes[class.index()];
        let mut state = lock(&class.state);
        for (session, completions) in sessions {
            state.queue.release(session.inner.owner.id(), completions.len());
        }
        let express = state.needs_express();
        drop(state);
        if express {
            class.express.notify_one();
        }
    }

    /// Ends jobs that no backend served, all for one reason.
    pub(super) fn end_all(&self, jobs: impl IntoIterator<Item = Queued>, error: JobError) {
        let ended = jobs.into_iter().map(|queued| Unserved::new(queued, error));
        self.end(ended.collect());
    }

    /// Ends jobs that no backend served.
    pub(super) fn end(&self, ended: Vec<Unserved>) {
        if ended.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut completed = CompletionBatch::default();
        for unserved in ended {
            let Unserved { queued: Queued { job, arrived }, error, retry_after } = unserved;
            let completion = Completion {
                id: job.id,
                result: Err(error),
                served_by: None,
                queue_time: now.saturating_duration_since(arrived),
                service_time: Duration::ZERO,
                retry_after,
            };
            completed.push(job.session, completion);
        }
        completed.flush(self);
    }
}

/// Completions on their way to their sinks, grouped so that a sink is called once per batch.
#[derive(Default)]
pub(super) struct CompletionBatch {
    /// The class in which these jobs are in service; none for jobs that no worker took.
    class: Option<Class>,
    by_session: Vec<(EngineSession, Vec<Completion>)>,
}

impl CompletionBatch {
    /// An empty batch for jobs that are in service.
    pub(super) fn of(class: Class) -> Self {
        Self { class: Some(class), ..Self::default() }
    }

    pub(super) fn push(&mut self, session: EngineSession, completion: Completion) {
        // Few sessions share a batch, and neighbours tend to be of the same one.
        let same =
            |(known, _): &&mut (EngineSession, Vec<Completion>)| known.inner.id == session.inner.id;
        match self.by_session.iter_mut().rev().find(same) {
            Some((_, completions)) => completions.push(completion),
            None => self.by_session.push((session, vec![completion])),
        }
    }

    pub(super) fn flush(&mut self, shared: &Shared) {
        // Before the sinks are called: an owner that sends its next job at once has nothing in service.
        if let Some(class) = self.class.filter(|_| !self.by_session.is_empty()) {
            shared.release(class, &self.by_session);
        }
        for (session, mut completions) in self.by_session.drain(..) {
            shared.in_flight.fetch_sub(completions.len(), Ordering::Relaxed);
            for completion in &completions {
                if let Err(error) = completion.result {
                    shared.statistics.count_error(error);
                }
            }
            if session.inner.closed.load(Ordering::Acquire) {
                let count = completions.len() as u64;
                shared.statistics.dropped.fetch_add(count, Ordering::Relaxed);
            } else {
                session.inner.sink.complete(&mut completions);
            }
        }
    }
}

/// The sweeper thread: ends waiting jobs whose deadline has passed while all workers are busy, and reads the
/// health of the backends.
pub(super) fn sweep(shared: &Shared) {
    loop {
        let stopping = lock(&shared.stopping);
        if *stopping {
            return;
        }
        let waited = shared.stop_signal.wait_timeout(stopping, SWEEP_INTERVAL);
        // Released before sinks are called: a sink may drop the last engine, which takes this lock.
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        shared.backends.check_health();
        if shared.in_flight.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let now = Instant::now();
        let mut expired = Vec::new();
        for class in &shared.classes {
            lock(&class.state).queue.remove_expired(now, &mut expired);
        }
        shared.end_all(expired, JobError::Expired);
    }
}
