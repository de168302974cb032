// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Lets root act on a key store with the rights of its owner: the node runs as a separate user, and must be
//! able to read a key that root imports.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Gid, Uid};
use rustix::process::{getegid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// Runs `work` with the effective user and group of the owner of `path`, or of the nearest existing folder
/// above it. If this user is not root, it only runs `work`.
///
/// Only this thread changes its rights, and only until `work` returns.
///
/// # Errors
/// The kernel refuses; then `work` has not run.
pub(crate) fn as_owner_of<T>(path: &Path, work: impl FnOnce() -> T) -> Result<T> {
    let owner = path.ancestors().find_map(|path| fs::metadata(path).ok());
    let owner = owner.filter(|owner| geteuid().is_root() && owner.uid() != 0);
    let Some(owner) = owner else {
        return Ok(work());
    };
    let _rights = Rights::take(Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()))
        .with_context(|| format!("acting as the owner of {}", path.display()))?;
    Ok(work())
}

/// The previous rights of this thread; dropping it restores them.
struct Rights {
    user: Uid,
    group: Gid,
}

impl Rights {
    fn take(user: Uid, group: Gid) -> io::Result<Self> {
        let before = Self { user: geteuid(), group: getegid() };
        // The group first: after the change of the user the thread may no longer change it.
        set_thread_res_gid(None, group, None)?;
        set_thread_res_uid(None, user, None)?;
        Ok(before)
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        // The real and saved ids are still root's, so this cannot fail.
        let restored = set_thread_res_uid(None, self.user, None)
            .and_then(|()| set_thread_res_gid(None, self.group, None));
        debug_assert!(restored.is_ok(), "the saved user id allows this");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_the_owner_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        if !geteuid().is_root() {
            millrace_testkit::skip!("only root can act as another user");
        }
        if let Err(error) = std::os::unix::fs::chown(folder.path(), Some(65_534), Some(65_534)) {
            millrace_testkit::skip!("this root may not change the owner of files: {error}");
        }
        let file = folder.path().join("file");
        as_owner_of(&file, || fs::write(&file, b"x")).unwrap().unwrap();
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (65_534, 65_534));
        assert!(geteuid().is_root());
    }
}
