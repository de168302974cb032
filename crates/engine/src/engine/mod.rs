// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Engine`]: one queue and one set of worker threads per class, above the backends that it is given.
//!
//! An idle worker starts with the jobs that wait; nothing waits for a batch to fill. Each class
//! has workers of its own and the operating system shares the cores between them, so an RSA-8192
//! operation never stands in front of a P-256 signature. Within a class the owners of jobs are served by
//! weight, and an express worker serves an owner that has nothing in service while all workers are busy.
//! A lone job of the fast class is computed on the thread that brought it, if nothing waits before it:
//! waking a worker would cost as much as the operation. With one worker per class (on one core) a whole
//! batch is, unless several owners use the class.
//!
//! Every job ends as exactly one completion. A job that still waits at its deadline ends as
//! [`JobError::Expired`] within [`SWEEP_INTERVAL`]; a job that a backend already holds ends when the
//! backend answers, and the client has a timer of its own.

mod choice;
mod dispatch;
mod measure;
mod worker;

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::backend::{Backend, BackendKey, BackendKind, Description};
use crate::error::{JobError, KeyError};
use crate::key::{KeyInfo, KeyType, PrivateKey};
use crate::operation::{Class, Operation, OperationKind, Output};
use crate::queue::{Contention, FairQueue, Owner, Waiting};
use crate::stats::{Snapshot, Statistics};
use choice::KnownCosts;
use dispatch::{Backends, Opened};
use worker::Runner;

/// Names a job within its session.
pub type JobId = u64;

/// How often waiting jobs are checked for passed deadlines.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

/// A batch of at most this many fast jobs may run on the thread that brought it: at 10 to 25 µs each
/// it holds up that thread's other work for no longer than a wake-up under load would.
const INLINE_MAX: usize = 2;

/// The same with one worker per class, that is on one core: there another thread has no core of its
/// own, and handing a batch over costs two switches and a wake-up for nothing (a tenth of P-256's
/// rate, docs/benchmarks). Bounded, because other connections wait for that thread: about a millisecond.
const INLINE_MAX_ALONE: usize = 64;

/// Prepares worker threads: their processors and their scheduling. The engine makes no system calls, so the
/// program that starts it does.
pub trait Placement: Send + Sync + fmt::Debug {
    /// Prepares the calling thread. Called once by each worker, before its first job. Failures are ignored.
    fn place(&self, worker: WorkerThread);
}

/// The role of a worker thread in its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerThread {
    /// Worker with this number, from 0: computes for as long as jobs wait.
    Regular(usize),
    /// The express worker: computes a few jobs beside busy workers, so it should run soon after it is woken.
    Express,
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Worker threads per class. Default: the cores available to this process.
    pub workers: usize,
    /// Jobs that may wait per class; more end as [`JobError::Busy`]. In a full queue an owner below its
    /// share by weight takes the place of another owner's newest job. Default 8192: at 0.3 ms each
    /// and one core that is 2.5 s of work, more than any handshake waits.
    pub queue_limit: usize,
    /// Jobs of one session that may wait per class. Default 4096: half of the above, so that no
    /// session can fill the queue alone.
    pub session_queue_limit: usize,
    /// Prepares the worker threads. Default: the operating system's choices.
    pub placement: Option<Arc<dyn Placement>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            workers: thread::available_parallelism().map_or(1, usize::from),
            queue_limit: 8192,
            session_queue_limit: 4096,
            placement: None,
        }
    }
}

/// Why an engine did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// No backend can be used here. Holds the reasons, one per backend.
    #[error("no backend is usable on this machine: {0}")]
    NoBackend(String),
    /// The operating system refused a thread.
    #[error("cannot start a worker thread")]
    Thread(#[from] std::io::Error),
}

/// Receives the completions of one session.
pub trait CompletionSink: Send + Sync {
    /// Takes all of `completions` out. Called from worker threads, from the sweeper, and from inside
    /// [`Engine::submit`], [`Engine::cancel`], [`Engine::close_session`] and [`Engine::stop`]: the caller of those must
    /// not hold a lock that the sink takes. Must not block and must not call back into the engine.
    fn complete(&self, completions: &mut Vec<Completion>);
}

/// One caller of the engine, usually one connection. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    inner: Arc<SessionInner>,
}

