// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A record of all reads. It becomes the content and the manifest of a bundle, so that reading the bundle
//! gives the same answers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Content, FileKind, Names};
use crate::{ReadResult, Unavailable};

/// Path of the manifest in a bundle.
pub const MANIFEST: &str = ".millrace/manifest.json";
/// Folder of the output of programs in a bundle, one file each.
pub(super) const ANSWERS: &str = ".millrace/answers";
/// Version of the manifest's format.
const FORMAT: u32 = 1;
/// Bound on the content that a bundle holds: a few libraries of 10 MB and some thousand small files.
pub(super) const MAX_CONTENT: usize = 256 << 20;

/// The table of contents of a bundle: each path that was read, with the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// Answers by path, relative to the root.
    asked: BTreeMap<String, Record>,
}

/// The answers for one path, one per kind of request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Length of the content in bytes; the bundle holds the content itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Said<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Said<Vec<String>>>,
    /// The target; `None` if the path is not a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<Said<Option<String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<Said<FileKind>>,
}

/// A [`ReadResult`] in the form of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said<T> {
    Is(T),
    Not(Unavailable),
}

impl<T> Said<T> {
    fn of<U>(result: &ReadResult<U>, value: impl FnOnce(&U) -> T) -> Option<Self> {
        Some(match result {
            Ok(found) => Self::Is(value(found)),
            Err(reason) => Self::Not(reason.clone()),
        })
    }
}

/// Error of reading a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The record is not valid JSON of this form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// Another version of Millrace wrote it.
    #[error("its format is {0}, not {FORMAT}")]
    Format(u32),
}

impl Manifest {
    pub(super) fn parse(text: &str) -> Result<Self, ManifestError> {
        let manifest: Self = serde_json::from_str(text)?;
        if manifest.format != FORMAT {
            return Err(ManifestError::Format(manifest.format));
        }
        Ok(manifest)
    }

    /// The paths whose content the bundle holds, with its length in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        self.asked.iter().filter_map(|(path, record)| match record.content {
            Some(Said::Is(bytes)) => Some((path.as_str(), bytes)),
            _ => None,
        })
    }

    /// `Ok` if the bundle holds the content of a path.
    pub(super) fn content(&self, path: &str) -> ReadResult<()> {
        self.answer(path, |record| record.content.as_ref()).map(|_| ())
    }

    pub(super) fn names(&self, path: &str) -> ReadResult<Names> {
        let names = self.answer(path, |record| record.names.as_ref())?;
        Ok(Names { names: names.clone(), not_utf8: 0, truncated: false })
    }

    pub(super) fn link(&self, path: &str) -> ReadResult<Option<String>> {
        self.answer(path, |record| record.link.as_ref()).cloned()
    }

    pub(super) fn kind(&self, path: &str) -> ReadResult<FileKind> {
        match self.answer(path, |record| record.kind.as_ref()) {
            Err(Unavailable::NotCollected) if self.content(path).is_ok() => Ok(FileKind::File),
            Err(Unavailable::NotCollected) if self.names(path).is_ok() => Ok(FileKind::Folder),
            kind => kind.copied(),
        }
    }

    fn answer<'a, T>(
        &'a self,
        path: &str,
        field: impl FnOnce(&'a Record) -> Option<&'a Said<T>>,
    ) -> ReadResult<&'a T> {
        match self.asked.get(path).and_then(field) {
            Some(Said::Is(answer)) => Ok(answer),
            Some(Said::Not(reason)) => Err(reason.clone()),
            None => Err(Unavailable::NotCollected),
        }
    }
}

/// All recorded reads.
#[derive(Debug, Default)]
pub struct Recorder {
    asked: BTreeMap<String, Record>,
    contents: BTreeMap<String, Vec<u8>>,
    held_bytes: usize,
}

impl Recorder {
    /// The manifest of a bundle with these records.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        Manifest { format: FORMAT, asked: self.asked.clone() }
    }

    /// The contents, by path.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.contents.iter().map(|(path, content)| (path.as_str(), content.as_slice()))
    }

    pub(super) fn read(&mut self, path: &str, content: &ReadResult<Content>) {
        let length = match content {
            Ok(content) => self.hold(path, content.as_bytes()),
            Err(reason) => Err(reason.clone()),
        };
        self.of(path).content = Said::of(&length, |length| *length);
    }

    pub(super) fn list(&mut self, path: &str, names: &ReadResult<Names>) {
        self.of(path).names = Said::of(names, |list| list.names.clone());
    }

    pub(super) fn link(&mut self, path: &str, link: &ReadResult<Option<String>>) {
        self.of(path).link = Said::of(link, Clone::clone);
    }

    pub(super) fn kind(&mut self, path: &str, kind: &ReadResult<FileKind>) {
        self.of(path).kind = Said::of(kind, |kind| *kind);
    }

    fn of(&mut self, path: &str) -> &mut Record {
        self.asked.entry(path.to_owned()).or_default()
    }

    /// Records a content, unless it may be a secret or the bundle is full.
    fn hold(&mut self, path: &str, content: &[u8]) -> ReadResult<usize> {
        let left_out =
            |reason: &str| Unavailable::unreadable(format!("left out of the bundle: {reason}"));
        if may_be_secret(path, content) {
            return Err(left_out("it may hold a secret"));
        }
        let content = redacted(path, content);
        let held_bytes = self.held_bytes.saturating_add(content.len());
        if held_bytes > MAX_CONTENT {
            return Err(left_out("it is full"));
        }
        // If a file is read twice (a counter), the first content counts.
        if !self.contents.contains_key(path) {
            self.held_bytes = held_bytes;
            self.contents.insert(path.to_owned(), content.into_owned());
        }
        Ok(self.contents[path].len())
    }
}

