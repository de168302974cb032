// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! State that the threads of an engine share: the queue of each class, and the way of completions to their sinks.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_operation::{Class, JobError, sync::lock};

use super::config::EngineConfig;
use super::dispatch::Backends;
use super::job::{Completion, CompletionBatch, EngineSession, Queued};
use crate::queue::{Contention, FairQueue, Waiting};
use crate::stats::Statistics;

/// Interval at which waiting jobs are checked for passed deadlines.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

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

/// The queue of one class with the signals of its workers, as long as the engine lives. Two locks of classes are never
/// held together.
pub(super) struct ClassQueue {
    pub(super) state: Mutex<ClassState>,
    /// Wakes the workers.
    pub(super) work: Condvar,
    /// Wakes the express worker.
    pub(super) express: Condvar,
}

impl ClassQueue {
    pub(super) fn new(config: &EngineConfig, express_first: bool) -> Self {
        Self {
            state: Mutex::new(ClassState {
                queue: FairQueue::new(config.queue_limit, config.session_queue_limit),
                contention: Contention::default(),
                idle_workers: 0,
                express_idle: false,
                express_first,
                stopping: false,
            }),
            work: Condvar::new(),
            express: Condvar::new(),
        }
    }
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

/// State that the engine, its workers and the sweeping thread own together; the last of them frees it.
pub(super) struct Shared {
    pub(super) backends: Arc<Backends>,
    pub(super) statistics: Statistics,
    pub(super) classes: [ClassQueue; 3],
    pub(super) workers: usize,
    /// The largest batch that a backend computes together on a worker's core.
    pub(super) batch: usize,
    /// Whether every backend that serves a class computes on the core of the worker that calls it, by class.
    pub(super) only_on_cpu: [bool; 3],
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
        job.able().is_empty().then_some(JobError::NotOffered)
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
    fn release(&self, class: Class, sessions: &[(EngineSession, Vec<Completion>)]) {
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
        self.deliver(&mut completed);
    }

    /// Hands completions to their sinks.
    pub(super) fn deliver(&self, completed: &mut CompletionBatch) {
        // Before the sinks are called: an owner that sends its next job at once has nothing in service.
        if let Some(class) = completed.class.filter(|_| !completed.by_session.is_empty()) {
            self.release(class, &completed.by_session);
        }
        for (session, mut completions) in completed.by_session.drain(..) {
            self.in_flight.fetch_sub(completions.len(), Ordering::Relaxed);
            for completion in &completions {
                if let Err(error) = completion.result {
                    self.statistics.count_error(error);
                }
            }
            if session.inner.closed.load(Ordering::Acquire) {
                let count = completions.len() as u64;
                self.statistics.dropped.fetch_add(count, Ordering::Relaxed);
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
