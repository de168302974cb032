// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A root that is a folder. The kernel resolves every path inside it; [`walk`] does so where the kernel is
//! too old. The kind of a file is checked before it is opened, so that no pipe blocks and no device wakes up.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::timeout::TimedWorker;
use super::{Content, FileKind, MAX_NAMES, Names, walk};
use crate::{ReadResult, Unavailable};

/// Time limit of one read: sysfs attributes that query a device's firmware answer within a second, and
/// reading 64 MB from the flash of a slow router takes a few.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of requests without content: a folder, a link, a kind.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// An open folder with the thread that reads below it. [`Root`](crate::Root) owns it.
#[derive(Debug)]
pub(super) struct Folder {
    top: Arc<OwnedFd>,
    worker: TimedWorker,
}

impl Folder {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { top: Arc::new(top), worker: TimedWorker::default() })
    }

    pub(super) fn read(&self, path: &str, limit_bytes: usize) -> ReadResult<Content> {
        self.in_time(READ_LIMIT, path, move |top, path| read(top, path, limit_bytes))
    }

    pub(super) fn open_file(&self, path: &str) -> ReadResult<File> {
        self.in_time(LOOK_LIMIT, path, open)
    }

    pub(super) fn list(&self, path: &str) -> ReadResult<Names> {
        self.in_time(LOOK_LIMIT, path, list)
    }

    pub(super) fn link(&self, path: &str) -> ReadResult<Option<String>> {
        self.in_time(LOOK_LIMIT, path, link)
    }

    pub(super) fn kind(&self, path: &str) -> ReadResult<FileKind> {
        self.in_time(LOOK_LIMIT, path, |top, path| kind(top, path).map_err(unavailable))
    }

    fn in_time<T: Send + 'static>(
        &self,
        limit: Duration,
        path: &str,
        work: impl FnOnce(&OwnedFd, &str) -> ReadResult<T> + Send + 'static,
    ) -> ReadResult<T> {
        let top = Arc::clone(&self.top);
        let path = path.to_owned();
        let result = self.worker.run(limit, move || work(&top, &path));
        result.unwrap_or_else(|| Err(Unavailable::unreadable("it did not answer in time")))
    }
}

/// Opens an ordinary file and nothing else: opening some devices already acts on them.
fn open(top: &OwnedFd, path: &str) -> ReadResult<File> {
    regular(kind(top, path).map_err(unavailable)?)?;
    // `NONBLOCK`: another kind of file may replace the path after the check, and must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(resolve(top, path, flags).map_err(unavailable)?);
    let metadata = file.metadata().map_err(io_unavailable)?;
    regular(FileKind::of_mode(metadata.mode()))?;
    Ok(file)
}

fn read(top: &OwnedFd, path: &str, limit_bytes: usize) -> ReadResult<Content> {
    let file = open(top, path)?;
    let metadata = file.metadata().map_err(io_unavailable)?;
    let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
    let too_large = Err(Unavailable::TooLarge { limit_bytes });
    if metadata.len() > limit {
        return too_large;
    }
    // The length is only a hint: it is 0 in procfs, a page in sysfs, and may change.
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content).map_err(io_unavailable)?;
    if content.len() > limit_bytes {
        return too_large;
    }
    Ok(Content::from(content))
}

fn regular(kind: FileKind) -> ReadResult<()> {
    match kind {
        FileKind::File => Ok(()),
        kind => Err(Unavailable::NotRegular { kind }),
    }
}

fn list(top: &OwnedFd, path: &str) -> ReadResult<Names> {
    match kind(top, path).map_err(unavailable)? {
        FileKind::Folder => {}
        kind => return Err(Unavailable::NotRegular { kind }),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let entries = resolve(top, path, flags).and_then(|folder| Dir::read_from(&folder));
    let mut list = Names { names: Vec::new(), not_utf8: 0, truncated: false };
    for entry in entries.map_err(unavailable)? {
        match entry.map_err(unavailable)?.file_name().to_str() {
            Ok("." | "..") => {}
            _ if list.names.len() + list.not_utf8 == MAX_NAMES => {
                list.truncated = true;
                break;
            }
            Ok(name) => list.names.push(name.to_owned()),
            Err(_) => list.not_utf8 += 1,
        }
    }
    list.names.sort_unstable();
    Ok(list)
}

fn link(top: &OwnedFd, path: &str) -> ReadResult<Option<String>> {
    let target = resolve(top, path, OFlags::PATH | OFlags::NOFOLLOW)
        .and_then(|found| rustix::fs::readlinkat(&found, "", Vec::new()));
    match target {
        Ok(target) => match target.into_string() {
            Ok(target) => Ok(Some(target)),
            Err(_) => Err(Unavailable::malformed("not text")),
        },
        // The kernel's answer for a path that exists but is not a link.
        Err(Errno::NOENT | Errno::INVAL) if kind(top, path).is_ok() => Ok(None),
        Err(error) => Err(unavailable(error)),
    }
}

fn kind(top: &OwnedFd, path: &str) -> Result<FileKind, Errno> {
    let found = resolve(top, path, OFlags::PATH)?;
    Ok(FileKind::of_mode(rustix::fs::fstat(&found)?.st_mode))
}

/// Opens a path inside the root.
fn resolve(top: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { "." } else { path };
    let flags = flags | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // The kernel returns EAGAIN when a rename raced with the lookup.
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

fn unavailable(error: Errno) -> Unavailable {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => Unavailable::Missing,
        Errno::ACCESS | Errno::PERM => Unavailable::Denied,
        Errno::LOOP => Unavailable::unreadable("its symbolic links go in circles"),
        Errno::XDEV => Unavailable::unreadable("it leads out of the root"),
        error => Unavailable::unreadable(text(&error.into())),
    }
}

fn io_unavailable(error: io::Error) -> Unavailable {
    match error.raw_os_error() {
        Some(code) => unavailable(Errno::from_raw_os_error(code)),
        None => Unavailable::unreadable(text(&error)),
    }
}

/// The system's text for an error, without its number.
fn text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
