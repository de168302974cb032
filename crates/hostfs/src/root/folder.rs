// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A root that is a folder. Every path is resolved inside it by the kernel, or by
//! [`walk`] where the kernel is too old; the kind of what is found is known before it
//! is opened for reading, so that no pipe blocks and no device wakes up.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::patience::Patience;
use super::record::{ANSWERS, MANIFEST, Manifest};
use super::{Kind, Link, Listing, MAX_NAMES, Reading, TABLE_BYTES, walk};
use crate::Why;
use crate::live::Answer;

/// How long one file or folder may take: sysfs attributes that ask a device's firmware answer within
/// a second, and 64 MB from a slow router's flash take a few.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// Longest time to wait for what needs no content: a folder, a link, a kind.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// A folder that is looked at.
#[derive(Debug)]
pub(super) struct Folder {
    top: Arc<OwnedFd>,
    patience: Patience,
    /// That of the bundle of which this is the unpacked content.
    pub(super) manifest: Option<Manifest>,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self {
            top: Arc::new(top),
            patience: Patience::default(),
            manifest: None,
        })
    }

    pub(super) fn read(&self, path: &str, limit_bytes: usize) -> Reading {
        if let Some(why) = self
            .recorded(path)
            .and_then(|manifest| manifest.content(path))
        {
            return Reading::from(why);
        }
        let (top, path) = (Arc::clone(&self.top), path.to_owned());
        let reading = self
            .patience
            .wait(READ_LIMIT, move || read(&top, &path, limit_bytes));
        reading.unwrap_or_else(|| Reading::Unreadable(TOO_SLOW.to_owned()))
    }

    pub(super) fn list(&self, path: &str) -> Listing {
        if let Some(manifest) = self.recorded(path) {
            return manifest.listing(path);
        }
        let (top, path) = (Arc::clone(&self.top), path.to_owned());
        let listing = self.patience.wait(LOOK_LIMIT, move || list(&top, &path));
        listing.unwrap_or_else(|| Listing::Not(Why::unreadable(TOO_SLOW)))
    }

    pub(super) fn link(&self, path: &str) -> Link {
        if let Some(manifest) = self.recorded(path) {
            return manifest.link(path);
        }
        let (top, path) = (Arc::clone(&self.top), path.to_owned());
        let link = self.patience.wait(LOOK_LIMIT, move || link(&top, &path));
        link.unwrap_or_else(|| Link::Not(Why::unreadable(TOO_SLOW)))
    }

    pub(super) fn kind(&self, path: &str) -> Result<Kind, Why> {
        if let Some(manifest) = self.recorded(path) {
            return manifest.kind(path);
        }
        let (top, path) = (Arc::clone(&self.top), path.to_owned());
        let kind = self.patience.wait(LOOK_LIMIT, move || kind(&top, &path));
        kind.unwrap_or_else(|| Err(Why::unreadable(TOO_SLOW)))
    }

    /// The answer that a bundle, since unpacked, holds to a question.
    pub(super) fn answer(&self, name: &str) -> Answer {
        if self.manifest.is_none() {
            return Answer::NotFromFiles;
        }
        match self.read(&format!("{ANSWERS}/{name}"), TABLE_BYTES) {
            Reading::Text(text) => Answer::Text(text),
            _ => Answer::NotFromFiles,
        }
    }

    /// The manifest of an unpacked bundle, which knows about a path, or that nothing is known.
    fn recorded(&self, path: &str) -> Option<&Manifest> {
        self.manifest.as_ref().filter(|_| path != MANIFEST)
    }
}

/// Said of a file that takes longer than its limit.
const TOO_SLOW: &str = "it did not answer in time";

