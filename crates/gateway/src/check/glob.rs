// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Names of files with `*` and `?`, as a shell takes them. (Sets in brackets match nothing.)

use std::fs;
use std::path::{Path, PathBuf};

use crate::verify::below;

/// Bound on the entries of a folder that are looked at.
const MAX_ENTRIES: usize = 100_000;

/// The files below `root` that an absolute pattern means, in order. A name without a pattern means itself,
/// whether there is such a file or not.
pub(super) fn files(root: &Path, pattern: &Path) -> Vec<PathBuf> {
    if !pattern.to_string_lossy().contains(['*', '?', '[']) {
        return vec![pattern.to_owned()];
    }
    let mut found = vec![PathBuf::from("/")];
    for component in pattern.components().skip(1) {
        let component = component.as_os_str().to_string_lossy().into_owned();
        if !component.contains(['*', '?', '[']) {
            found = found
                .into_iter()
                .map(|path| path.join(&component))
                .collect();
            continue;
        }
        let mut next = Vec::new();
        for folder in found {
            let entries = fs::read_dir(below(root, &folder));
            for entry in entries.into_iter().flatten().take(MAX_ENTRIES).flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if matches(&component, &name) && !name.starts_with('.') {
                    next.push(folder.join(name));
                }
            }
        }
        found = next;
    }
    found.sort();
    found
}

/// Whether a name matches a pattern of `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut in_name) = (0, 0);
    let mut retry = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some('*') => {
                retry = Some((at, in_name));
                at += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => match retry {
                // The last star takes one character more.
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    at = star + 1;
                    in_name = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("*.conf", "a.conf", true),
            ("*.conf", "a.conf.bak", false),
            ("a*b*c", "aXbXbXc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
