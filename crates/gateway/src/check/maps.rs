// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which files a process has mapped: `/proc/PID/maps` (proc(5)), read as far as libraries go.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What the kernel puts behind the name of a file that is no longer there under it.
const DELETED: &str = " (deleted)";

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mapped {
    /// Its name when it was mapped.
    pub path: PathBuf,
    /// Whether it was replaced or removed since.
    pub deleted: bool,
}

/// The files in the text of a `maps` file, each once.
#[must_use]
pub fn parse(text: &str) -> Vec<Mapped> {
    let files: BTreeSet<Mapped> = text.lines().filter_map(file_of_line).collect();
    files.into_iter().collect()
}

/// `7f31-7f32 r-xp 00000000 08:01 1234   /usr/lib/libssl.so.3`
fn file_of_line(line: &str) -> Option<Mapped> {
    let mut rest = line;
    for _ in 0..5 {
        let (_, after) = rest.trim_start_matches(' ').split_once(' ')?;
        rest = after;
    }
    let name = rest.trim_start_matches(' ');
    let (name, deleted) = match name.strip_suffix(DELETED) {
        Some(name) => (name, true),
        None => (name, false),
    };
    name.starts_with('/').then(|| Mapped {
        path: unescaped(name).into(),
        deleted,
    })
}

/// A line end in a name stands as `\012`.
fn unescaped(name: &str) -> String {
    name.replace("\\012", "\n")
}

/// The first whose file name begins so.
#[must_use]
pub fn library<'a>(files: &'a [Mapped], prefix: &str) -> Option<&'a Mapped> {
    files
        .iter()
        .find(|file| file_name(&file.path).starts_with(prefix))
}

/// The last component of a path, as text.
#[must_use]
pub fn file_name(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c0000000-55d0c0020000 r--p 00000000 fe:00 1048 /usr/sbin/nginx
7f3100000000-7f3100021000 rw-p 00000000 00:00 0
7f3140000000-7f3140010000 r-xp 00001000 fe:00 77   /usr/lib/x86_64-linux-gnu/libssl.so.3
7f3140010000-7f3140020000 r--p 00011000 fe:00 77   /usr/lib/x86_64-linux-gnu/libssl.so.3
7f3150000000-7f3150010000 r-xp 00001000 fe:00 78   /opt/my lib/libmillrace_preload.so (deleted)
7ffd10000000-7ffd10021000 rw-p 00000000 00:00 0    [stack]
7f3160000000-7f3160001000 rw-s 00000000 00:01 99   /dev/zero (deleted)
";

    #[test]
    fn files_are_found_once_with_their_fate() {
        let files = parse(MAPS);
        let names: Vec<&str> = files.iter().map(|file| file_name(&file.path)).collect();
        assert_eq!(
            names,
            ["zero", "libmillrace_preload.so", "libssl.so.3", "nginx"]
        );
        let preload = library(&files, "libmillrace_preload").expect("it is mapped");
        assert_eq!(
            preload.path,
            Path::new("/opt/my lib/libmillrace_preload.so")
        );
        assert!(preload.deleted);
        assert!(!library(&files, "libssl.so").expect("mapped").deleted);
        assert!(library(&files, "libcrypto.so").is_none());
    }

    #[test]
    fn other_lines_are_passed_over() {
        assert!(parse("").is_empty());
        assert!(parse("nonsense\n1-2 r 3\n \n[heap]\n").is_empty());
    }
}
