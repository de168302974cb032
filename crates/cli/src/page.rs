// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages of text: headings, facts, tables, remarks. Bold only on terminals.
//!
//! Control characters in text from foreign files are replaced, since a terminal might obey them.

use std::io::{self, IsTerminal};

use anyhow::Result;
use millrace_inspect::report::Section;

use crate::output::{self, Table};

/// Width of the text right of the margin of two columns, on a terminal of 80.
const COLUMNS: usize = 76;
/// Width of the names of facts; the longest is `architecture`.
const NAME_WIDTH: usize = 13;

/// A page under construction.
pub(crate) struct Page {
    text: String,
    styled: bool,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self {
            text: String::new(),
            styled: io::stdout().is_terminal(),
        }
    }

    /// Adds a heading.
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

    /// Adds a line with one fact.
    pub(crate) fn fact(&mut self, name: &str, value: &str) {
        let value = plain(value);
        self.text
            .push_str(&format!("  {name:<NAME_WIDTH$} {value}\n"));
    }

    /// Adds a fact, if it is known.
    pub(crate) fn fact_if(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.fact(name, value);
        }
    }

    /// Adds a table, indented like the facts.
    pub(crate) fn table(&mut self, table: &Table) {
        for line in table.render(self.styled).lines() {
            self.text.push_str(&format!("  {line}\n"));
        }
    }

    /// Adds a sentence, wrapped.
    pub(crate) fn remark(&mut self, text: &str) {
        for line in wrapped(&plain(text), COLUMNS) {
            self.text.push_str(&format!("  {line}\n"));
        }
    }

    /// Adds the facts of a section that could not be read, with the reason.
    pub(crate) fn unread<T>(&mut self, section: &Section<T>) {
        for unread in &section.unread {
            self.text.push_str(&format!(
                "  not known: {} ({})\n",
                plain(&unread.what),
                plain(&unread.why.to_string())
            ));
        }
    }

    /// Writes the page to standard output.
    pub(crate) fn print(&self) -> Result<()> {
        output::print(&self.text)
    }
}

/// Text without control characters.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// Breaks text into lines of at most `columns`, unless a word is longer.
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
    fn control_characters_are_replaced() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }

    #[test]
    fn long_sentences_are_wrapped() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim(), 76);
        assert!(lines.iter().all(|line| line.len() <= 76));
        assert_eq!(lines.join(" "), text.trim(), "no word is lost");
    }
}
