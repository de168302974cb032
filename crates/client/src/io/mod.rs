// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The shell around [`crate::dispatch`]: one [`ProcessPool`] per process and pool, with its sockets, its
//! thread, and the callers that take the thread's place.
//!
//! One lock guards everything. System calls under it never block; waiting happens outside.
//!
//! The thread in `epoll_wait` is the *leader*: it reads the answers and gives each to its job. There is one at
//! most. The I/O thread leads while callbacks are pending or nothing goes on. A blocked caller that finds
//! no leader leads until its own answer is there, and then makes another blocked caller, a *follower*,
//! its successor; that saves two thread switches per call. The I/O thread alone does what takes time:
//! callbacks and new connections. Which thread may lead and which one must be woken is decided by
//! [`IoDriver`], without I/O.
//!
//! The host's event loop may drive instead ([`ProcessPool::drive_from_host`]): it waits for our epoll
//! instance among its own descriptors, sends what its own jobs collected before it waits, and reads and
//! calls back when something came, so that a job costs no switch to the I/O thread and none back. The I/O
//! thread then keeps the clock and makes connections; it reads when a timer is due, since the host may
//! be busy elsewhere.
//!
//! Some servers forbid their processes to start threads (`RLIMIT_NPROC` in Dovecot and vsftpd). Then blocked
//! callers make the connections, too, and jobs with a callback are refused.
//!
//! | state of the I/O thread | woken by |
//! |---|---|
//! | leader, in `epoll_wait` | a socket, a timer, the eventfd |
//! | parked, while callers lead | its condition variable, or after [`driver::PARK`] |
//! | parked, while the host's loop drives | its condition variable, or a timer |
//! | working | looks again before it waits |

mod driver;
mod host_loop;
mod listing;

use std::mem::{self, MaybeUninit};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use self::driver::{Flush, IoDriver, IoStep, IoThreadWork, LeaderKind, Wake};
use self::listing::Listing;
use crate::config::{Endpoint, PoolConfig};
use crate::dispatch::Dispatcher;
use crate::error::ClientError;
use crate::job::{Job, JobAnswer, JobRef};
use crate::key::KeyId;
use crate::link::{LinkError, NodeSocket};
use crate::node::NodeIndex;
use crate::spin::{SPIN, Spin};
use crate::stats::ClientStats;

/// Longest wait of the I/O thread as leader while there is activity: setting a timer that is further off
/// then needs no wake-up.
const TICK: Duration = Duration::from_millis(100);

/// Reads from one socket before the others have their turn: a node that floods delays them by these reads alone.
const READS_PER_TURN: usize = 16;

/// Nice value of the I/O thread, so that it does not interrupt the host's threads for every answer. Answers
/// that arrive while the host works are then handed over together when the host next waits; an idle core
/// runs the thread at once either way. At 5 the thread still gets a quarter of a core that is never idle.
const NICENESS: i32 = 5;

/// Jobs under way at a node up to which each is sent by itself. Measured with 128 P-256 jobs under way:
/// single sends cost the node 5 % of its time in reads. With 16 handshakes under way, waking the leader
/// instead cost the gateway 7 % of what it saves.
const MAX_PROMPT: u32 = 32;

/// Time between two attempts to start the I/O thread. Where a process may start none, each attempt costs a system
/// call, and blocked callers do the I/O until one succeeds.
const THREAD_RETRY: Duration = Duration::from_secs(1);

/// Events taken at once. More stay in the kernel for the next call, so a process with many nodes loses none.
const EVENTS: usize = 32;

/// Epoll token of the eventfd; sockets have their node's.
const WAKE_UP: u64 = u64::MAX;

struct Socket {
    link: NodeSocket,
    /// Tells events of this socket from those of its predecessor.
    token: u64,
    /// Whether the registration waits for writability, too.
    armed: bool,
}

