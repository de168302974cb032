// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Device`]: requests in, answers out. It knows no vhost, no memory of a guest, and no clock.
//!
//! ```text
//!  control queue ──bytes──► control ──► answer
//!  data queue ────bytes──► data ──► answer            computed in place
//!                               └─► token ··► batch ──submit──► Pool
//!                                             answers ◄─ complete ◄── completions
//! ```

mod asymmetric;
mod limits;
mod symmetric;

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_engine::Completion;
use millrace_operation::{JobError, Output};
use millrace_service::bucket::Bucket;
use zeroize::Zeroize;

use self::asymmetric::{ComputeOutcome, DeviceJob};
pub use self::limits::{DeviceLimits, Limit, LimitsChange};
use crate::job_target::{EndedJob, JobTarget, TargetJob};
use crate::keys::{GuestKeys, Private};
use crate::primitives::CipherContext;
use crate::request::{
    self, AkcipherOperation, ChainOperation, CipherHead, DataOperation, DataRequest, RequestFormat,
    RequestMode, SessionCommand,
};
use crate::session::{GuestSessions, Material};
use crate::spec::{CryptoService, Direction, Status};
use crate::statistics::{DeviceCounters, RequestKind, ServedBy};

/// Jobs of one device at the pool; at this bound it reads no further data request. Half of what the service allows a
/// session by default, and more than fill every lane of every backend.
pub const MAX_IN_FLIGHT: usize = 512;

/// Time after which a job fails that the pool has refused as busy or over quota. A guest's task waits for its
/// request and cannot be interrupted, so this is the longest budget of the service.
pub const JOB_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two submissions of a job that the pool refuses for now.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// The keys of a request end at or before this byte: a header and fixed fields of at most 100 bytes are in front of
/// them.
const KEYS_END: usize = 128 + request::MAX_KEY_LEN;

/// The result of a control request.
#[derive(Debug, Default)]
pub struct ControlOutcome {
    /// Response to the guest: 16 bytes for a request that makes a session, else 1.
    pub answer: Vec<u8>,
    /// The session that was made.
    pub created: Option<u64>,
    /// The sessions that ended: at the guest's wish, or because they were idle and gave way.
    pub ended: Vec<u64>,
}

impl ControlOutcome {
    /// The answer to a request that cannot be handled.
    pub(crate) fn failed(request: &[u8]) -> Self {
        let answer = if request::creates_session(request) {
            created_answer(Err(Status::Err))
        } else {
            vec![Status::Err as u8]
        };
        Self { answer, ..Self::default() }
    }
}

/// Names a data request that has no answer yet.
pub type DataToken = u64;

/// The result of a data request.
#[derive(Debug)]
pub enum DataOutcome {
    /// Computed in place, or refused.
    Done(DataAnswer),
    /// The result, which is in these bytes of the request.
    InRequest(Range<usize>),
    /// A result of this length, which is where the guest wants it.
    Written(usize),
    /// The answer comes from [`Device::submit`] or [`Device::complete`].
    Pending(DataToken),
}

impl DataOutcome {
    /// The answer to a request that cannot be handled.
    pub(crate) fn failed() -> Self {
        Self::Done(DataAnswer::of(Err(Status::Err)))
    }
}

/// The bytes of a result. `Debug` shows their number.
pub enum ResultBytes {
    /// Symmetric work. Not wiped: the guest's memory has the same bytes, and to wipe a page costs a quarter of the time
    /// to encrypt it.
    Plain(Vec<u8>),
    /// Private-key work, wiped when it is dropped.
    Wiped(Output),
}

impl Deref for ResultBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Wiped(bytes) => bytes,
        }
    }
}

impl fmt::Debug for ResultBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Result and status, as the guest finds them in its buffers.
#[derive(Debug)]
pub struct DataAnswer {
    /// The result; empty unless the status is OK.
    pub result: ResultBytes,
    /// The last byte of the answer.
    pub status: Status,
}

impl DataAnswer {
    fn of(result: Result<ResultBytes, Status>) -> Self {
        match result {
            Ok(result) => Self { result, status: Status::Ok },
            Err(status) => Self { result: ResultBytes::Plain(Vec::new()), status },
        }
    }
}

