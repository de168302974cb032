// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Puts the files of a [`Plan`] in place: get, compare, verify, apply, verify again, and take all of it
//! back if the server's own test no longer passes.
//!
//! A file that was not generated, or was edited since, is replaced only by force, and a copy is kept.
//! Each file is replaced at once, by a rename; all of them together are not: a crash in between leaves
//! some new and some old, and the next run does the rest.

mod diff;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

use crate::plan::{Origin, Plan, PlannedFile, Snippet};
use crate::verify::{Verdict, below};

/// Bound on a file that is compared, in bytes: a generated one has 2 KiB.
const MAX_FILE: u64 = 1 << 20;

/// Copies of a file that are kept beside it, before somebody should tidy up.
const MAX_COPIES: usize = 100;

/// Why nothing, or not everything, was written. What had been written is taken back.
#[derive(Debug, Error)]
pub enum WriteError {
    /// Files of somebody else are in the way.
    #[error(
        "not written, because millrace did not generate this, or it was edited since: {}; --force \
         replaces it and keeps a copy (.millrace-save)",
        list(.0)
    )]
    InTheWay(Vec<PathBuf>),
    /// Not a regular file.
    #[error("{} is not a regular file: remove it, or write elsewhere with --root", .0.display())]
    NotAFile(PathBuf),
    /// The system refuses.
    #[error("{} {}: {source}", doing, path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The server's test passed before and does not now.
    #[error("{name} fails with the new files, so they were taken back: {said}")]
    Verification {
        /// Which test.
        name: &'static str,
        /// What it said.
        said: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    paths.join(", ")
}

/// How a file that is there compares with the one that is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// There is none.
    New,
    /// The same.
    Unchanged,
    /// Generated earlier, and different.
    Changed,
    /// Generated earlier, and edited since.
    Edited,
    /// Somebody else's.
    Foreign,
}

/// One file, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Where it is, below the root.
    pub path: PathBuf,
    /// How it compares.
    pub state: State,
    /// Lines that go (`-`) and come (`+`), with some around them; nothing for new and unchanged files.
    pub diff: Vec<String>,
}

/// What came of a test, before and after.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// Which test.
    pub name: &'static str,
    /// With the files that were there.
    pub before: Verdict,
    /// With the new ones.
    pub after: Verdict,
}

/// What was done.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// The files.
    pub files: Vec<Change>,
    /// Copies of what was replaced by force.
    pub saved: Vec<PathBuf>,
    /// The tests; none if there was nothing to do.
    pub verified: Vec<Verified>,
}

/// Compares the plan with what is there.
///
/// # Errors
/// A file cannot be read.
pub fn compare(plan: &Plan, root: &Path) -> Result<Vec<Change>, WriteError> {
    plan.files
        .iter()
        .map(|file| compare_file(file, root))
        .collect()
}

fn compare_file(file: &PlannedFile, root: &Path) -> Result<Change, WriteError> {
    let path = below(root, &file.path);
    let (state, diff) = match current(&path)? {
        None => (State::New, Vec::new()),
        Some(current) => {
            let text = String::from_utf8_lossy(&current.contents);
            let state = if current.contents == file.contents.as_bytes() {
                if current.mode == file.mode {
                    State::Unchanged
                } else {
                    State::Changed
                }
            } else {
                match Origin::of(&text) {
                    Origin::Generated => State::Changed,
                    Origin::Edited => State::Edited,
                    Origin::Foreign => State::Foreign,
                }
            };
            let mut lines = diff::lines(&text, &file.contents);
            if current.mode != file.mode {
                lines.push(format!(
                    "mode {:04o} becomes {:04o}",
                    current.mode, file.mode
                ));
            }
            (state, lines)
        }
    };
    Ok(Change { path, state, diff })
}

/// The snippets that the user's files do not have yet.
#[must_use]
pub fn missing_snippets<'a>(plan: &'a Plan, root: &Path) -> Vec<&'a Snippet> {
    let missing = |snippet: &&Snippet| {
        let there = match current(&below(root, &snippet.path)) {
            Ok(Some(current)) => String::from_utf8_lossy(&current.contents).into_owned(),
            Ok(None) | Err(_) => String::new(),
        };
        !there
            .lines()
            .any(|line| !line.trim_start().starts_with('#') && line.contains(&snippet.sign))
    };
    plan.snippets.iter().filter(missing).collect()
}

