// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Records of commands on disk, as JSON with a version: read only from files that no other user could have written.
//!
//! A record may name commands that root runs, so that its owner matters as much as its form.

use std::io;
use std::path::Path;

use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::ordinary::{self, Links};
use crate::replace::replace_file;
use crate::trusted::{self, Untrusted};

/// Version of the records that this program writes. Files without one are of the first.
const VERSION: u64 = 1;

/// Bound on a record, in bytes: the longest have the former contents of some files of 1 MiB each.
const MAX_BYTES: usize = 32 << 20;

/// Why a record cannot be used.
#[derive(Debug, Error)]
pub enum StateFileError {
    /// The system refuses, or there is something else than a file of bounded length.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Another user may have written it.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// A later version has written it.
    #[error("it is of version {0}, and this millrace knows {VERSION}")]
    Newer(u64),
    /// The content is not that of a record.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// Reads a record; `None` if there is none.
///
/// # Errors
/// See [`StateFileError`].
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateFileError> {
    let file = match ordinary::open(path, Links::Refuse) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    trusted::check_entry(path, &file.metadata()?, &[geteuid().as_raw()])?;
    let mut bytes = Vec::new();
    ordinary::read_rest(file, MAX_BYTES, &mut bytes)?;
    parse(&bytes).map(Some)
}

/// Reads the bytes of a record.
///
/// # Errors
/// [`StateFileError::Newer`] and [`StateFileError::Damaged`].
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, StateFileError> {
    let damaged = |error: serde_json::Error| StateFileError::Damaged(error.to_string());
    let mut value: Value = serde_json::from_slice(bytes).map_err(damaged)?;
    if let Some(version) = value.as_object_mut().and_then(|object| object.remove("version")) {
        match version.as_u64() {
            Some(known) if known <= VERSION => {}
            Some(newer) => return Err(StateFileError::Newer(newer)),
            None => return Err(StateFileError::Damaged("its version is no number".to_owned())),
        }
    }
    serde_json::from_value(value).map_err(damaged)
}

/// Mode of a record that everybody may read.
pub const PUBLIC: u32 = 0o644;

/// Mode of a record with what only its owner may read.
pub const PRIVATE: u32 = 0o600;

/// Replaces a record, which is an object. It is on the disk when this returns.
///
/// # Errors
/// The former record is there.
pub fn write(path: &Path, record: &impl Serialize, mode: u32) -> io::Result<()> {
    let mut value = serde_json::to_value(record)?;
    if let Some(object) = value.as_object_mut() {
        object.insert("version".to_owned(), VERSION.into());
    }
    replace_file(path, &serde_json::to_vec_pretty(&value)?, Some(mode))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use rustix::fs::{CWD, Mode, mkfifoat};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        number: u8,
    }

    #[test]
    fn record_comes_back_and_a_record_without_version_is_of_the_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("record.json");
        assert!(read::<Record>(&path).expect("no file").is_none());
        write(&path, &Record { number: 7 }, PRIVATE).expect("written");
        assert_eq!(read(&path).expect("a record"), Some(Record { number: 7 }));
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o7777, 0o600);
        assert_eq!(parse::<Record>(b"{\"number\":7}").expect("a record"), Record { number: 7 });
    }

    #[test]
    fn record_that_cannot_be_trusted_or_understood_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("record.json");
        let said = || read::<Record>(&path).expect_err("refused").to_string();
        for (content, expected) in [
            ("", "damaged"),
            ("{\"number\":7", "damaged"),
            ("\u{0}\u{1}x", "damaged"),
            ("{\"number\":\"seven\"}", "damaged"),
            ("{\"version\":2,\"number\":7}", "of version 2"),
            ("{\"version\":\"x\",\"number\":7}", "no number"),
        ] {
            fs::write(&path, content).expect("a file");
            assert!(said().contains(expected), "{content}: {}", said());
        }
        write(&path, &Record { number: 7 }, PRIVATE).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("a mode");
        assert!(said().contains("mode 0666"), "{}", said());
        let target = folder.path().join("target.json");
        fs::rename(&path, &target).expect("moved");
        symlink(&target, &path).expect("a link");
        assert!(said().contains("a symbolic link"), "{}", said());
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("a folder");
        assert!(said().contains("a folder"), "{}", said());
        fs::remove_dir(&path).expect("removed");
        mkfifoat(CWD, &path, Mode::RWXU).expect("a pipe");
        assert!(said().contains("a pipe"), "{}", said());
        fs::remove_file(&path).expect("removed");
        let file = fs::File::create(&path).expect("a file");
        file.set_len(MAX_BYTES as u64 + 1).expect("a length");
        assert!(said().contains("more than"), "{}", said());
    }
}