/// Time at which a device takes its next data request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadGate {
    /// Now, and this many more without another look.
    Open(usize),
    /// After this time: a limit was reached.
    After(Duration),
    /// After a completion: [`MAX_IN_FLIGHT`] jobs are at the pool.
    OnCompletion,
}

/// A virtio-crypto device.
pub struct Device {
    format: RequestFormat,
    sessions: GuestSessions,
    keys: GuestKeys,
    target: Box<dyn JobTarget>,
    next_token: DataToken,
    pending: HashMap<DataToken, Pending>,
    /// Jobs for the next submission.
    batch: Vec<DataToken>,
    /// Jobs that wait for another submission, and the time of the next.
    refused: Vec<DataToken>,
    retry_at: Option<Instant>,
    ops: Option<Bucket>,
    bytes: Option<Bucket>,
    counters: Arc<DeviceCounters>,
    /// Whether a former process has counted the present request.
    is_counted: bool,
}

/// A job at the pool, or on its way there.
struct Pending {
    kind: RequestKind,
    job: DeviceJob,
}

impl Device {
    /// A device without sessions over a pool, which counts in `counters`.
    #[must_use]
    pub fn new(
        target: Box<dyn JobTarget>,
        counters: Arc<DeviceCounters>,
        limits: DeviceLimits,
        now: Instant,
    ) -> Self {
        let mut device = Self {
            format: RequestFormat::default(),
            sessions: GuestSessions::default(),
            keys: GuestKeys::default(),
            target,
            next_token: 1,
            pending: HashMap::new(),
            batch: Vec::new(),
            refused: Vec::new(),
            retry_at: None,
            ops: None,
            bytes: None,
            counters,
            is_counted: false,
        };
        device.set_limits(limits, now);
        device
    }

    /// Changes the limits, from the next request on. What is left of a limit stays.
    pub fn set_limits(&mut self, limits: DeviceLimits, now: Instant) {
        let changed = |before: Option<Bucket>, rate: u64| {
            let depth = (rate / 10).max(1);
            match before {
                Some(bucket) => bucket.with_rate(rate, depth, now),
                None => Bucket::new(rate, depth, now),
            }
        };
        self.ops = limits.ops.map(|rate| changed(self.ops, rate));
        self.bytes = limits.bps.map(|rate| changed(self.bytes, rate));
    }

    /// Sets the form of requests to that of the features that a driver acknowledged. Sessions stay: a paused and
    /// continued machine acknowledges them again.
    pub fn set_features(&mut self, features: u64) {
        self.format = RequestFormat::new(features);
    }

    /// Ends all sessions: a driver starts over.
    pub fn clear_sessions(&mut self) {
        self.sessions.clear();
        self.levels();
    }

    /// Ends all sessions, and forgets all keys that no job uses.
    pub fn reset(&mut self, now: Instant) {
        self.sessions.clear();
        self.keys.clear(&mut *self.target, now);
        self.levels();
    }

    /// Jobs that have no answer yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Time at which the next data request may be read.
    #[must_use]
    pub fn read_gate(&self, now: Instant) -> ReadGate {
        if self.pending.len() >= MAX_IN_FLIGHT {
            return ReadGate::OnCompletion;
        }
        let wait =
            |bucket: &Option<Bucket>| bucket.map_or(Duration::ZERO, |it| it.ready_in(1, now));
        match wait(&self.ops).max(wait(&self.bytes)) {
            Duration::ZERO if self.ops.is_some() || self.bytes.is_some() => ReadGate::Open(1),
            Duration::ZERO => ReadGate::Open(MAX_IN_FLIGHT - self.pending.len()),
            wait => {
                self.counters.throttled();
                ReadGate::After(wait)
            }
        }
    }

    /// Counts a request whose descriptors do not parse.
    pub fn count_malformed(&self) {
        self.counters.malformed();
    }

