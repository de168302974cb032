// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Names of files with `*` and `?`, as a shell expands them. Sets in brackets match nothing.

use crate::Root;

const WILDCARDS: [char; 3] = ['*', '?', '['];

/// The files below `root` that an absolute pattern matches, sorted. A pattern without wildcards is returned
/// unchanged, whether or not such a file exists. Hidden files do not match.
#[must_use]
pub fn files(root: &Root, pattern: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let next: Vec<String> = if part.contains(WILDCARDS) {
            let names = found.iter().flat_map(|folder| {
                let names = root
                    .names(folder)
                    .into_iter()
                    .filter(|name| !name.starts_with('.') && matches(part, name));
                names.map(move |name| format!("{folder}/{name}"))
            });
            names.collect()
        } else {
            found.iter().map(|folder| format!("{folder}/{part}")).collect()
        };
        found = next;
    }
    found.sort();
    found
}

/// Whether a name matches a pattern of `*` and `?`.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let mut in_pattern = 0;
    let mut in_name = 0;
    let mut retry = None;
    while in_name < name.len() {
        match pattern.get(in_pattern) {
            Some('*') => {
                retry = Some((in_pattern, in_name));
                in_pattern += 1;
            }
            Some(wanted) if *wanted == '?' || *wanted == name[in_name] => {
                in_pattern += 1;
                in_name += 1;
            }
            _ => match retry {
                // Let the last star match one character more.
                Some((star, from)) => {
                    retry = Some((star, from + 1));
                    in_pattern = star + 1;
                    in_name = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[in_pattern..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_as_in_a_shell() {
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

    #[test]
    fn patterns_match_in_each_folder_and_skip_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a/x.conf", "b/y.conf", "b/.z.conf", "c/y.txt"] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        assert_eq!(files(&root, "/*/*.conf"), ["/a/x.conf", "/b/y.conf"]);
        assert_eq!(files(&root, "/none/x"), ["/none/x"]);
        assert!(files(&root, "/none/*").is_empty());
    }
}
