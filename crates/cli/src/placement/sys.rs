// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `sched_setattr(2)` and `set_mempolicy(2)`, which neither libc nor rustix wraps.

use std::io;
use std::time::Duration;

/// `struct sched_attr` of `linux/sched/types.h` in its first version, which every kernel since 3.14 takes.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Size of its first version, in bytes, by which the kernel tells the versions apart.
const SIZE: u32 = 48;
const _: () = assert!(size_of::<SchedAttr>() == SIZE as usize);

/// Keep the policy, and the parameters that are not given here (`linux/sched.h`).
const SCHED_FLAG_KEEP_POLICY: u64 = 0x08;

/// Sets slice and nice value of the calling thread, and of threads that it starts later. Linux 6.12 and later use
/// the slice; older kernels ignore it. The kernel clamps it to 0.1 to 100 ms.
///
/// # Errors
/// The kernel refuses: a lower nice value than now takes `CAP_SYS_NICE` or `RLIMIT_NICE`.
pub(super) fn schedule(slice: Duration, nice: i32) -> io::Result<()> {
    let attributes = SchedAttr {
        size: SIZE,
        flags: SCHED_FLAG_KEEP_POLICY,
        nice,
        runtime: slice.as_nanos().try_into().unwrap_or(u64::MAX),
        ..SchedAttr::default()
    };
    // SAFETY: the kernel reads [`SIZE`] bytes of `attributes`, which is that long and outlives the call. It
    // changes only the scheduling of this thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Nodes that a mask of nodes has room for: the kernel's own limit on x86 and Arm.
const MAX_NODES: usize = 1024;

/// Makes the calling thread, and programs that it starts, take memory of this NUMA node first. A full node is not
/// an error: others follow.
///
/// # Errors
/// The node does not exist; or a container forbids it.
pub(super) fn prefer_node(node: usize) -> io::Result<()> {
    const BITS: usize = u64::BITS as usize;
    let mut mask = [0_u64; MAX_NODES / BITS];
    let word = mask.get_mut(node / BITS).ok_or(io::ErrorKind::InvalidInput)?;
    *word = 1 << (node % BITS);
    // SAFETY: the kernel reads `MAX_NODES` bits of `mask`, which has them and outlives the call. It changes only where
    // later memory of this thread lies. The kernel takes one bit less than its last argument says.
    let result = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), MAX_NODES + 1)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The slice of the calling thread; zero on kernels without slices.
#[cfg(test)]
pub(super) fn slice() -> io::Result<Duration> {
    let mut attributes = SchedAttr::default();
    // SAFETY: the kernel writes at most [`SIZE`] bytes to `attributes`, which is that long and outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    if result == 0 {
        Ok(Duration::from_nanos(attributes.runtime))
    } else {
        Err(io::Error::last_os_error())
    }
}
