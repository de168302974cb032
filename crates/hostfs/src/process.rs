// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Processes in `/proc` (proc(5)). Much of a process of another user is unreadable.
//!
//! - [`pids`], [`named`]: processes of any [`Root`]. A bundle has no command lines, and an older one no `status`.
//! - [`Proc`]: processes of the running machine, with arguments, environment, credentials and descriptors. A bundle
//!   must not record these, since they may hold secrets.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::maps::{self, MappedFile};
use crate::{OpenError, ReadResult, Root, Unavailable};

/// Bound on `status` and similar files, which have 2 KiB, and on a command line, in bytes.
const MAX_SMALL: usize = 256 * 1024;
/// Bound on an environment in bytes: it may have megabytes.
const MAX_ENVIRONMENT: usize = 4 << 20;
/// Bound on memory maps in bytes: 60,000 mappings, the kernel's default bound, have 8 MiB.
const MAX_MAPS: usize = 32 << 20;

/// The target of the link in `/proc/PID/fd` of an eventfd.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// Descriptors of a process among which a memory file is looked for: a library opens it before the server opens its
/// connections.
const MAX_DESCRIPTORS: usize = 100_000;

/// The process ids among the names of `/proc`, in ascending order.
#[must_use]
pub fn pids(root: &Root) -> Vec<u32> {
    let mut pids: Vec<u32> =
        root.names("proc").iter().filter_map(|name| name.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// A process that was found by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Process id.
    pub pid: u32,
    /// Name (`comm`), at most 15 bytes.
    pub name: String,
    /// Effective user id; unknown where `status` cannot be read, as in a bundle of an older version.
    pub uid: Option<u32>,
}

/// The processes below `root/proc` whose name is `wanted`, by id. Zombies are left out: a process that has
/// ended serves nothing, even if its parent never asks for its exit status (a container without an init).
#[must_use]
pub fn named(root: &Root, wanted: impl Fn(&str) -> bool) -> Vec<Named> {
    let pids = pids(root).into_iter();
    let found = pids.filter_map(|pid| {
        // A process may end at any time.
        let comm = root.lossy_text(&format!("proc/{pid}/comm"), MAX_SMALL).ok()?;
        let name = comm.trim().to_owned();
        if !wanted(&name) {
            return None;
        }
        let status = root.lossy_text(&format!("proc/{pid}/status"), MAX_SMALL).unwrap_or_default();
        (!has_ended(&status)).then(|| Named { pid, name, uid: effective(&status, "Uid") })
    });
    found.collect()
}

/// A soft limit in the text of `/proc/PID/limits`, such as `Max open files`.
#[must_use]
pub fn soft_limit<'a>(limits: &'a str, name: &str) -> Option<&'a str> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()
}

/// Whether a process has a capability effectively, by the text of `/proc/PID/status`.
#[must_use]
pub fn has_capability(status: &str, number: u32) -> bool {
    let bits = field(status, "CapEff").and_then(|text| u64::from_str_radix(text, 16).ok());
    bits.is_some_and(|bits| bits.checked_shr(number).is_some_and(|bits| bits & 1 == 1))
}

/// The age of a process from the texts of `/proc/PID/stat` and `/proc/uptime`, see proc(5).
fn age(stat: &str, uptime: &str) -> Option<Duration> {
    /// Field 22, counted from the one after the name, which may contain spaces and parentheses.
    const START: usize = 19;
    /// Linux shows times to processes in hundredths of a second on every architecture.
    const TICK: Duration = Duration::from_millis(10);
    let (_, fields) = stat.rsplit_once(')')?;
    let start: u32 = fields.split_whitespace().nth(START)?.parse().ok()?;
    let now: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(now).ok()?.checked_sub(TICK * start)
}

/// `/proc` of the running machine, or a folder of the same form in tests.
#[derive(Debug)]
pub struct Proc {
    folder: PathBuf,
    root: Root,
}

/// Facts about one process, from `/proc/PID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Name (`comm`), at most 15 bytes.
    pub name: String,
    /// Process id of its parent.
    pub parent: u32,
    /// Arguments; nginx overwrites them with its title.
    pub arguments: Vec<String>,
    /// User and groups of the process.
    pub user: User,
}

/// The credentials of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Ids of the supplementary groups.
    pub groups: Vec<u32>,
}

/// A memory file of a process, up to the limit of the read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    /// First bytes of the file.
    pub bytes: Vec<u8>,
    /// The inode: processes that share the file show the same one.
    pub inode: u64,
}

