// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The rules of one session: messages in, effects out. No I/O, no clock, no engine.
//!
//! ```text
//!  ClientMessage ──receive──►  SessionState  ──► Effects: replies, jobs, refusals, imports, cancels
//!  engine's completion ──completed──►   │
//!  imported key ──imported──►           └── handles, jobs in flight, bounds, policy
//! ```
//!
//! It makes every decision about a client's requests. `K` is the engine's key; tests use a number. Front ends
//! use it through [`crate::Session`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_engine::{
    JobError, KeyError, KeyInfo, KeyPolicy, Operation, OperationKind, OperationSet, PrivateKey,
};
use millrace_wire::{
    ClientMessage, EdgeReport, FEATURE_DESCRIPTION, FEATURE_REPORTS, Fault, Hello, JobId,
    KeyHandle, KeyRefusal, KeySelector, NodeMessage, RequestId, SubmittedJob, Vocabulary, Welcome,
    version,
};

use crate::bucket::Bucket;
use crate::keys::{KeyEntry, KeySet};
use crate::quota::Quota;
use crate::settings::Settings;

/// The settings of one session.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Name of the node, for the welcome.
    pub node: String,
    /// Whether the client may import keys.
    pub allow_import: bool,
    /// Bound on the jobs in flight.
    pub max_in_flight: u32,
    /// Bound on the open keys.
    pub max_keys: u32,
    /// Bound on the budget of a job.
    pub max_budget: Duration,
}

impl Rules {
    pub(crate) fn of(node: &str, settings: &Settings) -> Self {
        let limits = &settings.limits;
        Self {
            node: node.to_owned(),
            allow_import: settings.allow_import,
            max_in_flight: limits.in_flight,
            max_keys: limits.keys,
            max_budget: limits.max_budget,
        }
    }
}

/// The effects of messages, to perform in the order of the fields.
#[derive(Debug)]
pub struct Effects<K> {
    /// Messages to send, in this order.
    pub replies: Vec<NodeMessage>,
    /// Jobs to submit to the engine.
    pub jobs: Vec<ReadyJob<K>>,
    /// Jobs that end without having been in flight.
    pub refused: Vec<(JobId, JobError)>,
    /// Keys to load; each is answered by [`SessionState::imported`].
    pub imports: Vec<(RequestId, PrivateKey)>,
    /// Jobs to cancel, after the submission of `jobs`.
    pub cancels: Vec<JobId>,
    /// The last job that a policy denied, for the log.
    pub denied: Option<(Arc<str>, OperationKind)>,
    /// The increase of the client's counters since its last report, if it has reported.
    pub news: Option<EdgeReport>,
    /// Descriptions of the node to append to `replies`.
    pub descriptions: usize,
}

impl<K> Default for Effects<K> {
    fn default() -> Self {
        Self {
            replies: Vec::new(),
            jobs: Vec::new(),
            refused: Vec::new(),
            imports: Vec::new(),
            cancels: Vec::new(),
            denied: None,
            news: None,
            descriptions: 0,
        }
    }
}

/// Reports, and requests for descriptions, accepted beyond one per second: a client that was suspended sends
/// several at once.
const REPORTS_AHEAD: u64 = 60;

/// A job that has passed every check except the engine's.
#[derive(Debug)]
pub struct ReadyJob<K> {
    /// The client's id of the job.
    pub id: JobId,
    /// The key.
    pub key: K,
    /// The operation.
    pub operation: Operation,
    /// Its input.
    pub input: Vec<u8>,
    /// After this time the client no longer waits for the job.
    pub deadline: Instant,
}

/// The state of one connection.
pub struct SessionState<K> {
    rules: Arc<Rules>,
    identity: Arc<str>,
    greeted: bool,
    draining: bool,
    /// Handles are never reused: a job that is under way while its key is closed must not reach another key.
    next_handle: KeyHandle,
    importing: u32,
    handles: HashMap<KeyHandle, OpenKey<K>, IntHash>,
    /// The value tells whether the job was cancelled. The engine's search for a waiting job costs time, so a
    /// client may request it once per job.
    in_flight: HashMap<JobId, bool, IntHash>,
    agent: Arc<str>,
    /// The features in force; none before the hello.
    features: u64,
    /// The client's last report.
    reported: EdgeReport,
    /// Reports, and requests for descriptions, that are accepted; none before the hello.
    allowed: Option<Bucket>,
    /// Types and operations that the negotiated features allow in messages.
    vocabulary: Vocabulary,
    quota: Arc<Quota>,
}

