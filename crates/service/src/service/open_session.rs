// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Session`]: one client of a service, from its admission until its connection ends.
//!
//! A front end calls, in turn: [`Session::begin_turn`], [`Session::receive`] for each message, [`Session::carry_out`].
//! Completions reach its sink and pass [`Session::completed`] on their way out. The rules of the protocol are those of
//! `SessionState`, which does no I/O; this module connects them to engine, keys and metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, mem, vec};

use millrace_engine::{Completion, EngineSession, Job, Key};
use millrace_operation::{JobError, JobId, KeyError, PrivateKey};
use millrace_wire::{ClientMessage, Fault, KeySelector, NodeMessage, RequestId};
use tracing::{info, warn};

use super::connections::{ConnectionSlot, SessionEntry};
use super::{Service, ServiceInner};
use crate::account::Account;
use crate::keys::KeySet;
use crate::metrics::ConnectionRefusal;
use crate::session::{Effects, SessionState};
use crate::settings::{Settings, SettingsSnapshot};
use crate::sink::{Order, SessionSink};
use crate::tenants::Terms;

/// Name and version of this software, for descriptions.
const SOFTWARE: &str = concat!("millrace/", env!("CARGO_PKG_VERSION"));

/// The output of [`Session::carry_out`]. The front end must process all of it, in the order of the fields.
#[derive(Debug)]
pub struct Answers<'a> {
    /// Messages to send.
    pub replies: vec::Drain<'a, NodeMessage>,
    /// Jobs that ended without being submitted, to send as completions.
    pub refused: vec::Drain<'a, (JobId, JobError)>,
}

/// One client of the service. Dropping it ends the session and cancels its jobs.
pub struct Session {
    number: u64,
    entry: Arc<SessionEntry>,
    state: SessionState<Arc<Key>>,
    engine: EngineSession,
    /// The engine's sessions of parties to which the client belonged before, while their jobs may be in flight.
    former: Vec<EngineSession>,
    sink: Arc<dyn SessionSink>,
    snapshot: Arc<SettingsSnapshot>,
    keys: Arc<KeySet<Arc<Key>>>,
    effects: Effects<Arc<Key>>,
    /// Whether the client has sent a report.
    reported: bool,
    /// The last field, so that the connection counts until everything else of it is dropped.
    place: ConnectionSlot,
}

impl ConnectionSlot {
    /// Opens the session of an authenticated client.
    ///
    /// # Errors
    /// The reason of the refusal, which is already counted.
    pub fn open(
        self,
        identity: Arc<str>,
        sink: Arc<dyn SessionSink>,
    ) -> Result<Session, ConnectionRefusal> {
        match self.enter(&identity, &sink) {
            Ok((number, entry, snapshot, account)) => {
                Ok(Session::new(self, number, entry, snapshot, account, sink))
            }
            Err(reason) => {
                self.service.refuse(reason, &identity);
                Err(reason)
            }
        }
    }
}

impl Session {
    /// `snapshot` is the one that admitted the client: settings that were applied since then differ in revision, so
    /// the first [`Self::begin_turn`] applies them, admission included.
    fn new(
        place: ConnectionSlot,
        number: u64,
        entry: Arc<SessionEntry>,
        snapshot: Arc<SettingsSnapshot>,
        account: Arc<Account>,
        sink: Arc<dyn SessionSink>,
    ) -> Self {
        let inner = &*place.service.inner;
        let owner = inner.owner(&account.terms(), &entry.identity);
        let rules = Arc::clone(&snapshot.rules);
        let identity = Arc::clone(&entry.identity);
        Self {
            number,
            state: SessionState::new(rules, identity, account),
            engine: inner.engine.open_session(Arc::clone(&sink) as _, owner),
            former: Vec::new(),
            sink,
            snapshot,
            keys: inner.keyring.current(),
            effects: Effects::default(),
            reported: false,
            entry,
            place,
        }
    }

    /// Applies changed keys and settings. Call it before a batch of messages.
    pub fn begin_turn(&mut self, now: Instant) {
        let inner = &*self.place.service.inner;
        self.keys = inner.keyring.current();
        if !self.former.is_empty() && self.state.idle() {
            self.former.drain(..).for_each(|session| inner.engine.close_session(&session));
        }
        let since_start = now.saturating_duration_since(inner.started).as_millis();
        if since_start >= u128::from(inner.grants_expire_ms.load(Ordering::Acquire)) {
            self.place.service.expire_grants(now, SystemTime::now());
        }
        if inner.revision.load(Ordering::Acquire) == self.snapshot.revision {
            return;
        }
        self.snapshot = self.place.service.settings();
        self.state.set_rules(Arc::clone(&self.snapshot.rules));
        let Some(terms) = self.snapshot.terms(&self.entry.identity) else {
            self.sink.order(Order::Drain);
            return;
        };
        let account = self.state.account();
        if account.terms().party == terms.party {
            // A session that was opened during the change may still have the old terms.
            account.set_terms(Arc::clone(&terms), self.snapshot.revision, now);
            self.engine.set_share(terms.weight, terms.priority.level());
        } else {
            self.change_party(&terms, now);
        }
    }

