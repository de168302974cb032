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

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_engine::{Completion, Hash, JobError, Operation, Output};
use millrace_service::bucket::Bucket;
use serde::{Deserialize, Serialize};

use crate::keys::{GuestKey, GuestKeys, Half, Private};
use crate::pool::{EndedJob, Pool, PoolJob};
use crate::primitives::Rsa;
use crate::request::{self, AkcipherOperation, ChainWork, Control, Data, Layout, Subject, Work};
use crate::session::{GuestSessions, Material};
use crate::spec::{Direction, RsaPadding, Service, Status};
use crate::statistics::{DeviceCounters, RequestKind, ServedBy};

/// Jobs of one device at the pool; at this bound it reads no further data request. Half of what the service allows a
/// session by default, and more than fill every lane of every backend.
pub const MAX_IN_FLIGHT: usize = 512;

/// Time after which a job fails that the pool has refused as busy or over quota. A guest's task waits for its
/// request and cannot be interrupted, so this is the longest budget of the service.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Time between two submissions of a job that the pool refuses for now.
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// The limits of a device, with the meaning that QEMU gives to `throttle-ops` and `throttle-bps`: requests above
/// them wait; a tenth of a second's worth may come at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Data requests per second.
    pub ops: Option<u64>,
    /// Bytes of sources per second.
    pub bps: Option<u64>,
}

/// One limit, as a change sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// No limit.
    None,
    /// This number per second.
    PerSecond(u64),
}

impl Limit {
    const fn rate(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::PerSecond(rate) => Some(rate),
        }
    }
}

/// A change of limits; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsChange {
    /// Data requests per second.
    pub ops: Option<Limit>,
    /// Bytes of sources per second.
    pub bps: Option<Limit>,
}

impl LimitsChange {
    /// Changes `limits`.
    pub fn apply(self, limits: &mut DeviceLimits) {
        let Self { ops, bps } = self;
        limits.ops = ops.map_or(limits.ops, Limit::rate);
        limits.bps = bps.map_or(limits.bps, Limit::rate);
    }
}

/// The result of a control request.
#[derive(Debug, Default)]
pub struct ControlOutcome {
    /// What the guest gets: 16 bytes for a request that makes a session, else 1.
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
        Self {
            answer,
            ..Self::default()
        }
    }
}

/// Names a data request that has no answer yet.
pub type DataToken = u64;

/// The result of a data request.
#[derive(Debug)]
pub enum DataOutcome {
    /// The answer.
    Done(DataAnswer),
    /// The answer comes from [`Device::submit`] or [`Device::complete`].
    Pending(DataToken),
}

/// The answer to a data request. `Debug` shows no bytes of the result.
pub struct DataAnswer {
    /// The result; empty unless the status is OK.
    pub result: Output,
    /// The status.
    pub status: Status,
}

impl DataAnswer {
    fn of(result: Result<Output, Status>) -> Self {
        match result {
            Ok(result) => Self {
                result,
                status: Status::Ok,
            },
            Err(status) => Self {
                result: Output::default(),
                status,
            },
        }
    }
}

impl fmt::Debug for DataAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({:?}, {} bytes)", self.status, self.result.len())
    }
}

/// A virtio-crypto device.
pub struct Device {
    layout: Layout,
    sessions: GuestSessions,
    keys: GuestKeys,
    pool: Box<dyn Pool>,
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
}

/// A job at the pool, or on its way there.
struct Pending {
    kind: RequestKind,
    job: DeviceJob,
}

/// A private-key operation for the pool.
struct DeviceJob {
    /// The key, so that it stays in the pool although its session ends.
    key: Arc<GuestKey>,
    operation: Operation,
    input: Vec<u8>,
    room: usize,
    deadline: Instant,
}

impl Device {
    /// A device without sessions over a pool, which counts in `counters`.
    #[must_use]
    pub fn new(
        pool: Box<dyn Pool>,
        counters: Arc<DeviceCounters>,
        limits: DeviceLimits,
        now: Instant,
    ) -> Self {
        let mut device = Self {
            layout: Layout::default(),
            sessions: GuestSessions::default(),
            keys: GuestKeys::default(),
            pool,
            next_token: 1,
            pending: HashMap::new(),
            batch: Vec::new(),
            refused: Vec::new(),
            retry_at: None,
            ops: None,
            bytes: None,
            counters,
        };
        device.set_limits(limits, now);
        device
    }

