// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Complete tables of contents: a page (`//!`) that lists most modules of its folder lists all of them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::names::crate_of;

/// Modules that a page has to name before it counts as a table of contents.
const MIN_NAMED: usize = 3;

/// Complaints about modules that the page of their folder leaves out.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for path in files.iter().filter(|path| crate_of(path).is_some()) {
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        let missing = unlisted(&text);
        if !missing.is_empty() {
            complaints.push(format!(
                "{}: the page lists modules, but not {}",
                path.display(),
                missing.join(", ")
            ));
        }
    }
    Ok(complaints)
}

/// Modules that the page of `text` does not name, if it names at least half of them. Modules with an attribute are for
/// tests, or for some builds only.
fn unlisted(text: &str) -> Vec<&str> {
    let page: String =
        text.lines().take_while(|line| !is_code(line)).flat_map(|line| [line, "\n"]).collect();
    let mut modules = Vec::new();
    let mut former = "";
    for line in text.lines() {
        let declared = ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod "]
            .iter()
            .find_map(|start| line.strip_prefix(start)?.strip_suffix(';'));
        modules.extend(declared.filter(|_| !former.starts_with("#[")));
        former = line;
    }
    let is_named = |name: &&str| {
        ["`NAME`", "`NAME.rs`", "`NAME/", "`NAME::", "::NAME`", "/NAME.rs`", "\n//! NAME "]
            .iter()
            .any(|form| page.contains(&form.replace("NAME", name)))
    };
    let (named, missing): (Vec<&str>, Vec<&str>) = modules.into_iter().partition(is_named);
    if named.len() < MIN_NAMED.max(missing.len()) { Vec::new() } else { missing }
}

fn is_code(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_contents_with_a_gap_is_refused() {
        let page = "//! - [`a`]: one\n//! - `b.rs`: two\n//! - `c`: three\n";
        let modules = "mod a;\npub mod b;\nmod c;\n#[cfg(test)]\nmod tests;\n";
        assert_eq!(unlisted(&format!("{page}{modules}")), [""; 0]);
        assert_eq!(unlisted(&format!("{page}{modules}mod d;\n")), ["d"]);
        assert_eq!(unlisted(&format!("//! `a` only\n{modules}")), [""; 0]);
    }
}
