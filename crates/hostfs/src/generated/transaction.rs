// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Several files as one change: all of them are replaced, or none is, also where the process is killed in between
//! (`crate::change`, ADR 58).
//!
//! A file that is not as this change wrote it was changed by another program or a person since, and stays as it is on
//! the way back.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::file::{ExistingFile, WriteError, io_error, put};
use crate::change::{ChangeDue, ChangedHost, HostChange, HostTime, carry_out, go_back, state_file};
use crate::replace::{make_file, remove_leftovers};

/// The files of a change, before it or after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileSet {
    /// In the order in which they are written; `None` where there is no file.
    pub(super) files: Vec<(PathBuf, Option<ExistingFile>)>,
    /// Copies of files that the change replaces.
    pub(super) copies: Vec<(PathBuf, ExistingFile)>,
    /// Folders that the change makes, the outer ones first.
    folders: Vec<PathBuf>,
}

/// A host whose state is a set of files.
struct Files<'a, V> {
    /// Where the record is, if the change has one.
    record: Option<&'a Path>,
    /// The set before and after, as the record has them.
    saved: Option<HostChange<FileSet>>,
    /// The test of what was written.
    verify: V,
}

impl<V: FnMut() -> Result<(), WriteError>> ChangedHost<FileSet> for Files<'_, V> {
    type Error = WriteError;

    fn save(&mut self, change: &HostChange<FileSet>) -> Result<(), WriteError> {
        if let Some(path) = self.record {
            let written = if change.trial().is_some() {
                state_file::write(path, change, state_file::PRIVATE)
            } else {
                // Nothing is under way: the files themselves are the state.
                fs::remove_file(path)
            };
            written.map_err(|source| io_error("writing", path, source))?;
        }
        self.saved = Some(change.clone());
        Ok(())
    }

    fn put(&mut self, state: Option<&FileSet>) -> Result<Option<FileSet>, WriteError> {
        let (Some(state), Some(saved)) = (state, &self.saved) else {
            return Ok(None);
        };
        let (Some(before), Some(after)) = (saved.confirmed(), saved.trial()) else {
            return Ok(None);
        };
        if state == after {
            after.write(before)?;
            (self.verify)()?;
        } else {
            before.restore(after)?;
        }
        Ok(Some(state.clone()))
    }
}

impl FileSet {
    /// The set that becomes `after`, as the files are now.
    pub(super) fn before(after: &Self, files: Vec<(PathBuf, Option<ExistingFile>)>) -> Self {
        let mut folders: Vec<PathBuf> = Vec::new();
        for (path, _) in &after.files {
            let missing = path
                .ancestors()
                .skip(1)
                .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
            let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
            missing.reverse();
            missing.retain(|folder| !folders.contains(folder));
            folders.extend(missing);
        }
        Self { files, copies: after.copies.clone(), folders }
    }

    /// Writes this set over the one before.
    fn write(&self, before: &Self) -> Result<(), WriteError> {
        for folder in &before.folders {
            let made = match fs::create_dir(folder) {
                // The folder of the record may lie below it, and was made first.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {
                    continue;
                }
                made => made,
            };
            made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)))
                .map_err(|source| io_error("making", folder, source))?;
        }
        for (path, copy) in &self.copies {
            make_file(path, &copy.contents, Some(copy.mode))
                .map_err(|source| io_error("copying to", path, source))?;
        }
        for ((path, new), (_, old)) in self.files.iter().zip(&before.files) {
            if ExistingFile::read(path)? != *old {
                return Err(WriteError::ChangedSince(path.clone()));
            }
            if let Some(new) = new {
                put(path, &new.contents, new.mode)?;
            }
        }
        Ok(())
    }

    /// Restores this set where the files are as `after` has them.
    fn restore(&self, after: &Self) -> Result<(), WriteError> {
        for ((path, old), (_, new)) in self.files.iter().zip(&after.files).rev() {
            remove_leftovers(path);
            if ExistingFile::read(path).is_ok_and(|found| found == *new) {
                match old {
                    Some(old) => put(path, &old.contents, old.mode)?,
                    None => fs::remove_file(path)
                        .map_err(|source| io_error("removing", path, source))?,
                }
            }
        }
        // What was not made is not there, and a folder that has other files now stays.
        for (copy, _) in &self.copies {
            remove_leftovers(copy);
            let _ = fs::remove_file(copy);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// Replaces the files of a set, tests the result, and restores them if that fails. The record lies at `record` while
/// the change is under way.
pub(super) fn replace_all(
    before: FileSet,
    after: FileSet,
    record: Option<&Path>,
    verify: impl FnMut() -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let made = record.map_or_else(|| Ok(Vec::new()), make_folder_of)?;
    let mut change = HostChange::settled(Some(before));
    let now = HostTime::now();
    // Nothing was under way that could be over.
    let _ = change.begin(after, None, &now);
    let mut files = Files { record, saved: None, verify };
    let done = carry_out(&mut change, &mut files, || now.clone());
    for folder in made.iter().rev() {
        let _ = fs::remove_dir(folder);
    }
    done
}

/// Makes the folder of a file; returns the folders that it made.
fn make_folder_of(file: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let missing = file.ancestors().skip(1).take_while(|folder| !folder.exists());
    let missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|source| io_error("making", folder, source))?;
    Ok(missing.into_iter().rev().collect())
}

/// Restores the files of a change whose process was killed; returns those that were under way.
///
/// # Errors
/// The record is of no use, or a file cannot be restored.
pub(super) fn recover(record: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let damaged = |source| WriteError::Record { path: record.to_owned(), source };
    let Some(mut change) = state_file::read::<HostChange<FileSet>>(record).map_err(damaged)? else {
        return Ok(Vec::new());
    };
    let under_way = change
        .trial()
        .map_or_else(Vec::new, |after| after.files.iter().map(|(path, _)| path.clone()).collect());
    let verify = || Ok(());
    let mut files = Files { record: Some(record), saved: Some(change.clone()), verify };
    match change.due(&HostTime::now()) {
        ChangeDue::Return(_) => go_back(&mut change, &mut files)?,
        ChangeDue::Nothing | ChangeDue::Confirmation(_) => {
            fs::remove_file(record).map_err(|source| io_error("removing", record, source))?;
        }
    }
    Ok(under_way)
}
