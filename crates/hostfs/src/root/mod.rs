// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bounded reads below one [`Root`]: a folder (`/`, a fixture, mounted firmware) or a support bundle.
//!
//! The content is untrusted. Every failure is an [`Unavailable`] value, never a panic and never a hang.
//!
//! ```text
//! Root ── folder.rs    openat2(RESOLVE_IN_ROOT): no link leads out; the kind is checked before a read
//!   │       ├ walk.rs      the same in user space, for kernels without openat2
//!   │       └ timeout.rs   a file that does not answer in time is unreadable
//!   ├──── bundle.rs    a support bundle, held in memory
//!   └──── record.rs    a record of all reads: the content of a bundle
//! ```
//!
//! The module writes nothing, and opens no device and no pipe.

mod bundle;
mod folder;
mod record;
mod timeout;
mod walk;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub use self::bundle::BundleError;
pub use self::record::{KERNEL_PARAMETERS, MANIFEST, Manifest, Record, Recorder};

use self::folder::Folder;
use self::record::ANSWERS;
use crate::kind::FileKind;
use crate::probe::Probe;
use crate::{ReadResult, Unavailable};

/// Bound on a file that holds one value or a small table. sysfs gives at most a page (4 KiB, 64 KiB on some Arm and
/// POWER); debugfs and configuration files have a little more.
pub const ATTRIBUTE_BYTES: usize = 256 << 10;
/// Bound on a file that grows with the machine: `/proc/cpuinfo` has about 1.6 KB per processor, so this is
/// enough for 5,000 processors.
pub const TABLE_BYTES: usize = 8 << 20;
/// Bound on a library or program: the largest known libcrypto has 9 MB, a statically linked server 50 MB.
pub const LIBRARY_BYTES: usize = 64 << 20;
/// Bound on the names of one folder: the largest, `/proc` and `/usr/lib/<triplet>`, have some ten thousand.
pub const MAX_NAMES: usize = 65_536;
/// Bound on a path: the kernel's `PATH_MAX`.
const MAX_PATH_LEN: usize = 4_096;

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// UTF-8 without NUL. NULs at the end of the file are removed: some drivers count the terminator.
    Text(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Content {
    /// The text of the file.
    ///
    /// # Errors
    /// [`Unavailable::Malformed`] if the content is not text.
    pub fn text(self) -> ReadResult<String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Bytes(_) => Err(Unavailable::malformed("not text")),
        }
    }

    /// The bytes; of text, without the NULs at its end.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Content {
    fn from(mut bytes: Vec<u8>) -> Self {
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if bytes[..length].contains(&0) || std::str::from_utf8(&bytes[..length]).is_err() {
            return Self::Bytes(bytes);
        }
        bytes.truncate(length);
        Self::Text(String::from_utf8(bytes).unwrap_or_default())
    }
}

/// The names in a folder, without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Names that are UTF-8, sorted.
    pub names: Vec<String>,
    /// Number of names that are not UTF-8; they are not listed.
    pub not_utf8: usize,
    /// Whether the folder has more than [`MAX_NAMES`] names; the rest is not listed.
    pub truncated: bool,
}

/// Error of [`Root::open`].
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder or bundle is missing or not readable.
    #[error("cannot open {}: {source}; name a folder or a bundle that `inspect --bundle` wrote", path.display())]
    Open {
        /// The path that the caller named.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The path is neither a folder nor an ordinary file.
    #[error("{} is {kind}: name a folder or a bundle that `inspect --bundle` wrote", path.display())]
    Kind {
        /// The path that the caller named.
        path: PathBuf,
        /// The kind of file found there.
        kind: FileKind,
    },
    /// The file is not a bundle.
    #[error("{} is not a readable bundle: {source}", path.display())]
    Bundle {
        /// The path that the caller named.
        path: PathBuf,
        /// The first defect of the archive.
        source: BundleError,
    },
}

/// A file tree with bounded reads.
///
/// Paths are relative to the root, with `/` between their parts; a leading `/` changes nothing. `..` at the
/// top stays at the top, and absolute symbolic links start there, as for a process in a chroot.
#[derive(Debug)]
pub struct Root {
    tree: Tree,
    /// A bundle's record of the paths that were read on its machine.
    manifest: Option<Manifest>,
    live: bool,
    recorder: Option<Mutex<Recorder>>,
}

#[derive(Debug)]
enum Tree {
    Folder(Folder),
    /// The files of a bundle, by path.
    Memory(BTreeMap<String, Vec<u8>>),
}

