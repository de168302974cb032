// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The shell around [`crate::dispatch`]: one instance per process and pool, with its sockets, its
//! thread, and the callers that take the thread's place.
//!
//! One lock guards everything. System calls under it never block; waiting happens outside.
//!
//! Whoever waits in `epoll_wait` is the *driver*: it reads what comes and hands it out. There is one at
//! most. The I/O thread is the driver whenever callbacks are owed or nothing goes on. A blocked caller
//! that finds no driver becomes it until its own answer is there, and then passes the role to another
//! blocked caller; that saves two thread switches per call. The I/O thread does alone what takes time:
//! callbacks and new connections.
//!
//! An event loop of the host's may take the sockets over ([`Instance::drive_from_host`]): it waits for our epoll
//! instance among its own descriptors, sends what its own jobs collected before it waits, and reads and
//! calls back when something came, so that a job costs no switch to the I/O thread and none back. The I/O
//! thread keeps the clock then and makes connections; it reads when a timer is due, since the host may
//! be busy elsewhere.
//!
//! | state of the I/O thread | woken by |
//! |---|---|
//! | driver, in `epoll_wait` | a socket, a timer, the event counter |
//! | parked, while callers drive | the condition variable, or after [`PARK`] |
//! | standing by, while the host attends | the condition variable, or a timer |
//! | working | looks again before it waits |

mod host_loop;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use crate::config::PoolConfig;
use crate::dispatch::Dispatcher;
use crate::error::ClientError;
use crate::key::KeyId;
use crate::link::Link;
use crate::spin::{SPIN, Spin};
use crate::stats::ClientStats;
use crate::task::{Answer, Task, TaskId};

/// How long the I/O thread leaves the sockets to callers that come and go. Longer saves wake-ups,
/// shorter notices sooner that a node has something to say while nobody calls.
const PARK: Duration = Duration::from_millis(20);

/// Longest wait of a driver while there is activity: a timer that is further off needs no wake-up when
/// it is set.
const TICK: Duration = Duration::from_millis(100);

/// Reads from one socket before the others have their turn.
const READS_PER_TURN: usize = 16;

/// How much less of a busy core the I/O thread claims than the host's own threads. It must not
/// interrupt them for every answer: what arrives while the host works is handed over together when
/// the host next waits, and an idle core is there at once either way. At 5 the thread still gets a
/// quarter of a core that is never idle.
const NICENESS: i32 = 5;

/// Jobs under way at a node up to which each is sent by itself. Measured with 128 P-256 jobs under way:
/// single sends cost the node 5 % of its time in reads. With 16 handshakes under way, waking the driver
/// instead cost the gateway 7 % of what it saves.
const PROMPT: u32 = 32;

/// Jobs of an attending host that wait to be sent together. More of them save writes; but a host that
/// handles hundreds of events before it waits again must not keep the node idle meanwhile.
const TOGETHER: u32 = 8;

/// Events taken at once.
const EVENTS: usize = 32;

/// The event counter's name among the sockets.
const WAKE_UP: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    None,
    Thread,
    Caller,
}

struct Socket {
    link: Link,
    /// Tells events of this socket from those of its predecessor.
    token: u64,
    /// Whether the registration waits for writability, too.
    armed: bool,
}

/// Everything under the lock.
struct Inner {
    dispatcher: Dispatcher,
    sockets: Vec<Option<Socket>>,
    next_token: u64,
    driver: Driver,
    /// When the driver looks again by itself; none is never.
    driver_wakes: Option<Instant>,
    /// The event counter is set and the driver has not seen it.
    kicked: bool,
    parked: bool,
    /// The I/O thread is resolving a name, perhaps for long: callers drive meanwhile, even if callbacks
    /// are owed.
    resolving: bool,
    /// Blocking calls so far.
    calls: u64,
    /// The thread whose event loop attends.
    host: Option<ThreadId>,
    /// Jobs of that thread that wait to be sent together.
    together: u32,
    spin: Spin,
    /// Callers that sleep.
    followers: Vec<(TaskId, Arc<Condvar>)>,
    closing: bool,
}

