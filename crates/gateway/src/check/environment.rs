// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How systemd writes variables: files that `EnvironmentFile=` names, and the words of `Environment=`
//! (systemd.exec(5), systemd.syntax(7)). Read as systemd reads them from version 254 on; before, a comment
//! that ends in a backslash went on in the next line.

/// What a character is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
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
struct Reader {
    at: At,
    name: String,
    value: String,
    /// So much of the value stays when blanks at its end go.
    solid: usize,
    found: Vec<(String, String)>,
}

/// The assignments in the text of a file, in their order. Names are whatever stands before `=`.
#[must_use]
pub fn parse(text: &str) -> Vec<(String, String)> {
    let mut reader = Reader::default();
    for character in text.chars() {
        reader.at = reader.take(character);
    }
    if !matches!(
        reader.at,
        At::LineStart | At::Name | At::Comment | At::CommentEscape
    ) {
        let _ = reader.end();
    }
    reader.found
}

impl Reader {
    /// Where the next character is.
    fn take(&mut self, character: char) -> At {
        match (self.at, character) {
            (At::LineStart, '#' | ';') => At::Comment,
            (At::LineStart, ' ' | '\t' | '\n' | '\r') => At::LineStart,
            (At::Name, '\n' | '\r') => {
                self.name.clear();
                At::LineStart
            }
            (At::Name, '=') => At::ValueStart,
            (At::LineStart | At::Name, _) => {
                self.name.push(character);
                At::Name
            }
            (At::ValueStart | At::Value, '\n' | '\r') => self.end(),
            (At::ValueStart | At::Value, '\\') => {
                self.solid = self.value.len();
                At::ValueEscape
            }
            (At::ValueStart, '\'') => At::Single,
            (At::ValueStart, '"') => At::Double,
            (At::ValueStart, ' ' | '\t') => At::ValueStart,
            (At::Value, ' ' | '\t') => {
                self.value.push(character);
                At::Value
            }
            (At::ValueEscape, '\n' | '\r') => At::Value,
            (At::ValueStart | At::Value | At::ValueEscape, _) => self.keep(character, At::Value),
            (At::Single, '\'') | (At::Double, '"') => At::ValueStart,
            (At::Double, '\\') => At::DoubleEscape,
            (At::DoubleEscape, '\n') => At::Double,
            (At::DoubleEscape, '"' | '\\' | '`' | '$') => self.keep(character, At::Double),
            (At::DoubleEscape, _) => {
                self.value.push('\\');
                self.keep(character, At::Double)
            }
            (At::Single | At::Double, _) => self.keep(character, self.at),
            (At::Comment | At::CommentEscape, '\n' | '\r') => At::LineStart,
            (At::Comment, '\\') => At::CommentEscape,
            (At::Comment | At::CommentEscape, _) => At::Comment,
        }
    }

    fn keep(&mut self, character: char, next: At) -> At {
        self.value.push(character);
        self.solid = self.value.len();
        next
    }

    fn end(&mut self) -> At {
        self.value.truncate(self.solid);
        self.solid = 0;
        let name = std::mem::take(&mut self.name);
        let name = name.trim_end_matches([' ', '\t']).to_owned();
        self.found.push((name, std::mem::take(&mut self.value)));
        At::LineStart
    }
}

/// The words of a line of a unit file: separated by blanks, in quotes or with backslashes.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let (mut quote, mut escaped) = (None, false);
    for character in line.chars() {
        match (character, quote) {
            _ if escaped => {
                escaped = false;
                let meant = match character {
                    's' => ' ',
                    't' => '\t',
                    'n' => '\n',
                    other => other,
                };
                word.get_or_insert_default().push(meant);
            }
            ('\\', _) => escaped = true,
            (' ' | '\t', None) => words.extend(word.take()),
            ('"' | '\'', None) => {
                quote = Some(character);
                let _ = word.get_or_insert_default();
            }
            (_, Some(open)) if character == open => quote = None,
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax_of_environment_files() {
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
    fn the_words_of_a_unit_file() {
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
