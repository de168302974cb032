// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The reader: everything that is looked at is looked at through one [`Root`].
//!
//! A root is a folder (`/`, a fixture, a mounted firmware) or a support bundle. What is below it is
//! taken for hostile: a reading is a *fact*, never a panic and never a hang.
//!
//! ```text
//! Root ── folder.rs    openat2(RESOLVE_IN_ROOT): a link never leads out; kind before content
//!   │       └ walk.rs      the same by hand, for kernels without openat2
//!   ├──── bundle.rs    a support bundle, held in memory
//!   ├──── patience.rs  a file that does not answer in time is a fact, too
//!   └──── record.rs    what was read, which is what a bundle is made of
//! ```
//!
//! Not here: what files mean. Nothing is ever written, and no device or pipe is ever opened: a
//! file's kind is known before its content is asked for.
//!
//! ```
//! use millrace_hostfs::root::{Reading, Root, TABLE_BYTES};
//! let root = Root::open("/")?;
//! match root.read("proc/cpuinfo", TABLE_BYTES) {
//!     Reading::Text(text) => println!("{} lines", text.lines().count()),
//!     other => println!("{}", other.why().unwrap()),
//! }
//! # Ok::<(), millrace_hostfs::root::OpenError>(())
//! ```

mod bundle;
mod folder;
mod patience;
mod record;
mod walk;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub use self::bundle::BundleError;
pub use self::record::{MANIFEST, Manifest, Record, Recorder};

use self::bundle::Bundle;
use self::folder::Folder;
use crate::Why;
use crate::live::{Answer, Question};

/// Bound on a file that holds one value or a small table: sysfs gives at most a page (4 KiB, 64 KiB on
/// some Arm and POWER), debugfs and configuration files a little more.
pub const ATTRIBUTE_BYTES: usize = 256 << 10;
/// Bound on a file that grows with the machine: `/proc/cpuinfo` has about 1.6 KB per processor, so
/// this is a machine of 5,000.
pub const TABLE_BYTES: usize = 8 << 20;
/// Bound on a library or program that is looked into: the largest libcrypto known has 9 MB, a
/// statically linked server 50 MB.
pub const LIBRARY_BYTES: usize = 64 << 20;
/// Bound on the names of one folder: the largest of those that are read are `/proc` and
/// `/usr/lib/<triplet>`, with some ten thousand.
pub const MAX_NAMES: usize = 65_536;
/// Longest path that is asked for, as the kernel's own bound.
const MAX_PATH_LEN: usize = 4_096;

/// What a file said, or why it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Text: UTF-8 without NUL, after NULs at its end were taken off (some drivers count one).
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
    /// There is no such file.
    Missing,
    /// This user may not read it, or the kernel forbids it to everybody (lockdown).
    Denied,
    /// It is there, but is no ordinary file.
    NotRegular(Kind),
    /// It has more bytes than the caller's bound.
    TooLarge {
        /// The bound.
        limit_bytes: usize,
    },
    /// Anything else, in words: an I/O error, links in circles, no answer in time.
    Unreadable(String),
}

