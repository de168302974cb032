// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads `openssl.cnf` (config(5ssl)) as far as it takes to see whether the provider is activated. Read
//! only, and lenient: what it does not understand it passes over, and OpenSSL has the last word.
//!
//! Variables (`$name`, `${section::name}`, `$ENV::NAME`) are left as they stand, except that a value
//! with one says so: [`has_variable`].

use std::collections::BTreeMap;

/// Bound on the values of a file: OpenSSL's own sample has 130.
const MAX_VALUES: usize = 10_000;

/// The section before any header.
pub const DEFAULT: &str = "default";

/// A configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cnf {
    sections: BTreeMap<String, Vec<(String, String)>>,
    /// Files that it includes, in order.
    pub includes: Vec<String>,
    values: usize,
}

impl Cnf {
    /// Reads one file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut cnf = Self::default();
        cnf.add(text);
        cnf
    }

    /// Reads one more file. A later value of the same name wins.
    pub fn add(&mut self, text: &str) {
        let mut section = DEFAULT.to_owned();
        for line in logical_lines(text) {
            let line = line.trim();
            if let Some(header) = line.strip_prefix('[') {
                let name = header.split(']').next().unwrap_or_default().trim();
                name.clone_into(&mut section);
                let _ = self.sections.entry(section.clone()).or_default();
            } else if let Some(file) = include(line) {
                self.includes.push(file.to_owned());
            } else if let Some((name, value)) = line.split_once('=')
                && self.values < MAX_VALUES
            {
                self.values += 1;
                let (section, name) = match name.trim().split_once("::") {
                    Some((section, name)) => (section.to_owned(), name),
                    None => (section.clone(), name.trim()),
                };
                let values = self.sections.entry(section).or_default();
                values.push((name.to_owned(), unquoted(value.trim())));
            }
        }
    }

    /// The value of a name.
    #[must_use]
    pub fn value(&self, section: &str, name: &str) -> Option<&str> {
        let values = self.sections.get(section)?;
        let found = values.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// All values of a section; nothing if there is no such section.
    #[must_use]
    pub fn section(&self, section: &str) -> Option<&[(String, String)]> {
        self.sections.get(section).map(Vec::as_slice)
    }
}

/// Whether a value depends on something that is not in the file.
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
    let file = rest.trim_start();
    let file = file.strip_prefix('=').unwrap_or(file).trim();
    (!file.is_empty()).then_some(file)
}

/// Lines without comments, continued ones joined.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines() {
        let line = without_comment(line);
        if let Some(continued) = line.strip_suffix('\\') {
            begun.push_str(continued);
            continue;
        }
        begun.push_str(line);
        lines.push(std::mem::take(&mut begun));
    }
    lines.push(begun);
    lines
}

/// A `#` ends the line, but not in quotes and not after a backslash.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut escaped) = (None, false);
    for (at, character) in line.char_indices() {
        match (character, quote) {
            _ if escaped => escaped = false,
            ('\\', _) => escaped = true,
            ('#', None) => return &line[..at],
            ('"' | '\'' | '`', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            _ => {}
        }
    }
    line
}

/// Without quotes and backslashes.
fn unquoted(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let (mut quote, mut escaped) = (None, false);
    for character in value.chars() {
        match (character, quote) {
            _ if escaped => {
                escaped = false;
                text.push(character);
            }
            ('\\', _) => escaped = true,
            ('"' | '\'' | '`', None) => quote = Some(character),
            (_, Some(open)) if character == open => quote = None,
            _ => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_file_is_understood() {
        use crate::recipe::Application;
        use crate::settings::tests::settings;
        let plan = Application::Openssl.plan(&settings(&["unix:/run/millrace/node.sock"]));
        let cnf = Cnf::parse(&plan.files[0].contents);
        assert_eq!(cnf.value(DEFAULT, "openssl_conf"), Some("openssl_init"));
        assert_eq!(
            cnf.value("openssl_init", "providers"),
            Some("provider_sect")
        );
        assert_eq!(
            cnf.value("openssl_init", "alg_section"),
            None,
            "commented out"
        );
        assert_eq!(
            cnf.value("provider_sect", "millrace"),
            Some("millrace_sect")
        );
        assert_eq!(
            cnf.value("millrace_sect", "pool"),
            Some("unix:/run/millrace/node.sock")
        );
    }

    #[test]
    fn the_syntax_of_openssl() {
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
    fn rubbish_is_passed_over() {
        for text in [
            "",
            "[",
            "]",
            "=",
            "[]\n=\n",
            "\\",
            "\"",
            "[a\nb",
            "x\n\\\n\\",
        ] {
            let _ = Cnf::parse(text);
        }
    }
}
