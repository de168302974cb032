// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Service`]: the state that all front ends of a process share, and [`Session`], one client of it.
//!
//! ```text
//!  front end                         Service
//!   accept ──────────────────────► admit ──► ConnectionSlot  counts against the connections in all
//!   authenticate                       │
//!   ConnectionSlot::open(identity, sink) ┴─► Session         counts against those of the identity
//!   Session::begin_turn                                     notices changed keys and settings
//!   Session::receive ×n                                     decides; collects jobs
//!   Session::carry_out ──────────────────────► engine       one submission; returns the answers to send
//!   sink ◄── completions, orders ── engine, drain, close
//! ```
//!
//! A front end provides bytes and a clock. Policy, caps, quotas, statistics, settings and draining are in
//! this type, so a second front end in the same process shares all of them.

mod connections;
mod open_session;
mod pool_keys;

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use millrace_engine::{Engine, Key, Owner};
use millrace_operation::sync::lock;
use millrace_operation::{KeyError, PrivateKey};
use tracing::{info, warn};

pub use self::connections::ConnectionSlot;
use self::connections::ConnectionTable;
pub use self::open_session::{Answers, Session};
pub use self::pool_keys::InstallError;
use crate::account::Accounts;
use crate::client_reports::ClientReports;
use crate::enforcement::{GrantAnswer, GrantBook, GrantRow, OnExpiry};
use crate::grant::{GrantError, GrantKeys, SignedGrant};
use crate::keys::{KeyReport, Keyring, Reloaded};
use crate::log_limit::RateLimit;
use crate::metrics::{self, ConnectionRefusal, Metrics, Moment};
use crate::settings::{Applied, LogControl, Problems, Settings, SettingsSnapshot};
use crate::sink::{Order, SessionSink};
use crate::status::{SessionRow, Status, StatusSource};
use crate::store::{KeyStore, StoreError};
use crate::tenants::{Directory, IdentityPattern, Terms};

/// The certificate that a node shows its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCertificate {
    /// Common name of its subject.
    pub name: String,
    /// Its public half (`SubjectPublicKeyInfo`, DER).
    pub spki: Vec<u8>,
    /// End of its validity, in seconds since 1970.
    pub expires: i64,
}

/// The service behind all front ends of a process. Cheap to clone.
///
/// A front end without sockets opens a key and gets a completion:
///
/// ```
/// # use std::sync::Arc;
/// # use std::sync::mpsc::{Sender, channel};
/// # use std::time::{Duration, Instant};
/// # use millrace_engine::{Completion, CompletionSink, Engine, EngineConfig};
/// # use millrace_operation::{Hash, Operation};
/// # use millrace_service::Service;
/// # use millrace_service::policy::KeyPolicy;
/// # use millrace_service::settings::Settings;
/// # use millrace_service::sink::{Order, SessionSink};
/// # use millrace_service::store::{IfExists, KekSource, KeyStore};
/// # use millrace_testkit::{fake::FakeBackend, keys};
/// # use millrace_wire::{ClientMessage, Hello, KeySelector, NodeMessage, SubmittedJob};
/// struct Client(Sender<Completion>);
///
/// impl CompletionSink for Client {
///     fn complete(&self, ended: &mut Vec<Completion>) {
///         ended.drain(..).for_each(|one| self.0.send(one).unwrap());
///     }
/// }
///
/// impl SessionSink for Client {
///     fn order(&self, _: Order) {}
/// }
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let kek = KekSource::File { path: folder.path().join("kek"), create: true };
/// # let store = KeyStore::open(folder.path().join("keys"), &kek).unwrap();
/// # let backend = Arc::new(FakeBackend::default());
/// # let engine = Engine::start(EngineConfig::default(), vec![backend]).unwrap();
/// # let key = keys::rsa_2048().private_key();
/// # let info = engine.load_key(&key).unwrap().info().clone();
/// store.import("www", &key, info, KeyPolicy::signing(["*"]), IfExists::Fail).unwrap();
/// let service = Service::new("node", Settings::default(), engine, store).unwrap();
/// let (ended, completions) = channel();
/// let mut session = service.open("uid:1000".into(), Arc::new(Client(ended))).unwrap();
///
/// let now = Instant::now();
/// session.begin_turn(now);
/// # let hello = Hello { min_version: 1, max_version: 1, features: 0, agent: "doc".to_owned() };
/// session.receive(ClientMessage::Hello(hello), now).unwrap();
/// let selector = KeySelector::Name("www".to_owned());
/// session.receive(ClientMessage::OpenKey { request: 1, selector }, now).unwrap();
/// let Some(NodeMessage::KeyOpened { handle, .. }) = session.carry_out().replies.last() else {
///     panic!("the policy admits every identity");
/// };
/// let operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
/// let (budget, input) = (Duration::ZERO, vec![0; 32]);
/// let job = SubmittedJob { id: 7, key: handle, budget, operation, input };
/// session.receive(ClientMessage::Submit(vec![job]), now).unwrap();
/// session.carry_out();
/// let mut ended = vec![completions.recv().unwrap()];
/// session.completed(&mut ended);
/// assert!(ended[0].id == 7 && ended[0].result.is_ok());
/// ```
#[derive(Clone)]
pub struct Service {
    inner: Arc<ServiceInner>,
}

