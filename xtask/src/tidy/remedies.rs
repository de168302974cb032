// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Modules that a text tells its reader to load: the table of advisories has each, with the day on which they were
//! read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The table: `row("MODULE", …)`; a `*` at the end stands for any rest.
const TABLE: &str = "crates/inspect/src/doctor/advisories.rs";

/// Commands that load a module.
const COMMANDS: &[&str] = &["modprobe ", "insmod "];

/// Files that load modules in machines of tests, or that have examples of what this rule finds.
const OTHERS: &[&str] = &[
    "tests/vm/",
    "xtask/src/tidy/remedies.rs",
    "crates/inspect/src/kernel/blocked.rs",
    "crates/inspect/tests/doctor/",
    "docs/adr/",
    "CHANGELOG.md",
];

/// Complaints about modules without a row.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let read = |path: &Path| {
        let bytes = fs::read(root.join(path));
        bytes.with_context(|| format!("reading {}", path.display()))
    };
    let table = String::from_utf8_lossy(&read(Path::new(TABLE))?).into_owned();
    let mut complaints = Vec::new();
    for path in files {
        let kind = path.extension().and_then(|extension| extension.to_str());
        let has_texts =
            matches!(kind, Some("rs" | "md" | "toml" | "sh" | "service" | "tsv" | "conf"));
        if !has_texts || OTHERS.iter().any(|other| path.starts_with(other.trim_end_matches('/'))) {
            continue;
        }
        let text = String::from_utf8_lossy(&read(path)?).into_owned();
        complaints.extend(unread(&table, &text).into_iter().map(|module| {
            format!("{}: loads {module}, which {TABLE} does not have", path.display())
        }));
    }
    Ok(complaints)
}

/// The modules that a text loads and the table does not have.
fn unread(table: &str, text: &str) -> Vec<String> {
    let rows: Vec<&str> =
        table.split("row(\"").skip(1).filter_map(|row| row.split('"').next()).collect();
    let is_read = |module: &str| {
        rows.iter().any(|row| match row.strip_suffix('*') {
            Some(start) => module.starts_with(start),
            None => *row == module,
        })
    };
    let mut found = Vec::new();
    for (at, command) in COMMANDS.iter().flat_map(|command| text.match_indices(command)) {
        let words = text[at + command.len()..].lines().next().unwrap_or_default();
        // The names, up to the first word that is none: an end of the sentence, a placeholder, a parameter.
        for word in words.split(' ').filter(|word| !word.starts_with('-')) {
            let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_name =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
            if end.is_empty() || !end.chars().all(is_name) {
                break;
            }
            if !is_read(end) {
                found.push(end.to_owned());
            }
            if end != word {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_without_a_row_is_found_in_any_text() {
        let table =
            "row(\"tun\", \"none\", \"2026-11-28\"), row(\"qat_*\", \"none\", \"2026-11-28\")";
        for (text, expected) in [
            ("modprobe tun; in a container", &[][..]),
            ("run `modprobe qat_4xxx`, then", &[]),
            ("run `modprobe {module}`", &[]),
            ("`modprobe.d`, modprobe(8)", &[]),
            ("modprobe esp4; without", &["esp4"]),
            ("modprobe -a tun esp4 af_key\nwords", &["esp4", "af_key"]),
            ("insmod foo.ko", &[]),
            ("insmod foo", &["foo"]),
        ] {
            assert_eq!(unread(table, text), expected, "{text}");
        }
    }
}
