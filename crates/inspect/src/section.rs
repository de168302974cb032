// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A section of a report: facts, and the files that could not be read, with the reason.
//!
//! *Unknown is not absent.* An unknown value is `null` in JSON, and the section's [`Unread`] gives the
//! reason. A list is empty only if it is known to be empty.
//!
//! Each part of the crate has a `pub fn section(root: &Root) -> Section<Facts>`. It reads through a
//! [`SectionReader`], which notes what could not be read:
//!
//! ```
//! use millrace_inspect::section::{SectionReader, Section};
//! use millrace_hostfs::Root;
//!
//! fn section(root: &Root) -> Section<u64> {
//!     let mut reader = SectionReader::new(root);
//!     let online = reader.number_if_there("sys/devices/system/cpu/kernel_max");
//!     reader.section(online)
//! }
//! # let _ = section(&Root::open("/")?);
//! # Ok::<(), millrace_hostfs::OpenError>(())
//! ```

use std::str::FromStr;

use millrace_hostfs::{
    ATTRIBUTE_BYTES, Content, FileKind, LIBRARY_BYTES, Probe, ReadResult, Root, TABLE_BYTES,
    Unavailable,
};
use schemars::JsonSchema;
use serde::Serialize;

/// Bound on the entries of [`Section::unread`]; a hostile tree may cause any number. The last entry counts
/// the rest.
const MAX_UNREAD: usize = 64;

/// Facts of one kind, and those that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "{T}Section")]
pub struct Section<T> {
    /// The facts; null if nothing is known
    pub known: Option<T>,
    /// Files that could not be read, with the reason: their facts are unknown, not absent
    pub unread: Vec<Unread>,
}

impl<T> Section<T> {
    /// The word for a fact that was not found, where one of these paths, or one below them, would show it: `absent`, or
    /// what kept this user from looking.
    #[must_use]
    pub fn absence(&self, paths: &[&str], absent: &'static str) -> &'static str {
        let is_below = |what: &str, path: &str| {
            what.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // A file that is not there was looked for.
        let mut unread = self.unread.iter().filter(|one| one.why != Unavailable::Missing);
        match unread.find(|one| paths.iter().any(|path| is_below(&one.what, path))) {
            None => absent,
            Some(Unread { why: Unavailable::Denied, .. }) => "denied",
            Some(_) => "not known",
        }
    }
}

/// A file or question without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Unread {
    /// The file, relative to the root, or the question to a program
    pub what: String,
    /// Why it could not be read
    #[serde(flatten)]
    pub why: Unavailable,
}

/// Reads for one section, and notes what could not be read.
#[derive(Debug)]
pub struct SectionReader<'a> {
    root: &'a Root,
    unread: Vec<Unread>,
    more: usize,
}

impl<'a> SectionReader<'a> {
    /// Begins a section.
    #[must_use]
    pub fn new(root: &'a Root) -> Self {
        Self { root, unread: Vec::new(), more: 0 }
    }