struct ServiceInner {
    name: String,
    started: Instant,
    engine: Engine,
    keyring: Keyring,
    settings: RwLock<Arc<SettingsSnapshot>>,
    /// The revision of `settings`, for comparison without the lock.
    revision: AtomicU64,
    /// Locked during a change of settings or grants, so that only one runs at a time. Holds the grants of a node
    /// with a manager.
    grants: Mutex<Option<GrantBook>>,
    /// Time at which the next grant expires, in milliseconds since `started`; `u64::MAX` for never.
    grants_expire_ms: AtomicU64,
    log: OnceLock<Box<dyn LogControl>>,
    accounts: Accounts,
    /// Hashes parties into the engine's owners. Each process uses another random key, so that no client
    /// can choose a name that collides with another's and shares its turns.
    owners: RandomState,
    metrics: Metrics,
    reports: ClientReports,
    draining: AtomicBool,
    certificate: Mutex<Option<NodeCertificate>>,
    connections: Mutex<ConnectionTable>,
    denials: RateLimit,
    /// Keys that clients asked for in vain.
    missing_keys: RateLimit,
    faults: RateLimit,
    refusals: RateLimit,
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
        let directory = Directory::of_settings(&name, &settings.tenant);
        let snapshot = SettingsSnapshot::of(1, &name, settings, directory);
        let inner = ServiceInner {
            name,
            started: Instant::now(),
            keyring: Keyring::new(Arc::new(store), engine.clone()),
            engine,
            settings: RwLock::new(Arc::new(snapshot)),
            revision: AtomicU64::new(1),
            grants: Mutex::default(),
            grants_expire_ms: AtomicU64::new(u64::MAX),
            log: OnceLock::new(),
            accounts: Accounts::default(),
            owners: RandomState::new(),
            metrics: Metrics::default(),
            reports: ClientReports::default(),
            draining: AtomicBool::new(false),
            certificate: Mutex::default(),
            connections: Mutex::default(),
            denials: RateLimit::default(),
            missing_keys: RateLimit::default(),
            faults: RateLimit::default(),
            refusals: RateLimit::default(),
        };
        let service = Self { inner: Arc::new(inner) };
        let snapshot = service.settings();
        let accounts = &service.inner.accounts;
        accounts.apply(&snapshot.directory, &snapshot.settings, snapshot.revision, Instant::now());
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
    pub fn settings(&self) -> Arc<SettingsSnapshot> {
        Arc::clone(&self.inner.settings.read().unwrap_or_else(PoisonError::into_inner))
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
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
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
        let grants = inner.lock_grants();
        self.check(&settings).inspect_err(|_| inner.metrics.reloads_failed.add(1))?;
        let before = self.settings();
        let changes = settings.changes_since(&before.settings);
        if changes.is_empty() {
            return Ok(Applied { revision: before.revision, changes });
        }
        let revision = before.revision + 1;
        let directory = match &*grants {
            Some(book) => book.directory(),
            None => Directory::of_settings(&inner.name, &settings.tenant),
        };
        let snapshot = SettingsSnapshot::of(revision, &inner.name, settings, directory);
        if let Some(log) = inner.log.get() {
            log.set(&snapshot.settings.log_filter);
        }
        self.put_in_force(Arc::new(snapshot), Instant::now());
        inner.metrics.reloads.add(1);
        info!(revision, actor, changes = changes.join("; "), "settings changed");
        let detail = serde_json::json!({ "revision": revision, "changes": changes });
        if let Err(error) = inner.keyring.store().audit(Some(actor), "settings", None, &detail) {
            warn!(%error, "a change of the settings is not in the audit log");
        }
        Ok(Applied { revision, changes })
    }