/// Writes what differs.
///
/// # Errors
/// See [`WriteError`]; then everything is as it was.
pub fn write(plan: &Plan, root: &Path, force: bool) -> Result<Written, WriteError> {
    let files = compare(plan, root)?;
    if files.iter().all(|change| change.state == State::Unchanged) {
        return Ok(Written {
            files,
            saved: Vec::new(),
            verified: Vec::new(),
        });
    }
    let in_the_way: Vec<PathBuf> = files
        .iter()
        .filter(|change| matches!(change.state, State::Foreign | State::Edited))
        .map(|change| change.path.clone())
        .collect();
    if !in_the_way.is_empty() && !force {
        return Err(WriteError::InTheWay(in_the_way));
    }
    let verify = || {
        plan.verifications
            .iter()
            .map(|verification| verification.run(root))
    };
    let before: Vec<Verdict> = verify().collect();
    let mut undo = Undo::default();
    for (file, change) in plan.files.iter().zip(&files) {
        if change.state != State::Unchanged {
            replace(file, change, &mut undo)?;
        }
    }
    let mut verified = Vec::new();
    for ((verification, before), after) in plan.verifications.iter().zip(before).zip(verify()) {
        // What failed before and still does was not broken here; the caller says so.
        if let (Verdict::Passed | Verdict::Skipped(_), Verdict::Failed(said)) = (&before, &after) {
            return Err(WriteError::Verification {
                name: verification.name,
                said: said.clone(),
            });
        }
        verified.push(Verified {
            name: verification.name,
            before,
            after,
        });
    }
    Ok(Written {
        files,
        saved: undo.keep(),
        verified,
    })
}

struct Current {
    contents: Vec<u8>,
    mode: u32,
}

fn current(path: &Path) -> Result<Option<Current>, WriteError> {
    let failed = |source| io_error("reading", path, source);
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // A link might lead to a file that is not meant; a file that long was not generated.
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(WriteError::NotAFile(path.to_owned()));
    }
    let mut contents = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE).read_to_end(&mut contents))
        .map_err(failed)?;
    Ok(Some(Current {
        contents,
        mode: metadata.permissions().mode() & 0o7777,
    }))
}

/// What takes everything back when it is dropped, unless it is told to keep it.
#[derive(Default)]
struct Undo {
    /// Newest last: a file with what it was, or nothing if it was not there.
    files: Vec<(PathBuf, Option<Current>)>,
    folders: Vec<PathBuf>,
    saved: Vec<PathBuf>,
}

impl Undo {
    /// Keeps what was done; the copies that were made.
    fn keep(mut self) -> Vec<PathBuf> {
        self.files.clear();
        self.folders.clear();
        std::mem::take(&mut self.saved)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // As far as the system lets us: there is an error on its way already.
        for (path, before) in self.files.iter().rev() {
            let _ = match before {
                None => fs::remove_file(path),
                Some(before) => put(path, &before.contents, before.mode).map_err(io::Error::other),
            };
        }
        for copy in &self.saved {
            let _ = fs::remove_file(copy);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn replace(file: &PlannedFile, change: &Change, undo: &mut Undo) -> Result<(), WriteError> {
    let path = &change.path;
    make_folders(path, undo)?;
    let before = current(path)?;
    if let (State::Foreign | State::Edited, Some(before)) = (change.state, &before) {
        undo.saved.push(save(path, before)?);
    }
    put(path, file.contents.as_bytes(), file.mode)?;
    undo.files.push((path.clone(), before));
    Ok(())
}

fn make_folders(path: &Path, undo: &mut Undo) -> Result<(), WriteError> {
    let missing: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .collect();
    for folder in missing.into_iter().rev() {
        let made = fs::create_dir(folder)
            .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755)));
        made.map_err(|source| io_error("making", folder, source))?;
        undo.folders.push(folder.to_owned());
    }
    Ok(())
}

/// A copy of what is about to be replaced, beside it.
fn save(path: &Path, before: &Current) -> Result<PathBuf, WriteError> {
    let mut last = io::Error::other("there are too many copies: remove some");
    for number in 0..MAX_COPIES {
        let mut name = path.as_os_str().to_owned();
        name.push(".millrace-save");
        if number > 0 {
            name.push(format!(".{number}"));
        }
        let copy = PathBuf::from(name);
        match create(&copy, &before.contents, before.mode) {
            Ok(()) => return Ok(copy),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(io_error("copying to", &copy, error)),
        }
    }
    Err(io_error("copying", path, last))
}

/// Replaces a file at once: whoever opens it sees the old or the new one.
fn put(path: &Path, contents: &[u8], mode: u32) -> Result<(), WriteError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".millrace-new");
    let new = PathBuf::from(name);
    // Left by a run that was killed.
    let _ = fs::remove_file(&new);
    let written = create(&new, contents, mode).and_then(|()| fs::rename(&new, path));
    written.map_err(|source| {
        let _ = fs::remove_file(&new);
        io_error("writing", path, source)
    })
}

fn create(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    file.write_all(contents)?;
    // Whatever the umask says.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}

fn io_error(doing: &'static str, path: &Path, source: io::Error) -> WriteError {
    WriteError::Io {
        doing,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
