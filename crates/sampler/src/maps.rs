// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The code mappings in `/proc/PID/maps`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Bound on the bytes of one file: 65,530 mappings (the kernel's default limit) with long names.
const MAX_LEN: u64 = 32 << 20;

/// Bound on mappings: only code is kept, and programs have a few hundred such mappings.
const MAX_MAPPINGS: usize = 65_536;

/// A mapping of code in the address space of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file, or a label of the kernel such as `[vdso]`.
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

/// The executable mappings of a live process.
pub(super) fn read_maps(pid: u32) -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    File::open(format!("/proc/{pid}/maps"))?
        .take(MAX_LEN)
        .read_to_end(&mut text)?;
    Ok(parse_maps(&text))
}

/// The executable mappings with a name. Malformed lines are skipped.
#[must_use]
pub fn parse_maps(text: &[u8]) -> Vec<Mapping> {
    text.split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .take(MAX_MAPPINGS)
        .collect()
}

/// One line: `start-end perms offset device inode   path`.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let at = rest.iter().position(|byte| *byte == b' ')?;
        let (word, behind) = rest.split_at(at);
        rest = behind.trim_ascii_start();
        std::str::from_utf8(word).ok()
    };
    let (range, permissions, offset) = (word()?, word()?, word()?);
    let (_device, _inode) = (word()?, word()?);
    if permissions.as_bytes().get(2) != Some(&b'x') || rest.is_empty() {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (start < end).then_some(())?;
    Some(Mapping {
        start,
        end,
        offset: number(offset)?,
        path: PathBuf::from(OsStr::from_bytes(rest)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
55d0c8a5e000-55d0c8a60000 r--p 00000000 fe:00 1234       /usr/bin/app
55d0c8a60000-55d0c8a64000 r-xp 00002000 fe:00 1234       /usr/bin/app
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f29fda00000-7f29fdc00000 r-xp 000d1000 fe:00 99   /lib/a b/libcrypto.so.3 (deleted)
7ffd1c5f2000-7ffd1c5f4000 r-xp 00000000 00:00 0                          [vdso]
zzzz-7fff r-xp 0 0 0 /x
7000-6000 r-xp 00000000 00:00 0 /backwards
1000-2000 r-xp
\xff\xfe\x00";

    #[test]
    fn only_named_code_is_kept() {
        let maps = parse_maps(TEXT);
        let paths: Vec<_> = maps.iter().map(|map| map.path.to_string_lossy()).collect();
        assert_eq!(
            paths,
            [
                "/usr/bin/app",
                "/lib/a b/libcrypto.so.3 (deleted)",
                "[vdso]"
            ]
        );
        assert_eq!(maps[0].file_offset(0x55d0_c8a6_0010), Some(0x2010));
        assert_eq!(maps[0].file_offset(0x55d0_c8a6_4000), None);
        assert_eq!(maps[0].file_offset(1), None);
    }

    #[test]
    fn own_maps_contain_this_function() {
        let maps = read_maps(std::process::id()).expect("our own maps");
        let here = own_maps_contain_this_function as fn() as usize as u64;
        let exe = std::env::current_exe().expect("this program");
        assert!(
            maps.iter()
                .any(|map| map.file_offset(here).is_some() && map.path == exe)
        );
    }
}
