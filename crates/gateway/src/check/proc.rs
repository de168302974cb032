// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Processes from outside: what `/proc` says of them (proc(5)). Everything is bounded, and everything
//! may be refused: a process of another user shows little.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Bounds, in bytes: `status` and the like have 2 KiB, an environment may have megabytes, and a process
/// with 60,000 mappings, the kernel's default bound, has 8 MiB of them.
const MAX_SMALL: u64 = 256 * 1024;
const MAX_ENVIRONMENT: u64 = 4 << 20;
const MAX_MAPS: u64 = 32 << 20;

/// Processes that are looked at: the kernel's own bound on 64 bits.
const MAX_PROCESSES: usize = 1 << 22;

/// What stands for an eventfd in `/proc/PID/fd`.
const EVENTFD: &str = "anon_inode:[eventfd]";

/// Opens a file, if it is one: of a pipe that somebody has put in its place, the end might never come.
///
/// # Errors
/// The system's, or that it is no file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let no_file = || io::Error::other("not a regular file");
    // Opening some devices does something already.
    if !fs::metadata(path)?.is_file() {
        return Err(no_file());
    }
    // Nor may a pipe block that has come there meanwhile.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(no_file())
    }
}

/// Reads at most `limit` bytes of a file, as text; bytes that are no UTF-8 become replacement characters.
///
/// # Errors
/// The system's, or that it is no file.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    let _ = open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads all of a file that has to be text.
///
/// # Errors
/// The system's, or that it is no file, longer than `limit` bytes, or no text.
pub(super) fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    let _ = open(path)?
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("longer than {limit} bytes")));
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        Ok(_) | Err(_) => Err(io::Error::other("not text")),
    }
}

/// The `/proc` that is looked at: another folder in tests.
#[derive(Clone, Debug)]
pub(super) struct Proc {
    root: PathBuf,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// Its id.
    pub pid: u32,
    /// Its name (`comm`), at most 15 bytes.
    pub name: String,
    /// Its parent's id.
    pub parent: u32,
    /// Its arguments; nginx has only one, of which it makes a title.
    pub arguments: Vec<String>,
    /// Who it acts as.
    pub user: User,
}

