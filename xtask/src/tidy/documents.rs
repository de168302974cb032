// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pages that a newcomer and an operator need exist, and speak of the project alone.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Pages that must exist and not be empty.
const REQUIRED: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "docs/protocol.md",
];

/// Complaints about documents.
///
/// # Errors
/// A page that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for page in REQUIRED {
        let missing =
            fs::read_to_string(root.join(page)).map_or(true, |text| text.trim().is_empty());
        if missing {
            complaints.push(format!("{page}: missing: write it"));
        }
    }
    for list in ["docs/guide/README.md", "docs/adr/README.md"] {
        complaints.extend(unlisted(root, files, Path::new(list))?);
    }
    complaints.extend(targets_without_row(root, files)?);
    for path in files.iter().filter(|path| path.extension().is_some_and(|ext| ext == "md")) {
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        complaints.extend(bare_references(path, &text));
        complaints.extend(dead_links(root, path, &text));
        complaints.extend(dead_paths(root, path, &text));
        complaints.extend(long_lines(path, &text));
        if is_walked(path) {
            complaints.extend(unmarked_fences(path, &text));
        }
    }
    Ok(complaints)
}

/// Every page of the list's folder has a line in it.
fn unlisted(root: &Path, files: &[PathBuf], list: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(list))
        .with_context(|| format!("reading {}", list.display()))?;
    let pages = files.iter().filter(|path| path.parent() == list.parent() && *path != list);
    let names = pages.filter_map(|path| path.file_name()?.to_str());
    Ok(names
        .filter(|name| !text.contains(&format!("\n- [{name}]({name}): ")))
        .map(|name| format!("{name}: add a line to {}", list.display()))
        .collect())
}

/// Fuzz targets that the table of `fuzz/README.md` does not name.
fn targets_without_row(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let page = "fuzz/README.md";
    let table = fs::read_to_string(root.join(page)).with_context(|| format!("reading {page}"))?;
    let targets = files.iter().filter(|path| path.starts_with("fuzz/fuzz_targets"));
    let names = targets.filter_map(|path| path.file_stem()?.to_str());
    let missing = names.filter(|name| !table.contains(&format!("`{name}`")));
    Ok(missing.map(|name| format!("{page}: no row for the target {name}")).collect())
}

/// `#12` without a repository in front means nothing to a reader outside; `haproxy#3453` does.
fn bare_references(path: &Path, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let bare = line.split_whitespace().any(|word| {
            let word = word.trim_matches(|c: char| "()[],.;:".contains(c));
            word.strip_prefix('#').is_some_and(|digits| {
                !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
            })
        });
        if bare {
            complaints.push(format!(
                "{}:{}: a bare number after # refers to nothing a reader can open: say what it is",
                path.display(),
                number + 1
            ));
        }
    }
    complaints
}

/// Columns of prose, as a terminal and a side-by-side diff show them whole.
const MAX_COLUMNS: usize = 120;

/// Pages whose lines are not held: kept in one line per entry, or generated.
const UNWRAPPED: &[&str] =
    &["CHANGELOG.md", "docs/nightly.md", "docs/reference", "docs/benchmarks"];

/// Prose has at most [`MAX_COLUMNS`] columns; tables, code and links may be longer.
fn long_lines(path: &Path, text: &str) -> Vec<String> {
    if UNWRAPPED.iter().any(|page| path.starts_with(page)) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        let is_prose =
            !fenced && !line.starts_with('|') && !line.contains("](") && !line.contains("://");
        if is_prose && line.chars().count() > MAX_COLUMNS {
            complaints.push(format!(
                "{}:{}: more than {MAX_COLUMNS} columns: wrap it",
                path.display(),
                number + 1
            ));
        }
    }
    complaints
}

