// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The program that runs, and why the library does nothing in others.
//!
//! The program is known before `main`: nginx overwrites its arguments later, and the name with them.

use std::ffi::{CStr, c_char};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use super::errno::with_errno_kept;
use crate::program::HostProgram;

unsafe extern "C" {
    /// The name of the running program, without its folder (glibc).
    static program_invocation_short_name: *const c_char;
}

/// Program of this process: one of the numbers below. Decided once.
static PROGRAM: AtomicU8 = AtomicU8::new(OTHER);
const OTHER: u8 = 0;
const NGINX: u8 = 1;
const HAPROXY: u8 = 2;

/// Variable with which, if it is `off`, nginx's handshakes do not run as jobs: without a pool nothing in them waits.
const JOBS_VARIABLE: &str = "MILLRACE_JOBS";

static JOBS_OFF: AtomicBool = AtomicBool::new(false);

/// Whether handshakes are left as they are.
pub(super) fn jobs_are_off() -> bool {
    JOBS_OFF.load(Ordering::Relaxed)
}

/// Makes this process the given program. Its handshakes are left as they are if the environment says so, or if their
/// jobs would get no stack of ours.
pub(super) fn set(program: HostProgram, stacks: Result<(), Inactive>) {
    let off = std::env::var_os(JOBS_VARIABLE).is_some_and(|value| value == "off");
    if let (false, Err(inactive)) = (off, stacks) {
        inactive.report();
    }
    JOBS_OFF.store(off || stacks.is_err(), Ordering::Relaxed);
    match program {
        HostProgram::Haproxy => PROGRAM.store(HAPROXY, Ordering::Relaxed),
        HostProgram::Nginx => PROGRAM.store(NGINX, Ordering::Relaxed),
    }
}

/// The program, by the name that it was started with and by that of its file: `exec -a nginx` makes no program nginx.
/// Where there is no `/proc`, the first name decides.
pub(super) fn identify() -> Option<HostProgram> {
    // SAFETY: glibc sets this before any constructor runs, and it is valid until `main`.
    let name = unsafe { program_invocation_short_name };
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string, see above.
    let program = HostProgram::named(unsafe { CStr::from_ptr(name) }.to_bytes())?;
    let Ok(file) = fs::read_link("/proc/self/exe") else {
        return Some(program);
    };
    let file = file.file_name().map(OsStrExt::as_bytes)?;
    (HostProgram::named(file) == Some(program)).then_some(program)
}

/// Device and inode of what standard error was before `main` in a program that is not known; 0 if a notice
/// there could end up in a file of data.
static STDERR_DEVICE: AtomicU64 = AtomicU64::new(0);
static STDERR_INODE: AtomicU64 = AtomicU64::new(0);

/// Notes what standard error is now, for [`Inactive::report`].
pub(super) fn note_stderr() {
    if let Some((device, inode)) = listener_on_stderr() {
        STDERR_DEVICE.store(device, Ordering::Relaxed);
        STDERR_INODE.store(inode, Ordering::Relaxed);
    }
}

/// Device and inode of standard error, if it is a terminal, a pipe or a socket (that of the journal): if a
/// person or a log reads it.
fn listener_on_stderr() -> Option<(u64, u64)> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: takes any number, and writes the struct if it returns 0.
    if unsafe { libc::fstat(libc::STDERR_FILENO, found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the call above.
    let found = unsafe { found.assume_init() };
    let read = match found.st_mode & libc::S_IFMT {
        libc::S_IFIFO | libc::S_IFSOCK => true,
        // SAFETY: takes any number.
        libc::S_IFCHR => unsafe { libc::isatty(libc::STDERR_FILENO) == 1 },
        _ => false,
    };
    read.then_some((found.st_dev, found.st_ino))
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
    NoJobStacks,
    JobsNotReached,
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
            Self::NoJobStacks => "there are no stacks for jobs on this processor",
            Self::JobsNotReached => {
                "libssl starts its jobs past this library (is libcrypto a part of it, or another library before \
                 this one in LD_PRELOAD?)"
            }
        }
    }

    /// Writes the reason to standard error, once per process (a worker is one of its own). A program that is not known
    /// may have closed standard error and got its number for a file of its own. There the notice is written
    /// only to the terminal, pipe or socket that was standard error before `main`.
    pub(super) fn report(self) {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        if REPORTED.swap(true, Ordering::Relaxed) {
            return;
        }
        let before = (STDERR_DEVICE.load(Ordering::Relaxed), STDERR_INODE.load(Ordering::Relaxed));
        let not_known = matches!(self, Self::NotKnown);
        if not_known && with_errno_kept(listener_on_stderr) != Some(before) {
            return;
        }
        let text = self.text();
        with_errno_kept(|| {
            // A closed standard error is not an error of ours.
            drop(writeln!(
                std::io::stderr(),
                "millrace-preload: {text}; TLS handshakes are left as they are"
            ));
        });
    }
}
