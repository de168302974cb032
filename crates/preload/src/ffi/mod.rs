// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The interposed symbols, each forwarding to the next definition. They carry no version, so that
//! they stand for every version of a symbol that a program asks for.
//!
//! Debian's libssl calls its own public functions through its symbol table, so all of these may also
//! be called from inside one another; each leaves everything as it is when there is nothing to do.

mod callback;
mod decoders;
mod errno;
mod fetch;
mod generation;
mod host_loop;
mod job;
mod next;
mod program;
mod sigalgs;
mod stack;
mod start;
mod switch;
mod tables;
mod tickets;

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};

use callback::Running;
use errno::{set_errno, with_errno_kept};
use host_loop::{EmptyWait, HostWait, WaitTime};
use next::{Jobs, Libc, Ssl, ThreadStart};
use program::{Inactive, is_haproxy, is_nginx};
use tables::apply;

const SSL_ERROR_SSL: c_int = 1;
const SSL_ERROR_WANT_READ: c_int = 2;
const SSL_ERROR_WANT_ASYNC: c_int = 9;
/// `SSL_want` of a connection whose job is paused, and of one that got no job.
const SSL_ASYNC_PAUSED: c_int = 5;
const SSL_ASYNC_NO_JOBS: c_int = 6;
const SSL_READ_EARLY_DATA_ERROR: c_int = 0;
const SSL_CTRL_MODE: c_int = 33;
const SSL_CTRL_CLEAR_MODE: c_int = 78;
const SSL_MODE_ASYNC: c_long = 0x100;

/// Wait descriptors of one connection. A provider needs one; with more than this the handshake is
/// finished without asynchrony.
const MAX_WAIT_FDS: usize = 8;

/// Times that a job is resumed with the order to give up, before this waits for its end. The provider gives
/// up at the first.
const MAX_CANCEL_ROUNDS: usize = 16;

/// Longest single wait for a job that does not give up, in milliseconds. Such a job ends by the deadline
/// of its operation.
const DRAIN_POLL_MS: c_int = 100;

/// Most waits for a job that does not give up: with [`DRAIN_POLL_MS`] one minute, longer than any deadline
/// that the provider accepts.
const MAX_DRAIN_POLLS: usize = 600;

thread_local! {
    static CANCELLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the job that runs on this thread should give up: its connection is being freed.
///
/// Asked by the provider each time one of its paused jobs is resumed.
#[unsafe(no_mangle)]
pub extern "C" fn millrace_preload_cancelling() -> c_int {
    c_int::from(CANCELLING.get())
}

/// Interposed: runs the handshake as an ASYNC job if its socket can be waited for.
///
/// # Safety
/// As for `SSL_do_handshake(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_do_handshake(ssl: *mut Ssl) -> c_int {
    let Some(libssl) = next::libssl() else {
        return -1;
    };
    fetch::handshake_started();
    if is_haproxy() {
        host_loop::handshake_started();
    }
    let call = || {
        // SAFETY: `ssl` is valid by this function's contract.
        let running = Running { ssl, joining: unsafe { tickets::joining(ssl) } };
        // SAFETY: as above; forwarded unchanged.
        unsafe { callback::during(running, || (libssl.do_handshake)(ssl)) }
    };
    // SAFETY: `ssl` is valid by this function's contract.
    match unsafe { Handshake::new(ssl) } {
        Some(handshake) => handshake.run(&call, |result| result == 1),
        None => call(),
    }
}

/// Interposed: with `ssl_early_data` nginx begins its handshakes here.
///
/// # Safety
/// As for `SSL_read_early_data(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_read_early_data(
    ssl: *mut Ssl,
    buffer: *mut c_void,
    len: usize,
    read: *mut usize,
) -> c_int {
    let Some(next) = next::libssl().and_then(|libssl| libssl.read_early_data) else {
        return SSL_READ_EARLY_DATA_ERROR;
    };
    fetch::handshake_started();
    if is_haproxy() {
        host_loop::handshake_started();
    }
    let running = Running { ssl, joining: None };
    // SAFETY: `ssl` is valid by this function's contract; forwarded unchanged.
    let call = || unsafe { callback::during(running, || next(ssl, buffer, len, read)) };
    // SAFETY: `ssl` is valid by this function's contract.
    match unsafe { Handshake::new(ssl) } {
        // Once there is early data, the operation of the private key is done.
        Some(handshake) => handshake.run(&call, |result| result != SSL_READ_EARLY_DATA_ERROR),
        None => call(),
    }
}

