// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which program this is, and why the library does nothing in others.
//!
//! It is decided before `main`: nginx overwrites its arguments later, and the name with them.

use std::ffi::{CStr, c_char};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::{next, with_errno_kept};
use crate::program::Program;

unsafe extern "C" {
    /// The name of the running program, without its folder (glibc).
    static program_invocation_short_name: *const c_char;
}

/// What this process is: one of the numbers below. Decided once.
static PROGRAM: AtomicU8 = AtomicU8::new(OTHER);
const OTHER: u8 = 0;
const NGINX: u8 = 1;
const HAPROXY: u8 = 2;

/// Run by the dynamic linker before `main`, when every library that the program is linked with is
/// there.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    let Some(program) = named() else {
        return;
    };
    // Resolved now, so that a signal handler that closes a descriptor finds everything in place.
    if next::libc().is_none() {
        return;
    }
    match next::libssl() {
        None => Inactive::NoLibssl.say(),
        Some(libssl) if libssl.jobs.is_none() => Inactive::NoJobs.say(),
        Some(_) if !forget_at_fork() => Inactive::NoForkHandler.say(),
        Some(_) => match program {
            Program::Haproxy => PROGRAM.store(HAPROXY, Ordering::Relaxed),
            Program::Nginx => PROGRAM.store(NGINX, Ordering::Relaxed),
        },
    }
}

/// Makes forked children start with empty tables and without a loop.
fn forget_at_fork() -> bool {
    unsafe extern "C" fn forget() {
        super::tables::forget();
        super::host_loop::forget();
    }
    // SAFETY: the handler only stores atomics, and this library is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) == 0 }
}

fn named() -> Option<Program> {
    // SAFETY: glibc sets this before any constructor runs, and it is valid until `main`.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string, see above.
    Program::named(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// Whether this process is an nginx that this library understands: with its use of epoll and of a
/// shared libssl that has jobs.
pub(super) fn is_nginx() -> bool {
    PROGRAM.load(Ordering::Relaxed) == NGINX
}

/// Whether this process is a HAProxy with a shared libssl that has jobs.
pub(super) fn is_haproxy() -> bool {
    PROGRAM.load(Ordering::Relaxed) == HAPROXY
}

/// Why this library does nothing here.
#[derive(Clone, Copy)]
pub(super) enum Inactive {
    NotKnown,
    NoLibssl,
    NoJobs,
    NoForkHandler,
    NoEpoll,
}

impl Inactive {
    fn text(self) -> &'static str {
        match self {
            Self::NotKnown => "this process is neither nginx nor HAProxy",
            Self::NoLibssl => "this program has no shared libssl (is OpenSSL linked statically?)",
            Self::NoJobs => "the libssl of this program has no ASYNC_JOBs (is it OpenSSL?)",
            Self::NoForkHandler => "there is no memory for a fork handler",
            Self::NoEpoll => {
                "this nginx does not use epoll (is there a `use` in its events block?)"
            }
        }
    }

    /// Says so on standard error, once per process (a worker is one of its own).
    pub(super) fn say(self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if SAID.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = self.text();
        with_errno_kept(|| {
            // A closed standard error is no error of ours.
            drop(writeln!(
                std::io::stderr(),
                "millrace-preload: {text}; TLS handshakes are left as they are"
            ));
        });
    }
}
