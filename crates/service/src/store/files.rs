// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Atomic replacement of small files, over a layer that tests can make fail.
//!
//! The writer makes a file beside the old one, flushes it, and renames it ([`millrace_hostfs::replace`]). If any step
//! fails, the old file is still complete, and the new one is removed. Flushing the directory is a separate step,
//! because if it fails the new file *is* in place.

use std::io::{self, Write};
use std::path::Path;

use millrace_hostfs::replace::{FreshFile, sync_folder, sync_folder_of};

/// Fate of a write to a path that has a file already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// The write fails, and the file stays.
    Fail,
    /// The new file takes its place.
    Replace,
}

/// The file operations that can fail halfway.
pub(crate) trait FileLayer: Send + Sync {
    /// Writes a file with mode 0600 and these bytes that is to be at `path`, and flushes it to the disk.
    fn write<'a>(&self, path: &'a Path, bytes: &[u8]) -> io::Result<FreshFile<'a>>;
    /// Gives a file its name.
    fn put(&self, file: FreshFile<'_>, if_exists: IfExists) -> io::Result<()>;
    /// Flushes the entries of a directory to the disk.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The file system.
#[derive(Debug)]
pub(crate) struct Disk;

impl FileLayer for Disk {
    fn write<'a>(&self, path: &'a Path, bytes: &[u8]) -> io::Result<FreshFile<'a>> {
        FreshFile::write(path, Some(0o600), |file| file.write_all(bytes))
    }

    fn put(&self, file: FreshFile<'_>, if_exists: IfExists) -> io::Result<()> {
        match if_exists {
            IfExists::Fail => file.put_new(),
            IfExists::Replace => file.replace(),
        }
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        // The folder of a bare name is an empty path, which no system call opens.
        sync_folder(if path.as_os_str().is_empty() { Path::new(".") } else { path })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

/// Writes `bytes` to `path`, completely or not at all.
///
/// # Errors
/// Of kind `AlreadyExists` for [`IfExists::Fail`] and a file that is there. After any error, the previous content
/// of `path` is still there.
pub(crate) fn write_atomically(
    layer: &dyn FileLayer,
    path: &Path,
    bytes: &[u8],
    if_exists: IfExists,
) -> io::Result<()> {
    layer.put(layer.write(path, bytes)?, if_exists)
}

/// Writes `bytes` to `path` with mode 0600, completely or not at all, and flushes the directory.
pub fn write_private(path: &Path, bytes: &[u8], if_exists: IfExists) -> io::Result<()> {
    write_atomically(&Disk, path, bytes, if_exists)?;
    sync_folder_of(path)
}

/// Mode bits that give access to others than the owner.
const EXPOSED: u32 = 0o077;

/// Mode bits that a file of root must not have: its group may read it, since only root can have chosen that group.
/// Debian's `ssl-cert` stores keys so, and PostgreSQL has the same rule.
const EXPOSED_OF_ROOT: u32 = 0o037;

/// Mode bits that a file with a secret must not have if the user `owner` owns it.
#[must_use]
pub const fn exposed_bits(owner: u32) -> u32 {
    if owner == 0 { EXPOSED_OF_ROOT } else { EXPOSED }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    /// The step at which the disk is full.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum DiskStep {
        /// The disk is full after half of the bytes.
        Write,
        /// The disk is full at the rename.
        Rename,
    }

    /// A disk that is full at one step.
    #[derive(Debug)]
    pub(crate) struct FullDisk(pub(crate) DiskStep);

    impl FileLayer for FullDisk {
        fn write<'a>(&self, path: &'a Path, bytes: &[u8]) -> io::Result<FreshFile<'a>> {
            if self.0 == DiskStep::Write {
                return FreshFile::write(path, Some(0o600), |file| {
                    file.write_all(&bytes[..bytes.len() / 2])?;
                    Err(io::ErrorKind::StorageFull.into())
                });
            }
            Disk.write(path, bytes)
        }

        fn put(&self, file: FreshFile<'_>, if_exists: IfExists) -> io::Result<()> {
            if self.0 == DiskStep::Rename {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Disk.put(file, if_exists)
        }

        fn sync_directory(&self, path: &Path) -> io::Result<()> {
            Disk.sync_directory(path)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            Disk.remove(path)
        }
    }
}
