// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Service`]: the state that all front ends of a process share, and [`Session`], one client of it.
//!
//! ```text
//!  front end                         Service
//!   accept ────────────────────────► admit ──► Place        counts against the connections in all
//!   authenticate                       │
//!   Place::open(identity, sink) ───────┴────► Session       counts against those of the identity
//!   Session::begin_turn                                     notices changed keys and settings
//!   Session::receive ×n                                     decides; collects jobs
//!   Session::carry_out ──────────────────────► engine       one submission; returns the answers to send
//!   sink ◄── completions, orders ── engine, drain, close
//! ```
//!
//! A front end provides bytes and a clock. Policy, caps, quotas, statistics, settings and draining are in
//! this type, so a second front end in the same process shares all of them.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use std::{mem, vec};

use millrace_engine::{
    Completion, CompletionSink, Engine, Job, JobError, Key, KeyError, Owner, PrivateKey,
    Session as EngineSession,
};
use millrace_wire::{ClientMessage, Fault, JobId, NodeMessage, RequestId};
use tracing::{info, warn};

use crate::client_reports::ClientReports;
use crate::keys::{KeyReport, KeySet, Keyring, Reloaded};
use crate::log_limit::RateLimit;
use crate::metrics::{self, Metrics, Moment, Refusal};
use crate::outbox::Order;
use crate::quota::{Quota, Quotas};
use crate::session::{Effects, Rules, SessionState};
use crate::settings::{Applied, LogControl, Problems, Settings, Snapshot};
use crate::status::{SessionRow, Status};
use crate::store::{KeyStore, StoreError};

/// Name and version of this software, for descriptions.
const SOFTWARE: &str = concat!("millrace/", env!("CARGO_PKG_VERSION"));

/// Receives the completions of one session's jobs, and the service's orders. The front end implements it.
pub trait SessionSink: CompletionSink {
    /// Receives an order of the service. Called from any thread; must not block.
    fn order(&self, order: Order);
}

/// The service behind all front ends of a process. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    started: Instant,
    engine: Engine,
    keyring: Keyring,
    settings: RwLock<Arc<Snapshot>>,
    /// The revision of `settings`, for comparison without the lock.
    revision: AtomicU64,
    /// Locked during a change of settings, so that only one runs at a time.
    applying: Mutex<()>,
    log: OnceLock<Box<dyn LogControl>>,
    quotas: Quotas,
    /// Hashes identities into the engine's owners. Each process uses another random key, so that no client
    /// can choose a name that collides with another's and shares its turns.
    owners: RandomState,
    metrics: Metrics,
    reports: ClientReports,
    draining: AtomicBool,
    book: Mutex<Book>,
    denials: RateLimit,
    faults: RateLimit,
    refusals: RateLimit,
}

/// Connections and sessions. Bound: [`Limits::connections`](crate::settings::Limits::connections).
#[derive(Default)]
struct Book {
    places: usize,
    next: u64,
    sessions: BTreeMap<u64, Arc<Entry>>,
    of_identity: HashMap<Arc<str>, usize>,
}

/// A row of the list of sessions.
struct Entry {
    identity: Arc<str>,
    agent: OnceLock<Arc<str>>,
    since: SystemTime,
    in_flight: AtomicUsize,
    sink: Arc<dyn SessionSink>,
}

impl Service {
    /// A service named `name` over an engine and a key store. Loads the keys; blocks on the disk and on key
    /// checks.
    ///
    /// # Errors
    /// If the key store cannot be read, or if it has keys and another key-encryption key sealed them: a node
    /// that serves none of its keys must not look ready. A single key file that cannot be used is logged and
    /// skipped.
    pub fn new(
        name: impl Into<String>,
        settings: Settings,
        engine: Engine,
        store: KeyStore,
    ) -> Result<Self, StoreError> {
        let name = name.into();
        let rules = Arc::new(Rules::of(&name, &settings));
        let snapshot = Snapshot {
            revision: 1,
            settings,
            rules,
        };
        let inner = Inner {
            name,
            started: Instant::now(),
            keyring: Keyring::new(Arc::new(store), engine.clone()),
            engine,
            settings: RwLock::new(Arc::new(snapshot)),
            revision: AtomicU64::new(1),
            applying: Mutex::new(()),
            log: OnceLock::new(),
            quotas: Quotas::default(),
            owners: RandomState::new(),
            metrics: Metrics::default(),
            reports: ClientReports::default(),
            draining: AtomicBool::new(false),
            book: Mutex::default(),
            denials: RateLimit::default(),
            faults: RateLimit::default(),
            refusals: RateLimit::default(),
        };
        let service = Self {
            inner: Arc::new(inner),
        };
        service.reload_keys()?;
        let keyring = &service.inner.keyring;
        if keyring.current().len() == 0 && keyring.store().kek().is_some() {
            keyring.store().check_kek()?;
        }
        Ok(service)
    }