    /// Moves the client to another tenant. Its jobs in flight end where they are.
    fn change_party(&mut self, terms: &Arc<Terms>, now: Instant) {
        let inner = &*self.place.service.inner;
        let account = inner.accounts.of(terms, now);
        {
            // Connections of a party are counted under this lock.
            let _connections = inner.lock_connections();
            account.connected();
            self.state.account().disconnected();
        }
        self.state.set_account(account);
        let session = inner
            .engine
            .open_session(Arc::clone(&self.sink) as _, inner.owner(terms, &self.entry.identity));
        let former = mem::replace(&mut self.engine, session);
        self.former.push(former);
    }

    /// Tells how long the messages of the next calls of [`Self::receive`] may have waited, because the front end did
    /// not read. A job that came late to its node has less time left than its budget says.
    pub fn set_unread_for(&mut self, time: Duration) {
        self.state.set_unread_for(time);
    }

    /// Handles a message that arrived at `now`. Its effects wait for [`Self::carry_out`].
    ///
    /// # Errors
    /// The fault to send before the front end closes the connection.
    pub fn receive(&mut self, message: ClientMessage, now: Instant) -> Result<(), Fault> {
        let metrics = self.place.service.metrics();
        metrics.messages_received.add(1);
        let greeted = self.state.greeted();
        let taken = self.state.receive(message, now, &self.keys, &mut self.effects);
        if self.state.greeted() && !greeted {
            metrics.sessions.add(1);
            let _ = self.entry.agent.set(Arc::clone(self.state.agent()));
        }
        taken
    }

    /// Number of replies that [`Self::carry_out`] will return. A front end bounds how many it holds.
    #[must_use]
    pub fn replies_waiting(&self) -> usize {
        self.effects.replies.len() + self.effects.descriptions
    }

    /// Number of jobs that wait for [`Self::carry_out`], including refused ones.
    #[must_use]
    pub fn jobs_waiting(&self) -> usize {
        self.effects.jobs.len() + self.effects.refused.len()
    }

