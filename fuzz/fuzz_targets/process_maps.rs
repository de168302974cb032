// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the text of `/proc/PID/maps`. Each file is found once, and its name is absolute.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::maps;

fuzz_target!(|data: &[u8]| {
    let files = maps::files(&String::from_utf8_lossy(data));
    assert!(files.iter().all(|file| file.path.is_absolute()));
    assert!(files.is_sorted());
    assert!(files.windows(2).all(|pair| pair[0] != pair[1]));
});