    /// Replaces the snapshot, under the lock of `grants`.
    fn put_in_force(&self, snapshot: Arc<SettingsSnapshot>, now: Instant) {
        let inner = &*self.inner;
        *inner.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        inner.revision.store(snapshot.revision, Ordering::Release);
        inner.accounts.apply(&snapshot.directory, &snapshot.settings, snapshot.revision, now);
        for entry in inner.lock_connections().sessions.values() {
            if snapshot.terms(&entry.identity).is_none() {
                entry.sink.order(Order::Drain);
            }
        }
    }

    /// Puts the node under a manager whose grants these keys sign: from now on it serves the identities of its grants
    /// alone, and none before the first. Tenants in the settings have no effect. A further call replaces the keys.
    pub fn manage(&self, keys: GrantKeys, on_expiry: OnExpiry, now: Instant) {
        let mut grants = self.inner.lock_grants();
        match &mut *grants {
            Some(book) => book.trust(keys, on_expiry),
            None => *grants = Some(GrantBook::new(&self.inner.name, keys, on_expiry)),
        }
        self.grants_changed(&grants, now);
    }

    /// Puts the grants of a manager's answer in force, also for open sessions: all of them, or none if any is not
    /// accepted. A tenant that has none any more is no longer served: its sessions are drained.
    ///
    /// # Errors
    /// The first grant that is not accepted; what was in force stays. [`GrantError::NoManager`] before
    /// [`Self::manage`].
    pub fn apply_grants(
        &self,
        signed: &[SignedGrant],
        answer: GrantAnswer,
    ) -> Result<(), GrantError> {
        self.apply_grants_beside(signed, &BTreeSet::new(), answer)
    }

    /// Puts grants in force like [`Self::apply_grants`], at a node of a pool whose other nodes serve further tenants:
    /// `elsewhere` has those of their identities that a pattern in the grants covers. They are refused here, where they
    /// would be taken for those of another tenant.
    ///
    /// # Errors
    /// As [`Self::apply_grants`].
    pub fn apply_grants_beside(
        &self,
        signed: &[SignedGrant],
        elsewhere: &BTreeSet<IdentityPattern>,
        answer: GrantAnswer,
    ) -> Result<(), GrantError> {
        let mut grants = self.inner.lock_grants();
        let book = grants.as_mut().ok_or(GrantError::NoManager)?;
        book.apply(signed, answer)
            .inspect_err(|error| warn!(%error, "grants refused: the former ones stay in force"))?;
        book.exclude(elsewhere);
        book.expire(answer.now, answer.wall);
        self.grants_changed(&grants, answer.now);
        Ok(())
    }

    /// Ends grants that have expired by either clock. A node calls it twice a second; a session with traffic notices
    /// the monotonic end of a grant by itself.
    pub fn expire_grants(&self, now: Instant, wall: SystemTime) {
        let mut grants = self.inner.lock_grants();
        if let Some(book) = &mut *grants {
            book.expire(now, wall);
            self.grants_changed(&grants, now);
        }
    }

