// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `ASYNC_JOB`s: how an operation waits for the pool without holding the application's thread.
//!
//! The application waits for a descriptor (or a callback of its own) that belongs to its wait context,
//! that is to its connection. The descriptor is an eventfd, made at the connection's first operation
//! and used again by the later ones. It is registered with the wait context only when the job is about
//! to pause, since an application reads the descriptors when a job pauses. HAProxy crashes at the end of a
//! connection whose wait context has a descriptor that HAProxy never read.
//!
//! No descriptor is made if the preload library knows the connection and the application's event loop drives the pool.
//! Then the preload library gives out a *wake token* per operation, which the completion notifies. The job names a
//! descriptor that all connections share.
//!
//! The descriptor is owned by a [`Waiter`] that the wait context and every completion in flight share.
//! The descriptor is closed when the connection ends; a later completion finds it gone and wakes nothing. So
//! connections that are given up while the pool is silent hold no descriptors.
//!
//! Without the preload library the job's stack is OpenSSL's own, 32 KiB without a guard page: what runs on it is
//! shallow. Nothing is locked or borrowed across a pause.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_client::HostLoop;
use millrace_operation::sync::lock;

use super::core::guard_bare;
use super::libcrypto::{AsyncCallback, FdCleanup, Lib, Ptr};
use super::preload::{self, given_up};
use super::state::Provider;
use crate::oneshot::{Pause, Wake};
use crate::process::ProcessState;
use crate::stats::Stats;

/// Key whose address names our descriptor among those of a wait context.
static WAIT_KEY: u8 = 0;

/// A pause that returns within this was none: the application has blocked pauses
/// (`ASYNC_block_pause`) or resumes in a tight loop. Saving and restoring a stack alone takes longer.
const NO_PAUSE: Duration = Duration::from_micros(1);

/// Number of such resumes in a row after which the operation blocks instead of spinning.
const QUICK_RESUMES: u32 = 3;

/// Bound on one wait of a blocked caller, milliseconds: a wake-up that was lost costs at most this, and the job has
/// a deadline of its own.
const POLL_MS: c_int = 1000;

/// `ASYNC_pause_job`; absent where libcrypto is built without.
type PauseJob = unsafe extern "C" fn() -> c_int;

/// State that a wait context and its completions share.
struct Waiter {
    /// The eventfd, ours as long as the wait context lives; or the descriptor that connections with
    /// wake tokens share.
    fd: RawFd,
    /// Whether wake tokens are used.
    has_token: bool,
    target: Mutex<Target>,
}

/// Means by which the application learns that the job can go on.
struct Target {
    signal: Signal,
    callback: Option<(AsyncCallback, Address)>,
}

enum Signal {
    /// The wait context is freed: no job waits.
    Gone,
    Eventfd(OwnedFd),
    /// The wake token of the operation in flight.
    Token(u64),
}

/// The application's argument for its callback.
#[derive(Clone, Copy)]
struct Address(Ptr);

// SAFETY: it is only handed to the callback, which the application has registered to be called from
// another thread.
unsafe impl Send for Address {}

