// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Replaces a file as a whole: a program that reads it, and a machine that loses power, sees the former or the new one.
//!
//! The new file is made beside the former one, with the name `.NAME.0.new`, and renamed when it is on the disk. Its
//! writer holds a lock (`flock`) on it, which ends with the process: a file of that name without a lock is what a
//! killed writer left, and the next writer of `NAME` removes it. While another process writes, the next number is
//! used.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::ordinary::{self, Links};
use crate::output_path::folder_of;

/// Maximum number of unfinished files beside a file: no more processes write one file at a time, and on a file system
/// without locks no more of them are killed in [`DEAD`].
const MAX_WRITERS: u32 = 64;

/// Age from which on a file beside another is a leftover where the file system has no locks: no write takes that long,
/// and the clocks of a network file system and of its hosts differ by less.
const DEAD: Duration = Duration::from_secs(24 * 60 * 60);

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
    FreshFile::write(path, mode, write)?.replace()?;
    sync_folder_of(path)
}

/// Makes a file as [`replace_file`] does, under a name that no file has yet.
///
/// # Errors
/// As [`FreshFile::put_new`]. Then no file got that name, unless flushing the folder failed.
pub fn make_file(path: &Path, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    FreshFile::write(path, mode, |file| file.write_all(bytes))?.put_new()?;
    sync_folder_of(path)
}

/// Removes what killed writers of this file left beside it.
pub fn remove_leftovers(path: &Path) {
    remove_leftovers_from(path, 0);
}

fn remove_leftovers_from(path: &Path, first: u32) {
    let beside = (first..MAX_WRITERS).map(|number| beside(path, number));
    for beside in beside.take_while(|beside| fs::symlink_metadata(beside).is_ok()) {
        remove_if_dead(&beside);
    }
}

/// A whole file on the disk that has no name of its own yet. Dropping it removes it.
#[derive(Debug)]
pub struct FreshFile<'a> {
    /// Keeps the lock.
    file: File,
    beside: PathBuf,
    path: &'a Path,
}

impl<'a> FreshFile<'a> {
    /// Writes a file that is to be at `path`, with a mode as [`replace_file`] has it.
    ///
    /// # Errors
    /// The operating system refuses, or `write` fails.
    pub fn write(
        path: &'a Path,
        mode: Option<u32>,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut fresh = Self::beside(path, mode.unwrap_or(0o666))?;
        if let Some(mode) = mode {
            // The mode of a new file is subject to the umask.
            fresh.file.set_permissions(Permissions::from_mode(mode))?;
        }
        write(&mut fresh.file)?;
        fresh.file.sync_all()?;
        Ok(fresh)
    }

    /// In the same folder, since a rename cannot leave a file system.
    fn beside(path: &'a Path, mode: u32) -> io::Result<Self> {
        for number in 0..MAX_WRITERS {
            let beside = beside(path, number);
            let create =
                || OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside);
            let file = match create() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !remove_if_dead(&beside) {
                        continue;
                    }
                    match create() {
                        // Another process was faster.
                        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                        made => made?,
                    }
                }
                made => made?,
            };
            match file.try_lock() {
                // Another process took it for a leftover between the two calls, and removes it.
                Err(TryLockError::WouldBlock) => continue,
                // A file system without locks.
                Ok(()) | Err(TryLockError::Error(_)) => {}
            }
            if is_at(&file, &beside) {
                // Of two writers that were killed, the second may have been the last.
                remove_leftovers_from(path, number + 1);
                return Ok(Self { file, beside, path });
            }
        }
        Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "{MAX_WRITERS} unfinished files (.*.new) lie beside it: remove those that no process writes"
            ),
        ))
    }

    /// Gives the file its name, in the place of a former one.
    ///
    /// # Errors
    /// The operating system refuses. The former file is as it was.
    pub fn replace(self) -> io::Result<()> {
        self.check()?;
        fs::rename(&self.beside, self.path)
    }

    /// Gives the file its name if no file has it yet. Network file systems and many of FUSE lack that kind of rename:
    /// there a second name (a hard link) takes its place.
    ///
    /// # Errors
    /// Of kind `AlreadyExists` if the name is taken. Of kind `Unsupported` if the file system has neither.
    pub fn put_new(self) -> io::Result<()> {
        self.check()?;
        rename_new(&self.beside, self.path)
    }

    /// A host that does not see the locks of this one takes the file for a leftover.
    fn check(&self) -> io::Result<()> {
        if is_at(&self.file, &self.beside) {
            return Ok(());
        }
        Err(io::Error::other("another host writes the same file: run the command again"))
    }
}

