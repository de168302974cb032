// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Puts generated files in place: compare, verify, apply, verify again, and restore everything if a test of the
//! result no longer passes.
//!
//! [`compare`] returns the [`FileChanges`] that a person may read first; [`FileChanges::apply`] writes these and no
//! others: a file that was changed after the comparison is an error.
//!
//! A file that was not generated, or was edited since, is replaced only by force, and a copy is kept. Each file
//! is replaced atomically by a rename. [`FileChanges::apply_recorded`] replaces all of them or none: the record of a
//! process that was killed leads [`recover`] back. With [`FileChanges::apply`] some are new and some are old then, and
//! the owner has a record of its own.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::transaction::{self, FileSet};
use super::verify::{ConfigVerdict, Verification};
use super::{Origin, PlannedFile, below, diff};
use crate::change::state_file::StateFileError;
use crate::replace::replace_file;

/// Bound on a file that is compared, in bytes: a generated file has 2 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Bound on the copies of a file that are kept beside it. A copy is made only with `--force`; a script that runs it
/// every day is noticed after three months.
const MAX_COPIES: usize = 100;

/// Error of a write. After an error everything is restored.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Files that were not generated, or edited since, are at the planned paths.
    #[error(
        "not written, because millrace did not generate this, or it was edited since: {}; --force \
         replaces it and keeps a copy (.millrace-save)",
        list(.0)
    )]
    InTheWay(Vec<PathBuf>),
    /// The planned path is not a regular file of at most 1 MiB.
    #[error("{} is not a regular file: remove it, or write elsewhere with --root", .0.display())]
    NotAFile(PathBuf),
    /// The system reported an error.
    #[error("{} {}: {source}", doing, path.display())]
    Io {
        /// A verb with -ing: `writing`.
        doing: &'static str,
        /// Below the root of the plan.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A file was changed after it was compared.
    #[error("{} was changed after the comparison: run the command again", .0.display())]
    ChangedSince(PathBuf),
    /// The record of a change that was killed is of no use, so that its files stay as they are.
    #[error(
        "{}: {source}: remove it, and run the command again, which completes what was begun",
        path.display()
    )]
    Record {
        /// The record.
        path: PathBuf,
        /// Why it is of no use.
        source: StateFileError,
    },
    /// The server's test passed with the old files and fails with the new ones.
    #[error("{name} fails with the new files, so the old ones were restored: {output}")]
    Verification {
        /// Name of the test.
        name: &'static str,
        /// Printed output of the test.
        output: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths = paths.iter().map(|path| path.display().to_string());
    paths.collect::<Vec<_>>().join(", ")
}

/// Treatment of files that were not generated, or were edited since, by [`FileChanges::apply`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EditedFiles {
    /// Nothing is written, and the error names them.
    #[default]
    Keep,
    /// They are replaced, and copies are kept.
    Overwrite,
}

impl EditedFiles {
    /// The meaning of a command's `--force`.
    #[must_use]
    pub fn with_force(force: bool) -> Self {
        if force { Self::Overwrite } else { Self::Keep }
    }
}

/// Comparison of the file at a path with the planned one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    /// There is no file.
    New,
    /// The file has the planned contents and permissions.
    Unchanged,
    /// The file was generated earlier and differs.
    Changed,
    /// The file was generated earlier and edited since.
    Edited,
    /// The file was not generated.
    Foreign,
}

/// One file of the plan, compared.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct FileChange {
    /// Its path below the root.
    pub path: PathBuf,
    /// The comparison with the planned file.
    pub state: FileState,
    /// Removed lines (`-`) and added ones (`+`); empty for new and unchanged files.
    pub diff: Vec<String>,
    /// The file that was compared.
    #[serde(skip)]
    before: Option<ExistingFile>,
}

/// The difference between a plan and the files below a root.
#[derive(Clone, Debug)]
pub struct FileChanges<'a> {
    planned: &'a [PlannedFile],
    verifications: &'a [Verification],
    root: &'a Path,
    /// One entry for each file of the plan, in its order.
    pub files: Vec<FileChange>,
}

