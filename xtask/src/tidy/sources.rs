// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rules about source files: two header lines, `unsafe` only in its rooms, nothing unfinished, and
//! no file so long that an idea hides in it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::lexer::code_only;

const COPYRIGHT: &str = "Copyright The Millrace Authors";
const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0 OR MIT";

/// Lines above which a file must say why it is not split (style guide, rule 7).
const MAX_LINES: usize = 1_000;
/// Lines from which a file is worth a look: reported, not refused.
const LOOK_LINES: usize = 800;
/// A file above [`MAX_LINES`] carries a comment that begins so and gives the reason.
const LONG_BECAUSE: &str = "Long because:";

/// Crates that have rooms for `unsafe`; every other one forbids it at its root.
const UNSAFE_CRATES: &[&str] = &[
    "crates/backends/",
    "crates/bench/",
    "crates/preload/",
    "crates/provider/",
];

/// Tests that cannot do without `unsafe`, each with its reason.
const UNSAFE_TESTS: &[(&str, &str)] = &[(
    "crates/client/tests/process.rs",
    "forks, to see that a child never uses its parent's connection",
)];

/// Complaints about sources.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for path in files {
        let Some(kind) = Kind::of(path) else { continue };
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        let name = path.to_string_lossy();
        complaints.extend(header(&name, &text));
        complaints.extend(unfinished(&name, &text));
        complaints.extend(size(&name, &text));
        if kind == Kind::Rust {
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

/// `unsafe` lives in `crates/backends/src/**/sys.rs`, in `crates/bench/src/libcrypto/sys.rs`, and in
/// `src/ffi/**` of the provider and the preload library; every crate without such a room forbids it.
fn unsafe_rooms(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let code = code_only(text);
    let crate_has_rooms = UNSAFE_CRATES.iter().any(|folder| name.starts_with(folder));
    if !in_room(name) {
        for (number, line) in code.lines().enumerate() {
            if words(line).any(|word| word == "unsafe") {
                complaints.push(format!(
                    "{name}:{}: unsafe outside its rooms (sys.rs of a backend, ffi/ of a cdylib)",
                    number + 1
                ));
            }
        }
    }
    let crate_root = name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs");
    if crate_root && !crate_has_rooms && !code.contains("#![forbid(unsafe_code)]") {
        complaints.push(format!("{name}: add #![forbid(unsafe_code)]"));
    }
    complaints
}

fn in_room(name: &str) -> bool {
    name.starts_with("crates/provider/src/ffi/")
        || name.starts_with("crates/preload/src/ffi/")
        || name == "crates/bench/src/libcrypto/sys.rs"
        || (name.starts_with("crates/backends/src/") && name.ends_with("/sys.rs"))
        || UNSAFE_TESTS.iter().any(|(test, _)| *test == name)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
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
    fn unsafe_is_seen_only_as_code_and_only_outside_its_rooms() {
        let found = |name, text| unsafe_rooms(name, text).len();
        assert_eq!(found("crates/engine/src/key.rs", "unsafe { f() }"), 1);
        assert_eq!(
            found(
                "crates/engine/src/key.rs",
                "// unsafe\nlet unsafe_ish = \"unsafe\";"
            ),
            0
        );
        assert_eq!(
            found("crates/provider/src/ffi/params.rs", "unsafe { f() }"),
            0
        );
        assert_eq!(found("crates/provider/src/keys.rs", "unsafe { f() }"), 1);
        assert_eq!(
            found("crates/backends/src/software/sys.rs", "unsafe { f() }"),
            0
        );
        assert_eq!(found("crates/wire/src/lib.rs", "//! page"), 1);
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
