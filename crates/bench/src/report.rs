// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tables for people on stdout, JSON for machines.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::BenchError;
use crate::stats::Spread;

/// A table: the first column is text, the rest is aligned to the right.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as text, columns two spaces apart.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<usize> = (0..columns)
            .map(|column| width(column).unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => line.push_str(&format!("{cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// One column of a table: its head, and the cell of a row.
pub(crate) type Column<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// A table that is declared by its columns.
pub(crate) fn table<R>(rows: impl IntoIterator<Item = R>, columns: &[Column<'_, R>]) -> Table {
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let mut table = Table::new(&heads);
    for row in rows {
        table.row(columns.iter().map(|(_, cell)| cell(&row)));
    }
    table
}

/// The median with some decimals, or a dash.
pub(crate) fn median(spread: Option<Spread>, decimals: usize) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |spread| format!("{:.decimals$}", spread.median),
    )
}

/// What to say of two cores: nothing, unless they are the same one.
pub(crate) fn sharing(one: usize, other: usize) -> &'static str {
    if one == other {
        " (the same: figures are not comparable)"
    } else {
        ""
    }
}

/// Prints a report: as JSON where `json` is `-`, else as text and, where `json` names a file, as JSON there.
pub(crate) fn deliver(
    report: &impl Serialize,
    json: Option<&Path>,
    text: impl FnOnce() -> String,
) -> Result<(), BenchError> {
    if json != Some(Path::new("-")) {
        print(&text())?;
    }
    json.map_or(Ok(()), |path| write_json(report, path))
}

/// Prints to stdout. A reader that went away is no error.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(BenchError::System {
            action: "write to stdout",
            source: error,
        }),
        _ => Ok(()),
    }
}

/// Writes a report as JSON, to a file or (`-`) to stdout.
pub(crate) fn write_json(report: &impl Serialize, to: &Path) -> Result<(), BenchError> {
    let mut text = serde_json::to_string_pretty(report)
        .map_err(|error| BenchError::Setup(format!("cannot encode the report: {error}")))?;
    text.push('\n');
    if to == Path::new("-") {
        return print(&text);
    }
    fs::write(to, text).map_err(BenchError::file("write", to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["key", "rate"]);
        table.row(["rsa".to_owned(), "5".to_owned()]);
        table.row(["p-256".to_owned(), "1234".to_owned()]);
        assert_eq!(table.render(), "key    rate\nrsa       5\np-256  1234\n");
    }
}
