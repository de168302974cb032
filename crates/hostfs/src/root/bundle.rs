// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A root that is a support bundle: a `.tar.gz`, read into memory and never unpacked, so that nothing in it
//! can reach the file system.
//!
//! A bundle is untrusted. It may hold ordinary files with plain relative paths; a bundle with a link, a
//! device, an absolute path or `..` is refused, since `inspect` never writes one. The unpacked size is
//! bounded, independent of the sizes that the archive claims.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tar::{Archive, Builder, EntryType, Header};

use super::record::{MANIFEST, MAX_CONTENT, Manifest, ManifestError, Recorder};

/// Bound on the entries of a bundle: an inspection of a large host reads some thousand files.
const MAX_ENTRIES: usize = 65_536;
/// Bound on the unpacked bundle in bytes: its content, and 1 KiB of header and padding for each entry. A small archive
/// can unpack to any size.
const MAX_UNPACKED: u64 = MAX_CONTENT as u64 + (64 << 20);

/// Error of reading a bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file is not a gzipped tar, or it is truncated.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bundle has an entry that `inspect` never writes.
    #[error("it holds {0:?}, which is {1}")]
    Entry(String, &'static str),
    /// The bundle is larger than the bounds.
    #[error("it has more than {0}")]
    TooLarge(&'static str),
    /// The bundle has no manifest.
    #[error("it has no {MANIFEST}")]
    NoManifest,
    /// Its manifest cannot be used.
    #[error("its manifest {MANIFEST}: {0}")]
    Manifest(#[from] ManifestError),
}

/// Reads a bundle into memory: its files by path, and its manifest.
pub(super) fn parse(
    source: impl Read,
) -> Result<(BTreeMap<String, Vec<u8>>, Manifest), BundleError> {
    let mut archive = Archive::new(GzDecoder::new(source).take(MAX_UNPACKED));
    let mut contents = BTreeMap::new();
    let mut held_bytes = 0_usize;
    for (index, entry) in archive.entries()?.enumerate() {
        if index == MAX_ENTRIES {
            return Err(BundleError::TooLarge("65,536 entries"));
        }
        let mut entry = entry?;
        let Some(path) = plain(&entry.path()?, entry.header().entry_type())? else {
            continue;
        };
        let mut content = Vec::new();
        let left = MAX_CONTENT - held_bytes;
        (&mut entry).take(left as u64 + 1).read_to_end(&mut content)?;
        if content.len() > left {
            return Err(BundleError::TooLarge("256 MiB"));
        }
        held_bytes += content.len();
        contents.insert(path, content);
    }
    let manifest = contents.remove(MANIFEST).ok_or(BundleError::NoManifest)?;
    let manifest = Manifest::parse(&String::from_utf8_lossy(&manifest))?;
    Ok((contents, manifest))
}

/// The path of an entry to read; `None` for entries without content (folders, tar's own headers).
fn plain(path: &Path, kind: EntryType) -> Result<Option<String>, BundleError> {
    let shown = || path.to_string_lossy().into_owned();
    if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(BundleError::Entry(shown(), "not a plain relative path"));
    }
    match kind {
        EntryType::Regular => {}
        EntryType::Directory | EntryType::XGlobalHeader => return Ok(None),
        _ => return Err(BundleError::Entry(shown(), "not an ordinary file")),
    }
    let text = path.to_str();
    let path = text.ok_or_else(|| BundleError::Entry(shown(), "not named in text"))?;
    Ok(super::clean(path).ok())
}

impl Recorder {
    /// Writes a bundle of all recorded reads: a gzipped tar with the manifest first. The same content gives
    /// the same bytes.
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
            // Written as bytes: the tar library refuses to write hostile entries.
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
        let (contents, _) = parse(good.as_slice()).unwrap();
        assert_eq!(contents["a"], b"x");
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
                matches!(parse(bytes.as_slice()), Err(BundleError::Entry(..))),
                "{path} {kind:?}"
            );
        }
    }

    #[test]
    fn file_that_is_not_a_bundle_is_refused() {
        assert!(matches!(parse(&b"plain"[..]), Err(BundleError::Io(_))));
        assert!(matches!(parse(&b""[..]), Err(BundleError::Io(_) | BundleError::NoManifest)));
        let bytes = tar(&[("a", EntryType::Regular, b"x")]);
        assert!(matches!(parse(bytes.as_slice()), Err(BundleError::NoManifest)));
        let bytes = tar(&[(MANIFEST, EntryType::Regular, MINIMAL)]);
        assert!(parse(&bytes[..bytes.len() / 2]).is_err());
    }

    #[test]
    fn decompression_bomb_is_refused() {
        // 300 MiB of zeros in 300 KB.
        let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        let mut header = Header::new_gnu();
        header.set_size(300 << 20);
        header.set_mode(0o644);
        let zeros = io::repeat(0).take(300 << 20);
        archive.append_data(&mut header, "bomb", zeros).unwrap();
        let bytes = archive.into_inner().unwrap().finish().unwrap();
        assert!(matches!(parse(bytes.as_slice()), Err(BundleError::TooLarge(_))));
    }
}
