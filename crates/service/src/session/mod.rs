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
//! A session makes every decision about a client's requests. `K` is the engine's key; tests use a number. Front ends
//! use it through [`crate::Session`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_operation::{
    JobError, JobId, KeyError, KeyInfo, Operation, OperationKind, PrivateKey,
};
use millrace_wire::{
    ClientMessage, EdgeReport, FEATURE_DESCRIPTION, FEATURE_REPORTS, Fault, Hello, KeyHandle,
    KeyRefusal, KeySelector, NodeMessage, RequestId, SubmittedJob, Vocabulary, Welcome,
    negotiate_version,
};

use crate::account::Account;
use crate::bucket::Bucket;
use crate::keys::{KeyEntry, KeySet};
use crate::policy::{KeyPolicy, admits};
use crate::settings::Rules;

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
    /// The last key that there is not for this client, for the log.
    pub no_key: Option<KeySelector>,
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
            no_key: None,
            news: None,
            descriptions: 0,
        }
    }
}

/// Reports, and requests for descriptions, accepted beyond one per second: a client that was suspended sends
/// several at once.
const REPORTS_AHEAD: u64 = 60;

/// Shortest pause that a client gets: a round trip takes longer.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Longest pause that a client gets: a quota that is raised takes effect within a second.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A job that has passed every check except the engine's.
#[derive(Debug)]
pub struct ReadyJob<K> {
    /// The client's id of the job.
    pub id: JobId,
    /// The front end's key, behind the handle that the client named.
    pub key: K,
    /// Operation with the key.
    pub operation: Operation,
    /// Digest, message, ciphertext or public value of the peer, as the operation defines.
    pub input: Vec<u8>,
    /// Time after which the client no longer waits for the job.
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
    in_flight: HashMap<JobId, InFlight, IntHash>,
    /// Bytes of the inputs of the jobs in flight.
    bytes_in_flight: u64,
    /// Open keys that the client imported.
    imported_keys: usize,
    agent: Arc<str>,
    /// The features in force, as bits: 0 before the hello.
    features: u64,
    /// The client's last report.
    reported: EdgeReport,
    /// Reports, and requests for descriptions, that are accepted. `None` before the hello.
    allowed: Option<Bucket>,
    /// Types and operations that the negotiated features allow in messages.
    vocabulary: Vocabulary,
    /// The account of the client's party.
    account: Arc<Account>,
    /// The name by which key policies know the client's tenant, if it has one.
    tenant: Option<Arc<str>>,
    /// Longest time for which the messages that come now may have waited unread.
    unread_for: Duration,
}

/// State of a job that has not ended.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// Whether the client has cancelled the job. The engine's search for it costs time, so it is done once per job.
    cancelled: bool,
    /// Length of the input.
    bytes: u32,
    /// Handle of the job's key.
    key: KeyHandle,
}

/// Where a key comes from. Raw RSA is allowed only for a key of the client's own, whatever a policy lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyOrigin {
    Store,
    /// The client imported it.
    Client,
}

struct OpenKey<K> {
    entry: Arc<KeyEntry<K>>,
    /// The revision of the entry when `policy` was read.
    revision: u64,
    /// `None` if the key is revoked or no longer admits this identity.
    policy: Option<Arc<KeyPolicy>>,
    origin: KeyOrigin,
    /// Until then the client knows that its jobs with this key are refused.
    paused_until: Option<Instant>,
}

impl<K: Clone> SessionState<K> {
    /// A client that has not sent anything yet. Its jobs and keys count in `account`.
    pub fn new(rules: Arc<Rules>, identity: Arc<str>, account: Arc<Account>) -> Self {
        Self {
            rules,
            identity,
            greeted: false,
            draining: false,
            next_handle: 1,
            importing: 0,
            handles: HashMap::default(),
            in_flight: HashMap::default(),
            bytes_in_flight: 0,
            imported_keys: 0,
            agent: Arc::from(""),
            features: 0,
            reported: EdgeReport::default(),
            allowed: None,
            vocabulary: Vocabulary::new(0),
            tenant: tenant_of(&account),
            account,
            unread_for: Duration::ZERO,
        }
    }

