// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the state of a device that another host has sent, as it is and with a right tag behind it, under a key and
//! under none. What parses is written with the bytes that were read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_virtio::vhost::{MigrationState, StateKey};

fuzz_target!(|input: &[u8]| {
    let key = StateKey::new([7; 32]);
    for key in [None, Some(&key)] {
        for bytes in [input.to_vec(), MigrationState::tagged(input, key)] {
            let Ok(state) = MigrationState::read(&bytes[..], key) else {
                continue;
            };
            let mut written = Vec::new();
            state.write(&mut written, key).expect("a vector takes all bytes");
            assert_eq!(written, bytes);
        }
    }
});