impl Proc {
    /// Opens `/proc` or a folder of the same form.
    pub fn open(folder: &Path) -> Result<Self, OpenError> {
        Ok(Self { folder: folder.to_owned(), root: Root::open(folder)? })
    }

    /// All processes whose name is `wanted`, by id.
    pub fn named(&self, wanted: impl Fn(&str) -> bool) -> ReadResult<Vec<Process>> {
        let pids = self.root.list("")?.names;
        let processes = pids.iter().filter_map(|name| self.process(name.parse().ok()?));
        let mut found: Vec<Process> = processes.filter(|process| wanted(&process.name)).collect();
        found.sort_by_key(|process| process.pid);
        Ok(found)
    }

    /// A process and its descendants, the process first.
    #[must_use]
    pub fn tree(&self, root: u32) -> Vec<u32> {
        let names = self.root.list("").map(|listed| listed.names);
        let pids = names.unwrap_or_default();
        let parents = pids.iter().filter_map(|name| {
            let pid = name.parse().ok()?;
            let status = self.root.lossy_text(&format!("{pid}/status"), MAX_SMALL);
            let parent = field(&status.ok()?, "PPid")?.parse().ok()?;
            Some((parent, pid))
        });
        let mut parents: Vec<(u32, u32)> = parents.collect();
        let mut found = vec![root];
        let mut next = 0;
        while let Some(known) = found.get(next).copied() {
            // A process leaves the list when it is found: process ids that were reused make no circle.
            let children = parents.extract_if(.., |(parent, _)| *parent == known);
            found.extend(children.map(|(_, pid)| pid));
            next += 1;
        }
        found
    }