    /// Sets the longest time for which messages from now on have waited unread. It counts against the budgets of jobs.
    pub(crate) fn set_unread_for(&mut self, time: Duration) {
        self.unread_for = time;
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
                let closed = self.handles.remove(&handle);
                if closed.is_some_and(|open| open.origin == KeyOrigin::Client) {
                    self.imported_keys -= 1;
                    self.account.release_keys(1);
                }
            }
            ClientMessage::Submit(jobs) => {
                for job in jobs {
                    self.submit(job, now, effects)?;
                }
            }
            ClientMessage::Cancel { job } => {
                // Otherwise the job was cancelled before, or its completion is already under way.
                if let Some(of_job) = self.in_flight.get_mut(&job)
                    && !of_job.cancelled
                {
                    of_job.cancelled = true;
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
            Ok(_) if !self.account.hold_key() => {
                refuse(request, KeyRefusal::TooManyKeys, effects);
            }
            Ok((key, info)) => {
                self.imported_keys += 1;
                let policy = KeyPolicy::session_owned();
                let entry = Arc::new(KeyEntry::new("(imported)", key, info, policy));
                self.open(request, entry, KeyOrigin::Client, effects);
            }
            Err(error) => refuse(request, KeyRefusal::Key(error), effects),
        }
    }

    /// Records that the engine has ended a job. Returns whether its completion must be sent.
    pub fn completed(&mut self, job: JobId) -> bool {
        let ended = self.in_flight.remove(&job);
        if let Some(InFlight { bytes, .. }) = ended {
            let bytes = u64::from(bytes);
            self.bytes_in_flight -= bytes;
            self.account.release(1, bytes);
        }
        ended.is_some()
    }

    /// The engine refuses this job, which [`Self::completed`] follows, and expects to take such a job after `wait`.
    pub fn busy(&mut self, job: JobId, wait: Duration, now: Instant, effects: &mut Effects<K>) {
        if let Some(of_job) = self.in_flight.get(&job) {
            self.pause(of_job.key, wait, now, effects);
        }
    }

    /// Tells the client when jobs with this key are expected to be taken again, once until then.
    fn pause(&mut self, key: KeyHandle, wait: Duration, now: Instant, effects: &mut Effects<K>) {
        let Some(open) = self.handles.get_mut(&key) else {
            return;
        };
        let told = open.paused_until.is_some_and(|until| now < until);
        if !told && self.vocabulary.has_retry_after() {
            let wait = wait.clamp(MIN_PAUSE, MAX_PAUSE);
            open.paused_until = Some(now + wait);
            effects.replies.push(NodeMessage::RetryAfter { handle: key, wait });
        }
    }

