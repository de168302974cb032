// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The management interface of OpenVPN: the same lines in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_vpn::management::ManagementLines;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = ManagementLines::default().push(bytes);
    let mut pieces = ManagementLines::default();
    let read: Vec<_> =
        bytes.chunks(usize::from(size).max(1)).flat_map(|piece| pieces.push(piece)).collect();
    assert_eq!(read, whole);
});
