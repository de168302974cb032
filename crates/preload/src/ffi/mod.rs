// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The interposed symbols, each forwarding to the next definition.
//!
//! nginx runs its event loop and all of its TLS on one thread per worker; the lock around the table
//! is never contended there. It is held neither across a call into libssl nor across a system call.

mod next;
mod stack;

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::table::{Action, Table};
use next::{Next, next};

/// Opaque `SSL`.
pub type Ssl = c_void;

const SSL_ERROR_WANT_READ: c_int = 2;
const SSL_ERROR_WANT_ASYNC: c_int = 9;
const SSL_ERROR_WANT_ASYNC_JOB: c_int = 10;
const SSL_CTRL_MODE: c_int = 33;
const SSL_CTRL_CLEAR_MODE: c_int = 78;
const SSL_MODE_ASYNC: c_long = 0x100;

/// Wait descriptors of one connection. A provider needs one; with more than this the handshake is
/// finished without asynchrony.
const MAX_WAIT_FDS: usize = 8;

/// Times that a job is resumed with the order to give up before it is waited for. The provider gives
/// up at the first.
const MAX_CANCEL_ROUNDS: usize = 16;

/// How long one wait for a job takes at most that does not give up, in milliseconds; such a job ends
/// by the deadline of its operation.
const DRAIN_POLL_MS: c_int = 100;

/// Waits at most for a job that does not give up: with [`DRAIN_POLL_MS`] one minute, longer than any
/// deadline that the provider accepts.
const MAX_DRAIN_POLLS: usize = 600;

thread_local! {
    static CANCELLING: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    /// The name of the running program, without its folder (glibc).
    static program_invocation_short_name: *const std::ffi::c_char;
}

/// The table with the process that it belongs to: a worker inherits its master's and starts anew.
struct Owned {
    pid: u32,
    table: Table,
}

static TABLE: Mutex<Option<Owned>> = Mutex::new(None);

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
    let Some(next) = next() else {
        return -1;
    };
    if !is_nginx() {
        say_once_that_this_is_not_nginx();
        // SAFETY: forwarded unchanged.
        return unsafe { (next.ssl_do_handshake)(ssl) };
    }
    // SAFETY: `ssl` is valid by this function's contract, here and below.
    let (finished, socket) = unsafe { ((next.ssl_is_init_finished)(ssl), (next.ssl_get_fd)(ssl)) };
    if finished != 0 || socket < 0 {
        // SAFETY: forwarded unchanged.
        return unsafe { (next.ssl_do_handshake)(ssl) };
    }
    stack::install_guarded_stacks(next);
    // SAFETY: `ssl` is valid.
    unsafe { (next.ssl_ctrl)(ssl, SSL_CTRL_MODE, SSL_MODE_ASYNC, std::ptr::null_mut()) };
    // SAFETY: `ssl` is valid.
    let mut result = unsafe { (next.ssl_do_handshake)(ssl) };
    let error = match result {
        1 => 0,
        // SAFETY: `ssl` is valid and `result` is its last result.
        _ => unsafe { (next.ssl_get_error)(ssl, result) },
    };
    match error {
        SSL_ERROR_WANT_ASYNC => match wait_fds(next, ssl) {
            Some(fds) => apply(next, |table| table.paused(socket, &fds)),
            // Nothing to wait for by epoll: finish here rather than hang.
            None => result = finish_blocking(next, ssl),
        },
        SSL_ERROR_WANT_ASYNC_JOB => result = finish_blocking(next, ssl),
        _ => apply(next, |table| table.resumed(socket)),
    }
    if result == 1 {
        // SAFETY: `ssl` is valid. Reads and writes do not run as jobs.
        unsafe {
            (next.ssl_ctrl)(
                ssl,
                SSL_CTRL_CLEAR_MODE,
                SSL_MODE_ASYNC,
                std::ptr::null_mut(),
            )
        };
    }
    result
}

/// Interposed: a paused job looks to nginx like a socket that is not readable yet.
///
/// # Safety
/// As for `SSL_get_error(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_get_error(ssl: *const Ssl, result: c_int) -> c_int {
    let Some(next) = next() else {
        return 1;
    };
    // SAFETY: forwarded unchanged.
    let error = unsafe { (next.ssl_get_error)(ssl, result) };
    if error == SSL_ERROR_WANT_ASYNC && is_nginx() {
        SSL_ERROR_WANT_READ
    } else {
        error
    }
}

/// Interposed: ends a paused job before its connection is freed.
///
/// # Safety
/// As for `SSL_free(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_free(ssl: *mut Ssl) {
    let Some(next) = next() else {
        return;
    };
    if !ssl.is_null() && is_nginx() {
        // SAFETY: `ssl` is valid by this function's contract; its socket is still open in nginx.
        let (paused, socket) =
            unsafe { ((next.ssl_waiting_for_async)(ssl), (next.ssl_get_fd)(ssl)) };
        if paused != 0 {
            cancel(next, ssl);
        }
        if socket >= 0 {
            apply(next, |table| table.resumed(socket));
        }
    }
    // SAFETY: forwarded unchanged.
    unsafe { (next.ssl_free)(ssl) };
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
    let Some(next) = next() else {
        return -1;
    };
    // SAFETY: forwarded unchanged.
    let result = unsafe { (next.epoll_ctl)(epoll, operation, fd, event) };
    if result == 0 && is_nginx() {
        match operation {
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD if !event.is_null() => {
                // SAFETY: the kernel has just read a valid event from there.
                let data = unsafe { std::ptr::read_unaligned(event) }.u64;
                apply(next, |table| table.registered(fd, epoll, data));
            }
            libc::EPOLL_CTL_DEL => apply(next, |table| table.deregistered(fd)),
            _ => {}
        }
    }
    result
}

