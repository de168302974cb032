// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Words in quotes and with backslashes, for the configuration languages that read one line at a time.

/// The rules of one language.
pub(crate) struct Quoting {
    /// Characters that end a word outside quotes.
    pub(crate) separators: &'static [char],
    /// Characters that begin and end a quoted part.
    pub(crate) quotes: &'static [char],
    /// The quote in which a backslash stands for itself.
    pub(crate) verbatim: Option<char>,
    /// The character that begins a comment outside quotes.
    pub(crate) comment: Option<char>,
    /// The meaning of a character after a backslash.
    pub(crate) escape: fn(char) -> char,
}

/// The words of a line, without quotes and backslashes. A quote that is not closed ends with the line.
pub(crate) fn words(line: &str, quoting: &Quoting) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut open = None;
    let mut escaped = false;
    for character in line.chars() {
        match open {
            _ if escaped => {
                escaped = false;
                word.get_or_insert_default().push((quoting.escape)(character));
            }
            _ if character == '\\' && (open.is_none() || open != quoting.verbatim) => {
                escaped = true
            }
            Some(quote) if character == quote => open = None,
            None if quoting.comment == Some(character) => break,
            None if quoting.separators.contains(&character) => words.extend(word.take()),
            None if quoting.quotes.contains(&character) => {
                open = Some(character);
                let _ = word.get_or_insert_default();
            }
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// The lines of a text, each prepared by `line` (none: the line is left out), where a backslash at the end
/// continues a line in the next one after `joint`.
pub(crate) fn logical_lines<'a>(
    text: &'a str,
    joint: &str,
    line: impl Fn(&'a str) -> Option<&'a str>,
) -> Vec<String> {
    let mut lines = Vec::new();
    let mut begun = String::new();
    for line in text.lines().filter_map(line) {
        if let Some(continued) = line.strip_suffix('\\') {
            begun.push_str(continued);
            begun.push_str(joint);
            continue;
        }
        begun.push_str(line);
        lines.push(std::mem::take(&mut begun));
    }
    lines.push(begun);
    lines
}