struct SessionInner {
    id: u64,
    owner: Owner,
    closed: AtomicBool,
    sink: Arc<dyn CompletionSink>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.inner.id)
    }
}

/// A key that is loaded in every backend that takes it; unloaded when the last clone is dropped.
pub struct Key {
    info: KeyInfo,
    class: Class,
    /// Its name in each backend, in the order of the backends.
    names: Vec<Option<BackendKey>>,
    /// By operation: the backends that do it, as a mask.
    able: [u32; OperationKind::ALL.len()],
    backends: Arc<Backends>,
}

impl Key {
    /// The type of the key and its public half.
    #[must_use]
    pub fn info(&self) -> &KeyInfo {
        &self.info
    }
}

impl Key {
    /// The backends that do this with the key, as a mask.
    fn able(&self, operation: OperationKind) -> u32 {
        self.able[operation.index()]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.info.key_type)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.backends.close_key(&self.names);
    }
}

/// An operation with its key, input and deadline.
pub struct Job {
    /// Chosen by the caller, unique within the session, and returned in the completion.
    pub id: JobId,
    /// The session that gets the completion.
    pub session: Session,
    /// A key that this engine loaded.
    pub key: Arc<Key>,
    /// An operation that fits the key, or the job ends as [`JobError::BadInput`].
    pub operation: Operation,
    /// Digest, message or ciphertext, as [`Operation`] says.
    pub input: Vec<u8>,
    /// A job that still waits then ends as [`JobError::Expired`].
    pub deadline: Instant,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            session,
            key,
            operation,
            input,
            deadline: _,
        } = self;
        write!(
            f,
            "Job({id} of {session:?}, {}, {key:?}, ",
            operation.kind()
        )?;
        write!(f, "input of {} bytes)", input.len())
    }
}

/// The end of a job: output or error, its backend and its times. `Debug` shows the length of the output, never its bytes.
pub struct Completion {
    /// From the job.
    pub id: JobId,
    /// The verified result, or why there is none.
    pub result: Result<Output, JobError>,
    /// The backend that answered it; none if none did.
    pub served_by: Option<BackendKind>,
    /// Time between submission and the start of service.
    pub queue_time: Duration,
    /// Time the backend worked on it.
    pub service_time: Duration,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            result,
            served_by,
            queue_time,
            service_time,
        } = self;
        f.debug_struct("Completion")
            .field("id", id)
            .field("result", &result.as_ref().map(|output| output.len()))
            .field("served_by", served_by)
            .field("queue_time", queue_time)
            .field("service_time", service_time)
            .finish()
    }
}

/// State of one backend, for people.
#[derive(Clone, Debug)]
pub struct BackendStatus {
    /// Kind, version and batch size.
    pub description: Description,
    /// Why it cannot be used, if it cannot.
    pub unusable: Option<String>,
    /// Why the last queue that a worker asked for was refused, if it was. Other workers may have theirs.
    pub queue_refused: Option<String>,
    /// Whether it is passed over because a result of it failed verification, or it panicked.
    pub quarantined: bool,
}

/// What was measured, and which backend was chosen, for jobs of one kind and number in a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The jobs: `rsa-2048` (any private operation), `p-256 sign`, ….
    pub jobs: String,
    /// Upper batch size of this row; `None`: the last row, without a limit.
    pub together: Option<usize>,
    /// The backend that serves them.
    pub serving: BackendKind,
    /// How often the serving backend changed.
    pub switches: u64,
    /// Running median of the time that a backend needs for one job; only backends that were measured.
    pub costs: Vec<(BackendKind, Duration)>,
}

/// Runs jobs on backends. Cheap to clone; the threads end with [`Engine::stop`] or with the last
/// clone.
#[derive(Clone)]
pub struct Engine {
    threads: Arc<Threads>,
}