    /// One process; `None` if it has ended, also where it remains as a zombie.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<Process> {
        let status = self.root.lossy_text(&format!("{pid}/status"), MAX_SMALL).ok()?;
        let arguments = self.strings(pid, "cmdline", MAX_SMALL).unwrap_or_default();
        parse_status(pid, &status, arguments)
    }

    /// The value of a variable in the environment with which a process was started; `None` if it was not set.
    ///
    /// # Errors
    /// The process belongs to another user, or has overwritten its environment, as nginx does with its title.
    pub fn variable(&self, pid: u32, name: &str) -> ReadResult<Option<String>> {
        let variables = self.strings(pid, "environ", MAX_ENVIRONMENT)?;
        // A title is padded with NULs, and variables are not empty.
        if variables.iter().any(String::is_empty) {
            return Err(Unavailable::unreadable("the process has overwritten it with its title"));
        }
        let found = variables.iter().find_map(|variable| {
            let (known, value) = variable.split_once('=')?;
            (known == name).then(|| value.to_owned())
        });
        Ok(found)
    }

    /// The files that are mapped into a process.
    pub fn mapped(&self, pid: u32) -> ReadResult<Vec<MappedFile>> {
        match self.root.lossy_text(&format!("{pid}/maps"), MAX_MAPS)? {
            text if text.is_empty() => Err(Unavailable::Denied),
            text => Ok(maps::files(&text)),
        }
    }

    /// A soft limit of a process, by its name in `limits`; `None` if it is unlimited or unknown.
    #[must_use]
    pub fn soft_limit(&self, pid: u32, name: &str) -> Option<u64> {
        let limits = self.root.lossy_text(&format!("{pid}/limits"), MAX_SMALL).ok()?;
        soft_limit(&limits, name)?.parse().ok()
    }

    /// The number in a line of a process's `status`; `None` if there is no such line.
    #[must_use]
    pub fn status_number(&self, pid: u32, name: &str) -> Option<u64> {
        let status = self.root.lossy_text(&format!("{pid}/status"), MAX_SMALL).ok()?;
        field(&status, name)?.parse().ok()
    }

    /// The time since a process was started, to a hundredth of a second.
    #[must_use]
    pub fn age(&self, pid: u32) -> Option<Duration> {
        let stat = self.root.lossy_text(&format!("{pid}/stat"), MAX_SMALL);
        let uptime = self.root.lossy_text("uptime", MAX_SMALL);
        age(&stat.ok()?, &uptime.ok()?)
    }

    /// The number of eventfds that a process has open.
    pub fn eventfds(&self, pid: u32) -> ReadResult<usize> {
        let folder = format!("{pid}/fd");
        let names = self.root.list(&folder)?.names;
        let links = names.iter().map(|name| self.root.link(&format!("{folder}/{name}")));
        Ok(links.filter(|link| matches!(link, Ok(Some(target)) if target == EVENTFD)).count())
    }

    /// The first `most` bytes of the memory file (memfd_create(2)) that a process has open under this name; `None` if
    /// it has none, or belongs to another user.
    #[must_use]
    pub fn memory_file(&self, pid: u32, name: &str, most: usize) -> Option<MemoryFile> {
        let target = format!("/memfd:{name}");
        let descriptors = fs::read_dir(self.folder.join(pid.to_string()).join("fd"));
        let links = descriptors.ok()?.flatten().map(|entry| entry.path());
        let is_wanted = |link: &PathBuf| {
            let found = fs::read_link(link).unwrap_or_default();
            found.to_string_lossy().starts_with(&target)
        };
        let file = fs::File::open(links.take(MAX_DESCRIPTORS).find(is_wanted)?).ok()?;
        let inode = file.metadata().ok()?.ino();
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes).ok()?;
        Some(MemoryFile { bytes, inode })
    }

    /// The text of `/proc/PID/cgroup`; empty if it cannot be read.
    #[must_use]
    pub fn control_groups(&self, pid: u32) -> String {
        let text = self.root.lossy_text(&format!("{pid}/cgroup"), MAX_SMALL);
        text.unwrap_or_default()
    }

    /// A value that the kernel gave a process at its start (getauxval(3)).
    ///
    /// # Errors
    /// This user may not see it, or the process has ended.
    pub fn auxiliary_value(&self, pid: u32, kind: u64) -> ReadResult<Option<u64>> {
        const WORD: usize = size_of::<u64>();
        let bytes = self.root.read(&format!("{pid}/auxv"), MAX_SMALL)?.into_bytes();
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
        let mut pairs = bytes.chunks_exact(2 * WORD);
        Ok(pairs.find_map(|pair| {
            let (key, value) = pair.split_at(WORD);
            (word(key)? == kind).then(|| word(value)).flatten()
        }))
    }

    /// The label of a process by the security module of this kernel: AppArmor's profile with its mode, or SELinux's
    /// context.
    ///
    /// # Errors
    /// There is no such module, or the label is hidden: profiles of AppArmor hide it even from the process itself.
    pub fn security_label(&self, pid: u32) -> ReadResult<String> {
        let text = self.root.lossy_text(&format!("{pid}/attr/current"), MAX_SMALL)?;
        match text.trim_end_matches(['\0', '\n']) {
            "" => Err(Unavailable::Missing),
            label => Ok(label.to_owned()),
        }
    }

    /// The target of a link of a process: `exe`, `cwd`, `root`.
    pub fn link(&self, pid: u32, name: &str) -> ReadResult<PathBuf> {
        let target = self.root.link(&format!("{pid}/{name}"))?;
        target.map(PathBuf::from).ok_or(Unavailable::Missing)
    }

    /// The path of the root folder of a process, which differs in a container or a chroot.
    #[must_use]
    pub fn root_of(&self, pid: u32) -> PathBuf {
        self.folder.join(pid.to_string()).join("root")
    }

    /// The NUL-terminated strings in a file. The read bypasses the record of [`Root`]: environments and
    /// command lines may hold secrets.
    fn strings(&self, pid: u32, name: &str, limit_bytes: usize) -> ReadResult<Vec<String>> {
        let file = self.root.open_file(&format!("{pid}/{name}"))?;
        let mut bytes = Vec::new();
        let read = file.take(limit_bytes as u64).read_to_end(&mut bytes);
        let _ = read.map_err(|error| Unavailable::unreadable(error.to_string()))?;
        let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        let strings = bytes.split(|byte| *byte == 0);
        Ok(strings.map(|string| String::from_utf8_lossy(string).into_owned()).collect())
    }
}

/// The value of a line of `status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

/// The second of the ids in a line of `status`: real, effective, saved, file system.
fn effective(status: &str, name: &str) -> Option<u32> {
    field(status, name)?.split_whitespace().nth(1)?.parse().ok()
}

