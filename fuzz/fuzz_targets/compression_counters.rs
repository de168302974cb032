// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the memory file of a process, and a deflate stream. Reading ends, and a stream is reopened only if it is
//! complete.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_deflate::blocks::{FINAL_EMPTY, REOPEN_BYTES, reopen};
use millrace_deflate::libdeflate::Decompressor;
use millrace_edge::compression::CounterSnapshot;

fuzz_target!(|data: &[u8]| {
    if let Some(found) = CounterSnapshot::parse(data) {
        let _ = found.bytes();
    }
    let mut stream = data.to_vec();
    stream.resize(data.len() + REOPEN_BYTES, 0);
    let mut whole = vec![0; 4 * data.len() + 64];
    let mut decompressor = Decompressor::new().expect("memory");
    let length = (0..whole.len()).find(|length| decompressor.fills(data, &mut whole[..*length]));
    let reopened = reopen(&mut stream, data.len());
    if let (Some(length), Ok(end)) = (length.filter(|length| *length > 0), reopened) {
        stream.truncate(end);
        stream.extend(FINAL_EMPTY);
        let mut again = vec![0; length];
        assert!(decompressor.fills(&stream, &mut again) && again == whole[..length]);
    }
});
