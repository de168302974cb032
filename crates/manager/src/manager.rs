// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A manager at work: a [`Core`], a store, the key that signs grants, and two threads.
//!
//! The thread `mr-follow` feeds the changes of the store to the core; `mr-plan` closes the leases of silent nodes and
//! divides quotas. All calls block for one or two round trips to the store; a caller with tasks gives them a thread.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use millrace_operation::sync::lock;
use millrace_service::grant::{GrantKeys, GrantSigner};

use crate::model::audit::{AuditEntry, AuditError, AuditHead, AuditVerifier};
use crate::model::command::{Command, Refusal};
use crate::model::core::{Actor, Core, FAST_HEARTBEAT, LeaseTimes};
use crate::model::holder::{GrantSet, Registered, SealedKey};
use crate::model::keys::PoolKey;
use crate::model::name::{NodeName, PrincipalName};
use crate::model::node::{Heartbeat, Registration};
use crate::model::view::{AUDIT_PREFIX, PREFIX, View, audit_key};
use crate::schema::{self, SchemaError};
use crate::seals::{Findings, Seals};
use crate::store::{Store, StoreError, Transaction};
use crate::vault::Vault;

/// Tries of a transaction that others overtake: with three managers one is overtaken twice at most on average.
const TRIES: u32 = 16;

/// Longest wait for the manager's own commit to come back as a change.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Wait of the follower for a change, and of the planner for something to do.
const POLL_WAIT: Duration = Duration::from_millis(250);

/// Private keys in one answer: with five versions of 8 KiB each, 56 KiB in base64, they are 3.5 MiB. The node asks for
/// the next ones at once.
const KEYS_AT_ONCE: usize = 64;

/// Wait after a store that failed: short beside the life of a lease, and no flood of requests and log lines.
const RETRY: Duration = Duration::from_millis(500);

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagerError {
    /// The pool's rules do not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed. If it could not be reached, the change may have been made.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A grant cannot be signed, a bound of the grant's form is exceeded.
    #[error("a grant cannot be signed: {0}")]
    Grant(String),
    /// The audit log is broken.
    #[error(transparent)]
    Audit(#[from] AuditError),
}

impl From<SchemaError> for ManagerError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::Newer(refusal) => Self::Refused(refusal),
            SchemaError::Store(error) => Self::Store(error),
        }
    }
}

/// A manager of a pool.
#[derive(Clone)]
pub struct Manager(Arc<Shared>);

struct Shared {
    store: Arc<dyn Store>,
    core: Mutex<Core>,
    /// Notified after every change of the view.
    moved: Condvar,
    signer: GrantSigner,
    keys: GrantKeys,
    /// `None`: a manager that keeps no private keys.
    vault: Option<Arc<Vault>>,
    /// Proofs of the records; `None` without a vault.
    seals: Option<Seals>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("store", &self.0.store)
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

impl Manager {
    /// Opens the pool in `store`, brings its records to this version's form, and starts the threads. `other_keys` are
    /// those of the pool's other managers, and former ones that still are in force.
    ///
    /// # Errors
    /// The store fails, or a newer version has written it.
    pub fn start(
        store: Arc<dyn Store>,
        signer: GrantSigner,
        other_keys: &GrantKeys,
        times: LeaseTimes,
    ) -> Result<Self, ManagerError> {
        Self::start_with_vault(store, signer, other_keys, times, None)
    }

