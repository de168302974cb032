// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's word that something happened in the directory of a store (inotify). It says nothing about what other
//! hosts do on a network file system.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

/// Bytes of one read of events. Their content does not matter, and one read of the kernel's whole queue (16,384 events
/// by default) is not worth the memory.
const EVENTS_LEN: usize = 4096;

/// Reads of events in one look: the kernel's whole queue with names of average length. What is left counts for the next
/// look, too.
const MAX_READS: usize = 256;

/// Watches one directory. Without inotify, or above its limits, it reports nothing.
#[derive(Debug, Default)]
pub(crate) struct FolderChanges {
    watch: Option<OwnedFd>,
    inode: u64,
}

impl FolderChanges {
    /// Watches the directory at `path`, whose inode is `inode`, if it does not yet.
    pub(crate) fn follow(&mut self, path: &Path, inode: u64) {
        if self.inode == inode {
            return;
        }
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB;
        let start = || {
            let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            add_watch(&watch, path, events).map(|_| watch)
        };
        *self = Self { watch: start().ok(), inode };
    }

    /// Whether anything happened since the last call.
    pub(crate) fn any(&self) -> bool {
        let Some(watch) = &self.watch else {
            return false;
        };
        let mut space = [0; EVENTS_LEN];
        let reads = (0..MAX_READS).take_while(|_| rustix::io::read(watch, &mut space[..]).is_ok());
        reads.count() > 0
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn each_kind_of_change_is_reported_once_and_reading_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("one"), b"1").unwrap();
        let mut changes = FolderChanges::default();
        assert!(!changes.any());
        changes.follow(folder.path(), fs::metadata(folder.path()).unwrap().ino());
        assert!(!changes.any());
        let acts: [&dyn Fn(); 4] = [
            &|| fs::write(path("one"), b"2").unwrap(),
            &|| fs::rename(path("one"), path("two")).unwrap(),
            &|| fs::remove_file(path("two")).unwrap(),
            &|| fs::write(path("one"), b"3").unwrap(),
        ];
        for act in acts {
            act();
            assert!(changes.any());
            assert!(!changes.any());
        }
        fs::read(path("one")).unwrap();
        fs::read_dir(folder.path()).unwrap().count();
        assert!(!changes.any());
    }
}