struct OpenKey<K> {
    entry: Arc<KeyEntry<K>>,
    /// The revision of the entry when `policy` was read.
    revision: u64,
    /// `None` if the key is revoked or no longer admits this identity.
    policy: Option<Arc<KeyPolicy>>,
    /// Raw RSA is allowed only for keys that the client imported itself, whatever a policy lists.
    imported: bool,
}

impl<K: Clone> SessionState<K> {
    /// A client that has not sent anything yet. Its jobs count against `quota`.
    pub fn new(rules: Arc<Rules>, identity: Arc<str>, quota: Arc<Quota>) -> Self {
        Self {
            rules,
            identity,
            greeted: false,
            draining: false,
            next_handle: 1,
            importing: 0,
            handles: HashMap::default(),
            in_flight: HashMap::default(),
            agent: Arc::from(""),
            features: 0,
            reported: EdgeReport::default(),
            allowed: None,
            vocabulary: Vocabulary::new(0),
            quota,
        }
    }

    /// Handles a message that arrived at `now`.
    ///
    /// # Errors
    /// The fault to send before the connection is closed.
    pub fn receive(
        &mut self,
        message: ClientMessage,
        now: Instant,
        keys: &KeySet<K>,
        effects: &mut Effects<K>,
    ) -> Result<(), Fault> {
        match message {
            ClientMessage::Hello(hello) => return self.greet(&hello, now, effects),
            _ if !self.greeted => return Err(Fault::Protocol),
            ClientMessage::OpenKey { request, selector } => {
                self.open_key(request, &selector, keys, effects);
            }
            ClientMessage::ImportKey { request, key } => self.import_key(request, key, effects),
            ClientMessage::CloseKey { handle } => {
                self.handles.remove(&handle);
            }
            ClientMessage::Submit(jobs) => {
                for job in jobs {
                    self.submit(job, now, effects)?;
                }
            }
            ClientMessage::Cancel { job } => {
                // Otherwise the job was cancelled before, or its completion is already under way.
                if let Some(cancelled @ false) = self.in_flight.get_mut(&job) {
                    *cancelled = true;
                    effects.cancels.push(job);
                }
            }
            ClientMessage::Ping { token } => effects.replies.push(NodeMessage::Pong { token }),
            ClientMessage::Report(report) => return self.report(&report, now, effects),
            ClientMessage::Describe => {
                self.take_allowance(FEATURE_DESCRIPTION, now)?;
                effects.descriptions += 1;
            }
        }
        Ok(())
    }

    /// Handles the engine's answer to an import.
    pub fn imported(
        &mut self,
        request: RequestId,
        key: Result<(K, KeyInfo), KeyError>,
        effects: &mut Effects<K>,
    ) {
        self.importing = self.importing.saturating_sub(1);
        match key {
            Ok((key, info)) => {
                let policy = KeyPolicy::session_owned();
                let entry = Arc::new(KeyEntry::new("(imported)", key, info, policy));
                self.open(request, entry, true, effects);
            }
            Err(error) => refuse(request, KeyRefusal::Key(error), effects),
        }
    }

    /// Records that the engine has ended a job. Returns whether its completion must be sent.
    pub fn completed(&mut self, job: JobId) -> bool {
        self.in_flight.remove(&job).is_some()
    }

    /// Refuses new jobs and keys from now on, and announces it once.
    pub fn drain(&mut self, effects: &mut Effects<K>) {
        if !self.draining {
            self.draining = true;
            if self.greeted {
                effects.replies.push(NodeMessage::Drain);
            }
        }
    }

    /// Whether the client has sent its hello.
    pub fn greeted(&self) -> bool {
        self.greeted
    }

    /// The client's software, as named in its hello.
    pub fn agent(&self) -> &Arc<str> {
        &self.agent
    }

    /// Replaces the rules of this connection. Jobs in flight and open keys stay, even above a lower bound.
    pub(crate) fn set_rules(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
    }

    /// Number of jobs of this client that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Number of imports that are not answered yet.
    pub fn importing(&self) -> usize {
        usize_of(self.importing)
    }

