// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One file of a host: read, made, replaced; and the error of a write.

use std::borrow::Cow;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::change::state_file::StateFileError;
use crate::ordinary::{self, Links, NotOrdinary};
use crate::replace::replace_file;

/// Bound on a file that is compared, in bytes: a generated file has 2 KiB.
const MAX_FILE: usize = 1 << 20;

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
        // A link might lead to another file than the planned one.
        let file = match ordinary::open(path, Links::Refuse) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if NotOrdinary::is_reason_of(&error) => {
                return Err(WriteError::NotAFile(path.to_owned()));
            }
            Err(error) => return Err(failed(error)),
        };
        let metadata = file.metadata().map_err(failed)?;
        let mut contents = Vec::new();
        ordinary::read_rest(file, MAX_FILE, &mut contents).map_err(|error| match error.kind() {
            // It was not generated.
            io::ErrorKind::FileTooLarge => WriteError::NotAFile(path.to_owned()),
            _ => failed(error),
        })?;
        Ok(Some(Self { contents, mode: metadata.permissions().mode() & 0o7777 }))
    }

    /// The contents, with a replacement for bytes that are not UTF-8.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.contents)
    }
}

/// Replaces a file atomically.
pub(super) fn put(path: &Path, contents: &[u8], mode: u32) -> Result<(), WriteError> {
    replace_file(path, contents, Some(mode)).map_err(|source| io_error("writing", path, source))
}

pub(super) fn io_error(doing: &'static str, path: &Path, source: io::Error) -> WriteError {
    WriteError::Io { doing, path: path.to_owned(), source }
}