impl Drop for FreshFile<'_> {
    fn drop(&mut self) {
        if is_at(&self.file, &self.beside) {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

fn beside(path: &Path, number: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{number}.new"))
}

/// Whether this open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(found)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (file.dev(), file.ino()) == (found.dev(), found.ino())
}

/// Removes a file that was left by a killed writer of this user; returns whether it did.
fn remove_if_dead(beside: &Path) -> bool {
    // Some network file systems lock only what is open for writing.
    let opened =
        ordinary::open_to_change(beside).or_else(|_| ordinary::open(beside, Links::Refuse));
    let Ok(file) = opened else {
        return false;
    };
    let Ok(found) = file.metadata() else {
        return false;
    };
    let is_dead = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => {
            found.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > DEAD))
        }
    };
    is_dead
        && found.uid() == geteuid().as_raw()
        && is_at(&file, beside)
        && fs::remove_file(beside).is_ok()
}

fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
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
    use std::env;
    use std::os::unix::fs::symlink;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use millrace_testkit::refused_calls::{
        NO_HARD_LINKS, NO_RENAME_TO_A_FREE_NAME, RefusedCall, STEPS_OF_A_WRITE, with_refused_calls,
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

    #[test]
    fn writer_that_is_killed_at_any_step_leaves_nothing_that_the_next_write_does_not_remove() {
        const FOLDER: &str = "MILLRACE_TEST_KILLED_IN";
        let act = |folder: &Path, content: &[u8]| {
            replace_file(&folder.join("settings"), content, Some(0o640))?;
            match make_file(&folder.join("new"), content, Some(0o600)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            }
        };
        if let (Some(folder), Ok(step)) = (env::var_os(FOLDER), env::var("MILLRACE_TEST_STEP")) {
            let number = STEPS_OF_A_WRITE[step.parse::<usize>().unwrap()].1;
            with_refused_calls(&[RefusedCall::kills_before(number)], || {
                let _ = act(Path::new(&folder), b"second");
            });
            return;
        }
        for (index, (step, _)) in STEPS_OF_A_WRITE.iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            replace_file(&folder.path().join("settings"), b"first", None).unwrap();
            // Killed twice: the second one finds what the first one left.
            for _ in 0..2 {
                let status = Command::new(env::current_exe().unwrap())
                    .args(["--exact", "replace::tests::writer_that_is_killed_at_any_step_leaves_nothing_that_the_next_write_does_not_remove"])
                    .env(FOLDER, folder.path())
                    .env("MILLRACE_TEST_STEP", index.to_string())
                    .stdout(Stdio::null())
                    .status()
                    .unwrap();
                // SIGSYS, which no process can catch here, is how a filter kills.
                assert_eq!(
                    status.signal(),
                    Some(rustix::process::Signal::SYS.as_raw()),
                    "{step}: {status}"
                );
            }
            let left = names(folder.path());
            let beside = left.iter().filter(|name| name.ends_with(".new")).count();
            assert_eq!(beside, 1, "{step}: {left:?}");
            let content = fs::read(folder.path().join("settings")).unwrap();
            let whole: &[u8] = if *step == "renameat2" { b"second" } else { b"first" };
            assert_eq!(content, whole, "{step}");
            act(folder.path(), b"third").unwrap();
            assert_eq!(names(folder.path()), ["new", "settings"], "{step}");
        }
    }

    #[test]
    fn file_of_a_living_writer_stays_and_each_of_two_writers_finishes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        let first = FreshFile::write(&path, None, |file| file.write_all(b"first")).unwrap();
        replace_file(&path, b"second", None).unwrap();
        remove_leftovers(&path);
        assert_eq!(names(folder.path()), [".settings.0.new", "settings"]);
        first.replace().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(names(folder.path()), ["settings"]);
    }

    #[test]
    fn unfinished_file_that_another_host_removed_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings");
        let fresh = FreshFile::write(&path, None, |file| file.write_all(b"ours")).unwrap();
        let beside = folder.path().join(".settings.0.new");
        fs::remove_file(&beside).unwrap();
        fs::write(&beside, b"theirs, half").unwrap();
        let error = fresh.replace().unwrap_err();
        assert!(error.to_string().contains("another host"), "{error}");
        assert_eq!(names(folder.path()), [".settings.0.new"]);
        assert_eq!(fs::read(&beside).unwrap(), b"theirs, half");
    }

    #[test]
    fn what_is_no_leftover_of_this_user_is_neither_removed_nor_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("target"), b"target").unwrap();
        symlink("target", at(".settings.0.new")).unwrap();
        fs::create_dir(at(".settings.1.new")).unwrap();
        fs::write(at(".settings.2.new"), b"left").unwrap();
        replace_file(&at("settings"), b"new", None).unwrap();
        assert_eq!(
            names(folder.path()),
            [".settings.0.new", ".settings.1.new", "settings", "target"]
        );
        assert_eq!(fs::read(at("target")).unwrap(), b"target");
        for number in 2..MAX_WRITERS {
            fs::create_dir(at(&format!(".settings.{number}.new"))).unwrap();
        }
        let error = replace_file(&at("settings"), b"newer", None).unwrap_err();
        assert!(error.to_string().contains("64 unfinished files"), "{error}");
        assert_eq!(fs::read(at("settings")).unwrap(), b"new");
    }
}
