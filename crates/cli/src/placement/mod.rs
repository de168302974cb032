// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The processors to which the engine's workers are pinned.
//!
//! Workers of the three classes with the same number share a place, since a class without work leaves its
//! core to the others. Places alternate between the NUMA nodes, and contain only processors that this process
//! may use (`taskset`, a cgroup's cpuset). `docs/adr/0012-measured-choice.md` explains why the default pins
//! workers to nodes and not to cores.

mod topology;

use std::path::Path;
use std::sync::Arc;

use millrace_engine::Placement;
use millrace_server::config::Pin;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The kernel's description of the NUMA nodes and their processors.
const NODES: &str = "/sys/devices/system/node";

/// The places of `workers` workers per class; `None` if they may run anywhere.
pub(crate) fn of(pin: Pin, workers: usize) -> Option<Arc<dyn Placement>> {
    if pin == Pin::Off {
        return None;
    }
    let usable = usable();
    let nodes = topology::nodes(Path::new(NODES), &usable);
    let places = places(pin, &nodes, workers);
    (!places.is_empty()).then(|| Arc::new(Places(places)) as Arc<dyn Placement>)
}

/// The processors of each worker, by its number.
#[derive(Debug)]
struct Places(Vec<Vec<usize>>);

impl Placement for Places {
    fn place(&self, worker: usize) {
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
            Places(vec![vec![last]]).place(3);
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
}
