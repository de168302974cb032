// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! System calls that fail on demand, as on a file system or kernel that lacks them, or before which the process is
//! killed.

use std::collections::BTreeMap;
use std::thread;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

/// A system call that fails.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCall {
    number: i64,
    /// Index and value of the argument with which it fails; `None`: with all.
    argument: Option<(u8, u64)>,
    /// `None`: the process ends before the call, as by SIGKILL.
    errno: Option<i32>,
}

/// The system call of `rename(3)`.
#[cfg(target_arch = "x86_64")]
const RENAME: i64 = libc::SYS_rename;
#[cfg(not(target_arch = "x86_64"))]
const RENAME: i64 = libc::SYS_renameat;

/// The system calls of which a write of a whole file consists, in their order, with their names.
pub const STEPS_OF_A_WRITE: [(&str, i64); 6] = [
    ("flock", libc::SYS_flock),
    ("fchmod", libc::SYS_fchmod),
    ("write", libc::SYS_write),
    ("fsync", libc::SYS_fsync),
    ("rename", RENAME),
    ("renameat2", libc::SYS_renameat2),
];

/// `renameat2` to a free name (`RENAME_NOREPLACE`), as NFS, 9p and FUSE answer it.
pub const NO_RENAME_TO_A_FREE_NAME: RefusedCall =
    RefusedCall { number: libc::SYS_renameat2, argument: Some((4, 1)), errno: Some(libc::EINVAL) };

/// Hard links.
pub const NO_HARD_LINKS: RefusedCall =
    RefusedCall { number: libc::SYS_linkat, argument: None, errno: Some(libc::EPERM) };

impl RefusedCall {
    /// A call before which the process is killed.
    #[must_use]
    pub const fn kills_before(number: i64) -> Self {
        Self { number, argument: None, errno: None }
    }

    /// `socket` with this family.
    #[must_use]
    pub const fn socket(family: i32, errno: i32) -> Self {
        Self {
            number: libc::SYS_socket,
            argument: Some((0, family.unsigned_abs() as u64)),
            errno: Some(errno),
        }
    }

    /// `connect`, with every address.
    #[must_use]
    pub const fn connect(errno: i32) -> Self {
        Self { number: libc::SYS_connect, argument: None, errno: Some(errno) }
    }

    /// `eventfd2`.
    #[must_use]
    pub const fn eventfd(errno: i32) -> Self {
        Self { number: libc::SYS_eventfd2, argument: None, errno: Some(errno) }
    }

    /// `memfd_create`.
    #[must_use]
    pub const fn memory_file(errno: i32) -> Self {
        Self { number: libc::SYS_memfd_create, argument: None, errno: Some(errno) }
    }
}

/// Runs `work` on a thread on which, and in the processes that it starts, these calls fail.
///
/// # Panics
/// The kernel has no filters of system calls, or `work` panics.
pub fn with_refused_calls<T: Send>(calls: &[RefusedCall], work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let run = scope.spawn(|| {
            for call in calls {
                apply_filter(&program(*call)).expect("a filter of system calls");
            }
            work()
        });
        run.join().expect("the work ended")
    })
}

fn program(call: RefusedCall) -> BpfProgram {
    let rules = call.argument.map(|(index, value)| {
        let is_equal =
            SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
                .expect("an argument");
        SeccompRule::new(vec![is_equal]).expect("a rule")
    });
    let rules = BTreeMap::from([(call.number, rules.into_iter().collect())]);
    let end = call
        .errno
        .map_or(SeccompAction::KillProcess, |errno| SeccompAction::Errno(errno.unsigned_abs()));
    let arch: TargetArch = std::env::consts::ARCH.try_into().expect("a known processor");
    SeccompFilter::new(rules, SeccompAction::Allow, end, arch)
        .and_then(TryInto::try_into)
        .expect("a valid filter")
}
