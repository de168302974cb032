// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The handles that callers hold, of a pool and of its keys, and how they behave across fork.
//!
//! Thread, sockets and lock are in a [`ProcessPool`], which belongs to one process. A handle keeps one slot
//! per process that used it: the slots are claimed by process id, one after the other, and never given
//! back. A forked child finds no slot of its own, claims the next and starts over; it reads nothing in
//! its parent's slot except the id. So the child never waits for a lock that another thread of the parent
//! held at the fork, and the parent's connection is never used twice.
//!
//! An inherited [`ProcessPool`] stays in the child's memory, and the parent's sockets stay open in the child
//! until it ends or calls exec.

use std::os::fd::BorrowedFd;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use millrace_operation::sync::lock;
use millrace_operation::{HashAlgorithms, KeyInfo, Operation, OperationSet, PrivateKey};
use millrace_wire::{KeyRefusal, KeySelector};

use crate::config::{PoolConfig, is_valid_selector};
use crate::error::ClientError;
use crate::io::ProcessPool;
use crate::job::{Job, JobRef, JobRequest, NodeReply, Recipient, ReplySource, WrongNodes};
use crate::key::{KeyData, KeyFacts, KeyId, KeySource, spki_sha256};
use crate::stats::ClientStats;

/// Processes, each forked from the one before, that may use one handle. Servers fork once or twice; a
/// chain of this length is a loop.
const MAX_GENERATIONS: usize = 64;

/// A pool of nodes. Cheap to clone; the nodes are connected when the first key is opened. When the last
/// clone is dropped, the thread ends, as by [`Pool::shutdown`].
///
/// A pool may be used from any number of threads, and on both sides of a fork.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<PoolShared>,
}

/// Names a submitted job, for [`Pool::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobHandle {
    id: JobRef,
    pid: u32,
}

/// Lets the host's own event loop drive the pool's sockets in this process, instead of the I/O thread.
/// That saves two thread switches and part of the writes per job.
///
/// ```text
/// once                     host_loop.drive_from_host()
/// before each wait         host_loop.before_wait()      sends the jobs that this thread submitted
/// epoll_wait, poll …       on host_loop.fd()
/// when fd() is readable    host_loop.on_readable()      reads answers, runs callbacks
/// ```
///
/// After [`Self::drive_from_host`], jobs submitted by that thread are collected until [`Self::before_wait`], and
/// callbacks run on it, in either of the two calls. The I/O thread reads and runs callbacks where a timer of the pool
/// is due before the loop has read. This cannot be ended, and a forked child must forget it. See `docs/adr/0016`.
pub struct HostLoop {
    process_pool: Arc<ProcessPool>,
}

impl HostLoop {
    /// The descriptor that the loop waits for (level-triggered): when it is readable, call
    /// [`Self::on_readable`].
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.process_pool.epoll_fd()
    }

    /// Makes the calling thread's loop the driver. The thread promises that it waits for [`Self::fd`]
    /// and makes the two calls. Another thread that drove before stops driving.
    pub fn drive_from_host(&self) {
        self.process_pool.drive_from_host();
    }

    /// Sends the collected jobs; the loop calls this before it waits for its descriptors. Never blocks.
    pub fn before_wait(&self) {
        self.process_pool.before_wait();
    }

    /// Reads answers and runs callbacks; the loop calls this when [`Self::fd`] is readable. Never blocks. An answer may
    /// have arrived in part, so it may run no callback.
    pub fn on_readable(&self) {
        self.process_pool.on_readable();
    }
}

impl std::fmt::Debug for HostLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostLoop")
    }
}

/// The state that all clones of a handle share.
pub(crate) struct PoolShared {
    config: Arc<PoolConfig>,
    slots: Vec<ProcessSlot>,
}

/// The pool in the process `pid`; 0 is a free slot.
///
/// Only that process uses the other fields. So no lock in them is ever found held by a thread that a fork
/// did not copy.
#[derive(Default)]
struct ProcessSlot {
    pid: AtomicU32,
    process_pool: OnceLock<Arc<ProcessPool>>,
    /// Held by the thread that starts the [`ProcessPool`], so that there is one.
    starting: Mutex<()>,
}