    /// The root, for reads whose failure is not noted.
    #[must_use]
    pub fn root(&self) -> &'a Root {
        self.root
    }

    /// The text of a small file that should exist.
    pub fn text(&mut self, path: &str) -> Option<String> {
        let text = self.root.text(path, ATTRIBUTE_BYTES);
        self.keep(path, text)
    }

    /// The text of a small file that need not exist: its absence is a fact, and is not noted.
    pub fn text_if_there(&mut self, path: &str) -> Option<String> {
        match self.root.text(path, ATTRIBUTE_BYTES) {
            Err(Unavailable::Missing) => None,
            text => self.keep(path, text),
        }
    }

    /// The text of a small file that need not exist, without blanks, line ends and NULs around it.
    pub fn word(&mut self, path: &str) -> Option<String> {
        let text = self.text_if_there(path)?;
        Some(text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned())
    }

    /// Whether a path exists. One that cannot be looked at is noted.
    pub fn exists(&mut self, path: &str) -> bool {
        self.kind(path).is_some()
    }

    /// The kind of the file at a path that need not exist.
    pub fn kind(&mut self, path: &str) -> Option<FileKind> {
        match self.root.kind(path) {
            Err(Unavailable::Missing) => None,
            kind => self.keep(path, kind),
        }
    }

    /// The last part of the target of a link that need not exist: of `…/device/driver`, the name of the driver.
    pub fn link_name(&mut self, path: &str) -> Option<String> {
        if let Err(why) = self.root.link(path)
            && why != Unavailable::Missing
        {
            self.note(path, why);
        }
        self.root.link_name(path)
    }

    /// The NUMA node of a device; none if the machine has only one, where the kernel says -1.
    pub fn numa_node(&mut self, device: &str) -> Option<u32> {
        let node = self.number_if_there::<i64>(&format!("{device}/numa_node"))?;
        u32::try_from(node).ok()
    }

    /// The names of the loaded modules; none without a list of them.
    pub fn modules(&mut self) -> Vec<String> {
        let text = self.table("proc/modules").unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split_ascii_whitespace().next());
        names.map(str::to_owned).collect()
    }

    /// The text of a file that grows with the machine, such as `/proc/cpuinfo`.
    pub fn table(&mut self, path: &str) -> Option<String> {
        let text = self.root.text(path, TABLE_BYTES);
        self.keep(path, text)
    }

    /// The bytes of a library or program; if `optional`, its absence is not noted.
    pub fn library(&mut self, path: &str, optional: bool) -> Option<Vec<u8>> {
        match self.root.read(path, LIBRARY_BYTES) {
            Err(Unavailable::Missing) if optional => None,
            content => self.keep(path, content.map(Content::into_bytes)),
        }
    }

    /// The lines of a file that contain one of these words; the file need not exist. A bundle keeps only
    /// these lines.
    pub fn lines_with_if_there(&mut self, path: &str, words: &[&str]) -> Vec<String> {
        match self.root.lines_with(path, TABLE_BYTES, words) {
            Err(Unavailable::Missing | Unavailable::NotRegular { .. }) => Vec::new(),
            text => {
                let text = self.keep(path, text).unwrap_or_default();
                text.lines().map(str::to_owned).collect()
            }
        }
    }

    /// The single value in a small file that need not exist.
    pub fn number_if_there<T: FromStr>(&mut self, path: &str) -> Option<T> {
        let text = self.text_if_there(path)?;
        let parsed = text.trim().parse().ok();
        if parsed.is_none() {
            let shown: String = text.trim().chars().take(40).collect();
            self.note(path, Unavailable::malformed(format!("no number: {shown:?}")));
        }
        parsed
    }

    /// The names in a folder that need not exist.
    pub fn names(&mut self, path: &str) -> Vec<String> {
        match self.root.list(path) {
            Ok(list) => {
                if list.truncated {
                    let count = list.names.len();
                    let reason = format!("more than {count} names; the others are left out");
                    self.note(path, Unavailable::unreadable(reason));
                }
                if list.not_utf8 > 0 {
                    let reason = format!("{} names are not text; they are left out", list.not_utf8);
                    self.note(path, Unavailable::malformed(reason));
                }
                list.names
            }
            Err(Unavailable::Missing) => Vec::new(),
            Err(why) => {
                self.note(path, why);
                Vec::new()
            }
        }
    }

    /// Asks a program of the machine; see [`Root::ask`].
    pub fn ask(&mut self, probe: &Probe<'_>) -> Option<String> {
        let output = self.root.ask(probe);
        self.keep(probe.what, output)
    }

    /// The first `most` of some items; notes under the name `what` that there are more.
    pub fn first<T>(
        &mut self,
        what: &str,
        items: impl IntoIterator<Item = T>,
        most: usize,
    ) -> Vec<T> {
        let mut items = items.into_iter();
        let first: Vec<T> = items.by_ref().take(most).collect();
        if items.next().is_some() {
            self.note_more(what, most);
        }
        first
    }

    /// Whether a list has `most` items already; notes then under the name `what` that one more was found.
    pub fn is_full<T>(&mut self, what: &str, list: &[T], most: usize) -> bool {
        if list.len() < most {
            return false;
        }
        self.note_more(what, most);
        true
    }

    fn note_more(&mut self, what: &str, most: usize) {
        let reason = format!("more than {most}; the others are left out");
        self.note(what, Unavailable::unreadable(reason));
    }

    /// Notes that something could not be read.
    pub fn note(&mut self, what: &str, why: Unavailable) {
        let entry = Unread { what: what.trim_start_matches('/').to_owned(), why };
        if self.unread.contains(&entry) {
            return;
        }
        if self.unread.len() < MAX_UNREAD {
            self.unread.push(entry);
        } else {
            self.more += 1;
        }
    }

    fn keep<T>(&mut self, path: &str, content: ReadResult<T>) -> Option<T> {
        match content {
            Ok(content) => Some(content),
            Err(why) => {
                self.note(path, why);
                None
            }
        }
    }

    /// Ends the section.
    #[must_use]
    pub fn section<T>(mut self, known: Option<T>) -> Section<T> {
        if self.more > 0 {
            self.unread.push(Unread {
                what: format!("and {} more", self.more),
                why: Unavailable::unreadable("too many to name"),
            });
        }
        Section { known, unread: self.unread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_past_a_bound_are_noted() {
        let root = Root::open("/").unwrap();
        let mut reader = SectionReader::new(&root);
        assert_eq!(reader.first("rows", [1, 2], 2), [1, 2]);
        assert!(reader.unread.is_empty());
        assert_eq!(reader.first("rows", [1, 2, 3], 2), [1, 2]);
        assert_eq!(reader.unread.len(), 1);
        assert!(reader.unread[0].why.to_string().contains("more than 2"));
    }

    #[test]
    fn missing_required_files_are_noted_once() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("n"), "12\n\0").unwrap();
        std::fs::write(folder.path().join("odd"), "a few\n").unwrap();
        let root = Root::open(folder.path()).unwrap();
        let mut reader = SectionReader::new(&root);
        assert_eq!(reader.number_if_there::<u32>("n"), Some(12));
        assert_eq!(reader.text_if_there("none"), None);
        assert_eq!(reader.text("none"), None);
        assert_eq!(reader.text("/none"), None);
        assert_eq!(reader.number_if_there::<u32>("odd"), None);
        let section = reader.section(Some(()));
        let said: Vec<String> = section
            .unread
            .iter()
            .map(|unread| format!("{}: {}", unread.what, unread.why))
            .collect();
        assert_eq!(said, ["none: not there", "odd: no number: \"a few\""]);
    }

    #[test]
    fn reasons_are_flat_in_json() {
        let unread = Unread { what: "x".to_owned(), why: Unavailable::TooLarge { limit_bytes: 7 } };
        assert_eq!(
            serde_json::to_string(&unread).unwrap(),
            r#"{"what":"x","why":"too-large","limit_bytes":7}"#
        );
    }

    #[test]
    fn number_of_unread_entries_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let mut reader = SectionReader::new(&root);
        for number in 0..MAX_UNREAD + 5 {
            reader.note(&number.to_string(), Unavailable::Denied);
        }
        let section = reader.section(Some(()));
        assert_eq!(section.unread.len(), MAX_UNREAD + 1);
        assert_eq!(section.unread[MAX_UNREAD].what, "and 5 more");
    }
}
