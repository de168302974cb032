// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The syntax of HAProxy's configuration: one statement a line.

use crate::lexer::{self, Quoting};

/// The words of a line: separated by blanks, in quotes or with backslashes, up to `#`.
#[must_use]
pub fn words(line: &str) -> Vec<String> {
    const QUOTING: Quoting = Quoting {
        separators: &[' ', '\t'],
        quotes: &['"', '\''],
        verbatim: Some('\''),
        comment: Some('#'),
        escape: |character| character,
    };
    lexer::words(line, &QUOTING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_quoting_rules_of_haproxy() {
        assert_eq!(
            words("  bind :443 ssl\tcrt \"/a b\"c '#x' d\\ e '\\' # rest"),
            ["bind", ":443", "ssl", "crt", "/a bc", "#x", "d e", "\\"]
        );
        assert_eq!(words("''"), [""]);
        for odd in ["", "#", "\\", "\"", "'", "\"\\"] {
            let _ = words(odd);
        }
    }
}
