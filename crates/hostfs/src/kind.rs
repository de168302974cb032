// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Kinds of files.

use std::fmt;

use rustix::fs::FileType;

/// The kind of file that a path names.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A regular file, the only kind that is read.
    File,
    /// A directory, whose names are listed.
    Folder,
    /// A named pipe, which blocks a reader until there is a writer.
    Fifo,
    /// A socket, which cannot be opened.
    Socket,
    /// A device of bytes, such as a terminal or `/dev/crypto`.
    CharacterDevice,
    /// A disk or a partition.
    BlockDevice,
    /// A kind that inode(7) does not list.
    Other,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "an ordinary file",
            Self::Folder => "a folder",
            Self::Fifo => "a pipe",
            Self::Socket => "a socket",
            Self::CharacterDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::Other => "not an ordinary file",
        })
    }
}

impl FileKind {
    /// The kind in the mode of a file (inode(7)).
    pub(crate) fn of_mode(mode: u32) -> Self {
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Folder,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharacterDevice,
            FileType::BlockDevice => Self::BlockDevice,
            _ => Self::Other,
        }
    }
}
