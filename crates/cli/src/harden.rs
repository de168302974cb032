// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Hardens a process before it reads the first key: no core dumps, no debugger of the same user, and on request no
//! swap.

use std::io;

use anyhow::{Context, Result};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Turns off core dumps and denies ptrace to other processes of the same user.
pub(crate) fn process() -> Result<()> {
    // Also denies /proc/PID/mem.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(io::Error::from)
        .context("making the process undumpable")?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(io::Error::from)
        .context("turning off core dumps")?;
    allow_descriptors();
    Ok(())
}

/// Descriptors of a manager with all its places taken: the classes of `millrace_manager::api` add up to 2,944, and the
/// store and the process have some.
const ENOUGH_DESCRIPTORS: u64 = 4096;

/// Raises the limit of descriptors to what the system allows: a shell starts with 1,024, which strangers could use up
/// before the bounds of a listener hold them back.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let allowed = if raised.is_ok() { limit.maximum } else { limit.current };
    if let Some(descriptors) = allowed.filter(|allowed| *allowed < ENOUGH_DESCRIPTORS) {
        tracing::warn!(
            descriptors,
            remedy = format!("LimitNOFILE={ENOUGH_DESCRIPTORS} or more"),
            "few descriptors: clients without a name can use them up"
        );
    }
}

/// Locks all memory, present and future.
///
/// # Errors
/// The kernel refuses; the message names the missing right.
pub(crate) fn lock_memory() -> Result<()> {
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(io::Error::from).context(
        "locking memory (grant CAP_IPC_LOCK, raise RLIMIT_MEMLOCK, or leave out --lock-memory and lock-memory)",
    )
}