    /// The node's name, as clients see it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The counters, also for events that only a front end sees.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> Arc<Snapshot> {
        Arc::clone(
            &self
                .inner
                .settings
                .read()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Gives [`Self::apply`] control over the log. Only the first call has an effect.
    pub fn control_log(&self, control: Box<dyn LogControl>) {
        let _ = self.inner.log.set(control);
    }

    /// Checks settings without putting them in force.
    ///
    /// # Errors
    /// Every problem of the settings.
    pub fn check(&self, settings: &Settings) -> Result<(), Problems> {
        let mut problems = settings.problems();
        if let Some(log) = self.inner.log.get() {
            let wrong = log.check(&settings.log_filter).err();
            problems.extend(wrong.map(|reason| format!("log.filter: {reason}")));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Problems(problems))
        }
    }

    /// Puts `settings` in force, also for open sessions: all of them, or none if any is invalid.
    ///
    /// Sessions of an identity that is no longer admitted are drained. Lower limits on connections refuse new
    /// ones and close none.
    ///
    /// The audit log names `actor` as the origin of the change.
    ///
    /// # Errors
    /// Every problem of the settings; the previous ones stay in force.
    pub fn apply(&self, settings: Settings, actor: &str) -> Result<Applied, Problems> {
        let inner = &*self.inner;
        let _one_at_a_time = inner
            .applying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.check(&settings)
            .inspect_err(|_| inner.metrics.reloads_failed.add(1))?;
        let before = self.settings();
        let changes = settings.changes_since(&before.settings);
        if changes.is_empty() {
            return Ok(Applied {
                revision: before.revision,
                changes,
            });
        }
        let rules = Arc::new(Rules::of(&inner.name, &settings));
        let revision = before.revision + 1;
        let snapshot = Arc::new(Snapshot {
            revision,
            settings,
            rules,
        });
        *inner
            .settings
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        inner.revision.store(revision, Ordering::Release);
        inner.quotas.apply(&snapshot.settings, Instant::now());
        if let Some(log) = inner.log.get() {
            log.set(&snapshot.settings.log_filter);
        }
        for entry in inner.book().sessions.values() {
            if !snapshot.settings.admits(&entry.identity) {
                entry.sink.order(Order::Drain);
            }
        }
        inner.metrics.reloads.add(1);
        info!(
            revision,
            actor,
            changes = changes.join("; "),
            "settings changed"
        );
        let detail = serde_json::json!({ "revision": revision, "changes": changes });
        if let Err(error) = inner
            .keyring
            .store()
            .audit(Some(actor), "settings", None, &detail)
        {
            warn!(%error, "a change of the settings is not in the audit log");
        }
        Ok(Applied { revision, changes })
    }

    /// Updates the keys from the store. Blocks on the disk and on key checks.
    ///
    /// # Errors
    /// If the store cannot be read; the previous keys stay in force.
    pub fn reload_keys(&self) -> Result<Reloaded, StoreError> {
        let Inner {
            metrics, keyring, ..
        } = &*self.inner;
        let reloaded = keyring
            .reload()
            .inspect_err(|_| metrics.reloads_failed.add(1))?;
        if reloaded.changed + reloaded.removed > 0 {
            metrics.reloads.add(1);
        }
        metrics.keys_loaded.set(keyring.current().len());
        metrics.keys_broken.set(reloaded.broken);
        Ok(reloaded)
    }

    /// Checks a key imported by a client; pass the result to [`Session::imported`]. Takes milliseconds of a
    /// core: the front end bounds how many run at once.
    ///
    /// # Errors
    /// The problem of the key.
    pub fn check_import(&self, key: &PrivateKey) -> Result<Arc<Key>, KeyError> {
        self.inner.engine.load_key(key)
    }

    /// Counts a connection whose client has not authenticated yet. `None`: the bound is reached.
    #[must_use]
    pub fn admit(&self) -> Option<Place> {
        let most = self.settings().settings.limits.connections;
        let mut book = self.inner.book();
        (book.places < most).then(|| {
            book.places += 1;
            Place {
                service: self.clone(),
            }
        })
    }

    /// Bound on the handshakes in progress that cost the node more than the client: a quarter of all connections, so
    /// that clients that connect and stay silent do not block clients that need no handshake.
    #[must_use]
    pub fn most_handshakes(&self) -> usize {
        (self.settings().settings.limits.connections / 4).max(1)
    }

    /// Admits and opens in one step, for a front end that knows a client's identity at once.
    ///
    /// # Errors
    /// The reason of the refusal, which is already counted.
    pub fn open(&self, identity: Arc<str>, sink: Arc<dyn SessionSink>) -> Result<Session, Refusal> {
        let Some(place) = self.admit() else {
            self.refuse(Refusal::TooMany, &identity);
            return Err(Refusal::TooMany);
        };
        place.open(identity, sink)
    }

