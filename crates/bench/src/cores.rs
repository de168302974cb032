// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pinning to cores, and the CPU time that processes took.
//!
//! A child inherits the affinity of the thread that starts it, so a process is pinned *before* its
//! first thread exists: the starting thread moves to the core, starts it, and moves back.

use std::time::Duration;

use millrace_sampler::{cpu_time, process_tree};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use crate::error::BenchError;

/// The cores that this process may use, lowest first.
pub(crate) fn usable() -> Result<Vec<usize>, BenchError> {
    let set = sched_getaffinity(None).map_err(BenchError::system("read the CPU affinity"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// The two cores of a measurement: those that were asked for, else the first and the second usable one (the
/// first again where there is no other).
///
/// # Errors
/// [`BenchError::Usage`] for a core that this process may not use.
pub(crate) fn two(
    first: Option<usize>,
    second: Option<usize>,
) -> Result<(usize, usize), BenchError> {
    let usable = usable()?;
    for core in first.iter().chain(&second) {
        if !usable.contains(core) {
            return Err(BenchError::Usage(format!("core {core} is not usable: {usable:?} are")));
        }
    }
    let lowest = usable.first().copied().unwrap_or(0);
    let next = usable.get(1).copied().unwrap_or(lowest);
    Ok((first.unwrap_or(lowest), second.unwrap_or(next)))
}

/// The worker counts to measure: those asked for, else one and the default of a node on this machine, which
/// is a worker for each core (at least two, so that the way of a node with several workers is measured).
pub(crate) fn worker_counts(asked: &[usize]) -> Result<Vec<usize>, BenchError> {
    let mut counts = match asked {
        [] => vec![1, usable()?.len().max(2)],
        asked => asked.to_vec(),
    };
    counts.sort_unstable();
    counts.dedup();
    Ok(counts)
}

/// Moves the calling thread, and every thread or process it starts from now on, to one core.
pub(crate) fn pin(core: usize) -> Result<(), BenchError> {
    pin_to(&[core])
}

fn pin_to(cores: &[usize]) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).map_err(BenchError::system("pin to a core"))
}

/// Runs `f` on one core and moves back.
pub(crate) fn pinned<T>(core: usize, f: impl FnOnce() -> T) -> Result<T, BenchError> {
    pinned_to(&[core], f)
}

/// Runs `f` on these cores and moves back.
pub(crate) fn pinned_to<T>(cores: &[usize], f: impl FnOnce() -> T) -> Result<T, BenchError> {
    let before = sched_getaffinity(None).map_err(BenchError::system("read the CPU affinity"))?;
    pin_to(cores)?;
    let value = f();
    sched_setaffinity(None, &before).map_err(BenchError::system("restore the CPU affinity"))?;
    Ok(value)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// CPU time of all threads of this process.
pub(crate) fn own_cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

/// CPU time of a process and its living descendants. A server that ends threads between two readings would be
/// undercounted; the ones measured here do not.
pub(crate) fn tree_cpu_time(root: u32) -> Duration {
    cpu_time(process_tree(root))
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::process::{ChildProcess, command};

    #[test]
    fn work_shows_in_both_clocks() {
        let own = own_cpu_time();
        let start = Instant::now();
        while own_cpu_time() < own + Duration::from_millis(20) {
            black_box(start.elapsed());
        }
        // Of another process: in this one other tests end threads, and their time goes with them.
        let folder = tempfile::tempdir().expect("temporary directory");
        let mut command = command(Path::new("/bin/sh"));
        command.args(["-c", "while :; do :; done"]);
        let core = usable().expect("affinity")[0];
        let log = folder.path().join("log");
        let mut child = ChildProcess::start("sh", core, command, &log).expect("start");
        let id = child.id();
        let busy = || tree_cpu_time(id) > Duration::from_millis(20);
        child.wait_until(busy).expect("it works");
    }

    #[test]
    fn pinning_is_undone() {
        let before = usable().expect("affinity");
        let core = *before.last().expect("a core");
        let inside = pinned(core, usable).expect("pin").expect("affinity");
        assert_eq!(inside, [core]);
        assert_eq!(usable().expect("affinity"), before);
    }
}