/// The result of a test of the server's configuration, before and after.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Verified {
    /// Name of the test.
    pub name: &'static str,
    /// Verdict with the old files.
    pub before: ConfigVerdict,
    /// Verdict with the new files.
    pub after: ConfigVerdict,
}

/// The result of a write.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Written {
    /// The files of the plan.
    pub files: Vec<FileChange>,
    /// Copies of files that were replaced by force.
    pub saved: Vec<PathBuf>,
    /// The tests; none if there was nothing to do.
    pub verified: Vec<Verified>,
}

/// Compares planned files with those below a root; `verifications` run before and after they are written.
pub fn compare<'a>(
    planned: &'a [PlannedFile],
    verifications: &'a [Verification],
    root: &'a Path,
) -> Result<FileChanges<'a>, WriteError> {
    let files = planned.iter().map(|file| compare_file(file, root)).collect::<Result<_, _>>()?;
    Ok(FileChanges { planned, verifications, root, files })
}

fn compare_file(file: &PlannedFile, root: &Path) -> Result<FileChange, WriteError> {
    let path = below(root, &file.path);
    let before = ExistingFile::read(&path)?;
    let (state, diff) = match &before {
        None => (FileState::New, Vec::new()),
        Some(current) => {
            let text = current.text();
            let state = if current.contents == file.contents.as_bytes() {
                if current.mode == file.mode { FileState::Unchanged } else { FileState::Changed }
            } else {
                match file.generator.origin(&text) {
                    Origin::Generated => FileState::Changed,
                    Origin::Edited => FileState::Edited,
                    Origin::Foreign => FileState::Foreign,
                }
            };
            let mut lines = diff::lines(&text, &file.contents);
            if current.mode != file.mode {
                lines.push(format!("mode {:04o} becomes {:04o}", current.mode, file.mode));
            }
            (state, lines)
        }
    };
    Ok(FileChange { path, state, diff, before })
}

impl FileChanges<'_> {
    /// Whether every file is as planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.iter().all(|change| change.state == FileState::Unchanged)
    }

    /// Writes the files that differ.
    ///
    /// # Errors
    /// See [`WriteError`]; then everything is as before.
    pub fn apply(self, edited: EditedFiles) -> Result<Written, WriteError> {
        self.replace(edited, None)
    }

    /// Writes the files that differ, all of them or none: what was before lies in `record` until the result is tested,
    /// and [`recover`] restores it after the end of this process.
    ///
    /// # Errors
    /// See [`WriteError`]; then everything is as before. So it is after the end of a former process, which this one
    /// finds first; the comparison is then of no use any more.
    pub fn apply_recorded(self, edited: EditedFiles, record: &Path) -> Result<Written, WriteError> {
        recover(record)?;
        self.replace(edited, Some(record))
    }

    fn replace(self, edited: EditedFiles, record: Option<&Path>) -> Result<Written, WriteError> {
        for change in &self.files {
            change.check_current()?;
        }
        if self.is_empty() {
            return Ok(Written { files: self.files, ..Written::default() });
        }
        let foreign =
            |change: &&FileChange| matches!(change.state, FileState::Foreign | FileState::Edited);
        let in_the_way: Vec<PathBuf> =
            self.files.iter().filter(foreign).map(|change| change.path.clone()).collect();
        if !in_the_way.is_empty() && edited == EditedFiles::Keep {
            return Err(WriteError::InTheWay(in_the_way));
        }
        let verify = || self.verifications.iter().map(|test| test.run(self.root));
        let before: Vec<ConfigVerdict> = verify().collect();
        let (old, new) = self.sets()?;
        let saved = new.copies.iter().map(|(path, _)| path.clone()).collect();
        let mut verified = Vec::new();
        let test = || {
            for ((test, before), after) in self.verifications.iter().zip(&before).zip(verify()) {
                // A test that failed with the old files, too, was not broken by the new ones: the caller reports it.
                if let (
                    ConfigVerdict::Passed | ConfigVerdict::Skipped(_),
                    ConfigVerdict::Failed(output),
                ) = (before, &after)
                {
                    let output = output.clone();
                    return Err(WriteError::Verification { name: test.name, output });
                }
                verified.push(Verified { name: test.name, before: before.clone(), after });
            }
            Ok(())
        };
        transaction::replace_all(old, new, record, test)?;
        Ok(Written { files: self.files, saved, verified })
    }

    /// The files that differ, as they are and as they shall be.
    fn sets(&self) -> Result<(FileSet, FileSet), WriteError> {
        let differs = |change: &FileChange| change.state != FileState::Unchanged;
        let mut new = FileSet::default();
        let mut old = Vec::new();
        for (file, change) in self.planned.iter().zip(&self.files).filter(|pair| differs(pair.1)) {
            let planned =
                ExistingFile { contents: file.contents.clone().into_bytes(), mode: file.mode };
            new.files.push((change.path.clone(), Some(planned)));
            old.push((change.path.clone(), change.before.clone()));
            if let (FileState::Foreign | FileState::Edited, Some(before)) =
                (change.state, &change.before)
            {
                new.copies.push((free_copy(&change.path)?, before.clone()));
            }
        }
        Ok((FileSet::before(&new, old), new))
    }
}

