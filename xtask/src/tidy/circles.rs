// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! No circles of modules: where module `a` uses an item of `b` beside it, `b` uses none of `a`, also not by way of
//! others. A crate, and each folder in it, can then be read from the bottom. A folder counts with all that is in it;
//! uses between a folder's own file and its parts are not examined, since Rust makes a parent and its child one unit of
//! privacy.
//!
//! Paths are read line by line, without a parser of Rust: `use` declarations, and paths that begin with `crate::` or
//! `super::`. Code of tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::names::crate_of;

/// Circles that stay, each with its crate, its modules and the reason.
#[rustfmt::skip]
const ACCEPTED: &[(&str, &[&str], &str)] = &[
];

/// Modules of one folder that each module of it uses, with the first place of each use.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Complaints about circles.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut crates: BTreeMap<&str, Vec<Source<'_>>> = BTreeMap::new();
    for path in files {
        if let Some(folder) = crate_of(path) {
            let text = fs::read_to_string(root.join(path))
                .with_context(|| format!("reading {}", path.display()))?;
            crates.entry(folder).or_default().push(Source::parse(path, &text));
        }
    }
    let mut complaints = Vec::new();
    for (folder, files) in crates {
        let found = circles(&files);
        let accepted = || ACCEPTED.iter().filter(|(of, ..)| *of == folder);
        for circle in &found {
            if !accepted().any(|(_, modules, _)| circle.modules.iter().eq(modules.iter())) {
                complaints.push(format!(
                    "crates/{folder}: the modules {} use each other ({}): move what is used to a module below both",
                    circle.modules.join(", "),
                    circle.places.join("; ")
                ));
            }
        }
        for (_, modules, _) in accepted() {
            if !found.iter().any(|circle| circle.modules.iter().eq(modules.iter())) {
                complaints.push(format!(
                    "xtask/src/tidy/circles.rs: {folder} has no such circle: {}: drop it",
                    modules.join(", ")
                ));
            }
        }
    }
    Ok(complaints)
}

/// A file of a crate.
struct Source<'a> {
    path: &'a Path,
    module: Vec<String>,
    /// Read once: every folder above the file looks at them.
    paths: Vec<FoundPath>,
}

impl<'a> Source<'a> {
    fn parse(path: &'a Path, text: &str) -> Self {
        Self { path, module: module_path(path), paths: paths(text) }
    }
}

/// Modules that use each other.
struct Circle {
    /// Their paths from the root of the crate.
    modules: Vec<String>,
    /// Places of the uses inside the circle.
    places: Vec<String>,
}

/// The circles in each folder of one crate.
fn circles(files: &[Source<'_>]) -> Vec<Circle> {
    let modules = files.iter().map(|file| &file.module);
    let folders: BTreeSet<&[String]> =
        modules.flat_map(|module| (0..module.len()).map(move |depth| &module[..depth])).collect();
    folders.into_iter().flat_map(|folder| circles_of(folder, &uses(folder, files))).collect()
}

fn circles_of(folder: &[String], uses: &Uses) -> Vec<Circle> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        uses.keys().map(|from| (from, reachable(uses, from))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for module in uses.keys().filter(|module| reach[module].contains(module)) {
        if seen.contains(module) {
            continue;
        }
        let together = |other: &&String| {
            reach[module].contains(*other) && reach.get(*other).is_some_and(|r| r.contains(module))
        };
        let modules: Vec<&String> = uses.keys().filter(together).collect();
        seen.extend(modules.iter().copied());
        let edges = modules.iter().flat_map(|from| &uses[*from]);
        let inside = edges.filter(|(to, _)| modules.contains(to));
        found.push(Circle {
            places: inside.map(|(to, place)| format!("{place} uses {to}")).collect(),
            modules: modules
                .iter()
                .map(|name| [folder, &[(*name).clone()]].concat().join("::"))
                .collect(),
        });
    }
    found
}

/// Modules that `from` uses, directly or by way of others.
fn reachable<'a>(uses: &'a Uses, from: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        let targets = uses.get(module).into_iter().flat_map(BTreeMap::keys);
        open.extend(targets.filter(|target| reached.insert(*target)));
    }
    reached
}

