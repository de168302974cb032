// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Resolves a path inside a root part by part, as `openat2` with `RESOLVE_IN_ROOT` does: for kernels before 5.6
//! and for containers whose filter refuses the call.
//!
//! The kernel follows no part (`O_NOFOLLOW`), so a link that changes during the walk can lead to another place
//! inside the root, never out of it. `..` pops the walked folders; the kernel is never asked for a parent.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Bound on links in one path: the kernel's own.
const MAX_LINKS: usize = 40;
/// Bound on parts of one path, links included: more than fit into the longest path.
const MAX_PARTS: usize = 4_096;

/// Opens a path inside `top`.
///
/// # Errors
/// As `openat2`: `NOENT`, `NOTDIR`, `ACCESS`, `LOOP` for links in circles, and others.
pub(super) fn open(top: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let follow_last = !flags.contains(OFlags::NOFOLLOW);
    // The remaining parts, the next one last.
    let mut ahead: Vec<String> = parts(path);
    let mut behind: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    let mut walked = 0;
    while let Some(part) = ahead.pop() {
        walked += 1;
        if walked > MAX_PARTS {
            return Err(Errno::NAMETOOLONG);
        }
        if part == ".." {
            behind.pop();
            continue;
        }
        let folder = behind.last().map_or(top, AsFd::as_fd);
        let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(folder, part.as_str(), step, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&entry)?.st_mode);
        if kind != FileType::Symlink || (ahead.is_empty() && !follow_last) {
            behind.push(entry);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlinkat(&entry, "", Vec::new())?
            .into_string()
            .map_err(|_| Errno::ILSEQ)?;
        if target.starts_with('/') {
            behind.clear();
        }
        ahead.extend(parts(&target));
    }
    reopen(top, behind, flags)
}

/// The parts of a path, the first one last.
fn parts(path: &str) -> Vec<String> {
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    parts.rev().map(str::to_owned).collect()
}

/// Opens the found file with the requested flags.
fn reopen(top: BorrowedFd<'_>, mut behind: Vec<OwnedFd>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let Some(found) = behind.pop() else {
        return rustix::fs::openat(top, ".", flags, Mode::empty());
    };
    if flags.contains(OFlags::PATH) {
        return Ok(found);
    }
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Directory {
        return rustix::fs::openat(found.as_fd(), ".", flags, Mode::empty());
    }
    // A file opened with `O_PATH` can be read only through this link, which is sure to name the same file.
    let name = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::open(name, flags, Mode::empty())
}
