// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One public path for each name: the root of a crate, and each folder of it, exports no name of a module that is
//! public itself, and none of another crate of the workspace. An importer then has no choice, and a search for the path
//! finds every use.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::circles::paths;
use super::names::crate_of;

/// Crates that export names of another one, with the reason.
const PASSED_ON: &[(&str, &str, &str)] =
    &[("client", "wire", "types of the client's own interface, whose users know no frames")];

/// Complaints about names with two public paths.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for path in files.iter().filter(|path| has_exports(path)) {
        if let Some(folder) = crate_of(path) {
            let text = fs::read_to_string(root.join(path))
                .with_context(|| format!("reading {}", path.display()))?;
            let found = doubled(folder, &text);
            complaints.extend(found.into_iter().map(|what| format!("{}: {what}", path.display())));
        }
    }
    Ok(complaints)
}

/// Whether a file is the root of a crate or of a folder of modules.
fn has_exports(path: &Path) -> bool {
    path.ends_with("src/lib.rs") || path.ends_with("mod.rs")
}

fn doubled(folder: &str, text: &str) -> Vec<String> {
    let is_public_module = |name: &str| text.contains(&format!("\npub mod {name};"));
    let exports = paths(text).into_iter().filter(|found| found.public);
    exports
        .filter_map(|found| {
            let path = &found.path;
            let first = path.iter().find(|name| !["crate", "self"].contains(&name.as_str()))?;
            let last = path.last()?;
            if is_public_module(first) {
                Some(format!(
                    "{last} has two public paths: make the module {first} private, or do not export it"
                ))
            } else {
                let home = first.strip_prefix("millrace_")?;
                if PASSED_ON.iter().any(|(from, to, _)| *from == folder && *to == home) {
                    return None;
                }
                Some(format!("{last} is exported again: its home is crates/{home}"))
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_two_paths_are_refused() {
        let text = "\npub mod codec;\nmod error;\npub use codec::{Message, parse};\npub use error::WireError;\n\
                    pub use millrace_operation::JobId;\nuse codec::Inner;\n";
        assert_eq!(
            doubled("wire", text),
            [
                "Message has two public paths: make the module codec private, or do not export it",
                "parse has two public paths: make the module codec private, or do not export it",
                "JobId is exported again: its home is crates/operation",
            ]
        );
    }

    #[test]
    fn folder_that_exports_from_its_public_module_is_refused() {
        let text = "\npub mod system;\nmod finding;\npub use self::system::System;\npub use finding::Finding;\n";
        let expected =
            "System has two public paths: make the module system private, or do not export it";
        assert_eq!(doubled("inspect", text), [expected]);
        assert!(has_exports(Path::new("crates/inspect/src/doctor/mod.rs")));
        assert!(!has_exports(Path::new("crates/inspect/src/doctor/system.rs")));
    }
}
