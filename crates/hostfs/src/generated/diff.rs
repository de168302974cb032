// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The lines that differ between two texts.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

/// Time limit of the search for the shortest difference; after it a longer one is shown. Files of others may
/// have a megabyte.
const SEARCH_LIMIT: Duration = Duration::from_millis(200);

/// `- ` with each line that is removed and `+ ` with each that is added, in the order of the file.
pub(super) fn lines(old: &str, new: &str) -> Vec<String> {
    let diff = TextDiff::configure().timeout(SEARCH_LIMIT).diff_lines(old, new);
    let changes = diff.iter_all_changes().filter_map(|change| {
        let sign = match change.tag() {
            ChangeTag::Equal => return None,
            ChangeTag::Delete => '-',
            ChangeTag::Insert => '+',
        };
        Some(format!("{sign} {}", change.value().trim_end_matches(['\r', '\n'])))
    });
    changes.collect()
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn only_differing_lines_are_shown() {
        assert_eq!(lines("a\nb\nc\n", "a\nb\nc\n"), Vec::<String>::new());
        assert_eq!(lines("a\nb\nc\n", "a\nx\nc\n"), ["- b", "+ x"]);
        assert_eq!(lines("", "a\n"), ["+ a"]);
        assert_eq!(lines("a\nb\n", ""), ["- a", "- b"]);
        assert_eq!(lines("a\nc\n", "a\nb\nc\nd\n"), ["+ b", "+ d"]);
    }
}