impl Pool {
    /// A pool of these nodes. It starts no thread and opens no socket or file before its first use, which
    /// also reports a wrong configuration; [`PoolConfig::check`] does so earlier.
    #[must_use]
    pub fn new(config: PoolConfig) -> Self {
        let slots = (0..MAX_GENERATIONS).map(|_| ProcessSlot::default()).collect();
        Self { shared: Arc::new(PoolShared { config: Arc::new(config), slots }) }
    }

    /// The configured deadline from now.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.shared.config.default_deadline
    }

    /// Opens a key that the nodes hold, at the first node that has it. Blocks, until `deadline` at most: this
    /// and every job with the key wait for a node that can take them, since the caller has no other way.
    ///
    /// # Errors
    /// [`ClientError::Key`] if every node refuses it; [`ClientError::NoNode`] if one could not be reached by
    /// the deadline; [`ClientError::TimedOut`], [`ClientError::TooManyKeys`] and those of the first use.
    pub fn open_key(
        &self,
        selector: KeySelector,
        deadline: Instant,
    ) -> Result<RemoteKey, ClientError> {
        if !is_valid_selector(&selector) {
            return Err(ClientError::Key(KeyRefusal::NoSuchKey));
        }
        self.open(KeySource::Selector(selector), deadline)
    }

    /// Opens the version of the key `name` whose public half is `spki` (DER): the current one, or a former one
    /// that the nodes still serve. If no node has it, opens the current version, so that the caller can tell a
    /// version that is gone from a key that is not there. Otherwise as [`Self::open_key`].
    ///
    /// # Errors
    /// As [`Self::open_key`].
    pub fn open_version(
        &self,
        name: &str,
        spki: &[u8],
        deadline: Instant,
    ) -> Result<RemoteKey, ClientError> {
        match self.open_key(KeySelector::SpkiSha256(spki_sha256(spki)), deadline) {
            Err(ClientError::Key(KeyRefusal::NoSuchKey)) => {
                self.open_key(KeySelector::Name(name.to_owned()), deadline)
            }
            opened => opened,
        }
    }

    /// Imports a private key into the nodes. The client keeps it (zeroised when dropped) to import it again
    /// after a reconnect or into another node; nodes keep it no longer than the connection. Blocks, until
    /// `deadline` at most. This and every job with the key end at once if no node can be reached.
    ///
    /// Over a unix socket the key goes only to a listener of root, of this process's user, or of the owner of the
    /// socket's folder. In the last case only these three users may own or write to the folders above.
    ///
    /// # Errors
    /// As [`Self::open_key`]; [`ClientError::Untrusted`] if a listener is of another user.
    pub fn import_key(&self, key: PrivateKey, deadline: Instant) -> Result<RemoteKey, ClientError> {
        self.open(KeySource::Import(key), deadline)
    }

    fn open(&self, source: KeySource, deadline: Instant) -> Result<RemoteKey, ClientError> {
        if let KeySource::Import(key) = &source {
            let length = key.dangerous_pkcs8().len();
            if length == 0 || length > millrace_operation::MAX_PRIVATE_KEY_LEN {
                let error = millrace_operation::KeyError::Malformed;
                return Err(ClientError::Key(KeyRefusal::Key(error)));
            }
        }
        let process_pool = self.shared.process_pool()?;
        let data = Arc::new(KeyData::new(source));
        let recipient = Recipient::Caller { waiter: None };
        let job = Job::new(Arc::clone(&data), JobRequest::OpenKey, recipient, deadline);
        let opened = process_pool.run(job);
        match (opened, data.facts.get().cloned()) {
            (Ok(_), Some(facts)) => Ok(RemoteKey::new(data, facts, Arc::downgrade(&self.shared))),
            (opened, _) => {
                process_pool.close_key(data.id);
                Err(opened.err().unwrap_or(ClientError::Closed))
            }
        }
    }

    /// Runs one job and waits for its result, until `deadline` at most.
    ///
    /// # Errors
    /// Any [`ClientError`]; [`ClientError::fall_back`] says whether to do the operation locally.
    pub fn call(
        &self,
        key: &RemoteKey,
        operation: &Operation,
        input: &[u8],
        deadline: Instant,
    ) -> Result<NodeReply, ClientError> {
        self.call_elsewhere(key, operation, input, deadline, WrongNodes::default())
    }

    /// As [`Self::call`], at another node than those that answered this operation wrongly: see
    /// [`Self::report_wrong`].
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_elsewhere(
        &self,
        key: &RemoteKey,
        operation: &Operation,
        input: &[u8],
        deadline: Instant,
        wrong: WrongNodes,
    ) -> Result<NodeReply, ClientError> {
        self.check(key, operation, input)?;
        let request = JobRequest::Operation { operation: operation.clone(), input: input.to_vec() };
        let recipient = Recipient::Caller { waiter: None };
        let job = Job::new(Arc::clone(key.data()), request, recipient, deadline).avoiding(wrong);
        self.shared.process_pool()?.run(job)?.ok_or(ClientError::Closed)
    }

    /// Starts one job. `done` is called exactly once, on the I/O thread or by a [`HostLoop`], by
    /// `deadline` or soon after; it must be quick and must not block, since every other callback waits
    /// for it. A panic in it is caught and counted.
    ///
    /// # Errors
    /// The job was not taken, and `done` is dropped without being called.
    pub fn submit(
        &self,
        key: &RemoteKey,
        operation: Operation,
        input: Vec<u8>,
        deadline: Instant,
        done: Box<dyn FnOnce(Result<NodeReply, ClientError>) + Send>,
    ) -> Result<JobHandle, ClientError> {
        self.submit_elsewhere(key, operation, input, deadline, WrongNodes::default(), done)
    }

    /// As [`Self::submit`], at another node than those that answered this operation wrongly: see
    /// [`Self::report_wrong`].
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn submit_elsewhere(
        &self,
        key: &RemoteKey,
        operation: Operation,
        input: Vec<u8>,
        deadline: Instant,
        wrong: WrongNodes,
        done: Box<dyn FnOnce(Result<NodeReply, ClientError>) + Send>,
    ) -> Result<JobHandle, ClientError> {
        self.check(key, &operation, &input)?;
        let request = JobRequest::Operation { operation, input };
        let recipient = Recipient::Callback(done);
        let job = Job::new(Arc::clone(key.data()), request, recipient, deadline).avoiding(wrong);
        let id = self.shared.process_pool()?.submit(job)?;
        Ok(JobHandle { id, pid: process::id() })
    }

    /// Ends a job early: its callback is called with [`ClientError::Cancelled`], unless it ended
    /// before. A handle from before a fork has no effect after it.
    pub fn cancel(&self, job: JobHandle) {
        if let Some(process_pool) = self.shared.existing().filter(|_| job.pid == process::id()) {
            process_pool.cancel(job.id);
        }
    }

    /// The caller has verified a result, and it is wrong: the node gets no jobs of this process for some time, if there
    /// are other nodes, and then one, whose end decides. Adds the node to `wrong`, with which the caller tries again.
    /// Returns `false` if the node was in `wrong` before, so that there is no other one to try.
    pub fn report_wrong(&self, source: ReplySource, wrong: &mut WrongNodes) -> bool {
        if let Some(process_pool) = self.shared.existing() {
            process_pool.report_wrong(source);
        }
        let is_new = !wrong.0.contains(source.node);
        wrong.0.insert(source.node);
        is_new
    }

    /// The caller has verified a result, and it is right: brings a node back that was out for wrong results. Needed for
    /// results that are [on trial](ReplySource::is_on_trial) only.
    pub fn report_right(&self, source: ReplySource) {
        if let Some(process_pool) = self.shared.existing().filter(|_| source.is_on_trial()) {
            process_pool.report_right(source);
        }
    }

    /// Makes a [report](PoolConfig::report) due although no job has ended: the caller has counted an
    /// operation that it did itself. Does nothing before the first use.
    pub fn report_soon(&self) {
        if let Some(process_pool) = self.shared.existing() {
            process_pool.report_soon();
        }
    }

    /// Handle for a host whose event loop can drive the sockets. `None` before the first use.
    #[must_use]
    pub fn host_loop(&self) -> Option<HostLoop> {
        let process_pool = Arc::clone(self.shared.existing()?);
        Some(HostLoop { process_pool })
    }

    /// Counters of the pool in this process.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        match self.shared.existing() {
            Some(process_pool) => process_pool.stats(),
            None => ClientStats::default(),
        }
    }

    /// Ends the pool in this process: every job ends as [`ClientError::Closed`], the thread is joined
    /// (unless this is called from a callback). Later uses are refused. Calling it is optional: a process
    /// may end at any time.
    pub fn shutdown(&self) {
        self.shared.close();
    }

    fn check(
        &self,
        key: &RemoteKey,
        operation: &Operation,
        input: &[u8],
    ) -> Result<(), ClientError> {
        if !key.belongs_to(&self.shared) {
            return Err(ClientError::ForeignKey);
        }
        operation.check(key.info().key_type, input).map_err(ClientError::Job)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<String> = self.shared.config.nodes.iter().map(ToString::to_string).collect();
        f.debug_struct("Pool").field("nodes", &nodes).finish_non_exhaustive()
    }
}

