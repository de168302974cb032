// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was read: kept while a report is made, so that a bundle holds exactly that, and written down
//! in the bundle's manifest, so that reading the bundle gives the same answers again.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Kind, Link, Listing, Reading};
use crate::Why;
use crate::live::Answer;

/// Where a bundle has its manifest.
pub const MANIFEST: &str = ".millrace/manifest.json";
/// Where a bundle has the answers of programs, one file each.
pub(super) const ANSWERS: &str = ".millrace/answers";
/// The version of the manifest's format.
const FORMAT: u32 = 1;
/// Bound on the content that a bundle holds: a few libraries of 10 MB and some thousand small files.
pub(super) const MAX_CONTENT: usize = 256 << 20;

/// What a bundle holds, and what is known of what it does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// Every path that was asked for, relative to the root.
    asked: BTreeMap<String, Record>,
}

/// What is known of one path: of each way in which it was asked for, what the answer was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<Said<usize>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    names: Option<Said<Vec<String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    link: Option<Said<Option<String>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<Said<Kind>>,
}

/// An answer: of content its length, of a link where it leads (nowhere: it is none).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Said<T> {
    Is(T),
    Not(Why),
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let manifest: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if manifest.format != FORMAT {
            return Err(format!("its format is {}, not {FORMAT}", manifest.format));
        }
        Ok(manifest)
    }

    /// The paths of which the bundle has the content, with its length in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&str, usize)> {
        self.asked
            .iter()
            .filter_map(|(path, record)| match record.content {
                Some(Said::Is(bytes)) => Some((path.as_str(), bytes)),
                _ => None,
            })
    }

    /// Whether the content of a path is in the bundle; why not, if it is not.
    pub(super) fn content(&self, path: &str) -> Option<Why> {
        match self
            .asked
            .get(path)
            .and_then(|record| record.content.as_ref())
        {
            Some(Said::Is(_)) => None,
            Some(Said::Not(why)) => Some(why.clone()),
            None => Some(Why::NotCollected),
        }
    }

    pub(super) fn listing(&self, path: &str) -> Listing {
        match self
            .asked
            .get(path)
            .and_then(|record| record.names.as_ref())
        {
            Some(Said::Is(names)) => Listing::Names {
                names: names.clone(),
                odd: 0,
                cut: false,
            },
            Some(Said::Not(why)) => Listing::Not(why.clone()),
            None => Listing::Not(Why::NotCollected),
        }
    }

    pub(super) fn link(&self, path: &str) -> Link {
        match self.asked.get(path).and_then(|record| record.link.as_ref()) {
            Some(Said::Is(Some(target))) => Link::To(target.clone()),
            Some(Said::Is(None)) => Link::NotLink,
            Some(Said::Not(why)) => Link::Not(why.clone()),
            None => Link::Not(Why::NotCollected),
        }
    }

    pub(super) fn kind(&self, path: &str) -> Result<Kind, Why> {
        let record = self.asked.get(path).ok_or(Why::NotCollected)?;
        match record {
            Record {
                kind: Some(Said::Is(kind)),
                ..
            } => Ok(*kind),
            Record {
                kind: Some(Said::Not(why)),
                ..
            } => Err(why.clone()),
            Record {
                content: Some(Said::Is(_)),
                ..
            } => Ok(Kind::File),
            Record {
                names: Some(Said::Is(_)),
                ..
            } => Ok(Kind::Folder),
            _ => Err(Why::NotCollected),
        }
    }
}

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Recorder {
    asked: BTreeMap<String, Record>,
    contents: BTreeMap<String, Vec<u8>>,
    held: usize,
}

impl Recorder {
    /// The manifest of a bundle of this.
    #[must_use]
    pub fn manifest(&self) -> Manifest {
        Manifest {
            format: FORMAT,
            asked: self.asked.clone(),
        }
    }

    /// The contents, by their path in a bundle.
    pub fn contents(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.contents
            .iter()
            .map(|(path, content)| (path.as_str(), content.as_slice()))
    }

    pub(super) fn read(&mut self, path: &str, reading: &Reading) {
        let said = match reading {
            Reading::Text(text) => self.hold(path, text.as_bytes()),
            Reading::Bytes(bytes) => self.hold(path, bytes),
            other => Said::Not(other.why().unwrap_or(Why::Missing)),
        };
        self.asked.entry(path.to_owned()).or_default().content = Some(said);
    }

    pub(super) fn list(&mut self, path: &str, listing: &Listing) {
        let said = match listing {
            Listing::Names { names, .. } => Said::Is(names.clone()),
            Listing::Not(why) => Said::Not(why.clone()),
        };
        self.asked.entry(path.to_owned()).or_default().names = Some(said);
    }

    pub(super) fn link(&mut self, path: &str, link: &Link) {
        let said = match link {
            Link::To(target) => Said::Is(Some(target.clone())),
            Link::NotLink => Said::Is(None),
            Link::Not(why) => Said::Not(why.clone()),
        };
        self.asked.entry(path.to_owned()).or_default().link = Some(said);
    }

