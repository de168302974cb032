// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the features that a driver acknowledged, the room for a result, and a request of each queue. What parses
//! holds no more bytes than there are, and asks for no more room than there is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_virtio::request::{self, DataOperation, RequestFormat};

fuzz_target!(|input: (u64, u16, &[u8])| {
    let (features, room, bytes) = input;
    let format = RequestFormat::new(features);
    let room = usize::from(room);
    let _ = request::control(format, bytes);
    let Ok(data) = request::data(format, bytes, room) else {
        return;
    };
    let (held, wanted) = match data.operation {
        DataOperation::Cipher { iv, source, room, .. } => (iv.len() + source.len(), room),
        DataOperation::Chain(chain) => {
            assert!(chain.cipher.1 <= chain.source.len() && chain.hash.1 <= chain.source.len());
            let held = chain.iv.len() + chain.source.len() + chain.aad.len();
            (held, chain.source.len() + chain.hash_len)
        }
        DataOperation::HashOrMac { source, len, .. } => (source.len(), len),
        DataOperation::Aead { nonce, source, aad, room, .. } => {
            (nonce.len() + source.len() + aad.len(), room)
        }
        DataOperation::Akcipher { source, digest, room: wanted, .. } => {
            (source.len() + digest.len(), wanted)
        }
    };
    assert!(held <= bytes.len() && wanted <= room);
});