impl PoolShared {
    /// The slot of this process, claimed if need be. Lock-free.
    fn slot(&self) -> Option<&ProcessSlot> {
        let pid = process::id();
        self.slots.iter().find(|slot| {
            let owner = slot.pid.load(Ordering::Acquire);
            owner == pid
                || (owner == 0
                    && match slot.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire)
                    {
                        Ok(_) => true,
                        Err(winner) => winner == pid,
                    })
        })
    }

    /// The pool in this process, started if need be.
    fn process_pool(&self) -> Result<&Arc<ProcessPool>, ClientError> {
        let slot = self.slot().ok_or(ClientError::Forked)?;
        if let Some(process_pool) = slot.process_pool.get() {
            return Ok(process_pool);
        }
        let _starting = lock(&slot.starting);
        if let Some(process_pool) = slot.process_pool.get() {
            return Ok(process_pool);
        }
        // A failure is not kept: descriptors and threads may be available again later.
        let process_pool = ProcessPool::start(&self.config)?;
        Ok(slot.process_pool.get_or_init(|| process_pool))
    }

    /// The pool in this process, if it was started.
    fn existing(&self) -> Option<&Arc<ProcessPool>> {
        let pid = process::id();
        let own = self.slots.iter().find(|slot| slot.pid.load(Ordering::Acquire) == pid)?;
        own.process_pool.get()
    }

    /// The last clone of a key was dropped.
    pub(crate) fn close_key(&self, key: KeyId) {
        if let Some(process_pool) = self.existing() {
            process_pool.close_key(key);
        }
    }

    fn close(&self) {
        if let Some(process_pool) = self.existing() {
            process_pool.close();
        }
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        // In a forked child the parent's [`ProcessPool`] is not dropped: its thread, which does not run here, holds
        // a reference for ever.
        self.close();
    }
}

