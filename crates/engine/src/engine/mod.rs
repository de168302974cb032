// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Engine`]: one queue and one set of worker threads per class, above the backends that it is given.
//!
//! An idle worker starts with the jobs that wait; nothing waits for a batch to fill. Each class
//! has workers of its own and the operating system shares the cores between them, so an RSA-8192
//! operation never stands in front of a P-256 signature. Within a class the owners of jobs are served by
//! weight. Up to 2 fast jobs that find nothing waiting are computed on the thread that brought them; `inline`
//! has the exact rule.
//!
//! The express worker of a class takes jobs of one owner, as many as a backend computes together, while all of these
//! hold:
//!
//! | of | condition |
//! |---|---|
//! | the regular workers | all are busy with this class, or they give way ([`Placement::express_first`]) |
//! | the owner | it has nothing in service, and was given at most 16 jobs more than its share |
//! | its jobs | no more wait than the smallest owner in service has, of its level or a higher one |
//! | with nothing in service | only one job waits, and the owner had not several at once within the last 0.1 s |
//!
//! A job that would wait beyond its deadline, by the measured service rate of its class, ends as [`JobError::Busy`] at
//! once.
//!
//! Every job ends as exactly one completion. A job that still waits at its deadline ends as
//! [`JobError::Expired`] within [`SWEEP_INTERVAL`]; so does a job that a device holds. A job that a backend on
//! the CPU computes ends when it is computed, and the client has a timer of its own.

mod backend_set;
mod choice;
mod config;
mod dispatch;
mod in_flight;
mod inline;
mod job;
mod measure;
mod runner;
mod shared;
mod status;
mod worker;

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_operation::{Class, JobError, JobId, KeyError, PrivateKey, sync::lock};

use crate::backend::Backend;
use crate::queue::Owner;
use crate::stats::{EngineSnapshot, Statistics};
pub use config::{EngineConfig, Placement, StartError, WorkerThread};
use dispatch::{Backends, OpenedKeys};
use inline::InlineRunners;
pub use job::{Completion, CompletionSink, EngineSession, Job, Key};
use job::{Queued, SessionInner};
pub use shared::SWEEP_INTERVAL;
use shared::{ClassQueue, Shared, Unserved, sweep};
pub use status::{BackendChoice, BackendEvent, BackendStatus, Observer};

/// Runs jobs on backends. Cheap to clone; the threads end with [`Engine::stop`] or with the last
/// clone.
#[derive(Clone)]
pub struct Engine {
    threads: Arc<Threads>,
}

struct Threads {
    shared: Arc<Shared>,
    inline: InlineRunners,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the workers above `backends`, which are in order of preference. Those that cannot be
    /// used here, and usable ones after the first 32, are listed by [`Self::backends`] and otherwise ignored.
    ///
    /// # Errors
    /// If none can be used, or a thread cannot be started.
    pub fn start(
        config: EngineConfig,
        backends: Vec<Arc<dyn Backend>>,
    ) -> Result<Self, StartError> {
        let backends = Arc::new(Backends::probe(backends, config.observer.clone())?);
        let workers = config.workers.max(1);
        let placement = config.placement.as_deref();
        let express_first = placement.is_some_and(Placement::express_first);
        let only_on_cpu = backends.only_on_cpu();
        let shared = Arc::new(Shared {
            batch: backends.batch(),
            only_on_cpu,
            backends,
            statistics: Statistics::new(),
            // A device computes whichever thread hands it the job.
            classes: only_on_cpu.map(|only| ClassQueue::new(&config, express_first && only)),
            workers,
            in_flight: AtomicUsize::new(0),
            next_session: AtomicU64::new(1),
            draining: AtomicBool::new(false),
            stopping: Mutex::new(false),
            stop_signal: Condvar::new(),
        });
        // Built before the threads, so that a refused thread stops those already started.
        let engine = Self {
            threads: Arc::new(Threads {
                shared,
                inline: InlineRunners::default(),
                handles: Mutex::new(Vec::new()),
            }),
        };
        for class in Class::ALL {
            let regular = (0..workers).map(WorkerThread::Regular);
            for worker in regular.chain([WorkerThread::Express]) {
                let shared = Arc::clone(&engine.threads.shared);
                let placement = config.placement.clone();
                let name = match worker {
                    WorkerThread::Regular(number) => format!("mr-{}-{number}", class.name()),
                    WorkerThread::Express => format!("mr-{}-new", class.name()),
                };
                engine.threads.spawn(name, move || {
                    if let Some(placement) = placement {
                        placement.place(worker);
                    }
                    worker::run(&shared, class, worker);
                })?;
            }
        }
        let shared = Arc::clone(&engine.threads.shared);
        engine.threads.spawn("mr-sweep".to_owned(), move || sweep(&shared))?;
        Ok(engine)
    }

    /// Loads a key into every backend that takes it.
    ///
    /// # Errors
    /// The fault of the key, or [`KeyError::NotOffered`] if no backend takes its type.
    pub fn load_key(&self, key: &PrivateKey) -> Result<Arc<Key>, KeyError> {
        let backends = &self.shared().backends;
        let OpenedKeys { info, backend_keys, able } = backends.open_key(key)?;
        let class = Class::of(info.key_type);
        Ok(Arc::new(Key { info, class, backend_keys, able, backends: Arc::clone(backends) }))
    }