impl Reading {
    /// The text, or why there is none. Bytes that are no text are [`Why::Malformed`].
    ///
    /// # Errors
    /// Why there is no text.
    pub fn text(self) -> Result<String, Why> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(other.why().unwrap_or_else(|| Why::malformed("not text"))),
        }
    }

    /// The content as bytes, or why there is none. Of text, NULs at the end are gone.
    ///
    /// # Errors
    /// Why there is no content.
    pub fn bytes(self) -> Result<Vec<u8>, Why> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Bytes(bytes) => Ok(bytes),
            other => Err(other.why().unwrap_or(Why::Missing)),
        }
    }

    /// Why there is no content; `None` if there is.
    #[must_use]
    pub fn why(&self) -> Option<Why> {
        Some(match self {
            Self::Text(_) | Self::Bytes(_) => return None,
            Self::Missing => Why::Missing,
            Self::Denied => Why::Denied,
            Self::NotRegular(kind) => Why::NotRegular { kind: *kind },
            Self::TooLarge { limit_bytes } => Why::TooLarge {
                limit_bytes: *limit_bytes,
            },
            Self::Unreadable(reason) => Why::unreadable(reason.clone()),
        })
    }

    /// Tells text from other bytes.
    fn of(mut bytes: Vec<u8>) -> Self {
        let kept = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |at| at + 1);
        if bytes[..kept].contains(&0) {
            return Self::Bytes(bytes);
        }
        match std::str::from_utf8(&bytes[..kept]) {
            Ok(_) => {
                bytes.truncate(kept);
                Self::Text(String::from_utf8(bytes).unwrap_or_default())
            }
            Err(_) => Self::Bytes(bytes),
        }
    }
}

impl From<Why> for Reading {
    fn from(why: Why) -> Self {
        match why {
            Why::Missing => Self::Missing,
            Why::Denied => Self::Denied,
            Why::NotRegular { kind } => Self::NotRegular(kind),
            Why::TooLarge { limit_bytes } => Self::TooLarge { limit_bytes },
            other => Self::Unreadable(other.to_string()),
        }
    }
}

/// What kind of thing a path names.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An ordinary file.
    File,
    /// A folder.
    Folder,
    /// A pipe with a name.
    Fifo,
    /// A unix socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Something else.
    Other,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "an ordinary file",
            Self::Folder => "a folder",
            Self::Fifo => "a pipe",
            Self::Socket => "a socket",
            Self::CharacterDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::Other => "no ordinary file",
        })
    }
}

/// The names in a folder, or why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listing {
    /// The names, sorted, without `.` and `..`.
    Names {
        /// Names that are UTF-8; others are left out, and counted in `odd`.
        names: Vec<String>,
        /// How many names were no UTF-8.
        odd: usize,
        /// The folder has more than [`MAX_NAMES`]; the others are not listed.
        cut: bool,
    },
    /// Why there are none.
    Not(Why),
}

impl Listing {
    /// The names; none if the folder could not be read.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        match self {
            Self::Names { names, .. } => names,
            Self::Not(_) => Vec::new(),
        }
    }
}

/// Where a path leads, or why that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// The link's own words: relative or absolute, and not checked to lead anywhere.
    To(String),
    /// It is there, but no symbolic link.
    NotLink,
    /// Why it is not known.
    Not(Why),
}

impl Link {
    /// The last part of where it leads: of `…/device/driver`, the driver's name.
    #[must_use]
    pub fn last_name(self) -> Option<String> {
        match self {
            Self::To(target) => target
                .rsplit('/')
                .find(|part| !part.is_empty())
                .map(str::to_owned),
            Self::NotLink | Self::Not(_) => None,
        }
    }
}

/// Why a root cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or bundle is not there or not readable.
    #[error("cannot open {}: {source}; name a folder or a bundle that `inspect --bundle` wrote", path.display())]
    Open {
        /// What was named.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is neither a folder nor a file.
    #[error("{} is {kind}: name a folder or a bundle that `inspect --bundle` wrote", path.display())]
    Kind {
        /// What was named.
        path: PathBuf,
        /// What it is.
        kind: Kind,
    },
    /// A file that is no bundle.
    #[error("{} is no bundle that can be read: {source}", path.display())]
    Bundle {
        /// What was named.
        path: PathBuf,
        /// What is wrong with it.
        source: BundleError,
    },
}

/// A tree that is looked at: see the [module](self).
///
/// Paths are relative to it, with `/` between their parts; a `/` in front changes nothing. `..` at
/// the top stays at the top, and so do absolute symbolic links, as for a process that lives in there.
#[derive(Debug)]
pub struct Root {
    source: Source,
    live: bool,
    recorder: Option<Mutex<Recorder>>,
}

