// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One name, one type: a type that other modules see has a name of its own in the
//! workspace. A reader who finds `Snapshot` in a log, a search or an error of the compiler knows which one it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Names that several crates give to a type, with those crates and the reason. A name may stand once in each.
#[rustfmt::skip]
const SHARED: &[(&str, &[&str], &str)] = &[
    // A word of the glossary, as each crate sees the thing.
    ("Engine",     &["deflate", "engine"], "a compression engine; the pool's engine"),
    ("Job",        &["client", "engine"], "one job in the client and in the engine"),
    ("Key",        &["engine", "provider"], "one key as the engine and as OpenSSL see it"),
    ("Kernel",     &["backends", "inspect"], "the kernel as a backend, and its cryptography as a machine has it"),
    ("Node",       &["manager", "server"], "one node as its process and its manager see it"),
    ("Pool",       &["client", "provider"], "the pool, and what an edge needs of it (a trait)"),
    ("Qat",        &["backends", "inspect"], "QAT as a backend, and as hardware that a machine has"),
    ("Quota",      &["manager", "service"], "a tenant's quota in the pool, and its slice in one node"),

    // What each crate has one of, by convention.
    ("Command",    &["cli", "manager"], "the commands of a program, and of the pool's log"),
    ("Settings",   &["cli", "service"], "what the crate's user may set"),
    ("ListenError", &["server", "virtio"], "why a socket cannot be listened on"),
    ("StartError", &["engine", "server"], "why it does not start"),
    ("StoreError", &["manager", "service"], "why the crate's store fails"),
    ("TlsError",   &["manager", "server"], "why the TLS files of a listener cannot be used"),
    ("ClientError", &["client", "manager"], "why a call of this client failed"),

    // A word of a foreign interface.
    ("Algorithm",  &["inspect", "provider"], "of Linux's crypto API; `OSSL_ALGORITHM`"),
    ("Core",       &["manager", "provider"], "OpenSSL's core handle; the sans-I/O core of the manager"),
    ("Status",     &["service", "virtio"], "a virtio-crypto status, by the specification"),

    // Crates that never meet in one file: a gateway's tools, a node, an edge.
    ("Counter",    &["edge", "service"], "one counter in each crate's own form"),
    ("Failure",    &["cli", "provider"], "an exit code; what an FFI function returns when it fails"),
    ("Goal",       &["bench", "inspect"], "of a measurement; of an advice"),
    ("Health",     &["engine", "manager"], "of a backend; of a node"),
    ("KeyView",    &["cli", "manager"], "a key of a node's store as printed; one of the pool as the API shows it"),
    ("OpenError",  &["hostfs", "service"], "why a file, and why a seal, does not open"),
    ("Page",       &["cli", "manager"], "a page that is printed; a page of rows of the API"),
    ("Placement",  &["engine", "manager"], "of threads on cores; of tenants on nodes"),
    ("Secret",     &["backends", "manager"], "a private key; a token"),
    ("Table",      &["cli", "manager"], "of a page; of the store"),
];

/// Names that one crate gives to two types, with the reason.
const TWICE: &[(&str, &str, &str)] = &[
    ("manager", "Condition", "of the store's transaction; of a request of the API's client"),
    ("manager", "Write", "of the store's transaction; of a request of the API's client"),
];

/// A declaration: the crate, and the file with the line.
type Declared = (String, String);

/// Complaints about names of types.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut declared: BTreeMap<String, Vec<Declared>> = BTreeMap::new();
    for path in files {
        let Some(folder) = crate_of(path) else {
            continue;
        };
        let text = fs::read_to_string(root.join(path))
            .with_context(|| format!("reading {}", path.display()))?;
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = declares(line) {
                let place = format!("{}:{}", path.display(), number + 1);
                let places = declared.entry(name.to_owned()).or_default();
                places.push((folder.to_owned(), place));
            }
        }
    }
    Ok(complaints(&declared))
}

/// The folder of the crate whose product code a file belongs to; tests may name their types as they like.
pub(crate) fn crate_of(path: &Path) -> Option<&str> {
    let is_test = |part: &str| ["tests", "tests.rs"].contains(&part) || part.ends_with("_tests.rs");
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let folder = (parts.next() == Some("crates")).then(|| parts.next())??;
    let is_product = parts.next() == Some("src") && !parts.any(is_test);
    (is_product && path.extension()? == "rs").then_some(folder)
}

/// The name of the type that a line makes visible outside of its module.
fn declares(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = ["pub ", "pub(crate) "].iter().find_map(|start| line.strip_prefix(start))?;
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let name = ["struct ", "enum ", "trait ", "type ", "union "]
        .iter()
        .find_map(|keyword| line.strip_prefix(keyword))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    // A macro's `$name` is none.
    Some(&name[..end.unwrap_or(name.len())]).filter(|name| !name.is_empty())
}