    /// Opens a session whose completions go to `sink`. All sessions of one `owner` share one turn in each
    /// class, and one share of its queue; inside it the owner's members take turns.
    #[must_use]
    pub fn open_session(&self, sink: Arc<dyn CompletionSink>, owner: Owner) -> EngineSession {
        let id = self.shared().next_session.fetch_add(1, Ordering::Relaxed);
        EngineSession {
            inner: Arc::new(SessionInner {
                id,
                owner,
                weight: AtomicU32::new(owner.weight()),
                level: AtomicU8::new(owner.level() as u8),
                closed: AtomicBool::new(false),
                sink,
            }),
        }
    }

    /// Takes jobs; each ends as exactly one completion at its session's sink, some of them possibly
    /// before this returns. Never waits for a worker.
    pub fn submit(&self, jobs: Vec<Job>) {
        let shared = self.shared();
        let arrived = Instant::now();
        let count = jobs.len();
        shared.statistics.submitted.fetch_add(count as u64, Ordering::Relaxed);
        shared.in_flight.fetch_add(count, Ordering::Relaxed);
        let mut ended = Vec::new();
        let mut accepted: [Vec<Queued>; 3] = Default::default();
        for job in jobs {
            let class = job.key.class.index();
            let queued = Queued { job, arrived };
            match shared.refusal(&queued) {
                None => accepted[class].push(queued),
                Some(error) => ended.push(Unserved::new(queued, error)),
            }
        }
        for class in Class::ALL {
            let batch = mem::take(&mut accepted[class.index()]);
            if batch.is_empty() {
                continue;
            }
            if let Some(batch) = self.threads.inline.run(shared, class, batch, arrived) {
                shared.enqueue(class, batch, &mut ended);
            }
        }
        shared.end(ended);
    }

    /// Ends a job that still waits, as [`JobError::Cancelled`]. Returns whether it did; a job that a
    /// backend already holds ends normally.
    pub fn cancel(&self, session: &EngineSession, id: JobId) -> bool {
        let shared = self.shared();
        let SessionInner { owner, id: session, .. } = *session.inner;
        for class in &shared.classes {
            let removed = lock(&class.state).queue.remove(owner, session, id);
            if let Some(queued) = removed {
                shared.end_all([queued], JobError::Cancelled);
                return true;
            }
        }
        false
    }

    /// Ends a session: its waiting jobs are dropped, and completions of jobs that a backend holds are
    /// dropped when they come. The sink is not called again, except by a call already under way.
    pub fn close_session(&self, session: &EngineSession) {
        let shared = self.shared();
        session.inner.closed.store(true, Ordering::Release);
        for class in &shared.classes {
            let SessionInner { owner, id, .. } = *session.inner;
            let removed = lock(&class.state).queue.remove_session(owner, id);
            shared.end_all(removed, JobError::Cancelled);
        }
    }

    /// Makes new jobs end as [`JobError::Draining`]; those already taken are served.
    pub fn drain(&self) {
        self.shared().draining.store(true, Ordering::Release);
    }

    /// Drains, lets the workers serve the jobs that wait, and waits for the threads. Bounded by the deadlines of those
    /// jobs.
    pub fn stop(&self) {
        self.threads.stop();
    }

    /// Jobs submitted and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared().in_flight.load(Ordering::Relaxed)
    }

    /// A copy of all counters.
    #[must_use]
    pub fn stats(&self) -> EngineSnapshot {
        let shared = self.shared();
        let waiting = [0, 1, 2].map(|class| lock(&shared.classes[class].state).queue.len());
        shared.statistics.snapshot(waiting, self.in_flight())
    }

    /// The state of all backends, the usable ones first, each in order of preference.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendStatus> {
        self.shared().backends.status()
    }

    /// Chosen backend and measured costs, for jobs that several backends can serve.
    #[must_use]
    pub fn choices(&self) -> Vec<BackendChoice> {
        let backends = &self.shared().backends;
        let mut choices = Vec::new();
        for known in backends.known() {
            let costs = known.costs.into_iter().map(|measured| {
                let cost = Duration::from_secs_f64(measured.cost_ns / 1e9);
                (backends.kind(measured.backend), cost)
            });
            choices.push(BackendChoice {
                jobs: known.group,
                max_batch: known.max_batch,
                serving: backends.kind(known.serving),
                switches: known.switches,
                costs: costs.collect(),
            });
        }
        choices
    }

    fn shared(&self) -> &Shared {
        &self.threads.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Threads {
    fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let handle = thread::Builder::new().name(name).spawn(body)?;
        lock(&self.handles).push(handle);
        Ok(())
    }

    fn stop(&self) {
        let shared = &self.shared;
        shared.draining.store(true, Ordering::Release);
        *lock(&shared.stopping) = true;
        shared.stop_signal.notify_all();
        for class in &shared.classes {
            lock(&class.state).stopping = true;
            class.work.notify_all();
            class.express.notify_all();
        }
        let handles = mem::take(&mut *lock(&self.handles));
        for handle in handles {
            // The last clone may be dropped by a sink, on a worker: that thread ends by itself.
            if handle.thread().id() != thread::current().id() {
                // A worker catches the panics of backends; one of its own was already reported.
                let _ = handle.join();
            }
        }
        for class in &shared.classes {
            let left = lock(&class.state).queue.remove_all();
            shared.end_all(left, JobError::Draining);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}
