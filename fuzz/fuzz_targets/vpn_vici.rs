// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! charon's control socket: the same frames in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_vpn::ipsec::vici::ViciFrames;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = ViciFrames::default().push(bytes);
    let mut pieces = ViciFrames::default();
    let read: Vec<_> =
        bytes.chunks(usize::from(size).max(1)).flat_map(|piece| pieces.push(piece)).collect();
    assert_eq!(read, whole);
});
