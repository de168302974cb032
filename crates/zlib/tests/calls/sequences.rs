// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Any order of calls: pieces, tiny outputs, flushes, resets, copies, other levels.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::caller::{Api, Caller, ENDED, FINISH, Memory, OK};
use crate::{noise, served, text};

/// One call of a program.
#[derive(Clone, Debug)]
enum Step {
    /// Bytes of input, room in the output, flush.
    Feed(usize, usize, i32),
    /// One call whose output may stay full.
    Call(usize, usize, i32),
    Reset,
    Copy,
    Params(i32),
    Pending,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![3 => 0_usize..300, 3 => 0_usize..40_000, 1 => 100_000_usize..300_000];
    let room = prop_oneof![1_usize..40, Just(4096), Just(65_536)];
    let flush = prop_oneof![6 => Just(0), 1 => 1..4, 1 => Just(5)];
    let step = prop_oneof![
        8 => (length.clone(), room.clone(), flush.clone()).prop_map(|(length, room, flush)| Step::Feed(length, room, flush)),
        4 => (length, room, flush).prop_map(|(length, room, flush)| Step::Call(length, room, flush)),
        1 => Just(Step::Reset),
        1 => Just(Step::Copy),
        1 => (-1..10).prop_map(Step::Params),
        1 => Just(Step::Pending),
    ];
    prop::collection::vec(step, 1..14)
}

#[test]
fn any_sequence_of_calls_gives_the_bytes_that_went_in() {
    if !served("sequences::any_sequence_of_calls_gives_the_bytes_that_went_in") {
        return;
    }
    let data = [text(400_000), noise(300_000)].concat();
    let cases = if millrace_testkit::is_long() { 20_000 } else { 250 };
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let start = (steps(), 1..10, 0_usize..7, 0_usize..600_000);
    let result = runner.run(&start, |(steps, level, shape, at)| {
        let (bits, memory_level) =
            [(31, 8), (31, 9), (30, 7), (27, 4), (25, 1), (31, 1), (31, 8)][shape];
        let memory =
            if shape == 6 { Memory::of_libc() } else { Memory::as_nginx(bits - 16, memory_level) };
        let mut caller = Caller::begin(&Api::OURS, memory, level, bits, memory_level);
        let mut sent: Vec<u8> = Vec::new();
        let mut originals = Vec::new();
        let mut at = at;
        for step in &steps {
            match *step {
                Step::Feed(length, room, flush) => {
                    // zlib.h: with six bytes or less, a repeated flush writes its mark again, for ever.
                    let room = if flush == 0 { room } else { room.max(7) };
                    let piece = &data[at.min(data.len())..(at + length).min(data.len())];
                    at = (at + length) % 600_000;
                    prop_assert_eq!(caller.feed(piece, room, flush), OK);
                    sent.extend(piece);
                    if matches!(flush, 2 | 3) {
                        prop_assert!(caller.readable() == sent, "readable after a flush");
                    }
                }
                Step::Call(length, room, flush) => {
                    let piece = &data[at.min(data.len())..(at + length).min(data.len())];
                    let (result, read) = caller.call(piece, room, flush);
                    prop_assert!(matches!(result, 0 | -5), "{}", result);
                    at = (at + read) % 600_000;
                    sent.extend(&piece[..read]);
                }
                Step::Reset => {
                    prop_assert_eq!(caller.reset(), OK);
                    sent.clear();
                }
                Step::Copy => {
                    let copy = caller.copy();
                    originals.push((std::mem::replace(&mut caller, copy), sent.clone()));
                }
                Step::Params(level) => {
                    prop_assert!(matches!(caller.params(level, 0, 100_000), 0 | -5 | -2));
                }
                Step::Pending => prop_assert_eq!(caller.pending().0, OK),
            }
        }
        originals.push((caller, sent));
        // A copy lives in memory of its original.
        for (caller, sent) in &mut originals {
            prop_assert_eq!(caller.feed(&[], 4096, FINISH), ENDED);
            prop_assert!(caller.gunzip() == *sent);
            prop_assert_eq!(caller.totals(), (sent.len(), caller.output.len()));
            prop_assert_eq!(caller.end(), OK);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn bound_holds_for_one_call() {
    if !served("sequences::bound_holds_for_one_call") {
        return;
    }
    for (bits, memory_level) in [(31, 8), (15, 8), (-15, 8), (31, 1), (31, 9)] {
        for level in [1, 6] {
            for length in [0, 1, 1000, 70_000, 500_000] {
                let data = noise(length);
                let mut caller =
                    Caller::begin(&Api::OURS, Memory::of_libc(), level, bits, memory_level);
                let bound = caller.bound(length);
                let (result, read) = caller.call(&data, bound, FINISH);
                assert_eq!((result, read), (ENDED, length), "{bits} {level} {length}");
                assert_eq!(caller.end(), OK);
            }
        }
    }
}