/// The pool in one process.
pub(crate) struct Instance {
    config: Arc<PoolConfig>,
    inner: Mutex<Inner>,
    unpark: Condvar,
    epoll: OwnedFd,
    wake_up: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

type Guard<'a> = MutexGuard<'a, Inner>;

impl Instance {
    /// Starts the thread.
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
        let inner = Inner {
            dispatcher: Dispatcher::new(config, Instant::now()),
            sockets: config.nodes.iter().map(|_| None).collect(),
            next_token: 0,
            driver: Driver::None,
            driver_wakes: None,
            kicked: false,
            parked: false,
            resolving: false,
            calls: 0,
            host: None,
            together: 0,
            spin: Spin::default(),
            followers: Vec::new(),
            closing: false,
        };
        let instance = Arc::new(Self {
            config: Arc::clone(config),
            inner: Mutex::new(inner),
            unpark: Condvar::new(),
            epoll,
            wake_up,
            thread: Mutex::new(None),
        });
        let thread = spawn(&instance).map_err(failed)?;
        *instance
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(instance)
    }

    fn lock(&self) -> Guard<'_> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- callers ------------------------------------------------------------------------------

    /// Runs a task to its end on the calling thread.
    pub(crate) fn run(&self, task: Task) -> Answer {
        let deadline = task.deadline;
        let mut inner = self.lock();
        if inner.closing {
            return Err(ClientError::Closed);
        }
        let id = inner.dispatcher.submit(task, Instant::now())?;
        inner.calls += 1;
        self.flush_all(&mut inner);
        self.wake_all(&mut inner);
        loop {
            if let Some(answer) = inner.dispatcher.take_done(id) {
                self.leave(inner);
                return answer;
            }
            if Instant::now() >= deadline {
                inner.dispatcher.give_up(id);
                self.flush_all(&mut inner);
                self.leave(inner);
                return Err(ClientError::TimedOut);
            }
            inner = if inner.lets_callers_drive() {
                self.drive(inner, Driver::Caller, Some(deadline))
            } else {
                self.follow(inner, id, deadline)
            };
            self.wake_for_chores(&inner);
        }
    }

    /// Takes a task with a callback.
    ///
    /// # Errors
    /// It was not taken and its callback is never called.
    pub(crate) fn submit(&self, task: Task) -> Result<TaskId, ClientError> {
        let mut inner = self.lock();
        if inner.closing {
            return Err(ClientError::Closed);
        }
        let id = inner.dispatcher.submit(task, Instant::now())?;
        if inner.is_attended_from_here() && inner.together < TOGETHER {
            inner.together += 1;
        } else if inner.host.is_some() {
            self.flush_all(&mut inner);
        } else {
            // While little is under way a job goes out at once, without a switch to the driver. When
            // much is, jobs collect until the driver sends them together: that saves the node a read
            // for each.
            self.flush_prompt(&mut inner);
        }
        self.wake_all(&mut inner);
        Ok(id)
    }

