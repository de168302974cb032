// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The first line that a server's log gets from the provider: why this process reaches no node. OpenSSL does the
//! operation itself where it has the key, and many servers drop OpenSSL's errors, so nothing else would say it.

use std::ffi::OsStr;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use millrace_client::REMEDY;
use millrace_edge::servers::{HAPROXY, NGINX, is_one_of};
use millrace_operation::OperationKind;

use crate::remote::{FailureKind, PoolError};

/// The kind of standard error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StandardError {
    /// That of a server that keeps it for its log.
    OfServer,
    /// Device and inode of a terminal, a pipe or a socket: a person or a log reads it.
    Read(u64, u64),
    /// Something else: a program that closed it may have got its number for a file of data.
    Unknown,
}

impl StandardError {
    fn now() -> Self {
        let program = std::env::current_exe().ok();
        let name = program.as_deref().and_then(|path| path.file_name()).map(OsStr::as_bytes);
        if name.is_some_and(|name| is_one_of(&HAPROXY, name) || is_one_of(&NGINX, name)) {
            return Self::OfServer;
        }
        let mut found = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: takes any number, and writes the struct if it returns 0.
        if unsafe { libc::fstat(libc::STDERR_FILENO, found.as_mut_ptr()) } != 0 {
            return Self::Unknown;
        }
        // SAFETY: filled by the call above.
        let found = unsafe { found.assume_init() };
        let is_read = match found.st_mode & libc::S_IFMT {
            libc::S_IFIFO | libc::S_IFSOCK => true,
            // SAFETY: takes any number.
            libc::S_IFCHR => unsafe { libc::isatty(libc::STDERR_FILENO) == 1 },
            _ => false,
        };
        if is_read { Self::Read(found.st_dev, found.st_ino) } else { Self::Unknown }
    }

    /// Whether it takes a line at once. A pipe without a reader would end the process.
    fn is_ready(self) -> bool {
        let mut watched =
            libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, and no wait.
        let ready = unsafe { libc::poll(&raw mut watched, 1, 0) };
        self != Self::Unknown && ready == 1 && watched.revents == libc::POLLOUT
    }
}

static AT_LOAD: OnceLock<StandardError> = OnceLock::new();

/// Notes what standard error is while the program loads the provider.
pub(super) fn note_standard_error() {
    AT_LOAD.get_or_init(StandardError::now);
}

/// Writes why no node could be reached, once per process.
pub(super) fn first(operation: OperationKind, error: &PoolError, falls_back: bool) {
    static SAID_BY: AtomicI32 = AtomicI32::new(0);
    if error.kind != FailureKind::NoNode && !error.text.contains(REMEDY) {
        return;
    }
    // SAFETY: takes nothing.
    let process = unsafe { libc::getpid() };
    if SAID_BY.swap(process, Ordering::Relaxed) == process {
        return;
    }
    let Some(at_load) = AT_LOAD.get() else {
        return;
    };
    let now = if *at_load == StandardError::OfServer { *at_load } else { StandardError::now() };
    if now != *at_load || !now.is_ready() {
        return;
    }
    let end =
        if falls_back { "OpenSSL does what the pool does not" } else { "the operation failed" };
    // A closed standard error is not an error of ours.
    let _ = writeln!(std::io::stderr(), "millrace: {operation}: {error}; {end}");
}
