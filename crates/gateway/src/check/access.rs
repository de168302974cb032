// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a user may connect to a unix socket, or read a file: search permission on every folder of its path,
//! write or read permission at its end. The module evaluates only permission bits: for an access control list it
//! reports the list instead of a verdict, and it does not see security modules.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use millrace_hostfs::process::User;

const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;

/// The extended attribute of an access control list (acl(5)). It does not exist where the permission bits suffice.
const ACCESS_CONTROL_LIST: &str = "system.posix_acl_access";

/// The reason for which a user cannot connect or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The file does not exist.
    Missing(PathBuf),
    /// The path is not a socket, or not a file.
    NotThatKind(PathBuf),
    /// The permissions of this folder or file exclude the user.
    Denied {
        /// The folder or the file.
        path: PathBuf,
        /// Permissions and owners of the path.
        ownership: Ownership,
    },
    /// Permissions suffice, except that here an access control list decides.
    Listed(PathBuf),
    /// This process may not read the permissions.
    Unseen(PathBuf),
}

/// The permission bits, the user and the group of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ownership {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, uid, gid } = self;
        write!(f, "mode {mode:04o}, owner {uid}, group {gid}")
    }
}

/// Checks every component of `socket` below `root`.
///
/// # Errors
/// The first obstacle; an access control list only if there is no certain obstacle.
pub(super) fn connect(user: &User, root: &Path, socket: &Path) -> Result<(), Obstacle> {
    reach(user, root, socket, WRITE, |kind| kind.is_socket())
}

/// Checks every component of `file` below `root`, for reading.
pub(super) fn read(user: &User, root: &Path, file: &Path) -> Result<(), Obstacle> {
    reach(user, root, file, READ, |kind| kind.is_file())
}

fn reach(
    user: &User,
    root: &Path,
    end: &Path,
    wanted: u32,
    is_right: impl Fn(fs::FileType) -> bool,
) -> Result<(), Obstacle> {
    let inside = end.strip_prefix("/").unwrap_or(end);
    let full = root.join(inside);
    let depth = inside.components().count();
    let mut on_the_way: Vec<&Path> =
        full.ancestors().skip(1).take(depth.saturating_sub(1)).collect();
    on_the_way.reverse();
    let folders = on_the_way.into_iter().map(|folder| (folder, SEARCH));
    let mut listed = None;
    for (path, wanted) in folders.chain([(full.as_path(), wanted)]) {
        match admitted(user, path, wanted) {
            Err(Obstacle::Listed(path)) => listed = listed.or(Some(path)),
            other => other?,
        }
    }
    match fs::metadata(&full) {
        Ok(metadata) if is_right(metadata.file_type()) => {
            listed.map_or(Ok(()), |path| Err(Obstacle::Listed(path)))
        }
        _ => Err(Obstacle::NotThatKind(full)),
    }
}

fn admitted(user: &User, path: &Path, wanted: u32) -> Result<(), Obstacle> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Obstacle::Unseen(path.to_owned()),
        _ => Obstacle::Missing(path.to_owned()),
    })?;
    let ownership =
        Ownership { mode: metadata.mode() & 0o7777, uid: metadata.uid(), gid: metadata.gid() };
    // For the owner a list equals the permission bits, and root needs neither.
    if ![0, metadata.uid()].contains(&user.uid) && has_list(path) {
        return Err(Obstacle::Listed(path.to_owned()));
    }
    if may(user, ownership, wanted) {
        Ok(())
    } else {
        Err(Obstacle::Denied { path: path.to_owned(), ownership })
    }
}

/// Whether there is an access control list.
fn has_list(path: &Path) -> bool {
    // An empty buffer asks for the length only.
    let mut nothing = [0; 0];
    rustix::fs::getxattr(path, ACCESS_CONTROL_LIST, &mut nothing).is_ok()
}

