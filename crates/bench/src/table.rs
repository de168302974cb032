// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tables of figures, declared by their columns.

use crate::stats::Spread;

/// A table: the first column is text, the rest is aligned to the right.
#[derive(Debug)]
pub(crate) struct ReportTable {
    rows: Vec<Vec<String>>,
}

impl ReportTable {
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
pub(crate) fn table<R>(
    rows: impl IntoIterator<Item = R>,
    columns: &[Column<'_, R>],
) -> ReportTable {
    let mut table = ReportTable::new(columns.iter().map(|(head, _)| *head));
    for row in rows {
        table.row(columns.iter().map(|(_, cell)| cell(&row)));
    }
    table
}

/// A table that is declared by its first columns and, behind them, by one column for each of `values`.
pub(crate) fn table_by<R, V>(
    rows: impl IntoIterator<Item = R>,
    columns: &[Column<'_, R>],
    values: &[V],
    head: impl Fn(&V) -> String,
    cell: impl Fn(&R, &V) -> String,
) -> ReportTable {
    let heads = columns.iter().map(|(head, _)| (*head).to_owned());
    let mut table = ReportTable::new(heads.chain(values.iter().map(head)));
    for row in rows {
        let first = columns.iter().map(|(_, cell)| cell(&row));
        table.row(first.chain(values.iter().map(|value| cell(&row, value))));
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

pub(crate) fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = ReportTable::new(["key", "rate"]);
        table.row(["rsa", "5"]);
        table.row(["p-256", "1234"]);
        assert_eq!(table.render(), "key    rate\nrsa       5\np-256  1234\n");
    }
}
