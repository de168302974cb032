// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compares a session with a model of it, for the fuzz targets (feature `fuzzing`; no other build has this
//! module).
//!
//! The input of [`session`] is a list of steps. A step below [`RAW`] is one of [`Model`]'s, followed by its
//! parameters as bytes, drawn from small ranges so that ids, handles and names coincide. Any other step is a
//! message as a client may send it: a kind, a length of two bytes and the payload.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_operation::{
    Curve, Hash, HashAlgorithms, JobError, JobId, KeyError, KeyInfo, KeyType, Operation,
    OperationKind, OperationSet, PrivateKey,
};
use millrace_wire::{
    ClientMessage, EdgeCounter, EdgeReport, FEATURE_DESCRIPTION, FEATURE_DEVICE_COUNTERS,
    FEATURE_REPORTS, Hello, KeyHandle, KeySelector, Message, NodeMessage, RequestId, SubmittedJob,
};
use zeroize::Zeroizing;

use crate::account::Account;
use crate::keys::{KeyEntry, KeySet};
use crate::policy::KeyPolicy;
use crate::session::{Effects, ReadyJob, SessionState};
use crate::settings::Rules;

/// Least value of a step that is an encoded message.
const RAW: u8 = 0x40;

/// Identity of the client under test.
const ME: &str = "uid:1";

// Bounds of the session under test, small so that a few steps reach them.
const MAX_IN_FLIGHT: u32 = 6;
const MAX_KEYS: u32 = 4;
const MAX_BUDGET: Duration = Duration::from_secs(10);

/// Stands for the engine's key: a number.
type Key = u32;

/// Runs the conversation.
///
/// # Panics
/// If the session differs from the model.
pub fn session(input: &[u8]) {
    let mut model = Model::new();
    let mut steps = input.iter();
    while model.step(&mut steps) == Some(true) {}
}

/// The rest of the input.
type Steps<'a> = slice::Iter<'a, u8>;

/// A key that the client has open.
struct Open {
    entry: Arc<KeyEntry<Key>>,
    imported: bool,
}

/// The session under test, and what it must hold after the steps so far.
struct Model {
    state: SessionState<Key>,
    entries: Vec<Arc<KeyEntry<Key>>>,
    revoked: BTreeSet<Key>,
    keys: KeySet<Key>,
    now: Instant,
    greeted: bool,
    draining: bool,
    open: BTreeMap<KeyHandle, Open>,
    last_handle: KeyHandle,
    importing: Vec<RequestId>,
    in_flight: BTreeSet<JobId>,
    cancelled: BTreeSet<JobId>,
    may_report: bool,
    may_ask: bool,
    has_devices: bool,
    reported: EdgeReport,
    /// Reports and requests for descriptions that the node still accepts, as time: at most a minute, and each
    /// costs a second.
    patience: Duration,
    last_report: Instant,
}

impl Model {
    fn new() -> Self {
        let rules = Rules {
            node: "n".to_owned(),
            allow_import: true,
            max_in_flight: MAX_IN_FLIGHT,
            max_keys: MAX_KEYS,
            max_budget: MAX_BUDGET,
        };
        let types = [KeyType::Ec(Curve::P256), KeyType::Rsa { bits: 2048 }, KeyType::Ed25519];
        let now = Instant::now();
        let entries: Vec<_> = (0..).zip(types).map(|(n, t)| entry(n, t)).collect();
        Self {
            state: SessionState::new(
                Arc::new(rules),
                ME.into(),
                Arc::new(Account::unlimited(ME, now)),
            ),
            keys: entries.iter().cloned().collect(),
            entries,
            revoked: BTreeSet::new(),
            now,
            greeted: false,
            draining: false,
            open: BTreeMap::new(),
            last_handle: 0,
            importing: Vec::new(),
            in_flight: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            may_report: false,
            may_ask: false,
            has_devices: false,
            reported: EdgeReport::default(),
            patience: Duration::from_secs(60),
            last_report: now,
        }
    }

    /// Runs one step. Returns `false` once the connection has ended, `None` at the end of the input.
    fn step(&mut self, steps: &mut Steps<'_>) -> Option<bool> {
        let mut effects = Effects::default();
        match *steps.next()? {
            0 => return Some(self.complete(*steps.next()?)),
            1 => return Some(self.imported(*steps.next()?)),
            2 => self.set_policy(*steps.next()?, *steps.next()?, *steps.next()?),
            3 => {
                let entry = &self.entries[usize::from(steps.next()? % 3)];
                entry.revoke();
                self.revoked.insert(*entry.key());
            }
            4 => {
                self.state.drain(&mut effects);
                let said = usize::from(self.greeted && !self.draining);
                assert_eq!(effects.replies.len(), said);
                self.draining = true;
            }
            5 => self.now += Duration::from_millis(u64::from(*steps.next()?)),
            code @ 6..RAW => return self.say(message(code, steps)?),
            kind => {
                let length = usize::from(u16::from_be_bytes([*steps.next()?, *steps.next()?]));
                let (payload, rest) = steps.as_slice().split_at(length.min(steps.len()));
                *steps = rest.iter();
                // Kinds are small numbers.
                match ClientMessage::decode(kind - RAW, payload) {
                    Ok(message) => return self.say(message),
                    Err(_) => return Some(false),
                }
            }
        }
        Some(true)
    }

