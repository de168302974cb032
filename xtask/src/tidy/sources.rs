// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Rules about source files: two header lines, listed rooms for `unsafe`, no mark of unfinished work, a
//! reason for every file above a thousand lines.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const COPYRIGHT: &str = "Copyright The Millrace Authors";
const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0 OR MIT";

/// Lines above which a file must say why it is not split.
const MAX_LINES: usize = 1_000;
/// Lines from which a file is worth a look: reported, not refused.
const LOOK_LINES: usize = 800;
/// Characters of a line of comment: what the width of the code leaves room for, and two windows side by side show.
const COMMENT_WIDTH: usize = 120;
/// A file above [`MAX_LINES`] carries a comment that begins so and gives the reason.
const LONG_BECAUSE: &str = "Long because:";

/// Files that may open a room for `unsafe`, each with the room. The compiler holds the rule: the workspace
/// denies `unsafe_code`, and only an `expect` attribute on a module lifts that.
const UNSAFE_ROOMS: &[(&str, &str)] = &[
    ("crates/backends/src/cuda/mod.rs", "sys.rs"),
    ("crates/backends/src/kernel/mod.rs", "sys.rs"),
    ("crates/backends/src/qat/mod.rs", "sys.rs"),
    ("crates/backends/src/simd/mod.rs", "sys.rs"),
    ("crates/backends/src/software/mod.rs", "sys/"),
    ("crates/bench/src/libcrypto/mod.rs", "sys.rs"),
    ("crates/cli/src/placement/mod.rs", "sys.rs"),
    ("crates/cli/src/server_place/mod.rs", "sys.rs"),
    ("crates/virtio/src/primitives/mod.rs", "sys/"),
    (
        "crates/client/tests/process.rs",
        "forks, to check that a child never uses its parent's connection",
    ),
    ("crates/deflate/src/isal/mod.rs", "sys.rs"),
    ("crates/deflate/src/libdeflate/mod.rs", "sys.rs"),
    ("crates/deflate/src/qat/mod.rs", "sys.rs"),
    ("crates/kernel-crypto/src/lib.rs", "sys.rs"),
    ("crates/preload/src/lib.rs", "ffi/"),
    ("crates/provider/src/lib.rs", "ffi/"),
    ("crates/provider/src/local/mod.rs", "sys.rs"),
    ("crates/qat/src/lib.rs", "sys.rs"),
    ("crates/zlib/src/lib.rs", "ffi/"),
    ("crates/zlib/tests/calls/main.rs", "calls the exported C functions as a server does"),
];

/// The page whose code map names the rooms for readers.
const MAP: &str = "ARCHITECTURE.md";

/// Complaints about the fourth column of the code map: each room of a crate has its pattern there (`*` for any
/// path), each pattern a room, and a crate without rooms says "forbidden".
fn rooms_in_map(page: &str, rooms: &[(&str, &str)]) -> Vec<String> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let folder = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        folder.starts_with("crates/").then_some((folder, cells.nth(2)?))
    });
    let mut complaints = Vec::new();
    for (folder, cell) in rows {
        let source = format!("{folder}/src/");
        let rooms = rooms.iter().filter_map(|(file, room)| {
            let (module, _) = file.strip_prefix(&source)?.rsplit_once('/').unwrap_or_default();
            Some(format!("{module}/{room}").trim_start_matches('/').to_owned())
        });
        let rooms: Vec<String> = rooms.collect();
        let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        let fits = |pattern: &str, room: &str| match pattern.strip_prefix('*') {
            Some(end) => room.ends_with(end),
            None => room == pattern,
        };
        let unnamed = rooms.iter().filter(|room| !named.iter().any(|name| fits(name, room)));
        complaints.extend(
            unnamed.map(|room| format!("{MAP}: {folder}: name the room `{room}` for unsafe code")),
        );
        let empty = named.iter().filter(|name| !rooms.iter().any(|room| fits(name, room)));
        complaints
            .extend(empty.map(|name| format!("{MAP}: {folder}: no unsafe code is in `{name}`")));
        if rooms.is_empty() && cell != "forbidden" && named.is_empty() {
            complaints.push(format!(
                "{MAP}: {folder}: unsafe code is forbidden; the last column says '{cell}'"
            ));
        }
    }
    complaints
}