    /// Handles a request of the control queue.
    pub fn control(&mut self, request: &[u8], now: Instant) -> ControlOutcome {
        let mut outcome = ControlOutcome::default();
        outcome.answer = match request::control(self.format, request) {
            Ok(SessionCommand::Create(parameters)) => {
                let created = Material::new(&parameters, &mut self.keys, &mut *self.target, now)
                    .and_then(|material| self.sessions.add(material, now));
                self.counters.session(created.is_ok());
                outcome.created = created.ok();
                outcome.ended = self.sessions.take_evicted();
                created_answer(created.map_err(|status| self.legacy(status)))
            }
            Ok(SessionCommand::Destroy { service, session }) => {
                let removed = self.sessions.remove(service, session);
                outcome.ended.extend(removed.is_ok().then_some(session));
                vec![removed.err().unwrap_or(Status::Ok) as u8]
            }
            Err(status) => {
                self.counters.malformed();
                // The length of the answer tells the driver where the status is, and depends on the operation.
                if request::creates_session(request) {
                    created_answer(Err(status))
                } else {
                    vec![status as u8]
                }
            }
        };
        self.levels();
        outcome
    }

    /// Makes the session again that had this id in a former process, from the request that made it there. Ids below
    /// `next` are not given out. Returns whether the session is there: a key that the pool refuses today is lost.
    pub fn restore(&mut self, id: u64, next: u64, request: &[u8], now: Instant) -> bool {
        self.sessions.continue_at(next);
        let Ok(SessionCommand::Create(parameters)) = request::control(self.format, request) else {
            return false;
        };
        let material = Material::new(&parameters, &mut self.keys, &mut *self.target, now);
        let made = material.map(|material| self.sessions.restore(id, material, now));
        self.levels();
        made.is_ok()
    }

    /// `NoSpace` exists only with revision 1.
    fn legacy(&self, status: Status) -> Status {
        if status == Status::NoSpace && !self.format.revision_1() { Status::Err } else { status }
    }

    /// Handles a request of a data queue. `writable` is the number of bytes that the guest left for the result,
    /// without the status. A cipher works in the bytes of the request; keys in a request are wiped.
    pub fn data(&mut self, request: &mut [u8], writable: usize, now: Instant) -> DataOutcome {
        let data = match request::data(self.format, request, writable) {
            Ok(data) => data,
            Err(status) => {
                self.counters.malformed();
                return self.done(Err(status));
            }
        };
        let (kind, bytes) = measure(&data.operation);
        self.count(kind, bytes, now);
        if let (
            RequestMode::Session(session),
            DataOperation::Cipher { direction, iv, source, room },
        ) = (&data.mode, &data.operation)
            && let Ok(Material::Cipher(cipher)) = self.sessions.get(*session, now)
        {
            // The IV is in front of the source.
            let start = source.as_ptr().addr() - request.as_ptr().addr();
            let place = start..start + source.len();
            let iv_len = iv.len();
            let fits = *direction == cipher.direction() && *room == source.len();
            let (head, rest) = request.split_at_mut(start);
            let done = fits && cipher.run(&head[start - iv_len..], &mut rest[..place.len()]);
            return self.transformed(kind, done.then_some(DataOutcome::InRequest(place)));
        }
        let has_keys = matches!(data.mode, RequestMode::Stateless(_));
        let outcome = self.compute(&data, now);
        if has_keys {
            let end = request.len().min(KEYS_END);
            request[..end].zeroize();
        }
        match outcome {
            Ok(ComputeOutcome::Done(result)) => {
                self.counters.served(kind, ServedBy::InPlace);
                self.done(Ok(ResultBytes::Plain(result)))
            }
            Ok(ComputeOutcome::Job(job)) => {
                let token = self.next_token;
                self.next_token += 1;
                self.pending.insert(token, Pending { kind, job });
                self.batch.push(token);
                DataOutcome::Pending(token)
            }
            Err(status) => self.done(Err(status)),
        }
    }

