// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whether this user can write where a result is to go. A command asks before it does anything: what it would do first,
//! a token that a manager makes or a measurement of minutes, is lost if its file cannot be written.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use thiserror::Error;

/// Why a result cannot be written to a path.
#[derive(Debug, Error)]
pub enum OutputPathError {
    /// The path is a folder, and a file was wanted.
    #[error("it is a folder: name a file in it")]
    IsFolder,
    /// The path is a file, and a folder was wanted.
    #[error("it is a file: name a folder")]
    IsFile,
    /// The path is empty, or ends in `..`.
    #[error("it names no file")]
    NoName,
    /// The folder of the file is not there.
    #[error("there is no folder {}: make it first", .0.display())]
    NoFolder(PathBuf),
    /// A part of the path is a file.
    #[error("{} is not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The system refuses this user.
    #[error("this user may not write to {}: {source}", path.display())]
    Refused {
        /// The folder, or the file itself.
        path: PathBuf,
        /// The answer of the system.
        source: io::Error,
    },
}

/// The folder of a path: that of a bare name is the current one, where [`Path::parent`] gives an empty path, which no
/// system call opens.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Accepts the path of a file that is to be made or replaced. Devices and pipes, such as `/dev/stdout`, are written to
/// as they are.
///
/// # Errors
/// [`OutputPathError`]: its folder is missing or closed to this user, or the path is a folder.
pub fn output_file(path: PathBuf) -> Result<PathBuf, OutputPathError> {
    if path.file_name().is_none() {
        return Err(if path.is_dir() {
            OutputPathError::IsFolder
        } else {
            OutputPathError::NoName
        });
    }
    match fs::metadata(&path) {
        Ok(found) if found.is_dir() => return Err(OutputPathError::IsFolder),
        // Written in place, where the file is open to this user and its folder is not.
        Ok(_) if is_writable(&path, Access::WRITE_OK).is_ok() => return Ok(path),
        _ => {}
    }
    writable_folder(folder_of(&path))?;
    Ok(path)
}

/// Accepts the path of a folder that is to be filled, and to be made if it is missing.
///
/// # Errors
/// [`OutputPathError`]: it is a file, or the nearest folder that is there is closed to this user.
pub fn output_folder(path: PathBuf) -> Result<PathBuf, OutputPathError> {
    if path.as_os_str().is_empty() {
        return Err(OutputPathError::NoName);
    }
    if fs::metadata(&path).is_ok_and(|found| !found.is_dir()) {
        return Err(OutputPathError::IsFile);
    }
    let mut nearest = path.as_path();
    while fs::symlink_metadata(nearest).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        nearest = folder_of(nearest);
    }
    writable_folder(nearest)?;
    Ok(path)
}

fn writable_folder(folder: &Path) -> Result<(), OutputPathError> {
    let named = || folder.to_owned();
    match fs::metadata(folder).as_ref().map(Metadata::is_dir) {
        Ok(true) => {}
        Ok(false) => return Err(OutputPathError::NotAFolder(named())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OutputPathError::NoFolder(named()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(OutputPathError::NotAFolder(named()));
        }
        Err(error) => {
            return Err(OutputPathError::Refused { path: named(), source: error.kind().into() });
        }
    }
    is_writable(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|source| OutputPathError::Refused { path: named(), source })
}

/// Asks for the rights of the effective user, as opening does.
fn is_writable(path: &Path, rights: Access) -> io::Result<()> {
    Ok(accessat(CWD, path, rights, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn bare_name_is_in_the_current_folder() {
        assert_eq!(folder_of(Path::new("node-1.access")), Path::new("."));
        assert_eq!(folder_of(Path::new("keys/node-1.access")), Path::new("keys"));
        assert_eq!(folder_of(Path::new("/a")), Path::new("/"));
    }

    #[test]
    fn files_that_can_be_written_are_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("there"), "x").unwrap();
        symlink(at("there"), at("link")).unwrap();
        for path in [at("new"), at("there"), at("link"), "/dev/null".into(), "bare-name".into()] {
            assert_eq!(output_file(path.clone()).unwrap(), path);
        }
        for path in [at("new/a/b"), folder.path().to_owned(), "bare-name".into()] {
            assert_eq!(output_folder(path.clone()).unwrap(), path);
        }
    }

    #[test]
    fn refusal_names_what_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "x").unwrap();
        let said = |result: Result<PathBuf, OutputPathError>| result.unwrap_err().to_string();
        let none = format!("there is no folder {}: make it first", at("none").display());
        assert_eq!(said(output_file(at("none/x"))), none);
        let not = format!("{} is not a folder", at("file").display());
        assert_eq!(said(output_file(at("file/x"))), not);
        assert_eq!(
            said(output_file(folder.path().to_owned())),
            "it is a folder: name a file in it"
        );
        assert_eq!(said(output_file("".into())), "it names no file");
        assert_eq!(said(output_folder("".into())), "it names no file");
        assert_eq!(said(output_folder(at("file"))), "it is a file: name a folder");
    }
}
