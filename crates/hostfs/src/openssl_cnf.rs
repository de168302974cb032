// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The syntax of `openssl.cnf` (config(5ssl)): sections, values and includes. Lines that are not valid are
//! skipped. An included file continues the section of its include, and the rest of the file the last section of the
//! included one, as in OpenSSL.
//!
//! Variables (`$name`, `${section::name}`, `$ENV::NAME`) are not expanded; [`has_variable`] detects them.

use std::collections::BTreeMap;

use crate::lexer::{self, Quoting, logical_lines};

/// Bound on the values of a file: OpenSSL's own sample has 130.
const MAX_VALUES: usize = 10_000;

/// Bound on included files, so that files that include each other end. Debian's has none, Red Hat's two.
const MAX_INCLUDES: usize = 32;

/// Name of the section before the first header.
pub const DEFAULT: &str = "default";

/// A configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cnf {
    sections: BTreeMap<String, Vec<(String, String)>>,
    includes: Vec<String>,
    values: usize,
    included: usize,
    is_cut: bool,
}

impl Cnf {
    /// Parses a file and the files that it includes: `read` returns the texts of those that a path names, which are
    /// several for a folder and none for what is not there.
    #[must_use]
    pub fn parse(text: &str, mut read: impl FnMut(&str) -> Vec<String>) -> Self {
        let mut cnf = Self::default();
        cnf.add(text, &mut DEFAULT.to_owned(), &mut read);
        cnf
    }

    fn add(&mut self, text: &str, section: &mut String, read: &mut dyn FnMut(&str) -> Vec<String>) {
        for line in logical_lines(text, "", |line| Some(without_comment(line))) {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                let name = header.split(']').next().unwrap_or_default().trim();
                name.clone_into(section);
                let _ = self.sections.entry(section.clone()).or_default();
            } else if let Some(file) = include(line) {
                let is_full = self.included >= MAX_INCLUDES;
                self.is_cut |= is_full;
                if !is_full {
                    self.includes.push(file.to_owned());
                }
                for text in if is_full { Vec::new() } else { read(file) } {
                    if self.included == MAX_INCLUDES {
                        self.is_cut = true;
                        break;
                    }
                    self.included += 1;
                    self.add(&text, section, read);
                }
            } else if let Some((name, value)) = assignment(line) {
                if self.values == MAX_VALUES {
                    self.is_cut = true;
                    return;
                }
                self.values += 1;
                let (section, name) = name.split_once("::").unwrap_or((section, name));
                let values = self.sections.entry(section.to_owned()).or_default();
                values.push((name.to_owned(), value));
            }
        }
    }

    /// Whether the configuration has more values or included files than are read.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Paths that decide which code a program runs that loads the configuration: of its includes, and of modules and
    /// engines.
    pub fn code_paths(&self) -> impl Iterator<Item = &str> {
        let values = self.sections.values().flatten();
        let named = values
            .filter(|(name, _)| ["module", "dynamic_path", "SO_PATH"].contains(&name.as_str()));
        let named = named.map(|(_, value)| value.as_str()).filter(|value| value.contains('/'));
        self.includes.iter().map(String::as_str).chain(named)
    }

    /// The last assignment counts, as in OpenSSL.
    #[must_use]
    pub fn value(&self, section: &str, name: &str) -> Option<&str> {
        let values = self.sections.get(section)?;
        let found = values.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// All values of a section; `None` if there is no such section.
    #[must_use]
    pub fn section(&self, section: &str) -> Option<&[(String, String)]> {
        self.sections.get(section).map(Vec::as_slice)
    }
}

/// The name and the value in a line, without comment and quotes.
#[must_use]
pub fn assignment(line: &str) -> Option<(&str, String)> {
    const QUOTING: Quoting = Quoting {
        separators: &[],
        quotes: &['"', '\'', '`'],
        verbatim: None,
        comment: None,
        escape: |character| character,
    };
    let (name, value) = without_comment(line).split_once('=')?;
    let value = lexer::words(value.trim(), &QUOTING).pop();
    Some((name.trim(), value.unwrap_or_default()))
}