/// Complaints about sources.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let page = fs::read_to_string(root.join(MAP)).with_context(|| format!("reading {MAP}"))?;
    let mut complaints = rooms_in_map(&page, UNSAFE_ROOMS);
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
            complaints.extend(wide_comments(&name, &text));
            complaints.extend(test_names(&name, &text));
            complaints.extend(silent_skips(&name, &text));
            complaints.extend(import_groups(&name, &text));
            complaints.extend(bounds_without_reason(&name, &text));
            complaints.extend(module_form(root, path));
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
    /// Kind of the source; data and prose have none.
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
    let marks =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("HA", "CK:")];
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(mark) = marks.iter().find(|mark| line.contains(**mark)) {
            complaints.push(format!("{name}:{}: {mark}: do it, or leave it out", number + 1));
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

/// rustfmt leaves comments as they are. A row of a table cannot be wrapped.
fn wide_comments(name: &str, text: &str) -> Vec<String> {
    let is_wide = |line: &str| {
        let Some(comment) = line.trim_start().strip_prefix("//") else { return false };
        let is_row = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
        line.chars().count() > COMMENT_WIDTH && !is_row
    };
    let wide = text.lines().enumerate().filter(|(_, line)| is_wide(line));
    wide.map(|(number, _)| {
        format!("{name}:{}: wrap the comment at {COMMENT_WIDTH} characters", number + 1)
    })
    .collect()
}

/// The name of a test begins with its subject, so that names sort and can be searched by it.
fn test_names(name: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut is_test = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, function)) = line.split_once("fn ") {
            let article =
                ["a_", "an_", "the_"].iter().find(|article| function.starts_with(**article));
            if let Some(article) = article.filter(|_| is_test) {
                complaints.push(format!(
                    "{name}:{}: begin the name of the test with its subject, without {article}",
                    number + 1
                ));
            }
            is_test = false;
        }
    }
    complaints
}

/// Only the testkit records a skipped test; a line of output in a test that passes is lost.
fn silent_skips(name: &str, text: &str) -> Option<String> {
    let mark = concat!("\"SKIP", "PED");
    (text.contains(mark) && name != "crates/testkit/src/run/skip.rs")
        .then(|| format!("{name}: use skip!() or skip::record() of the testkit"))
}

/// A bound says what it protects and why it has this value: a comment stands above it, or above the block of
/// constants that it belongs to.
fn bounds_without_reason(name: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_constant = |line: &str| {
        line.starts_with("const ") || line.starts_with("pub") && line.contains(" const ")
    };
    let is_bare = |number: &usize| {
        let above = lines[..*number].iter().rev().find(|line| !is_constant(line));
        let is_commented =
            above.is_some_and(|line| line.starts_with("//") || line.starts_with("#["));
        is_constant(lines[*number])
            && lines[*number].contains(concat!("const MA", "X_"))
            && !is_commented
    };
    let bare = (0..lines.len()).filter(is_bare);
    bare.map(|number| {
        format!(
            "{name}:{}: say above the bound what it protects and why it has this value",
            number + 1
        )
    })
    .collect()
}

/// Imports come in three groups: std, external crates (the workspace's others, too), this crate.
fn import_groups(name: &str, text: &str) -> Option<String> {
    let mut imports = text.lines().filter(|line| line.starts_with("use "));
    let is_own = |line: &&str| {
        let own = ["use crate::", "use super::", "use self::"];
        own.iter().any(|start| line.starts_with(start))
    };
    imports.by_ref().find(is_own)?;
    let late = imports.find(|line| line.starts_with("use millrace_"))?;
    Some(format!("{name}: {late}: put it above the imports of this crate"))
}

/// A module with a folder is `mod.rs` in it. A test with a folder of data is none.
fn module_form(root: &Path, path: &Path) -> Option<String> {
    let folder = path.with_extension("");
    let is_mixed = folder.starts_with("crates")
        && !path.parent().is_some_and(|parent| parent.ends_with("tests"))
        && root.join(&folder).is_dir();
    is_mixed.then(|| format!("{}: move it to {}/mod.rs", path.display(), folder.display()))
}

