// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a support bundle, as a plain tar (the compression is another library's to fuzz) or as it is.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use millrace_hostfs::{Root, TABLE_BYTES};

fuzz_target!(|bytes: &[u8]| {
    let _ = Root::from_bundle(bytes);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    packed.write_all(bytes).expect("memory");
    let packed = packed.finish().expect("memory");
    let Ok(root) = Root::from_bundle(packed.as_slice()) else {
        return;
    };
    let root = root.recording();
    let first = root.read("proc/cpuinfo", TABLE_BYTES);
    for name in root.names("proc").iter().take(8) {
        let _ = root.read(&format!("proc/{name}/comm"), TABLE_BYTES);
    }
    let mut again = Vec::new();
    root.into_record().write_bundle(&mut again).expect("memory");
    // A bundle leaves out possible secrets; everything else reads the same.
    let replay = Root::from_bundle(again.as_slice()).expect("our own bundle");
    let second = replay.read("proc/cpuinfo", TABLE_BYTES);
    assert!(first == second || second.is_err());
});