    /// Submits the jobs collected by [`Self::receive`] to the engine in one call, and returns the answers.
    pub fn carry_out(&mut self) -> Answers<'_> {
        self.describe();
        let inner = &*self.place.service.inner;
        if !self.effects.jobs.is_empty() {
            let jobs = self.effects.jobs.drain(..).map(|ready| Job {
                id: ready.id,
                session: self.engine.clone(),
                key: ready.key,
                operation: ready.operation,
                input: ready.input,
                deadline: ready.deadline,
            });
            inner.engine.submit(jobs.collect());
        }
        for job in self.effects.cancels.drain(..) {
            let mut sessions = self.former.iter().chain([&self.engine]);
            sessions.any(|session| inner.engine.cancel(session, job));
        }
        for reply in &self.effects.replies {
            match reply {
                NodeMessage::KeyOpened { .. } => inner.metrics.keys_opened.add(1),
                NodeMessage::KeyRefused { reason, .. } => {
                    inner.metrics.keys_refused.add(*reason, 1)
                }
                NodeMessage::Welcome(_)
                | NodeMessage::Complete(_)
                | NodeMessage::Pong { .. }
                | NodeMessage::Drain
                | NodeMessage::Fault(_)
                | NodeMessage::Description { .. }
                | NodeMessage::RetryAfter { .. } => {}
            }
        }
        for (_, error) in &self.effects.refused {
            inner.metrics.jobs_refused.add(*error, 1);
        }
        inner.metrics.completions_sent.add(self.effects.refused.len());
        self.log_denial();
        self.take_report();
        self.entry.in_flight.store(self.state.in_flight(), Ordering::Relaxed);
        Answers { replies: self.effects.replies.drain(..), refused: self.effects.refused.drain(..) }
    }

    /// Keys to check with [`Service::check_import`]; answer each through [`Self::imported`].
    pub fn take_imports(&mut self) -> vec::Drain<'_, (RequestId, PrivateKey)> {
        self.effects.imports.drain(..)
    }

    fn log_denial(&mut self) {
        let denials = &self.place.service.inner.denials;
        if let Some((key, operation)) = self.effects.denied.take()
            && let Some(suppressed) = denials.pass(Instant::now())
        {
            let identity = &*self.entry.identity;
            info!(identity, %key, %operation, suppressed, "denied by the policy of the key");
        }
        self.log_missing_key();
    }

    /// Names the identity as the node sees it, and the command that admits it.
    fn log_missing_key(&mut self) {
        let missing = &self.place.service.inner.missing_keys;
        let Some(selector) = self.effects.no_key.take() else { return };
        let Some(suppressed) = missing.pass(Instant::now()) else { return };
        let identity = &*self.entry.identity;
        let asked = match &selector {
            KeySelector::Name(name) => format!("{name:?}"),
            KeySelector::SpkiSha256(hash) => hex::encode(hash),
        };
        let admit = match identity.split_once(':') {
            Some(("uid", user)) => format!("--add-uid {user}"),
            Some(("cert", name)) => format!("--add-cert {name}"),
            _ => String::new(),
        };
        // Without the name: it is the client's text, and an operator may run the command.
        let remedy = format!("millrace key policy KEY {admit}");
        info!(identity, asked, remedy, suppressed, "there is no such key for this client");
    }

    fn describe(&mut self) {
        for _ in 0..mem::take(&mut self.effects.descriptions) {
            let reports = &self.place.service.inner.reports;
            let edges = reports.of(&self.entry.identity);
            self.effects.replies.push(NodeMessage::Description {
                software: SOFTWARE.to_owned(),
                edges: Box::new(self.state.vocabulary().report(&edges)),
            });
        }
    }

    fn take_report(&mut self) {
        let Some(news) = self.effects.news.take() else {
            return;
        };
        let ServiceInner { reports, metrics, .. } = &*self.place.service.inner;
        let identity = &self.entry.identity;
        let agent = self.state.agent();
        if !mem::replace(&mut self.reported, true) {
            reports.enter(identity, agent);
        }
        reports.add(identity, agent, &news, metrics);
    }

    /// Records jobs that the engine has ended, and keeps in the list those whose completion must be sent.
    pub fn completed(&mut self, completions: &mut Vec<Completion>) {
        let account = Arc::clone(self.state.account());
        let now = Instant::now();
        completions.retain(|completion| {
            if let Some(wait) = completion.retry_after {
                let effects = &mut self.effects;
                self.state.busy(completion.id, wait, now, effects);
            }
            let of_client = self.state.completed(completion.id);
            if of_client {
                account.count(completion);
            }
            of_client
        });
        let metrics = self.place.service.metrics();
        metrics.completions_sent.add(completions.len());
        self.entry.in_flight.store(self.state.in_flight(), Ordering::Relaxed);
    }

    /// Handles the result of [`Service::check_import`].
    pub fn imported(&mut self, request: RequestId, key: Result<Arc<Key>, KeyError>) {
        let key = key.map(|key| {
            let info = key.info().clone();
            (key, info)
        });
        self.state.imported(request, key, &mut self.effects);
    }

    /// Refuses new jobs and keys from now on. [`Self::carry_out`] returns the message that announces it.
    pub fn drain(&mut self) {
        self.state.drain(&mut self.effects);
    }

    /// Whether the client has sent its hello.
    #[must_use]
    pub fn greeted(&self) -> bool {
        self.state.greeted()
    }

    /// Number of imports that are not answered yet. A front end bounds how many may wait: see [`crate::imports`].
    #[must_use]
    pub fn importing(&self) -> usize {
        self.state.importing()
    }

    /// Whether no job and no import of the client is in progress.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.state.idle()
    }

    /// Whether more may be read: a client with the maximum of jobs in flight has to wait.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.state.wants_more()
    }

    /// The client's identity.
    #[must_use]
    pub fn identity(&self) -> &Arc<str> {
        &self.entry.identity
    }

    /// The settings of this session until the next [`Self::begin_turn`].
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.snapshot.settings
    }

    /// The service to which this session belongs.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.place.service
    }

    /// Counts and logs a fault that closes the connection.
    pub fn count_fault(&self, fault: Fault, reason: &str) {
        let inner = &*self.place.service.inner;
        inner.metrics.faults.add(fault, 1);
        if let Some(suppressed) = inner.faults.pass(Instant::now()) {
            let identity = &*self.entry.identity;
            let fault = fault.name();
            warn!(identity, fault, reason, suppressed, "connection closed for a fault");
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let inner = &*self.place.service.inner;
        for session in self.former.iter().chain([&self.engine]) {
            inner.engine.close_session(session);
        }
        if self.reported {
            inner.reports.leave(&self.entry.identity, self.state.agent());
        }
        let mut connections = inner.lock_connections();
        connections.sessions.remove(&self.number);
        self.state.account().disconnected();
        if let Some(count) = connections.of_identity.get_mut(&self.entry.identity) {
            *count -= 1;
            if *count == 0 {
                connections.of_identity.remove(&self.entry.identity);
            }
        }
        inner.metrics.connections_open.set(connections.sessions.len());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.number).field(&self.state).finish()
    }
}