/// Interposed: a paused job looks to nginx like a socket that is not readable yet, and to HAProxy like a paused job
/// whatever is in the queue of errors.
///
/// # Safety
/// As for `SSL_get_error(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_get_error(ssl: *const Ssl, result: c_int) -> c_int {
    let Some(libssl) = next::libssl() else {
        return SSL_ERROR_SSL;
    };
    if !is_nginx() && !is_haproxy() {
        Inactive::NotKnown.report();
    } else if let Some(jobs) = libssl.jobs.as_ref().filter(|_| result <= 0) {
        // Asked of the connection and not of the thread's queue of errors, which `SSL_get_error`
        // would look at first: it may hold errors of something else.
        // SAFETY: `ssl` is valid by this function's contract.
        if unsafe { (jobs.want)(ssl) } == SSL_ASYNC_PAUSED {
            if is_nginx() {
                return SSL_ERROR_WANT_READ;
            }
            // Left by the job before it paused, as HAProxy's `generate-certificates` does.
            // SAFETY: takes nothing.
            unsafe { (jobs.clear_errors)() };
            return SSL_ERROR_WANT_ASYNC;
        }
    }
    // SAFETY: forwarded unchanged.
    unsafe { (libssl.get_error)(ssl, result) }
}

/// Interposed: ends a paused job before its connection is freed.
///
/// # Safety
/// As for `SSL_free(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_free(ssl: *mut Ssl) {
    let Some(libssl) = next::libssl() else {
        return;
    };
    if !ssl.is_null()
        && is_nginx()
        && let Some(jobs) = &libssl.jobs
        && let Some(libc) = next::libc()
    {
        // SAFETY: `ssl` is valid by this function's contract; its socket is still open in nginx.
        let (paused, socket) = unsafe { ((jobs.waiting_for_async)(ssl), (jobs.get_fd)(ssl)) };
        if paused != 0 {
            // SAFETY: as above.
            cancel(jobs, ssl, &|| unsafe { (libssl.do_handshake)(ssl) });
        }
        if socket >= 0 {
            // Taking eventfds out does not fail.
            let _ = apply(libc, |table| table.resumed(socket));
        }
    }
    // SAFETY: forwarded unchanged.
    unsafe { (libssl.free)(ssl) };
}

/// Interposed: HAProxy asks this when it closes a connection, and nowhere else. It would wait for the
/// job's descriptor and then free the connection, which holds the only reference to the job, whose stack
/// then leaks. So the job is ended here, while its connection is intact.
///
/// # Safety
/// As for `SSL_waiting_for_async(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_waiting_for_async(ssl: *mut Ssl) -> c_int {
    let Some(libssl) = next::libssl() else {
        return 0;
    };
    let Some(jobs) = &libssl.jobs else {
        return 0;
    };
    // SAFETY: forwarded unchanged.
    let waiting = || unsafe { (jobs.waiting_for_async)(ssl) };
    if waiting() != 0 && is_haproxy() {
        // SAFETY: `ssl` is valid by this function's contract.
        with_errno_kept(|| cancel(jobs, ssl, &|| unsafe { (libssl.do_handshake)(ssl) }));
    }
    waiting()
}

/// Interposed: learns under which data a socket is registered.
///
/// # Safety
/// As for `epoll_ctl(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let Some(libc) = next::libc() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: forwarded unchanged.
    let result = unsafe { (libc.epoll_ctl)(epoll, operation, fd, event) };
    if result != 0 || !is_nginx() {
        return result;
    }
    let armed = match operation {
        libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if !event.is_null() => {
            // SAFETY: the kernel has just read a valid event from there.
            let data = unsafe { std::ptr::read_unaligned(event) }.u64;
            apply(libc, |table| table.registered(fd, epoll, data))
        }
        libc::EPOLL_CTL_DEL => apply(libc, |table| table.deregistered(fd)),
        _ => Ok(()),
    };
    match armed {
        Ok(()) => 0,
        // On an error nginx closes the connection. Otherwise it would wait for an event that never comes.
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// Interposed: gives the provider its turns in the program's event loop (see `host_loop`).
///
/// # Safety
/// As for `epoll_wait(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    let entry = |libc: &Libc, time: WaitTime| {
        let timeout = if time == WaitTime::Zero { 0 } else { timeout };
        // SAFETY: forwarded; a timeout of zero asks for less.
        unsafe { (libc.epoll_wait)(epoll, events, max, timeout) }
    };
    // SAFETY: `entry` writes to `events`, by this function's contract.
    unsafe { wait(epoll, events, max, timeout >= 0, &entry) }
}