/// A key that can be used at every node that has it. Cheap to clone; when the last clone is dropped,
/// its handles are closed, and an imported key is zeroised.
///
/// The key survives reconnects, failover and fork: it is opened again wherever it is needed.
#[derive(Clone)]
pub struct RemoteKey {
    inner: Arc<OwnedKey>,
}

struct OwnedKey {
    data: Arc<KeyData>,
    facts: KeyFacts,
    pool: Weak<PoolShared>,
}

impl RemoteKey {
    /// A key that a node has opened, with the facts it stated.
    pub(crate) fn new(data: Arc<KeyData>, facts: KeyFacts, pool: Weak<PoolShared>) -> Self {
        Self { inner: Arc::new(OwnedKey { data, facts, pool }) }
    }

    /// Type and public half of the key.
    #[must_use]
    pub fn info(&self) -> &KeyInfo {
        &self.inner.facts.info
    }

    /// The operations that this client might do with it when the first node opened it. The policy may have
    /// changed since: the node that gets a job decides.
    #[must_use]
    pub fn operations(&self) -> OperationSet {
        self.inner.facts.operations
    }

    /// The hashes that it might be used with when the first node opened it; see [`Self::operations`].
    #[must_use]
    pub fn hashes(&self) -> HashAlgorithms {
        self.inner.facts.hashes
    }

    pub(crate) fn data(&self) -> &Arc<KeyData> {
        &self.inner.data
    }

    pub(crate) fn belongs_to(&self, pool: &Arc<PoolShared>) -> bool {
        std::ptr::eq(self.inner.pool.as_ptr(), Arc::as_ptr(pool))
    }
}

impl std::fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteKey({})", self.info().key_type)
    }
}

impl Drop for OwnedKey {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.close_key(self.data.id);
        }
    }
}
