// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rules about source files: two header lines, listed rooms for `unsafe`, no mark of unfinished work, a
//! reason for every file above a thousand lines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const COPYRIGHT: &str = "Copyright The Millrace Authors";
const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0 OR MIT";

/// Lines above which a file must say why it is not split (style guide, rule 7).
const MAX_LINES: usize = 1_000;
/// Lines from which a file is worth a look: reported, not refused.
const LOOK_LINES: usize = 800;
/// A file above [`MAX_LINES`] carries a comment that begins so and gives the reason.
const LONG_BECAUSE: &str = "Long because:";

/// Files that may open a room for `unsafe`, each with the room. The compiler holds the rule: the workspace
/// denies `unsafe_code`, and only an `expect` attribute on a module lifts that.
const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("crates/backends/src/cuda/mod.rs", "sys.rs"),
    ("crates/backends/src/simd/mod.rs", "sys.rs"),
    ("crates/backends/src/software/mod.rs", "sys/"),
    ("crates/bench/src/libcrypto/mod.rs", "sys.rs"),
    ("crates/cli/src/placement/mod.rs", "sys.rs"),
    (
        "crates/client/tests/process.rs",
        "forks, to check that a child never uses its parent's connection",
    ),
    ("crates/preload/src/lib.rs", "ffi/"),
    ("crates/provider/src/lib.rs", "ffi/"),
];

/// Complaints about sources.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for path in files {
        let manifest = path.ends_with("Cargo.toml");
        let kind = Kind::of(path);
        if kind.is_none() && !manifest {
            continue;
        }
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        let name = path.to_string_lossy();
        if manifest {
            complaints.extend(workspace_lints(&name, &text));
            continue;
        }
        complaints.extend(header(&name, &text));
        complaints.extend(unfinished(&name, &text));
        complaints.extend(size(&name, &text));
        if kind == Some(Kind::Rust) {
            complaints.extend(unsafe_rooms(&name, &text));
        }
    }
    Ok(complaints)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rust,
    Script,
}

impl Kind {
    /// What kind of source this is; data and prose are none.
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let script = ["Makefile", "run"].contains(&name) || path.starts_with("scripts");
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => Some(Self::Rust),
            Some("sh" | "py" | "c" | "h") => Some(Self::Script),
            None if script => Some(Self::Script),
            _ => None,
        }
    }
}

/// Copyright and licence, in this order, at the top (a script's `#!` line may come first).
fn header(name: &str, text: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| line.starts_with("#!/"));
    let mut next = |wanted: &str| lines.next().is_some_and(|line| line.contains(wanted));
    let good = next(COPYRIGHT) && next(LICENCE);
    (!good).then(|| format!("{name}: header: begin with the lines '{COPYRIGHT}' and '{LICENCE}'"))
}

/// Marks of unfinished business. This file has to spell them apart to pass itself.
fn unfinished(name: &str, text: &str) -> Vec<String> {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("HA", "CK:"),
    ];
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
            complaints.push(format!(
                "{name}:{}: {mark}: do it, or leave it out",
                number + 1
            ));
        }
    }
    complaints
}

fn size(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    if lines > LOOK_LINES {
        eprintln!("tidy: note: {name} has {lines} lines: look hard whether it is one idea");
    }
    let excused = text.contains(LONG_BECAUSE);
    (lines > MAX_LINES && !excused).then(|| {
        format!(
            "{name}: {lines} lines (more than {MAX_LINES}): split it, or say '// {LONG_BECAUSE} …'"
        )
    })
}

/// `unsafe` has its listed rooms; every manifest takes the lints of the workspace, which deny it elsewhere.
fn unsafe_rooms(name: &str, text: &str) -> Option<String> {
    // Spelled apart, so that this file is no room.
    let opens = [
        concat!("expect(unsafe", "_code"),
        concat!("allow(unsafe", "_code"),
    ];
    // Line breaks of rustfmt do not count.
    let code: String = text.split_whitespace().collect();
    let listed = UNSAFE_ROOMS.iter().any(|(room, _)| *room == name);
    (opens.iter().any(|attribute| code.contains(attribute)) && !listed)
        .then(|| format!("{name}: opens a room for unsafe: list it in xtask, with an ADR"))
}

/// The lints of the workspace hold in this package.
fn workspace_lints(name: &str, text: &str) -> Option<String> {
    let good = text.contains("[workspace]") || text.contains("[lints]\nworkspace = true");
    (!good).then(|| format!("{name}: add [lints] workspace = true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_may_follow_an_interpreter_line() {
        let good = format!("#!/bin/sh\n# {COPYRIGHT}\n# {LICENCE}\n");
        assert_eq!(header("x.sh", &good), None);
        assert!(header("x.rs", "//! page\n").is_some());
    }

    #[test]
    fn rooms_for_unsafe_are_listed() {
        let opens = concat!(
            "#[expect(\n    unsafe",
            "_code,\n    reason = \"\"\n)]\nmod sys;"
        );
        assert!(unsafe_rooms("crates/engine/src/lib.rs", opens).is_some());
        assert_eq!(unsafe_rooms("crates/preload/src/lib.rs", opens), None);
        assert!(workspace_lints("crates/engine/Cargo.toml", "[package]").is_some());
    }

    #[test]
    fn long_files_need_a_reason() {
        let long = "x\n".repeat(MAX_LINES + 1);
        assert!(size("a.rs", &long).is_some());
        assert_eq!(
            size("a.rs", &format!("// {LONG_BECAUSE} it is a table\n{long}")),
            None
        );
    }
}
