// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether the process behind a unix socket may be sent a private key.
//!
//! While a node is down, another process may bind the path of its socket, if the folder lets it. So a key goes only
//! to a listener of root or the own user, who could read this process's keys anyway, or of the user that decides what
//! is in the folder. The kernel says who listens (`SO_PEERCRED`: the user at the time of `listen`; for a socket unit
//! of systemd that is root).

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::net::sockopt;

/// Permission bits by which a user other than the owner can add, remove and rename entries of a folder.
const OTHERS_MAY_WRITE: u32 = 0o022;

const ROOT: u32 = 0;

/// Owner and mode of a folder: they decide who can replace a socket in it.
#[derive(Clone, Copy)]
struct Folder {
    owner: u32,
    mode: u32,
}

/// Why no private key may be sent over this socket, which is connected to `path`. `None` if one may.
pub(crate) fn objection(fd: &OwnedFd, path: &Path) -> Option<String> {
    let peer = match sockopt::socket_peercred(fd) {
        Ok(peer) => peer.uid.as_raw(),
        Err(error) => return Some(format!("the user behind it is unknown: {error}")),
    };
    let own = rustix::process::geteuid().as_raw();
    if [ROOT, own].contains(&peer) {
        return None;
    }
    match folders(path) {
        Ok(folders) if decides(peer, own, &folders) => None,
        Ok(_) => Some(format!(
            "uid {peer} listens there, and other users can put a socket there, too; make uid {peer} the owner \
             of its folder, and let only root write to the folders above"
        )),
        Err(error) => Some(format!("its folder cannot be examined: {error}")),
    }
}

/// The folder of a socket, then those above it.
fn folders(path: &Path) -> io::Result<Vec<Folder>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or_else(|| Path::new(".")))?;
    folder
        .ancestors()
        .map(|folder| {
            let meta = fs::metadata(folder)?;
            Ok(Folder { owner: meta.uid(), mode: meta.mode() })
        })
        .collect()
}

/// Whether no user but `peer`, `own` and root can put a socket of `peer` into the first folder, or replace it.
fn decides(peer: u32, own: u32, folders: &[Folder]) -> bool {
    let Some((folder, above)) = folders.split_first() else {
        return false;
    };
    folder.owner == peer
        && above.iter().all(|folder| {
            [ROOT, own, peer].contains(&folder.owner) && folder.mode & OTHERS_MAY_WRITE == 0
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owner_of_a_folder_that_no_other_user_replaces_is_trusted() {
        const NODE: u32 = 990;
        const OWN: u32 = 33;
        const EVE: u32 = 1000;
        type Case = (&'static str, &'static [(u32, u32)], bool);
        let cases: [Case; 8] = [
            ("the unit's folder", &[(NODE, 0o755), (ROOT, 0o755)], true),
            ("a group may write", &[(NODE, 0o770), (ROOT, 0o755)], true),
            ("root's folder", &[(ROOT, 0o755), (ROOT, 0o755)], false),
            ("/tmp", &[(ROOT, 0o1777), (ROOT, 0o755)], false),
            ("another user's", &[(EVE, 0o755), (ROOT, 0o755)], false),
            ("below /tmp", &[(NODE, 0o755), (ROOT, 0o1777), (ROOT, 0o755)], false),
            ("below a user", &[(NODE, 0o755), (EVE, 0o755), (ROOT, 0o755)], false),
            ("below its own", &[(NODE, 0o755), (NODE, 0o755), (OWN, 0o755)], true),
        ];
        for (what, folders, trusted) in cases {
            let folders = folders.iter().map(|&(owner, mode)| Folder { owner, mode });
            let folders: Vec<Folder> = folders.collect();
            assert_eq!(decides(NODE, OWN, &folders), trusted, "{what}");
        }
        assert!(!decides(NODE, OWN, &[]));
    }

    #[test]
    fn own_listener_is_trusted_wherever_its_socket_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let client = std::os::unix::net::UnixStream::connect(&path).expect("connected");
        assert_eq!(objection(&client.into(), &path), None);
        assert!(folders(&path).expect("they exist").len() > 1);
    }
}