    /// See [`crate::Pool::cancel`].
    pub(crate) fn cancel(&self, id: TaskId) {
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

    /// See [`crate::Pool::counted`].
    pub(crate) fn counted(&self) {
        let mut inner = self.lock();
        inner.dispatcher.counted(Instant::now());
        self.wake_all(&mut inner);
    }

    pub(crate) fn stats(&self) -> ClientStats {
        self.lock().dispatcher.stats()
    }

    /// Sleeps until the task ends, the deadline passes, or the role of driver is offered.
    fn follow<'a>(&self, mut inner: Guard<'a>, id: TaskId, deadline: Instant) -> Guard<'a> {
        let waiter = Arc::new(Condvar::new());
        inner.dispatcher.wake_by(id, &waiter);
        inner.followers.push((id, Arc::clone(&waiter)));
        if inner.host.is_some() && inner.parked {
            self.unpark.notify_one();
        }
        let patience = deadline.saturating_duration_since(Instant::now());
        let (mut inner, _) = waiter
            .wait_timeout(inner, patience)
            .unwrap_or_else(PoisonError::into_inner);
        inner.followers.retain(|(follower, _)| *follower != id);
        inner
    }

    /// A caller goes: somebody else must drive if anything is owed.
    fn leave(&self, mut inner: Guard<'_>) {
        let heir = self.next_driver(&mut inner);
        self.wake_for_chores(&inner);
        let wakes = std::mem::take(&mut inner.dispatcher.outbox().wakes);
        drop(inner);
        for waiter in wakes.iter().chain(&heir) {
            waiter.notify_one();
        }
    }

    /// The sleeping caller that is to drive, if one should.
    fn next_driver(&self, inner: &mut Inner) -> Option<Arc<Condvar>> {
        if inner.host.is_some() || !inner.lets_callers_drive() {
            return None;
        }
        let Inner {
            followers,
            dispatcher,
            ..
        } = inner;
        let heir = followers
            .iter()
            .rev()
            .find(|(id, _)| !dispatcher.is_done(*id));
        heir.map(|(_, waiter)| Arc::clone(waiter))
    }

    // ---- waking -------------------------------------------------------------------------------

    /// Wakes the I/O thread if there is something that it alone does.
    fn wake_for_chores(&self, inner: &Inner) {
        let chores = inner.closing
            || inner.dispatcher.wants_connections()
            || inner.dispatcher.has_callbacks()
                && inner.driver == Driver::None
                && inner.host.is_none()
            || inner.dispatcher.has_ended_callbacks() && !inner.is_attended_from_here();
        if !chores {
            return;
        }
        if inner.parked {
            self.unpark.notify_one();
        } else if inner.driver == Driver::Thread {
            self.kick();
        }
    }

    /// After anything that sets timers or leaves bytes unsent: the driver must send them and wake up in
    /// time, and the I/O thread must do what it alone does.
    fn wake_all(&self, inner: &mut Inner) {
        self.wake_for_chores(inner);
        let late = match (inner.dispatcher.next_timer(), inner.driver_wakes) {
            (Some(timer), Some(wakes)) => timer < wakes,
            (timer, None) => timer.is_some(),
            (None, _) => false,
        };
        if inner.host.is_some() && inner.driver == Driver::None {
            if late && inner.parked {
                inner.driver_wakes = inner.dispatcher.next_timer();
                self.unpark.notify_one();
            }
            return;
        }
        let unsent = inner.together == 0 && (0..inner.sockets.len()).any(|at| inner.has_unsent(at));
        if inner.driver != Driver::None && !inner.kicked && (unsent || late) {
            inner.kicked = true;
            self.kick();
        }
    }

    fn kick(&self) {
        // Fails only if the counter is at its end, and then the driver is awake.
        let _ = rustix::io::write(&self.wake_up, &1u64.to_ne_bytes());
    }

    // ---- the driver ---------------------------------------------------------------------------

    /// Waits for the sockets once, as the driver, and handles what they have.
    fn drive<'a>(
        &'a self,
        mut inner: Guard<'a>,
        who: Driver,
        deadline: Option<Instant>,
    ) -> Guard<'a> {
        let now = Instant::now();
        let timer = inner.dispatcher.next_timer();
        let until = timer.into_iter().chain(deadline).min();
        inner.driver = who;
        inner.driver_wakes = until;
        let spins = who == Driver::Caller && inner.spin.pays();
        let wakes = std::mem::take(&mut inner.dispatcher.outbox().wakes);
        drop(inner);
        for waiter in wakes {
            waiter.notify_one();
        }
        let came = spins && self.spin();
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let timeout = until.map(|at| timespec(at.saturating_duration_since(now)));
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => &*events,
            // A signal of our host's, if a caller drives.
            Err(_) => &[],
        };
        let mut inner = self.lock();
        inner.driver = Driver::None;
        if spins {
            inner.spin.ended(came);
        }
        self.handle(&mut inner, events);
        inner
    }

    /// Looks for events without sleeping, for [`SPIN`] at most. They stay where they are.
    fn spin(&self) -> bool {
        let start = Instant::now();
        let mut look = [PollFd::new(&self.epoll, PollFlags::IN)];
        while start.elapsed() < SPIN {
            if poll(&mut look, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                return true;
            }
        }
        false
    }

    fn handle(&self, inner: &mut Inner, events: &[epoll::Event]) {
        let now = Instant::now();
        for event in events {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == WAKE_UP {
                // What calls somebody out of `epoll_wait` is his to read: see `on_readable`.
                if inner.driver == Driver::None {
                    inner.kicked = false;
                    let mut count = [0; 8];
                    let _ = rustix::io::read(&self.wake_up, &mut count);
                }
            } else if let Some(at) = inner.socket_with(token) {
                inner.on_socket(at, flags, now);
            }
        }
        inner.dispatcher.tick(now);
        self.flush_all(inner);
    }

    /// Sends what waits, as far as the sockets take it, and closes what is to be closed.
    fn flush_all(&self, inner: &mut Inner) {
        inner.together = 0;
        self.close_sockets(inner);
        for at in 0..inner.sockets.len() {
            self.flush(inner, at);
        }
    }

    /// Sends what waits for nodes that owe no more than [`PROMPT`] jobs.
    fn flush_prompt(&self, inner: &mut Inner) {
        self.close_sockets(inner);
        for at in 0..inner.sockets.len() {
            if inner.dispatcher.in_flight(at) <= PROMPT {
                self.flush(inner, at);
            }
        }
    }

    fn flush(&self, inner: &mut Inner, at: usize) {
        let Some(socket) = &mut inner.sockets[at] else {
            return;
        };
        // A broken connection shows when it is read, behind what the node said last.
        let _ = socket.link.flush(inner.dispatcher.output(at));
        if socket.armed != socket.link.wants_write() {
            socket.armed = socket.link.wants_write();
            let data = epoll::EventData::new_u64(socket.token);
            let _ = epoll::modify(&self.epoll, &socket.link, data, interest(socket.armed));
        }
    }

    fn close_sockets(&self, inner: &mut Inner) {
        while let Some(at) = inner.dispatcher.take_closed() {
            if let Some(socket) = inner.sockets[at].take() {
                // Closing is not enough: a forked child may hold the socket open.
                let _ = epoll::delete(&self.epoll, &socket.link);
            }
        }
    }

    // ---- the I/O thread -----------------------------------------------------------------------

    fn thread_main(&self) {
        // On Linux "this process" means this thread. It fails only where the host forbids even that.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        let died = catch_unwind(AssertUnwindSafe(|| self.thread_loop())).is_err();
        let mut inner = self.lock();
        inner.closing = true;
        if died && inner.driver == Driver::Thread {
            inner.driver = Driver::None;
        }
        inner.dispatcher.close();
        self.close_sockets(&mut inner);
        let inner = self.run_callbacks(inner);
        let followers: Vec<_> = inner.followers.iter().map(|(_, w)| Arc::clone(w)).collect();
        drop(inner);
        for waiter in followers {
            waiter.notify_one();
        }
        // Whoever drives as a caller finds its task ended.
        self.kick();
    }

    fn thread_loop(&self) {
        let (mut calls, mut jobs) = (0, 0);
        let mut inner = self.lock();
        while !inner.closing {
            inner = self.run_callbacks(inner);
            inner = self.make_connections(inner);
            if inner.closing {
                return;
            }
            if inner.host.is_some() {
                inner = self.stand_by(inner);
                continue;
            }
            let callers_active = std::mem::replace(&mut calls, inner.calls) != inner.calls;
            let leave_to_callers = callers_active && !inner.dispatcher.has_callbacks();
            if inner.driver != Driver::None || leave_to_callers {
                inner = self.park(inner);
            } else {
                let active = std::mem::replace(&mut jobs, inner.dispatcher.jobs())
                    != inner.dispatcher.jobs();
                let tick = active.then(|| Instant::now() + TICK);
                inner = self.drive(inner, Driver::Thread, tick);
            }
        }
    }

    /// Lets callers drive for a while.
    fn park<'a>(&self, mut inner: Guard<'a>) -> Guard<'a> {
        let heir = self.next_driver(&mut inner);
        let wakes = std::mem::take(&mut inner.dispatcher.outbox().wakes);
        for waiter in wakes.iter().chain(&heir) {
            waiter.notify_one();
        }
        inner.parked = true;
        let (mut inner, _) = self
            .unpark
            .wait_timeout(inner, PARK)
            .unwrap_or_else(PoisonError::into_inner);
        inner.parked = false;
        if inner.driver == Driver::None {
            // Nobody else looks at the clock, and callers that keep coming must not keep it from us.
            inner.dispatcher.tick(Instant::now());
            self.flush_all(&mut inner);
        }
        inner
    }

    fn run_callbacks<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        let outbox = std::mem::take(inner.dispatcher.outbox());
        if outbox.callbacks.is_empty() && outbox.wakes.is_empty() {
            return inner;
        }
        drop(inner);
        for waiter in outbox.wakes {
            waiter.notify_one();
        }
        let mut panics = 0;
        for (callback, result) in outbox.callbacks {
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
        while let Some(at) = inner.dispatcher.take_wanted() {
            let attempt = inner.dispatcher.attempts(at);
            inner.resolving = true;
            let heir = self.next_driver(&mut inner);
            drop(inner);
            if let Some(waiter) = heir {
                waiter.notify_one();
            }
            let link = Link::connect(&self.config.nodes[at], attempt);
            inner = self.lock();
            inner.resolving = false;
            let now = Instant::now();
            let token = inner.next_token;
            let registered = link.and_then(|link| self.register(link, token));
            match registered {
                Ok(socket) => {
                    inner.next_token += 1;
                    inner.sockets[at] = Some(socket);
                    inner.dispatcher.connected(at, now);
                }
                Err(why) => inner.dispatcher.lost(at, why, now),
            }
            self.flush_all(&mut inner);
            self.wake_all(&mut inner);
        }
        inner
    }

    fn register(&self, link: Link, token: u64) -> Result<Socket, String> {
        let armed = link.wants_write();
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &link, data, interest(armed)).map_err(|error| error.to_string())?;
        Ok(Socket { link, token, armed })
    }

    // ---- the end ------------------------------------------------------------------------------

    /// Ends every task, closes the sockets and, unless this is the I/O thread itself, waits for it.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closing = true;
        self.wake_for_chores(&inner);
        drop(inner);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        if thread.thread().id() != current() {
            // A panic in there has been caught and dealt with.
            let _ = thread.join();
        }
    }
}