/// The kernel's rule: of owner, group and others the first class that applies decides.
fn may(user: &User, Ownership { mode, uid, gid }: Ownership, wanted: u32) -> bool {
    if user.uid == 0 {
        return true;
    }
    let bits = if user.uid == uid {
        mode >> 6
    } else if user.gid == gid || user.groups.contains(&gid) {
        mode >> 3
    } else {
        mode
    };
    bits & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[test]
    fn first_permission_class_that_applies_decides() {
        let owned = |mode, uid, gid| Ownership { mode, uid, gid };
        let user = User { uid: 33, gid: 33, groups: vec![112] };
        assert!(may(&user, owned(0o660, 33, 0), WRITE));
        assert!(may(&user, owned(0o660, 0, 112), WRITE));
        assert!(!may(&user, owned(0o660, 0, 0), WRITE));
        assert!(may(&user, owned(0o666, 0, 0), WRITE));
        assert!(!may(&user, owned(0o606, 0, 33), WRITE), "the group is refused");
        assert!(may(&User::default(), owned(0o000, 7, 7), WRITE), "root");
    }

    #[test]
    fn folder_without_search_permission_denies() {
        let dir = tempfile::tempdir().expect("folder");
        let inner = dir.path().join("run");
        fs::create_dir(&inner).expect("folder");
        let socket = inner.join("node.sock");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("mode");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).expect("mode");
        let stranger = User { uid: 60_001, gid: 60_001, groups: Vec::new() };
        let way = |user| connect(user, dir.path(), Path::new("/run/node.sock"));
        assert!(matches!(way(&stranger), Err(Obstacle::Denied { path, .. }) if path == inner));
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(way(&stranger), Ok(()));
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o660)).expect("mode");
        assert!(matches!(way(&stranger), Err(Obstacle::Denied { path, .. }) if path == socket));
        let missing = connect(&stranger, dir.path(), Path::new("/run/other.sock"));
        assert!(matches!(missing, Err(Obstacle::Missing(_))));
    }

    /// Version 2; owner, user 60001, group, mask and others with these permissions.
    fn list(permissions: [u16; 5]) -> Vec<u8> {
        const TAGS: [u16; 5] = [0x01, 0x02, 0x04, 0x10, 0x20];
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for (tag, allowed) in TAGS.into_iter().zip(permissions) {
            let id = if tag == 0x02 { 60_001 } else { u32::MAX };
            bytes.extend(tag.to_le_bytes());
            bytes.extend(allowed.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn access_control_list_gives_no_verdict() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = dir.path().join("run");
        fs::create_dir(&folder).expect("folder");
        let socket = folder.join("node.sock");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("mode");
        let put = |path: &Path, permissions| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(path, ACCESS_CONTROL_LIST, &list(permissions), flags)
        };
        // Everyone except this one user.
        if let Err(error) = put(&socket, [6, 0, 6, 6, 6]) {
            millrace_testkit::skip!("this file system has no access control lists: {error}");
        }
        let user = |uid| User { uid, gid: 60_001, groups: Vec::new() };
        let way = |uid| connect(&user(uid), dir.path(), Path::new("/run/node.sock"));
        assert_eq!(way(60_001), Err(Obstacle::Listed(socket.clone())));
        assert_eq!(way(0), Ok(()), "root needs none");
        let owner = fs::metadata(&socket).expect("there").uid();
        assert_eq!(way(owner), Ok(()), "permissions are the owner's");
        // A certain obstacle has priority wherever it is in the path.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("mode");
        assert!(matches!(way(60_001), Err(Obstacle::Denied { path, .. }) if path == folder));
        put(&folder, [7, 5, 0, 5, 0]).expect("a list");
        assert_eq!(way(60_001), Err(Obstacle::Listed(folder.clone())));
        fs::remove_file(&socket).expect("removed");
        assert!(matches!(way(60_001), Err(Obstacle::Missing(path)) if path == socket));
    }
}
