// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a level, the parameters of a stream, and any sequence of calls of zlib's interface. The library and the
//! system's zlib get the same calls. Both outputs decompress to the bytes that went in, at every flush and at the
//! end, and the library asks for one block of memory. `run.sh` sets the variables that make it take every stream.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/zlib/tests/calls/caller.rs"]
#[expect(dead_code, reason = "the tests of crates/zlib use all of it")]
mod caller;

use caller::{Api, Caller, ENDED, FINISH, Memory, NO_FLUSH, OK, SYNC};

/// Window bits and memory level.
const SHAPES: [(i32, i32); 6] = [(31, 8), (31, 9), (30, 7), (27, 4), (25, 1), (31, 1)];

/// Rooms for output. With six bytes or less, a repeated flush writes its mark again (`zlib.h`).
const ROOMS: [usize; 4] = [7, 100, 4096, 65_536];

fuzz_target!(|data: &[u8]| {
    let [level, shape, ref rest @ ..] = *data else {
        return;
    };
    let (bits, memory_level) = SHAPES[usize::from(shape) % SHAPES.len()];
    let level = 1 + i32::from(level % 9);
    let memory = || Memory::as_nginx(bits - 16, memory_level);
    let begin = |api: &Api| Caller::begin(api, memory(), level, bits, memory_level);
    let (mut ours, mut zlibs) = (begin(&Api::OURS), begin(&Api::system()));
    let mut sent: Vec<u8> = Vec::new();
    // A copy lives in memory of its original.
    let mut originals = Vec::new();
    // Three bytes choose a call; the bytes that are compressed are those behind them, repeated to the length.
    for (index, call) in rest.chunks_exact(3).take(24).enumerate() {
        let [what, low, high] = [call[0], call[1], call[2]];
        let room = ROOMS[usize::from(what >> 4) % ROOMS.len()];
        let length = usize::from(u16::from_le_bytes([low, high]));
        let piece: Vec<u8> = rest[3 * index..].iter().copied().cycle().take(length).collect();
        match what % 16 {
            0..=6 => {
                assert_eq!(ours.feed(&piece, room, NO_FLUSH), OK);
                assert_eq!(zlibs.feed(&piece, room, NO_FLUSH), OK);
                sent.extend(piece);
            }
            flush @ 7..=9 => {
                // Partial, synchronous, full.
                let flush = i32::from(flush) - 6;
                assert_eq!(ours.feed(&piece, room, flush), OK);
                assert_eq!(zlibs.feed(&piece, room, flush), OK);
                sent.extend(piece);
                if flush >= SYNC {
                    assert!(ours.readable() == sent && zlibs.readable() == sent);
                }
            }
            10 => {
                assert_eq!((ours.reset(), zlibs.reset()), (OK, OK));
                sent.clear();
            }
            11 if originals.is_empty() => {
                let copy = ours.copy();
                let mut original = std::mem::replace(&mut ours, copy);
                assert_eq!(original.feed(&[], room, FINISH), ENDED);
                assert!(original.gunzip() == sent);
                originals.push(original);
            }
            12 => {
                let other = 1 + i32::from(low % 9);
                assert!(matches!(ours.params(other, 0, 400_000), 0 | -2 | -5));
            }
            _ => assert_eq!(ours.pending().0, OK),
        }
    }
    // A misuse that both refuse, then the end, twice.
    assert_eq!(ours.call(&[], 0, NO_FLUSH).0, zlibs.call(&[], 0, NO_FLUSH).0);
    assert_eq!((ours.feed(&[], 300, FINISH), zlibs.feed(&[], 300, FINISH)), (ENDED, ENDED));
    assert!(ours.gunzip() == sent && zlibs.gunzip() == sent);
    assert_eq!(ours.totals(), (sent.len(), ours.output.len()));
    assert_eq!(ours.call(&[], 10, FINISH), zlibs.call(&[], 10, FINISH));
    assert!(
        !originals.is_empty() || ours.memory().requests() == (1, 0),
        "one block: is MILLRACE_GZIP=any set?"
    );
    assert_eq!((ours.end(), zlibs.end()), (OK, OK));
});
