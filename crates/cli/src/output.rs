// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Data on standard output, or in a file: tables, JSON, and text. Messages go to standard error, elsewhere.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use anyhow::{Context, Result};
use millrace_hostfs::replace::{replace_file, replace_with};
use serde::Serialize;
use time::OffsetDateTime;

use crate::exit::exit_with;
use crate::terminal::{broken, columns, longest_piece, styled, width};

/// Writes text to standard output.
///
/// # Errors
/// Standard output is full. A closed reader (`millrace key list | head -1`) ends the command with success.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(exit_with(0)),
        written => written.context("writing the output"),
    }
}

/// Replaces a file as a whole: a program that reads it sees the former or the new one.
///
/// # Errors
/// The folder cannot be written to; the former file stays.
pub(crate) fn replace(file: &Path, text: &str) -> Result<()> {
    replace_file(file, text.as_bytes(), None).with_context(|| format!("writing {}", file.display()))
}

/// Makes or replaces a file as a whole; a file that is there keeps its mode and owner, and a link to it stays. A device
/// or a pipe, and a file whose folder or owner is not this user's, is written in place.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn put(path: &Path, text: &str) -> Result<()> {
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let before = fs::metadata(&target).ok();
    let replaced = match &before {
        Some(before) if !before.is_file() => Err(io::ErrorKind::PermissionDenied.into()),
        before => {
            let mode = before.as_ref().map(|before| before.mode() & 0o7777);
            replace_with(&target, mode, |file| {
                if let Some(before) = before {
                    fchown(&*file, Some(before.uid()), Some(before.gid()))?;
                }
                file.write_all(text.as_bytes())
            })
        }
    };
    let written = match replaced {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && before.is_some() => {
            fs::write(&target, text)
        }
        replaced => replaced,
    };
    written.with_context(|| format!("writing {}", path.display()))
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

/// The UTC date of a time in seconds since 1970: `2026-11-21`; `-` after the year 9999.
pub(crate) fn date(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().map(OffsetDateTime::from_unix_timestamp);
    match moment {
        Some(Ok(moment)) => moment.date().to_string(),
        _ => "-".to_owned(),
    }
}

/// A table: a header and rows of text. Each column is as wide as its longest cell, or narrower where the
/// terminal is; cells then take several lines.
#[derive(Debug)]
pub(crate) struct Table {
    header: Vec<String>,
    /// Whether each column has numbers, which are aligned to the right and never broken.
    numeric: Vec<bool>,
    rows: Vec<Vec<String>>,
}

/// One column: its name, and the cell of a row. A name that begins with `>` makes a column of numbers.
pub(crate) type TableColumn<'a, R> = (&'a str, &'a dyn Fn(&R) -> String);

/// A value, or the word for its absence.
pub(crate) fn or(value: Option<impl ToString>, absent: &str) -> String {
    value.map_or_else(|| absent.to_owned(), |value| value.to_string())
}

/// The items with commas between them, or the word for none.
pub(crate) fn joined(items: impl IntoIterator<Item = impl ToString>, none: &str) -> String {
    let items = items.into_iter().map(|item| item.to_string());
    items.reduce(|all, item| format!("{all}, {item}")).unwrap_or_else(|| none.to_owned())
}

/// Columns between two cells.
const GAP: usize = 2;
/// A column of text keeps its longest word whole up to this width.
const WHOLE_WORD: usize = 24;
/// Least width of a column of text that does not fit, if the words of its header are not wider.
const NARROWEST: usize = 12;

