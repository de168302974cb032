// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Where the engine's workers run, and which threads run soon after they are woken.
//!
//! **Scheduling.** A scheduler with slices (Linux 6.12 and later) lets a thread with a shorter one run first. The
//! express workers and the threads of the sockets sleep most of the time, so they get the shortest, and a lone
//! job of one identity does not wait for the slices of workers that compute another's flood. Express workers
//! also get a lower nice value where the process may give it: the kernel shares a core evenly between threads,
//! and the workers that compute the flood are several.
//!
//! **Pinning.**
//! Workers of the three classes with the same number share a place, since a class without work leaves its
//! core to the others. Places alternate between the NUMA nodes, and contain only processors that this process
//! may use (`taskset`, a cgroup's cpuset). `docs/adr/0012-measured-choice.md` explains why the default pins
//! workers to nodes and not to cores.

#[expect(unsafe_code, reason = "there is no safe sched_setattr")]
mod sys;
mod topology;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Placement, WorkerThread};
use millrace_server::config::Pin;
use rustix::process::getpriority_process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The kernel's description of the NUMA nodes and their processors.
const NODES: &str = "/sys/devices/system/node";

/// The shortest slice that the kernel takes. A P-256 signature fits into it.
const SHORT_SLICE: Duration = Duration::from_micros(100);

/// The placement of `workers` workers per class.
pub(crate) fn of(pin: Pin, workers: usize) -> Arc<dyn Placement> {
    let nodes = match pin {
        Pin::Off => Vec::new(),
        Pin::Auto | Pin::Core => topology::nodes(Path::new(NODES), &usable()),
    };
    Arc::new(Places(places(pin, &nodes, workers)))
}

/// The nice value of express workers. `LimitNICE=` of the unit file permits it.
const EXPRESS_NICE: i32 = -10;

/// Makes the calling thread run soon after it is woken, also beside threads that compute all the time.
pub(crate) fn run_promptly() {
    let nice = getpriority_process(None).unwrap_or(0);
    if let Err(error) = sys::schedule(SHORT_SLICE, nice) {
        tracing::debug!(%error, "the thread keeps the kernel's scheduler slice");
    }
}

/// The processors of each worker, by its number; empty if workers may run anywhere.
#[derive(Debug)]
struct Places(Vec<Vec<usize>>);

impl Placement for Places {
    fn place(&self, worker: WorkerThread) {
        let worker = match worker {
            WorkerThread::Regular(worker) => worker,
            WorkerThread::Express => {
                if sys::schedule(SHORT_SLICE, EXPRESS_NICE).is_err() {
                    run_promptly();
                }
                return;
            }
        };
        let Some(place) = self.0.get(worker % self.0.len().max(1)) else {
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
}

/// The processors that this process may use.
fn usable() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|processor| set.is_set(*processor))
        .collect()
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
    let of_turn = |turn: usize| {
        let of_node = move |(node, processors): (usize, &Vec<usize>)| {
            processors.get(turn).map(|processor| (node, *processor))
        };
        nodes.iter().enumerate().filter_map(of_node)
    };
    (0..most).flat_map(of_turn).collect()
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
    fn worker_runs_on_its_place() {
        let last = *usable().last().expect("a processor");
        let placed = thread::spawn(move || {
            Places(vec![vec![last]]).place(WorkerThread::Regular(3));
            usable()
        });
        assert_eq!(placed.join().expect("no panic"), [last]);
    }

    #[test]
    fn on_this_machine_every_worker_has_a_place_it_may_use() {
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
            let nice = getpriority_process(None).expect("the kernel tells");
            Places(Vec::new()).place(WorkerThread::Regular(0));
            assert_eq!(sys::slice().ok(), Some(before));
            Places(Vec::new()).place(WorkerThread::Express);
            // A kernel before 6.12 reports no slice.
            let expected = if before.is_zero() {
                before
            } else {
                SHORT_SLICE
            };
            assert_eq!(sys::slice().ok(), Some(expected));
            // Without the right to a lower nice value the thread keeps its own.
            let now = getpriority_process(None).expect("the kernel tells");
            assert!([nice, EXPRESS_NICE].contains(&now), "{now}");
        })
        .join()
        .expect("no panic");
    }
}
