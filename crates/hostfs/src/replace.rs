// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Replaces a file as a whole: a program that reads it, and a machine that loses power, sees the former or the new one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::output_path::folder_of;

/// Replaces or makes a file, with exactly this mode; `None` is 0666 less the umask, as for any new file. It is on the
/// disk when this returns.
///
/// # Errors
/// The operating system refuses. The former file is as it was, unless flushing the folder failed.
pub fn replace_file(path: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    replace_with(path, mode, |file| file.write_all(bytes))
}

/// Replaces or makes a file as [`replace_file`] does; `write` gives it its content, and may set its time.
///
/// # Errors
/// The operating system refuses, or `write` fails. The former file is as it was, unless flushing the folder failed.
pub fn replace_with(
    path: &Path,
    mode: Option<u32>,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // In the same folder, since a rename cannot leave a file system. No two writers have the same name.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.{}-{number}.new", process::id()));
    let create = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let mut file = options.mode(mode.unwrap_or(0o666)).open(&fresh)?;
        if let Some(mode) = mode {
            // The mode above is subject to the umask.
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        write(&mut file)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    create().inspect_err(|_| {
        // The error that led here is the one to report.
        let _ = fs::remove_file(&fresh);
    })?;
    sync_folder_of(path)
}

/// Renames a file to a name that no file has yet. Network file systems and many of FUSE lack that kind of rename: there
/// a second name (a hard link) takes its place.
///
/// # Errors
/// Of kind `AlreadyExists` if the name is taken; then both files stay. Of kind `Unsupported` if the file system has
/// neither.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // NFS, 9p and FUSE answer INVAL; NOSYS is that of a kernel or filter without the call.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        result => return Ok(result?),
    }
    match fs::hard_link(from, to) {
        // Both names are of one file now, so a failure here leaves a whole file under the new one.
        Ok(()) => fs::remove_file(from),
        Err(error) => Err(match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => io::Error::new(
                io::ErrorKind::Unsupported,
                "its file system can neither rename a file to a free name (renameat2) nor make hard links: use a folder \
                 on another one",
            ),
            _ => error,
        }),
    }
}

/// Flushes the entries of the folder of a file to the disk, where the file system can do that.
///
/// # Errors
/// As the operating system reports them.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    sync_folder(folder_of(path))
}

/// As [`sync_folder_of`], of the folder itself.
///
/// # Errors
/// As [`sync_folder_of`].
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // 9p and some of FUSE: their server keeps the entries.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use millrace_testkit::refused_calls::{
        NO_HARD_LINKS, NO_RENAME_TO_A_FREE_NAME, with_refused_calls,
    };

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn file_is_replaced_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        replace_file(&path, b"first", None).unwrap();
        replace_file(&path, b"2", Some(0o640)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert_eq!(names(folder.path()), ["settings"]);
    }

    #[test]
    fn full_disk_leaves_the_former_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        replace_file(&path, b"former", None).unwrap();
        let full = |file: &mut File| {
            file.write_all(b"ne")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        let error = replace_with(&path, None, full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"former");
        assert_eq!(names(folder.path()), ["settings"]);
    }

    #[test]
    fn file_gets_a_free_name_and_takes_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::write(&from, b"1").unwrap();
        rename_new(&from, &to).unwrap();
        fs::write(&from, b"2").unwrap();
        let error = rename_new(&from, &to).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&from).unwrap(), fs::read(&to).unwrap()), (b"2".into(), b"1".into()));
    }

    #[test]
    fn file_gets_a_free_name_where_only_hard_links_are() {
        with_refused_calls(&[NO_RENAME_TO_A_FREE_NAME], file_gets_a_free_name_and_takes_no_other);
        with_refused_calls(&[NO_RENAME_TO_A_FREE_NAME, NO_HARD_LINKS], || {
            let folder = tempfile::tempdir().unwrap();
            let (from, to) = (folder.path().join("from"), folder.path().join("to"));
            fs::write(&from, b"1").unwrap();
            let error = rename_new(&from, &to).unwrap_err();
            assert!(error.to_string().contains("hard links"), "{error}");
            assert_eq!(names(folder.path()), ["from"]);
        });
    }

    #[test]
    fn refusal_of_the_last_step_leaves_no_file_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        fs::create_dir(&path).unwrap();
        assert!(replace_file(&path, b"new", None).is_err());
        assert_eq!(names(folder.path()), ["settings"]);
        assert!(replace_file(&folder.path().join("none/settings"), b"new", None).is_err());
    }
}
