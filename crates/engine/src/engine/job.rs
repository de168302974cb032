// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Values that callers pass in and get back: sessions, keys, jobs, completions, and batches of them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use millrace_operation::{
    BackendKind, Class, JobError, JobId, KeyInfo, KeyType, Operation, OperationKind, Output,
};

use super::backend_set::{BackendIndex, BackendSet};
use super::choice::Group;
use super::dispatch::Backends;
use crate::backend::BackendKey;
use crate::queue::{Owner, PriorityLevel, Waiting};

/// Receives the completions of one session.
pub trait CompletionSink: Send + Sync {
    /// Takes all of `completions` out. Called from worker threads, from the sweeper, and from inside
    /// [`Engine::submit`], [`Engine::cancel`], [`Engine::close_session`] and [`Engine::stop`]: the caller of
    /// those must not hold a lock that the sink takes. Must not block and must not call back into the engine.
    ///
    /// [`Engine::submit`]: super::Engine::submit
    /// [`Engine::cancel`]: super::Engine::cancel
    /// [`Engine::close_session`]: super::Engine::close_session
    /// [`Engine::stop`]: super::Engine::stop
    fn complete(&self, completions: &mut Vec<Completion>);
}

/// One caller of the engine, usually one connection. Cheap to clone.
#[derive(Clone)]
pub struct EngineSession {
    pub(super) inner: Arc<SessionInner>,
}

/// A session, shared by its caller and its jobs in the engine; it lives until the last of them has ended.
pub(super) struct SessionInner {
    pub(super) id: u64,
    /// The owner when the session was opened; its weight and level may have changed since.
    pub(super) owner: Owner,
    /// The weight of the owner, as of the last [`EngineSession::set_share`].
    pub(super) weight: AtomicU32,
    /// The level of the owner, as an index in [`PriorityLevel::ALL`].
    pub(super) level: AtomicU8,
    pub(super) closed: AtomicBool,
    pub(super) sink: Arc<dyn CompletionSink>,
}

impl EngineSession {
    /// Changes weight and level of the owner, from the next job of this session on.
    pub fn set_share(&self, weight: u32, level: PriorityLevel) {
        self.inner.weight.store(weight, Ordering::Relaxed);
        self.inner.level.store(level as u8, Ordering::Relaxed);
    }

    pub(super) fn owner(&self) -> Owner {
        let weight = self.inner.weight.load(Ordering::Relaxed);
        let level = usize::from(self.inner.level.load(Ordering::Relaxed));
        let level = PriorityLevel::ALL.get(level).copied().unwrap_or_default();
        self.inner.owner.with_weight(weight).at_level(level)
    }
}

impl fmt::Debug for EngineSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.inner.id)
    }
}

/// A key that is loaded in every backend that takes it; unloaded when the last clone is dropped.
pub struct Key {
    pub(super) info: KeyInfo,
    pub(super) class: Class,
    /// Number of the key in each backend, in the order of the backends.
    pub(super) backend_keys: Vec<Option<BackendKey>>,
    /// Backends that do each operation, by the operation's index.
    pub(super) able: [BackendSet; OperationKind::ALL.len()],
    pub(super) backends: Arc<Backends>,
}

impl Key {
    /// The type of the key and its public half.
    #[must_use]
    pub fn info(&self) -> &KeyInfo {
        &self.info
    }

    /// The backends that do this with the key.
    pub(super) fn able(&self, operation: OperationKind) -> BackendSet {
        self.able[operation.index()]
    }

    /// The key as a backend names it; `None` if the backend has not taken it.
    pub(super) fn in_backend(&self, backend: BackendIndex) -> Option<BackendKey> {
        self.backend_keys.get(backend.0).copied().flatten()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.info.key_type)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.backends.close_key(&self.backend_keys);
    }
}

/// An operation with its key, input and deadline.
pub struct Job {
    /// Chosen by the caller, unique within the session, and returned in the completion.
    pub id: JobId,
    /// The session that gets the completion.
    pub session: EngineSession,
    /// A key that this engine loaded.
    pub key: Arc<Key>,
    /// An operation that fits the key, or the job ends as [`JobError::BadInput`].
    pub operation: Operation,
    /// Digest, message or ciphertext, as [`Operation`] says.
    pub input: Vec<u8>,
    /// A job that still waits then ends as [`JobError::Expired`].
    pub deadline: Instant,
}

impl Job {
    /// The jobs that are expected to cost the same.
    pub(super) fn group(&self) -> Group {
        Group::of(self.operation.kind(), self.key.info.key_type)
    }

    /// The backends that can serve the job.
    pub(super) fn able(&self) -> BackendSet {
        self.key.able(self.operation.kind())
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, session, key, operation, input, deadline: _ } = self;
        write!(f, "Job({id} of {session:?}, {}, {key:?}, ", operation.kind())?;
        write!(f, "input of {} bytes)", input.len())
    }
}

/// The end of a job: output or error, its backend and its times. `Debug` shows the length of the output, never its
/// bytes.
pub struct Completion {
    /// Id of the job, as its caller gave it.
    pub id: JobId,
    /// The verified result, or why there is none.
    pub result: Result<Output, JobError>,
    /// The backend that answered the job; `None` if none did.
    pub served_by: Option<BackendKind>,
    /// Time between submission and the start of service.
    pub queue_time: Duration,
    /// Time that the backend worked on the job.
    pub service_time: Duration,
    /// With [`JobError::Busy`], the time after which such a job is expected to be taken. `None` if it is not known.
    pub retry_after: Option<Duration>,
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, result, served_by, queue_time, service_time, retry_after } = self;
        f.debug_struct("Completion")
            .field("id", id)
            .field("result", &result.as_ref().map(|output| output.len()))
            .field("served_by", served_by)
            .field("queue_time", queue_time)
            .field("service_time", service_time)
            .field("retry_after", retry_after)
            .finish()
    }
}

/// Completions on their way to their sinks, grouped so that a sink is called once per batch.
#[derive(Default)]
pub(super) struct CompletionBatch {
    /// The class in which these jobs are in service; `None` for jobs that no worker took.
    pub(super) class: Option<Class>,
    pub(super) by_session: Vec<(EngineSession, Vec<Completion>)>,
}

impl CompletionBatch {
    /// An empty batch for jobs that are in service.
    pub(super) fn of(class: Class) -> Self {
        Self { class: Some(class), ..Self::default() }
    }

    pub(super) fn push(&mut self, session: EngineSession, completion: Completion) {
        // Few sessions share a batch, and neighbours tend to be of the same one.
        let mut known = self.by_session.iter_mut().rev();
        match known.find(|(known, _)| known.inner.id == session.inner.id) {
            Some((_, completions)) => completions.push(completion),
            None => self.by_session.push((session, vec![completion])),
        }
    }
}

/// A job that waits or runs, with the time of its submission.
pub(super) struct Queued {
    pub(super) job: Job,
    pub(super) arrived: Instant,
}

impl Waiting for Queued {
    fn owner(&self) -> Owner {
        self.job.session.owner()
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