impl Inner {
    /// Whether a blocked caller may take the role of driver: it is free, and no callback waits for the
    /// I/O thread to have it. While a host attends, only the host itself may: it does not look while it
    /// is blocked, and else would read what somebody else waits for in `epoll_wait`.
    fn lets_callers_drive(&self) -> bool {
        let spared = match self.host {
            Some(host) => host == current(),
            None => self.resolving || !self.dispatcher.has_callbacks(),
        };
        self.driver == Driver::None && spared
    }

    fn is_attended_from_here(&self) -> bool {
        self.host.is_some_and(|host| host == current())
    }

    fn socket_with(&self, token: u64) -> Option<usize> {
        self.sockets
            .iter()
            .position(|s| s.as_ref().is_some_and(|s| s.token == token))
    }

    /// Whether bytes wait that nobody has tried to send.
    fn has_unsent(&mut self, at: usize) -> bool {
        let Some(socket) = &self.sockets[at] else {
            return false;
        };
        !socket.link.wants_write() && self.dispatcher.output(at).is_some()
    }

    fn on_socket(&mut self, at: usize, flags: epoll::EventFlags, now: Instant) {
        let Some(socket) = &mut self.sockets[at] else {
            return;
        };
        if socket.link.is_connecting() {
            if let Err(error) = socket.link.finish_connect() {
                self.dispatcher.lost(at, error.to_string(), now);
            }
            return;
        }
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if !flags.intersects(readable) {
            return;
        }
        if let Err(why) = self.read(at, now) {
            self.dispatcher.lost(at, why, now);
        }
    }

