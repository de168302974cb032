// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The exported functions, called as servers call them, in orders that no server uses, and beside the system's
//! zlib. Every output is decompressed by an implementation that is neither ours nor zlib's.
//!
//! The programs that are served are decided before `main`. So each test runs in a process of its own, which is started
//! with the setting that takes every program.

#![expect(unsafe_code, reason = "calls C functions")]

mod caller;
mod sequences;

use std::process::Command;

use caller::{Api, Caller, ENDED, FINISH, Memory, NO_FLUSH, OK, SYNC};

/// Runs a test of this program in a process that the library serves. True in that process.
fn served(test: &str) -> bool {
    const SCOPE: &str = "MILLRACE_GZIP";
    if std::env::var_os(SCOPE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("the path of this test");
    let output = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(SCOPE, "any")
        .env("MILLRACE_GZIP_VERIFY", "all")
        .output()
        .expect("this test starts again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}\n{errors}");
    false
}

/// Text that compresses like a web page, the same at each call.
fn text(length: usize) -> Vec<u8> {
    let mut found = Vec::with_capacity(length + 64);
    let mut random = fastrand::Rng::with_seed(1);
    while found.len() < length {
        let word = random.u32(..);
        found.extend(format!("<a href=\"/item/{}\">{:x}</a>\n", word % 977, word).into_bytes());
    }
    found.truncate(length);
    found
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

#[test]
fn responses_of_all_shapes_come_back_within_the_memory_of_nginx() {
    if !served("responses_of_all_shapes_come_back_within_the_memory_of_nginx") {
        return;
    }
    for (bits, memory_level) in [(31, 8), (31, 9), (30, 7), (27, 4), (25, 1), (31, 1), (25, 9)] {
        for level in [-1, 1, 2, 6, 9] {
            for length in [0, 1, 900, 10_000, 100_000, 300_000, 1_000_000] {
                if length > 300_000 && (level == 9 || bits != 31) {
                    continue;
                }
                for (piece, room) in
                    [(usize::MAX, 4096), (32_768, 4096), (4000, 65_536), (8192, 700)]
                {
                    for data in [text(length), noise(length.min(300_000))] {
                        let memory = Memory::as_nginx(
                            if bits > 15 { bits - 16 } else { bits },
                            memory_level,
                        );
                        let mut caller =
                            Caller::begin(&Api::OURS, memory, level, bits, memory_level);
                        for part in data.chunks(piece) {
                            caller.feed(part, room, NO_FLUSH);
                        }
                        assert_eq!(caller.feed(&[], room, FINISH), ENDED);
                        let what = format!("{bits} {memory_level} {level} {length} {piece} {room}");
                        assert!(caller.gunzip() == data, "{what}");
                        assert_eq!(caller.totals(), (data.len(), caller.output.len()), "{what}");
                        assert_eq!(
                            caller.memory().requests(),
                            (1, 0),
                            "{what}: one block, none beyond"
                        );
                        assert_eq!(caller.end(), OK, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn flushed_stream_is_readable_at_every_flush_and_stays_in_its_memory() {
    if !served("flushed_stream_is_readable_at_every_flush_and_stays_in_its_memory") {
        return;
    }
    for level in [1, 6] {
        for (bits, memory_level) in [(31, 8), (25, 1), (31, 9)] {
            let memory = Memory::as_nginx(bits - 16, memory_level);
            let mut caller = Caller::begin(&Api::OURS, memory, level, bits, memory_level);
            let mut sent: Vec<u8> = Vec::new();
            for event in 0..50 {
                let piece = text(1 + 137 * event % 5000);
                sent.extend(&piece);
                assert_eq!(caller.feed(&piece, 512, SYNC), OK);
                assert!(caller.readable() == sent, "{level} {bits} event {event}");
            }
            assert_eq!(caller.feed(&[], 512, FINISH), ENDED);
            assert!(caller.gunzip() == sent);
            assert_eq!(
                caller.memory().requests(),
                (1, 0),
                "{level} {bits}: zlib fits the block, too"
            );
            assert_eq!(caller.end(), OK);
        }
    }
}

#[test]
fn last_input_after_a_flush_ends_the_stream_in_one_call() {
    if !served("last_input_after_a_flush_ends_the_stream_in_one_call") {
        return;
    }
    let data = text(5000);
    for level in [1, 6] {
        let mut caller = Caller::begin(&Api::OURS, Memory::as_nginx(15, 8), level, 31, 8);
        assert_eq!(caller.feed(&data[..3], 65_536, SYNC), OK);
        assert_eq!(caller.call(&data[3..], 65_536, FINISH), (ENDED, data.len() - 3));
        assert!(caller.gunzip() == data, "{level}");
    }
}

#[test]
fn output_does_not_depend_on_what_memory_held_before() {
    if !served("output_does_not_depend_on_what_memory_held_before") {
        return;
    }
    let data = text(400_000);
    for level in [1, 6] {
        let outputs = [0x00, 0x5a, 0xff].map(|filling| {
            let memory = Memory::as_nginx(15, 8).filled(filling);
            let mut caller = Caller::begin(&Api::OURS, memory, level, 31, 8);
            for part in data.chunks(30_000) {
                caller.feed(part, 4096, NO_FLUSH);
            }
            caller.feed(&[], 4096, FINISH);
            caller.output.clone()
        });
        assert!(outputs[0] == outputs[1] && outputs[1] == outputs[2], "level {level}");
    }
}

#[test]
fn misuse_gets_the_answers_of_zlib() {
    if !served("misuse_gets_the_answers_of_zlib") {
        return;
    }
    let system = Api::system();
    for (name, case) in caller::MISUSE {
        let ours = case(&Api::OURS);
        assert_eq!(ours, case(&system), "{name}");
    }
}

#[test]
fn functions_that_need_zlib_get_the_stream_before_its_first_byte() {
    if !served("functions_that_need_zlib_get_the_stream_before_its_first_byte") {
        return;
    }
    for (name, call) in caller::NEED_ZLIB {
        let mut caller = Caller::begin(&Api::OURS, Memory::of_libc(), 6, 15, 8);
        assert_eq!(call(&mut caller), OK, "{name}");
        let data = text(5000);
        assert_eq!(caller.feed(&data, 512, FINISH), ENDED, "{name}");
        assert!(caller.inflated_by_zlib() == data, "{name}");
        assert_eq!(caller.end(), OK, "{name}");
    }
}

#[test]
fn abandoned_streams_leave_nothing_behind() {
    if !served("abandoned_streams_leave_nothing_behind") {
        return;
    }
    let data = text(60_000);
    let abandon = |count: usize| {
        for number in 0..count {
            let memory = Memory::as_nginx(15, 8);
            let level = if number % 2 == 0 { 1 } else { 6 };
            let mut caller = Caller::begin(&Api::OURS, memory, level, 31, 8);
            caller.feed(&data, 4096, if number % 3 == 0 { SYNC } else { NO_FLUSH });
            caller.feed(&data[..1000], 10, NO_FLUSH);
            // No end: the memory goes, and with it the stream.
        }
    };
    abandon(20);
    let before = caller::heap_bytes();
    abandon(500);
    let after = caller::heap_bytes();
    assert!(after <= before + 64 * 1024, "{before} to {after} bytes");
}