/// State behind the lock of a [`ProcessPool`].
struct ProcessPoolState {
    dispatcher: Dispatcher,
    /// The endpoint of each node of the dispatcher.
    endpoints: Vec<Endpoint>,
    sockets: Vec<Option<Socket>>,
    next_token: u64,
    driver: IoDriver,
    /// Blocking calls so far.
    calls: u64,
    spin: Spin,
    /// Callers that sleep.
    followers: Vec<(JobRef, Arc<Condvar>)>,
    /// Time of the last failed attempt to start the I/O thread, and its error.
    no_thread: Option<(Instant, String)>,
}

pub(crate) struct ProcessPool {
    listing: Listing,
    inner: Mutex<ProcessPoolState>,
    unpark: Condvar,
    epoll: OwnedFd,
    wake_up: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

type Guard<'a> = MutexGuard<'a, ProcessPoolState>;

impl ProcessPool {
    /// Opens the descriptors, and starts the thread if that is permitted.
    ///
    /// # Errors
    /// [`ClientError::Config`], [`ClientError::Start`].
    pub(crate) fn start(config: &Arc<PoolConfig>) -> Result<Arc<Self>, ClientError> {
        config.check()?;
        let failed = |error: std::io::Error| ClientError::Start(error.to_string());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed(e.into()))?;
        let data = epoll::EventData::new_u64(WAKE_UP);
        epoll::add(&epoll, &wake_up, data, epoll::EventFlags::IN).map_err(|e| failed(e.into()))?;
        let inner = ProcessPoolState {
            dispatcher: Dispatcher::new(config, Instant::now()),
            endpoints: config.nodes.clone(),
            sockets: config.nodes.iter().map(|_| None).collect(),
            next_token: 0,
            driver: IoDriver::new(),
            calls: 0,
            spin: Spin::default(),
            followers: Vec::new(),
            no_thread: None,
        };
        let pool = Arc::new(Self {
            listing: Listing::new(config.source.clone()),
            inner: Mutex::new(inner),
            unpark: Condvar::new(),
            epoll,
            wake_up,
            thread: Mutex::new(None),
        });
        pool.start_thread(&mut pool.lock());
        Ok(pool)
    }

    /// Starts the I/O thread, if there is none and the last attempt was not just now.
    fn start_thread(self: &Arc<Self>, inner: &mut ProcessPoolState) {
        let lately = |at: Instant| at.elapsed() < THREAD_RETRY;
        let failed_lately = inner.no_thread.as_ref().is_some_and(|(at, _)| lately(*at));
        if !inner.driver.lacks_io_thread() || failed_lately {
            return;
        }
        match spawn(self) {
            Ok(thread) => {
                inner.driver.io_thread_started();
                let mut place = lock(&self.thread);
                *place = Some(thread);
            }
            Err(error) => inner.no_thread = Some((Instant::now(), error.to_string())),
        }
    }

