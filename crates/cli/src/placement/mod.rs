// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Placement of the engine's workers on processors, and the threads that run soon after they are woken.
//!
//! **Scheduling.** A scheduler with slices (Linux 6.12 and later) lets a thread with a shorter one run first. The
//! express workers and the threads of the sockets sleep most of the time, so they get the shortest, and a lone
//! job of one identity does not wait for the slices of workers that compute another's flood. A thread that has
//! used its share of a core still waits, so the workers also get the lowest priority, unless that would
//! put other programs before them.
//!
//! **Pinning.**
//! Workers of the three classes with the same number share a place, since a class without work leaves its
//! core to the others. Places alternate between the NUMA nodes, and contain only processors that this process
//! may use (`taskset`, a cgroup's cpuset). `docs/adr/0012-measured-choice.md` explains why the default pins
//! workers to nodes and not to cores.

#[expect(unsafe_code, reason = "there is no safe sched_setattr and set_mempolicy")]
mod sys;
mod topology;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Placement, WorkerThread};
use millrace_server::config::{Pin, WorkerPriority};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The kernel's description of the NUMA nodes and their processors.
const NODES: &str = "/sys/devices/system/node";

/// The shortest slice that the kernel takes. A P-256 signature fits into it.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// The nice value of workers with the lowest priority.
const LOWEST: i32 = 19;

/// Makes the calling thread, and programs that it starts, take memory of this NUMA node first.
///
/// # Errors
/// The node does not exist; or a container forbids it.
pub(crate) fn prefer_node(node: usize) -> std::io::Result<()> {
    sys::prefer_node(node)
}

/// The placement of `workers` workers per class.
pub(crate) fn for_workers(
    pin: Pin,
    priority: WorkerPriority,
    workers: usize,
) -> Arc<dyn Placement> {
    let nodes = match pin {
        Pin::Off => Vec::new(),
        Pin::Auto | Pin::Core => topology::nodes(Path::new(NODES), &usable()),
    };
    Arc::new(Places {
        processors: places(pin, &nodes, workers),
        low_priority: match priority {
            WorkerPriority::Auto => is_scheduled_apart(Path::new("/")),
            WorkerPriority::Low => true,
            WorkerPriority::Normal => false,
        },
    })
}

/// Whether the kernel schedules this process as a group of its own, so that the priorities of its threads mean
/// nothing to other programs: its cgroup has a weight, or it leads a session and the kernel groups by session.
fn is_scheduled_apart(root: &Path) -> bool {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let cgroup = read("proc/self/cgroup");
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::/"));
    let weighed = cgroup.is_some_and(|cgroup| {
        let folder = root.join("sys/fs/cgroup").join(cgroup);
        folder.join("cpu.weight").exists()
    });
    let by_session = read("proc/sys/kernel/sched_autogroup_enabled").trim() == "1";
    weighed || by_session && leads_its_session(&read("proc/self/stat"))
}

/// Whether the process that `stat` describes leads its session (proc(5): field 1 is its id, field 6 its session).
/// In a container the session may belong to a process outside; then the kernel reports session 0, for which
/// `rustix::process::getsid` has no value.
fn leads_its_session(stat: &str) -> bool {
    // The name, in parentheses, may contain spaces and parentheses.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let session = after_name.split_whitespace().nth(3);
    session.is_some() && session == stat.split_whitespace().next()
}

/// Makes the calling thread run soon after it is woken, also beside threads that compute all the time.
pub(crate) fn run_promptly() {
    let nice = getpriority_process(None).unwrap_or(0);
    if let Err(error) = sys::schedule(SHORT_SLICE, nice) {
        tracing::debug!(%error, "the thread keeps the kernel's scheduler slice");
    }
}

#[derive(Debug)]
struct Places {
    /// The processors of each worker, by its number; empty if workers may run anywhere.
    processors: Vec<Vec<usize>>,
    low_priority: bool,
}

impl Placement for Places {
    fn place(&self, worker: WorkerThread) {
        let worker = match worker {
            WorkerThread::Regular(worker) => worker,
            WorkerThread::Express => return run_promptly(),
        };
        if self.low_priority
            && let Err(error) = setpriority_process(None, LOWEST)
        {
            tracing::warn!(worker, %error, "a worker keeps its priority");
        }
        let number = worker % self.processors.len().max(1);
        let Some(place) = self.processors.get(number) else {
            return;
        };
        let mut set = CpuSet::new();
        for processor in place {
            set.set(*processor);
        }
        // The cpuset may have shrunk since; then the system places the worker.
        if let Err(error) = sched_setaffinity(None, &set) {
            tracing::warn!(worker, %error, "a worker cannot be pinned");
        }
    }

    fn express_first(&self) -> bool {
        self.low_priority
    }
}

/// The processors that this process may use.
fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect()
}

/// The processors of each of `workers` workers, given those of each NUMA node; empty if pinning gains
/// nothing.
fn places(pin: Pin, nodes: &[Vec<usize>], workers: usize) -> Vec<Vec<usize>> {
    let order = alternating(nodes);
    if order.is_empty() {
        return Vec::new();
    }
    let cores = (0..workers).map(|worker| order[worker % order.len()]);
    match pin {
        Pin::Core => cores.map(|(_, processor)| vec![processor]).collect(),
        Pin::Auto if nodes.len() > 1 => cores.map(|(node, _)| nodes[node].clone()).collect(),
        Pin::Auto | Pin::Off => Vec::new(),
    }
}