/// Interposed: as [`epoll_wait`].
///
/// # Safety
/// As for `epoll_pwait(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
    signals: *const libc::sigset_t,
) -> c_int {
    let entry = |libc: &Libc, time: WaitTime| {
        let timeout = if time == WaitTime::Zero { 0 } else { timeout };
        // SAFETY: forwarded; a timeout of zero asks for less.
        unsafe { (libc.epoll_pwait)(epoll, events, max, timeout, signals) }
    };
    // SAFETY: `entry` writes to `events`, by this function's contract.
    unsafe { wait(epoll, events, max, timeout >= 0, &entry) }
}

/// Interposed: as [`epoll_wait`].
///
/// # Safety
/// As for `epoll_pwait2(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: *const libc::timespec,
    signals: *const libc::sigset_t,
) -> c_int {
    static ZERO: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let entry = |libc: &Libc, time: WaitTime| {
        let Some(next) = libc.epoll_pwait2 else {
            set_errno(libc::ENOSYS);
            return -1;
        };
        let timeout = if time == WaitTime::Zero { &raw const ZERO } else { timeout };
        // SAFETY: forwarded; a timeout of zero asks for less.
        unsafe { next(epoll, events, max, timeout, signals) }
    };
    // SAFETY: `entry` writes to `events`, by this function's contract.
    unsafe { wait(epoll, events, max, !timeout.is_null(), &entry) }
}

/// One wait of the program for its events, through `entry`. `bounded` says whether the program's timeout ends.
///
/// # Safety
/// `entry` writes as many events to `events` as it returns, and there is room for `max`.
unsafe fn wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    bounded: bool,
    entry: &dyn Fn(&Libc, WaitTime) -> c_int,
) -> c_int {
    let Some(libc) = next::libc() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    let when_empty = if is_nginx() {
        EmptyWait::TimedOut
    } else if is_haproxy() {
        EmptyWait::Interrupted
    } else {
        return entry(libc, WaitTime::Program);
    };
    let waiting =
        HostWait { epoll, events, max, bounded, when_empty, next: &|time| entry(libc, time) };
    // SAFETY: by this function's contract.
    unsafe { host_loop::wait(libc, &waiting) }
}

/// Interposed: counts the threads of HAProxy (see `host_loop`).
///
/// # Safety
/// As for `pthread_create(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: ThreadStart,
    argument: *mut c_void,
) -> c_int {
    let Some(next) = next::libc().and_then(|libc| libc.pthread_create) else {
        return libc::EAGAIN;
    };
    // SAFETY: forwarded unchanged.
    let result = unsafe { next(thread, attributes, start, argument) };
    if result == 0 && is_haproxy() {
        host_loop::thread_started();
    }
    result
}

/// Interposed: as [`pthread_create`]. HAProxy starts and joins a thread before it has any, so that libgcc is
/// loaded before it changes its root.
///
/// # Safety
/// As for `pthread_join(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_join(thread: libc::pthread_t, value: *mut *mut c_void) -> c_int {
    let Some(next) = next::libc().and_then(|libc| libc.pthread_join) else {
        return libc::ESRCH;
    };
    // SAFETY: forwarded unchanged.
    let result = unsafe { next(thread, value) };
    if result == 0 && is_haproxy() {
        host_loop::thread_joined();
    }
    result
}

/// Interposed: forgets a socket before its number can be reused.
///
/// # Safety
/// As for `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    let Some(libc) = next::libc() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    if is_nginx() {
        // Taking eventfds out does not fail.
        let _ = apply(libc, |table| table.closed(fd));
    }
    // SAFETY: forwarded unchanged.
    unsafe { (libc.close)(fd) }
}

fn warn_if_unknown_program() {
    if !is_haproxy() {
        Inactive::NotKnown.report();
    }
}

/// A handshake that can run as a job.
struct Handshake {
    libc: &'static Libc,
    jobs: &'static Jobs,
    ssl: *mut Ssl,
    socket: c_int,
}

impl Handshake {
    /// The handshake of this connection. `None` if there is nothing to do here, or no way to wait for it.
    ///
    /// # Safety
    /// `ssl` is valid, now and as long as this lives.
    unsafe fn new(ssl: *mut Ssl) -> Option<Self> {
        if !is_nginx() {
            warn_if_unknown_program();
            return None;
        }
        if program::jobs_are_off() {
            return None;
        }
        let libc = next::libc()?;
        let jobs = next::libssl()?.jobs.as_ref()?;
        // SAFETY: `ssl` is valid.
        let (finished, socket) = unsafe { ((jobs.is_init_finished)(ssl), (jobs.get_fd)(ssl)) };
        if finished != 0 || socket < 0 {
            return None;
        }
        // A worker that waits by epoll has registered its listeners long before its first handshake.
        if !tables::with(|table| table.is_used()) {
            Inactive::NoEpoll.report();
            return None;
        }
        Some(Self { libc, jobs, ssl, socket })
    }