struct Threads {
    shared: Arc<Shared>,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

/// A job that waits or runs, with the time of its submission.
pub(crate) struct Queued {
    job: Job,
    arrived: Instant,
}

impl Waiting for Queued {
    fn owner(&self) -> Owner {
        self.job.session.inner.owner
    }
    fn session(&self) -> u64 {
        self.job.session.inner.id
    }
    fn id(&self) -> u64 {
        self.job.id
    }
    fn deadline(&self) -> Instant {
        self.job.deadline
    }
    fn cost(&self) -> u32 {
        cost_of(self.job.key.info.key_type)
    }
}

/// About how long an operation with a key of this type takes, in units of 10 µs on one core. Only the ratios
/// within a class matter: an owner with large keys must not get more of the cores than one with small keys.
fn cost_of(key_type: KeyType) -> u32 {
    match (Class::of(key_type), key_type.bits()) {
        (Class::Fast, _) => 2,
        (Class::Medium | Class::Slow, 0) => 24,
        // An exponentiation takes the cube of the size of the modulus: 2048 bits 320 µs.
        (Class::Medium | Class::Slow, bits) => u32::from(bits.div_ceil(512)).max(2).pow(3) / 2,
    }
}

/// The queue of one class and what goes with it under the same lock.
struct ClassState {
    queue: FairQueue<Queued>,
    contention: Contention,
    idle_workers: usize,
    stopping: bool,
}

struct ClassQueue {
    state: Mutex<ClassState>,
    /// Wakes the workers.
    work: Condvar,
    /// Wakes the express worker.
    express: Condvar,
}

impl ClassState {
    /// Whether the express worker has something to do: no worker is free, and an owner below its share
    /// has nothing in service.
    fn needs_express(&self) -> bool {
        self.idle_workers == 0 && self.queue.has_unserved()
    }
}

pub(crate) struct Shared {
    backends: Arc<Backends>,
    statistics: Statistics,
    classes: [ClassQueue; 3],
    workers: usize,
    /// The largest batch that a backend computes together on a worker's core.
    batch: usize,
    /// Whether every backend computes on the core of the worker that calls it.
    all_on_cpu: bool,
    /// Runners for jobs computed on the submitting thread.
    inline: Mutex<Vec<Runner>>,
    in_flight: AtomicUsize,
    next_session: AtomicU64,
    draining: AtomicBool,
    stopping: Mutex<bool>,
    stop_signal: Condvar,
}

impl Engine {
    /// Starts the workers above `backends`, which are in order of preference. Those that cannot be
    /// used here are listed by [`Self::backends`] and otherwise ignored.
    ///
    /// # Errors
    /// If none can be used, or a thread cannot be started.
    pub fn start(
        config: EngineConfig,
        backends: Vec<Arc<dyn Backend>>,
    ) -> Result<Self, StartError> {
        let backends = Arc::new(Backends::probe(backends)?);
        let workers = config.workers.max(1);
        let class = || ClassQueue {
            state: Mutex::new(ClassState {
                queue: FairQueue::new(config.queue_limit, config.session_queue_limit),
                contention: Contention::default(),
                idle_workers: 0,
                stopping: false,
            }),
            work: Condvar::new(),
            express: Condvar::new(),
        };
        let shared = Arc::new(Shared {
            batch: backends.batch(),
            all_on_cpu: backends.all_on_cpu(),
            backends,
            statistics: Statistics::new(),
            classes: [class(), class(), class()],
            workers,
            inline: Mutex::new(Vec::new()),
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
        engine
            .threads
            .spawn("mr-sweep".to_owned(), move || sweep(&shared))?;
        Ok(engine)
    }

    /// Loads a key into every backend that takes it.
    ///
    /// # Errors
    /// What is wrong with the key, or [`KeyError::NotOffered`] if no backend takes its type.
    pub fn load_key(&self, key: &PrivateKey) -> Result<Arc<Key>, KeyError> {
        let backends = &self.shared().backends;
        let Opened { info, names, able } = backends.open_key(key)?;
        let class = Class::of(info.key_type);
        Ok(Arc::new(Key {
            info,
            class,
            names,
            able,
            backends: Arc::clone(backends),
        }))
    }

    /// Opens a session whose completions go to `sink`. All sessions of one `owner` share one turn in each
    /// class, and one share of its queue.
    #[must_use]
    pub fn open_session(&self, sink: Arc<dyn CompletionSink>, owner: Owner) -> Session {
        let id = self.shared().next_session.fetch_add(1, Ordering::Relaxed);
        Session {
            inner: Arc::new(SessionInner {
                id,
                owner,
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
        shared
            .statistics
            .submitted
            .fetch_add(count as u64, Ordering::Relaxed);
        shared.in_flight.fetch_add(count, Ordering::Relaxed);
        let mut ended = Vec::new();
        let mut accepted: [Vec<Queued>; 3] = Default::default();
        for job in jobs {
            let class = job.key.class.index();
            let queued = Queued { job, arrived };
            match shared.refusal(&queued) {
                None => accepted[class].push(queued),
                Some(error) => ended.push((queued, error)),
            }
        }
        for class in Class::ALL {
            let batch = mem::take(&mut accepted[class.index()]);
            if batch.is_empty() {
                continue;
            }
            if let Some(batch) = shared.try_inline(class, batch, arrived) {
                shared.enqueue(class, batch, &mut ended);
            }
        }
        shared.end(ended);
    }

    /// Ends a job that still waits, as [`JobError::Cancelled`]. Returns whether it did; a job that a
    /// backend already holds ends normally.
    pub fn cancel(&self, session: &Session, id: JobId) -> bool {
        let shared = self.shared();
        for class in &shared.classes {
            let (owner, session) = (session.inner.owner.id(), session.inner.id);
            let removed = lock(&class.state).queue.remove(owner, session, id);
            if let Some(queued) = removed {
                shared.end(vec![(queued, JobError::Cancelled)]);
                return true;
            }
        }
        false
    }

    /// Ends a session: its waiting jobs are dropped, and completions of jobs that a backend holds are
    /// dropped when they come. The sink is not called again, except by a call already under way.
    pub fn close_session(&self, session: &Session) {
        let shared = self.shared();
        session.inner.closed.store(true, Ordering::Release);
        for class in &shared.classes {
            let (owner, session) = (session.inner.owner.id(), session.inner.id);
            let removed = lock(&class.state).queue.remove_session(owner, session);
            shared.end(
                removed
                    .into_iter()
                    .map(|q| (q, JobError::Cancelled))
                    .collect(),
            );
        }
    }

    /// From now on new jobs end as [`JobError::Draining`]; those already taken are served.
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
    pub fn stats(&self) -> Snapshot {
        let shared = self.shared();
        let waiting = [0, 1, 2].map(|class| lock(&shared.classes[class].state).queue.len());
        shared.statistics.snapshot(waiting, self.in_flight())
    }

    /// The state of all backends, the usable ones first, each in order of preference.
    #[must_use]
    pub fn backends(&self) -> Vec<BackendStatus> {
        self.shared().backends.status()
    }

    /// Which backend serves which jobs, where several can, and what each was measured to cost.
    #[must_use]
    pub fn choices(&self) -> Vec<Choice> {
        let backends = &self.shared().backends;
        let choice = |known: KnownCosts| Choice {
            jobs: known.group,
            together: known.most,
            serving: backends.kind(known.serving),
            switches: known.switches,
            costs: known
                .costs
                .into_iter()
                .map(|(index, ns)| (backends.kind(index), Duration::from_secs_f64(ns / 1e9)))
                .collect(),
        };
        backends.known().into_iter().map(choice).collect()
    }

    fn shared(&self) -> &Shared {
        &self.threads.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
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
            shared.end(left.into_iter().map(|q| (q, JobError::Draining)).collect());
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Why a job is refused before it is queued, if it is.
    fn refusal(&self, queued: &Queued) -> Option<JobError> {
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
        let offered = job.key.able(job.operation.kind()) != 0;
        (!offered).then_some(JobError::NotOffered)
    }

    /// Runs a small batch of the fast class on this thread if nothing waits before it; else returns it.
    /// While several owners use the class, a batch that takes longer than a wake-up goes to the queue,
    /// where the owners take turns.
    fn try_inline(&self, class: Class, batch: Vec<Queued>, now: Instant) -> Option<Vec<Queued>> {
        let (Class::Fast, Some(first)) = (class, batch.first()) else {
            return Some(batch);
        };
        let owner = first.owner();
        // The jobs of one call are of one session in practice; several owners would need one charge each.
        let one_owner = batch.iter().all(|queued| queued.owner() == owner);
        let needs_device = batch.iter().any(|Queued { job, .. }| {
            job.key.able(job.operation.kind()) & !self.backends.on_cpu() != 0
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
            state
                .queue
                .pass(owner, batch.len(), batch.iter().map(Queued::cost).sum());
        }
        self.statistics
            .ran_inline
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        let runner = lock(&self.inline).pop();
        let mut runner = runner.unwrap_or_else(|| Runner::new(&self.backends));
        runner.run(self, class, batch, || 0);
        lock(&self.inline).push(runner);
        None
    }

    fn enqueue(&self, class: Class, batch: Vec<Queued>, ended: &mut Vec<(Queued, JobError)>) {
        let class = &self.classes[class.index()];
        let mut state = lock(&class.state);
        for queued in batch {
            if state.stopping {
                ended.push((queued, JobError::Draining));
            } else if let Some(refused) = state.queue.push(queued) {
                ended.push((refused, JobError::Busy));
            }
        }
        let wake = state.idle_workers.min(state.queue.len());
        let express = state.needs_express();
        drop(state);
        for _ in 0..wake {
            class.work.notify_one();
        }
        if express {
            class.express.notify_one();
        }
    }

    /// Ends the service of jobs that a worker or the calling thread ran.
    fn release(&self, class: Class, sessions: &[(Session, Vec<Completion>)]) {
        let class = &self.classes[class.index()];
        let mut state = lock(&class.state);
        for (session, completions) in sessions {
            state
                .queue
                .release(session.inner.owner.id(), completions.len());
        }
        let express = state.needs_express();
        drop(state);
        if express {
            class.express.notify_one();
        }
    }

    /// Ends jobs that no backend served.
    fn end(&self, ended: Vec<(Queued, JobError)>) {
        if ended.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut outbox = Outbox::default();
        for (Queued { job, arrived }, error) in ended {
            let completion = Completion {
                id: job.id,
                result: Err(error),
                served_by: None,
                queue_time: now.saturating_duration_since(arrived),
                service_time: Duration::ZERO,
            };
            outbox.push(job.session, completion);
        }
        outbox.flush(self);
    }
}

/// Completions on their way to their sinks, grouped so that a sink is called once per batch.
#[derive(Default)]
pub(crate) struct Outbox {
    /// The class in which these jobs are in service; none for jobs that no worker took.
    class: Option<Class>,
    by_session: Vec<(Session, Vec<Completion>)>,
}

impl Outbox {
    /// For jobs that are in service.
    pub(crate) fn of(class: Class) -> Self {
        Self {
            class: Some(class),
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, session: Session, completion: Completion) {
        // Few sessions share a batch, and neighbours tend to be of the same one.
        let same =
            |(known, _): &&mut (Session, Vec<Completion>)| known.inner.id == session.inner.id;
        match self.by_session.iter_mut().rev().find(same) {
            Some((_, completions)) => completions.push(completion),
            None => self.by_session.push((session, vec![completion])),
        }
    }

    pub(crate) fn flush(&mut self, shared: &Shared) {
        // Before the sinks are called: an owner that sends its next job at once has nothing in service.
        if let Some(class) = self.class.filter(|_| !self.by_session.is_empty()) {
            shared.release(class, &self.by_session);
        }
        for (session, mut completions) in self.by_session.drain(..) {
            shared
                .in_flight
                .fetch_sub(completions.len(), Ordering::Relaxed);
            for completion in &completions {
                if let Err(error) = completion.result {
                    shared.statistics.count_error(error);
                }
            }
            if session.inner.closed.load(Ordering::Acquire) {
                let count = completions.len() as u64;
                shared
                    .statistics
                    .dropped
                    .fetch_add(count, Ordering::Relaxed);
            } else {
                session.inner.sink.complete(&mut completions);
            }
        }
    }
}

/// The sweeper thread: ends waiting jobs whose deadline has passed while all workers are busy.
fn sweep(shared: &Shared) {
    loop {
        let stopping = lock(&shared.stopping);
        if *stopping {
            return;
        }
        let waited = shared.stop_signal.wait_timeout(stopping, SWEEP_INTERVAL);
        // Released before sinks are called: a sink may drop the last engine, which takes this lock.
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        if shared.in_flight.load(Ordering::Relaxed) == 0 {
            continue;
        }
        let now = Instant::now();
        let mut expired = Vec::new();
        for class in &shared.classes {
            lock(&class.state).queue.remove_expired(now, &mut expired);
        }
        shared.end(
            expired
                .into_iter()
                .map(|queued| (queued, JobError::Expired))
                .collect(),
        );
    }
}

/// Locks, also after a panic elsewhere: every critical section here leaves its data consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