    /// Counts and logs a refused connection.
    pub fn refuse(&self, reason: Refusal, detail: &dyn fmt::Display) {
        self.inner.metrics.connections_refused.add(reason, 1);
        if let Some(suppressed) = self.inner.refusals.pass(Instant::now()) {
            warn!(reason = reason.name(), %detail, suppressed, "connection refused");
        }
    }

    /// Makes every front end refuse new jobs and keys from now on; jobs in flight end.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
        self.order(Order::Drain);
    }

    /// Tells every front end to end its sessions at once.
    pub fn close(&self) {
        self.order(Order::Close);
    }

    /// Whether [`Self::drain`] was called.
    #[must_use]
    pub fn draining(&self) -> bool {
        self.inner.draining.load(Ordering::Acquire)
    }

    /// Open connections, including those that have not authenticated.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.inner.book().places
    }

    /// The open sessions, oldest first.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionRow> {
        let row = |(number, entry): (&u64, &Arc<Entry>)| SessionRow {
            session: *number,
            identity: entry.identity.to_string(),
            agent: entry
                .agent
                .get()
                .map(ToString::to_string)
                .unwrap_or_default(),
            since: entry
                .since
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| age.as_secs()),
            in_flight: entry.in_flight.load(Ordering::Relaxed),
        };
        self.inner.book().sessions.iter().map(row).collect()
    }

    /// The keys with the versions in service, and the files that cannot be used.
    #[must_use]
    pub fn keys(&self) -> KeyReport {
        self.inner.keyring.report(&self.inner.name)
    }

    /// The current state of the service: the answer of `/status`.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &*self.inner;
        Status::of(
            &inner.name,
            &inner.engine,
            &inner.metrics,
            &inner.reports,
            self.draining(),
            inner.started.elapsed(),
            self.settings().revision,
        )
    }

    /// All counters in the text format of Prometheus: the answer of `/metrics`.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let inner = &*self.inner;
        let moment = Moment {
            engine: &inner.engine.stats(),
            backends: &inner.engine.backends(),
            draining: self.draining(),
            uptime: inner.started.elapsed(),
        };
        metrics::render(&inner.metrics, &moment)
    }

    fn order(&self, order: Order) {
        for entry in self.inner.book().sessions.values() {
            entry.sink.order(order);
        }
    }
}

impl Inner {
    /// The owner of an identity's jobs in the engine. Its sessions at all front ends take turns as one owner,
    /// and share one part of the queue.
    fn owner(&self, identity: &str, settings: &Settings) -> Owner {
        Owner::new(self.owners.hash_one(identity), settings.weight(identity))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("name", &self.inner.name)
            .finish_non_exhaustive()
    }
}

/// A counted connection. Dropping it frees its place.
#[derive(Debug)]
pub struct Place {
    service: Service,
}

impl Place {
    /// Opens the session of an authenticated client.
    ///
    /// # Errors
    /// The reason of the refusal, which is already counted.
    pub fn open(self, identity: Arc<str>, sink: Arc<dyn SessionSink>) -> Result<Session, Refusal> {
        match self.enter(&identity, &sink) {
            Ok((number, entry, snapshot)) => Ok(Session::new(self, number, entry, snapshot, sink)),
            Err(reason) => {
                self.service.refuse(reason, &identity);
                Err(reason)
            }
        }
    }

    fn enter(
        &self,
        identity: &Arc<str>,
        sink: &Arc<dyn SessionSink>,
    ) -> Result<(u64, Arc<Entry>, Arc<Snapshot>), Refusal> {
        let snapshot = self.service.settings();
        if !snapshot.settings.admits(identity) {
            return Err(Refusal::NotAdmitted);
        }
        let inner = &*self.service.inner;
        let mut book = inner.book();
        let open = book.sessions.len();
        let held = book.of_identity.get(identity).copied().unwrap_or(0);
        if !snapshot.settings.has_room(identity, held, open) {
            return Err(Refusal::TooManyOfIdentity);
        }
        let entry = Arc::new(Entry {
            identity: Arc::clone(identity),
            agent: OnceLock::new(),
            since: SystemTime::now(),
            in_flight: AtomicUsize::new(0),
            sink: Arc::clone(sink),
        });
        book.next += 1;
        let number = book.next;
        book.sessions.insert(number, Arc::clone(&entry));
        book.of_identity.insert(Arc::clone(identity), held + 1);
        inner.metrics.connections_open.set(book.sessions.len());
        // Checked under the lock that `drain` holds while it sends its order to the listed sessions.
        if self.service.draining() {
            sink.order(Order::Drain);
        }
        Ok((number, entry, snapshot))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.service.inner.book().places -= 1;
    }
}

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
    entry: Arc<Entry>,
    state: SessionState<Arc<Key>>,
    engine: EngineSession,
    quota: Arc<Quota>,
    snapshot: Arc<Snapshot>,
    keys: Arc<KeySet<Arc<Key>>>,
    effects: Effects<Arc<Key>>,
    /// Whether the client has sent a report.
    reported: bool,
    /// The last field, so that the connection counts until everything else of it is dropped.
    place: Place,
}

