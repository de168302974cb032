// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Variables in the syntax of systemd: files named by `EnvironmentFile=`, and the words of `Environment=`
//! (systemd.exec(5), systemd.syntax(7)). The rules are those of systemd 254 and later; in earlier versions a
//! comment that ends in a backslash continued in the next line.

use crate::lexer::{self, Quoting};

/// The part of an assignment to which a character belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LexState {
    #[default]
    LineStart,
    Name,
    ValueStart,
    Value,
    ValueEscape,
    Single,
    Double,
    DoubleEscape,
    Comment,
    CommentEscape,
}

#[derive(Debug, Default)]
struct EnvironmentLexer {
    state: LexState,
    name: String,
    value: String,
    /// Length of the value without the blanks at its end.
    trimmed_length: usize,
    found: Vec<(String, String)>,
}

/// The assignments in the text of a file, in their order. A name is everything before `=`, valid or not.
#[must_use]
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut reader = EnvironmentLexer::default();
    for character in text.chars() {
        reader.state = reader.take(character);
    }
    if !matches!(
        reader.state,
        LexState::LineStart | LexState::Name | LexState::Comment | LexState::CommentEscape
    ) {
        let _ = reader.end();
    }
    reader.found
}

impl EnvironmentLexer {
    /// Processes a character and returns the state for the next one.
    fn take(&mut self, character: char) -> LexState {
        match (self.state, character) {
            (LexState::LineStart, '#' | ';') => LexState::Comment,
            (LexState::LineStart, ' ' | '\t' | '\n' | '\r') => LexState::LineStart,
            (LexState::Name, '\n' | '\r') => {
                self.name.clear();
                LexState::LineStart
            }
            (LexState::Name, '=') => LexState::ValueStart,
            (LexState::LineStart | LexState::Name, _) => {
                self.name.push(character);
                LexState::Name
            }
            (LexState::ValueStart | LexState::Value, '\n' | '\r') => self.end(),
            (LexState::ValueStart | LexState::Value, '\\') => {
                self.trimmed_length = self.value.len();
                LexState::ValueEscape
            }
            (LexState::ValueStart, '\'') => LexState::Single,
            (LexState::ValueStart, '"') => LexState::Double,
            (LexState::ValueStart, ' ' | '\t') => LexState::ValueStart,
            (LexState::Value, ' ' | '\t') => {
                self.value.push(character);
                LexState::Value
            }
            (LexState::ValueEscape, '\n' | '\r') => LexState::Value,
            (LexState::ValueStart | LexState::Value | LexState::ValueEscape, _) => {
                self.keep(character, LexState::Value)
            }
            (LexState::Single, '\'') | (LexState::Double, '"') => LexState::ValueStart,
            (LexState::Double, '\\') => LexState::DoubleEscape,
            (LexState::DoubleEscape, '\n') => LexState::Double,
            (LexState::DoubleEscape, '"' | '\\' | '`' | '$') => {
                self.keep(character, LexState::Double)
            }
            (LexState::DoubleEscape, _) => {
                self.value.push('\\');
                self.keep(character, LexState::Double)
            }
            (LexState::Single | LexState::Double, _) => self.keep(character, self.state),
            (LexState::Comment | LexState::CommentEscape, '\n' | '\r') => LexState::LineStart,
            (LexState::Comment, '\\') => LexState::CommentEscape,
            (LexState::Comment | LexState::CommentEscape, _) => LexState::Comment,
        }
    }

    fn keep(&mut self, character: char, next: LexState) -> LexState {
        self.value.push(character);
        self.trimmed_length = self.value.len();
        next
    }

    fn end(&mut self) -> LexState {
        self.value.truncate(self.trimmed_length);
        self.trimmed_length = 0;
        let name = std::mem::take(&mut self.name).trim_end_matches([' ', '\t']).to_owned();
        self.found.push((name, std::mem::take(&mut self.value)));
        LexState::LineStart
    }
}

/// The words of a line of a unit file: separated by blanks, in quotes or with backslashes.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    const QUOTING: Quoting = Quoting {
        separators: &[' ', '\t'],
        quotes: &['"', '\''],
        verbatim: None,
        comment: None,
        escape: |character| match character {
            's' => ' ',
            't' => '\t',
            'n' => '\n',
            other => other,
        },
    };
    lexer::words(line, &QUOTING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_file_values_follow_systemd() {
        for (text, value) in [
            ("A=1", "1"),
            ("  A = 1 2 \t\r\n", "1 2"),
            ("A=\n", ""),
            ("A=b\\ \\\\c\\\nd", "b \\cd"),
            ("A=b'c' \"d\"", "b'c' \"d\""),
            ("A= 'b\\c\n d' ", "b\\c\n d"),
            ("A=\"b\\\"\\$\\x\\\nc # d\"", "b\"$\\xc # d"),
            ("A=\"b\" 'c' d", "bcd"),
            ("A=b # c", "b # c"),
            ("#A=0\n;A=0\n# A=0\\\nA=1", "1"),
            ("A\nA=1", "1"),
            ("A=\"1\nB=2", "1\nB=2"),
        ] {
            let expected = ("A".to_owned(), value.to_owned());
            assert_eq!(parse(text), [expected], "{text}");
        }
        let two = parse("A=1\r\nexport B=2\n=3\n");
        let names: Vec<&str> = two.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["A", "export B"]);
        for none in ["", "A", "=", "# A=1", "#\\", "\n\n"] {
            assert_eq!(parse(none), [], "{none}");
        }
        for odd in ["A=\\", "A='", "A=\"\\", "A=\"\\x"] {
            assert_eq!(parse(odd).len(), 1, "{odd}");
        }
    }

    #[test]
    fn unit_file_words_follow_systemd() {
        assert_eq!(
            words("A=b#c \"D=e f\"\t'G=h\\'i' J=k\\sl"),
            ["A=b#c", "D=e f", "G=h'i", "J=k l"]
        );
        assert_eq!(words(" \"\" "), [""]);
        for odd in ["", "\\", "\"", "'\\"] {
            let _ = words(odd);
        }
    }
}