/// The uses between the modules of one folder of a crate.
fn uses(folder: &[String], files: &[Source<'_>]) -> Uses {
    let within: Vec<&Source<'_>> =
        files.iter().filter(|file| file.module.starts_with(folder)).collect();
    let modules: BTreeSet<&String> =
        within.iter().filter_map(|file| file.module.get(folder.len())).collect();
    let own_file = within.iter().filter(|file| file.module.len() == folder.len());
    // Names that the folder's own file has from a module: `super::Name` is a use of that module.
    let exported: BTreeMap<&String, &String> = own_file
        .flat_map(|file| &file.paths)
        .filter_map(|FoundPath { path, .. }| {
            let from = path.iter().find(|name| *name != "crate" && *name != "self")?;
            modules.contains(from).then(|| Some((path.last()?, from)))?
        })
        .collect();
    let mut uses = Uses::new();
    for Source { path, module: own, paths } in within {
        let Some(module) = own.get(folder.len()) else { continue };
        let targets = uses.entry(module.clone()).or_default();
        for FoundPath { line, path: used, .. } in paths {
            let Some(full) = resolved(own, used).filter(|full| full.starts_with(folder)) else {
                continue;
            };
            let Some(name) = full.get(folder.len()) else { continue };
            let target =
                if modules.contains(name) { Some(name) } else { exported.get(name).copied() };
            if let Some(target) = target.filter(|target| *target != module) {
                let place = || format!("{}:{line}", path.display());
                targets.entry(target.clone()).or_insert_with(place);
            }
        }
    }
    uses
}

/// The module that a file is, from the root of its crate: empty for the root.
fn module_path(path: &Path) -> Vec<String> {
    let names = path.iter().skip(3).filter_map(|name| name.to_str());
    let mut module: Vec<String> = names.map(|name| name.replace(".rs", "")).collect();
    if module.last().is_some_and(|name| name == "mod") {
        module.pop();
    }
    if module.len() == 1 && ["lib", "main"].contains(&module[0].as_str()) {
        module.pop();
    }
    module
}

/// The module or item that a path in module `own` means, from the root of the crate. `None` for a path that begins with
/// neither `crate` nor `super`.
fn resolved(own: &[String], path: &[String]) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => Some([&own[..own.len().checked_sub(ups)?], &path[ups..]].concat()),
        _ => None,
    }
}

/// A path in the code of a file.
pub(super) struct FoundPath {
    /// Line, from 1.
    pub(super) line: usize,
    /// Whether a `pub use` declares it.
    pub(super) public: bool,
    pub(super) path: Vec<String>,
}

/// The paths of `use` declarations, and those inside of code that begin with `crate::` or `super::`, up to the tests.
pub(super) fn paths(text: &str) -> Vec<FoundPath> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let code = line.split("//").next().unwrap_or_default().trim();
        if code == "#[cfg(test)]" {
            // Inline tests end a file; another item may be only for tests.
            if lines.next().is_some_and(|(_, next)| next.starts_with("mod tests {")) {
                break;
            }
            continue;
        }
        if let Some(start) = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "]
            .iter()
            .find_map(|start| code.strip_prefix(start))
        {
            let mut declaration = start.to_owned();
            while !declaration.contains(';') {
                let Some((_, next)) = lines.next() else { break };
                declaration += next.split("//").next().unwrap_or_default().trim();
            }
            let declaration = declaration.split(';').next().unwrap_or_default();
            let public = code.starts_with("pub use ");
            let declared = expanded(declaration).into_iter();
            found.extend(declared.map(|path| FoundPath { line: number + 1, public, path }));
        } else {
            for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")) {
                // Not `$crate::`, not the rest of a path, and not the end of a longer name.
                let before = code[..at].chars().next_back();
                if before.is_none_or(|c| !c.is_alphanumeric() && !['_', '$', ':'].contains(&c)) {
                    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                    let end = code[at..].find(|c| !is_path(c)).map_or(code.len(), |end| at + end);
                    let path = names(&code[at..end]);
                    found.push(FoundPath { line: number + 1, public: false, path });
                }
            }
        }
    }
    found
}