impl Session {
    /// `snapshot` is the one that admitted the client: settings that were applied since then differ in revision, so
    /// the first [`Self::begin_turn`] applies them, admission included.
    fn new(
        place: Place,
        number: u64,
        entry: Arc<Entry>,
        snapshot: Arc<Snapshot>,
        sink: Arc<dyn SessionSink>,
    ) -> Self {
        let inner = &*place.service.inner;
        let identity = &entry.identity;
        let quota = inner
            .quotas
            .of(identity, &snapshot.settings, Instant::now());
        Self {
            number,
            state: SessionState::new(
                Arc::clone(&snapshot.rules),
                Arc::clone(identity),
                Arc::clone(&quota),
            ),
            engine: inner
                .engine
                .open_session(sink, inner.owner(identity, &snapshot.settings)),
            quota,
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
        if inner.revision.load(Ordering::Acquire) == self.snapshot.revision {
            return;
        }
        self.snapshot = self.place.service.settings();
        let (settings, identity) = (&self.snapshot.settings, &self.entry.identity);
        self.state.set_rules(Arc::clone(&self.snapshot.rules));
        // A session that was opened during the change may still have the old quota or admission.
        self.quota.set_rate(settings.quota(identity), now);
        self.engine.set_weight(settings.weight(identity));
        if !settings.admits(identity) {
            self.entry.sink.order(Order::Drain);
        }
    }

    /// Handles a message that arrived at `now`. Its effects wait for [`Self::carry_out`].
    ///
    /// # Errors
    /// The fault to send before the front end closes the connection.
    pub fn receive(&mut self, message: ClientMessage, now: Instant) -> Result<(), Fault> {
        let metrics = self.place.service.metrics();
        metrics.messages_received.add(1);
        let greeted = self.state.greeted();
        let taken = self
            .state
            .receive(message, now, &self.keys, &mut self.effects);
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
            inner.engine.cancel(&self.engine, job);
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
                | NodeMessage::Description { .. } => {}
            }
        }
        for (_, error) in &self.effects.refused {
            inner.metrics.jobs_refused.add(*error, 1);
        }
        inner
            .metrics
            .completions_sent
            .add(self.effects.refused.len());
        self.log_denial();
        self.take_report();
        self.entry
            .in_flight
            .store(self.state.in_flight(), Ordering::Relaxed);
        Answers {
            replies: self.effects.replies.drain(..),
            refused: self.effects.refused.drain(..),
        }
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
    }

    fn describe(&mut self) {
        for _ in 0..mem::take(&mut self.effects.descriptions) {
            let reports = &self.place.service.inner.reports;
            self.effects.replies.push(NodeMessage::Description {
                software: SOFTWARE.to_owned(),
                edges: reports.of(&self.entry.identity),
            });
        }
    }

    fn take_report(&mut self) {
        let Some(news) = self.effects.news.take() else {
            return;
        };
        let Inner {
            reports, metrics, ..
        } = &*self.place.service.inner;
        let (identity, agent) = (&self.entry.identity, self.state.agent());
        if !mem::replace(&mut self.reported, true) {
            reports.enter(identity, agent);
        }
        reports.add(identity, agent, &news, metrics);
    }

    /// Records jobs that the engine has ended, and keeps in the list those whose completion must be sent.
    pub fn completed(&mut self, completions: &mut Vec<Completion>) {
        completions.retain(|completion| self.state.completed(completion.id));
        let metrics = self.place.service.metrics();
        metrics.completions_sent.add(completions.len());
        self.entry
            .in_flight
            .store(self.state.in_flight(), Ordering::Relaxed);
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
            let (identity, fault) = (&*self.entry.identity, fault.name());
            warn!(
                identity,
                fault, reason, suppressed, "connection closed for a fault"
            );
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let inner = &*self.place.service.inner;
        inner.engine.close_session(&self.engine);
        if self.reported {
            inner
                .reports
                .leave(&self.entry.identity, self.state.agent());
        }
        let mut book = inner.book();
        book.sessions.remove(&self.number);
        if let Some(count) = book.of_identity.get_mut(&self.entry.identity) {
            *count -= 1;
            if *count == 0 {
                book.of_identity.remove(&self.entry.identity);
            }
        }
        inner.metrics.connections_open.set(book.sessions.len());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session")
            .field(&self.number)
            .field(&self.state)
            .finish()
    }
}
