// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The terminal: whether it wants colours, its width, and text that is broken to fit.

use std::env;
use std::io::{self, IsTerminal};

/// Width of prose where standard output is not a terminal.
const PAGE: usize = 80;
/// Rows of a terminal that does not know its own.
const LINES: usize = 24;
/// Narrowest width for which text is broken: below, every word would stand alone.
const NARROWEST: usize = 40;

/// Whether to colour and embolden text on this stream: it is a terminal that can (`TERM` is not `dumb`), and the
/// user has not asked for plain text (`NO_COLOR`, <https://no-color.org>).
pub(crate) fn styled(stream: &impl IsTerminal) -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    moves_cursor(stream) && !refused
}

/// Whether a stream is a terminal that takes control sequences.
pub(crate) fn moves_cursor(stream: &impl IsTerminal) -> bool {
    let dumb = env::var_os("TERM").is_some_and(|name| name == "dumb");
    stream.is_terminal() && !dumb
}

/// Rows of the terminal on standard output.
pub(crate) fn rows() -> usize {
    let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row);
    if rows == 0 { LINES } else { usize::from(rows) }
}

/// Columns of the terminal on standard output; none for a file or a pipe, whose lines have no bound.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    let columns = usize::from(size.ws_col);
    (columns > 0).then_some(columns.max(NARROWEST))
}

/// Columns for prose: those of the terminal, or of a page of 80.
pub(crate) fn prose_columns() -> usize {
    columns().unwrap_or(PAGE)
}

/// Breaks text at spaces into lines of at most `columns`, unless a word is longer.
pub(crate) fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
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

/// A line may end after these.
const BREAKS: [char; 4] = [' ', '/', ',', '-'];

/// Columns of the longest part of a text that [`broken`] keeps whole where it fits.
pub(crate) fn longest_piece(text: &str) -> usize {
    let pieces = text.split_inclusive(BREAKS);
    pieces.map(|piece| width(piece.trim_end())).max().unwrap_or(0)
}

/// Breaks text into lines of at most `columns`: after spaces, `/`, `,` and `-`, and within words that are longer
/// than a line.
pub(crate) fn broken(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for piece in text.split_inclusive(BREAKS) {
        if !line.is_empty() && width(&line) + width(piece.trim_end()) > columns {
            lines.push(std::mem::take(&mut line));
        }
        for character in piece.chars() {
            if width(&line) == columns && character != ' ' {
                lines.push(std::mem::take(&mut line));
            }
            line.push(character);
        }
    }
    lines.push(line);
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// Columns that text takes. Characters that take two are not counted as such: names of devices have none.
pub(crate) fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_wrapped_without_losing_a_word() {
        let text = "word ".repeat(40);
        let lines = wrapped(text.trim(), 76);
        assert!(lines.iter().all(|line| line.len() <= 76));
        assert_eq!(lines.join(" "), text.trim());
    }

    #[test]
    fn words_longer_than_a_line_are_broken() {
        let path = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3";
        let expected = ["/usr/lib/", "x86_64-linux-", "gnu/", "libcrypto.so.", "3"];
        assert_eq!(broken(path, 13), expected);
        assert_eq!(broken("simd 365 µs", 8), ["simd 365", "µs"]);
        assert_eq!(broken("", 8), [""]);
        assert_eq!(broken("abc", 0), ["a", "b", "c"]);
    }
}