/// Restores the files of a change whose process was killed, if there is one at `record`; returns their paths.
///
/// # Errors
/// [`WriteError::Record`], or a file cannot be restored.
pub fn recover(record: &Path) -> Result<Vec<PathBuf>, WriteError> {
    transaction::recover(record)
}

impl FileChange {
    /// # Errors
    /// The file is not the one that was compared.
    fn check_current(&self) -> Result<(), WriteError> {
        if ExistingFile::read(&self.path)? == self.before {
            Ok(())
        } else {
            Err(WriteError::ChangedSince(self.path.clone()))
        }
    }
}

/// A file as it is on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExistingFile {
    #[serde(with = "bytes")]
    pub(super) contents: Vec<u8>,
    pub(super) mode: u32,
}

/// Contents in a record: text where they are text.
mod bytes {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Contents {
        Text(String),
        Bytes(Vec<u8>),
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(bytes).map(|text| Contents::Text(text.to_owned()));
        text.unwrap_or_else(|_| Contents::Bytes(bytes.to_vec())).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        Ok(match Contents::deserialize(from)? {
            Contents::Text(text) => text.into_bytes(),
            Contents::Bytes(bytes) => bytes,
        })
    }
}

impl ExistingFile {
    /// Reads a file; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, WriteError> {
        let failed = |source| io_error("reading", path, source);
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // A link might lead to another file than the planned one; a longer file was not generated.
        if !metadata.is_file() || metadata.len() > MAX_FILE {
            return Err(WriteError::NotAFile(path.to_owned()));
        }
        let mut contents = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_FILE).read_to_end(&mut contents))
            .map_err(failed)?;
        Ok(Some(Self { contents, mode: metadata.permissions().mode() & 0o7777 }))
    }

    /// The contents, with a replacement for bytes that are not UTF-8.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.contents)
    }
}

/// A name beside a file that is about to be replaced, for its copy.
fn free_copy(path: &Path) -> Result<PathBuf, WriteError> {
    for number in 0..MAX_COPIES {
        let mut name = path.as_os_str().to_owned();
        name.push(".millrace-save");
        if number > 0 {
            name.push(format!(".{number}"));
        }
        let copy = PathBuf::from(name);
        if fs::symlink_metadata(&copy).is_err() {
            return Ok(copy);
        }
    }
    let source = io::Error::other("there are too many copies: remove some");
    Err(io_error("copying", path, source))
}

/// Replaces a file atomically.
pub(super) fn put(path: &Path, contents: &[u8], mode: u32) -> Result<(), WriteError> {
    replace_file(path, contents, Some(mode)).map_err(|source| io_error("writing", path, source))
}

pub(super) fn create(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    // The mode above is subject to the umask.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

pub(super) fn io_error(doing: &'static str, path: &Path, source: io::Error) -> WriteError {
    WriteError::Io { doing, path: path.to_owned(), source }
}
