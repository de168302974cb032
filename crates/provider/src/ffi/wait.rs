// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `ASYNC_JOB`s: how an operation waits for the pool without holding the application's thread.
//!
//! The application waits for a descriptor (or a callback of its own) that belongs to its wait context,
//! that is to its connection. The descriptor is an eventfd, made at the connection's first operation
//! and used again by the later ones. The wait context is told of it only when the job is about to be
//! paused: an application learns of descriptors when a job pauses, and HAProxy crashes at the end of a
//! connection whose wait context has one that it was never told of.
//!
//! Where the preload library knows the connection and the application's event loop attends to the pool, no
//! descriptor is made: the connection is *rung*, and its job names a descriptor that all of them share.
//!
//! It is owned by a [`Waiter`] that is shared by the wait context and by every completion under way.
//! With the connection's end the descriptor is closed; a completion that comes later finds the waiter
//! without one and wakes nobody. So connections that are given up while the pool is silent hold no
//! descriptors until their operations end.
//!
//! The job's stack is 32 KiB without a guard page: what runs on it is shallow, and nothing is locked
//! or borrowed across a pause.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_client::HostLoop;

use super::core::guard_bare;
use super::libcrypto::{AsyncCallback, FdCleanup, Lib, Ptr};
use super::preload::{self, given_up};
use super::provider::Provider;
use crate::oneshot::{Pause, Wake};
use crate::process::Process;
use crate::stats::Stats;

/// Its address names our descriptor among those of a wait context.
static NAME: u8 = 0;

/// A pause that returns within this was none: the application has blocked pauses
/// (`ASYNC_block_pause`) or resumes in a tight loop. Saving and restoring a stack alone takes longer.
const NO_PAUSE: Duration = Duration::from_micros(1);

/// After so many of them in a row the operation blocks instead of spinning.
const QUICK_RESUMES: u32 = 3;

/// The functions of libcrypto that pausing takes; absent where it is built without.
#[derive(Clone, Copy)]
struct Functions {
    pause_job: unsafe extern "C" fn() -> c_int,
}

/// What a wait context and the completions share.
struct Waiter {
    /// The number of the eventfd, ours as long as the wait context lives, or of the one that is shared.
    fd: RawFd,
    /// Whether it is rung.
    is_rung: bool,
    gate: Mutex<Gate>,
}

/// Closed when the wait context is freed.
struct Gate {
    bell: Bell,
    callback: Option<(AsyncCallback, Address)>,
}

/// How the application learns that the job can go on.
enum Bell {
    /// Not at all: nobody waits.
    Gone,
    Event(OwnedFd),
    /// By the ticket of the operation that is under way.
    Ticket(u64),
}

/// The application's argument for its callback.
#[derive(Clone, Copy)]
struct Address(Ptr);

// SAFETY: it is not looked at here, only handed to the callback, which the application has made to be
// called from another thread.
unsafe impl Send for Address {}

impl Wake for Waiter {
    fn wake(&self) {
        // The callback is called under the lock, so that the wait context is not freed meanwhile.
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        match &gate.bell {
            Bell::Gone => return,
            Bell::Ticket(ticket) => preload::ring(*ticket),
            Bell::Event(event) => {
                let one = 1_u64.to_ne_bytes();
                // SAFETY: an open eventfd and eight readable bytes. It fails only if the counter would
                // overflow, and then the descriptor is readable already.
                unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
            }
        }
        if let Some((callback, Address(argument))) = gate.callback {
            // SAFETY: the application's function and argument, for a wait context that is not freed.
            unsafe { callback(argument) };
        }
    }
}

/// The job that the calling thread runs now.
pub(crate) struct Job {
    waiter: Arc<Waiter>,
    lib: &'static Lib,
    wait_ctx: Ptr,
    /// Whether the wait context knows the descriptor.
    registered: Cell<bool>,
    /// Whether it had to block.
    blocked: Cell<bool>,
    functions: Functions,
    stats: Arc<Stats>,
    host_loop: Option<&'static HostLoop>,
    process: libc::pid_t,
}

impl Job {
    /// The current job, if the thread is in one and it can be paused.
    pub(crate) fn current(provider: &Provider, process: &Process) -> Option<Self> {
        let lib = provider.lib;
        // SAFETY: takes nothing.
        let job = unsafe { lib.ASYNC_get_current_job?() };
        if job.is_null() {
            return None;
        }
        // SAFETY: the current job.
        let wait_ctx = unsafe { lib.ASYNC_get_wait_ctx?(job) };
        if wait_ctx.is_null() {
            return None;
        }
        let functions = Functions {
            pause_job: lib.ASYNC_pause_job?,
        };
        let known = waiter_of(lib, wait_ctx);
        let registered = Cell::new(known.is_some());
        let ticket = preload::ticket();
        let waiter = match (known, ticket) {
            (Some(known), _) => known,
            (None, Some((_, fd))) => Waiter::rung(fd),
            (None, None) => Waiter::new()?,
        };
        {
            let mut gate = waiter.gate.lock().unwrap_or_else(PoisonError::into_inner);
            gate.callback = callback_of(lib, wait_ctx);
            if waiter.is_rung {
                gate.bell = Bell::Ticket(ticket?.0);
            }
        }
        let stats = Arc::clone(&provider.stats);
        Some(Self {
            waiter,
            lib,
            wait_ctx,
            registered,
            blocked: Cell::new(false),
            functions,
            stats,
            host_loop: process.host_loop(),
            // SAFETY: takes nothing.
            process: unsafe { libc::getpid() },
        })
    }