/// The parameters of the running kernel.
const KERNEL_COMMAND_LINE: &str = "proc/cmdline";

/// Kernel parameters that reports name. A bundle has no others: they may be secrets, such as those of a network disk.
pub const KERNEL_PARAMETERS: &[&str] = &[
    "mitigations",
    "nopti",
    "idle",
    "processor.max_cstate",
    "processor.max_cstates",
    "intel_idle.max_cstate",
    "intel_iommu",
    "amd_iommu",
    "iommu",
    "clearcpuid",
    "module_blacklist",
    "modprobe.blacklist",
    "initcall_blacklist",
];

/// Removes the machine's serial number, which `/proc/cpuinfo` of some Arm kernels contains, and kernel parameters that
/// no report names.
fn redacted<'a>(path: &str, content: &'a [u8]) -> Cow<'a, [u8]> {
    if path == KERNEL_COMMAND_LINE {
        let words = content.split(|byte| byte.is_ascii_whitespace());
        let is_known = |word: &&[u8]| {
            let name = word.split(|byte| *byte == b'=').next().unwrap_or_default();
            KERNEL_PARAMETERS.iter().any(|known| known.as_bytes() == name)
        };
        return Cow::Owned(words.filter(is_known).collect::<Vec<_>>().join(&b' '));
    }
    let serial = |line: &&[u8]| line.starts_with(b"Serial");
    let mut lines = content.split_inclusive(|byte| *byte == b'\n');
    if path != "proc/cpuinfo" || !lines.any(|line| serial(&line)) {
        return Cow::Borrowed(content);
    }
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    let kept: Vec<&[u8]> = lines.filter(|line| !serial(line)).collect();
    Cow::Owned(kept.concat())
}

/// A second safeguard after the rule that no secret is read: environments, command lines and content that
/// looks like a private key are never recorded.
fn may_be_secret(path: &str, content: &[u8]) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let process = path.starts_with("proc/") && ["environ", "cmdline"].contains(&name);
    let process = process && path != KERNEL_COMMAND_LINE;
    let key = [".key", ".p12", ".pfx", ".jks", ".psk", ".secrets"]
        .iter()
        .any(|ending| name.ends_with(ending));
    // Programs and libraries that read keys contain these marks, too; only text with them is a key.
    let marks: [&[u8]; 3] = [b"PRIVATE KEY-----", b"Static key V1-----", b"PrivateKey ="];
    let text = !content.starts_with(b"\x7fELF");
    process
        || key
        || (text && marks.iter().any(|mark| memchr::memmem::find(content, mark).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_kept() {
        let mut recorder = Recorder::default();
        let text = |text: &str| Ok(Content::Text(text.to_owned()));
        recorder.read("proc/7/environ", &text("TOKEN=1"));
        recorder.read("etc/nginx/www", &text("-----BEGIN RSA PRIVATE KEY-----\n"));
        recorder.read("etc/wireguard/wg0.conf", &text("PrivateKey = abc\n"));
        recorder.read("etc/openvpn/ta.key", &text("anything"));
        recorder.read("proc/cpuinfo", &text("processor: 0\nSerial\t: 17\n"));
        let kept: Vec<&str> = recorder.contents().map(|(path, _)| path).collect();
        assert_eq!(kept, ["proc/cpuinfo"]);
        assert_eq!(recorder.contents["proc/cpuinfo"], b"processor: 0\n");
        let line = "root=/dev/sda1 nfspw=secret idle=poll module_blacklist=algif_aead quiet\n";
        recorder.read("proc/7/cmdline", &text(line));
        recorder.read(KERNEL_COMMAND_LINE, &text(line));
        assert!(!recorder.contents.contains_key("proc/7/cmdline"));
        assert_eq!(
            recorder.contents[KERNEL_COMMAND_LINE],
            b"idle=poll module_blacklist=algif_aead"
        );
        let reason = recorder.manifest().content("proc/7/environ").unwrap_err();
        assert!(reason.to_string().contains("secret"));
    }

    #[test]
    fn manifest_reads_back_and_lists_files_not_collected() {
        let mut recorder = Recorder::default();
        recorder.read("a", &Ok(Content::Text("x".to_owned())));
        recorder.read("b", &Err(Unavailable::Denied));
        recorder.link("c", &Ok(Some("../d".to_owned())));
        recorder.kind("dev/crypto", &Ok(FileKind::CharacterDevice));
        let text = serde_json::to_string(&recorder.manifest()).unwrap();
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(manifest.content("a"), Ok(()));
        assert_eq!(manifest.content("b"), Err(Unavailable::Denied));
        assert_eq!(manifest.content("e"), Err(Unavailable::NotCollected));
        assert_eq!(manifest.link("c"), Ok(Some("../d".to_owned())));
        assert_eq!(manifest.kind("a"), Ok(FileKind::File));
        assert_eq!(manifest.kind("dev/crypto"), Ok(FileKind::CharacterDevice));
        assert!(Manifest::parse("{\"format\":2,\"asked\":{}}").is_err());
    }
}