    /// Whether no job and no import of this client is in progress.
    pub fn idle(&self) -> bool {
        self.in_flight.is_empty() && self.importing == 0
    }

    /// Whether more may be read: a client with the maximum of jobs in flight has to wait.
    pub fn wants_more(&self) -> bool {
        self.in_flight.len() < usize_of(self.rules.max_in_flight)
    }

    fn greet(
        &mut self,
        hello: &Hello,
        now: Instant,
        effects: &mut Effects<K>,
    ) -> Result<(), Fault> {
        if self.greeted {
            return Err(Fault::Protocol);
        }
        let (version, features) = version::negotiate(hello).map_err(|error| error.fault())?;
        self.greeted = true;
        self.agent = Arc::from(hello.agent.as_str());
        self.vocabulary = Vocabulary::new(features);
        self.features = features;
        self.allowed = Some(Bucket::new(1, REPORTS_AHEAD, now));
        effects.replies.push(NodeMessage::Welcome(Welcome {
            version,
            features,
            node: self.rules.node.clone(),
            max_in_flight: self.rules.max_in_flight,
            max_keys: self.rules.max_keys,
        }));
        if self.draining {
            effects.replies.push(NodeMessage::Drain);
        }
        Ok(())
    }

    /// Handles a report. A client reports totals since its connection was opened; the increase counts.
    fn report(
        &mut self,
        report: &EdgeReport,
        now: Instant,
        effects: &mut Effects<K>,
    ) -> Result<(), Fault> {
        self.take_allowance(FEATURE_REPORTS, now)?;
        let news = report.since(&self.reported);
        self.reported.merge(&news);
        effects.news.get_or_insert_default().merge(&news);
        Ok(())
    }

    /// Counts a report or a request for a description.
    ///
    /// # Errors
    /// The feature is not in force, or there were too many.
    fn take_allowance(&mut self, feature: u64, now: Instant) -> Result<(), Fault> {
        let in_force = self.features & feature != 0;
        let allowed = self.allowed.as_mut().is_some_and(|left| left.take(1, now));
        if in_force && allowed {
            Ok(())
        } else {
            Err(Fault::Protocol)
        }
    }

    fn open_key(
        &mut self,
        request: RequestId,
        selector: &KeySelector,
        keys: &KeySet<K>,
        effects: &mut Effects<K>,
    ) {
        if let Some(reason) = self.key_refusal() {
            return refuse(request, reason, effects);
        }
        match keys.find(selector, &self.identity) {
            Some(entry) => self.open(request, entry, false, effects),
            None => refuse(request, KeyRefusal::NoSuchKey, effects),
        }
    }

    fn import_key(&mut self, request: RequestId, key: PrivateKey, effects: &mut Effects<K>) {
        if !self.rules.allow_import {
            return refuse(request, KeyRefusal::ImportDisabled, effects);
        }
        if let Some(reason) = self.key_refusal() {
            return refuse(request, reason, effects);
        }
        self.importing += 1;
        effects.imports.push((request, key));
    }

    /// The reason for which this client cannot open any further key, if there is one.
    fn key_refusal(&self) -> Option<KeyRefusal> {
        let open = self.handles.len() + usize_of(self.importing);
        if self.draining {
            Some(KeyRefusal::Draining)
        } else if open >= usize_of(self.rules.max_keys) || self.next_handle == KeyHandle::MAX {
            Some(KeyRefusal::TooManyKeys)
        } else {
            None
        }
    }

