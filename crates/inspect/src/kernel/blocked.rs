// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Modules that this machine keeps from loading, and the lines that say so: `modprobe.d` and the kernel's parameters.
//! Published mitigations are such lines: `install algif_aead /bin/false` for CVE-2026-31431, or
//! `initcall_blacklist=algif_aead_init` where the code is built in.

use std::collections::BTreeSet;

use millrace_hostfs::Root;
use schemars::JsonSchema;
use serde::Serialize;

use crate::section::SectionReader;

/// Folders of modprobe's settings, the first in force: a file hides those of the same name in later folders.
///
/// Source: modprobe.d(5) of kmod 34.
const FOLDERS: [&str; 5] = [
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
];

/// The commands of modprobe.d that keep a module out.
const COMMANDS: [&str; 2] = ["blacklist", "install"];

/// Parameters with lists of modules. The kernel reads the first, modprobe the second.
const MODULE_LISTS: [&str; 2] = ["module_blacklist", "modprobe.blacklist"];

/// The parameter with functions that the kernel does not call, in modules and in built-in code.
const FUNCTION_LIST: &str = "initcall_blacklist";

/// Bound on modules: a hardened machine blocks about 50.
const MAX_BLOCKED: usize = 512;

/// Longest name of a module, in characters: the kernel's `MODULE_NAME_LEN` is 64 less a pointer.
const MAX_NAME: usize = 64;

/// A module that does not load by itself, and the line that says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BlockedModule {
    /// Its name, with underscores
    pub module: String,
    /// The file, relative to the root, and its line; or the kernel parameter
    pub by: String,
    /// Whether the line also holds where the code is built into the kernel
    pub holds_built_in: bool,
}

impl BlockedModule {
    fn new(module: &str, by: String) -> Option<Self> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let fits = !module.is_empty() && module.len() <= MAX_NAME && module.chars().all(is_name);
        fits.then(|| Self { module: module.replace('-', "_"), by, holds_built_in: false })
    }
}

/// The blocked modules of the machine below a root.
#[must_use]
pub fn of_root(root: &Root) -> Vec<BlockedModule> {
    read(&mut SectionReader::new(root))
}

/// Reads the blocked modules of a machine.
pub(crate) fn read(reader: &mut SectionReader<'_>) -> Vec<BlockedModule> {
    let mut blocked = Vec::new();
    let mut seen = BTreeSet::new();
    for folder in FOLDERS {
        for name in reader.names(folder).into_iter().filter(|name| name.ends_with(".conf")) {
            if !seen.insert(name.clone()) {
                continue;
            }
            let file = format!("{folder}/{name}");
            let lines = reader.lines_with_if_there(&file, &COMMANDS);
            blocked.extend(lines.iter().filter_map(|line| of_line(&file, line)));
        }
    }
    let parameters = reader.text_if_there("proc/cmdline").unwrap_or_default();
    blocked.extend(of_parameters(&parameters));
    if blocked.len() > MAX_BLOCKED {
        let reason = format!("more than {MAX_BLOCKED} blocked modules; the others are left out");
        reader.note(FOLDERS[0], millrace_hostfs::Unavailable::unreadable(reason));
        blocked.truncate(MAX_BLOCKED);
    }
    blocked
}

/// The module that a line of modprobe.d keeps out: `blacklist NAME`, or `install NAME COMMAND` whose command loads
/// nothing.
#[must_use]
pub fn of_line(file: &str, line: &str) -> Option<BlockedModule> {
    let line = line.trim();
    let mut words = line.split_ascii_whitespace();
    let command = words.next()?;
    let module = words.next()?;
    let loads = |word: &str| word.contains("modprobe") || word.contains("insmod");
    let blocks = match command {
        "blacklist" => true,
        "install" => !words.any(loads),
        _ => false,
    };
    let shown: String = line.chars().take(200).collect();
    BlockedModule::new(module, format!("{file}: {shown}")).filter(|_| blocks)
}

/// The modules that the kernel's parameters keep out.
#[must_use]
pub fn of_parameters(parameters: &str) -> Vec<BlockedModule> {
    let mut blocked = Vec::new();
    for word in parameters.split_ascii_whitespace() {
        let Some((name, list)) = word.split_once('=') else {
            continue;
        };
        let by = |item: &str| format!("proc/cmdline: {name}={item}");
        if MODULE_LISTS.contains(&name) {
            blocked.extend(list.split(',').filter_map(|one| BlockedModule::new(one, by(one))));
        } else if name == FUNCTION_LIST {
            // A module's first function is `NAME_init` by custom: `algif_aead_init`.
            let modules = list.split(',').filter_map(|function| {
                let module = BlockedModule::new(function.strip_suffix("_init")?, by(function))?;
                Some(BlockedModule { holds_built_in: true, ..module })
            });
            blocked.extend(modules);
        }
    }
    blocked
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(blocked: &[BlockedModule]) -> Vec<&str> {
        blocked.iter().map(|one| one.module.as_str()).collect()
    }

    #[test]
    fn lines_that_load_nothing_block() {
        let blocks = |line: &str| of_line("f", line).map(|one| one.module);
        for line in [
            "install algif_aead /bin/false",
            " install algif-aead /usr/bin/true",
            "install algif_aead exit 1",
            "blacklist algif_aead",
        ] {
            assert_eq!(blocks(line).as_deref(), Some("algif_aead"), "{line}");
        }
        for line in [
            "#install algif_aead /bin/false",
            "# blacklist algif_aead",
            "install algif_aead /sbin/modprobe --ignore-install algif_aead",
            "install",
            "options algif_aead x=install",
            "blacklist ../x",
        ] {
            assert_eq!(blocks(line), None, "{line}");
        }
    }

    #[test]
    fn parameters_of_the_kernel_block() {
        let text = "ro module_blacklist=algif_aead,,b modprobe.blacklist=c initcall_blacklist=d_init,e quiet";
        let blocked = of_parameters(text);
        assert_eq!(names(&blocked), ["algif_aead", "b", "c", "d"]);
        let built_in: Vec<bool> = blocked.iter().map(|one| one.holds_built_in).collect();
        assert_eq!(built_in, [false, false, false, true]);
        assert_eq!(blocked[0].by, "proc/cmdline: module_blacklist=algif_aead");
    }

    #[test]
    fn file_of_an_earlier_folder_hides_that_of_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("usr/lib/modprobe.d/a.conf", "blacklist hidden\n");
        put("etc/modprobe.d/a.conf", "blacklist seen\n");
        put("etc/modprobe.d/a.txt", "blacklist no_conf\n");
        put("lib/modprobe.d/b.conf", "blacklist masked\n");
        symlink("/dev/null", folder.path().join("etc/modprobe.d/b.conf")).unwrap();
        let root = Root::open(folder.path()).unwrap();
        let mut reader = SectionReader::new(&root);
        assert_eq!(names(&read(&mut reader)), ["seen"]);
        // At the bound, and past it.
        for (count, notes) in [(MAX_BLOCKED, 0), (MAX_BLOCKED + 1, 1)] {
            let lines: String = (0..count).map(|n| format!("blacklist m{n}\n")).collect();
            put("etc/modprobe.d/a.conf", &lines);
            let mut reader = SectionReader::new(&root);
            assert_eq!(read(&mut reader).len(), MAX_BLOCKED);
            let section = reader.section(Some(()));
            let about = section.unread.iter().filter(|one| one.what == FOLDERS[0]);
            assert_eq!(about.count(), notes);
        }
    }
}
