// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages for people: headings, facts, tables, remarks. Bold only on terminals.
//!
//! What comes from foreign files is shown without control characters, which a terminal might obey.

use std::io::{self, IsTerminal};

use anyhow::Result;
use millrace_inspect::report::Section;

use crate::output::{self, Table};

/// Width of what is inside the margin of two columns, on a terminal of 80.
const COLUMNS: usize = 76;
/// Width of the names of facts: the longest is `architecture`.
const NAME_WIDTH: usize = 13;

/// A page under construction.
pub(crate) struct Page {
    text: String,
    styled: bool,
}

impl Page {
    /// An empty page for standard output.
    pub(crate) fn new() -> Self {
        Self {
            text: String::new(),
            styled: io::stdout().is_terminal(),
        }
    }

    /// Begins a part of the page.
    pub(crate) fn heading(&mut self, name: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        if self.styled {
            self.text.push_str(&format!("\x1b[1m{name}\x1b[0m\n"));
        } else {
            self.text.push_str(&format!("{name}\n"));
        }
    }

    /// One fact per line.
    pub(crate) fn fact(&mut self, name: &str, value: &str) {
        let value = plain(value);
        self.text
            .push_str(&format!("  {name:<NAME_WIDTH$} {value}\n"));
    }

    /// A fact that is not known for every machine.
    pub(crate) fn fact_if(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.fact(name, value);
        }
    }

    /// A table, indented like the facts.
    pub(crate) fn table(&mut self, table: &Table) {
        for line in table.render(self.styled).lines() {
            self.text.push_str(&format!("  {line}\n"));
        }
    }

    /// A sentence, on lines of its own.
    pub(crate) fn remark(&mut self, text: &str) {
        for line in wrapped(&plain(text), COLUMNS) {
            self.text.push_str(&format!("  {line}\n"));
        }
    }

    /// What of a section could not be read, and why.
    pub(crate) fn unread<T>(&mut self, section: &Section<T>) {
        for unread in &section.unread {
            self.text.push_str(&format!(
                "  not known: {} ({})\n",
                plain(&unread.what),
                plain(&unread.why.to_string())
            ));
        }
    }

    /// Writes it.
    pub(crate) fn print(&self) -> Result<()> {
        output::print(&self.text)
    }
}

/// Text without what a terminal might obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Lines of at most so many columns, unless a word is longer.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_obey_nothing_of_a_file() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }

    #[test]
    fn long_sentences_are_wrapped() {
        let text = "word ".repeat(40);
        assert!(wrapped(text.trim(), 76).iter().all(|line| line.len() <= 76));
    }
}
