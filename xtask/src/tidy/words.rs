// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Plain technical English: phrases that make a reader decode a sentence are
//! refused in comments, texts and documents. The list is a symptom check, not the rule; the rule is:
//! subject first, active voice, the field's term, the quantity with its unit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A phrase in lower case, without the space at `|`, and what to write in its place. Spelled with `|`, so
/// that this file passes its own check.
#[rustfmt::skip]
const PHRASES: &[(&str, &str)] = &[
    ("no|body",     "name the subject: no client, no test, no backend"),
    ("some|body",   "name the subject: another thread, the caller, a user"),
    ("who|ever",    "name the subject: the thread that, any client that"),
    ("mean|while",  "say during what"),
    ("so m|any",    "name the quantity and its unit"),
    ("is t|old",    "say who passes what: receives, reads, gets"),
    ("are t|old",   "say who passes what: receive, read, get"),
    ("as far| as",  "say the limit: up to, where, if"),
    ("what o|f",    "name the part: which of, the share of"),
    ("whatever| it", "name the value"),
    ("in its st|ead", "instead"),
    ("hears o|f",   "say what arrives: receives, notices, reads"),
    ("hear o|f",    "say what arrives: receive, notice, read"),
    ("tells o|f",   "say who reports what"),
    ("o|f theirs",  "their, or name them"),
];

/// First words of a documentation comment that hide its subject.
const OPENINGS: &[&str] = &["What ", "It "];

/// The user name `nobody` of configurations: allowed where a line says that it is a user.
const USER: &[&str] = &["user", "uid", "nogroup", "\"no|body\"", "`no|body`", "65534", "group"];

/// Folders of foreign texts: fixtures, vectors, corpora.
const FOREIGN: &[&str] =
    &["vectors", "fuzz/corpus", "crates/inspect/fixtures", "crates/inspect/tests/fixtures"];

/// Complaints about phrases.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for path in files {
        let kind = path.extension().and_then(|extension| extension.to_str());
        let ours = !FOREIGN.iter().any(|folder| path.starts_with(folder));
        if !ours || !matches!(kind, Some("rs" | "md" | "toml" | "sh" | "tsv" | "txt")) {
            continue;
        }
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        complaints.extend(phrases(&path.to_string_lossy(), &text));
        if kind == Some("rs") {
            complaints.extend(openings(&path.to_string_lossy(), &text));
        }
    }
    Ok(complaints)
}

fn phrases(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // A phrase may be broken by a line end: then the next check of a reader finds it, not this one.
        let line = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            let phrase = phrase.replace('|', "");
            if contains_words(&line, &phrase)
                && !(phrase == PHRASES[0].0.replace('|', "") && is_user(&line))
            {
                complaints.push(format!("{name}:{}: \"{phrase}\": {instead}", number + 1));
            }
        }
    }
    complaints
}

/// Documentation comments that begin with one of [`OPENINGS`].
fn openings(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut former = None;
    for (number, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("/// ");
        let opening = OPENINGS
            .iter()
            .find(|opening| comment.is_some_and(|comment| comment.starts_with(**opening)));
        if let (Some(opening), None) = (opening, former) {
            complaints.push(format!(
                "{name}:{}: a comment begins with \"{opening}\": begin with a verb or a noun",
                number + 1
            ));
        }
        former = comment;
    }
    complaints
}

fn is_user(line: &str) -> bool {
    USER.iter().any(|mark| line.contains(&mark.replace('|', "")))
}

/// Whether `phrase` occurs in `line` between characters that belong to no word. An underscore ends a word, so
/// that names of tests count.
fn contains_words(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(start, found)| {
        let before = line[..start].chars().next_back();
        let after = line[start + found.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_begins_with_its_subject() {
        assert_eq!(openings("x.rs", "    /// What it is.\n").len(), 1);
        assert_eq!(openings("x.rs", "a\n/// It runs.\nb").len(), 1);
        assert_eq!(openings("x.rs", "/// The thread runs.\n/// It ends.\n").len(), 0);
        assert_eq!(openings("x.rs", "// What remains.\n/// Items.\n").len(), 0);
    }

    #[test]
    fn phrases_are_found_as_words_in_any_case() {
        let found = |text: &str| phrases("x.rs", &text.replace('|', "")).len();
        assert_eq!(found("// No|body waits."), 1);
        assert_eq!(found("fn it_is_in_no|body_s_way() {}"), 1);
        assert_eq!(found("// the user no|body of nginx"), 0);
        assert_eq!(found("// what o|ften happens"), 0);
        assert_eq!(found("// this much, m|eanwhile"), 1);
    }
}