impl Wake for Waiter {
    fn wake(&self) {
        // The callback is called under the lock, so that the wait context is not freed during the call.
        let target = lock(&self.target);
        match &target.signal {
            Signal::Gone => return,
            Signal::Token(token) => preload::notify(*token),
            Signal::Eventfd(event) => {
                let one = 1_u64.to_ne_bytes();
                // SAFETY: an open eventfd and eight readable bytes. It fails only if the counter would
                // overflow, and then the descriptor is readable already.
                unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        }
        if let Some((callback, Address(argument))) = target.callback {
            // SAFETY: the function and argument that the application has set for this wait context, which
            // is not freed while the lock is held: `forget` takes it.
            unsafe { callback(argument) };
        }
    }
}

/// The job that the calling thread runs now.
pub(crate) struct AsyncJob {
    waiter: Arc<Waiter>,
    lib: &'static Lib,
    wait_ctx: Ptr,
    /// Whether the wait context knows the descriptor.
    registered: Cell<bool>,
    /// Whether the thread was blocked.
    blocked: Cell<bool>,
    pause_job: PauseJob,
    stats: Arc<Stats>,
    host_loop: Option<&'static HostLoop>,
    process: libc::pid_t,
}

impl AsyncJob {
    /// The current job, if the thread is in one and it can be paused.
    pub(crate) fn current(provider: &Provider, process: &ProcessState) -> Option<Self> {
        if preload::in_callback() {
            return None;
        }
        let lib = provider.lib;
        // SAFETY: takes nothing.
        let job = unsafe { lib.ASYNC_get_current_job?() };
        if job.is_null() {
            return None;
        }
        // SAFETY: takes the job that the thread runs.
        let wait_ctx = unsafe { lib.ASYNC_get_wait_ctx?(job) };
        if wait_ctx.is_null() {
            return None;
        }
        let pause_job = lib.ASYNC_pause_job?;
        let known = waiter_of(lib, wait_ctx);
        let registered = Cell::new(known.is_some());
        let token = preload::wake_token();
        let waiter = match (known, token) {
            (Some(known), _) => known,
            (None, Some((token, fd))) => Waiter::with(fd, Signal::Token(token)),
            (None, None) => Waiter::with_eventfd()?,
        };
        {
            let mut target = lock(&waiter.target);
            target.callback = callback_of(lib, wait_ctx);
            if waiter.has_token {
                target.signal = Signal::Token(token?.0);
            }
        }
        let stats = Arc::clone(&provider.stats);
        Some(Self {
            waiter,
            lib,
            wait_ctx,
            registered,
            blocked: Cell::new(false),
            pause_job,
            stats,
            host_loop: process.host_loop(),
            // SAFETY: takes nothing.
            process: unsafe { libc::getpid() },
        })
    }

    /// Registers the descriptor with the wait context. The next call has to be a pause.
    fn register(&self) -> bool {
        if !self.registered.get() {
            let registered = register(self.lib, self.wait_ctx, &self.waiter).is_some();
            self.registered.set(registered);
        }
        self.registered.get()
    }

    /// Empties the thread's queue of errors, as OpenSSL does when a handshake begins, but not when its job continues.
    /// `SSL_get_error` looks there before it asks what the connection waits for: an error of a callback would hide the
    /// pause (HAProxy's `generate-certificates` leaves one), and that of another connection would end this one.
    fn clear_errors(&self) {
        if let Some(clear) = self.lib.ERR_clear_error {
            // SAFETY: takes nothing.
            unsafe { clear() };
        }
    }

    /// Empties the eventfd, so that it does not wake the application for nothing.
    fn drain(&self) {
        if self.waiter.has_token {
            return;
        }
        let mut counter = [0_u8; 8];
        // SAFETY: a non-blocking eventfd, which is open while the job's wait context lives, and eight
        // writable bytes.
        unsafe { libc::read(self.waiter.fd, counter.as_mut_ptr().cast(), counter.len()) };
    }