    /// Handles a request of a data queue whose last part, of `len` bytes, stays where it is; `head` is the rest. `run`
    /// runs a cipher with an IV from there to the place of the result. `None`, with nothing done and nothing counted,
    /// if this is not a session's cipher with these bytes as its source, or if the cipher may read a byte twice. The
    /// whole request then goes to [`Self::data`].
    pub(crate) fn data_apart(
        &mut self,
        head: &[u8],
        len: usize,
        writable: usize,
        now: Instant,
        run: impl FnOnce(&mut CipherContext, &[u8]) -> bool,
    ) -> Option<DataOutcome> {
        let CipherHead { session, direction, iv, source_len, room } =
            request::cipher_head(self.format, head)?;
        let Ok(Material::Cipher(cipher)) = self.sessions.get(session, now) else {
            return None;
        };
        let fits = direction == cipher.direction() && room == len && room <= writable;
        if source_len != len || !fits || !cipher.reads_once() {
            return None;
        }
        let done = run(cipher, iv).then_some(DataOutcome::Written(len));
        let kind = symmetric_kind(direction);
        self.count(kind, len, now);
        Some(self.transformed(kind, done))
    }

    fn transformed(&self, kind: RequestKind, done: Option<DataOutcome>) -> DataOutcome {
        let Some(outcome) = done else {
            return self.done(Err(Status::Err));
        };
        self.counters.served(kind, ServedBy::InPlace);
        outcome
    }

    /// Whether a former process has read, and counted, the requests that come next.
    pub(crate) fn set_counted(&mut self, is_counted: bool) {
        self.is_counted = is_counted;
    }

    fn count(&mut self, kind: RequestKind, bytes: usize, now: Instant) {
        if !self.is_counted {
            self.counters.operation(kind, bytes);
        }
        if let Some(ops) = &mut self.ops {
            ops.overdraw(1, now);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.overdraw(bytes as u64, now);
        }
    }

    fn done(&self, result: Result<ResultBytes, Status>) -> DataOutcome {
        if result.is_err() {
            self.counters.failed();
        }
        DataOutcome::Done(DataAnswer::of(result))
    }

    /// Computes a request in place, or makes the job that computes it.
    fn compute(&mut self, data: &DataRequest<'_>, now: Instant) -> Result<ComputeOutcome, Status> {
        let mut inline;
        let material = match &data.mode {
            RequestMode::Session(id) => self.sessions.get(*id, now)?,
            RequestMode::Stateless(parameters) => {
                inline = Material::new(parameters, &mut self.keys, &mut *self.target, now)?;
                &mut inline
            }
        };
        match (&data.operation, material) {
            (DataOperation::Akcipher { .. }, Material::Rsa { key, padding }) => {
                asymmetric::rsa(key, *padding, &data.operation, now)
            }
            (DataOperation::Akcipher { .. }, Material::Ecdsa(key)) => {
                asymmetric::ecdsa(key, &data.operation, now)
            }
            (operation, material) => {
                symmetric::compute(operation, material).map(ComputeOutcome::Done)
            }
        }
    }