    /// Reads until there is nothing more, or others should have their turn.
    fn read(&mut self, at: usize, now: Instant) -> Result<(), String> {
        for turn in 0.. {
            let Some(socket) = &mut self.sockets[at] else {
                return Ok(());
            };
            let Some(connection) = self.dispatcher.connection(at) else {
                return Ok(());
            };
            let space = connection.space();
            let room = space.len();
            let n = match socket.link.read(space) {
                Ok(0) => return Err("the node closed the connection".to_owned()),
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            connection.filled(n, now);
            let over = turn >= READS_PER_TURN;
            let last = if socket.link.short_read_is_last() {
                n < room || over
            } else {
                // Nothing would wake us for what TLS has decrypted already.
                over && !socket.link.holds_plaintext()
            };
            self.dispatcher.received(at, now);
            if last {
                break;
            }
        }
        Ok(())
    }
}

fn interest(write: bool) -> epoll::EventFlags {
    if write {
        epoll::EventFlags::IN | epoll::EventFlags::OUT
    } else {
        epoll::EventFlags::IN
    }
}

fn timespec(wait: Duration) -> Timespec {
    // Rounded up to what `epoll_wait` knows, so that the timer has passed when it returns.
    let millis = wait.as_nanos().div_ceil(1_000_000);
    let millis = i64::try_from(millis)
        .unwrap_or(i64::MAX / 1_000_000)
        .min(86_400_000);
    Timespec {
        tv_sec: millis / 1000,
        tv_nsec: (millis % 1000) * 1_000_000,
    }
}

fn current() -> ThreadId {
    thread::current().id()
}

/// Signals that a thread raises by its own doing: the host's crash handler should see them.
const FAULTS: [Signal; 5] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGABRT,
];

/// Starts the thread with every other signal blocked: the host's handlers run on the host's threads.
fn spawn(instance: &Arc<Instance>) -> std::io::Result<JoinHandle<()>> {
    let own = Arc::clone(instance);
    let mut signals = SigSet::all();
    for fault in FAULTS {
        signals.remove(fault);
    }
    let before = signals.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread = thread::Builder::new()
        .name("millrace-io".to_owned())
        .spawn(move || own.thread_main());
    before.thread_set_mask()?;
    thread
}
