// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether another user could replace a folder or write to a file: the rule of sshd for its files (`StrictModes`).
//!
//! Who may write to a folder may rename what is in it, so each folder from the root to the named one must belong to
//! root or to a trusted user, and no one else may write to it. Symbolic links are followed step by step: the folder
//! that holds a link decides as much as the one that it leads to.
//!
//! Exceptions, each for a system that is as it should be:
//!
//! - a *sticky* folder (`/tmp`), in which the kernel lets only owners rename, if the caller accepts one;
//! - a group that has its owner as the only member, as Debian makes one for each user, and root's own group;
//! - in a user namespace into which root of the outside is not mapped, files of the overflow user: root's own folders
//!   (`/`) show as that.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::ordinary::{Links, read_text};

/// Permission bits by which the group, and by which every user, can add, remove and rename entries of a folder.
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

const ROOT: u32 = 0;

/// Bound on symbolic links in one path: the kernel's own.
const MAX_LINKS: usize = 40;

/// Bound on `/etc/passwd` and `/etc/group`, in bytes: about 10,000 entries.
const MAX_ACCOUNTS: usize = 1 << 20;

/// Bound on `/proc/self/uid_map`: the kernel's, 340 lines of at most 33 bytes.
const MAX_UID_MAP: usize = 16 << 10;

/// Whether folders with the sticky bit may be on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sticky {
    /// They may: no other user can rename what is in them. But once it is removed, any user may make another.
    Accept,
    /// Other users' right to write counts.
    Refuse,
}

/// Another user could replace a folder or a file.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    /// Other users may write to a folder on the way.
    #[error(
        "other users can replace {}: {} may write to {} (mode {mode:04o}): chmod {remedy} {}",
        target.display(), who, path.display(), path.display()
    )]
    Writable {
        /// The folder or file that was to be used.
        target: PathBuf,
        /// The file, or the folder on the way to it.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// The users.
        who: &'static str,
        /// Argument of chmod that takes the right away.
        remedy: &'static str,
    },
    /// A user who is neither root nor trusted owns a folder, or a link, on the way.
    #[error(
        "uid {owner} can replace {}: {} belongs to it, neither to root nor to uid {user}: chown it, or use another place",
        target.display(), path.display()
    )]
    Owner {
        /// The folder or file that was to be used.
        target: PathBuf,
        /// The file, or the folder or link on the way to it.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The first trusted user.
        user: u32,
    },
    /// A folder on the way cannot be examined.
    #[error("cannot examine {}: {source}", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// As [`check_folder`], for a folder of this process's user.
///
/// # Errors
/// As [`check_folder`].
pub fn check_own_folder(folder: &Path) -> Result<(), Untrusted> {
    check_folder(folder, &[rustix::process::geteuid().as_raw()], Sticky::Accept)
}

/// Checks that only root and `users` (not empty) can replace `folder` and those above it, up to the first that is
/// missing.
///
/// # Errors
/// Names the first folder from the root on that another user may write to or owns, with the remedy.
pub fn check_folder(folder: &Path, users: &[u32], sticky: Sticky) -> Result<(), Untrusted> {
    // An empty path is the parent of a bare name.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let target = std::path::absolute(folder).map_err(|source| failed(folder, source))?;
    let judge = Judge { target: &target, users, sticky };
    let mut ahead: Vec<OsString> = parts(&target);
    let mut reached = PathBuf::from("/");
    judge.entry(&reached, &fs::metadata(&reached).map_err(|source| failed(&reached, source))?)?;
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        if part == ".." {
            reached.pop();
            continue;
        }
        let next = reached.join(&part);
        let metadata = match fs::symlink_metadata(&next) {
            Ok(metadata) => metadata,
            // What is not there is made by this program, below folders that were checked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(failed(&next, source)),
        };
        if metadata.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(failed(&next, io::Error::other("its symbolic links go in circles")));
            }
            judge.owner(&next, &metadata)?;
            let to = fs::read_link(&next).map_err(|source| failed(&next, source))?;
            if to.is_absolute() {
                reached = PathBuf::from("/");
            }
            ahead.extend(parts(&to));
            continue;
        }
        judge.entry(&next, &metadata)?;
        reached = next;
    }
    Ok(())
}

