// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether the process behind a unix socket may be used, and whether it may be sent a private key.
//!
//! While a node is down, another process may bind the path of its socket, if the folder lets it. A socket is used only
//! if no user but root, the own one and the owner of its folder can replace that folder. A key goes only to a listener
//! of root or the own user, who could read this process's keys anyway, or of the user that decides what is in the
//! folder. The kernel says who listens (`SO_PEERCRED`: the user at the time of `listen`; for a socket unit of systemd
//! that is root).

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use millrace_hostfs::trusted::{Sticky, Untrusted, check_folder};
use rustix::net::sockopt;

const ROOT: u32 = 0;

/// Checks that no other user can put a folder with another socket in the place of the one of `path`. A folder that
/// every user may write to, such as `/tmp`, is as the operator chose it: there the first one to bind a name has it.
///
/// # Errors
/// The folder on the way that another user may write to or owns, with the remedy.
pub(crate) fn check_way(path: &Path) -> Result<(), Untrusted> {
    let folder = folder_of(path);
    // What is not there cannot be connected to either, and that error says more.
    let Ok(owner) = fs::metadata(folder).map(|folder| folder.uid()) else {
        return Ok(());
    };
    check_folder(folder, &[own_user(), owner], Sticky::Accept)
}

/// Why no private key may be sent over this socket, which is connected to `path`. `None` if one may.
pub(crate) fn objection(fd: &OwnedFd, path: &Path) -> Option<String> {
    let peer = match sockopt::socket_peercred(fd) {
        Ok(peer) => peer.uid.as_raw(),
        Err(error) => return Some(format!("the user behind it is unknown: {error}")),
    };
    if [ROOT, own_user()].contains(&peer) {
        return None;
    }
    match decides(peer, own_user(), folder_of(path)) {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "uid {peer} listens there, and other users can put a socket there, too; make uid {peer} the owner \
             of its folder, and let only root write to the folders above"
        )),
        Err(error) => Some(format!("its folder cannot be examined: {error}")),
    }
}

/// Whether no user but `peer`, `own` and root can put a socket of `peer` into a folder, or replace the folder. A folder
/// above with the sticky bit counts as open: after the next boot another user may be the first one there.
fn decides(peer: u32, own: u32, folder: &Path) -> io::Result<bool> {
    let folder = fs::canonicalize(folder)?;
    let Some(above) = folder.parent() else {
        return Ok(false);
    };
    Ok(fs::metadata(&folder)?.uid() == peer
        && check_folder(above, &[own, peer], Sticky::Refuse).is_ok())
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or_else(|| Path::new("."))
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn only_the_owner_of_a_folder_that_no_other_user_replaces_is_trusted() {
        const NODE: u32 = 990;
        const OWN: u32 = 33;
        const EVE: u32 = 1000;
        type Case = (&'static str, (u32, u32), (u32, u32), bool);
        let cases: [Case; 8] = [
            ("the unit's folder", (ROOT, 0o755), (NODE, 0o755), true),
            ("a group may write", (ROOT, 0o755), (NODE, 0o770), true),
            ("root's folder", (ROOT, 0o755), (ROOT, 0o755), false),
            ("every user's", (ROOT, 0o755), (ROOT, 0o1777), false),
            ("another user's", (ROOT, 0o755), (EVE, 0o755), false),
            ("below every user's", (ROOT, 0o1777), (NODE, 0o755), false),
            ("below a user", (EVE, 0o755), (NODE, 0o755), false),
            ("below its own", (NODE, 0o755), (NODE, 0o755), true),
        ];
        // Not below the sticky /tmp.
        let top = tempfile::tempdir_in("/var").or_else(|_| tempfile::tempdir_in("/root"));
        let Some(top) = top.ok().filter(|top| chown(top.path(), Some(NODE), None).is_ok()) else {
            millrace_testkit::skip!("this root may not change the owner of files");
        };
        chown(top.path(), Some(ROOT), None).expect("given back");
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        for (number, (what, above, folder, trusted)) in cases.into_iter().enumerate() {
            let paths =
                [top.path().join(number.to_string()), top.path().join(format!("{number}/f"))];
            for (path, (owner, mode)) in paths.iter().zip([above, folder]) {
                fs::create_dir(path).expect("a folder");
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
                chown(path, Some(owner), None).expect("an owner");
            }
            assert_eq!(decides(NODE, OWN, &paths[1]).expect("they exist"), trusted, "{what}");
        }
        assert!(!decides(NODE, OWN, Path::new("/")).expect("it exists"));
    }

    #[test]
    fn socket_whose_folder_another_user_could_replace_is_not_connected_to() {
        let top = tempfile::tempdir().expect("a temporary folder");
        let run = top.path().join("run");
        fs::create_dir(&run).expect("a folder");
        let path = run.join("node.sock");
        check_way(&path).expect("as it should be");
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o777)).expect("a mode");
        let error = check_way(&path).expect_err("every user may rename it").to_string();
        assert!(error.contains("chmod go-w"), "{error}");
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o1777)).expect("a mode");
        check_way(&path).expect("as in /tmp");
        check_way(&top.path().join("none/node.sock")).expect("connecting says that it is missing");
    }

    #[test]
    fn own_listener_is_trusted_wherever_its_socket_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("node.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let client = std::os::unix::net::UnixStream::connect(&path).expect("connected");
        assert_eq!(objection(&client.into(), &path), None);
    }
}
