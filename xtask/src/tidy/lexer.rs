// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Just enough of Rust's lexical grammar to tell code from comments and literals, so that a rule
//! about the word `unsafe` does not trip over prose. Not a parser.

/// The source with every comment and literal blanked out; line breaks stay where they are.
pub(crate) fn code_only(source: &str) -> String {
    let mut rest = source;
    let mut code = String::with_capacity(source.len());
    while let Some(first) = rest.chars().next() {
        let skipped = comment_len(rest).or_else(|| literal_len(rest, &code));
        let taken = skipped.unwrap_or_else(|| first.len_utf8());
        let (token, after) = rest.split_at(taken);
        if skipped.is_some() {
            code.extend(token.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(token);
        }
        rest = after;
    }
    code
}

/// Length of the comment that `text` begins with, if it does.
fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    // Block comments nest.
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let here = &text[at..];
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(text.len())
}

/// Length of the string or character literal that `text` begins with, if it does. `before` is the
/// code so far: a quote after an identifier character belongs to a raw or byte prefix already taken.
fn literal_len(text: &str, before: &str) -> Option<usize> {
    let in_word = before
        .chars()
        .next_back()
        .is_some_and(|c| c.is_alphanumeric() || c == '_');
    if !in_word {
        for prefix in ["br", "cr", "r"] {
            if let Some(length) = text.strip_prefix(prefix).and_then(raw_len) {
                return Some(prefix.len() + length);
            }
        }
    }
    if text.starts_with('"') {
        return Some(quoted_len(text, '"'));
    }
    // A quote is a character literal if it closes after one (escaped) character; otherwise it
    // opens a lifetime.
    let mut characters = text.strip_prefix('\'')?.chars();
    match characters.next()? {
        '\\' => Some(quoted_len(text, '\'')),
        one if characters.next() == Some('\'') => Some(2 + one.len_utf8()),
        _ => None,
    }
}

/// Length of a raw string from its hashes on (`#"…"#`), if that is what `text` begins with.
fn raw_len(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(hashes + 1 + length)
}

/// Length of a literal that begins and ends with `quote` and may hold escapes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + quote.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::code_only;

    #[test]
    fn comments_and_literals_vanish() {
        for text in [
            "// unsafe",
            "/* a /* unsafe */ unsafe */",
            r#""unsafe \" unsafe""#,
            r###"r#"un"safe unsafe"#"###,
            "b\"unsafe\"",
            "c\"unsafe\"",
        ] {
            assert!(!code_only(text).contains("unsafe"), "{text}");
        }
    }

    #[test]
    fn code_around_them_stays() {
        for text in [
            "'a' unsafe",
            r"'\'' unsafe",
            "fn f<'a>(x: &'a u8) unsafe",
            "\"\" unsafe",
            "/**/ unsafe",
            "r\"x\" unsafe",
            "b'\"' unsafe '\"'",
            "var\"x\" unsafe",
        ] {
            assert!(code_only(text).contains("unsafe"), "{text}");
        }
    }

    #[test]
    fn lines_keep_their_numbers() {
        assert_eq!(code_only("\"a\nb\"\nunsafe").lines().nth(2), Some("unsafe"));
    }
}
