// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a byte that chooses the direction (its lowest bit) and how many piece lengths follow (the
//! rest, at most 7), the piece lengths, then the bytes of a stream. The stream is fed to a decoder in
//! these pieces, over and over, and must decode to what it decodes to when it comes at once.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_wire::{MAX_BUFFER, MIN_SPACE, ClientMessage, Decoder, Message, NodeMessage, WireError};

fuzz_target!(|data: &[u8]| {
    let Some((&control, rest)) = data.split_first() else {
        return;
    };
    let Some((pieces, stream)) = rest.split_at_checked(usize::from(control >> 1 & 7)) else {
        return;
    };
    if control & 1 == 0 {
        check::<ClientMessage>(pieces, stream);
    } else {
        check::<NodeMessage>(pieces, stream);
    }
});

fn check<M: Message>(pieces: &[u8], stream: &[u8]) {
    let (whole, error) = decode::<M>(&[], stream);
    assert!(decode::<M>(pieces, stream) == (whole.clone(), error));
    // Canonical: what was understood encodes to the beginning of the stream.
    assert!(stream.starts_with(&whole));
}

/// Encodes again what was decoded, and says how it ended.
fn decode<M: Message>(pieces: &[u8], mut stream: &[u8]) -> (Vec<u8>, Option<WireError>) {
    let mut decoder = Decoder::<M>::new();
    let mut lengths = pieces.iter().cycle();
    let mut again = Vec::new();
    while !stream.is_empty() {
        let space = decoder.space();
        assert!(space.len() >= MIN_SPACE && space.len() <= MAX_BUFFER);
        // Squared, so that one byte reaches from a byte at a time to more than a buffer.
        let piece = lengths.next().map_or(usize::MAX, |&l| (usize::from(l) + 1).pow(2));
        let count = stream.len().min(space.len()).min(piece);
        space[..count].copy_from_slice(&stream[..count]);
        decoder.filled(count);
        stream = &stream[count..];
        loop {
            match decoder.next() {
                Ok(Some(message)) => message.encode(&mut again),
                Ok(None) => break,
                Err(error) => return (again, Some(error)),
            }
        }
    }
    (again, None)
}