/// Interposed: forgets a socket before its number can be reused.
///
/// # Safety
/// As for `close(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    let Some(next) = next() else {
        return -1;
    };
    if is_nginx() {
        apply(next, |table| table.closed(fd));
    }
    // SAFETY: forwarded unchanged.
    unsafe { (next.close)(fd) }
}

/// Lets the table decide and does the system calls, with the lock already given back. `errno` is
/// left as it was: the caller of `epoll_ctl` or `close` must not see ours.
fn apply(next: &Next, decide: impl FnOnce(&mut Table) -> Vec<Action>) {
    let actions = {
        let mut owned = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = std::process::id();
        let owned = match &mut *owned {
            Some(owned) if owned.pid == pid => owned,
            other => other.insert(Owned {
                pid,
                table: Table::default(),
            }),
        };
        decide(&mut owned.table)
    };
    if actions.is_empty() {
        return;
    }
    // SAFETY: errno is thread-local and always valid, here and below.
    let errno = unsafe { *libc::__errno_location() };
    for action in actions {
        perform(next, action);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn perform(next: &Next, action: Action) {
    #[expect(
        clippy::cast_sign_loss,
        reason = "EPOLLET is the sign bit of an epoll flag word"
    )]
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    match action {
        Action::Arm { epoll, fd, data } => {
            let mut event = libc::epoll_event { events, u64: data };
            // SAFETY: `event` lives across the calls; descriptors are checked by the kernel.
            let added = unsafe { (next.epoll_ctl)(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
            if added != 0 {
                // SAFETY: as above. Already there: re-arm the edge.
                unsafe { (next.epoll_ctl)(epoll, libc::EPOLL_CTL_MOD, fd, &mut event) };
            }
        }
        Action::Disarm { epoll, fd } => {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: as above. A descriptor that is closed already is not an error to us.
            unsafe { (next.epoll_ctl)(epoll, libc::EPOLL_CTL_DEL, fd, &mut event) };
        }
    }
}

/// The descriptors that the paused job waits for; none if there are none or too many.
fn wait_fds(next: &Next, ssl: *mut Ssl) -> Option<Vec<c_int>> {
    let mut count = 0;
    // SAFETY: with a null list only the count is written.
    let known = unsafe { (next.ssl_get_all_async_fds)(ssl, std::ptr::null_mut(), &mut count) };
    if known != 1 || count == 0 || count > MAX_WAIT_FDS {
        return None;
    }
    let mut fds = vec![-1; count];
    // SAFETY: the list holds the `count` descriptors that were just announced; nothing ran between.
    let filled = unsafe { (next.ssl_get_all_async_fds)(ssl, fds.as_mut_ptr(), &mut count) };
    (filled == 1 && fds.iter().all(|fd| *fd >= 0)).then_some(fds)
}

/// Brings a handshake that cannot be waited for to its next want or its end, blocking.
fn finish_blocking(next: &Next, ssl: *mut Ssl) -> c_int {
    // SAFETY: `ssl` is valid. A job that is already paused still has to be resumed as one.
    unsafe {
        (next.ssl_ctrl)(
            ssl,
            SSL_CTRL_CLEAR_MODE,
            SSL_MODE_ASYNC,
            std::ptr::null_mut(),
        )
    };
    let mut result = -1;
    for _ in 0..MAX_DRAIN_POLLS {
        // SAFETY: `ssl` is valid.
        result = unsafe { (next.ssl_do_handshake)(ssl) };
        // SAFETY: `ssl` is valid and `result` is its last result.
        if result == 1 || unsafe { (next.ssl_waiting_for_async)(ssl) } == 0 {
            break;
        }
        poll_job(next, ssl);
    }
    result
}

/// Ends a paused job: resumes it with the order to give up. A job of a provider that does not know
/// the order is waited for, up to a minute.
fn cancel(next: &Next, ssl: *mut Ssl) {
    CANCELLING.set(true);
    for round in 0..MAX_CANCEL_ROUNDS + MAX_DRAIN_POLLS {
        // SAFETY: `ssl` is valid until SSL_free, which has not been called yet.
        unsafe { (next.ssl_do_handshake)(ssl) };
        // SAFETY: as above.
        if unsafe { (next.ssl_waiting_for_async)(ssl) } == 0 {
            break;
        }
        if round >= MAX_CANCEL_ROUNDS {
            poll_job(next, ssl);
        }
    }
    CANCELLING.set(false);
    // The aborted handshake left its errors behind; nginx would log them against its next call.
    // SAFETY: no arguments.
    unsafe { (next.err_clear_error)() };
}

/// Waits a little for the descriptors of a paused job.
fn poll_job(next: &Next, ssl: *mut Ssl) {
    let fds = wait_fds(next, ssl).unwrap_or_default();
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let count = polled.len() as libc::nfds_t;
    // SAFETY: the array has `count` initialised elements.
    unsafe { libc::poll(polled.as_mut_ptr(), count, DRAIN_POLL_MS) };
}

/// Whether this process is nginx: its table of connections and its use of epoll are what this
/// library understands.
fn is_nginx() -> bool {
    static IS_NGINX: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_NGINX.get_or_init(|| {
        // SAFETY: glibc sets this before any code of ours runs, and it stays valid.
        let name = unsafe { program_invocation_short_name };
        if name.is_null() {
            return false;
        }
        // SAFETY: a C string, see above. nginx overwrites the arguments, so it is read once, at the
        // first call of an interposed function in the process that later forks its workers.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        matches!(name.to_bytes(), b"nginx" | b"nginx-debug" | b"openresty")
    })
}

fn say_once_that_this_is_not_nginx() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "millrace-preload: this process is not nginx; TLS handshakes are left as they are"
        );
    }
}
