// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads the processors of each NUMA node: `nodeN/cpulist` below `/sys/devices/system/node`, lists such as
//! `0-3,8-11`. Unreadable or inconsistent data counts as one node with all processors.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use millrace_hostfs::cpu_list;

/// Bound on a list, in bytes: the kernel's lists fit one page.
const MAX_LIST_LEN: u64 = 4096;

/// Bound on nodes: the kernel's own limit on x86 and Arm.
const MAX_NODES: usize = 1024;

/// The processors of each node, limited to `usable`; nodes without any are omitted.
pub(super) fn nodes(root: &Path, usable: &[usize]) -> Vec<Vec<usize>> {
    let mut nodes = read(root).unwrap_or_default();
    for processors in &mut nodes {
        processors.retain(|processor| usable.contains(processor));
    }
    nodes.retain(|processors| !processors.is_empty());
    let mut listed = nodes.concat();
    listed.sort_unstable();
    // The nodes must contain every processor exactly once; otherwise the data is inconsistent.
    if listed != usable {
        return vec![usable.to_vec()];
    }
    nodes
}

/// The processors of all nodes, in the order of the node numbers.
fn read(root: &Path) -> Option<Vec<Vec<usize>>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(root).ok()?.flatten().take(2 * MAX_NODES) {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node"));
        if let Some(number) = number.and_then(|number| number.parse::<usize>().ok()) {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    numbers.truncate(MAX_NODES);
    numbers.into_iter().map(|number| processors(root, number)).collect()
}

fn processors(root: &Path, node: usize) -> Option<Vec<usize>> {
    let file = File::open(root.join(format!("node{node}/cpulist"))).ok()?;
    let mut text = String::new();
    file.take(MAX_LIST_LEN).read_to_string(&mut text).ok()?;
    cpu_list::parse(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy of the kernel's folder, with these lists.
    fn fixture(lists: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (node, list) in lists {
            let node = root.path().join(node);
            fs::create_dir_all(&node).expect("a folder");
            fs::write(node.join("cpulist"), list).expect("a file");
        }
        fs::write(root.path().join("online"), "0-1\n").expect("a file");
        root
    }

    #[test]
    fn two_sockets_and_a_node_with_memory_only() {
        let root = fixture(&[("node0", "0-3,8-11\n"), ("node10", "\n"), ("node2", "4-7,12-15\n")]);
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(
            nodes(root.path(), &all),
            [vec![0, 1, 2, 3, 8, 9, 10, 11], vec![4, 5, 6, 7, 12, 13, 14, 15]]
        );
        // With a restricted set, as under taskset or in a cpuset.
        assert_eq!(nodes(root.path(), &[2, 3]), [[2, 3]]);
        assert_eq!(nodes(root.path(), &[3, 4]), [[3], [4]]);
    }

    #[test]
    fn inconsistent_topology_is_one_node() {
        let usable = [0, 1, 2];
        let one = vec![usable.to_vec()];
        for lists in [
            &[][..],
            &[("node0", "0-2000000000")],
            &[("node0", "0-1"), ("node1", "1-2")],
            &[("node0", "0-1")],
            &[("node0", "zero")],
            &[("node0", "2-0")],
            &[("node0", &"0,".repeat(5_000))],
        ] {
            assert_eq!(nodes(fixture(lists).path(), &usable), one, "{lists:?}");
        }
        assert_eq!(nodes(Path::new("/nonexistent"), &usable), one);
    }
}
