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

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

pub use super::file::{ExistingFile, WriteError};

use super::file::io_error;
use super::transaction::{self, FileSet};
use super::verify::{ConfigVerdict, Verification};
use super::{Origin, PlannedFile, below, diff};

/// Bound on the copies of a file that are kept beside it. A copy is made only with `--force`; a script that runs it
/// every day is noticed after three months.
const MAX_COPIES: usize = 100;

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
