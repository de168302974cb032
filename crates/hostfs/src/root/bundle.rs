// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A root that is a support bundle: a `.tar.gz` that is read into memory and never unpacked, so that
//! nothing in it can reach the file system.
//!
//! A bundle comes from somebody else. Only ordinary files with plain relative paths are taken; links,
//! devices, absolute paths and `..` make the whole bundle refused, since no `inspect` ever wrote one;
//! and what it unpacks to is bounded, whatever it claims.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tar::{Archive, Builder, EntryType, Header};

use super::record::{ANSWERS, MANIFEST, MAX_CONTENT, Manifest, Recorder};
use super::{Kind, Link, Listing, Reading, TABLE_BYTES};
use crate::Why;
use crate::live::Answer;

/// Entries that a bundle may have: an inspection of a large host reads some thousand files.
const MAX_ENTRIES: usize = 65_536;
/// What a bundle may unpack to, headers and padding included.
const MAX_UNPACKED: u64 = MAX_CONTENT as u64 + (64 << 20);

/// Why a file is no bundle that can be read.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is no gzip, no tar, or breaks off.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something in it that no `inspect` writes.
    #[error("it holds {0:?}, which is {1}")]
    Entry(String, &'static str),
    /// It would not fit into memory.
    #[error("it has more than {0}")]
    TooLarge(&'static str),
    /// It has no manifest, or one that is not understood.
    #[error("its manifest {MANIFEST}: {0}")]
    Manifest(String),
}

/// A bundle in memory.
#[derive(Debug)]
pub(super) struct Bundle {
    contents: BTreeMap<String, Vec<u8>>,
    manifest: Manifest,
}

impl Bundle {
    pub(super) fn open(path: &Path) -> Result<Self, BundleError> {
        Self::parse(io::BufReader::new(File::open(path)?))
    }

    /// Reads a bundle.
    pub(super) fn parse(source: impl Read) -> Result<Self, BundleError> {
        let mut archive = Archive::new(GzDecoder::new(source).take(MAX_UNPACKED));
        let (mut contents, mut held) = (BTreeMap::new(), 0_usize);
        for (index, entry) in archive.entries()?.enumerate() {
            if index == MAX_ENTRIES {
                return Err(BundleError::TooLarge("65,536 entries"));
            }
            let mut entry = entry?;
            let path = plain(&entry.path()?, entry.header().entry_type())?;
            let Some(path) = path else { continue };
            let mut content = Vec::new();
            let left = MAX_CONTENT - held;
            (&mut entry)
                .take(left as u64 + 1)
                .read_to_end(&mut content)?;
            if content.len() > left {
                return Err(BundleError::TooLarge("256 MiB"));
            }
            held += content.len();
            contents.insert(path, content);
        }
        let manifest = contents
            .remove(MANIFEST)
            .ok_or_else(|| BundleError::Manifest("there is none".to_owned()))?;
        let manifest = std::str::from_utf8(&manifest)
            .map_err(|_| BundleError::Manifest("it is no text".to_owned()))
            .and_then(|text| Manifest::parse(text).map_err(BundleError::Manifest))?;
        Ok(Self { contents, manifest })
    }

    pub(super) fn read(&self, path: &str, limit_bytes: usize) -> Reading {
        if let Some(why) = self.manifest.content(path) {
            return Reading::from(why);
        }
        match self.contents.get(path) {
            Some(content) if content.len() > limit_bytes => Reading::TooLarge { limit_bytes },
            Some(content) => Reading::of(content.clone()),
            None => Reading::Unreadable(Why::NotCollected.to_string()),
        }
    }

    pub(super) fn list(&self, path: &str) -> Listing {
        self.manifest.listing(path)
    }

    pub(super) fn link(&self, path: &str) -> Link {
        self.manifest.link(path)
    }

    pub(super) fn kind(&self, path: &str) -> Result<Kind, Why> {
        self.manifest.kind(path)
    }

    pub(super) fn answer(&self, name: &str) -> Answer {
        match self.read(&format!("{ANSWERS}/{name}"), TABLE_BYTES) {
            Reading::Text(text) => Answer::Text(text),
            _ => Answer::NotFromFiles,
        }
    }
}

/// The path of an entry that is taken; none for what carries nothing (folders, remarks of tar).
fn plain(path: &Path, kind: EntryType) -> Result<Option<String>, BundleError> {
    let shown = || path.to_string_lossy().into_owned();
    if !path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
    {
        return Err(BundleError::Entry(shown(), "no plain relative path"));
    }
    match kind {
        EntryType::Regular => {}
        EntryType::Directory | EntryType::XGlobalHeader => return Ok(None),
        _ => return Err(BundleError::Entry(shown(), "no ordinary file")),
    }
    let text = path.to_str();
    let path = text.ok_or_else(|| BundleError::Entry(shown(), "not named in text"))?;
    Ok(super::clean(path))
}

impl Recorder {
    /// Writes a bundle of everything that was read: a gzipped tar with the manifest first, the same
    /// bytes for the same content.
    ///
    /// # Errors
    /// What the destination says.
    pub fn write_bundle(&self, destination: impl Write) -> io::Result<()> {
        let mut archive = Builder::new(GzEncoder::new(destination, Compression::default()));
        let manifest = serde_json::to_vec_pretty(&self.manifest())?;
        append(&mut archive, MANIFEST, &manifest)?;
        for (path, content) in self.contents() {
            append(&mut archive, path, content)?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

fn append(archive: &mut Builder<impl Write>, path: &str, content: &[u8]) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, path, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, kind, content) in entries {
            let mut header = Header::new_ustar();
            // By hand: the library itself refuses to write what a hostile bundle holds.
            header.as_ustar_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap()
    }

    const MINIMAL: &[u8] = br#"{"format":1,"asked":{"a":{"content":{"is":1}}}}"#;

    #[test]
    fn hostile_entries_are_refused() {
        let manifest = (MANIFEST, EntryType::Regular, MINIMAL);
        let good = tar(&[manifest, ("a", EntryType::Regular, b"x")]);
        let bundle = Bundle::parse(good.as_slice()).unwrap();
        assert_eq!(bundle.read("a", 10), Reading::Text("x".to_owned()));
        for (path, kind) in [
            ("../a", EntryType::Regular),
            ("/a", EntryType::Regular),
            ("a/../../b", EntryType::Regular),
            ("a", EntryType::Symlink),
            ("a", EntryType::Link),
            ("a", EntryType::Char),
            ("a", EntryType::Fifo),
            ("a", EntryType::Block),
        ] {
            let bytes = tar(&[manifest, (path, kind, b"")]);
            assert!(
                matches!(Bundle::parse(bytes.as_slice()), Err(BundleError::Entry(..))),
                "{path} {kind:?}"
            );
        }
    }

    #[test]
    fn what_is_no_bundle_says_so() {
        assert!(matches!(
            Bundle::parse(&b"plain"[..]),
            Err(BundleError::Io(_))
        ));
        assert!(matches!(
            Bundle::parse(&b""[..]),
            Err(BundleError::Io(_) | BundleError::Manifest(_))
        ));
        let bytes = tar(&[("a", EntryType::Regular, b"x")]);
        assert!(matches!(
            Bundle::parse(bytes.as_slice()),
            Err(BundleError::Manifest(_))
        ));
        let bytes = tar(&[(MANIFEST, EntryType::Regular, MINIMAL)]);
        assert!(Bundle::parse(&bytes[..bytes.len() / 2]).is_err());
    }

    #[test]
    fn a_bomb_is_not_unpacked() {
        // 300 MiB of zeros in 300 KB.
        let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = Header::new_gnu();
        header.set_size(300 << 20);
        header.set_mode(0o644);
        let zeros = io::repeat(0).take(300 << 20);
        archive.append_data(&mut header, "bomb", zeros).unwrap();
        let bytes = archive.into_inner().unwrap().finish().unwrap();
        assert!(matches!(
            Bundle::parse(bytes.as_slice()),
            Err(BundleError::TooLarge(_))
        ));
    }
}