/// Whether a value contains a variable, whose content is not in the file.
#[must_use]
pub fn has_variable(value: &str) -> bool {
    value.contains('$')
}

/// `.include file`, `.include = file`
fn include(line: &str) -> Option<&str> {
    let rest = line.strip_prefix(".include")?;
    if !rest.starts_with([' ', '\t', '=']) {
        return None;
    }
    let rest = rest.trim_start();
    let file = rest.strip_prefix('=').unwrap_or(rest).trim();
    (!file.is_empty()).then_some(file)
}

/// The line up to `#`, which is an ordinary character in quotes and after a backslash.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (offset, character) in line.char_indices() {
        match (character, quote) {
            _ if escaped => escaped = false,
            ('\\', _) => escaped = true,
            ('#', None) => return &line[..offset],
            ('"' | '\'' | '`', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_includes_follow_openssl() {
        let mut included = Vec::new();
        let cnf = Cnf::parse(
            "a = 1 # one\n [ one ] # a section\nb=\"x # y\" z\nc = long\\\n er\n\
             other::d = 5\nb = second\ne = \\#1\n.include /etc/more.cnf\n.include = x\n.includes = 7\n",
            |path| {
                included.push(path.to_owned());
                Vec::new()
            },
        );
        assert_eq!(cnf.value(DEFAULT, "a"), Some("1"));
        assert_eq!(cnf.value("one", "b"), Some("second"));
        assert_eq!(cnf.section("one").expect("it is there")[0].1, "x # y z");
        assert_eq!(cnf.value("one", "c"), Some("long er"));
        assert_eq!(cnf.value("other", "d"), Some("5"));
        assert_eq!(cnf.value("one", "e"), Some("#1"));
        assert_eq!(cnf.value("one", ".includes"), Some("7"));
        assert_eq!(included, ["/etc/more.cnf", "x"]);
        assert!(has_variable("$ENV::HOME/x") && !has_variable("/x"));
    }

    #[test]
    fn included_files_continue_the_section_of_their_include() {
        let files = |path: &str| match path {
            "policy" => vec!["Groups = P-384\n[ next ]\n".to_owned()],
            "folder" => vec!["x = 1\n".to_owned(), "y = 2\n".to_owned()],
            _ => Vec::new(),
        };
        let cnf = Cnf::parse("[ tls ]\n.include policy\nz = 3\n.include folder\n", files);
        assert_eq!(cnf.value("tls", "Groups"), Some("P-384"));
        for (name, value) in [("z", "3"), ("x", "1"), ("y", "2")] {
            assert_eq!(cnf.value("next", name), Some(value));
        }
    }

    #[test]
    fn files_that_include_themselves_end() {
        let mut read = 0;
        let cnf = Cnf::parse(".include a\n", |_| {
            read += 1;
            vec!["x = 1\n.include a\n".to_owned(); 2]
        });
        assert_eq!(cnf.section(DEFAULT).map(<[_]>::len), Some(MAX_INCLUDES));
        assert!(read <= MAX_INCLUDES);
        assert!(cnf.is_cut());
    }

    #[test]
    fn configuration_past_the_bounds_says_that_it_is_cut() {
        for (more, is_cut) in [(0, false), (1, true)] {
            let values = "x = 1\n".repeat(MAX_VALUES + more);
            assert_eq!(Cnf::parse(&values, |_| Vec::new()).is_cut(), is_cut, "{more} values");
            let files = |_: &str| vec![String::new(); MAX_INCLUDES + more];
            assert_eq!(Cnf::parse(".include a\n", files).is_cut(), is_cut, "{more} files");
        }
    }

    #[test]
    fn invalid_lines_are_skipped() {
        for text in ["", "[", "]", "=", "[]\n=\n", "\\", "\"", "[a\nb", "x\n\\\n\\"] {
            let cnf = Cnf::parse(&format!("{text}\n\n[ s ]\na = 1\n"), |_| Vec::new());
            assert_eq!(cnf.value("s", "a"), Some("1"), "{text:?}");
        }
    }
}
