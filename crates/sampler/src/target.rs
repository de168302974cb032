// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Processes to sample: descendants, threads, processors, CPU time.

use std::fs;
use std::path::Path;
use std::time::Duration;

use millrace_hostfs::cpu_list;
use millrace_hostfs::maps::{Mapping, mappings};
use millrace_hostfs::process::Proc;

use super::image::{Image, open_image};
use super::rules::is_libcrypto;

/// Bound on mappings: programs have a few hundred of code.
const MAX_MAPPINGS: usize = 65_536;

/// A process and its descendants, the process first.
#[must_use]
pub fn process_tree(root: u32) -> Vec<u32> {
    Proc::open(Path::new("/proc")).map_or_else(|_| vec![root], |proc| proc.tree(root))
}

/// The executable mappings of a process, empty if they cannot be read.
pub(super) fn code_of(pid: u32) -> Vec<Mapping> {
    let text = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let code = mappings(&text).filter(|mapping| mapping.is_code);
    code.take(MAX_MAPPINGS).collect()
}

/// The libcryptos that a live process has loaded, to calibrate them before sampling.
#[must_use]
pub fn libcryptos_of(pid: u32) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    for mapping in code_of(pid).iter().filter(|mapping| is_libcrypto(&mapping.path)) {
        if images.iter().all(|image| image.path() != mapping.path) {
            images.extend(open_image(pid, mapping));
        }
    }
    images
}

/// The threads of a process, empty if it is gone.
pub(super) fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// CPU time of all living threads of these processes, with nanosecond resolution
/// (`/proc/PID/task/TID/schedstat`). The time of threads that have ended is not counted.
pub fn cpu_time(pids: impl IntoIterator<Item = u32>) -> Duration {
    let mut nanos = 0u64;
    for pid in pids {
        for tid in threads(pid) {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat"));
            let text = text.unwrap_or_default();
            let first = text.split_ascii_whitespace().next().unwrap_or("0");
            nanos = nanos.saturating_add(first.parse().unwrap_or(0));
        }
    }
    Duration::from_nanos(nanos)
}

pub(super) fn online_cpus() -> Vec<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    cpu_list::parse(&text).unwrap_or_default()
}

/// The processors that a thread may run on.
pub(super) fn allowed_cpus(pid: u32, tid: u32) -> Vec<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.and_then(cpu_list::parse).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_code_contains_this_function() {
        let here = own_code_contains_this_function as fn() as usize as u64;
        let exe = std::env::current_exe().expect("this program");
        let code = code_of(std::process::id());
        let contains = |map: &Mapping| map.file_offset(here).is_some() && map.path == exe;
        assert!(code.iter().any(contains));
    }

    #[test]
    fn own_process_has_threads_and_processors() {
        let pid = std::process::id();
        assert_eq!(process_tree(pid)[0], pid);
        let tid = threads(pid)[0];
        assert!(!allowed_cpus(pid, tid).is_empty());
        assert!(!online_cpus().is_empty());
        if fs::exists("/proc/self/schedstat").is_ok_and(|there| there) {
            assert!(cpu_time([pid]) > Duration::ZERO);
        } else {
            millrace_testkit::skip::record(file!(), "no schedstat in this kernel");
        }
        assert!(threads(u32::MAX).is_empty());
    }
}