    fn complete(&mut self, choice: u8) -> bool {
        let id = JobId::from(choice % 8);
        assert_eq!(self.state.completed(id), self.in_flight.remove(&id));
        self.cancelled.remove(&id);
        self.check();
        true
    }

    /// The engine answers an import with a key or an error.
    fn imported(&mut self, choice: u8) -> bool {
        if self.importing.is_empty() {
            return true;
        }
        let request = self.importing.remove(usize::from(choice >> 1) % self.importing.len());
        let key_type = KeyType::Rsa { bits: 2048 };
        let key = if choice & 1 == 0 {
            Ok((100 + u32::from(choice), info(key_type)))
        } else {
            Err(KeyError::Inconsistent)
        };
        let good = key.is_ok();
        let mut effects = Effects::default();
        self.state.imported(request, key, &mut effects);
        let [reply] = &effects.replies[..] else {
            panic!("one answer to an import: {effects:?}");
        };
        match reply {
            NodeMessage::KeyOpened { request: answered, handle, .. } => {
                assert!(good && *answered == request);
                let entry = entry(100 + u32::from(choice), key_type);
                entry.set_policy(KeyPolicy::session_owned());
                self.opened(*handle, entry, true);
            }
            NodeMessage::KeyRefused { request: answered, .. } => {
                assert!(!good && *answered == request);
            }
            other => panic!("no answer to an import: {other:?}"),
        }
        self.check();
        true
    }

    fn set_policy(&mut self, number: u8, identity: u8, operations: u8) {
        let entry = &self.entries[usize::from(number) % self.entries.len()];
        if self.revoked.contains(entry.key()) {
            return;
        }
        let identities = match identity % 4 {
            0 => vec![],
            1 => vec!["uid:2".to_owned()],
            2 => vec![ME.to_owned()],
            _ => vec!["*".to_owned()],
        };
        entry.set_policy(KeyPolicy {
            identities,
            operations: OperationSet::from_bits(u32::from(operations) << 1),
            hashes: HashAlgorithms::from_bits(0b1_0000),
        });
    }

    fn say(&mut self, message: ClientMessage) -> Option<bool> {
        let mut effects = Effects::default();
        let expected = self.expect(&message);
        let result = self.state.receive(message, self.now, &self.keys, &mut effects);
        match expected {
            Expected::Fault => {
                assert!(result.is_err());
                return Some(false);
            }
            Expected::Replies(check) => {
                assert_eq!(result, Ok(()));
                check(self, &effects);
            }
        }
        self.check();
        Some(true)
    }

