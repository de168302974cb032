// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Holders of virtual functions: the processes that have `/dev/vfio/N` open. Linux opens the group of a function for
//! one process at a time.

use std::collections::BTreeMap;

use millrace_hostfs::{Root, Unavailable, process};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::QatDevice;
use crate::section::SectionReader;

/// Bound on descriptors of one process that are looked at: some gateways have a million.
const MAX_DESCRIPTORS: usize = 65_536;

/// The capability to lock more memory than the limit.
const IPC_LOCK: u32 = 14;

/// A process that has a virtual function open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionHolder {
    /// Process id
    pub pid: u32,
    /// Name of the process
    pub name: String,
    /// Limit of locked memory in bytes; `unlimited`, also with the capability `IPC_LOCK`; null if it cannot be read
    pub locked_memory: Option<String>,
}

/// Notes the holders at the functions. Without a group, which needs an IOMMU, there are none.
pub(super) fn note(reader: &mut SectionReader<'_>, devices: &mut [QatDevice]) {
    if devices.iter().all(|device| device.group.is_none()) {
        return;
    }
    let holders = by_group(reader);
    for device in devices {
        let own = device.group.as_ref().and_then(|group| holders.get(group));
        device.holders = own.cloned().unwrap_or_default();
    }
}

fn by_group(reader: &mut SectionReader<'_>) -> BTreeMap<String, Vec<FunctionHolder>> {
    let root = reader.root();
    let mut found: BTreeMap<String, Vec<FunctionHolder>> = BTreeMap::new();
    for pid in process::pids(root) {
        let folder = format!("proc/{pid}/fd");
        let mut groups: Vec<String> = Vec::new();
        let descriptors = match root.list(&folder) {
            Ok(list) => {
                let names = reader.first(&folder, list.names, MAX_DESCRIPTORS);
                // The list has a bound of its own.
                let _ = list.truncated && reader.is_full(&folder, &names, 0);
                names
            }
            Err(Unavailable::Denied) => {
                // Once for all: they belong to other users.
                reader.note("proc/*/fd", Unavailable::Denied);
                continue;
            }
            Err(_) => continue,
        };
        for descriptor in descriptors {
            let target = root.link(&format!("{folder}/{descriptor}")).ok().flatten();
            let group = target.as_deref().and_then(|target| target.strip_prefix("/dev/vfio/"));
            let is_group = |group: &&str| group.bytes().all(|byte| byte.is_ascii_digit());
            groups.extend(group.filter(is_group).map(str::to_owned));
        }
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            found.entry(group).or_default().push(holder(root, pid));
        }
    }
    found
}

fn holder(root: &Root, pid: u32) -> FunctionHolder {
    let text = |file: &str| {
        root.lossy_text(&format!("proc/{pid}/{file}"), millrace_hostfs::ATTRIBUTE_BYTES)
    };
    let limits = text("limits").unwrap_or_default();
    let limit = process::soft_limit(&limits, "Max locked memory").map(str::to_owned);
    let status = text("status").unwrap_or_default();
    FunctionHolder {
        pid,
        name: text("comm").map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned()),
        locked_memory: limit.map(|limit| {
            if process::has_capability(&status, IPC_LOCK) { "unlimited".to_owned() } else { limit }
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn process_with_an_open_group_holds_its_function() {
        let dir = tempfile::tempdir().expect("a folder");
        for (pid, target) in
            [(7, "/dev/vfio/100"), (6, "/dev/vfio/101"), (8, "/dev/vfio/vfio"), (9, "socket:[1]")]
        {
            let folder = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(folder.join("fd")).expect("a folder");
            fs::write(folder.join("comm"), "millrace\n").expect("a file");
            let capabilities = if pid == 7 { "0" } else { "4000" };
            fs::write(folder.join("status"), format!("CapEff:\t{capabilities}\n")).expect("a file");
            fs::write(
                folder.join("limits"),
                "Max locked memory         8388608              8388608              bytes\n",
            )
            .expect("a file");
            symlink(target, folder.join("fd/3")).expect("a link");
            symlink(target, folder.join("fd/4")).expect("a link");
        }
        let holders = by_group(&mut SectionReader::new(&Root::open(dir.path()).expect("a root")));
        let expected = |pid, limit: &str| FunctionHolder {
            pid,
            name: "millrace".to_owned(),
            locked_memory: Some(limit.to_owned()),
        };
        let expected = [
            ("100".to_owned(), vec![expected(7, "8388608")]),
            ("101".to_owned(), vec![expected(6, "unlimited")]),
        ];
        assert_eq!(holders, expected.into());
    }
}
