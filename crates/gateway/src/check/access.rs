// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether a user may connect to a unix socket: search permission on every folder on the way, write
//! permission on the socket. Permissions only; access control lists and security modules are not seen.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::proc::User;

const READ_WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// There is no such file.
    Missing(PathBuf),
    /// It is no socket.
    NotASocket(PathBuf),
    /// The user may not pass or use this one, whose permissions are these.
    Denied {
        /// The folder or the socket.
        path: PathBuf,
        /// Permissions, owner, group.
        owner: (u32, u32, u32),
    },
    /// This process may not look.
    Unseen(PathBuf),
}

/// Looks at every component of `socket` below `root`.
///
/// # Errors
/// The first obstacle.
pub(super) fn connect(user: &User, root: &Path, socket: &Path) -> Result<(), Obstacle> {
    let inside = socket.strip_prefix("/").unwrap_or(socket);
    let full = root.join(inside);
    let depth = inside.components().count();
    let mut on_the_way: Vec<&Path> = full
        .ancestors()
        .skip(1)
        .take(depth.saturating_sub(1))
        .collect();
    on_the_way.reverse();
    for folder in on_the_way {
        admitted(user, folder, SEARCH)?;
    }
    admitted(user, &full, READ_WRITE)?;
    match fs::metadata(&full) {
        Ok(metadata) if metadata.file_type().is_socket() => Ok(()),
        _ => Err(Obstacle::NotASocket(full)),
    }
}

fn admitted(user: &User, path: &Path, wanted: u32) -> Result<(), Obstacle> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => Obstacle::Unseen(path.to_owned()),
        _ => Obstacle::Missing(path.to_owned()),
    })?;
    let owner = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
    if may(user, owner, wanted) {
        Ok(())
    } else {
        Err(Obstacle::Denied {
            path: path.to_owned(),
            owner,
        })
    }
}

/// The kernel's rule: the first of owner, group, others that applies decides.
fn may(user: &User, (mode, uid, gid): (u32, u32, u32), wanted: u32) -> bool {
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
    fn the_first_that_applies_decides() {
        let user = User {
            uid: 33,
            gid: 33,
            groups: vec![112],
        };
        assert!(may(&user, (0o660, 33, 0), READ_WRITE));
        assert!(may(&user, (0o660, 0, 112), READ_WRITE));
        assert!(!may(&user, (0o660, 0, 0), READ_WRITE));
        assert!(may(&user, (0o666, 0, 0), READ_WRITE));
        assert!(
            !may(&user, (0o606, 0, 33), READ_WRITE),
            "the group is refused"
        );
        assert!(may(&User::default(), (0o000, 7, 7), READ_WRITE), "root");
    }

    #[test]
    fn a_folder_on_the_way_counts() {
        let dir = tempfile::tempdir().expect("folder");
        let inner = dir.path().join("run");
        fs::create_dir(&inner).expect("folder");
        let socket = inner.join("node.sock");
        let _listener = UnixListener::bind(&socket).expect("a socket");
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).expect("mode");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).expect("mode");
        let stranger = User {
            uid: 60_001,
            gid: 60_001,
            groups: Vec::new(),
        };
        let way = |user| connect(user, dir.path(), Path::new("/run/node.sock"));
        assert!(matches!(way(&stranger), Err(Obstacle::Denied { path, .. }) if path == inner));
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(way(&stranger), Ok(()));
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o660)).expect("mode");
        assert!(matches!(way(&stranger), Err(Obstacle::Denied { path, .. }) if path == socket));
        let missing = connect(&stranger, dir.path(), Path::new("/run/other.sock"));
        assert!(matches!(missing, Err(Obstacle::Missing(_))));
    }
}
