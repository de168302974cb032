// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The shell around [`crate::dispatch`]: one [`ProcessPool`] per process and pool, with its sockets, its
//! thread, and the callers that take the thread's place.
//!
//! One lock guards everything. System calls under it never block; waiting happens outside.
//!
//! The thread in `epoll_wait` is the *leader*: it reads the answers and gives each to its job. There is one at
//! most. The I/O thread leads while callbacks are pending, or while the pool has no jobs. A blocked caller that finds
//! no leader leads until its own answer is there, and then makes another blocked caller, a *follower*,
//! its successor; that saves two thread switches per call. The I/O thread alone does what takes time:
//! callbacks and new connections. Which thread may lead and which one must be woken is decided by
//! [`IoDriver`], without I/O.
//!
//! The host's event loop may drive instead ([`ProcessPool::drive_from_host`]). It waits for our epoll instance among
//! its own descriptors. Before it waits, it sends what its own jobs collected; when something came, it reads and calls
//! back. So a job costs no switch to the I/O thread and none back. The I/O thread then keeps the clock and makes
//! connections; it reads when a timer is due, since the host may be busy elsewhere.
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
mod io_thread;
mod listing;
mod sockets;

use std::mem::{self, MaybeUninit};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use self::driver::{Flush, IoDriver, IoThreadWork, LeaderKind, Wake};
use self::listing::Listing;
use self::sockets::Socket;
use crate::config::{Endpoint, PoolConfig};
use crate::dispatch::Dispatcher;
use crate::error::ClientError;
use crate::job::{Job, JobAnswer, JobRef, ReplySource};
use crate::key::KeyId;
use crate::refused::describe_start;
use crate::spin::{SPIN, Spin};
use crate::stats::ClientStats;

/// Events taken at once. More stay in the kernel for the next call, so a process with many nodes loses none.
const EVENTS: usize = 32;

/// Bound on one wait, in milliseconds: a day. Longer ones than 24 days do not fit `epoll_wait`.
const MAX_WAIT_MS: i64 = 86_400_000;

/// Epoll token of the eventfd; sockets have their node's.
const WAKE_UP: u64 = u64::MAX;

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
    /// Time of the last failed attempt to start the I/O thread, and its error. `None` if none has failed.
    no_thread: Option<(Instant, String)>,
}

/// A pool in this process, with its sockets. The I/O thread and all callers share it by `Arc`. `inner` is
/// locked before `thread`.
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
        let failed = |error: std::io::Error| ClientError::Start(describe_start(&error));
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

    /// The owner of a result found it to be wrong.
    pub(crate) fn report_wrong(&self, source: ReplySource) {
        let mut inner = self.lock();
        inner.dispatcher.report_wrong(source, Instant::now());
        self.flush_all(&mut inner);
        self.wake_all(&mut inner);
    }

    /// The owner of a result found it to be right.
    pub(crate) fn report_right(&self, source: ReplySource) {
        let mut inner = self.lock();
        inner.dispatcher.report_right(source, Instant::now());
        self.flush_all(&mut inner);
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
            let token = event.data.u64();
            if token == WAKE_UP {
                if inner.driver.take_notification() {
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.wake_up, &mut count);
                }
            } else if let Some(node) = inner.socket_with(token) {
                inner.on_socket(node, event.flags, now);
            }
        }
        inner.dispatcher.handle_timeout(now);
        self.flush_all(inner);
    }

    // ---- callbacks and the end ----------------------------------------------------------------

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
}

fn timespec(wait: Duration) -> Timespec {
    // Rounded up to the milliseconds of `epoll_wait`, so that the timer has passed when it returns.
    let millis = i64::try_from(wait.as_nanos().div_ceil(1_000_000))
        .map_or(MAX_WAIT_MS, |millis| millis.min(MAX_WAIT_MS));
    Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000) * 1_000_000 }
}

fn current() -> ThreadId {
    thread::current().id()
}