/// `unsafe` has its listed rooms; every manifest takes the lints of the workspace, which deny it elsewhere.
fn unsafe_rooms(name: &str, text: &str) -> Option<String> {
    // Spelled apart, so that this file is no room.
    let opens = [concat!("expect(unsafe", "_code"), concat!("allow(unsafe", "_code")];
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
    fn code_map_names_each_room_for_unsafe_code_and_no_other() {
        let rooms = [("crates/a/src/lib.rs", "ffi/"), ("crates/b/src/x/mod.rs", "sys.rs")];
        let row = |folder: &str, cell: &str| format!("| `crates/{folder}` | what | – | {cell} |\n");
        let good = row("a", "`ffi/`") + &row("b", "`*/sys.rs`") + &row("c", "forbidden");
        assert!(rooms_in_map(&good, &rooms).is_empty());
        for (folder, cell) in
            [("a", "forbidden"), ("a", "`ffi/`, `sys/`"), ("c", "`sys.rs`"), ("c", "–")]
        {
            let complaints = rooms_in_map(&row(folder, cell), &rooms);
            assert_eq!(complaints.len(), 1, "{folder} {cell}: {complaints:?}");
        }
    }

    #[test]
    fn headers_may_follow_an_interpreter_line() {
        let good = format!("#!/bin/sh\n# {COPYRIGHT}\n# {LICENCE}\n");
        assert_eq!(header("x.sh", &good), None);
        assert!(header("x.rs", "//! page\n").is_some());
    }

    #[test]
    fn rooms_for_unsafe_are_listed() {
        let opens = concat!("#[expect(\n    unsafe", "_code,\n    reason = \"\"\n)]\nmod sys;");
        assert!(unsafe_rooms("crates/engine/src/lib.rs", opens).is_some());
        assert_eq!(unsafe_rooms("crates/preload/src/lib.rs", opens), None);
        assert!(workspace_lints("crates/engine/Cargo.toml", "[package]").is_some());
    }

    #[test]
    fn tests_are_named_by_their_subject_and_skip_on_the_record() {
        let named =
            |name: &str| test_names("x.rs", &format!("#[test]\n#[ignore]\nfn {name}() {{}}"));
        assert_eq!(named("the_key_is_refused").len(), 1);
        assert!(named("theft_is_refused").is_empty());
        assert!(test_names("x.rs", "fn a_helper() {}").is_empty());
        let silent = concat!("eprintln!(\"SKIP", "PED: no GPU\");");
        assert!(silent_skips("x.rs", silent).is_some());
    }

    #[test]
    fn comments_are_wrapped_except_in_tables() {
        let line = |start: &str, width: usize| {
            start.to_owned() + &"é".repeat(width - start.chars().count())
        };
        let found = |text: &str| wide_comments("x.rs", text).len();
        assert_eq!(found(&line("    /// ", COMMENT_WIDTH)), 0);
        assert_eq!(found(&line("    /// ", COMMENT_WIDTH + 1)), 1);
        assert_eq!(found(&line("// ", COMMENT_WIDTH + 1)), 1);
        assert_eq!(found(&line("//! | ", COMMENT_WIDTH + 1)), 0);
        assert_eq!(found(&line("let x = 1; ", COMMENT_WIDTH + 1)), 0);
    }

    #[test]
    fn bounds_without_a_comment_are_refused() {
        let found = |text: &str| bounds_without_reason("x.rs", text).len();
        let bound = concat!("pub(crate) const MA", "X_KEYS: usize = 4;");
        assert_eq!(found(bound), 1);
        assert_eq!(found(&format!("use x;\n\n{bound}")), 1);
        assert_eq!(found(&format!("/// Each takes 1 KiB.\n{bound}")), 0);
        assert_eq!(found(&format!("// Small.\nconst A: u8 = 1;\n{bound}")), 0);
        assert_eq!(found(&format!("/// Other.\nconst A: u8 = 1;\n\n{bound}")), 1);
    }

    #[test]
    fn imports_of_the_workspace_stand_above_those_of_the_crate() {
        let own = "use std::fs;\n\nuse crate::x;\n";
        assert_eq!(import_groups("x.rs", own), None);
        assert!(import_groups("x.rs", &format!("{own}use millrace_wire::y;\n")).is_some());
    }

    #[test]
    fn long_files_need_a_reason() {
        let long = "x\n".repeat(MAX_LINES + 1);
        assert!(size("a.rs", &long).is_some());
        assert_eq!(size("a.rs", &format!("// {LONG_BECAUSE} it is a table\n{long}")), None);
    }
}