    /// Starts a manager like [`Self::start`], with the pool's private keys.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_vault(
        store: Arc<dyn Store>,
        signer: GrantSigner,
        other_keys: &GrantKeys,
        times: LeaseTimes,
        vault: Option<Vault>,
    ) -> Result<Self, ManagerError> {
        schema::prepare(&*store)?;
        let vault = vault.map(Arc::new);
        let seals = vault.as_ref().map(|vault| Seals::new(Arc::clone(vault), Arc::clone(&store)));
        if let (Some(seals), Some(vault)) = (&seals, &vault) {
            seals.start(vault.accepts_records(), wall_ms())?;
        }
        let snapshot = store.read(PREFIX)?;
        let keys = [signer.key()].into_iter().chain(other_keys.as_slice().iter().copied());
        let keys =
            GrantKeys::new(keys).map_err(|error| StoreError::Configuration(error.to_string()))?;
        let manager = Self(Arc::new(Shared {
            store,
            core: Mutex::new(Core::new(times, &snapshot, Instant::now())),
            moved: Condvar::new(),
            signer,
            keys,
            vault,
            seals,
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        }));
        for (name, run) in [
            ("mr-follow", Shared::follow as fn(&Shared)),
            ("mr-plan", Shared::work),
            ("mr-seals", Shared::check_seals),
        ] {
            let shared = Arc::clone(&manager.0);
            let thread =
                std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared));
            let thread = thread
                .map_err(|error| StoreError::Configuration(format!("thread {name}: {error}")))?;
            lock(&manager.0.threads).push(thread);
        }
        Ok(manager)
    }

    /// Ends the threads. Calls that are under way end by themselves.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::Release);
        self.0.moved.notify_all();
        let threads = std::mem::take(&mut *lock(&self.0.threads));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the manager panicked");
            }
        }
    }

    /// Reads the records.
    pub fn view<R>(&self, read: impl FnOnce(&View) -> R) -> R {
        read(self.0.core().view())
    }

    /// Revision of the view.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.0.core().view().revision
    }

    /// Reads the records, with the names of the nodes under a lease that are silent.
    pub fn view_with_silent<R>(&self, read: impl FnOnce(&View, &BTreeSet<NodeName>) -> R) -> R {
        let core = self.0.core();
        read(core.view(), &core.silent(Instant::now()))
    }

    /// The times of the pool.
    #[must_use]
    pub fn times(&self) -> LeaseTimes {
        self.0.core().times()
    }

    /// Keys with which the pool's managers sign grants.
    #[must_use]
    pub fn grant_keys(&self) -> &GrantKeys {
        &self.0.keys
    }

    /// The pool's private keys; `None` for a manager that keeps none.
    #[must_use]
    pub fn vault(&self) -> Option<&Vault> {
        self.0.vault.as_deref()
    }

    /// The records and entries of the audit log that are not as a manager wrote them. Empty without a vault.
    #[must_use]
    pub fn findings(&self) -> Findings {
        self.0.seals.as_ref().map(Seals::findings).unwrap_or_default()
    }

    /// Compares the records with their seals now.
    ///
    /// # Errors
    /// The store fails.
    pub fn check_records(&self) -> Result<Findings, ManagerError> {
        let Some(seals) = &self.0.seals else { return Ok(Findings::default()) };
        seals.check_at_once()?;
        Ok(seals.findings())
    }

    /// Whether the record of a principal, at this revision, is what a manager wrote. True without a vault.
    ///
    /// # Errors
    /// The record is new, and the store fails.
    pub fn vouches(&self, principal: &PrincipalName, revision: u64) -> Result<bool, ManagerError> {
        let Some(seals) = &self.0.seals else { return Ok(true) };
        Ok(seals.vouches(principal.as_str(), revision)?)
    }

    /// Waits until the view is later than `after`, `wait` at most; returns its revision.
    #[must_use]
    pub fn wait(&self, after: u64, wait: Duration) -> u64 {
        let until = Instant::now() + wait;
        let mut core = self.0.core();
        loop {
            let revision = core.view().revision;
            let left = until.saturating_duration_since(Instant::now());
            if revision > after || left.is_zero() || self.0.is_stopping() {
                return revision;
            }
            let woken = self.0.moved.wait_timeout(core, left);
            core = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Makes an administrative change and writes it to the audit log; returns its revision. `if_match` is the
    /// revision that the caller has seen.
    ///
    /// # Errors
    /// The change is refused, or the store fails.
    pub fn execute(
        &self,
        actor: Actor<'_>,
        command: &Command,
        if_match: Option<u64>,
    ) -> Result<u64, ManagerError> {
        self.0
            .commit(|core| core.command(actor, command, if_match, wall_ms()).map(|made| (made, ())))
            .map(|made| made.0)
    }

    /// Registers a node.
    ///
    /// # Errors
    /// The node is refused, or the store fails.
    pub fn register(&self, registration: &Registration) -> Result<Registered, ManagerError> {
        self.0.notice_restore(registration.seen);
        let (_, lease) = self.0.commit(|core| core.register(registration, wall_ms()))?;
        Ok(Registered {
            lease,
            ttl_ms: millis(self.times().ttl),
            grant_keys: self.0.keys.as_slice().to_vec(),
        })
    }

    /// Takes a heartbeat and answers with everything that the node may do. The record of the node is written before a
    /// grant is signed: this is what keeps a manager with an old view from signing.
    ///
    /// # Errors
    /// [`Refusal::Fenced`]: the node registers again; [`Refusal::Removed`]; the store fails.
    pub fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<GrantSet, ManagerError> {
        if self.0.notice_restore(heartbeat.applied) {
            return Err(Refusal::Fenced { given: heartbeat.fence, current: 0 }.into());
        }
        self.0.commit(|core| core.heartbeat(heartbeat, wall_ms()).map(|made| (made, ())))?;
        let core = self.0.core();
        let node = &heartbeat.node;
        let fence = heartbeat.fence;
        let (grants, elsewhere) = core.grants(node, fence, heartbeat.clock_ms)?;
        let wanted = core.keys(node, fence);
        let keys = wanted.iter().map(|key| (key.name.clone(), key.version)).collect();
        let lacking: Vec<PoolKey> = wanted
            .into_iter()
            .filter(|key| heartbeat.keys.get(&key.name) != Some(&key.version))
            .cloned()
            .collect();
        let public = core.view().node(node).and_then(|node| node.registration.sealing_key.clone());
        let revision = core.view().revision;
        let ttl = core.times().ttl;
        let mut next = core.next_heartbeat(node, fence, Instant::now());
        drop(core);
        let sealed_keys: Vec<SealedKey> = match (&self.0.vault, public) {
            (Some(vault), Some(public)) => lacking
                .iter()
                .filter_map(|key| vault.transit(key, &public, node, fence, revision))
                .take(KEYS_AT_ONCE)
                .collect(),
            (None, _) | (_, None) => Vec::new(),
        };
        if sealed_keys.len() == KEYS_AT_ONCE {
            next = next.min(FAST_HEARTBEAT);
        }
        let grants = grants.into_iter().map(|grant| self.0.signer.sign(grant));
        let grants = grants.collect::<Result<_, _>>();
        Ok(GrantSet {
            fence,
            revision,
            ttl_ms: millis(ttl),
            next_ms: millis(next),
            grants: grants.map_err(|error| ManagerError::Grant(error.to_string()))?,
            elsewhere,
            keys,
            sealed_keys,
        })
    }

    /// Ends the lease of a node that has stopped serving.
    ///
    /// # Errors
    /// The lease is over already, or the store fails.
    pub fn leave(&self, node: &NodeName, fence: u64) -> Result<(), ManagerError> {
        self.0.commit(|core| core.leave(node, fence).map(|made| (made, ()))).map(|_| ())
    }

    /// Up to `limit` entries of the audit log from number `from` on. One that cannot be read says so in its place.
    ///
    /// # Errors
    /// The store fails.
    pub fn audit(&self, from: u64, limit: usize) -> Result<Vec<AuditEntry>, ManagerError> {
        let page = self.0.store.page(AUDIT_PREFIX, &audit_key(from), limit)?;
        let entries = page.entries.iter().map(|stored| match AuditEntry::read(stored) {
            Err(AuditError::Damaged { seq, reason }) => Ok(AuditEntry::damaged(seq, reason)),
            read => Ok(read?),
        });
        entries.collect()
    }

    /// Whether the store answers.
    ///
    /// # Errors
    /// It does not.
    pub fn ask_store(&self) -> Result<(), ManagerError> {
        // The shortest question that only the store can answer.
        self.0.store.page(AUDIT_PREFIX, AUDIT_PREFIX, 1)?;
        Ok(())
    }

    /// Checks the whole audit log; returns its head.
    ///
    /// # Errors
    /// Place where it is broken.
    pub fn verify_audit(&self) -> Result<AuditHead, ManagerError> {
        let head = self.view(|view| view.audit_head.value);
        let mut verifier = AuditVerifier::default();
        let mut next = 1;
        while next <= head.seq {
            let page = self.audit(next, 1000)?;
            let page = page.iter().filter(|entry| entry.seq <= head.seq);
            let before = next;
            for entry in page {
                verifier.take(entry)?;
                next = entry.seq + 1;
            }
            if next == before {
                break;
            }
        }
        verifier.finish(&head)?;
        Ok(head)
    }
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Makes a transaction from the view and commits it, again if another manager was faster; returns its revision
    /// and what `make` returned beside it. The view has it then.
    fn commit<T>(
        &self,
        make: impl Fn(&Core) -> Result<(Transaction, T), Refusal>,
    ) -> Result<(u64, T), ManagerError> {
        let mut refreshed = false;
        for _ in 0..TRIES {
            let (known, made) = {
                let core = self.core();
                (core.view().revision, make(&core))
            };
            let (transaction, value) = match made {
                Ok(made) => made,
                // The view may be old: a refusal counts only after the changes up to now were read.
                Err(_) if !refreshed => {
                    refreshed = true;
                    self.pull(Duration::ZERO)?;
                    continue;
                }
                Err(refusal) => return Err(refusal.into()),
            };
            let mut transaction = transaction;
            if let Some(seals) = &self.seals {
                seals.add(&mut transaction)?;
            }
            match self.noting(self.store.commit(&transaction)) {
                Ok(revision) => {
                    self.catch_up(revision)?;
                    return Ok((revision, value));
                }
                Err(StoreError::Conflict) => {
                    if self.core().view().revision == known {
                        self.pull(POLL_WAIT)?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreError::Conflict.into())
    }

    /// Waits until the view has a revision that this manager committed.
    fn catch_up(&self, revision: u64) -> Result<(), StoreError> {
        let until = Instant::now() + CATCH_UP;
        while self.core().view().revision < revision {
            if Instant::now() >= until {
                return Err(StoreError::Unavailable("it does not report its changes".to_owned()));
            }
            match self.pull(POLL_WAIT) {
                // The commit is made: its change comes when the stream of changes is open again.
                Err(StoreError::Unavailable(_)) => self.pause(RETRY),
                pulled => pulled?,
            }
        }
        Ok(())
    }

    /// Reads changes and takes them in.
    fn pull(&self, wait: Duration) -> Result<(), StoreError> {
        let after = self.core().view().revision;
        match self.noting(self.store.changes(PREFIX, after, wait)) {
            Ok(changes) => self.core().apply(&changes, Instant::now()),
            Err(StoreError::Compacted(_)) => {
                let snapshot = self.store.read(PREFIX)?;
                self.core().reload(&snapshot, Instant::now());
            }
            Err(error) => return Err(error),
        }
        self.moved.notify_all();
        Ok(())
    }

    /// Notes whether the store answers. While it does not, no heartbeat can be recorded, so that the silence of a node
    /// does not count against it.
    fn noting<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        match &answer {
            Err(StoreError::Unavailable(_) | StoreError::Full(_)) => self.core().note_store_away(),
            Ok(_)
            | Err(
                StoreError::Conflict
                | StoreError::Compacted(_)
                | StoreError::Bounds(_)
                | StoreError::Damaged(_)
                | StoreError::Configuration(_),
            ) => self.core().note_store_back(Instant::now()),
        }
        answer
    }

    /// Whether the store was restored from a backup that is older than what a node has seen.
    fn notice_restore(&self, seen: u64) -> bool {
        if !self.core().is_behind(seen) {
            return false;
        }
        // Another manager may have answered the node: its commit comes within a moment.
        if self.catch_up_quietly(seen) {
            return false;
        }
        tracing::warn!(
            "a node has seen revision {seen}, and the store is older: it was restored from a backup; no slice grows \
             until all former grants have expired"
        );
        self.core().note_restored(Instant::now());
        true
    }

    fn catch_up_quietly(&self, revision: u64) -> bool {
        for _ in 0..4 {
            if self.pull(POLL_WAIT).is_err() {
                // Not known: the commit will fail, too.
                return true;
            }
            if !self.core().is_behind(revision) {
                return true;
            }
        }
        false
    }

    fn follow(&self) {
        while !self.is_stopping() {
            if let Err(error) = self.pull(POLL_WAIT) {
                tracing::warn!("the changes of the store cannot be read: {error}");
                self.pause(RETRY);
            }
        }
    }

    fn check_seals(&self) {
        let Some(seals) = &self.seals else { return };
        while !self.is_stopping() {
            if let Err(error) = seals.check() {
                tracing::warn!("the records cannot be compared with their seals: {error}");
                self.pause(RETRY);
            }
            self.pause(POLL_WAIT);
        }
    }

    fn work(&self) {
        while !self.is_stopping() {
            let transaction = self.core().next_change(Instant::now());
            let Some(transaction) = transaction else {
                self.pause(POLL_WAIT);
                continue;
            };
            let done = self
                .noting(self.store.commit(&transaction))
                .and_then(|revision| self.catch_up(revision));
            match done {
                Ok(()) => {}
                Err(error) => {
                    self.core().put_back(&transaction);
                    if error == StoreError::Conflict {
                        let _ = self.pull(POLL_WAIT);
                    } else {
                        tracing::warn!("the division of quotas waits for the store: {error}");
                        self.pause(RETRY);
                    }
                }
            }
        }
    }

    /// Waits for a change of the view, `time` at most.
    fn pause(&self, time: Duration) {
        let core = self.core();
        drop(self.moved.wait_timeout(core, time));
    }
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
