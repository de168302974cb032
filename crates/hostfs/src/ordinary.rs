// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ordinary files at given paths, opened so that nothing in their place makes the program wait: a pipe would block
//! until there is a writer, opening a device may act on it.
//!
//! [`Root`](crate::Root) reads untrusted trees and keeps every link inside; the functions here are for a program's own
//! folders and for files that its settings name.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::kind::FileKind;

/// Treatment of a symbolic link in the last part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed: for a file that the settings name. A mounted secret of Kubernetes is a link.
    Follow,
    /// Refused: for a file of a folder in which the program itself makes all files.
    Refuse,
}

/// Something that is not an ordinary file is in the place of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is {0}, not an ordinary file: remove it")]
pub struct NotOrdinary(&'static str);

impl NotOrdinary {
    /// Whether this is the reason of an error.
    #[must_use]
    pub fn is_reason_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|reason| reason.is::<Self>())
    }
}

/// Opens an ordinary file for reading.
///
/// # Errors
/// As the operating system reports them; with a [`NotOrdinary`] inside for another kind of file.
pub fn open(path: &Path, links: Links) -> io::Result<File> {
    check_path(path, links)?;
    open_as(path, links, OpenOptions::new().read(true))
}

/// Opens an ordinary file for appending; makes a missing one with this mode. Follows no link.
///
/// # Errors
/// As [`open`].
pub fn open_to_append(path: &Path, mode: u32) -> io::Result<File> {
    make(path, OpenOptions::new().append(true).mode(mode))
}

/// Opens an ordinary file for writing from its start, without shortening it; makes a missing one with this mode.
/// Follows no link.
///
/// # Errors
/// As [`open`].
pub fn open_to_write(path: &Path, mode: u32) -> io::Result<File> {
    make(path, OpenOptions::new().write(true).truncate(false).mode(mode))
}

/// Opens an ordinary file for reading and writing, without shortening it. Makes no file and follows no link.
///
/// # Errors
/// As [`open`].
pub fn open_to_change(path: &Path) -> io::Result<File> {
    check_path(path, Links::Refuse)?;
    open_as(path, Links::Refuse, OpenOptions::new().read(true).write(true))
}

/// Reads an ordinary file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; of kind `FileTooLarge` for a longer file.
pub fn read(path: &Path, links: Links, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_into(path, links, limit, &mut bytes)?;
    Ok(bytes)
}

/// Reads an ordinary text file of at most `limit` bytes.
///
/// # Errors
/// As [`read`]; of kind `InvalidData` if it is not UTF-8.
pub fn read_text(path: &Path, links: Links, limit: usize) -> io::Result<String> {
    let bytes = read(path, links, limit)?;
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not text"))
}

/// Reads like [`read`] into memory of the caller, who may have reserved it so that no copy of a secret is left behind.
///
/// # Errors
/// As [`read`].
pub fn read_into(path: &Path, links: Links, limit: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    read_rest(open(path, links)?, limit, bytes)
}

/// Reads the last bytes of an ordinary file, at most `limit`: the end of a log.
///
/// # Errors
/// As [`open`].
pub fn read_end(path: &Path, links: Links, limit: u32) -> io::Result<Vec<u8>> {
    let mut file = open(path, links)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit.into())))?;
    let mut bytes = Vec::new();
    file.take(limit.into()).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads an open file, whose owner the caller may have judged, like [`read_into`].
///
/// # Errors
/// As [`read`].
pub fn read_rest(file: File, limit: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    // All at once: growing would leave copies of a secret in freed memory. The extra byte lets the end be seen.
    let expected = file.metadata()?.len().saturating_add(1).min(bound);
    bytes.reserve_exact(usize::try_from(expected).unwrap_or(0));
    let length = file.take(bound).read_to_end(bytes)?;
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than {limit} bytes"),
        ));
    }
    Ok(())
}

fn make(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match check_path(path, Links::Refuse) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => other?,
    }
    open_as(path, Links::Refuse, options.create(true))
}

/// The kind comes first: opening a device may act on it.
fn check_path(path: &Path, links: Links) -> io::Result<()> {
    check(&match links {
        Links::Follow => fs::metadata(path)?,
        Links::Refuse => fs::symlink_metadata(path)?,
    })
}

fn open_as(path: &Path, links: Links, options: &mut OpenOptions) -> io::Result<File> {
    // `NONBLOCK`: another kind of file may replace the path after the check, and must not block.
    let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    if links == Links::Refuse {
        flags |= OFlags::NOFOLLOW;
    }
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    let kind = match FileKind::of_mode(metadata.mode()) {
        FileKind::File => return Ok(()),
        _ if metadata.is_symlink() => "a symbolic link",
        FileKind::Folder => "a folder",
        FileKind::Fifo => "a pipe",
        FileKind::Socket => "a socket",
        FileKind::CharacterDevice | FileKind::BlockDevice => "a device",
        FileKind::Other => "of an unknown kind",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, NotOrdinary(kind)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn text(error: &io::Error) -> String {
        error.to_string()
    }

    #[test]
    fn only_an_ordinary_file_is_opened_and_nothing_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), b"content").unwrap();
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let _socket = UnixListener::bind(path("socket")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        symlink("file", path("link")).unwrap();
        symlink("pipe", path("link-to-pipe")).unwrap();
        symlink("/dev/zero", path("link-to-device")).unwrap();
        for (name, kind) in [
            ("pipe", "a pipe"),
            ("socket", "a socket"),
            ("folder", "a folder"),
            ("link-to-pipe", "a pipe"),
            ("link-to-device", "a device"),
        ] {
            let error = open(&path(name), Links::Follow).unwrap_err();
            assert!(text(&error).contains(kind), "{name}: {error}");
            let error = open(&path(name), Links::Refuse).unwrap_err();
            let kind = if name.starts_with("link") { "a symbolic link" } else { kind };
            assert!(text(&error).contains(kind), "{name}: {error}");
            for open in [open_to_append, open_to_write] {
                let error = open(&path(name), 0o600).unwrap_err();
                assert!(text(&error).contains(kind), "{name}: {error}");
            }
        }
        assert_eq!(read(&path("link"), Links::Follow, 7).unwrap(), b"content");
        assert!(text(&open(&path("link"), Links::Refuse).unwrap_err()).contains("symbolic link"));
        assert_eq!(open(&path("none"), Links::Refuse).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn file_is_read_up_to_the_bound_and_refused_past_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read_text(&path, Links::Refuse, 5).unwrap(), "12345");
        let error = read(&path, Links::Refuse, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        fs::write(&path, b"\xff").unwrap();
        let error = read_text(&path, Links::Refuse, 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn end_of_a_file_has_the_last_bytes_up_to_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        fs::write(&path, b"12345").unwrap();
        for (limit, expected) in [(4, &b"2345"[..]), (5, b"12345"), (6, b"12345")] {
            assert_eq!(read_end(&path, Links::Refuse, limit).unwrap(), expected);
        }
    }

    #[test]
    fn line_is_appended_and_a_missing_file_made_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for _ in 0..2 {
            open_to_append(&path, 0o600).unwrap().write_all(b"line\n").unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"line\nline\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    }
}