/// The paths of a tree such as `a::{b, c::{d, e}}`.
fn expanded(tree: &str) -> Vec<Vec<String>> {
    let Some((start, rest)) = tree.split_once('{') else {
        return vec![names(tree.split(" as ").next().unwrap_or_default())];
    };
    let inner = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let start = names(start);
    let mut depth = 0_i32;
    let parts = inner.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let parts = parts.map(str::trim).filter(|part| !part.is_empty()).flat_map(expanded);
    parts.map(|path| [&start[..], &path[..]].concat()).collect()
}

fn names(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&'static str, &str)]) -> Vec<String> {
        let files: Vec<Source<'_>> =
            files.iter().map(|(path, text)| Source::parse(Path::new(*path), text)).collect();
        circles(&files).into_iter().map(|circle| circle.modules.join(" ")).collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle() {
        let a = ("crates/x/src/a.rs", "use crate::b::{B, c::D};");
        let b = ("crates/x/src/b/mod.rs", "fn f() { crate::a::g() }");
        assert_eq!(found(&[a, b]), ["a b"]);
        assert_eq!(found(&[a, ("crates/x/src/b/mod.rs", "use super::a;")]), ["a b"]);
        assert_eq!(found(&[a, ("crates/x/src/b/c.rs", "use super::super::a::A;")]), ["a b"]);
        assert_eq!(found(&[a, ("crates/x/src/b/c.rs", "use super::a::A;")]), [""; 0]);
        let way = [("crates/x/src/b.rs", "use crate::c;"), ("crates/x/src/c.rs", "use crate::a;")];
        assert_eq!(found(&[a, way[0], way[1]]), ["a b c"]);
    }

    #[test]
    fn modules_of_a_folder_can_be_a_circle() {
        let a = ("crates/x/src/f/a.rs", "use super::b::B;");
        assert_eq!(found(&[a, ("crates/x/src/f/b.rs", "use crate::f::a;")]), ["f::a f::b"]);
        assert_eq!(found(&[a, ("crates/x/src/f/b.rs", "use crate::a;")]), [""; 0]);
        let own = ("crates/x/src/f/mod.rs", "mod a;\nmod b;\npub(crate) use a::A;");
        assert_eq!(
            found(&[own, a, ("crates/x/src/f/b/c.rs", "use super::super::A;")]),
            ["f::a f::b"]
        );
    }

    #[test]
    fn names_of_the_root_lead_to_their_module() {
        let root = ("crates/x/src/lib.rs", "mod a;\nmod b;\npub use a::{A, One as Two};");
        let a = ("crates/x/src/a.rs", "use crate::b::B;");
        assert_eq!(found(&[root, a, ("crates/x/src/b.rs", "use crate::A;")]), ["a b"]);
        assert_eq!(found(&[root, a, ("crates/x/src/b.rs", "use crate::Other;")]), [""; 0]);
    }

    #[test]
    fn tests_comments_and_macros_do_not_count() {
        let a = ("crates/x/src/a.rs", "use crate::b::B;");
        for text in [
            "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
            "// crate::a::A\n/// [`crate::a`]",
            "macro_rules! m { () => { $crate::a::f() } }",
            "use other_crate::a::A;",
        ] {
            assert_eq!(found(&[a, ("crates/x/src/b.rs", text)]), [""; 0], "{text}");
        }
    }
}