    /// The account of the client's party.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Moves the client to the account of another party, with the jobs and keys that it holds. Open keys follow the
    /// policy of the new tenant from the next job on.
    pub(crate) fn set_account(&mut self, account: Arc<Account>) {
        let (jobs, bytes, keys) = (self.in_flight.len(), self.bytes_in_flight, self.imported_keys);
        account.adopt(jobs, bytes, keys);
        self.account.release(jobs, bytes);
        self.account.release_keys(keys);
        self.tenant = tenant_of(&account);
        self.account = account;
        for open in self.handles.values_mut() {
            open.read_policy(&self.identity, self.tenant.as_deref());
        }
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

    /// The codes that may be sent to this client.
    pub(crate) fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
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
        let (version, features) = negotiate_version(hello).map_err(|error| error.fault())?;
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
        if self.vocabulary.report(report) != *report {
            return Err(Fault::Protocol);
        }
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
        if in_force && allowed { Ok(()) } else { Err(Fault::Protocol) }
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
        match keys.find_for(selector, &self.identity, self.tenant.as_deref()) {
            Some(entry) => self.open(request, entry, KeyOrigin::Store, effects),
            None => {
                // The log does not tell whether there is such a key for others, so that its time does not, either.
                effects.no_key = Some(selector.clone());
                refuse(request, KeyRefusal::NoSuchKey, effects);
            }
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
        origin: KeyOrigin,
        effects: &mut Effects<K>,
    ) {
        let revision = entry.revision();
        // Checked again: the policy may have changed since the key was found.
        let tenant = self.tenant.as_deref();
        let policy = entry.policy().filter(|policy| admits(policy, &self.identity, tenant));
        let Some(policy) = policy else {
            return self.refuse_opening(request, origin, KeyRefusal::NoSuchKey, effects);
        };
        let info = entry.info().clone();
        if !self.vocabulary.has_key(info.key_type.kind()) {
            // The client has not negotiated this key type and could not decode the answer.
            let reason = match origin {
                KeyOrigin::Store => KeyRefusal::NoSuchKey,
                KeyOrigin::Client => KeyRefusal::Key(KeyError::NotOffered),
            };
            return self.refuse_opening(request, origin, reason, effects);
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        let usable = policy.operations.iter().filter(|kind| {
            kind.fits(info.key_type)
                && (origin == KeyOrigin::Client || *kind != OperationKind::RsaRaw)
        });
        let operations = self.vocabulary.operations(usable.collect());
        let hashes = self.vocabulary.hashes(policy.hashes);
        self.handles.insert(
            handle,
            OpenKey { entry, revision, policy: Some(policy), origin, paused_until: None },
        );
        effects.replies.push(NodeMessage::KeyOpened { request, handle, info, operations, hashes });
    }

    /// Refuses a key; an imported one was counted already.
    fn refuse_opening(
        &mut self,
        request: RequestId,
        origin: KeyOrigin,
        reason: KeyRefusal,
        effects: &mut Effects<K>,
    ) {
        if origin == KeyOrigin::Client {
            self.imported_keys -= 1;
            self.account.release_keys(1);
        }
        refuse(request, reason, effects);
    }

    fn submit(
        &mut self,
        job: SubmittedJob,
        now: Instant,
        effects: &mut Effects<K>,
    ) -> Result<(), Fault> {
        let SubmittedJob { id, key, budget, operation, input } = job;
        if self.in_flight.contains_key(&id) {
            // A completion could not tell which of the two jobs it belongs to.
            return Err(Fault::Protocol);
        }
        let handle = key;
        match self.admit(handle, &operation, input.len(), now, effects) {
            Ok(key) => {
                // Inputs are bounded by the frame.
                let bytes = u32::try_from(input.len()).unwrap_or(u32::MAX);
                let cancelled = false;
                self.in_flight.insert(id, InFlight { cancelled, bytes, key: handle });
                self.bytes_in_flight += u64::from(bytes);
                let max = self.rules.max_budget;
                let budget = if budget.is_zero() { max } else { budget.min(max) };
                let deadline = now + budget.saturating_sub(self.unread_for);
                effects.jobs.push(ReadyJob { id, key, operation, input, deadline });
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
        bytes: usize,
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
        let OpenKey { entry, policy, origin, .. } =
            open.get_mut().refreshed(&self.identity, self.tenant.as_deref());
        let Some(policy) = policy else {
            return Err(JobError::NoSuchKey);
        };
        if !self.vocabulary.has_operation(operation) {
            return Err(JobError::NotOffered);
        }
        let raw = operation.kind() == OperationKind::RsaRaw && *origin == KeyOrigin::Store;
        // Policies in the store list only operations that fit the key's type, so the reason is the key, not
        // the policy.
        if !raw && !operation.kind().fits(entry.info().key_type) {
            return Err(JobError::NotOffered);
        }
        if raw || !policy.permits(operation) {
            effects.denied = Some((Arc::clone(entry.name()), operation.kind()));
            return Err(JobError::Denied);
        }
        let key_type = entry.info().key_type;
        let refused = match self.account.admit(operation.kind(), key_type, bytes, now) {
            Ok(()) => {
                entry.used(now);
                return Ok(entry.key().clone());
            }
            Err(refused) => refused,
        };
        self.pause(handle, refused.retry_after, now, effects);
        Err(refused.error)
    }
}

impl<K> OpenKey<K> {
    /// Reads the policy again if it has changed since.
    fn refreshed(&mut self, identity: &str, tenant: Option<&str>) -> &Self {
        if self.entry.revision() != self.revision {
            self.read_policy(identity, tenant);
        }
        self
    }

    fn read_policy(&mut self, identity: &str, tenant: Option<&str>) {
        self.revision = self.entry.revision();
        let policy = self.entry.policy();
        self.policy = policy.filter(|policy| admits(policy, identity, tenant));
    }
}

/// The name by which key policies know the tenant of an account.
fn tenant_of(account: &Account) -> Option<Arc<str>> {
    let terms = account.terms();
    terms.tenant().map(|_| Arc::clone(&terms.party))
}

impl<K> Drop for SessionState<K> {
    fn drop(&mut self) {
        self.account.release(self.in_flight.len(), self.bytes_in_flight);
        self.account.release_keys(self.imported_keys);
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
    effects.replies.push(NodeMessage::KeyRefused { request, reason });
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
        #[expect(clippy::cast_possible_truncation, reason = "the halves are 64 bits each")]
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