    /// The grants that the node holds; `None` without a manager.
    #[must_use]
    pub fn grants(&self) -> Option<Vec<GrantRow>> {
        self.inner.lock_grants().as_ref().map(GrantBook::rows)
    }

    /// Puts the tenants of the grants in force, if they differ from those that are.
    fn grants_changed(&self, grants: &Option<GrantBook>, now: Instant) {
        let Some(book) = grants else { return };
        let inner = &*self.inner;
        let next = book.next_expiry().map_or(u64::MAX, |next| {
            let ms = next.saturating_duration_since(inner.started).as_millis();
            u64::try_from(ms).unwrap_or(u64::MAX)
        });
        inner.grants_expire_ms.store(next, Ordering::Release);
        let before = self.settings();
        let directory = book.directory();
        if *before.directory == directory {
            return;
        }
        let tenants = directory.tenants().count();
        let revision = before.revision + 1;
        let settings = before.settings.clone();
        let snapshot = SettingsSnapshot::of(revision, &inner.name, settings, directory);
        self.put_in_force(Arc::new(snapshot), now);
        info!(revision, tenants, "grants changed");
    }

    /// The name of the party that an identity belongs to: `tenant:NAME`, or the identity. Front ends take turns by
    /// party.
    #[must_use]
    pub fn party(&self, identity: &Arc<str>) -> Arc<str> {
        let terms = self.settings().terms(identity);
        terms.map_or_else(|| Arc::clone(identity), |terms| Arc::clone(&terms.party))
    }

    /// Updates the keys from the store. Blocks on the disk and on key checks.
    ///
    /// # Errors
    /// If the store cannot be read; the previous keys stay in force.
    pub fn reload_keys(&self) -> Result<Reloaded, StoreError> {
        self.note_reload(self.inner.keyring.reload())
    }

    /// Applies changes of the store like [`Self::reload_keys`], without a look at each file where the directory has not
    /// changed. Call it twice a second.
    ///
    /// # Errors
    /// As [`Self::reload_keys`].
    pub fn watch_keys(&self, now: Instant) -> Result<(), StoreError> {
        match self.inner.keyring.watch(now) {
            Ok(None) => Ok(()),
            Ok(Some(reloaded)) => self.note_reload(Ok(reloaded)).map(drop),
            Err(error) => self.note_reload(Err(error)).map(drop),
        }
    }

    fn note_reload(&self, reloaded: Result<Reloaded, StoreError>) -> Result<Reloaded, StoreError> {
        let ServiceInner { metrics, keyring, .. } = &*self.inner;
        let reloaded = reloaded.inspect_err(|_| metrics.reloads_failed.add(1))?;
        if reloaded.changed + reloaded.removed > 0 {
            metrics.reloads.add(1);
        }
        metrics.keys_loaded.set(keyring.current().len());
        metrics.keys_broken.set(reloaded.broken);
        Ok(reloaded)
    }

    /// Checks a key imported by a client; pass the result to [`Session::imported`]. Takes milliseconds of a
    /// core: the front end bounds how many run at once.
    pub fn check_import(&self, key: &PrivateKey) -> Result<Arc<Key>, KeyError> {
        self.inner.engine.load_key(key)
    }

    /// Counts a connection whose client has not authenticated yet. `None`: sessions have all places. Connections in a
    /// handshake take none of them; a front end bounds those by [`Self::max_handshakes`].
    #[must_use]
    pub fn admit(&self) -> Option<ConnectionSlot> {
        let most = self.settings().settings.limits.connections;
        let mut connections = self.inner.lock_connections();
        (connections.sessions.len() < most).then(|| {
            connections.places += 1;
            ConnectionSlot { service: self.clone() }
        })
    }

    /// Bound on the handshakes in progress, which cost the node more than the client: a quarter of the places of
    /// sessions, and beside them, so that clients that connect and stay silent keep no session out.
    #[must_use]
    pub fn max_handshakes(&self) -> usize {
        (self.settings().settings.limits.connections / 4).max(1)
    }