    fn lock(&self) -> Guard<'_> {
        lock(&self.inner)
    }

    // ---- callers ------------------------------------------------------------------------------

    /// Runs a job to its end on the calling thread.
    pub(crate) fn run(self: &Arc<Self>, job: Job) -> JobAnswer {
        let deadline = job.deadline;
        self.look_for_nodes();
        let mut inner = self.lock();
        if inner.driver.is_closing() {
            return Err(ClientError::Closed);
        }
        self.start_thread(&mut inner);
        let id = inner.dispatcher.submit(job, Instant::now())?;
        inner.calls += 1;
        self.flush_all(&mut inner);
        self.wake_all(&mut inner);
        loop {
            if let Some(answer) = inner.dispatcher.take_done(id) {
                self.leave(inner);
                return answer;
            }
            if Instant::now() >= deadline {
                let answer = inner.dispatcher.give_up(id, Instant::now());
                self.flush_all(&mut inner);
                self.leave(inner);
                return answer;
            }
            if inner.driver.lacks_io_thread() && inner.dispatcher.wants_connections() {
                inner = self.make_connections(inner);
                continue;
            }
            let has_callbacks = inner.dispatcher.has_callbacks();
            inner = if inner.driver.may_lead(current(), has_callbacks) {
                self.lead(inner, LeaderKind::Caller, Some(deadline))
            } else {
                self.follow(inner, id, deadline)
            };
            self.wake_io_thread(&mut inner);
        }
    }

    /// Accepts a job with a callback.
    ///
    /// # Errors
    /// The job was not accepted and its callback is never called.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<JobRef, ClientError> {
        self.look_for_nodes();
        let mut inner = self.lock();
        if inner.driver.is_closing() {
            return Err(ClientError::Closed);
        }
        self.start_thread(&mut inner);
        if let Some((_, why)) = inner.no_thread.as_ref().filter(|_| inner.driver.lacks_io_thread())
        {
            return Err(ClientError::Start(why.clone()));
        }
        let id = inner.dispatcher.submit(job, Instant::now())?;
        match inner.driver.submitted(current()) {
            Flush::Later => {}
            Flush::Everything => self.flush_all(&mut inner),
            // While little is under way a job goes out at once, without a switch to the leader. When
            // much is, jobs collect until the leader sends them together: that saves the node a read
            // for each.
            Flush::Prompt => self.flush_prompt(&mut inner),
        }
        self.wake_all(&mut inner);
        Ok(id)
    }

    pub(crate) fn cancel(&self, id: JobRef) {
        let mut inner = self.lock();
        inner.dispatcher.cancel(id);
        self.flush_all(&mut inner);
        self.wake_all(&mut inner);
    }

    /// Closes a key's handles.
    pub(crate) fn close_key(&self, key: KeyId) {
        let mut inner = self.lock();
        inner.dispatcher.close_key(key);
        self.flush_all(&mut inner);
    }

    pub(crate) fn report_soon(&self) {
        let mut inner = self.lock();
        inner.dispatcher.report_soon(Instant::now());
        self.wake_all(&mut inner);
    }

    pub(crate) fn stats(&self) -> ClientStats {
        self.lock().dispatcher.stats()
    }

    /// Sleeps until the job ends, the deadline passes, or this caller is to lead.
    fn follow<'a>(&self, mut inner: Guard<'a>, id: JobRef, deadline: Instant) -> Guard<'a> {
        let waiter = Arc::new(Condvar::new());
        inner.dispatcher.wake_by(id, &waiter);
        inner.followers.push((id, Arc::clone(&waiter)));
        self.wake(inner.driver.wake_for_follower());
        let patience = deadline.saturating_duration_since(Instant::now());
        let (mut inner, _) =
            waiter.wait_timeout(inner, patience).unwrap_or_else(PoisonError::into_inner);
        inner.followers.retain(|(follower, _)| *follower != id);
        inner
    }

    /// A caller goes: another thread must lead if any job is pending.
    fn leave(&self, mut inner: Guard<'_>) {
        let successor = inner.successor();
        self.wake_io_thread(&mut inner);
        let wakes = mem::take(&mut inner.dispatcher.deliveries().wakes);
        drop(inner);
        for waiter in wakes.iter().chain(&successor) {
            waiter.notify_one();
        }
    }

    // ---- waking -------------------------------------------------------------------------------

    /// Wakes the I/O thread if there is work that it alone does.
    fn wake_io_thread(&self, inner: &mut ProcessPoolState) {
        let work = IoThreadWork {
            connections: inner.dispatcher.wants_connections(),
            callbacks: inner.dispatcher.has_callbacks(),
            ended_callbacks: inner.dispatcher.has_ended_callbacks(),
        };
        self.wake(inner.driver.wake_io_thread(work, current()));
    }

    /// After anything that sets timers or leaves bytes unsent: wakes whichever thread has to act on it.
    fn wake_all(&self, inner: &mut ProcessPoolState) {
        self.wake_io_thread(inner);
        let unsent = (0..inner.sockets.len()).any(|node| inner.has_unsent(node));
        let timer = inner.dispatcher.poll_timeout();
        self.wake(inner.driver.wake_leader(timer, unsent));
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::None => {}
            Wake::IoThread => self.unpark.notify_one(),
            Wake::Leader => {
                // Fails only if the counter is at its maximum, and then the descriptor is readable.
                let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
            }
        }
    }

    // ---- the leader ---------------------------------------------------------------------------

    /// Waits for the sockets once, as the leader, and handles what they have.
    fn lead<'a>(
        &'a self,
        mut inner: Guard<'a>,
        role: LeaderKind,
        deadline: Option<Instant>,
    ) -> Guard<'a> {
        let now = Instant::now();
        let timer = inner.dispatcher.poll_timeout();
        let until = timer.into_iter().chain(deadline).min();
        inner.driver.lead(role, until);
        let spins = role == LeaderKind::Caller && inner.spin.pays();
        let wakes = mem::take(&mut inner.dispatcher.deliveries().wakes);
        drop(inner);
        for waiter in wakes {
            waiter.notify_one();
        }
        let came = spins && self.spin();
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let timeout = until.map(|at| timespec(at.saturating_duration_since(now)));
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => &*events,
            // A signal of our host's, if a caller leads.
            Err(_) => &[],
        };
        let mut inner = self.lock();
        inner.driver.stop_leading();
        if spins {
            inner.spin.ended(came);
        }
        // What came after a host's loop took over is left in the epoll instance for it.
        let is_hosts = role == LeaderKind::IoThread && inner.driver.is_host_driven();
        self.handle(&mut inner, if is_hosts { &[] } else { events });
        inner
    }

    /// Looks for events without sleeping, for [`SPIN`] at most. The events stay in the epoll instance.
    fn spin(&self) -> bool {
        let start = Instant::now();
        let mut polled = [PollFd::new(&self.epoll, PollFlags::IN)];
        while start.elapsed() < SPIN {
            if poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return true;
            }
        }
        false
    }

    fn handle(&self, inner: &mut ProcessPoolState, events: &[epoll::Event]) {
        let now = Instant::now();
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == WAKE_UP {
                if inner.driver.take_notification() {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.wake_up, &mut count);
                }
            } else if let Some(node) = inner.socket_with(token) {
                inner.on_socket(node, flags, now);
            }
        }
        inner.dispatcher.handle_timeout(now);
        self.flush_all(inner);
    }

    /// Sends as many of the waiting bytes as the sockets take, and closes sockets that are done.
    fn flush_all(&self, inner: &mut ProcessPoolState) {
        inner.driver.flushed();
        self.close_sockets(inner);
        for node in 0..inner.sockets.len() {
            self.flush(inner, node);
        }
    }

    /// Sends waiting bytes to nodes with no more than [`MAX_PROMPT`] jobs under way.
    fn flush_prompt(&self, inner: &mut ProcessPoolState) {
        self.close_sockets(inner);
        for node in 0..inner.sockets.len() {
            if inner.dispatcher.in_flight(node) <= MAX_PROMPT {
                self.flush(inner, node);
            }
        }
    }

    fn flush(&self, inner: &mut ProcessPoolState, node: NodeIndex) {
        let Some(socket) = &mut inner.sockets[node] else {
            return;
        };
        // An error is found by the next read, after the last bytes from the node.
        let _ = socket.link.flush(inner.dispatcher.poll_output(node));
        if socket.armed != socket.link.wants_write() {
            socket.armed = socket.link.wants_write();
            let data = epoll::EventData::new_u64(socket.token);
            let _ = epoll::modify(&self.epoll, &socket.link, data, interest(socket.armed));
        }
    }

    fn close_sockets(&self, inner: &mut ProcessPoolState) {
        while let Some(node) = inner.dispatcher.poll_close() {
            if let Some(socket) = inner.sockets[node].take() {
                // Closing is not enough: a forked child may hold the socket open.
                let _ = epoll::delete(&self.epoll, &socket.link);
            }
        }
    }

    // ---- the I/O thread -----------------------------------------------------------------------

    fn thread_main(&self) {
        // On Linux "this process" means this thread. It fails only where the host forbids even that.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        // A panic in there ends the pool in this process: every job ends as `Closed`.
        let _ = catch_unwind(AssertUnwindSafe(|| self.thread_loop()));
        self.end(self.lock());
    }

    /// Ends every job, and closes the sockets.
    fn end(&self, mut inner: Guard<'_>) {
        let wake = inner.driver.io_thread_ended();
        inner.dispatcher.close();
        self.close_sockets(&mut inner);
        let inner = self.run_callbacks(inner);
        let followers: Vec<_> = inner.followers.iter().map(|(_, w)| Arc::clone(w)).collect();
        drop(inner);
        for waiter in followers {
            waiter.notify_one();
        }
        self.wake(wake);
    }

    fn thread_loop(&self) {
        let (mut calls, mut jobs) = (0, 0);
        let mut inner = self.lock();
        while !inner.driver.is_closing() {
            inner = self.run_callbacks(inner);
            inner = self.make_connections(inner);
            if inner.driver.is_closing() {
                return;
            }
            let callers_active = mem::replace(&mut calls, inner.calls) != inner.calls;
            let has_callbacks = inner.dispatcher.has_callbacks();
            inner = match inner.driver.next_step(callers_active, has_callbacks) {
                IoStep::StandBy => self.stand_by(inner),
                IoStep::Park => self.park(inner),
                IoStep::Lead => {
                    let accepted = inner.dispatcher.jobs_accepted();
                    let active = mem::replace(&mut jobs, accepted) != accepted;
                    let tick = active.then(|| Instant::now() + TICK);
                    self.lead(inner, LeaderKind::IoThread, tick)
                }
            };
        }
    }

    /// Lets callers lead for a while.
    fn park<'a>(&self, mut inner: Guard<'a>) -> Guard<'a> {
        let successor = inner.successor();
        let wakes = mem::take(&mut inner.dispatcher.deliveries().wakes);
        for waiter in wakes.iter().chain(&successor) {
            waiter.notify_one();
        }
        let now = Instant::now();
        let until = inner.driver.park(now);
        let mut inner = self.wait_parked(inner, now, until);
        if !inner.driver.has_leader() {
            // No other thread keeps the clock now, however many callers come and go.
            inner.dispatcher.handle_timeout(Instant::now());
            self.flush_all(&mut inner);
        }
        inner
    }

    fn wait_parked<'a>(&self, inner: Guard<'a>, now: Instant, until: Option<Instant>) -> Guard<'a> {
        let mut inner = match until {
            None => self.unpark.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let patience = until.saturating_duration_since(now);
                let waited = self.unpark.wait_timeout(inner, patience);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        inner.driver.io_thread_works();
        inner
    }

    fn run_callbacks<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        let deliveries = mem::take(inner.dispatcher.deliveries());
        if deliveries.callbacks.is_empty() && deliveries.wakes.is_empty() {
            return inner;
        }
        drop(inner);
        for waiter in deliveries.wakes {
            waiter.notify_one();
        }
        let mut panics = 0;
        for (callback, result) in deliveries.callbacks {
            if catch_unwind(AssertUnwindSafe(|| callback(result))).is_err() {
                panics += 1;
            }
        }
        let mut inner = self.lock();
        for _ in 0..panics {
            inner.dispatcher.callback_panicked();
        }
        inner
    }

    fn make_connections<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        if inner.dispatcher.wants_connections() {
            // Jobs that wait for a node may wait for one that the pool names no more.
            drop(inner);
            self.look_for_nodes();
            inner = self.lock();
        }
        while let Some(node) = inner.dispatcher.poll_connect() {
            let attempt = inner.dispatcher.connect_failures(node);
            let endpoint = inner.endpoints[node].clone();
            inner.driver.resolve();
            let successor = inner.successor();
            drop(inner);
            if let Some(waiter) = successor {
                waiter.notify_one();
            }
            let link = NodeSocket::connect(&endpoint, attempt);
            inner = self.lock();
            inner.driver.resolved();
            let now = Instant::now();
            let token = inner.next_token;
            let registered = link.and_then(|link| self.register(link, token));
            match registered {
                Ok(socket) => {
                    inner.next_token += 1;
                    let distrust = socket.link.distrust().cloned();
                    inner.sockets[node] = Some(socket);
                    inner.dispatcher.handle_connected(node, distrust, now);
                }
                Err(error) => inner.dispatcher.handle_lost(node, error.to_string(), now),
            }
            self.flush_all(&mut inner);
            self.wake_all(&mut inner);
        }
        inner
    }

    fn register(&self, link: NodeSocket, token: u64) -> Result<Socket, LinkError> {
        let armed = link.wants_write();
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &link, data, interest(armed)).map_err(std::io::Error::from)?;
        Ok(Socket { link, token, armed })
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Ends every job, closes the sockets and, unless this is the I/O thread itself, waits for it.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.driver.close();
        if inner.driver.lacks_io_thread() {
            return self.end(inner);
        }
        self.wake_io_thread(&mut inner);
        drop(inner);
        let thread = lock(&self.thread).take();
        let Some(thread) = thread else { return };
        if thread.thread().id() != current() {
            // `thread_main` has caught a panic, if there was one.
            let _ = thread.join();
        }
    }
}

