// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a report is made of: sections of facts, each with what could not be read and why.
//!
//! *Missing is not absent.* A section says what is known; a value that is not known is `null` in JSON,
//! and the reason is among the section's [`Unread`]. A list is empty only if it is known to be.
//!
//! A part of the crate that reads gives `pub fn section(root: &Root) -> Section<Its>`, made with a
//! [`Look`], which keeps the book of what could not be read:
//!
//! ```
//! use millrace_inspect::report::{Look, Section};
//! use millrace_hostfs::Root;
//!
//! fn section(root: &Root) -> Section<u64> {
//!     let mut look = Look::new(root);
//!     let online = look.number("sys/devices/system/cpu/kernel_max");
//!     look.section(online)
//! }
//! # let _ = section(&Root::open("/")?);
//! # Ok::<(), millrace_hostfs::OpenError>(())
//! ```
//!
//! Names of fields carry their units (`_khz`, `_bytes`); the JSON schema is
//! `docs/reference/inspect.schema.json`.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use crate::accelerators::{self, Accelerators};
use crate::cpu::{self, Cpu};
use crate::kernel::{self, Kernel};
use crate::libcrypto::{self, Libraries};
use crate::machine::{self, Machine};
use crate::network::{self, Network};
use crate::qat::{self, Qat};
use millrace_hostfs::{
    ATTRIBUTE_BYTES, Content, LIBRARY_BYTES, Probe, ReadResult, Root, TABLE_BYTES, Unavailable,
};

/// Unread things that one section names; a hostile tree may have any number. The others are counted in
/// its last entry.
const MAX_UNREAD: usize = 64;

/// Everything that is known of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Report {
    /// Version of this form; it grows when a field changes its meaning or goes, not when one comes
    pub format: u32,
    /// Whether this is the machine itself, rather than files of one
    pub live: bool,
    /// Maker, system, kernel, memory
    pub machine: Section<Machine>,
    /// The processors
    pub cpu: Section<Cpu>,
    /// The crypto libraries
    pub libcrypto: Section<Libraries>,
    /// Which implementation the kernel takes
    pub kernel: Section<Kernel>,
    /// Intel QAT
    pub qat: Section<Qat>,
    /// Other accelerators
    pub accelerators: Section<Accelerators>,
    /// Cryptography in the network
    pub network: Section<Network>,
}

impl Report {
    /// The version of the form.
    pub const FORMAT: u32 = 1;

    /// Looks at everything.
    #[must_use]
    pub fn of(root: &Root) -> Self {
        let cpu = cpu::section(root);
        Self {
            format: Self::FORMAT,
            live: root.is_live(),
            machine: machine::section(root),
            libcrypto: libcrypto::section(root, cpu.known.as_ref()),
            cpu,
            kernel: kernel::section(root),
            qat: qat::section(root),
            accelerators: accelerators::section(root),
            network: network::section(root),
        }
    }
}

/// The JSON schema of `T`, as text.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> String {
    // A schema consists of maps and texts: writing it cannot fail.
    let mut text = serde_json::to_string_pretty(&schemars::schema_for!(T)).unwrap_or_default();
    text.push('\n');
    text
}

/// Facts of one kind, and what of them is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "{T}Section")]
pub struct Section<T> {
    /// What is known; null if nothing is
    pub known: Option<T>,
    /// What could not be read, and why: what it would have said is unknown, not absent
    pub unread: Vec<Unread>,
}

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Unread {
    /// The file, relative to the root, or the question that no file answers
    pub what: String,
    /// Why it could not be read
    #[serde(flatten)]
    pub why: Unavailable,
}

/// Reads for one section, and keeps the book of what could not be read.
#[derive(Debug)]
pub struct Look<'a> {
    root: &'a Root,
    unread: Vec<Unread>,
    more: usize,
}

impl<'a> Look<'a> {
    /// Begins a section.
    #[must_use]
    pub fn new(root: &'a Root) -> Self {
        Self {
            root,
            unread: Vec::new(),
            more: 0,
        }
    }

