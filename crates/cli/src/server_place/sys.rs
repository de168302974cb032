// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The filters of another process, read with ptrace(2): `PTRACE_SECCOMP_GET_FILTER` needs `CAP_SYS_ADMIN`, a kernel
//! with `CONFIG_CHECKPOINT_RESTORE` (Debian's have it), and a reader without filters of its own.

use std::io;
use std::ptr;

use seccompiler::{BpfProgram, sock_filter};

/// Request of ptrace(2), which libc does not name.
const SECCOMP_GET_FILTER: libc::c_uint = 0x420c;

/// In the upper half of the status of a stop that no signal made.
const EVENT_STOP: i32 = 128;

/// Bound on the filters of a process: the kernel allows 32,768 instructions, and counts each filter as four more than
/// it has.
const MAX_FILTERS: usize = 32_768 / 5;

/// The filters of a process's first thread, the first that it got first. The process is stopped while they are read,
/// some microseconds; if this process is killed then, the kernel lets the other one go on.
///
/// # Errors
/// There is no such process, or this process may not trace it or read its filters.
pub(super) fn filters(pid: u32) -> io::Result<Vec<BpfProgram>> {
    let stopped = Stopped::stop(libc::pid_t::try_from(pid).map_err(io::Error::other)?)?;
    let mut filters = Vec::new();
    while filters.len() < MAX_FILTERS {
        match stopped.filter(filters.len()) {
            Ok(filter) => filters.push(filter),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(error),
        }
    }
    filters.reverse();
    Ok(filters)
}

/// A process that is stopped until this is dropped.
struct Stopped {
    pid: libc::pid_t,
    /// The signal that it would have got.
    signal: i32,
}

impl Stopped {
    fn stop(pid: libc::pid_t) -> io::Result<Self> {
        // SAFETY: seizing takes no memory of this process.
        result(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0_usize, 0_usize) })?;
        let mut stopped = Self { pid, signal: 0 };
        // SAFETY: interrupting takes no memory of this process.
        result(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0_usize, 0_usize) })?;
        let mut status = 0;
        // SAFETY: a place for a status.
        result(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }.into())?;
        if !libc::WIFSTOPPED(status) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if status >> 16 != EVENT_STOP {
            stopped.signal = libc::WSTOPSIG(status);
        }
        Ok(stopped)
    }

    /// The filter at this place, counted from the last that the process got.
    fn filter(&self, place: usize) -> io::Result<BpfProgram> {
        let none = ptr::null_mut::<sock_filter>();
        // SAFETY: without memory the kernel tells the number of instructions.
        let len = result(unsafe { libc::ptrace(SECCOMP_GET_FILTER, self.pid, place, none) })?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut filter = vec![sock_filter { code: 0, jt: 0, jf: 0, k: 0 }; len];
        // SAFETY: as many instructions as the kernel told of this filter, which never changes.
        result(unsafe { libc::ptrace(SECCOMP_GET_FILTER, self.pid, place, filter.as_mut_ptr()) })?;
        Ok(filter)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: takes no memory of this process. An error means that the process has ended.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.pid, 0_usize, i64::from(self.signal)) };
    }
}

fn result(returned: libc::c_long) -> io::Result<libc::c_long> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}
