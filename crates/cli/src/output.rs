// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Data on standard output: tables, JSON, and text. Messages go to standard error, elsewhere.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde::Serialize;
use time::OffsetDateTime;

/// Writes text to standard output.
///
/// # Errors
/// Standard output is closed or full; a closed pipe counts as success at the very end.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("writing the output")
}

/// Writes a value as indented JSON with a final line break.
///
/// # Errors
/// As [`print()`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).context("composing the JSON")?;
    text.push('\n');
    print(&text)
}

/// The UTC date of a time in seconds since 1970: `2026-11-21`. Empty after the year 9999.
pub(crate) fn date(seconds: u64) -> String {
    let moment = i64::try_from(seconds)
        .ok()
        .map(OffsetDateTime::from_unix_timestamp);
    match moment {
        Some(Ok(moment)) => moment.date().to_string(),
        _ => "-".to_owned(),
    }
}

/// A table: a header and rows of text. Each column is as wide as its longest cell.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<&'static str>,
    /// Whether each column has numbers, which are aligned to the right.
    numeric: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns. A name that begins with `>` makes a column of numbers.
    pub(crate) fn new(columns: &[&'static str]) -> Self {
        Self {
            header: columns
                .iter()
                .map(|name| name.trim_start_matches('>'))
                .collect(),
            numeric: columns.iter().map(|name| name.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// The table as text, its header bold if `styled`.
    pub(crate) fn render(&self, styled: bool) -> String {
        let header: Vec<String> = self.header.iter().map(|name| name.to_uppercase()).collect();
        let width = |column: usize| {
            let cells = self
                .rows
                .iter()
                .chain([&header])
                .filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        let mut text = String::new();
        for (index, row) in [&header].into_iter().chain(&self.rows).enumerate() {
            let mut line = String::new();
            for ((cell, width), numeric) in row.iter().zip(&widths).zip(&self.numeric) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                if *numeric {
                    line.push_str(&format!("{cell:>width$}"));
                } else {
                    line.push_str(&format!("{cell:<width$}"));
                }
            }
            let line = line.trim_end();
            if index == 0 && styled {
                text.push_str(&format!("\x1b[1m{line}\x1b[0m\n"));
            } else {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    /// Writes the table to standard output; colours only on a terminal.
    ///
    /// # Errors
    /// As [`print()`].
    pub(crate) fn print(&self) -> Result<()> {
        print(&self.render(io::stdout().is_terminal()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, date};

    #[test]
    fn moments_become_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_795_291_199), "2026-11-21");
        assert_eq!(date(1_795_219_200), "2026-11-21");
        assert_eq!(date(4_102_444_800), "2100-01-01");
        assert_eq!(date(u64::MAX), "-");
    }

    #[test]
    fn columns_line_up_and_numbers_end_together() {
        let mut table = Table::new(&["name", ">jobs"]);
        table.row(vec!["www".to_owned(), "7".to_owned()]);
        table.row(vec!["mail-relay".to_owned(), "12345".to_owned()]);
        assert_eq!(
            table.render(false),
            "NAME         JOBS\nwww             7\nmail-relay  12345\n"
        );
    }
}