fn complaints(declared: &BTreeMap<String, Vec<Declared>>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, places) in declared {
        let mut crates = BTreeSet::new();
        for (folder, place) in places {
            let excused = |(of, twice, _): &(&str, &str, &str)| of == folder && twice == name;
            if !crates.insert(folder.as_str()) && !TWICE.iter().any(excused) {
                complaints.push(format!(
                    "{place}: {folder} has another type {name}: put the word of its field in front"
                ));
            }
        }
        let listed = SHARED.iter().find(|(shared, ..)| shared == name);
        let listed: BTreeSet<&str> =
            listed.map_or_else(BTreeSet::new, |(_, crates, _)| crates.iter().copied().collect());
        if crates.len() > 1 && !crates.is_subset(&listed) {
            let places: Vec<&str> = places.iter().map(|(_, place)| place.as_str()).collect();
            complaints.push(format!(
                "type {name}: declared at {}: put the word of its field in front, or list the reason in \
                 xtask/src/tidy/names.rs",
                places.join(", ")
            ));
        }
    }
    complaints.extend(stale(declared));
    complaints
}

/// Excuses that are no longer needed.
fn stale(declared: &BTreeMap<String, Vec<Declared>>) -> Vec<String> {
    let count = |name: &str, folder: &str| {
        let places = declared.get(name).map_or(&[][..], Vec::as_slice);
        places.iter().filter(|(of, _)| of == folder).count()
    };
    let shared = SHARED.iter().flat_map(|(name, crates, _)| {
        let gone = crates.iter().filter(|folder| count(name, folder) == 0);
        gone.map(move |folder| (*name, *folder))
    });
    let twice = TWICE
        .iter()
        .filter(|(folder, name, _)| count(name, folder) < 2)
        .map(|(folder, name, _)| (*name, *folder));
    shared
        .chain(twice)
        .map(|(name, folder)| {
            format!("xtask/src/tidy/names.rs: {folder} has no such type {name} any more: drop it")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, &str)]) -> BTreeMap<String, Vec<Declared>> {
        let mut declared: BTreeMap<String, Vec<Declared>> = BTreeMap::new();
        for (number, (name, folder)) in rows.iter().enumerate() {
            let places = declared.entry((*name).to_owned()).or_default();
            places.push(((*folder).to_owned(), format!("{folder}.rs:{number}")));
        }
        declared
    }

    /// Complaints other than those of rows that this table does not use.
    fn about(rows: &[(&str, &str)]) -> Vec<String> {
        let all = complaints(&table(rows));
        let is_used = |complaint: &String| !complaint.contains("any more");
        all.into_iter().filter(is_used).collect()
    }

    #[test]
    fn name_in_two_crates_or_twice_in_one_is_refused_unless_listed() {
        assert_eq!(about(&[("Outbox", "client"), ("Inbox", "engine")]), [""; 0]);
        let two = about(&[("Outbox", "client"), ("Outbox", "engine")]);
        assert!(matches!(&two[..], [one] if one.contains("client.rs:0, engine.rs:1")), "{two:?}");
        let twice = about(&[("Outbox", "client"), ("Outbox", "client")]);
        assert!(
            matches!(&twice[..], [one] if one.starts_with("client.rs:1: client has")),
            "{twice:?}"
        );
        let (name, crates, _) = SHARED[0];
        assert_eq!(about(&[(name, crates[0]), (name, crates[1])]), [""; 0]);
        assert_eq!(about(&[(name, crates[0]), (name, "bench")]).len(), 1);
    }

    #[test]
    fn row_without_its_types_is_refused() {
        let (name, crates, _) = SHARED[0];
        let left = complaints(&table(&[(name, crates[0])]));
        let gone = format!("{} has no such type {name} any more", crates[1]);
        assert!(left.iter().any(|complaint| complaint.contains(&gone)));
    }

    #[test]
    fn types_are_found_by_their_declarations_in_product_code() {
        assert_eq!(declares("    pub(crate) struct Outbox<'a> {"), Some("Outbox"));
        assert_eq!(declares("pub unsafe trait Wake: Send {"), Some("Wake"));
        assert_eq!(declares("pub type Done = Box<u8>;"), Some("Done"));
        assert_eq!(declares("struct Own;"), None);
        assert_eq!(declares("        pub enum $name {"), None);
        assert_eq!(declares("pub fn structure() {}"), None);
        let folder = |path: &'static str| crate_of(Path::new(path));
        assert_eq!(folder("crates/wire/src/codec.rs"), Some("wire"));
        assert_eq!(folder("crates/wire/tests/hostile.rs"), None);
        assert_eq!(folder("crates/wire/src/queue/tests.rs"), None);
        assert_eq!(folder("xtask/src/main.rs"), None);
    }
}