    /// The root, to read from it without keeping the book.
    #[must_use]
    pub fn root(&self) -> &'a Root {
        self.root
    }

    /// The text of a small file that should be there.
    pub fn text(&mut self, path: &str) -> Option<String> {
        let text = self.root.text(path, ATTRIBUTE_BYTES);
        self.keep(path, text)
    }

    /// The text of a small file that need not be there: that it is missing says something, and is not
    /// noted.
    pub fn text_if_there(&mut self, path: &str) -> Option<String> {
        match self.root.text(path, ATTRIBUTE_BYTES) {
            Err(Unavailable::Missing) => None,
            text => self.keep(path, text),
        }
    }

    /// The text of a file that grows with the machine, such as `/proc/cpuinfo`.
    pub fn table(&mut self, path: &str) -> Option<String> {
        let text = self.root.text(path, TABLE_BYTES);
        self.keep(path, text)
    }

    /// The bytes of a library or program.
    pub fn library(&mut self, path: &str) -> Option<Vec<u8>> {
        let content = self.root.read(path, LIBRARY_BYTES);
        self.keep(path, content.map(Content::into_bytes))
    }

    /// The bytes of a library or program that need not be there.
    pub fn library_if_there(&mut self, path: &str) -> Option<Vec<u8>> {
        match self.root.read(path, LIBRARY_BYTES) {
            Err(Unavailable::Missing) => None,
            content => self.keep(path, content.map(Content::into_bytes)),
        }
    }

    /// The lines of a file that have one of these words in them; the file need not be there. The other
    /// lines are not kept in a bundle.
    pub fn lines_with_if_there(&mut self, path: &str, words: &[&str]) -> Vec<String> {
        match self.root.lines_with(path, TABLE_BYTES, words) {
            Err(Unavailable::Missing | Unavailable::NotRegular { .. }) => Vec::new(),
            text => {
                let text = self.keep(path, text).unwrap_or_default();
                text.lines().map(str::to_owned).collect()
            }
        }
    }

    /// The one value in a small file that should be there.
    pub fn number<T: FromStr>(&mut self, path: &str) -> Option<T> {
        let text = self.text(path)?;
        self.parse(path, &text)
    }

    /// The one value in a small file that need not be there.
    pub fn number_if_there<T: FromStr>(&mut self, path: &str) -> Option<T> {
        let text = self.text_if_there(path)?;
        self.parse(path, &text)
    }

    fn parse<T: FromStr>(&mut self, path: &str, text: &str) -> Option<T> {
        let parsed = text.trim().parse().ok();
        if parsed.is_none() {
            let shown: String = text.trim().chars().take(40).collect();
            self.note(
                path,
                Unavailable::malformed(format!("no number: {shown:?}")),
            );
        }
        parsed
    }

    /// The names in a folder that need not be there.
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

    /// Asks what no file says; see [`Root::ask`].
    pub fn ask(&mut self, probe: &Probe<'_>) -> Option<String> {
        let output = self.root.ask(probe);
        self.keep(probe.what, output)
    }

    /// Notes that something could not be read.
    pub fn note(&mut self, what: &str, why: Unavailable) {
        let entry = Unread {
            what: what.trim_start_matches('/').to_owned(),
            why,
        };
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
        Section {
            known,
            unread: self.unread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_noted_once_and_only_where_it_should_be_there() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("n"), "12\n\0").unwrap();
        std::fs::write(folder.path().join("odd"), "a few\n").unwrap();
        let root = Root::open(folder.path()).unwrap();
        let mut look = Look::new(&root);
        assert_eq!(look.number::<u32>("n"), Some(12));
        assert_eq!(look.text_if_there("none"), None);
        assert_eq!(look.text("none"), None);
        assert_eq!(look.text("/none"), None);
        assert_eq!(look.number::<u32>("odd"), None);
        let section = look.section(Some(()));
        let said: Vec<String> = section
            .unread
            .iter()
            .map(|unread| format!("{}: {}", unread.what, unread.why))
            .collect();
        assert_eq!(said, ["none: not there", "odd: no number: \"a few\""]);
    }

    #[test]
    fn reasons_are_flat_in_json() {
        let unread = Unread {
            what: "x".to_owned(),
            why: Unavailable::TooLarge { limit_bytes: 7 },
        };
        assert_eq!(
            serde_json::to_string(&unread).unwrap(),
            r#"{"what":"x","why":"too-large","limit_bytes":7}"#
        );
    }

    #[test]
    fn a_hostile_tree_cannot_fill_the_report() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path()).unwrap();
        let mut look = Look::new(&root);
        for number in 0..MAX_UNREAD + 5 {
            look.note(&number.to_string(), Unavailable::Denied);
        }
        let section = look.section(Some(()));
        assert_eq!(section.unread.len(), MAX_UNREAD + 1);
        assert_eq!(section.unread[MAX_UNREAD].what, "and 5 more");
    }
}