impl ProcessPoolState {
    /// The sleeping caller that is to lead, if one should.
    fn successor(&mut self) -> Option<Arc<Condvar>> {
        if !self.driver.needs_successor(self.dispatcher.has_callbacks()) {
            return None;
        }
        let Self { followers, dispatcher, .. } = self;
        let follower = followers.iter().rev().find(|(id, _)| !dispatcher.is_done(*id));
        follower.map(|(_, waiter)| Arc::clone(waiter))
    }

    fn socket_with(&self, token: u64) -> Option<NodeIndex> {
        self.sockets.iter().position(|s| s.as_ref().is_some_and(|s| s.token == token))
    }

    /// Whether bytes wait that were not yet offered to the socket.
    fn has_unsent(&mut self, node: NodeIndex) -> bool {
        let Some(socket) = &self.sockets[node] else {
            return false;
        };
        !socket.link.wants_write() && self.dispatcher.poll_output(node).is_some()
    }

    fn on_socket(&mut self, node: NodeIndex, flags: epoll::EventFlags, now: Instant) {
        let Some(socket) = &mut self.sockets[node] else {
            return;
        };
        if socket.link.is_connecting() {
            if let Err(error) = socket.link.finish_connect() {
                self.dispatcher.handle_lost(node, error.to_string(), now);
            }
            return;
        }
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if !flags.intersects(readable) {
            return;
        }
        if let Err(error) = self.read(node, now) {
            self.dispatcher.handle_lost(node, error.to_string(), now);
        }
    }

