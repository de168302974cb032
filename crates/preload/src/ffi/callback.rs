// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether an operation comes from libssl, or from a callback of the program inside a handshake.
//!
//! A callback must not pause. Lua has one virtual machine for all connections of a worker, and a second handshake that
//! enters it while the first is paused inside overwrites its frames; HAProxy holds the lock of its generated
//! certificates. So the provider asks here before it pauses a job, and blocks in a callback.
//!
//! libssl uses a private key in a few states of a handshake. All callbacks that a program gives it (for the client's
//! hello, the server's name, the certificate, a session) run in others.

use std::cell::Cell;
use std::ffi::{CStr, c_int};

use super::next::{self, Ssl, TicketCalls};

/// Results of `SSL_state_string` where libssl itself uses the private key: a server signs (TLS 1.3, TLS 1.2) or
/// decrypts, a client signs. The numbers of the states differ between versions of OpenSSL, these do not.
const USES_KEY: [&CStr; 4] = [c"TWSCV", c"TWSKE", c"TRCKE", c"TWCV"];

/// The handshake that runs on a thread.
#[derive(Clone, Copy)]
pub(super) struct Running {
    /// Valid while this is the thread's.
    pub(super) ssl: *mut Ssl,
    /// How its tickets are joined, if they are.
    pub(super) joining: Option<Joining>,
}

/// A call of `SSL_do_handshake` whose tickets are joined.
#[derive(Clone, Copy)]
pub(super) struct Joining {
    pub(super) calls: &'static TicketCalls,
    /// The socket, where OpenSSL itself writes to it; negative in HAProxy, which has its own way to send.
    pub(super) socket: c_int,
    /// Tickets written whole in this call.
    pub(super) written: usize,
}

thread_local! {
    static RUNNING: Cell<Option<Running>> = const { Cell::new(None) };
}

/// The handshake that runs on this thread.
pub(super) fn running() -> Option<Running> {
    RUNNING.get()
}

/// Notes what has become of the handshake that runs on this thread.
pub(super) fn note(running: Running) {
    RUNNING.set(Some(running));
}

/// Makes a call of libssl that may run a handshake.
///
/// # Safety
/// The connection is valid until this returns.
pub(super) unsafe fn during<T>(running: Running, call: impl FnOnce() -> T) -> T {
    let before = RUNNING.replace(Some(running));
    let result = call();
    RUNNING.set(before);
    result
}

/// Whether a callback of the program runs inside a handshake on this thread. Asked by the provider before an operation
/// for which it would pause the job.
#[unsafe(no_mangle)]
pub(super) extern "C" fn millrace_preload_in_callback() -> c_int {
    let state = next::libssl().and_then(|libssl| libssl.state_string);
    let Some((running, state_string)) = running().zip(state) else {
        return 0;
    };
    // SAFETY: the connection is valid while its handshake runs, and the string is a constant of libssl.
    let state = unsafe { CStr::from_ptr(state_string(running.ssl)) };
    c_int::from(!USES_KEY.contains(&state))
}
