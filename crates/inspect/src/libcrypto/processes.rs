// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Who has a library loaded, from the processes' memory maps. Of a map only the lines of crypto
//! libraries are looked at, and kept in a bundle; of a process only its short name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::report::Look;
use millrace_hostfs::{Root, maps, process};

/// Programs that have a library loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct User {
    /// The program's short name
    pub program: String,
    /// How many of its processes
    pub processes: usize,
    /// The file that they have loaded is gone: they run an older version than is installed
    pub deleted: bool,
}

/// Processes that are looked at; a host of containers has some thousand.
const MAX_PROCESSES: usize = 16_384;
/// What the lines of crypto libraries have in them.
const WORDS: &[&str] = &[
    "libcrypto",
    "libwolfssl",
    "libmbedcrypto",
    "libnettle",
    "libgcrypt",
    "libgnutls",
    "libbotan",
];

/// Who has what loaded.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Of each path, and of each that is gone, the programs and how many processes of each.
    files: BTreeMap<(String, bool), BTreeMap<String, usize>>,
    /// Processes with a library of a container's own.
    pub(super) in_containers: usize,
}

impl Loaded {
    /// The files that are loaded and still there.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let there = self.files.keys().filter(|(_, deleted)| !deleted);
        there.map(|(path, _)| path.as_str())
    }
}

/// Everybody who has a crypto library loaded; `None` where no processes are to be seen.
pub(super) fn loaded(look: &mut Look<'_>) -> Option<Loaded> {
    let mut pids = process::pids(look.root());
    if pids.is_empty() {
        return None;
    }
    pids.truncate(MAX_PROCESSES);
    let namespace = |look: &Look<'_>, pid: &str| {
        let link = look.root().link(&format!("proc/{pid}/ns/mnt"));
        link.ok().flatten()
    };
    let ours = namespace(look, "self");
    let mut loaded = Loaded::default();
    for pid in pids {
        // Processes come and go meanwhile: what is missing says nothing.
        let lines = look.lines_with_if_there(&format!("proc/{pid}/maps"), WORDS);
        let paths = libraries(&lines.join("\n"));
        if paths.is_empty() {
            continue;
        }
        // In a container the same path is another file.
        if namespace(look, &pid.to_string()) != ours {
            loaded.in_containers += 1;
            continue;
        }
        let name = look.text_if_there(&format!("proc/{pid}/comm"));
        let name = name.map_or_else(|| "?".to_owned(), |name| name.trim().to_owned());
        for path in paths {
            *loaded
                .files
                .entry(path)
                .or_default()
                .entry(name.clone())
                .or_default() += 1;
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

/// Who has this file loaded, also by another name of it.
pub(super) fn users_of(loaded: &Loaded, root: &Root, path: &str) -> Vec<User> {
    let mut users = Vec::new();
    for ((mapped, deleted), programs) in &loaded.files {
        if mapped != path && !same(root, mapped, path) {
            continue;
        }
        users.extend(programs.iter().map(|(program, processes)| User {
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
