// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Joins the tickets that a TLS 1.3 server sends at the end of a full handshake into one packet.
//!
//! libssl writes each ticket (two by default) for itself, and a packet costs a server more than making the ticket.
//! All tickets but the last are written with `MSG_MORE`: the kernel keeps them until the next write, which follows
//! within the same call of `SSL_do_handshake`. If that write never comes, the kernel sends what it has on its own
//! timer, after 200 ms at most. No byte of the connection changes.
//!
//! The tickets are joined in nginx and HAProxy where the environment variable [`VARIABLE`] says so.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::callback::{self, Joining, Running};
use super::errno::set_errno;
use super::next::{self, Libc, Ssl};

/// Turns the joining on, with the value `on`.
const VARIABLE: &str = "MILLRACE_JOIN_TICKETS";

/// Result of `SSL_state_string` while a server writes a ticket ("TLSv1.3 write session ticket"). The numbers of the
/// states differ between versions of OpenSSL, this does not.
const WRITES_TICKET: &CStr = c"TWST";

static WANTED: AtomicBool = AtomicBool::new(false);

/// Counter of joined tickets; null while the provider has not named it.
static JOINED: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Reads the environment variable, before `main` of a program that is known.
pub(super) fn allow() {
    let wanted = std::env::var_os(VARIABLE).is_some_and(|value| value == "on");
    WANTED.store(wanted, Ordering::Relaxed);
}

/// How a call of `SSL_do_handshake` joins its tickets. `None` if it does not.
///
/// # Safety
/// `ssl` is valid.
pub(super) unsafe fn joining(ssl: *mut Ssl) -> Option<Joining> {
    if !WANTED.load(Ordering::Relaxed) {
        return None;
    }
    let libssl = next::libssl()?;
    let (calls, jobs) = libssl.tickets.as_ref().zip(libssl.jobs.as_ref())?;
    // SAFETY: by this function's contract.
    let socket = unsafe { (jobs.get_fd)(ssl) };
    Some(Joining { calls, socket, written: 0 })
}

/// The provider calls it at its start: joined tickets are counted there.
///
/// # Safety
/// `joined` stays valid as long as the process lives.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn millrace_preload_count_tickets(joined: *mut AtomicU64) {
    JOINED.store(joined, Ordering::Release);
}

/// A ticket that a handshake writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ticket {
    /// Another one follows at once.
    Followed,
    Last,
}

impl Joining {
    /// The ticket that this connection writes now. `None` if it writes something else.
    ///
    /// # Safety
    /// `ssl` is valid.
    unsafe fn ticket(&self, ssl: *mut Ssl) -> Option<Ticket> {
        let calls = self.calls;
        // SAFETY: by this function's contract; the string is a constant of libssl.
        let state = unsafe { CStr::from_ptr((calls.state_string)(ssl)) };
        // SAFETY: by this function's contract.
        if state != WRITES_TICKET || unsafe { (calls.is_server)(ssl) } != 1 {
            return None;
        }
        // SAFETY: as above.
        let tickets = match unsafe { (calls.session_reused)(ssl) } {
            // SAFETY: as above.
            0 => unsafe { (calls.get_num_tickets)(ssl) },
            // A resumption sends one ticket, whatever the number is.
            _ => 1,
        };
        Some(if self.written + 1 < tickets { Ticket::Followed } else { Ticket::Last })
    }
}

fn running_joining() -> Option<Joining> {
    callback::running()?.joining
}

/// Writes `len` bytes. If they are a ticket that another one follows, `more` writes them, for which the kernel waits
/// for the next write; otherwise `plain` does.
fn joined(
    fd: c_int,
    len: usize,
    more: impl FnOnce() -> isize,
    plain: impl FnOnce() -> isize,
) -> isize {
    let found = callback::running().and_then(|Running { ssl, joining }| {
        let joining = joining.filter(|joining| joining.socket < 0 || joining.socket == fd)?;
        // SAFETY: the connection is valid while its handshake runs.
        Some((ssl, joining, unsafe { joining.ticket(ssl) }?))
    });
    let Some((ssl, joining, ticket)) = found else {
        return plain();
    };
    let sent = match ticket {
        Ticket::Followed => more(),
        Ticket::Last => plain(),
    };
    // One that was written in part is tried again, and counts when it is whole.
    if usize::try_from(sent) == Ok(len) {
        let joining = Some(Joining { written: joining.written + 1, ..joining });
        callback::note(Running { ssl, joining });
        // SAFETY: null, or promised to be valid.
        let counter = unsafe { JOINED.load(Ordering::Acquire).as_ref() };
        if let Some(counter) = counter.filter(|_| ticket == Ticket::Followed) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
    sent
}

/// Interposed: OpenSSL's own way to a socket, in nginx.
///
/// # Safety
/// As for `write(2)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, len: usize) -> isize {
    let Some(Libc { write, send, .. }) = next::libc() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: forwarded unchanged.
    let plain = || unsafe { write(fd, buffer, len) };
    if running_joining().is_none_or(|joining| joining.socket != fd) {
        return plain();
    }
    // SAFETY: the descriptor is a socket, to which this is the same write but for the flags.
    joined(fd, len, || unsafe { send(fd, buffer, len, libc::MSG_MORE) }, plain)
}

/// Interposed: HAProxy's way to a socket.
///
/// # Safety
/// As for `send(2)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn send(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    let Some(Libc { send, .. }) = next::libc() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: forwarded unchanged.
    let plain = || unsafe { send(fd, buffer, len, flags) };
    if running_joining().is_none() {
        return plain();
    }
    // SAFETY: forwarded, with one more flag.
    joined(fd, len, || unsafe { send(fd, buffer, len, flags | libc::MSG_MORE) }, plain)
}
