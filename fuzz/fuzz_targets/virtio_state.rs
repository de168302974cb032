// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the state of a device that another host has sent. What parses is written with the bytes that were read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_virtio::vhost::MigrationState;

fuzz_target!(|input: &[u8]| {
    let Ok(state) = MigrationState::read(input) else {
        return;
    };
    let mut written = Vec::new();
    state.write(&mut written).expect("a vector takes all bytes");
    assert_eq!(written, input);
});