#[derive(Debug)]
enum Source {
    Folder(Folder),
    Bundle(Bundle),
}

impl Root {
    /// Opens a folder or a bundle. The machine itself (`/`) is *live*: it can also be asked what no
    /// file says.
    ///
    /// # Errors
    /// There is no such folder or bundle, or it cannot be used.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let failed = |source| OpenError::Open {
            path: path.to_owned(),
            source,
        };
        // By its metadata first: opening a pipe or a device may block or do something.
        let kind = Kind::from(std::fs::metadata(path).map_err(failed)?.file_type());
        let (source, live) = match kind {
            Kind::Folder => {
                let live = is_machine(path);
                (Source::Folder(Folder::open(path).map_err(failed)?), live)
            }
            Kind::File => {
                let bundle = Bundle::open(path).map_err(|source| OpenError::Bundle {
                    path: path.to_owned(),
                    source,
                })?;
                (Source::Bundle(bundle), false)
            }
            kind => {
                return Err(OpenError::Kind {
                    path: path.to_owned(),
                    kind,
                });
            }
        };
        let mut root = Self {
            source,
            live,
            recorder: None,
        };
        root.take_unpacked_bundle();
        Ok(root)
    }

    /// A bundle from any source of bytes.
    ///
    /// # Errors
    /// It is no bundle, or a hostile one.
    pub fn from_bundle(source: impl std::io::Read) -> Result<Self, BundleError> {
        Ok(Self {
            source: Source::Bundle(Bundle::parse(source)?),
            live: false,
            recorder: None,
        })
    }

    /// A bundle that somebody has unpacked is read as the bundle, so that what it says about files
    /// that it does not hold (missing, denied, where links led) is kept.
    fn take_unpacked_bundle(&mut self) {
        if self.live {
            return;
        }
        let Source::Folder(folder) = &mut self.source else {
            return;
        };
        if let Reading::Text(text) = folder.read(MANIFEST, TABLE_BYTES)
            && let Ok(manifest) = Manifest::parse(&text)
        {
            folder.manifest = Some(manifest);
        }
    }

    /// From now on, keeps everything that is read, for a bundle.
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.recorder = Some(Mutex::new(Recorder::default()));
        self
    }

    /// What was read since [`Self::recording`]; empty without it.
    #[must_use]
    pub fn into_record(self) -> Recorder {
        let recorder = self
            .recorder
            .and_then(|recorder| recorder.into_inner().ok());
        recorder.unwrap_or_default()
    }

    /// Whether this is the machine on which we run, rather than files of one.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Reads a file that has at most `limit_bytes`: see [`ATTRIBUTE_BYTES`], [`TABLE_BYTES`],
    /// [`LIBRARY_BYTES`].
    #[must_use]
    pub fn read(&self, path: &str, limit_bytes: usize) -> Reading {
        let Some(path) = clean(path) else {
            return Reading::Missing;
        };
        let reading = match &self.source {
            Source::Folder(folder) => folder.read(&path, limit_bytes),
            Source::Bundle(bundle) => bundle.read(&path, limit_bytes),
        };
        self.note(|recorder| recorder.read(&path, &reading));
        reading
    }

    /// Of a file that has at most `limit_bytes`, the lines with one of these words in them. Only these
    /// are kept in a bundle: for files that also hold what is nobody's business.
    #[must_use]
    pub fn lines_with(&self, path: &str, limit_bytes: usize, words: &[&str]) -> Reading {
        let Some(path) = clean(path) else {
            return Reading::Missing;
        };
        let reading = match &self.source {
            Source::Folder(folder) => folder.read(&path, limit_bytes),
            Source::Bundle(bundle) => bundle.read(&path, limit_bytes),
        };
        let reading = match reading {
            Reading::Text(text) => Reading::Text(
                text.lines()
                    .filter(|line| words.iter().any(|word| line.contains(word)))
                    .flat_map(|line| [line, "\n"])
                    .collect(),
            ),
            // A program among scripts, say: it has no lines.
            Reading::Bytes(_) => Reading::Text(String::new()),
            reading => reading,
        };
        self.note(|recorder| recorder.read(&path, &reading));
        reading
    }

    /// The names in a folder.
    #[must_use]
    pub fn list(&self, path: &str) -> Listing {
        let Some(path) = clean(path) else {
            return Listing::Not(Why::Missing);
        };
        let listing = match &self.source {
            Source::Folder(folder) => folder.list(&path),
            Source::Bundle(bundle) => bundle.list(&path),
        };
        self.note(|recorder| recorder.list(&path, &listing));
        listing
    }

    /// Where a symbolic link leads, without following it.
    #[must_use]
    pub fn link(&self, path: &str) -> Link {
        let Some(path) = clean(path) else {
            return Link::Not(Why::Missing);
        };
        let link = match &self.source {
            Source::Folder(folder) => folder.link(&path),
            Source::Bundle(bundle) => bundle.link(&path),
        };
        self.note(|recorder| recorder.link(&path, &link));
        link
    }

    /// What kind of thing is there, links followed; nothing is opened.
    ///
    /// # Errors
    /// Why that is not known; [`Why::Missing`] if nothing is there.
    pub fn kind(&self, path: &str) -> Result<Kind, Why> {
        let Some(path) = clean(path) else {
            return Err(Why::Missing);
        };
        let kind = match &self.source {
            Source::Folder(folder) => folder.kind(&path),
            Source::Bundle(bundle) => bundle.kind(&path),
        };
        self.note(|recorder| recorder.kind(&path, &kind));
        kind
    }

    /// Asks what no file says, by running a program of this machine. Of files it is not known,
    /// unless they are a bundle that holds the answer.
    #[must_use]
    pub fn ask(&self, question: &Question<'_>) -> Answer {
        self.ask_with(&question.name, || question.ask())
    }

    /// Asks what no file says and needs no program: what the processor says of itself.
    pub fn ask_builtin(&self, name: &str, answer: impl FnOnce() -> String) -> Answer {
        self.ask_with(name, || Answer::Text(answer()))
    }

    fn ask_with(&self, name: &str, ask: impl FnOnce() -> Answer) -> Answer {
        let answer = match &self.source {
            _ if self.live => ask(),
            Source::Folder(folder) => folder.answer(name),
            Source::Bundle(bundle) => bundle.answer(name),
        };
        self.note(|recorder| recorder.answer(name, &answer));
        answer
    }

    fn note(&self, what: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &self.recorder
            && let Ok(mut recorder) = recorder.lock()
        {
            what(&mut recorder);
        }
    }
}

impl From<std::fs::FileType> for Kind {
    fn from(kind: std::fs::FileType) -> Self {
        use std::os::unix::fs::FileTypeExt;
        match kind {
            kind if kind.is_file() => Self::File,
            kind if kind.is_dir() => Self::Folder,
            kind if kind.is_fifo() => Self::Fifo,
            kind if kind.is_socket() => Self::Socket,
            kind if kind.is_char_device() => Self::CharacterDevice,
            kind if kind.is_block_device() => Self::BlockDevice,
            _ => Self::Other,
        }
    }
}

/// Whether a folder is the root of this machine. Its name alone does not tell: `/proc/PID/root` of a
/// process in a container reads as a link to `/`, too.
fn is_machine(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let top = Path::new("/");
    path.canonicalize().is_ok_and(|path| path == top)
        && identity(path).is_some()
        && identity(path) == identity(top)
}

/// A path without `/` in front, `.` and empty parts; `None` for what no file can be called.
fn clean(path: &str) -> Option<String> {
    if path.len() > MAX_PATH_LEN || path.contains('\0') {
        return None;
    }
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests;
