// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The processes that have loaded a library, from their memory maps. Only the lines of crypto libraries in a map,
//! and the short name of a process, are read and kept in a bundle.

use std::collections::BTreeMap;

use millrace_hostfs::{Root, maps, process};
use schemars::JsonSchema;
use serde::Serialize;

use crate::section::SectionReader;

/// Processes of one program that have loaded a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LibraryUser {
    /// The program's short name
    pub program: String,
    /// Number of its processes
    pub processes: usize,
    /// The loaded file was deleted: they run an older version than the installed one
    pub deleted: bool,
}

/// Bound on processes; a host of containers has a few thousand.
const MAX_PROCESSES: usize = 16_384;
/// Words in the lines of crypto libraries.
const WORDS: &[&str] = &[
    "libcrypto",
    "libwolfssl",
    "libmbedcrypto",
    "libnettle",
    "libgcrypt",
    "libgnutls",
    "libbotan",
];

/// The users of all libraries.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Programs with their number of processes, by the library's path and whether its file was deleted.
    files: BTreeMap<(String, bool), BTreeMap<String, usize>>,
    /// Number of processes with a library inside a container.
    pub(super) in_containers: usize,
}

impl Loaded {
    /// The loaded files that still exist.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let present = self.files.keys().filter(|(_, deleted)| !deleted);
        present.map(|(path, _)| path.as_str())
    }
}

/// The users of all crypto libraries; `None` if no processes are visible.
pub(super) fn loaded(reader: &mut SectionReader<'_>) -> Option<Loaded> {
    let pids = process::pids(reader.root());
    if pids.is_empty() {
        return None;
    }
    let pids = reader.first("processes", pids, MAX_PROCESSES);
    let namespace = |reader: &SectionReader<'_>, pid: &str| {
        let link = reader.root().link(&format!("proc/{pid}/ns/mnt"));
        link.ok().flatten()
    };
    let ours = namespace(reader, "self");
    let mut loaded = Loaded::default();
    for pid in pids {
        // Processes come and go during the loop; a missing file is normal.
        let lines = reader.lines_with_if_there(&format!("proc/{pid}/maps"), WORDS);
        let paths = libraries(&lines.join("\n"));
        if paths.is_empty() {
            continue;
        }
        // In a container the same path is a different file.
        if namespace(reader, &pid.to_string()) != ours {
            loaded.in_containers += 1;
            continue;
        }
        let name = reader
            .text_if_there(&format!("proc/{pid}/comm"))
            .map_or_else(|| "?".to_owned(), |name| name.trim().to_owned());
        for path in paths {
            *loaded.files.entry(path).or_default().entry(name.clone()).or_default() += 1;
        }
    }
    Some(loaded)
}

/// The crypto libraries in lines of a map, each with whether it was deleted since.
fn libraries(lines: &str) -> Vec<(String, bool)> {
    let is_library = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        WORDS.iter().any(|word| name.starts_with(word)) && name.contains(".so")
    };
    let files = maps::files(lines).into_iter().filter_map(|file| {
        let path = file.path.to_str()?.trim_start_matches('/').to_owned();
        Some((path, file.deleted))
    });
    files.filter(|(path, _)| is_library(path)).collect()
}

/// The users of this file, also under another name of it.
pub(super) fn users_of(loaded: &Loaded, root: &Root, path: &str) -> Vec<LibraryUser> {
    let mut users = Vec::new();
    for ((mapped, deleted), programs) in &loaded.files {
        if mapped != path && !same(root, mapped, path) {
            continue;
        }
        users.extend(programs.iter().map(|(program, processes)| LibraryUser {
            program: program.clone(),
            processes: *processes,
            deleted: *deleted,
        }));
    }
    users
}

/// Whether two paths differ only by `lib -> usr/lib`.
pub(super) fn same(root: &Root, mapped: &str, path: &str) -> bool {
    let under = |folder: &str, rest: &str| path.strip_prefix(folder) == Some(rest);
    ["lib/", "lib64/", "lib32/"].iter().any(|folder| {
        let Some(rest) = mapped.strip_prefix(folder) else {
            return false;
        };
        under(&format!("usr/{folder}"), rest)
            && matches!(root.link(folder.trim_end_matches('/')), Ok(Some(target)) if target.trim_start_matches('/') == format!("usr/{folder}").trim_end_matches('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::libraries;

    #[test]
    fn crypto_libraries_are_found_in_maps_once() {
        let line =
            "7f1c2000-7f1c3000 r-xp 00000000 fe:01 123                /usr/lib/libcrypto.so.3";
        let lines = format!("{line}\n{line}\n7f1c2000-7f1c3000 rw-p 00000000 00:00 0\n");
        let path = "usr/lib/libcrypto.so.3".to_owned();
        assert_eq!(libraries(&lines), [(path.clone(), false)]);
        assert_eq!(libraries(&format!("{line} (deleted)")), [(path, true)]);
        let notes = line.replace("/usr/lib/libcrypto.so.3", "/home/libcrypto/notes.txt");
        assert_eq!(libraries(&notes), []);
    }
}