    /// Submits the jobs that requests have left since the last call, in one batch. If the pool has refused jobs for
    /// now, the new ones wait behind these until the time of the next try: otherwise the oldest would wait for ever.
    /// Appends the answers of jobs that the pool refused for good.
    pub fn submit(&mut self, now: Instant, answers: &mut Vec<(DataToken, DataAnswer)>) {
        self.refused.append(&mut self.batch);
        if self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = None;
            mem::swap(&mut self.batch, &mut self.refused);
        }
        if self.batch.is_empty() {
            return;
        }
        let (mut jobs, mut late) = (Vec::with_capacity(self.batch.len()), Vec::new());
        for token in self.batch.drain(..) {
            let Some(Pending { job: pending, .. }) = self.pending.get(&token) else {
                continue;
            };
            if pending.deadline <= now {
                late.push((token, JobError::Expired));
                continue;
            }
            let Some(Private::Pool(handle)) = pending.key.private else {
                continue;
            };
            jobs.push(TargetJob {
                id: token,
                key: handle,
                operation: pending.operation.clone(),
                input: pending.input.clone(),
                budget: pending.deadline.saturating_duration_since(now),
            });
        }
        let refused = self.target.submit(jobs, now);
        for (token, error) in late.into_iter().chain(refused) {
            self.ended(token, Err(error), now, answers);
        }
        self.levels();
    }

    /// The time until [`Self::submit`] has something to do without a new request.
    #[must_use]
    pub fn next_retry(&self, now: Instant) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(now))
    }

    /// Takes completions of the pool, and appends the answers.
    pub fn complete(
        &mut self,
        completions: Vec<Completion>,
        now: Instant,
        answers: &mut Vec<(DataToken, DataAnswer)>,
    ) {
        for ended in self.target.completed(completions, now) {
            let EndedJob { id, result, served_by } = ended;
            if let (Some(pending), Some(by)) = (self.pending.get(&id), served_by) {
                self.counters.served(pending.kind, by);
            }
            self.ended(id, result, now, answers);
        }
        self.levels();
    }

    fn ended(
        &mut self,
        token: DataToken,
        result: Result<Output, JobError>,
        now: Instant,
        answers: &mut Vec<(DataToken, DataAnswer)>,
    ) {
        let Some(Pending { job: pending, .. }) = self.pending.get(&token) else {
            return;
        };
        let result = match result {
            Ok(output) if output.len() <= pending.room => Ok(output),
            Ok(_) | Err(JobError::BadInput) => Err(Status::Err),
            Err(JobError::Busy | JobError::OverQuota | JobError::Cancelled)
                if now < pending.deadline =>
            {
                self.counters.retried();
                self.refused.push(token);
                self.retry_at.get_or_insert(now + RETRY_AFTER);
                return;
            }
            Err(JobError::NotOffered | JobError::Denied) => Err(Status::NotSupported),
            Err(
                JobError::NoSuchKey
                | JobError::Busy
                | JobError::Expired
                | JobError::Cancelled
                | JobError::Draining
                | JobError::Failed
                | JobError::OverQuota,
            ) => Err(Status::Err),
        };
        if result.is_err() {
            self.counters.failed();
        }
        self.pending.remove(&token);
        answers.push((token, DataAnswer::of(result.map(ResultBytes::Wiped))));
    }

    fn levels(&self) {
        self.counters.levels(self.sessions.len(), self.keys.len(), self.pending.len());
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("sessions", &self.sessions)
            .field("keys", &self.keys)
            .field("pending", &self.pending.len())
            .finish_non_exhaustive()
    }
}

/// `virtio_crypto_create_session_input`.
fn created_answer(created: Result<u64, Status>) -> Vec<u8> {
    let (id, status) = match created {
        Ok(id) => (id, Status::Ok),
        Err(status) => (0, status),
    };
    let mut answer = id.to_le_bytes().to_vec();
    answer.extend(u32::from(status as u8).to_le_bytes());
    answer.extend([0; 4]);
    answer
}

fn symmetric_kind(direction: Direction) -> RequestKind {
    match direction {
        Direction::Encrypt => RequestKind::SymEncrypt,
        Direction::Decrypt => RequestKind::SymDecrypt,
    }
}

/// The counter and the bytes of a request, as QEMU counts them.
fn measure(operation: &DataOperation<'_>) -> (RequestKind, usize) {
    match operation {
        DataOperation::Cipher { direction, source, .. }
        | DataOperation::Aead { direction, source, .. }
        | DataOperation::Chain(ChainOperation { direction, source, .. }) => {
            (symmetric_kind(*direction), source.len())
        }
        DataOperation::HashOrMac { service: CryptoService::Mac, source, .. } => {
            (RequestKind::Mac, source.len())
        }
        DataOperation::HashOrMac { source, .. } => (RequestKind::Hash, source.len()),
        DataOperation::Akcipher { operation, source, .. } => {
            let kind = match operation {
                AkcipherOperation::Encrypt => RequestKind::AsymEncrypt,
                AkcipherOperation::Decrypt => RequestKind::AsymDecrypt,
                AkcipherOperation::Sign => RequestKind::AsymSign,
                AkcipherOperation::Verify => RequestKind::AsymVerify,
            };
            (kind, source.len())
        }
    }
}