impl Root {
    /// Opens a folder or a bundle. The running machine (`/`) is *live*: it also answers [`Self::ask`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let failed = |source| OpenError::Open { path: path.to_owned(), source };
        // The kind comes first: opening a pipe may block, opening a device may act on it.
        let kind = FileKind::of_mode(std::fs::metadata(path).map_err(failed)?.mode());
        match kind {
            FileKind::Folder => {
                let mut root = Self {
                    tree: Tree::Folder(Folder::open(path).map_err(failed)?),
                    manifest: None,
                    live: is_machine(path),
                    recorder: None,
                };
                // An unpacked bundle is read as the bundle, whose manifest has the answers for files that it
                // does not hold (missing, denied, link targets).
                if !root.live
                    && let Ok(text) = root.text(MANIFEST, TABLE_BYTES)
                {
                    root.manifest = Manifest::parse(&text).ok();
                }
                Ok(root)
            }
            FileKind::File => File::open(path)
                .map_err(BundleError::Io)
                .and_then(|file| Self::from_bundle(BufReader::new(file)))
                .map_err(|source| OpenError::Bundle { path: path.to_owned(), source }),
            kind => Err(OpenError::Kind { path: path.to_owned(), kind }),
        }
    }

    /// Reads a bundle from any source of bytes.
    pub fn from_bundle(source: impl Read) -> Result<Self, BundleError> {
        let (contents, manifest) = bundle::parse(source)?;
        Ok(Self {
            tree: Tree::Memory(contents),
            manifest: Some(manifest),
            live: false,
            recorder: None,
        })
    }

    /// Records every read from now on, for a bundle.
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.recorder = Some(Mutex::new(Recorder::default()));
        self
    }

    /// All reads since [`Self::recording`]; empty without it.
    #[must_use]
    pub fn into_record(self) -> Recorder {
        let recorder = self.recorder.and_then(|recorder| recorder.into_inner().ok());
        recorder.unwrap_or_default()
    }

    /// Whether this is the running machine rather than files of one.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Reads a file of at most `limit_bytes`: see [`ATTRIBUTE_BYTES`], [`TABLE_BYTES`], [`LIBRARY_BYTES`].
    pub fn read(&self, path: &str, limit_bytes: usize) -> ReadResult<Content> {
        let path = clean(path)?;
        let content = self.content(&path, limit_bytes);
        self.record(|recorder| recorder.read(&path, &content));
        content
    }

    /// Reads a text file of at most `limit_bytes`.
    pub fn text(&self, path: &str, limit_bytes: usize) -> ReadResult<String> {
        self.read(path, limit_bytes)?.text()
    }

    /// Reads a file of at most `limit_bytes` as text; bytes that are not UTF-8 become replacement characters.
    pub fn lossy_text(&self, path: &str, limit_bytes: usize) -> ReadResult<String> {
        Ok(match self.read(path, limit_bytes)? {
            Content::Text(text) => text,
            Content::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        })
    }

    /// Opens an ordinary file of a folder without recording it: for content that a bundle must not contain,
    /// such as keys. Reads of the file have no time limit.
    ///
    /// # Errors
    /// The reason for which the file cannot be opened; [`Unavailable::NotCollected`] in a bundle.
    pub fn open_file(&self, path: &str) -> ReadResult<File> {
        let path = clean(path)?;
        match (&self.tree, &self.manifest) {
            (Tree::Folder(folder), None) => folder.open_file(&path),
            _ => Err(Unavailable::NotCollected),
        }
    }

    /// Reads those lines of a file of at most `limit_bytes` that contain one of `words`. A bundle keeps only
    /// these lines: the others may be private. A file that is not text has no lines.
    pub fn lines_with(&self, path: &str, limit_bytes: usize, words: &[&str]) -> ReadResult<String> {
        let path = clean(path)?;
        let content = self.content(&path, limit_bytes).map(|content| {
            let text = content.text().unwrap_or_default();
            let lines = text.lines().filter(|line| words.iter().any(|word| line.contains(word)));
            Content::Text(lines.flat_map(|line| [line, "\n"]).collect())
        });
        self.record(|recorder| recorder.read(&path, &content));
        content?.text()
    }

    /// Lists a folder.
    pub fn list(&self, path: &str) -> ReadResult<Names> {
        let path = clean(path)?;
        let names = self.look(|manifest| manifest.names(&path), |folder| folder.list(&path));
        self.record(|recorder| recorder.list(&path, &names));
        names
    }

    /// The names in a folder; empty if it cannot be listed.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        self.list(path).map_or_else(|_| Vec::new(), |list| list.names)
    }

    /// The target of a symbolic link as written, which need not exist; `None` if the path is not a link.
    pub fn link(&self, path: &str) -> ReadResult<Option<String>> {
        let path = clean(path)?;
        let link = self.look(|manifest| manifest.link(&path), |folder| folder.link(&path));
        self.record(|recorder| recorder.link(&path, &link));
        link
    }

    /// The last part of a link's target: of `…/device/driver`, the name of the driver.
    #[must_use]
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path).ok()??;
        let name = target.rsplit('/').find(|part| !part.is_empty());
        name.map(str::to_owned)
    }

    /// The kind of file at a path, after following links. Opens nothing.
    ///
    /// # Errors
    /// [`Unavailable::Missing`] if the path does not exist, or the reason for which the kind is unknown.
    pub fn kind(&self, path: &str) -> ReadResult<FileKind> {
        let path = clean(path)?;
        let kind = self.look(|manifest| manifest.kind(&path), |folder| folder.kind(&path));
        self.record(|recorder| recorder.kind(&path, &kind));
        kind
    }

    /// Whether the path exists, with any kind of file.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.kind(path).is_ok()
    }

    /// Runs a program of the live machine and returns its output; from a bundle, its recorded output.
    ///
    /// # Errors
    /// [`Unavailable::NotInFiles`] without a live machine or recorded output, or the failure of the program.
    pub fn ask(&self, probe: &Probe<'_>) -> ReadResult<String> {
        self.ask_with(&probe.name, || probe.run())
    }

    /// Asks like [`Self::ask`], for data that needs no program, such as the processor's own (CPUID).
    ///
    /// # Errors
    /// [`Unavailable::NotInFiles`] without a live machine or a recorded answer.
    pub fn ask_builtin(&self, name: &str, answer: impl FnOnce() -> String) -> ReadResult<String> {
        self.ask_with(name, || Ok(answer()))
    }

    fn ask_with(&self, name: &str, ask: impl FnOnce() -> ReadResult<String>) -> ReadResult<String> {
        let path = format!("{ANSWERS}/{name}");
        let answer = if self.live {
            ask()
        } else if self.manifest.is_some() {
            let recorded = self.content(&path, TABLE_BYTES).and_then(Content::text);
            recorded.map_err(|_| Unavailable::NotInFiles)
        } else {
            Err(Unavailable::NotInFiles)
        };
        if let Ok(text) = &answer {
            let content = Ok(Content::Text(text.clone()));
            self.record(|recorder| recorder.read(&path, &content));
        }
        answer
    }

    fn content(&self, path: &str, limit_bytes: usize) -> ReadResult<Content> {
        if let Some(manifest) = &self.manifest {
            manifest.content(path)?;
        }
        match &self.tree {
            Tree::Folder(folder) => folder.read(path, limit_bytes),
            Tree::Memory(contents) => match contents.get(path) {
                Some(content) if content.len() > limit_bytes => {
                    Err(Unavailable::TooLarge { limit_bytes })
                }
                Some(content) => Ok(Content::from(content.clone())),
                None => Err(Unavailable::NotCollected),
            },
        }
    }

    /// Answers requests without content: from the manifest of a bundle, else from the folder.
    fn look<T>(
        &self,
        recorded: impl FnOnce(&Manifest) -> ReadResult<T>,
        present: impl FnOnce(&Folder) -> ReadResult<T>,
    ) -> ReadResult<T> {
        match (&self.manifest, &self.tree) {
            (Some(manifest), _) => recorded(manifest),
            (None, Tree::Folder(folder)) => present(folder),
            (None, Tree::Memory(_)) => Err(Unavailable::NotCollected),
        }
    }

    fn record(&self, what: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = &self.recorder
            && let Ok(mut recorder) = recorder.lock()
        {
            what(&mut recorder);
        }
    }
}

/// Whether a folder is the root of this machine. Its name alone is not enough: `/proc/PID/root` of a process
/// in a container is a link with the target `/`, too.
fn is_machine(path: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let top = Path::new("/");
    path.canonicalize().is_ok_and(|path| path == top)
        && identity(path).is_some()
        && identity(path) == identity(top)
}

/// Normalises a path: no leading `/`, `.` or empty parts.
fn clean(path: &str) -> ReadResult<String> {
    if path.len() > MAX_PATH_LEN || path.contains('\0') {
        return Err(Unavailable::Missing);
    }
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    Ok(parts.collect::<Vec<_>>().join("/"))
}

#[cfg(test)]
mod tests;