    /// Blocks until the job may go on, for a second at most.
    fn block(&self) {
        let host_loop = self.host_loop.filter(|_| self.waiter.has_token);
        if let Some(host_loop) = host_loop {
            // The loop that drives the pool is blocked, so this thread does its part.
            host_loop.before_wait();
        }
        let mut event = libc::pollfd {
            fd: host_loop.map_or(self.waiter.fd, |host_loop| host_loop.fd().as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: takes one writable pollfd.
        unsafe { libc::poll(&mut event, 1, POLL_MS) };
        if let Some(host_loop) = host_loop {
            host_loop.on_readable();
        }
    }
}

impl Pause for AsyncJob {
    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<Waiter>::clone(&self.waiter)
    }

    fn until(&self, done: &dyn Fn() -> bool) -> bool {
        let mut quick = 0;
        loop {
            self.clear_errors();
            if done() {
                self.drain();
                return true;
            }
            // SAFETY: takes nothing.
            if unsafe { libc::getpid() } != self.process || given_up() {
                return false;
            }
            if quick >= QUICK_RESUMES || !self.register() {
                self.blocked.set(true);
                self.block();
                continue;
            }
            let start = Instant::now();
            // SAFETY: the thread runs a job, and holds no lock across the pause.
            let resumed = unsafe { (self.pause_job)() };
            if done() {
                continue;
            }
            self.stats.spurious_resumes.add();
            if resumed != 1 {
                quick = QUICK_RESUMES;
            } else if start.elapsed() < NO_PAUSE {
                quick += 1;
            } else {
                quick = 0;
            }
        }
    }

    fn blocked(&self) -> bool {
        self.blocked.get()
    }

    fn spawn(
        &self,
        thread: std::thread::Builder,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<()> {
        spawn_without_signals(thread, body)
    }
}

impl Waiter {
    /// A waiter with an eventfd, which no wait context knows yet.
    fn with_eventfd() -> Option<Arc<Self>> {
        // SAFETY: takes numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return None;
        }
        // SAFETY: open, made above, and owned by nothing else.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Some(Self::with(fd, Signal::Eventfd(event)))
    }

    fn with(fd: RawFd, signal: Signal) -> Arc<Self> {
        Arc::new(Self {
            fd,
            has_token: matches!(signal, Signal::Token(_)),
            target: Mutex::new(Target { signal, callback: None }),
        })
    }
}

/// The waiter that is registered with this wait context.
fn waiter_of(lib: &Lib, wait_ctx: Ptr) -> Option<Arc<Waiter>> {
    let name = std::ptr::from_ref(&WAIT_KEY).cast::<c_void>();
    let (mut fd, mut custom): (c_int, Ptr) = (-1, std::ptr::null_mut());
    // SAFETY: takes a live wait context (that of the current job), a name, and two writable places.
    let known = unsafe { lib.ASYNC_WAIT_CTX_get_fd?(wait_ctx, name, &mut fd, &mut custom) } == 1;
    if !known || custom.is_null() {
        return None;
    }
    let waiter = custom.cast::<Waiter>().cast_const();
    // SAFETY: under our name the wait context has what `register` gave it: a pointer of `Arc::into_raw`,
    // whose reference it holds until `forget`, which runs on this thread.
    unsafe { Arc::increment_strong_count(waiter) };
    // SAFETY: takes over the reference that was counted just now.
    Some(unsafe { Arc::from_raw(waiter) })
}

/// Registers the waiter with the wait context, which gets a reference.
fn register(lib: &Lib, wait_ctx: Ptr, waiter: &Arc<Waiter>) -> Option<()> {
    let name = std::ptr::from_ref(&WAIT_KEY).cast::<c_void>();
    let set_wait_fd = lib.ASYNC_WAIT_CTX_set_wait_fd?;
    let shared = Arc::into_raw(Arc::clone(waiter));
    let cleanup: FdCleanup = forget;
    let argument = shared.cast_mut().cast();
    // SAFETY: takes a live wait context, a name, a descriptor, and a pointer for `forget`, which takes the
    // reference back when the wait context is freed.
    let set = unsafe { set_wait_fd(wait_ctx, name, waiter.fd, argument, cleanup) };
    if set != 1 {
        // SAFETY: the wait context did not take the reference, so it is ours again.
        drop(unsafe { Arc::from_raw(shared) });
        return None;
    }
    Some(())
}

/// The callback that the application has set in place of the descriptor.
fn callback_of(lib: &Lib, wait_ctx: Ptr) -> Option<(AsyncCallback, Address)> {
    let (mut callback, mut argument): (Option<AsyncCallback>, Ptr) = (None, std::ptr::null_mut());
    let get = lib.ASYNC_WAIT_CTX_get_callback?;
    // SAFETY: takes a live wait context and two writable places.
    let has = unsafe { get(wait_ctx, &mut callback, &mut argument) } == 1;
    callback.filter(|_| has).map(|callback| (callback, Address(argument)))
}

/// The wait context is freed: the connection is gone.
unsafe extern "C" fn forget(_ctx: Ptr, _name: *const c_void, _fd: c_int, custom: Ptr) {
    if custom.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: libcrypto passes what `register` gave to this wait context, a pointer of `Arc::into_raw`,
        // and calls this once: the reference is ours again.
        let waiter = unsafe { Arc::from_raw(custom.cast::<Waiter>().cast_const()) };
        let mut target = lock(&waiter.target);
        target.signal = Signal::Gone;
        drop(target);
        Some(())
    });
}

/// Starts a thread with all signals blocked, so that it never runs a signal handler of the application:
/// a thread inherits the mask of the one that starts it.
fn spawn_without_signals(
    thread: std::thread::Builder,
    body: Box<dyn FnOnce() + Send>,
) -> std::io::Result<()> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: takes a writable set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: takes an initialised set and a writable one.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    let started = thread.spawn(body);
    if blocked == 0 {
        // SAFETY: the set was filled by the successful call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    started.map(|_| ())
}