    /// Reads until there is nothing more, or others should have their turn.
    fn read(&mut self, node: NodeIndex, now: Instant) -> Result<(), LinkError> {
        for turn in 0.. {
            let Some(socket) = &mut self.sockets[node] else {
                return Ok(());
            };
            let Some(connection) = self.dispatcher.connection(node) else {
                return Ok(());
            };
            let space = connection.space();
            let room = space.len();
            let n = match socket.link.read(space) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            connection.filled(n, now);
            let over = turn >= READS_PER_TURN;
            let last = if socket.link.short_read_is_last() {
                n < room || over
            } else {
                // The socket does not become readable for bytes that TLS has decrypted already.
                over && !socket.link.holds_plaintext()
            };
            self.dispatcher.handle_received(node, now);
            if last {
                break;
            }
        }
        Ok(())
    }
}

fn interest(write: bool) -> epoll::EventFlags {
    if write { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

fn timespec(wait: Duration) -> Timespec {
    // Rounded up to the milliseconds of `epoll_wait`, so that the timer has passed when it returns.
    let millis = wait.as_nanos().div_ceil(1_000_000);
    let millis = i64::try_from(millis).unwrap_or(i64::MAX / 1_000_000).min(86_400_000);
    Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000) * 1_000_000 }
}

fn current() -> ThreadId {
    thread::current().id()
}

/// Signals that a fault of the thread itself raises: the host's crash handler should get them.
const FAULTS: [Signal; 5] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGABRT];

/// Starts the thread with every other signal blocked: the host's handlers run on the host's threads.
fn spawn(pool: &Arc<ProcessPool>) -> std::io::Result<JoinHandle<()>> {
    let own = Arc::clone(pool);
    let mut signals = SigSet::all();
    for fault in FAULTS {
        signals.remove(fault);
    }
    let before = signals.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread =
        thread::Builder::new().name("millrace-io".to_owned()).spawn(move || own.thread_main());
    before.thread_set_mask()?;
    thread
}