/// Relative links must lead somewhere.
fn dead_links(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let mut complaints = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split(['#', ' ']).next().unwrap_or_default();
            let local = !target.is_empty() && !target.contains(':') && !target.contains('`');
            if local && !root.join(folder).join(target).exists() {
                complaints.push(format!(
                    "{}:{}: link to {target}, which does not exist",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    complaints
}

/// Folders of the repository that documents name.
const FOLDERS: &[&str] =
    &["crates/", "deploy/", "docs/", "fuzz/", "scripts/", "tests/", "vectors/", "web/", "xtask/"];

/// Files and folders of the repository that a document names in backticks exist. `{a,b}` stands for several; names
/// with `*`, or with words in capitals that stand for others, are not looked up. CHANGELOG.md names former ones.
fn dead_paths(root: &Path, path: &Path, text: &str) -> Vec<String> {
    if path == Path::new("CHANGELOG.md") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2) {
            let name = name.trim_end_matches(['/', '.', ',']);
            let is_path = FOLDERS.iter().any(|folder| name.starts_with(folder))
                && !name.contains(['*', ' ', '$', '…', ':'])
                && !name.contains("NAME");
            let missing = alternatives(name).into_iter().find(|name| !root.join(name).exists());
            if let Some(missing) = missing.filter(|_| is_path) {
                complaints.push(format!(
                    "{}:{}: {missing} does not exist",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    complaints
}

/// `a/{b,c}.rs`: `a/b.rs` and `a/c.rs`.
fn alternatives(name: &str) -> Vec<String> {
    let parts = name.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (list, end))) = parts else {
        return vec![name.to_owned()];
    };
    list.split(',').map(|part| format!("{start}{part}{end}")).collect()
}

/// Whether `make test-install` walks through the page.
fn is_walked(path: &Path) -> bool {
    path == Path::new("README.md") || path.starts_with("docs/guide")
}

/// Each fence with command lines is run by `make test-install` under a name, or says why not.
fn unmarked_fences(path: &Path, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut mark = "";
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        let is_named = |prefix| {
            mark.strip_prefix(prefix)
                .and_then(|rest: &str| rest.strip_suffix(" -->"))
                .is_some_and(|rest| !rest.trim().is_empty())
        };
        if let Some(language) = line.strip_prefix("```") {
            let is_marked = is_named("<!-- test: ") || is_named("<!-- no-test: ");
            if !fenced && language == "sh" && !is_marked {
                complaints.push(format!(
                    "{}:{}: put `<!-- test: NAME -->` above the fence and use it in tests/install/parts, or \
                     `<!-- no-test: REASON -->`",
                    path.display(),
                    number + 1
                ));
            }
            fenced = !fenced;
        }
        mark = line;
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_with_commands_and_without_a_mark_is_refused() {
        let complaints = |text| unmarked_fences(Path::new("README.md"), text).len();
        assert_eq!(complaints("```sh\nmake\n```"), 1);
        assert_eq!(complaints("<!-- test: -->\n```sh\nmake\n```"), 1);
        assert_eq!(complaints("<!-- test: build -->\n\n```sh\nmake\n```"), 1);
        assert_eq!(complaints("<!-- test: build -->\n```sh\nmake\n```"), 0);
        assert_eq!(complaints("<!-- no-test: takes hours -->\n```sh\nmake\n```"), 0);
        assert_eq!(complaints("```toml\na = 1\n```\n```text\n```"), 0);
    }

    #[test]
    fn only_bare_numbers_are_refused() {
        let complaints = |text| bare_references(Path::new("x.md"), text).len();
        assert_eq!(complaints("see haproxy#3453 and `rust#1`"), 0);
        assert_eq!(complaints("# 1. Heading"), 0);
        assert_eq!(complaints("fixes (#12)."), 1);
    }

    #[test]
    fn only_long_lines_of_prose_are_refused() {
        let complaints = |path, text: &str| long_lines(Path::new(path), text).len();
        let long = "word ".repeat(25);
        assert_eq!(complaints("README.md", &long), 1);
        assert_eq!(complaints("README.md", &format!("| {long}")), 0);
        assert_eq!(complaints("README.md", &format!("```\n{long}\n```")), 0);
        assert_eq!(complaints("docs/reference/cli.md", &long), 0);
    }

    #[test]
    fn paths_that_do_not_exist_are_refused() {
        let root = crate::root().unwrap();
        let complaints = |text| dead_paths(&root, Path::new("x.md"), text).len();
        assert_eq!(complaints("`xtask/src/main.rs`, `crates/{cli,engine}/src`, `docs/`"), 0);
        assert_eq!(complaints("`xtask/src/none.rs` and `crates/{cli,none}/src`"), 2);
        assert_eq!(complaints("`crates/NAME/src`, `make check`, `tests/*.rs`"), 0);
    }

    #[test]
    fn links_inside_code_are_not_links() {
        let complaints = |text| dead_links(Path::new("/nowhere"), Path::new("x.md"), text).len();
        assert_eq!(complaints("[a](missing.md) [b](https://example.org)"), 1);
        assert_eq!(complaints("```\n[a](missing.md)\n```"), 0);
    }
}