/// Checks that only root and `users` (not empty) can have written a file, or changed what is in a folder, whatever is
/// above it. The sticky bit excuses nothing: a new file in a folder would be enough.
///
/// # Errors
/// Names the owner or the mode, with the remedy.
pub fn check_entry(path: &Path, metadata: &Metadata, users: &[u32]) -> Result<(), Untrusted> {
    Judge { target: path, users, sticky: Sticky::Refuse }.entry(path, metadata)
}

/// The parts of a path, the first one last.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut parts: Vec<OsString> = parts.collect();
    parts.reverse();
    parts
}

fn failed(path: &Path, source: io::Error) -> Untrusted {
    Untrusted::Io { path: path.to_owned(), source }
}

/// The rule, for one path.
struct Judge<'a> {
    target: &'a Path,
    users: &'a [u32],
    sticky: Sticky,
}

impl Judge<'_> {
    fn owner(&self, path: &Path, metadata: &Metadata) -> Result<(), Untrusted> {
        let owner = metadata.uid();
        if owner == ROOT || self.users.contains(&owner) || is_outer_root(owner) {
            return Ok(());
        }
        Err(Untrusted::Owner {
            target: self.target.to_owned(),
            path: path.to_owned(),
            owner,
            user: self.users.first().copied().unwrap_or(ROOT),
        })
    }

    fn entry(&self, path: &Path, metadata: &Metadata) -> Result<(), Untrusted> {
        self.owner(path, metadata)?;
        let mode = metadata.mode() & 0o7777;
        if mode & STICKY != 0 && self.sticky == Sticky::Accept {
            return Ok(());
        }
        let (who, remedy) = match mode & (GROUP_WRITES | OTHERS_WRITE) {
            0 => return Ok(()),
            GROUP_WRITES if is_private(metadata.gid(), metadata.uid()) => return Ok(()),
            GROUP_WRITES => ("its group", "g-w"),
            OTHERS_WRITE => ("every user", "o-w"),
            _ => ("every user", "go-w"),
        };
        let target = self.target.to_owned();
        Err(Untrusted::Writable { target, path: path.to_owned(), mode, who, remedy })
    }
}

/// Whether no user but root and `owner` is in a group: that of root, or the one that a system makes for each user.
fn is_private(group: u32, owner: u32) -> bool {
    if group == ROOT {
        return true;
    }
    let text = |path: &str| read_text(Path::new(path), Links::Follow, MAX_ACCOUNTS);
    match (text("/etc/passwd"), text("/etc/group")) {
        (Ok(passwd), Ok(groups)) => is_private_in(&passwd, &groups, group, owner),
        _ => false,
    }
}

fn is_private_in(passwd: &str, groups: &str, group: u32, owner: u32) -> bool {
    let number = |field: Option<&str>| field?.parse::<u32>().ok();
    let mut name = None;
    for line in passwd.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let is_owner = number(fields.get(2).copied()) == Some(owner);
        if is_owner && name.is_none() {
            name = fields.first().copied();
        }
        if number(fields.get(3).copied()) == Some(group) && !is_owner {
            return false;
        }
    }
    let Some(name) = name else {
        return false;
    };
    let of_group = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (number(fields.get(2).copied()) == Some(group)).then(|| fields.get(3).copied())
    });
    let mut found = false;
    for members in of_group {
        found = true;
        let mut members = members.unwrap_or_default().split(',').filter(|it| !it.is_empty());
        if members.any(|member| member != name) {
            return false;
        }
    }
    found
}

/// Whether a file of `owner` may be of root outside of the user namespace of this process, in which that root has no
/// number.
fn is_outer_root(owner: u32) -> bool {
    let overflow = read_text(Path::new("/proc/sys/kernel/overflowuid"), Links::Follow, 16);
    if overflow.ok().and_then(|text| text.trim().parse().ok()) != Some(owner) {
        return false;
    }
    let map = read_text(Path::new("/proc/self/uid_map"), Links::Follow, MAX_UID_MAP);
    map.is_ok_and(|map| !maps_outer_root(&map))
}

