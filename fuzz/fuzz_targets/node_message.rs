// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the kind of a message of a node, then its payload. What decodes must encode to the same
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_wire::{HEADER_LEN, Message, NodeMessage};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, payload)) = data.split_first() else {
        return;
    };
    let Ok(message) = NodeMessage::decode(kind, payload) else {
        return;
    };
    let mut frame = Vec::new();
    message.encode(&mut frame);
    assert_eq!(frame[4], kind);
    assert_eq!(&frame[HEADER_LEN..], payload);
});