    /// Makes the call with jobs allowed. Reads and writes afterwards do not run as jobs.
    fn run(&self, call: &dyn Fn() -> c_int, done: impl Fn(c_int) -> bool) -> c_int {
        self.set_mode(SSL_CTRL_MODE);
        let call = &|| host_loop::on_socket(self.socket, call);
        let mut result = call();
        // nginx looks at it after a failed handshake.
        with_errno_kept(|| {
            match self.want() {
                SSL_ASYNC_PAUSED if self.wait_by_epoll() => return,
                SSL_ASYNC_PAUSED => result = self.finish_blocking(call),
                SSL_ASYNC_NO_JOBS => {
                    self.set_mode(SSL_CTRL_CLEAR_MODE);
                    result = call();
                }
                _ => {}
            }
            // Taking eventfds out does not fail.
            let _ = apply(self.libc, |table| table.resumed(self.socket));
            if done(result) {
                self.set_mode(SSL_CTRL_CLEAR_MODE);
            }
        });
        result
    }

    fn set_mode(&self, control: c_int) {
        // SAFETY: `ssl` is valid.
        unsafe { (self.jobs.ctrl)(self.ssl, control, SSL_MODE_ASYNC, std::ptr::null_mut()) };
    }

    fn want(&self) -> c_int {
        // SAFETY: `ssl` is valid.
        unsafe { (self.jobs.want)(self.ssl) }
    }

    /// Registers the descriptors of the paused job as shadows of the socket. False if that is not possible:
    /// then nothing would ever wake the connection.
    fn wait_by_epoll(&self) -> bool {
        let Some(fds) = wait_fds(self.jobs, self.ssl) else {
            return false;
        };
        if apply(self.libc, |table| table.paused(self.socket, &fds)).is_err() {
            return false;
        }
        // Errors that the job left in the thread's queue before it paused are none of the handshake's;
        // nginx would log them against another connection.
        // SAFETY: takes nothing.
        unsafe { (self.jobs.clear_errors)() };
        true
    }

    /// Brings a handshake that cannot be waited for to its next want or its end, blocking. The mode
    /// stays: without it, libssl would begin again instead of resuming the job.
    fn finish_blocking(&self, call: &dyn Fn() -> c_int) -> c_int {
        let mut result = -1;
        for _ in 0..MAX_DRAIN_POLLS {
            poll_job(self.jobs, self.ssl);
            result = call();
            if self.want() != SSL_ASYNC_PAUSED {
                break;
            }
        }
        result
    }
}

/// The descriptors that the paused job waits for. `None` if there are none or too many.
fn wait_fds(jobs: &Jobs, ssl: *mut Ssl) -> Option<Vec<c_int>> {
    let mut count = 0;
    // SAFETY: with a null list only the count is written.
    let known = unsafe { (jobs.get_all_async_fds)(ssl, std::ptr::null_mut(), &mut count) };
    if known != 1 || count == 0 || count > MAX_WAIT_FDS {
        return None;
    }
    let mut fds = vec![-1; count];
    // SAFETY: the list holds the `count` descriptors that were just announced; nothing ran between.
    let filled = unsafe { (jobs.get_all_async_fds)(ssl, fds.as_mut_ptr(), &mut count) };
    (filled == 1 && fds.iter().all(|fd| *fd >= 0)).then_some(fds)
}

/// Ends a paused job: resumes it with the order to give up. If its provider does not know the order, waits for
/// its end, a minute at most.
fn cancel(jobs: &Jobs, ssl: *mut Ssl, resume: &dyn Fn() -> c_int) {
    // The mode is still set, by `Handshake::run` or by HAProxy: only so does libssl resume the job.
    CANCELLING.set(true);
    for round in 0..MAX_CANCEL_ROUNDS + MAX_DRAIN_POLLS {
        resume();
        // SAFETY: `ssl` is valid until SSL_free, which has not been called yet.
        if unsafe { (jobs.waiting_for_async)(ssl) } == 0 {
            break;
        }
        if round >= MAX_CANCEL_ROUNDS {
            poll_job(jobs, ssl);
        }
    }
    CANCELLING.set(false);
    // The aborted handshake left errors in the thread's queue; the program would read them as errors of
    // its next call.
    // SAFETY: takes nothing.
    unsafe { (jobs.clear_errors)() };
}

/// Waits a little for the descriptors of a paused job.
fn poll_job(jobs: &Jobs, ssl: *mut Ssl) {
    let fds = wait_fds(jobs, ssl).unwrap_or_default();
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array has `count` initialised elements.
    unsafe { libc::poll(polled.as_mut_ptr(), count, DRAIN_POLL_MS) };
}