/// Whether a map of a user namespace (user_namespaces(7)) has a number for root of the outside.
fn maps_outer_root(map: &str) -> bool {
    map.lines().any(|line| line.split_whitespace().nth(1) == Some("0"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn check(folder: &Path) -> Result<(), Untrusted> {
        check_folder(folder, &[own()], Sticky::Accept)
    }

    #[test]
    fn folder_that_others_could_replace_is_named_with_the_remedy() {
        let top = tempfile::tempdir().unwrap();
        let above = top.path().join("above");
        let folder = above.join("folder");
        fs::create_dir_all(&folder).unwrap();
        set_mode(&above, 0o755);
        check(&folder).unwrap();
        for (mode, remedy) in [(0o757, "chmod o-w"), (0o777, "chmod go-w")] {
            set_mode(&above, mode);
            let error = check(&folder).unwrap_err().to_string();
            let expected = format!("{remedy} {}", above.display());
            assert!(error.ends_with(&expected), "{error}");
            assert!(error.contains(&folder.display().to_string()), "{error}");
        }
        set_mode(&above, 0o1777);
        check(&folder).unwrap();
        assert!(check_folder(&folder, &[own()], Sticky::Refuse).is_err());
        check(&above.join("not/there/yet")).unwrap();
    }

    #[test]
    fn folder_that_holds_a_link_on_the_way_counts() {
        let top = tempfile::tempdir().unwrap();
        let (open, safe) = (top.path().join("open"), top.path().join("safe"));
        fs::create_dir(&open).unwrap();
        fs::create_dir(&safe).unwrap();
        symlink("../safe", open.join("link")).unwrap();
        let behind = open.join("link/keys");
        check(&behind).unwrap();
        set_mode(&open, 0o777);
        let error = check(&behind).unwrap_err();
        assert!(matches!(&error, Untrusted::Writable { path, .. } if *path == open), "{error}");
        set_mode(&open, 0o755);
        set_mode(&safe, 0o777);
        let error = check(&behind).unwrap_err();
        assert!(matches!(&error, Untrusted::Writable { path, .. } if *path == safe), "{error}");
        symlink("circle", open.join("circle")).unwrap();
        assert!(check(&open.join("circle")).unwrap_err().to_string().contains("circles"));
    }

    #[test]
    fn folder_of_a_user_who_is_not_trusted_is_refused() {
        let top = tempfile::tempdir().unwrap();
        set_mode(top.path(), 0o755);
        if !rustix::process::geteuid().is_root() {
            millrace_testkit::skip!("only root changes the owner of a folder");
        }
        if let Err(error) = std::os::unix::fs::chown(top.path(), Some(1234), None) {
            millrace_testkit::skip!("this root may not change the owner of files: {error}");
        }
        let folder = top.path().join("keys");
        let error = check_folder(&folder, &[33], Sticky::Accept).unwrap_err();
        assert!(matches!(error, Untrusted::Owner { owner: 1234, user: 33, .. }), "{error}");
        check_folder(&folder, &[33, 1234], Sticky::Accept).unwrap();
    }

    #[test]
    fn group_is_private_if_the_owner_alone_is_in_it() {
        let passwd = "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:100::/:/bin/sh\n\
                      carol:x:1002:100::/:/bin/sh\n";
        let groups = "root:x:0:\nalice:x:1000:\nusers:x:100:\nweb:x:33:bob\nbob:x:1001:bob,carol\n";
        let private = |group, owner| is_private_in(passwd, groups, group, owner);
        assert!(private(1000, 1000));
        assert!(private(33, 1001), "he is its only member");
        assert!(!private(1000, 1001), "the first group of another");
        assert!(!private(100, 1001), "the first group of two");
        assert!(!private(1001, 1001), "another member");
        assert!(!private(5, 1000) && !private(1000, 7), "unknown ones");
    }

    #[test]
    fn overflow_user_stands_for_root_only_where_root_has_no_number() {
        assert!(maps_outer_root("         0          0 4294967295\n"));
        assert!(maps_outer_root(
            "         0       1000          1\n         1          0      1\n"
        ));
        assert!(!maps_outer_root(
            "         0       1000          1\n         1     100000      65536\n"
        ));
        assert!(!is_outer_root(own()) || own() != 0);
    }
}