/// All processors with their nodes, taken from each node in turn.
fn alternating(nodes: &[Vec<usize>]) -> Vec<(usize, usize)> {
    let most = nodes.iter().map(Vec::len).max().unwrap_or(0);
    let mut order = Vec::new();
    for turn in 0..most {
        for (node, processors) in nodes.iter().enumerate() {
            order.extend(processors.get(turn).map(|processor| (node, *processor)));
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn cores_are_taken_from_all_nodes_in_turn() {
        let nodes = [vec![0, 1, 2, 3], vec![4, 5]];
        let cores = places(Pin::Core, &nodes, 6);
        assert_eq!(cores, [[0], [4], [1], [5], [2], [3]]);
        // More workers than cores share cores; fewer workers are spread over the nodes.
        assert_eq!(places(Pin::Core, &[vec![7]], 2), [[7], [7]]);
        assert_eq!(places(Pin::Core, &nodes, 2), [[0], [4]]);
    }

    #[test]
    fn automatically_workers_stay_on_a_node_if_there_are_several() {
        let nodes = [vec![0, 1], vec![2, 3]];
        let places_of = |nodes: &[Vec<usize>]| places(Pin::Auto, nodes, 3);
        assert_eq!(places_of(&nodes), [[0, 1], [2, 3], [0, 1]]);
        assert!(places_of(&nodes[..1]).is_empty());
        assert!(places_of(&[]).is_empty());
        assert!(places(Pin::Off, &nodes, 3).is_empty());
    }

    #[test]
    fn program_of_a_thread_takes_memory_of_the_node_that_the_thread_prefers() {
        let maps = thread::spawn(|| {
            prefer_node(0)?;
            std::process::Command::new("cat").arg("/proc/self/numa_maps").output()
        });
        let maps = match maps.join().expect("no panic") {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => {
                millrace_testkit::skip!("memory policies are not permitted here: {error}")
            }
        };
        // Some mappings have the policy of a file.
        assert!(maps.lines().any(|line| line.contains(" prefer:0 ")), "{maps}");
        assert!(prefer_node(1023).is_err(), "no such node");
        assert!(prefer_node(1024).is_err(), "no such bit");
    }

    #[test]
    fn worker_runs_on_its_place() {
        let last = *usable().last().expect("a processor");
        let placed = thread::spawn(move || {
            pinned(vec![vec![last]]).place(WorkerThread::Regular(3));
            usable()
        });
        assert_eq!(placed.join().expect("no panic"), [last]);
    }

    #[test]
    fn every_worker_gets_a_permitted_place_on_this_machine() {
        let usable = usable();
        let nodes = topology::nodes(Path::new(NODES), &usable);
        let places = places(Pin::Core, &nodes, usable.len());
        let mut all: Vec<usize> = places.concat();
        all.sort_unstable();
        assert_eq!(all, usable);
    }

    #[test]
    fn express_worker_gets_the_short_slice() {
        thread::spawn(|| {
            let before = sys::slice().expect("the kernel tells");
            pinned(Vec::new()).place(WorkerThread::Regular(0));
            assert_eq!(sys::slice().ok(), Some(before));
            pinned(Vec::new()).place(WorkerThread::Express);
            // A kernel before 6.12 reports no slice.
            let expected = if before.is_zero() { before } else { SHORT_SLICE };
            assert_eq!(sys::slice().ok(), Some(expected));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn only_regular_workers_get_the_low_priority() {
        thread::spawn(|| {
            let places = Places { processors: Vec::new(), low_priority: true };
            assert!(places.express_first());
            let before = getpriority_process(None).expect("the kernel tells");
            places.place(WorkerThread::Express);
            assert_eq!(getpriority_process(None), Ok(before));
            places.place(WorkerThread::Regular(0));
            assert_eq!(getpriority_process(None), Ok(LOWEST));
        })
        .join()
        .expect("no panic");
        // The priority is that of the thread, not of the process.
        assert_ne!(getpriority_process(None), Ok(LOWEST));
    }

    #[test]
    fn process_in_a_weighed_cgroup_is_scheduled_apart() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        assert!(!is_scheduled_apart(root.path()));
        put("proc/self/cgroup", "0::/system.slice/millrace.service\n");
        assert!(!is_scheduled_apart(root.path()));
        put("sys/fs/cgroup/system.slice/millrace.service/cpu.weight", "100\n");
        assert!(is_scheduled_apart(root.path()));
    }

    #[test]
    fn process_leads_its_session_only_if_the_session_has_its_id() {
        assert!(leads_its_session("7 (a) b) S 1 7 7 0 -1 4194560"));
        assert!(!leads_its_session("8 (a) b) S 7 8 7 0 -1 4194560"));
        // The leader runs outside of the container.
        assert!(!leads_its_session("1 (millrace) S 0 0 0 0 -1 4194560"));
        assert!(!leads_its_session("") && !leads_its_session("7 (cut"));
    }

    fn pinned(processors: Vec<Vec<usize>>) -> Places {
        Places { processors, low_priority: false }
    }
}
