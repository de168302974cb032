// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Other users of a generated file: units of systemd, their drop-ins, and the environments of scripts in /etc/init.d. A
//! server that is started by hand is not seen.

use std::path::{Path, PathBuf};
use std::{fs, io};

use millrace_hostfs::generated::below;
use millrace_hostfs::generated::write::WriteError;
use millrace_hostfs::ordinary::{self, Links, NotOrdinary};

use crate::plan::RecipePlan;

/// Folders in which services get their environment.
const FOLDERS: [&str; 2] = ["/etc/systemd/system", "/etc/default"];

/// Bound on the files that are looked at: a machine has a few hundred units.
const MAX_FILES: usize = 4096;

/// Bound on one of them, in bytes: units have a few KiB.
const MAX_FILE: usize = 1 << 20;

/// The files that give services their environment.
pub(crate) struct ServiceFiles(Vec<PathBuf>);

impl ServiceFiles {
    /// Finds the files below a root.
    ///
    /// # Errors
    /// A folder cannot be read, or there are more than [`MAX_FILES`]: then another user is perhaps not seen.
    pub(crate) fn find(root: &Path) -> Result<Self, WriteError> {
        let mut found = Vec::new();
        for folder in FOLDERS {
            let folder = below(root, Path::new(folder));
            for path in entries(&folder)? {
                if !path.is_dir() {
                    found.push(path);
                } else if path.extension().is_some_and(|suffix| suffix == "d") {
                    found.extend(entries(&path)?);
                }
                if found.len() > MAX_FILES {
                    let many = format!("there are more than {MAX_FILES} files of services");
                    return Err(failed(&folder, io::Error::other(many)));
                }
            }
        }
        found.sort();
        Ok(Self(found))
    }

    /// A file other than those of the plan, and of the plan's own server, that names `path` outside of a comment.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn other_user(
        &self,
        path: &Path,
        plan: &RecipePlan,
        root: &Path,
    ) -> Result<Option<PathBuf>, WriteError> {
        let Some(path) = path.to_str() else {
            return Ok(None);
        };
        let own: Vec<PathBuf> = plan.files.iter().map(|file| below(root, &file.path)).collect();
        let own_environment =
            below(root, &Path::new("/etc/default").join(plan.application.to_string()));
        for file in self.0.iter().filter(|file| !own.contains(file) && **file != own_environment) {
            if names(file, path)? {
                return Ok(Some(file.clone()));
            }
        }
        Ok(None)
    }
}

/// The paths in a folder, at most one more than are looked at.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, WriteError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|source| failed(folder, source))?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).take(MAX_FILES + 1);
    paths.collect::<io::Result<_>>().map_err(|source| failed(folder, source))
}

/// Whether the file names `path` outside of a comment. A masked unit does not, as other things that are no files, nor
/// does a link to nothing.
fn names(file: &Path, path: &str) -> Result<bool, WriteError> {
    let text = match ordinary::read(file, Links::Follow, MAX_FILE) {
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || NotOrdinary::is_reason_of(&error) =>
        {
            return Ok(false);
        }
        text => text.map_err(|source| failed(file, source))?,
    };
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', ';']));
    Ok(lines.any(|line| line.contains(path)))
}

fn failed(path: &Path, source: io::Error) -> WriteError {
    WriteError::Io { doing: "looking for other users in", path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_up_to_the_bound_are_found_and_one_more_is_an_error() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("etc/default");
        fs::create_dir_all(&folder).expect("a folder");
        for number in 0..MAX_FILES {
            symlink("/dev/null", folder.join(number.to_string())).expect("a link");
        }
        assert_eq!(ServiceFiles::find(root.path()).expect("found").0.len(), MAX_FILES);
        symlink("/dev/null", folder.join("more")).expect("a link");
        let error = ServiceFiles::find(root.path()).err().expect("too many").to_string();
        assert!(error.contains("more than 4096 files"), "{error}");
    }

    #[test]
    fn linked_file_counts_and_a_masked_unit_does_not() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |name: &str| root.path().join(name);
        fs::write(at("unit"), "# /x/a\nEnvironment=OPENSSL_CONF=/x/openssl.cnf\n").expect("a file");
        symlink(at("unit"), at("alias")).expect("a link");
        symlink("/dev/null", at("masked")).expect("a link");
        symlink("nothing", at("gone")).expect("a link");
        let named = |name: &str| names(&at(name), "/x/openssl.cnf").expect("read");
        assert!(named("alias") && !named("masked") && !named("gone"));
        assert!(!names(&at("alias"), "/x/a").expect("read"), "in a comment");
    }
}
