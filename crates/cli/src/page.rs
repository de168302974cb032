// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Pages of text: headings, facts, tables, remarks. Bold only on terminals.
//!
//! Control characters in text from foreign files are replaced, since a terminal might obey them.

use std::io;

use anyhow::Result;
use millrace_inspect::section::Section;

use crate::output::{self, Table};
use crate::terminal::{columns, prose_columns, styled, width, wrapped};

/// Left of everything below a heading, and as much on the right.
const MARGIN: &str = "  ";
/// Width of the names of facts; the longest is `architecture`.
const NAME_WIDTH: usize = 13;

/// A page under construction.
pub(crate) struct Page {
    text: String,
    styled: bool,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { text: String::new(), styled: styled(&io::stdout()) }
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

    /// Adds one fact. A terminal breaks its value; a file or a pipe gets one line.
    pub(crate) fn fact(&mut self, name: &str, value: &str) {
        let prefix = format!("{MARGIN}{name:<NAME_WIDTH$} ");
        self.text.push_str(&hanging(&prefix, &plain(value), columns()));
    }

    /// Adds a fact, if it is known.
    pub(crate) fn fact_if(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.fact(name, value);
        }
    }

    /// Adds a table, indented like the facts.
    pub(crate) fn table(&mut self, table: &Table) {
        let columns = columns().map(|columns| columns - MARGIN.len());
        for line in table.render(self.styled, columns).lines() {
            self.text.push_str(&format!("{MARGIN}{line}\n"));
        }
    }

    /// Adds a sentence, wrapped.
    pub(crate) fn remark(&mut self, text: &str) {
        self.hang(MARGIN, text);
    }

    /// Adds an item of a list, wrapped.
    pub(crate) fn item(&mut self, text: &str) {
        self.hang("  - ", text);
    }

    fn hang(&mut self, prefix: &str, text: &str) {
        let columns = prose_columns() - MARGIN.len();
        self.text.push_str(&hanging(prefix, &plain(text), Some(columns)));
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
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Facts without a margin, one per line or more: names and values.
pub(crate) fn facts(rows: &[(&str, String)]) -> String {
    let lines =
        rows.iter().map(|(name, value)| hanging(&format!("{name:<12} "), &plain(value), columns()));
    lines.collect()
}

/// A prefix and text, whose lines after the first are indented by the width of the prefix.
fn hanging(prefix: &str, text: &str, columns: Option<usize>) -> String {
    let indent = width(prefix);
    let lines = match columns {
        Some(columns) => wrapped(text, columns.saturating_sub(indent)),
        None => vec![text.to_owned()],
    };
    let margin = format!("\n{}", " ".repeat(indent));
    format!("{}\n", format!("{prefix}{}", lines.join(&margin)).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(plain("a\x1b[2Jb\nc"), "a?[2Jb?c");
    }

    #[test]
    fn long_values_are_indented_below_their_first_line() {
        let text = hanging("  has           ", "aes-ni, vaes, pclmul", Some(30));
        assert_eq!(text, "  has           aes-ni, vaes,\n                pclmul\n");
        assert_eq!(hanging("x ", "a b c", None), "x a b c\n");
    }
}