fn read(top: &OwnedFd, path: &str, limit_bytes: usize) -> Reading {
    let failed = |error| Reading::from(why(error));
    match kind_of(top, path) {
        Ok(Kind::File) => {}
        Ok(kind) => return Reading::NotRegular(kind),
        Err(error) => return failed(error),
    }
    // Should another kind of thing take the path between the two looks, this does not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match resolve(top, path, flags) {
        Ok(file) => File::from(file),
        Err(error) => return failed(error),
    };
    let length = match file.metadata() {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(metadata) => return Reading::NotRegular(Kind::from(metadata.file_type())),
        Err(error) => return Reading::Unreadable(words(&error)),
    };
    let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
    if length > limit {
        return Reading::TooLarge { limit_bytes };
    }
    // The length is a hint only: it is 0 in procfs, a page in sysfs, and may change meanwhile.
    let mut content = Vec::new();
    match file.take(limit.saturating_add(1)).read_to_end(&mut content) {
        Ok(_) if content.len() > limit_bytes => Reading::TooLarge { limit_bytes },
        Ok(_) => Reading::of(content),
        Err(error) => error.raw_os_error().map_or_else(
            || Reading::Unreadable(words(&error)),
            |code| failed(Errno::from_raw_os_error(code)),
        ),
    }
}

fn list(top: &OwnedFd, path: &str) -> Listing {
    let failed = |error| Listing::Not(why(error));
    match kind_of(top, path) {
        Ok(Kind::Folder) => {}
        Ok(kind) => return Listing::Not(Why::NotRegular { kind }),
        Err(error) => return failed(error),
    }
    let entries = resolve(
        top,
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK,
    )
    .and_then(|folder| Dir::read_from(&folder));
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => return failed(error),
    };
    let (mut names, mut odd, mut cut) = (Vec::new(), 0, false);
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return failed(error),
        };
        match entry.file_name().to_str() {
            Ok("." | "..") => continue,
            _ if names.len() + odd == MAX_NAMES => {
                cut = true;
                break;
            }
            Ok(name) => names.push(name.to_owned()),
            Err(_) => odd += 1,
        }
    }
    names.sort_unstable();
    Listing::Names { names, odd, cut }
}

fn link(top: &OwnedFd, path: &str) -> Link {
    let target = resolve(top, path, OFlags::PATH | OFlags::NOFOLLOW)
        .and_then(|there| rustix::fs::readlinkat(&there, "", Vec::new()));
    match target {
        Ok(target) => match target.into_string() {
            Ok(target) => Link::To(target),
            Err(_) => Link::Not(Why::malformed("not text")),
        },
        // What a path that is no link answers, opened as such.
        Err(Errno::NOENT | Errno::INVAL) if kind_of(top, path).is_ok() => Link::NotLink,
        Err(error) => Link::Not(why(error)),
    }
}

fn kind(top: &OwnedFd, path: &str) -> Result<Kind, Why> {
    kind_of(top, path).map_err(why)
}

fn kind_of(top: &OwnedFd, path: &str) -> Result<Kind, Errno> {
    let there = resolve(top, path, OFlags::PATH)?;
    let mode = rustix::fs::fstat(&there)?.st_mode;
    Ok(match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharacterDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        _ => Kind::Other,
    })
}

/// Opens what a path means inside the root.
fn resolve(top: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let flags = flags | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // The kernel asks for another try when a rename crossed its way.
    const TRIES: usize = 4;
    for _ in 0..TRIES {
        match rustix::fs::openat2(top.as_fd(), path, flags, Mode::empty(), inside) {
            Err(Errno::AGAIN) => {}
            // Before Linux 5.6, and in containers whose filter does not know the call.
            Err(Errno::NOSYS | Errno::PERM) => return walk::open(top.as_fd(), path, flags),
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// The reason for an error of the system.
fn why(error: Errno) -> Why {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Why::Missing,
        Errno::ACCESS | Errno::PERM => Why::Denied,
        Errno::LOOP => Why::unreadable("its symbolic links go in circles"),
        Errno::XDEV => Why::unreadable("it leads out of the root"),
        error => Why::unreadable(words(&error.into())),
    }
}

/// The system's words for an error, without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    text.to_lowercase()
}