/// Who a process acts as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Proc {
    /// Looks at this folder.
    #[must_use]
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn path(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    /// All processes whose name is wanted.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub(super) fn named(&self, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Process>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.root)?.take(MAX_PROCESSES).flatten() {
            let pid = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(process) = pid.and_then(|pid| self.process(pid))
                && wanted(&process.name)
            {
                found.push(process);
            }
        }
        found.sort_by_key(|process| process.pid);
        Ok(found)
    }

    /// One process; nothing if it has ended.
    #[must_use]
    pub(super) fn process(&self, pid: u32) -> Option<Process> {
        let status = read(&self.path(pid, "status"), MAX_SMALL).ok()?;
        let arguments = read(&self.path(pid, "cmdline"), MAX_SMALL).unwrap_or_default();
        let (name, parent, user) = parse_status(&status)?;
        Some(Process {
            pid,
            name,
            parent,
            arguments: split_zero(&arguments),
            user,
        })
    }

    /// The variable of a process's environment as it was at its start.
    ///
    /// # Errors
    /// It is a process of somebody else. Or it has overwritten its environment, as nginx does with its
    /// title.
    pub(super) fn variable(&self, pid: u32, name: &str) -> io::Result<Option<String>> {
        let text = read(&self.path(pid, "environ"), MAX_ENVIRONMENT)?;
        let variables = split_zero(&text);
        // A title ends in zeros, and variables are not empty.
        if variables.iter().any(String::is_empty) {
            return Err(io::Error::other(
                "the process has overwritten it with its title",
            ));
        }
        let found = variables.iter().find_map(|variable| {
            let (known, value) = variable.split_once('=')?;
            (known == name).then(|| value.to_owned())
        });
        Ok(found)
    }

    /// The files that are mapped into a process.
    ///
    /// # Errors
    /// It is a process of somebody else.
    pub(super) fn mapped(&self, pid: u32) -> io::Result<Vec<super::maps::Mapped>> {
        let text = read(&self.path(pid, "maps"), MAX_MAPS)?;
        if text.is_empty() {
            return Err(io::Error::other("nothing is shown"));
        }
        Ok(super::maps::parse(&text))
    }

    /// How many descriptors a process may have open.
    #[must_use]
    pub(super) fn file_limit(&self, pid: u32) -> Option<u64> {
        self.limit(pid, "Max open files")
    }

    /// How many processes and threads the user of a process may have before it can start no more; root
    /// always can.
    #[must_use]
    pub(super) fn thread_limit(&self, pid: u32) -> Option<u64> {
        self.limit(pid, "Max processes")
    }

    /// A soft limit; nothing if there is none.
    fn limit(&self, pid: u32, name: &str) -> Option<u64> {
        let text = read(&self.path(pid, "limits"), MAX_SMALL).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// How many eventfds a process has: the provider keeps one for each connection whose handshake
    /// waited for the pool without blocking.
    ///
    /// # Errors
    /// It is a process of somebody else.
    pub(super) fn eventfds(&self, pid: u32) -> io::Result<usize> {
        let links = fs::read_dir(self.path(pid, "fd"))?.flatten();
        let is_eventfd = |entry: &fs::DirEntry| {
            fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == EVENTFD)
        };
        Ok(links.filter(is_eventfd).count())
    }

    /// The control groups of a process, as text.
    pub(super) fn control_groups(&self, pid: u32) -> String {
        read(&self.path(pid, "cgroup"), MAX_SMALL).unwrap_or_default()
    }

    /// Where a link of a process leads: `exe`, `cwd`, `root`.
    ///
    /// # Errors
    /// It is a process of somebody else.
    pub(super) fn link(&self, pid: u32, name: &str) -> io::Result<PathBuf> {
        fs::read_link(self.path(pid, name))
    }

    /// The file system as a process sees it: a container, a chroot.
    #[must_use]
    pub(super) fn root_of(&self, pid: u32) -> PathBuf {
        self.path(pid, "root")
    }
}

fn parse_status(text: &str) -> Option<(String, u32, User)> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    // Real, effective, saved, file system.
    let effective = |name| field(name)?.split_whitespace().nth(1)?.parse().ok();
    let groups = field("Groups").unwrap_or_default();
    Some((
        field("Name")?.to_owned(),
        field("PPid")?.parse().ok()?,
        User {
            uid: effective("Uid")?,
            gid: effective("Gid")?,
            groups: groups
                .split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect(),
        },
    ))
}

fn split_zero(text: &str) -> Vec<String> {
    let text = text.strip_suffix('\0').unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split('\0').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tnginx\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t42\nPPid:\t7\n\
        Uid:\t33\t33\t33\t33\nGid:\t33\t33\t33\t33\nGroups:\t33 112 \n";

    #[test]
    fn a_process_is_read_from_files() {
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
        let proc = Proc::new(dir.path());
        let found = proc.named(|name| name == "nginx").expect("listed");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].pid, found[0].parent), (42, 7));
        assert_eq!(found[0].user.groups, [33, 112]);
        assert_eq!(found[0].arguments[0], "nginx: worker process");
        assert_eq!(
            proc.variable(42, "OPENSSL_CONF").expect("readable"),
            Some("/x.cnf".to_owned())
        );
        assert_eq!(proc.variable(42, "B").expect("readable"), None);
        assert_eq!(proc.file_limit(42), Some(1024));
        fs::write(one.join("environ"), "-c /x=y\0\0\0\0").expect("file");
        assert!(proc.variable(42, "A").is_err(), "overwritten");
        assert!(proc.process(43).is_none());
    }

    #[test]
    fn a_status_without_its_lines_is_none() {
        for text in [
            "",
            "Name:\tx\n",
            "Name: x\nPPid: y\nUid: 1 1\nGid: 1 1\n",
            "Uid:\n",
        ] {
            assert!(parse_status(text).is_none(), "{text}");
        }
    }
}