    pub(super) fn kind(&mut self, path: &str, kind: &Result<Kind, Why>) {
        let said = match kind {
            Ok(kind) => Said::Is(*kind),
            Err(why) => Said::Not(why.clone()),
        };
        self.asked.entry(path.to_owned()).or_default().kind = Some(said);
    }

    pub(super) fn answer(&mut self, name: &str, answer: &Answer) {
        if let Answer::Text(text) = answer {
            let path = format!("{ANSWERS}/{name}");
            let said = self.hold(&path, text.as_bytes());
            self.asked.entry(path).or_default().content = Some(said);
        }
    }

    /// Keeps a content, unless it may be a secret or the bundle is full.
    fn hold(&mut self, path: &str, content: &[u8]) -> Said<usize> {
        if may_be_secret(path, content) {
            return Said::Not(Why::unreadable(
                "left out of the bundle: it may hold a secret",
            ));
        }
        let content = without_serial(path, content);
        let held = self.held.saturating_add(content.len());
        if held > MAX_CONTENT {
            return Said::Not(Why::unreadable("left out of the bundle: it is full"));
        }
        // A file that is read twice (a counter) is kept as it was first.
        if !self.contents.contains_key(path) {
            self.held = held;
            self.contents.insert(path.to_owned(), content.into_owned());
        }
        Said::Is(self.contents[path].len())
    }
}

/// `/proc/cpuinfo` of some Arm kernels has the machine's serial number, which nobody needs to know.
fn without_serial<'a>(path: &str, content: &'a [u8]) -> Cow<'a, [u8]> {
    let serial = |line: &&[u8]| line.starts_with(b"Serial");
    let mut lines = content.split_inclusive(|byte| *byte == b'\n');
    if path != "proc/cpuinfo" || !lines.any(|line| serial(&line)) {
        return Cow::Borrowed(content);
    }
    let lines = content.split_inclusive(|byte| *byte == b'\n');
    let kept: Vec<&[u8]> = lines.filter(|line| !serial(line)).collect();
    Cow::Owned(kept.concat())
}

/// A net below the rule that no secret is read in the first place: environments, command lines, and
/// whatever looks like a private key are never kept.
fn may_be_secret(path: &str, content: &[u8]) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let process = path.starts_with("proc/") && ["environ", "cmdline"].contains(&name);
    let key = [".key", ".p12", ".pfx", ".jks", ".psk", ".secrets"]
        .iter()
        .any(|ending| name.ends_with(ending));
    // A program or library that reads keys holds the words; only text with them is a key.
    let marks: [&[u8]; 3] = [b"PRIVATE KEY-----", b"Static key V1-----", b"PrivateKey ="];
    let text = !content.starts_with(b"\x7fELF");
    process
        || key
        || (text
            && marks
                .iter()
                .any(|mark| memchr::memmem::find(content, mark).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_kept() {
        let mut recorder = Recorder::default();
        let text = |text: &str| Reading::Text(text.to_owned());
        recorder.read("proc/7/environ", &text("TOKEN=1"));
        recorder.read("etc/nginx/www", &text("-----BEGIN RSA PRIVATE KEY-----\n"));
        recorder.read("etc/wireguard/wg0.conf", &text("PrivateKey = abc\n"));
        recorder.read("etc/openvpn/ta.key", &text("anything"));
        recorder.read("proc/cpuinfo", &text("processor: 0\nSerial\t: 17\n"));
        let kept: Vec<&str> = recorder.contents().map(|(path, _)| path).collect();
        assert_eq!(kept, ["proc/cpuinfo"]);
        assert_eq!(recorder.contents["proc/cpuinfo"], b"processor: 0\n");
        let why = recorder.manifest().content("proc/7/environ").unwrap();
        assert!(why.to_string().contains("secret"));
    }

    #[test]
    fn a_manifest_reads_back_and_tells_what_was_not_asked_for() {
        let mut recorder = Recorder::default();
        recorder.read("a", &Reading::Text("x".to_owned()));
        recorder.read("b", &Reading::Denied);
        recorder.link("c", &Link::To("../d".to_owned()));
        recorder.kind("dev/crypto", &Ok(Kind::CharacterDevice));
        let text = serde_json::to_string(&recorder.manifest()).unwrap();
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(manifest.content("a"), None);
        assert_eq!(manifest.content("b"), Some(Why::Denied));
        assert_eq!(manifest.content("e"), Some(Why::NotCollected));
        assert_eq!(manifest.link("c"), Link::To("../d".to_owned()));
        assert_eq!(manifest.kind("dev/crypto"), Ok(Kind::CharacterDevice));
        assert!(Manifest::parse("{\"format\":2,\"asked\":{}}").is_err());
    }
}