/// Whether `status` is that of a zombie (`Z`) or of a process that is about to disappear (`X`).
fn has_ended(status: &str) -> bool {
    field(status, "State").is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// The process of a `status`; none if the process has ended.
fn parse_status(pid: u32, status: &str, arguments: Vec<String>) -> Option<Process> {
    if has_ended(status) {
        return None;
    }
    let groups = field(status, "Groups")
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|id| id.parse().ok());
    Some(Process {
        pid,
        name: field(status, "Name")?.to_owned(),
        parent: field(status, "PPid")?.parse().ok()?,
        arguments,
        user: User {
            uid: effective(status, "Uid")?,
            gid: effective(status, "Gid")?,
            groups: groups.collect(),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const STATUS: &str = "Name:\tnginx\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t42\nPPid:\t7\n\
        Uid:\t33\t33\t33\t33\nGid:\t33\t33\t33\t33\nGroups:\t33 112 \n";

    #[test]
    fn age_is_the_uptime_without_the_time_of_the_start() {
        let stat = "42 (a) b) S 7 42 42 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 1250 9000 300 1";
        assert_eq!(age(stat, "13.75 20.00\n"), Some(Duration::from_millis(1250)));
        assert_eq!(age(stat, "12.00 20.00\n"), None, "started in the future");
        assert_eq!(age("42 (a) S 7", "13.75 20.00\n"), None);
    }

    #[test]
    fn process_is_read_with_environment_and_limits() {
        let dir = tempfile::tempdir().expect("folder");
        let one = dir.path().join("42");
        fs::create_dir(&one).expect("folder");
        fs::write(one.join("status"), STATUS).expect("file");
        fs::write(one.join("cmdline"), "nginx: worker process\0\0\0").expect("file");
        fs::write(one.join("environ"), "A=1\0OPENSSL_CONF=/x.cnf\0").expect("file");
        fs::write(
            one.join("limits"),
            "Limit  Soft Limit  Hard Limit  Units\nMax open files   1024   524288   files\n",
        )
        .expect("file");
        let proc = Proc::open(dir.path()).expect("folder");
        let found = proc.named(|name| name == "nginx").expect("listed");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, found[0].parent), (42, 7));
        assert_eq!(found[0].user.groups, [33, 112]);
        assert_eq!((proc.tree(7), proc.tree(42)), (vec![7, 42], vec![42]));
        assert_eq!(found[0].arguments[0], "nginx: worker process");
        assert_eq!(proc.variable(42, "OPENSSL_CONF").expect("readable"), Some("/x.cnf".to_owned()));
        assert_eq!(proc.variable(42, "B").expect("readable"), None);
        assert_eq!(proc.soft_limit(42, "Max open files"), Some(1024));
        assert_eq!(
            (proc.status_number(42, "PPid"), proc.status_number(42, "State")),
            (Some(7), None)
        );
        fs::write(one.join("environ"), "-c /x=y\0\0\0\0").expect("file");
        assert!(proc.variable(42, "A").is_err(), "overwritten");
        assert!(proc.process(43).is_none());
    }

    #[test]
    fn zombie_is_not_a_running_process() {
        let dir = tempfile::tempdir().expect("folder");
        for (pid, state) in [(7, "Z (zombie)"), (8, "S (sleeping)")] {
            let folder = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&folder).expect("folder");
            fs::write(folder.join("comm"), "nginx\n").expect("file");
            let status = STATUS.replace("S (sleeping)", state);
            fs::write(folder.join("status"), status).expect("file");
        }
        let pids =
            |found: Vec<Process>| -> Vec<u32> { found.iter().map(|process| process.pid).collect() };
        let proc = Proc::open(&dir.path().join("proc")).expect("folder");
        assert_eq!(pids(proc.named(|name| name == "nginx").expect("listed")), [8]);
        let root = Root::open(dir.path()).expect("root");
        let expected = Named { pid: 8, name: "nginx".to_owned(), uid: Some(33) };
        assert_eq!(named(&root, |name| name == "nginx"), [expected]);
    }

    #[test]
    fn soft_limits_are_read_by_name() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max core file size        unlimited            unlimited            bytes     \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(soft_limit(limits, "Max open files"), Some("1024"));
        assert_eq!(soft_limit(limits, "Max core file size"), Some("unlimited"));
        assert_eq!(soft_limit("Max core file size", "Max core file size"), None);
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = "Name:\tx\nCapPrm:\tffff\nCapEff:\t0000000000004001\n";
        let held = [0, 1, 14, 64].map(|number| has_capability(status, number));
        assert_eq!(held, [true, false, true, false]);
        assert!(!has_capability("CapEff:\tx\n", 0));
    }

    #[test]
    fn status_without_required_lines_is_refused() {
        for text in ["", "Name:\tx\n", "Name: x\nPPid: y\nUid: 1 1\nGid: 1 1\n", "Uid:\n"] {
            assert!(parse_status(1, text, Vec::new()).is_none(), "{text}");
        }
    }
}
