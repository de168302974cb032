// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports: tables on stdout, JSON for programs.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::error::BenchError;
use crate::goals::{Goals, Reach};
use crate::machine::Machine;
use crate::stats::Spread;

/// A table: the first column is text, the rest is aligned to the right.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self { rows: Vec::new() };
        table.row(head);
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text, columns two spaces apart.
    pub(crate) fn render(&self) -> String {
        let mut widths = Vec::new();
        for row in &self.rows {
            widths.resize(row.len().max(widths.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let mut cells = row.iter().zip(&widths);
            let mut line = String::new();
            line.extend(cells.next().map(|(cell, width)| format!("{cell:<width$}")));
            line.extend(cells.map(|(cell, width)| format!("  {cell:>width$}")));
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
    let mut table = Table::new(columns.iter().map(|(head, _)| *head));
    for row in rows {
        table.row(columns.iter().map(|(_, cell)| cell(&row)));
    }
    table
}

/// The median with some decimals, or a dash.
pub(crate) fn median(spread: Option<Spread>, decimals: usize) -> String {
    dash(spread.map(|spread| format!("{:.decimals$}", spread.median)))
}

/// The median and its range with some decimals, or a dash.
pub(crate) fn range(spread: Option<Spread>, decimals: usize) -> String {
    dash(spread.map(|spread| spread.show(decimals)))
}

/// The text, or a dash.
pub(crate) fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// A remark about two cores; empty unless they are the same one.
pub(crate) fn sharing(one: usize, other: usize) -> &'static str {
    if one == other {
        " (the same: figures are not comparable)"
    } else {
        ""
    }
}

/// Options of every benchmark that compares with numbers to reach.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    /// Write the report with its raw rounds as JSON, to a file or - (instead of the tables)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Fail if a number to reach is not reached this far
    #[arg(long, value_enum, value_name = "HOW_FAR")]
    pub(crate) require: Option<Reach>,
}

/// A report: where and how the figures were measured, and the numbers to reach.
#[derive(Debug, Serialize)]
pub(crate) struct Report<P, F> {
    /// Raised when a field changes its meaning.
    schema: u32,
    benchmark: &'static str,
    pub(crate) machine: Machine,
    pub(crate) plan: P,
    #[serde(flatten)]
    pub(crate) figures: F,
    pub(crate) goals: Goals,
}

impl<P: Serialize, F: Serialize> Report<P, F> {
    /// A report on this machine, without goals.
    pub(crate) fn new(benchmark: &'static str, schema: u32, plan: P, figures: F) -> Self {
        Self {
            schema,
            benchmark,
            machine: Machine::here(),
            plan,
            figures,
            goals: Goals::default(),
        }
    }

    /// Prints `text` and writes the JSON, as the options say.
    pub(crate) fn deliver(&self, args: &ReportArgs, text: &str) -> Result<(), BenchError> {
        if args.json.as_deref() != Some(Path::new("-")) {
            print(text)?;
        }
        args.json
            .as_ref()
            .map_or(Ok(()), |path| write_json(self, path))
    }
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
        let mut table = Table::new(["key", "rate"]);
        table.row(["rsa", "5"]);
        table.row(["p-256", "1234"]);
        assert_eq!(table.render(), "key    rate\nrsa       5\np-256  1234\n");
    }
}