    /// The expected effect of this message.
    fn expect(&self, message: &ClientMessage) -> Expected {
        match message {
            ClientMessage::Hello(_) if self.greeted => Expected::Fault,
            ClientMessage::Hello(hello) => {
                if hello.min_version > 1 || hello.max_version < 1 {
                    return Expected::Fault;
                }
                let may_report = hello.features & FEATURE_REPORTS != 0;
                let may_ask = hello.features & FEATURE_DESCRIPTION != 0;
                let has_devices = hello.features & FEATURE_DEVICE_COUNTERS != 0;
                Expected::Replies(Box::new(move |model, effects| {
                    model.may_report = may_report;
                    model.may_ask = may_ask;
                    model.has_devices = has_devices;
                    let said = 1 + usize::from(model.draining);
                    assert_eq!(effects.replies.len(), said);
                    assert!(matches!(effects.replies[0], NodeMessage::Welcome(_)));
                    model.greeted = true;
                }))
            }
            _ if !self.greeted => Expected::Fault,
            ClientMessage::OpenKey { request, selector } => {
                let request = *request;
                let selector = selector.clone();
                Expected::Replies(Box::new(move |model, effects| {
                    model.key_asked(request, &selector, effects);
                }))
            }
            ClientMessage::ImportKey { request, .. } => {
                let request = *request;
                Expected::Replies(Box::new(move |model, effects| {
                    let room = model.has_room_for_a_key();
                    assert_eq!(effects.imports.len(), usize::from(room));
                    assert_eq!(effects.replies.len(), usize::from(!room));
                    if room {
                        assert_eq!(effects.imports[0].0, request);
                        model.importing.push(request);
                    }
                }))
            }
            ClientMessage::CloseKey { handle } => {
                let handle = *handle;
                Expected::Replies(Box::new(move |model, effects| {
                    assert!(effects.replies.is_empty());
                    model.open.remove(&handle);
                }))
            }
            ClientMessage::Submit(jobs) => self.expect_jobs(jobs),
            ClientMessage::Cancel { job } => {
                let job = *job;
                Expected::Replies(Box::new(move |model, effects| {
                    // A job is cancelled only while it is in flight, and only once.
                    let new = model.in_flight.contains(&job) && model.cancelled.insert(job);
                    let expected = if new { vec![job] } else { vec![] };
                    assert_eq!(effects.cancels, expected);
                }))
            }
            ClientMessage::Ping { token } => {
                let token = *token;
                Expected::Replies(Box::new(move |_, effects| {
                    assert!(matches!(
                        effects.replies[..],
                        [NodeMessage::Pong { token: echo }] if echo == token
                    ));
                }))
            }
            ClientMessage::Report(report) => {
                let of_devices =
                    |(counter, count): (EdgeCounter, u64)| counter.is_of_device() && count > 0;
                let is_known = self.has_devices || !report.iter().any(of_devices);
                let Some(left) = self.patience_after(self.may_report && is_known) else {
                    return Expected::Fault;
                };
                let report = **report;
                Expected::Replies(Box::new(move |model, effects| {
                    assert!(effects.replies.is_empty());
                    let news = effects.news.expect("what is new");
                    assert_eq!(news, report.since(&model.reported));
                    model.reported.merge(&news);
                    model.patience = left;
                    model.last_report = model.now;
                }))
            }
            ClientMessage::Describe => {
                let Some(left) = self.patience_after(self.may_ask) else {
                    return Expected::Fault;
                };
                Expected::Replies(Box::new(move |model, effects| {
                    assert_eq!((effects.replies.len(), effects.descriptions), (0, 1));
                    model.patience = left;
                    model.last_report = model.now;
                }))
            }
        }
    }

    /// The patience that is left after one more report or request; none if it is a protocol violation.
    fn patience_after(&self, allowed: bool) -> Option<Duration> {
        let waited = self.now.duration_since(self.last_report);
        let patience = (self.patience + waited).min(Duration::from_secs(60));
        patience.checked_sub(Duration::from_secs(1)).filter(|_| allowed)
    }

    fn expect_jobs(&self, jobs: &[SubmittedJob]) -> Expected {
        let mut in_flight = self.in_flight.clone();
        let mut answers = Vec::new();
        for job in jobs {
            if in_flight.contains(&job.id) {
                return Expected::Fault;
            }
            let admitted = self.admit(job, in_flight.len());
            if admitted.is_ok() {
                in_flight.insert(job.id);
            }
            answers.push((job.id, admitted));
        }
        Expected::Replies(Box::new(move |model, effects| {
            assert!(effects.replies.is_empty());
            let mut ready = effects.jobs.iter();
            let mut refused = effects.refused.iter();
            // Each job appears once, in order: submitted to the engine or refused.
            for (id, answer) in &answers {
                match answer {
                    Ok(key) => model.check_ready(*id, *key, ready.next()),
                    Err(error) => assert_eq!(refused.next(), Some(&(*id, *error))),
                }
            }
            assert!(ready.next().is_none() && refused.next().is_none());
            model.in_flight = in_flight;
        }))
    }

    fn check_ready(&self, id: JobId, key: Key, job: Option<&ReadyJob<Key>>) {
        let job = job.expect("a job for the engine");
        assert_eq!((job.id, job.key), (id, key));
        assert!(job.deadline > self.now && job.deadline <= self.now + MAX_BUDGET);
    }

    fn admit(&self, job: &SubmittedJob, in_flight: usize) -> Result<Key, JobError> {
        if self.draining {
            return Err(JobError::Draining);
        }
        if in_flight >= MAX_IN_FLIGHT as usize {
            return Err(JobError::Busy);
        }
        let open = self.open.get(&job.key).ok_or(JobError::NoSuchKey)?;
        let key = *open.entry.key();
        let policy = open.entry.policy().filter(|policy| policy.admits(ME));
        let policy = policy.ok_or(JobError::NoSuchKey)?;
        let raw = job.operation.kind() == OperationKind::RsaRaw && !open.imported;
        if raw || !policy.permits(&job.operation) {
            return Err(JobError::Denied);
        }
        Ok(key)
    }