    fn open(
        &mut self,
        request: RequestId,
        entry: Arc<KeyEntry<K>>,
        imported: bool,
        effects: &mut Effects<K>,
    ) {
        let revision = entry.revision();
        // Checked again: the policy may have changed since the key was found.
        let policy = entry.policy().filter(|p| p.admits(&self.identity));
        let Some(policy) = policy else {
            return refuse(request, KeyRefusal::NoSuchKey, effects);
        };
        let info = entry.info().clone();
        if !self.vocabulary.has_key(info.key_type.kind()) {
            // The client has not negotiated this key type and could not decode the answer.
            let reason = if imported {
                KeyRefusal::Key(KeyError::NotOffered)
            } else {
                KeyRefusal::NoSuchKey
            };
            return refuse(request, reason, effects);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        let usable = |kind: &OperationKind| {
            kind.fits(info.key_type) && (imported || *kind != OperationKind::RsaRaw)
        };
        let operations: OperationSet = policy.operations.iter().filter(usable).collect();
        let operations = self.vocabulary.operations(operations);
        let hashes = self.vocabulary.hashes(policy.hashes);
        self.handles.insert(
            handle,
            OpenKey {
                entry,
                revision,
                policy: Some(policy),
                imported,
            },
        );
        effects.replies.push(NodeMessage::KeyOpened {
            request,
            handle,
            info,
            operations,
            hashes,
        });
    }

    fn submit(
        &mut self,
        job: SubmittedJob,
        now: Instant,
        effects: &mut Effects<K>,
    ) -> Result<(), Fault> {
        let SubmittedJob {
            id,
            key,
            budget,
            operation,
            input,
        } = job;
        if self.in_flight.contains_key(&id) {
            // A completion could not tell which of the two jobs it belongs to.
            return Err(Fault::Protocol);
        }
        match self.admit(key, &operation, now, effects) {
            Ok(key) => {
                self.in_flight.insert(id, false);
                let max = self.rules.max_budget;
                let budget = if budget.is_zero() {
                    max
                } else {
                    budget.min(max)
                };
                let deadline = now + budget;
                effects.jobs.push(ReadyJob {
                    id,
                    key,
                    operation,
                    input,
                    deadline,
                });
            }
            Err(error) => effects.refused.push((id, error)),
        }
        Ok(())
    }

    /// The key, if this client may do this operation with it now.
    fn admit(
        &mut self,
        handle: KeyHandle,
        operation: &Operation,
        now: Instant,
        effects: &mut Effects<K>,
    ) -> Result<K, JobError> {
        if self.draining {
            return Err(JobError::Draining);
        }
        if !self.wants_more() {
            return Err(JobError::Busy);
        }
        let Entry::Occupied(mut open) = self.handles.entry(handle) else {
            return Err(JobError::NoSuchKey);
        };
        let OpenKey {
            entry,
            policy,
            imported,
            ..
        } = open.get_mut().refreshed(&self.identity);
        let Some(policy) = policy else {
            return Err(JobError::NoSuchKey);
        };
        if !self.vocabulary.has_operation(operation) {
            return Err(JobError::NotOffered);
        }
        let raw = operation.kind() == OperationKind::RsaRaw && !*imported;
        // Policies in the store list only operations that fit the key's type, so the reason is the key, not
        // the policy.
        if !raw && !operation.kind().fits(entry.info().key_type) {
            return Err(JobError::NotOffered);
        }
        if raw || !policy.permits(operation) {
            effects.denied = Some((Arc::clone(entry.name()), operation.kind()));
            return Err(JobError::Denied);
        }
        // The last check, so that only jobs that would be done count against the quota.
        if !self.quota.take(now) {
            return Err(JobError::OverQuota);
        }
        entry.used(now);
        Ok(entry.key().clone())
    }
}

impl<K> OpenKey<K> {
    /// Reads the policy again if it has changed since.
    fn refreshed(&mut self, identity: &str) -> &Self {
        let revision = self.entry.revision();
        if revision != self.revision {
            self.revision = revision;
            self.policy = self.entry.policy().filter(|policy| policy.admits(identity));
        }
        self
    }
}

impl<K> fmt::Debug for SessionState<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionState")
            .field("identity", &self.identity)
            .field("keys", &self.handles.len())
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

fn refuse<K>(request: RequestId, reason: KeyRefusal, effects: &mut Effects<K>) {
    effects
        .replies
        .push(NodeMessage::KeyRefused { request, reason });
}

fn usize_of(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

type IntHash = BuildHasherDefault<IntHasher>;

/// Hashes one integer with one multiplication, because every job is hashed here twice. A client that chooses
/// colliding ids slows down only its own table, which holds at most `max_in_flight` entries.
#[derive(Debug, Default)]
struct IntHasher(u64);

impl Hasher for IntHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // Uses both halves of the product, because the table uses the lowest and the highest bits.
        let product = u128::from(self.0 ^ value) * u128::from(MULTIPLIER);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the halves are 64 bits each"
        )]
        let (low, high) = (product as u64, (product >> 64) as u64);
        self.0 = low ^ high;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// 2^64 divided by the golden ratio, odd (Knuth, TAOCP volume 3, section 6.4).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests;
