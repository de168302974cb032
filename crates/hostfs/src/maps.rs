// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The mappings of a process: `/proc/PID/maps` (proc(5)).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kernel's suffix for a file that no longer has this name.
const DELETED: &str = " (deleted)";

/// A file that a process has mapped as code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappedFile {
    /// Name of the file when it was mapped.
    pub path: PathBuf,
    /// Whether the file was replaced or removed since.
    pub deleted: bool,
}

/// A mapping with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Whether the mapping is executable.
    pub is_code: bool,
    /// The file, with the kernel's ` (deleted)` if it is gone, or a label such as `[vdso]`.
    pub path: PathBuf,
}

impl Mapping {
    /// The offset in the file of an address inside this mapping.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.start)?;
        (address < self.end).then_some(())?;
        self.offset.checked_add(within)
    }
}

/// The mappings with a name in the text of `maps`, or in some of its lines. Malformed lines are skipped.
pub fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping> {
    text.split(|byte| *byte == b'\n').filter_map(mapping)
}

/// `7f31-7f32 r-xp 00000000 08:01 1234   /usr/lib/libssl.so.3`
fn mapping(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let at = rest.iter().position(|byte| *byte == b' ')?;
        let (word, behind) = rest.split_at(at);
        rest = behind.trim_ascii_start();
        std::str::from_utf8(word).ok()
    };
    let (range, permissions, offset) = (word()?, word()?, word()?);
    let (_device, _inode) = (word()?, word()?);
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let mapping = Mapping {
        start: number(start)?,
        end: number(end)?,
        offset: number(offset)?,
        is_code: permissions.as_bytes().get(2) == Some(&b'x'),
        path: PathBuf::from(OsStr::from_bytes(rest)),
    };
    (mapping.start < mapping.end && !rest.is_empty()).then_some(mapping)
}

/// The files in the text of `maps`, or in some of its lines: each once, sorted.
#[must_use]
pub fn files(text: &str) -> Vec<MappedFile> {
    let files: BTreeSet<MappedFile> = mappings(text.as_bytes()).filter_map(file).collect();
    files.into_iter().collect()
}

fn file(mapping: Mapping) -> Option<MappedFile> {
    let name = mapping.path.to_str()?;
    let (name, deleted) = match name.strip_suffix(DELETED) {
        Some(name) => (name, true),
        None => (name, false),
    };
    // The kernel writes a line end in a name as `\012`.
    name.starts_with('/').then(|| MappedFile { path: name.replace("\\012", "\n").into(), deleted })
}

/// The first file whose name begins with `prefix`.
#[must_use]
pub fn library<'a>(files: &'a [MappedFile], prefix: &str) -> Option<&'a MappedFile> {
    files.iter().find(|file| file_name(&file.path).starts_with(prefix))
}

/// The last component of a path, as text.
#[must_use]
pub fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or("")
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
        assert_eq!(names, ["zero", "libmillrace_preload.so", "libssl.so.3", "nginx"]);
        let preload = library(&files, "libmillrace_preload").expect("it is mapped");
        assert_eq!(preload.path, Path::new("/opt/my lib/libmillrace_preload.so"));
        assert!(preload.deleted);
        assert!(!library(&files, "libssl.so").expect("mapped").deleted);
        assert!(library(&files, "libcrypto.so").is_none());
    }

    #[test]
    fn lines_without_a_file_are_skipped() {
        assert!(files("").is_empty());
        assert!(files("nonsense\n1-2 r 3\n \n[heap]\n").is_empty());
    }

    #[test]
    fn code_is_found_by_address_and_malformed_lines_are_skipped() {
        let text = b"\
55d0c8a5e000-55d0c8a60000 r--p 00000000 fe:00 1234       /usr/bin/app
55d0c8a60000-55d0c8a64000 r-xp 00002000 fe:00 1234       /usr/bin/app
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f29fda00000-7f29fdc00000 r-xp 000d1000 fe:00 99   /lib/a b/libcrypto.so.3 (deleted)
7ffd1c5f2000-7ffd1c5f4000 r-xp 00000000 00:00 0                          [vdso]
zzzz-7fff r-xp 0 0 0 /x
7000-6000 r-xp 00000000 00:00 0 /backwards
1000-2000 r-xp
\xff\xfe\x00";
        let code: Vec<Mapping> = mappings(text).filter(|mapping| mapping.is_code).collect();
        let paths: Vec<_> = code.iter().map(|mapping| mapping.path.to_string_lossy()).collect();
        assert_eq!(paths, ["/usr/bin/app", "/lib/a b/libcrypto.so.3 (deleted)", "[vdso]"]);
        assert_eq!(code[0].file_offset(0x55d0_c8a6_0010), Some(0x2010));
        assert_eq!(code[0].file_offset(0x55d0_c8a6_4000), None);
        assert_eq!(code[0].file_offset(1), None);
    }
}