    fn key_asked(&mut self, request: RequestId, selector: &KeySelector, effects: &Effects<Key>) {
        let [reply] = &effects.replies[..] else {
            panic!("one answer to a request: {effects:?}");
        };
        let room = self.has_room_for_a_key();
        match reply {
            NodeMessage::KeyOpened { request: answered, handle, info, operations, .. } => {
                assert!(room && *answered == request);
                assert!(!operations.contains(OperationKind::RsaRaw));
                let entry = self.keys.find(selector, ME).expect("a key that is not ours");
                assert_eq!(info, entry.info());
                self.opened(*handle, entry, false);
            }
            NodeMessage::KeyRefused { request: answered, .. } => {
                assert_eq!(*answered, request);
                assert!(!room || self.keys.find(selector, ME).is_none());
            }
            other => panic!("no answer to a request: {other:?}"),
        }
    }

    fn opened(&mut self, handle: KeyHandle, entry: Arc<KeyEntry<Key>>, imported: bool) {
        assert!(handle > self.last_handle, "a handle was given twice");
        self.last_handle = handle;
        self.open.insert(handle, Open { entry, imported });
    }

    fn has_room_for_a_key(&self) -> bool {
        !self.draining && self.open.len() + self.importing.len() < MAX_KEYS as usize
    }

    fn check(&self) {
        assert_eq!(self.state.greeted(), self.greeted);
        assert!(self.in_flight.len() <= MAX_IN_FLIGHT as usize);
        assert!(self.open.len() + self.importing.len() <= MAX_KEYS as usize);
        assert_eq!(self.state.wants_more(), self.in_flight.len() < MAX_IN_FLIGHT as usize);
        let idle = self.in_flight.is_empty() && self.importing.is_empty();
        assert_eq!(self.state.idle(), idle);
    }
}

type Check = Box<dyn FnOnce(&mut Model, &Effects<Key>)>;

enum Expected {
    Fault,
    Replies(Check),
}

fn info(key_type: KeyType) -> KeyInfo {
    KeyInfo { key_type, spki: key_type.to_string().into_bytes() }
}

fn entry(number: Key, key_type: KeyType) -> Arc<KeyEntry<Key>> {
    let policy = KeyPolicy::signing(["*"]);
    let name = char::from(b'a' + (number % 26) as u8).to_string();
    Arc::new(KeyEntry::new(&name, number, info(key_type), policy))
}

fn message(code: u8, steps: &mut Steps<'_>) -> Option<ClientMessage> {
    Some(match code % 9 {
        0 => ClientMessage::Hello(Hello {
            min_version: u16::from(steps.next()? % 3),
            max_version: u16::from(steps.next()? % 3),
            features: u64::from(*steps.next()?),
            agent: String::new(),
        }),
        1 => {
            let name = char::from(b'a' + (steps.next()? % 5)).to_string();
            let request = RequestId::from(*steps.next()?);
            let selector = KeySelector::Name(name);
            ClientMessage::OpenKey { request, selector }
        }
        2 => {
            let key = PrivateKey::from_pkcs8(Zeroizing::new(vec![0x30]));
            let request = RequestId::from(*steps.next()?);
            ClientMessage::ImportKey { request, key }
        }
        3 => ClientMessage::CloseKey { handle: KeyHandle::from(steps.next()? % 16) },
        4 => ClientMessage::Cancel { job: JobId::from(steps.next()? % 8) },
        5 => ClientMessage::Ping { token: u64::from(*steps.next()?) },
        6 => {
            let mut report = EdgeReport::default();
            let counter = EdgeCounter::ALL[usize::from(*steps.next()?) % EdgeCounter::ALL.len()];
            report.set(counter, u64::from(*steps.next()?));
            ClientMessage::Report(Box::new(report))
        }
        7 => ClientMessage::Describe,
        _ => ClientMessage::Submit(jobs(steps)?),
    })
}

/// Jobs with distinct ids, as the decoder guarantees.
fn jobs(steps: &mut Steps<'_>) -> Option<Vec<SubmittedJob>> {
    let mut ids = BTreeSet::new();
    let mut jobs = Vec::new();
    for _ in 0..=steps.next()? % 8 {
        let id = JobId::from(steps.next()? % 8);
        let key = KeyHandle::from(steps.next()? % 16);
        let operation = match steps.next()? % 6 {
            0 => Operation::RsaRaw,
            1 => Operation::Ed25519Sign,
            2 => Operation::RsaPkcs1Decrypt,
            3 => Operation::EcdsaSign { hash: Hash::Sha1 },
            4 => Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
            _ => Operation::EcdsaSign { hash: Hash::Sha256 },
        };
        let budget = match steps.next()? % 3 {
            0 => Duration::ZERO,
            1 => Duration::from_micros(u32::MAX.into()),
            _ => Duration::from_micros(1),
        };
        if ids.insert(id) {
            let input = Vec::new();
            jobs.push(SubmittedJob { id, key, budget, operation, input });
        }
    }
    Some(jobs)
}