    /// Tells the wait context of the descriptor. The next thing has to be a pause.
    fn register(&self) -> bool {
        if !self.registered.get() {
            let registered = register(self.lib, self.wait_ctx, &self.waiter).is_some();
            self.registered.set(registered);
        }
        self.registered.get()
    }

    /// Empties the eventfd, so that it does not wake the application for nothing.
    fn drain(&self) {
        if self.waiter.is_rung {
            return;
        }
        let mut counter = [0_u8; 8];
        // SAFETY: a non-blocking eventfd, open as the job's wait context lives, and eight writable bytes.
        unsafe { libc::read(self.waiter.fd, counter.as_mut_ptr().cast(), counter.len()) };
    }

    /// Blocks until the job may go on, for a second at most.
    fn block(&self) {
        let host_loop = self.host_loop.filter(|_| self.waiter.is_rung);
        if let Some(host_loop) = host_loop {
            // The loop that looks after the pool is what is blocked here.
            host_loop.before_wait();
        }
        let mut event = libc::pollfd {
            fd: host_loop.map_or(self.waiter.fd, |host_loop| host_loop.fd().as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&mut event, 1, 1000) };
        if let Some(host_loop) = host_loop {
            host_loop.on_readable();
        }
    }
}

impl Pause for Job {
    fn waker(&self) -> Arc<dyn Wake> {
        Arc::<Waiter>::clone(&self.waiter)
    }

    fn until(&self, done: &dyn Fn() -> bool) -> bool {
        let mut quick = 0;
        loop {
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
            // SAFETY: the thread is in a job, and holds nothing that must not cross the pause.
            let resumed = unsafe { (self.functions.pause_job)() };
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
}

impl Waiter {
    /// One that no wait context knows yet.
    fn new() -> Option<Arc<Self>> {
        // SAFETY: takes numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return None;
        }
        // SAFETY: a descriptor that nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Some(Self::with(fd, Bell::Event(event)))
    }

    /// One that is rung, by a ticket that is still to be given, and names this descriptor.
    fn rung(fd: RawFd) -> Arc<Self> {
        Self::with(fd, Bell::Ticket(0))
    }

    fn with(fd: RawFd, bell: Bell) -> Arc<Self> {
        let is_rung = matches!(bell, Bell::Ticket(_));
        let callback = None;
        let gate = Mutex::new(Gate { bell, callback });
        Arc::new(Self { fd, is_rung, gate })
    }
}

/// The waiter that this wait context knows, if it knows one.
fn waiter_of(lib: &Lib, wait_ctx: Ptr) -> Option<Arc<Waiter>> {
    let name = std::ptr::from_ref(&NAME).cast::<c_void>();
    let (mut fd, mut custom): (c_int, Ptr) = (-1, std::ptr::null_mut());
    // SAFETY: a live wait context, two writable places.
    let known = unsafe { lib.ASYNC_WAIT_CTX_get_fd?(wait_ctx, name, &mut fd, &mut custom) } == 1;
    if !known || custom.is_null() {
        return None;
    }
    let waiter = custom.cast::<Waiter>().cast_const();
    // SAFETY: the wait context holds a reference that we gave it under our name.
    unsafe { Arc::increment_strong_count(waiter) };
    // SAFETY: the reference counted just now.
    Some(unsafe { Arc::from_raw(waiter) })
}

/// Makes the waiter known to the wait context, which gets a reference.
fn register(lib: &Lib, wait_ctx: Ptr, waiter: &Arc<Waiter>) -> Option<()> {
    let name = std::ptr::from_ref(&NAME).cast::<c_void>();
    let set_wait_fd = lib.ASYNC_WAIT_CTX_set_wait_fd?;
    let shared = Arc::into_raw(Arc::clone(waiter));
    let cleanup: FdCleanup = forget;
    let argument = shared.cast_mut().cast();
    // SAFETY: a live wait context; `forget` takes the reference back.
    let set = unsafe { set_wait_fd(wait_ctx, name, waiter.fd, argument, cleanup) };
    if set != 1 {
        // SAFETY: the wait context did not take it.
        drop(unsafe { Arc::from_raw(shared) });
        return None;
    }
    Some(())
}

/// The callback that the application wants instead of the descriptor, if any.
fn callback_of(lib: &Lib, wait_ctx: Ptr) -> Option<(AsyncCallback, Address)> {
    let (mut callback, mut argument): (Option<AsyncCallback>, Ptr) = (None, std::ptr::null_mut());
    let get = lib.ASYNC_WAIT_CTX_get_callback?;
    // SAFETY: a live wait context, two writable places.
    let has = unsafe { get(wait_ctx, &mut callback, &mut argument) } == 1;
    callback
        .filter(|_| has)
        .map(|callback| (callback, Address(argument)))
}

/// The wait context is freed: the connection is gone.
unsafe extern "C" fn forget(_ctx: Ptr, _name: *const c_void, _fd: c_int, custom: Ptr) {
    if custom.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: the reference that `waiter_of` gave to the wait context.
        let waiter = unsafe { Arc::from_raw(custom.cast::<Waiter>().cast_const()) };
        let mut gate = waiter.gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.bell = Bell::Gone;
        drop(gate);
        Some(())
    });
}

/// Runs `f` with all signals blocked, so that a thread that it starts never runs a signal handler of
/// the application.
pub(crate) fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a writable set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: an initialised set and a writable one.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    let value = f();
    if blocked == 0 {
        // SAFETY: the set that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    }
    value
}