    /// Admits and opens in one step, for a front end that knows a client's identity at once.
    ///
    /// # Errors
    /// The reason of the refusal, which is already counted.
    pub fn open(
        &self,
        identity: Arc<str>,
        sink: Arc<dyn SessionSink>,
    ) -> Result<Session, ConnectionRefusal> {
        let Some(place) = self.admit() else {
            self.refuse(ConnectionRefusal::TooMany, &identity);
            return Err(ConnectionRefusal::TooMany);
        };
        place.open(identity, sink)
    }

    /// Counts and logs a refused connection.
    pub fn refuse(&self, reason: ConnectionRefusal, detail: &dyn fmt::Display) {
        self.inner.metrics.connections_refused.add(reason, 1);
        if let Some(suppressed) = self.inner.refusals.pass(Instant::now()) {
            let remedy = reason.remedy();
            warn!(reason = reason.name(), %detail, remedy, suppressed, "connection refused");
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
        self.inner.lock_connections().places
    }

    /// The open sessions, oldest first.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionRow> {
        let connections = self.inner.lock_connections();
        let rows = connections.sessions.iter().map(|(number, entry)| SessionRow {
            session: *number,
            identity: entry.identity.to_string(),
            agent: entry.agent.get().map(ToString::to_string).unwrap_or_default(),
            since: entry.since.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
            in_flight: entry.in_flight.load(Ordering::Relaxed),
        });
        rows.collect()
    }

    /// The keys with the versions in service, and the files that cannot be used.
    #[must_use]
    pub fn keys(&self) -> KeyReport {
        self.inner.keyring.report(&self.inner.name, None)
    }

    /// The versions of one key, as [`Self::keys`] has them.
    #[must_use]
    pub fn keys_of(&self, name: &str) -> KeyReport {
        self.inner.keyring.report(&self.inner.name, Some(name))
    }

    /// Names the certificate that the node shows its clients. `None` without a TCP listener.
    pub fn set_certificate(&self, certificate: Option<NodeCertificate>) {
        *lock(&self.inner.certificate) = certificate;
    }

    /// The certificate that the node shows its clients.
    pub(crate) fn certificate(&self) -> Option<NodeCertificate> {
        lock(&self.inner.certificate).clone()
    }

    /// The current state of the service: the answer of `/status`.
    #[must_use]
    pub fn status(&self) -> Status {
        let inner = &*self.inner;
        Status::of(StatusSource {
            node: &inner.name,
            engine: &inner.engine,
            metrics: &inner.metrics,
            reports: &inner.reports,
            draining: self.draining(),
            uptime: inner.started.elapsed(),
            settings_revision: self.settings().revision,
            tenants: &inner.accounts.of_tenants(),
            grants: self.grants(),
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// All counters in the text format of Prometheus: the answer of `/metrics`.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let inner = &*self.inner;
        let moment = Moment {
            engine: &inner.engine.stats(),
            backends: &inner.engine.backends(),
            tenants: &inner.accounts.of_tenants(),
            draining: self.draining(),
            uptime: inner.started.elapsed(),
        };
        metrics::render(&inner.metrics, &moment)
    }

    fn order(&self, order: Order) {
        for entry in self.inner.lock_connections().sessions.values() {
            entry.sink.order(order);
        }
    }
}

impl ServiceInner {
    /// The owner of a party's jobs in the engine. Its sessions at all front ends take turns as one owner, and share
    /// one part of the queue.
    fn owner(&self, terms: &Terms, identity: &str) -> Owner {
        Owner::new(self.owners.hash_one(&*terms.party), terms.weight)
            .with_member(self.owners.hash_one(identity))
            .at_level(terms.priority.level())
    }

    fn lock_grants(&self) -> MutexGuard<'_, Option<GrantBook>> {
        lock(&self.grants)
    }

    fn lock_connections(&self) -> MutexGuard<'_, ConnectionTable> {
        lock(&self.connections)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("name", &self.inner.name).finish_non_exhaustive()
    }
}
