// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the features that a driver acknowledged, the room for a result, and a request of each queue. What parses
//! holds no more bytes than there are, and asks for no more room than there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_virtio::request::{self, Layout, Work};

fuzz_target!(|input: (u64, u16, &[u8])| {
    let (features, room, bytes) = input;
    let layout = Layout::new(features);
    let room = usize::from(room);
    let _ = request::control(layout, bytes);
    let Ok(data) = request::data(layout, bytes, room) else {
        return;
    };
    let (held, wanted) = match data.work {
        Work::Cipher { iv, source, room, .. } => (iv.len() + source.len(), room),
        Work::Chain(work) => {
            assert!(work.cipher.1 <= work.source.len() && work.hash.1 <= work.source.len());
            let held = work.iv.len() + work.source.len() + work.aad.len();
            (held, work.source.len() + work.hash_len)
        }
        Work::Check { source, len, .. } => (source.len(), len),
        Work::Aead { nonce, source, aad, room, .. } => {
            (nonce.len() + source.len() + aad.len(), room)
        }
        Work::Akcipher { source, digest, room: wanted, .. } => {
            (source.len() + digest.len(), wanted)
        }
    };
    assert!(held <= bytes.len() && wanted <= room);
});
