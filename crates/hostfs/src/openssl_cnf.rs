// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The syntax of `openssl.cnf` (config(5ssl)): sections, values and includes. Lines that are not valid are
//! skipped.
//!
//! Variables (`$name`, `${section::name}`, `$ENV::NAME`) are not expanded; [`has_variable`] detects them.

use std::collections::BTreeMap;

use crate::lexer::{self, Quoting, logical_lines};

/// Bound on the values of a file: OpenSSL's own sample has 130.
const MAX_VALUES: usize = 10_000;

/// Name of the section before the first header.
pub const DEFAULT: &str = "default";

/// A configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cnf {
    sections: BTreeMap<String, Vec<(String, String)>>,
    /// The files that it includes, in order.
    pub includes: Vec<String>,
    values: usize,
}

impl Cnf {
    /// Parses one file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut cnf = Self::default();
        cnf.add(text);
        cnf
    }

    /// Parses one more file. A later value of the same name replaces an earlier one.
    pub fn add(&mut self, text: &str) {
        let mut section = DEFAULT.to_owned();
        for line in logical_lines(text, "", |line| Some(without_comment(line))) {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                let name = header.split(']').next().unwrap_or_default().trim();
                name.clone_into(&mut section);
                let _ = self.sections.entry(section.clone()).or_default();
            } else if let Some(file) = include(line) {
                self.includes.push(file.to_owned());
            } else if let Some((name, value)) = assignment(line)
                && self.values < MAX_VALUES
            {
                self.values += 1;
                let (section, name) = name.split_once("::").unwrap_or((&section, name));
                let values = self.sections.entry(section.to_owned()).or_default();
                values.push((name.to_owned(), value));
            }
        }
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
        let cnf = Cnf::parse(
            "a = 1 # one\n [ one ] # a section\nb=\"x # y\" z\nc = long\\\n er\n\
             other::d = 5\nb = second\ne = \\#1\n.include /etc/more.cnf\n.include = x\n.includes = 7\n",
        );
        assert_eq!(cnf.value(DEFAULT, "a"), Some("1"));
        assert_eq!(cnf.value("one", "b"), Some("second"));
        assert_eq!(cnf.section("one").expect("it is there")[0].1, "x # y z");
        assert_eq!(cnf.value("one", "c"), Some("long er"));
        assert_eq!(cnf.value("other", "d"), Some("5"));
        assert_eq!(cnf.value("one", "e"), Some("#1"));
        assert_eq!(cnf.value("one", ".includes"), Some("7"));
        assert_eq!(cnf.includes, ["/etc/more.cnf", "x"]);
        assert!(has_variable("$ENV::HOME/x") && !has_variable("/x"));
    }

    #[test]
    fn invalid_lines_are_skipped() {
        for text in ["", "[", "]", "=", "[]\n=\n", "\\", "\"", "[a\nb", "x\n\\\n\\"] {
            let cnf = Cnf::parse(&format!("{text}\n\n[ s ]\na = 1\n"));
            assert_eq!(cnf.value("s", "a"), Some("1"), "{text:?}");
        }
    }
}
