// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The files that a process has mapped: `/proc/PID/maps` (proc(5)).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The kernel's suffix for a file that no longer has this name.
const DELETED: &str = " (deleted)";

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappedFile {
    /// Its name when it was mapped.
    pub path: PathBuf,
    /// Whether the file was replaced or removed since.
    pub deleted: bool,
}

/// The files in the text of `maps`, or in some of its lines: each once, sorted.
#[must_use]
pub fn files(text: &str) -> Vec<MappedFile> {
    let files: BTreeSet<MappedFile> = text.lines().filter_map(file).collect();
    files.into_iter().collect()
}

/// `7f31-7f32 r-xp 00000000 08:01 1234   /usr/lib/libssl.so.3`
fn file(line: &str) -> Option<MappedFile> {
    let mut rest = line;
    for _ in 0..5 {
        (_, rest) = rest.trim_start_matches(' ').split_once(' ')?;
    }
    let name = rest.trim_start_matches(' ');
    let (name, deleted) = match name.strip_suffix(DELETED) {
        Some(name) => (name, true),
        None => (name, false),
    };
    // The kernel writes a line end in a name as `\012`.
    name.starts_with('/').then(|| MappedFile {
        path: name.replace("\\012", "\n").into(),
        deleted,
    })
}

/// The first file whose name begins with `prefix`.
#[must_use]
pub fn library<'a>(files: &'a [MappedFile], prefix: &str) -> Option<&'a MappedFile> {
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
    fn each_file_is_listed_once_with_whether_it_is_deleted() {
        let files = files(MAPS);
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
    fn lines_without_a_file_are_skipped() {
        assert!(files("").is_empty());
        assert!(files("nonsense\n1-2 r 3\n \n[heap]\n").is_empty());
    }
}