    /// Changes the limits, from the next request on.
    pub fn set_limits(&mut self, limits: DeviceLimits, now: Instant) {
        let bucket = |rate: u64| Bucket::new(rate, (rate / 10).max(1), now);
        self.ops = limits.ops.map(bucket);
        self.bytes = limits.bps.map(bucket);
    }

    /// Sets the form of requests to that of the features that a driver acknowledged. Sessions stay: a paused and
    /// continued machine acknowledges them again.
    pub fn set_features(&mut self, features: u64) {
        self.layout = Layout::new(features);
    }

    /// Ends all sessions: a driver starts anew.
    pub fn clear_sessions(&mut self) {
        self.sessions.clear();
        self.levels();
    }

    /// Ends all sessions, and forgets all keys that no job uses.
    pub fn reset(&mut self, now: Instant) {
        self.sessions.clear();
        self.keys.clear(&mut *self.pool, now);
        self.levels();
    }

    /// Jobs that have no answer yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Whether a data request may be read now. Otherwise the time to wait, or `None` for "until a completion comes".
    ///
    /// # Errors
    /// The time after which to ask again, if only a throttle forbids it.
    pub fn may_read(&self, now: Instant) -> Result<(), Option<Duration>> {
        if self.pending.len() >= MAX_IN_FLIGHT {
            return Err(None);
        }
        let wait =
            |bucket: &Option<Bucket>| bucket.map_or(Duration::ZERO, |it| it.ready_in(1, now));
        match wait(&self.ops).max(wait(&self.bytes)) {
            Duration::ZERO => Ok(()),
            wait => {
                self.counters.throttled();
                Err(Some(wait))
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
        outcome.answer = match request::control(self.layout, request) {
            Ok(Control::Create(parameters)) => {
                let created = Material::new(&parameters, &mut self.keys, &mut *self.pool, now)
                    .and_then(|material| self.sessions.add(material, now));
                self.counters.session(created.is_ok());
                outcome.created = created.ok();
                outcome.ended = self.sessions.take_evicted();
                created_answer(created.map_err(|status| self.legacy(status)))
            }
            Ok(Control::Destroy { service, session }) => {
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
        let Ok(Control::Create(parameters)) = request::control(self.layout, request) else {
            return false;
        };
        let material = Material::new(&parameters, &mut self.keys, &mut *self.pool, now);
        let made = material.map(|material| self.sessions.restore(id, material, now));
        self.levels();
        made.is_ok()
    }

    /// `NoSpace` exists only with revision 1.
    fn legacy(&self, status: Status) -> Status {
        if status == Status::NoSpace && !self.layout.revision_1() {
            Status::Err
        } else {
            status
        }
    }

    /// Handles a request of a data queue. `writable` is the number of bytes that the guest left for the result,
    /// without the status.
    pub fn data(&mut self, request: &[u8], writable: usize, now: Instant) -> DataOutcome {
        let data = match request::data(self.layout, request, writable) {
            Ok(data) => data,
            Err(status) => {
                self.counters.malformed();
                return self.done(Err(status));
            }
        };
        let (kind, bytes) = measure(&data.work);
        self.counters.operation(kind, bytes);
        if let Some(ops) = &mut self.ops {
            ops.overdraw(1, now);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.overdraw(bytes as u64, now);
        }
        match self.work(&data, now) {
            Ok(Step::Done(result)) => {
                self.counters.served(kind, ServedBy::InPlace);
                self.done(Ok(result))
            }
            Ok(Step::Job(job)) => {
                let token = self.next_token;
                self.next_token += 1;
                self.pending.insert(token, Pending { kind, job });
                self.batch.push(token);
                DataOutcome::Pending(token)
            }
            Err(status) => self.done(Err(status)),
        }
    }

    fn done(&self, result: Result<Output, Status>) -> DataOutcome {
        if result.is_err() {
            self.counters.failed();
        }
        DataOutcome::Done(DataAnswer::of(result))
    }

    fn work(&mut self, data: &Data<'_>, now: Instant) -> Result<Step, Status> {
        let mut inline;
        let material = match &data.subject {
            Subject::Session(id) => self.sessions.get(*id, now)?,
            Subject::Inline(parameters) => {
                inline = Material::new(parameters, &mut self.keys, &mut *self.pool, now)?;
                &mut inline
            }
        };
        match (&data.work, material) {
            (Work::Akcipher { .. }, Material::Rsa { key, padding }) => {
                rsa(key, *padding, &data.work, now)
            }
            (Work::Akcipher { .. }, Material::Ecdsa(key)) => ecdsa(key, &data.work, now),
            (work, material) => symmetric(work, material).map(Step::Done),
        }
    }

    /// Submits the jobs that requests have left since the last call, in one batch, and those whose time has come for
    /// another try. Appends the answers of jobs that the pool refused for good.
    pub fn submit(&mut self, now: Instant, answers: &mut Vec<(DataToken, DataAnswer)>) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.batch.append(&mut self.refused);
        }
        if self.batch.is_empty() {
            return;
        }
        let mut jobs = Vec::with_capacity(self.batch.len());
        for token in self.batch.drain(..) {
            let Some(Pending { job: pending, .. }) = self.pending.get(&token) else {
                continue;
            };
            let Some(Private::Pool(handle)) = pending.key.private else {
                continue;
            };
            jobs.push(PoolJob {
                id: token,
                key: handle,
                operation: pending.operation.clone(),
                input: pending.input.clone(),
                budget: pending.deadline.saturating_duration_since(now),
            });
        }
        for (token, error) in self.pool.submit(jobs, now) {
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
        for ended in self.pool.completed(completions, now) {
            let EndedJob {
                id,
                result,
                served_by,
            } = ended;
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
        answers.push((token, DataAnswer::of(result)));
    }

    fn levels(&self) {
        self.counters
            .levels(self.sessions.len(), self.keys.len(), self.pending.len());
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

/// The counter and the bytes of a request, as QEMU counts them.
fn measure(work: &Work<'_>) -> (RequestKind, usize) {
    let symmetric = |direction: Direction| match direction {
        Direction::Encrypt => RequestKind::SymEncrypt,
        Direction::Decrypt => RequestKind::SymDecrypt,
    };
    match work {
        Work::Cipher {
            direction, source, ..
        }
        | Work::Aead {
            direction, source, ..
        }
        | Work::Chain(ChainWork {
            direction, source, ..
        }) => (symmetric(*direction), source.len()),
        Work::Check {
            service: Service::Mac,
            source,
            ..
        } => (RequestKind::Mac, source.len()),
        Work::Check { source, .. } => (RequestKind::Hash, source.len()),
        Work::Akcipher {
            operation, source, ..
        } => {
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

/// What a data request needs.
enum Step {
    /// Nothing more.
    Done(Output),
    /// A job of the pool.
    Job(DeviceJob),
}

/// Computes what needs no key of the pool.
fn symmetric(work: &Work<'_>, material: &mut Material) -> Result<Output, Status> {
    match (work, material) {
        (
            Work::Cipher {
                direction,
                iv,
                source,
                room,
            },
            Material::Cipher(cipher),
        ) => {
            // Of two different lengths one is wrong (CVE-2023-3180).
            if *direction != cipher.direction() || *room != source.len() {
                return Err(Status::Err);
            }
            let mut result = Output::new(vec![0; source.len()]);
            cipher
                .run(iv, source, &mut result)
                .then_some(result)
                .ok_or(Status::Err)
        }
        (
            Work::Chain(work),
            Material::Chain {
                cipher,
                check,
                cipher_first,
            },
        ) => chain(work, cipher, check, *cipher_first),
        (
            Work::Check {
                service,
                source,
                len,
            },
            Material::Check(check),
        ) if *service == check.service() => check.run(source, *len).map(Output::new),
        (
            Work::Aead {
                direction,
                nonce,
                source,
                aad,
                tag_len,
                room,
            },
            Material::Aead {
                aead,
                tag_len: own,
                direction: own_direction,
            },
        ) => {
            if direction != own_direction || tag_len != own {
                return Err(Status::Err);
            }
            let len = match direction {
                Direction::Encrypt => source.len().checked_add(*tag_len),
                Direction::Decrypt => source.len().checked_sub(*tag_len),
            };
            let len = len.filter(|len| len <= room).ok_or(Status::Err)?;
            let mut result = Output::new(vec![0; len]);
            let done = match direction {
                Direction::Encrypt => aead.seal(nonce, aad, source, &mut result),
                Direction::Decrypt => aead.open(nonce, aad, source, &mut result),
            };
            done.map_err(|error| match error {
                crate::primitives::AeadError::Tag => Status::BadMessage,
                crate::primitives::AeadError::Length => Status::Err,
            })?;
            Ok(result)
        }
        // A session of another service, or a chain where the session has a cipher alone.
        (
            Work::Cipher { .. }
            | Work::Chain(_)
            | Work::Check { .. }
            | Work::Aead { .. }
            | Work::Akcipher { .. },
            _,
        ) => Err(Status::InvalidSession),
    }
}

/// Computes a cipher and a hash or MAC over parts of one source. The device does not compare MACs: the driver does.
fn chain(
    work: &ChainWork<'_>,
    cipher: &mut crate::primitives::Cipher,
    check: &crate::session::OwnedCheck,
    cipher_first: bool,
) -> Result<Output, Status> {
    if work.direction != cipher.direction() {
        return Err(Status::Err);
    }
    let mut text = Output::new(work.source.to_vec());
    let mut hashed = Output::new(work.aad.to_vec());
    let (from, to) = work.hash;
    if !cipher_first {
        hashed.extend_from_slice(&text[from..to]);
    }
    let (start, end) = work.cipher;
    if !cipher.run(work.iv, &work.source[start..end], &mut text[start..end]) {
        return Err(Status::Err);
    }
    if cipher_first {
        hashed.extend_from_slice(&text[from..to]);
    }
    let digest = check.run(&hashed, work.hash_len)?;
    text.extend_from_slice(&digest);
    Ok(text)
}

/// A request with an RSA session: computed here with the public key, a job with the private one.
fn rsa(
    key: &Arc<GuestKey>,
    padding: RsaPadding,
    work: &Work<'_>,
    now: Instant,
) -> Result<Step, Status> {
    let (
        Work::Akcipher {
            operation,
            source,
            digest,
            room,
        },
        Half::Rsa(public),
    ) = (work, &key.half)
    else {
        return Err(Status::InvalidSession);
    };
    let len = public.len();
    let here = |result: Option<Vec<u8>>| {
        let result = result.filter(|result| result.len() <= *room);
        result
            .map(|result| Step::Done(Output::new(result)))
            .ok_or(Status::Err)
    };
    match (operation, padding) {
        (AkcipherOperation::Encrypt, RsaPadding::Raw) => {
            here(public.encrypt_raw(&left_padded(source, len)?))
        }
        (AkcipherOperation::Encrypt, RsaPadding::Pkcs1(_)) => here(public.encrypt_pkcs1(source)),
        (AkcipherOperation::Verify, RsaPadding::Pkcs1(hash)) => {
            if public.verify_pkcs1(hash, digest, source) {
                Ok(Step::Done(Output::default()))
            } else {
                Err(Status::KeyRejected)
            }
        }
        // The specification forbids it, and a signature without padding is none.
        (AkcipherOperation::Sign | AkcipherOperation::Verify, RsaPadding::Raw) => {
            Err(Status::NotSupported)
        }
        (AkcipherOperation::Decrypt | AkcipherOperation::Sign, _) => {
            let (operation, input) = private_operation(*operation, padding, source, len)?;
            match &key.private {
                None => Err(Status::Err),
                Some(Private::Local(rsa)) => here(local(rsa, &operation, &input)?),
                Some(Private::Pool(_)) => Ok(Step::Job(DeviceJob {
                    key: Arc::clone(key),
                    operation,
                    input,
                    room: *room,
                    deadline: now + PATIENCE,
                })),
            }
        }
    }
}

/// The engine's operation for a request with a private RSA key, and its input.
fn private_operation(
    operation: AkcipherOperation,
    padding: RsaPadding,
    source: &[u8],
    len: usize,
) -> Result<(Operation, Vec<u8>), Status> {
    match (operation, padding) {
        (AkcipherOperation::Sign, RsaPadding::Pkcs1(Some(hash))) => {
            if source.len() != hash.digest_len() {
                return Err(Status::Err);
            }
            Ok((Operation::RsaPkcs1Sign { hash }, source.to_vec()))
        }
        (AkcipherOperation::Sign, RsaPadding::Pkcs1(None)) => {
            Ok((Operation::RsaRaw, signature_block(source, len)?))
        }
        (_, RsaPadding::Pkcs1(_)) => Ok((Operation::RsaPkcs1Decrypt, left_padded(source, len)?)),
        (_, RsaPadding::Raw) => Ok((Operation::RsaRaw, left_padded(source, len)?)),
    }
}

/// A private operation with a key that is too small for the engine. It has no PKCS#1 v1.5 decryption: implicit
/// rejection is the engine's, and a device without it would be an oracle.
fn local(rsa: &Rsa, operation: &Operation, input: &[u8]) -> Result<Option<Vec<u8>>, Status> {
    match operation {
        Operation::RsaRaw => Ok(rsa.decrypt_raw(input)),
        Operation::RsaPkcs1Sign { hash } => {
            Ok(rsa.sign_pkcs1(&[hash.digest_info_prefix(), input].concat()))
        }
        Operation::RsaPssSign { .. }
        | Operation::RsaOaepDecrypt { .. }
        | Operation::RsaPkcs1Decrypt
        | Operation::RsaTlsPremaster { .. }
        | Operation::EcdsaSign { .. }
        | Operation::Ecdh
        | Operation::X25519
        | Operation::Ed25519Sign
        | Operation::DhDerive
        | Operation::DsaSign { .. }
        | Operation::MlDsaSign { .. } => Err(Status::NotSupported),
    }
}

/// `source` with leading zeros, as long as the modulus. Linux strips them.
fn left_padded(source: &[u8], len: usize) -> Result<Vec<u8>, Status> {
    let zeros = len.checked_sub(source.len()).ok_or(Status::Err)?;
    let mut padded = vec![0; len];
    padded[zeros..].copy_from_slice(source);
    Ok(padded)
}

/// The block of a PKCS#1 v1.5 signature over bytes that are not a digest (RFC 8017 section 9.2, without the
/// `DigestInfo`).
fn signature_block(source: &[u8], len: usize) -> Result<Vec<u8>, Status> {
    let fill = len.checked_sub(source.len() + 3).filter(|fill| *fill >= 8);
    let fill = fill.ok_or(Status::Err)?;
    let mut block = vec![0, 1];
    block.resize(2 + fill, 0xff);
    block.push(0);
    block.extend_from_slice(source);
    Ok(block)
}

/// A request with an ECDSA session. The session has no hash; the length of the digest tells the engine's.
fn ecdsa(key: &Arc<GuestKey>, work: &Work<'_>, now: Instant) -> Result<Step, Status> {
    let (
        Work::Akcipher {
            operation,
            source,
            digest,
            room,
        },
        Half::Ec(public),
    ) = (work, &key.half)
    else {
        return Err(Status::InvalidSession);
    };
    match operation {
        AkcipherOperation::Verify if public.verify(digest, source) => {
            Ok(Step::Done(Output::default()))
        }
        AkcipherOperation::Verify => Err(Status::KeyRejected),
        AkcipherOperation::Sign => {
            let hash = match source.len() {
                20 => Hash::Sha1,
                28 => Hash::Sha224,
                32 => Hash::Sha256,
                48 => Hash::Sha384,
                64 => Hash::Sha512,
                _ => return Err(Status::Err),
            };
            match key.private {
                Some(Private::Pool(_)) => Ok(Step::Job(DeviceJob {
                    key: Arc::clone(key),
                    operation: Operation::EcdsaSign { hash },
                    input: source.to_vec(),
                    room: *room,
                    deadline: now + PATIENCE,
                })),
                Some(Private::Local(_)) | None => Err(Status::Err),
            }
        }
        AkcipherOperation::Encrypt | AkcipherOperation::Decrypt => Err(Status::NotSupported),
    }
}