impl Table {
    /// A table that is declared by its columns: their names, and the cells of a row.
    pub(crate) fn of<R>(rows: impl IntoIterator<Item = R>, columns: &[TableColumn<'_, R>]) -> Self {
        let names = columns.iter().map(|(name, _)| name);
        let cells = |row: R| columns.iter().map(|(_, cell)| cell(&row)).collect();
        Self {
            header: names.clone().map(|name| name.trim_start_matches('>').to_uppercase()).collect(),
            numeric: names.map(|name| name.starts_with('>')).collect(),
            rows: rows.into_iter().map(cells).collect(),
        }
    }

    /// Whether the table has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, its header bold if `styled`, its lines at most `columns` long if the cells allow it.
    pub(crate) fn render(&self, styled: bool, columns: Option<usize>) -> String {
        let widths = self.widths(columns);
        let mut text = String::new();
        for (index, row) in [&self.header].into_iter().chain(&self.rows).enumerate() {
            let cells: Vec<Vec<String>> =
                row.iter().zip(&widths).map(|(cell, width)| broken(cell, *width)).collect();
            for number in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
                let mut line = String::new();
                for ((cell, width), numeric) in cells.iter().zip(&widths).zip(&self.numeric) {
                    let piece = cell.get(number).map_or("", String::as_str);
                    let gap = if line.is_empty() { 0 } else { GAP };
                    line.push_str(&" ".repeat(gap));
                    line.push_str(&if *numeric {
                        format!("{piece:>width$}")
                    } else {
                        format!("{piece:<width$}")
                    });
                }
                let line = line.trim_end();
                text.push_str(&if index == 0 && styled {
                    format!("\x1b[1m{line}\x1b[0m\n")
                } else {
                    format!("{line}\n")
                });
            }
        }
        text
    }

    /// The widths of the columns: the widest shrinks until a line fits, or no column may shrink.
    fn widths(&self, columns: Option<usize>) -> Vec<usize> {
        let longest = |column: usize, of_cell: &dyn Fn(&str) -> usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| of_cell(cell)).max().unwrap_or(0)
        };
        let all = 0..self.header.len();
        let natural = |column: usize| width(&self.header[column]).max(longest(column, &width));
        let mut widths: Vec<usize> = all.clone().map(natural).collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        for most_of_a_word in [WHOLE_WORD, NARROWEST] {
            let floor = |column: usize| {
                let header = self.header[column].split(' ').map(width).max().unwrap_or(0);
                let cells = if self.numeric[column] {
                    longest(column, &width)
                } else {
                    longest(column, &longest_piece).min(most_of_a_word)
                };
                header.max(cells)
            };
            let floors: Vec<usize> = all.clone().map(floor).collect();
            while columns.is_some_and(|most| widths.iter().sum::<usize>() + gaps > most) {
                let shrinkable = all.clone().filter(|column| widths[*column] > floors[*column]);
                match shrinkable.max_by_key(|column| widths[*column]) {
                    Some(widest) => widths[widest] -= 1,
                    None => break,
                }
            }
        }
        widths
    }

    /// Writes the table to standard output; colours only on a terminal.
    ///
    /// # Errors
    /// As [`print()`].
    pub(crate) fn print(&self) -> Result<()> {
        print(&self.render(styled(&io::stdout()), columns()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, TableColumn, date, joined, or};

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
    fn absent_values_and_empty_lists_have_their_word() {
        assert_eq!([or(Some(7), "-"), or(None::<u8>, "-")], ["7", "-"]);
        assert_eq!([joined(["a", "b"], "none"), joined([""; 0], "none")], ["a, b", "none"]);
    }

    #[test]
    fn columns_line_up_and_numbers_end_together() {
        let rows = [("www", 7), ("mail-relay", 12345)];
        let columns: [TableColumn<'_, (&str, u32)>; 2] =
            [("name", &|(name, _)| (*name).to_owned()), (">jobs", &|(_, jobs)| jobs.to_string())];
        let table = Table::of(rows, &columns);
        assert_eq!(
            table.render(false, None),
            "NAME         JOBS\nwww             7\nmail-relay  12345\n"
        );
    }

    #[test]
    fn table_wider_than_the_terminal_breaks_text_but_not_numbers() {
        let path = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3";
        let columns: [TableColumn<'_, ()>; 3] = [
            ("library", &|()| "OpenSSL".to_owned()),
            (">per second", &|()| "12 MB/s".to_owned()),
            ("file", &|()| path.to_owned()),
        ];
        let table = Table::of([()], &columns);
        let expected = "\
LIBRARY        PER  FILE
            SECOND
OpenSSL    12 MB/s  /usr/lib/
                    x86_64-linux-
                    gnu/
                    libcrypto.so.3
";
        assert_eq!(table.render(false, Some(34)), expected);
        // Where no word fits, numbers still do.
        let narrowest = table.render(false, Some(10));
        assert!(narrowest.contains("12 MB/s") && !narrowest.contains("libcrypto.so.3"));
        let wide = table.render(false, Some(200));
        assert_eq!(wide, table.render(false, None));
        assert!(wide.contains(path));
    }
}
