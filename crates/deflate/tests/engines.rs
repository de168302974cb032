// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every engine against an independent decompressor, and engines that lie.

use std::cell::Cell;
use std::io::Read as _;
use std::rc::Rc;

use flate2::read::DeflateDecoder;
use flate2::{Decompress, FlushDecompress};
use millrace_deflate::blocks::{self, FINAL_EMPTY};
use millrace_deflate::compressor::{Compressor, Engines};
use millrace_deflate::engine::{Chunk, ChunkEnd, Engine, EngineError, WINDOW};
use millrace_deflate::isal::Isal;
use millrace_deflate::settings::{ChunkVerification, CompressionSettings};
use millrace_edge::compression::{Counter, Counters, EngineKind};
use proptest::prelude::*;

fn inflate(stream: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    DeflateDecoder::new(stream).read_to_end(&mut found).expect("a deflate stream");
    found
}

/// Text, and bytes that do not compress.
fn sample(kind: usize, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut found = Vec::with_capacity(length + 16);
    while found.len() < length {
        match kind {
            0 => found.extend(format!("<li id=\"{}\">item</li>\n", random.u32(..500)).into_bytes()),
            1 => found.push(random.u8(..)),
            _ => found.push(b'a'),
        }
    }
    found.truncate(length);
    found
}

fn compressors() -> Vec<(&'static str, Compressor, Counters)> {
    let only = |isal: bool| CompressionSettings {
        isal,
        libdeflate: !isal,
        verify: ChunkVerification::All,
        ..CompressionSettings::default()
    };
    let mut found = Vec::new();
    let counters = Counters::private();
    found.push(("libdeflate", Compressor::new(only(false), counters, None, None), counters));
    match Isal::load() {
        Ok(isal) => {
            let counters = Counters::private();
            found.push(("isal", Compressor::new(only(true), counters, Some(isal), None), counters));
        }
        Err(error) => eprintln!("without ISA-L: {error}"),
    }
    found
}

#[test]
fn every_engine_level_and_kind_of_data_comes_back() {
    for (name, mut compressor, counters) in compressors() {
        for level in 1..=9 {
            for kind in 0..3 {
                for length in [1, 2, 100, 1_000, 40_000, 200_000] {
                    let text = sample(kind, length);
                    let mut stream = Vec::new();
                    let mut history: &[u8] = &[];
                    for (index, input) in text.chunks(70_000).enumerate() {
                        let chunk = Chunk {
                            level,
                            history,
                            input,
                            end: if 70_000 * index + input.len() == text.len() {
                                ChunkEnd::Final
                            } else {
                                ChunkEnd::Open
                            },
                        };
                        let before = stream.len();
                        compressor.compress(&chunk, &mut stream);
                        let most = blocks::stored_len(input.len(), chunk.end);
                        assert!(stream.len() - before <= most, "{name} {level} {kind} {length}");
                        history = &input[input.len().saturating_sub(WINDOW)..];
                    }
                    assert!(inflate(&stream) == text, "{name} {level} {kind} {length}");
                }
            }
        }
        for wrong in [
            Counter::WrongIsal,
            Counter::WrongLibdeflate,
            Counter::FailedIsal,
            Counter::FailedLibdeflate,
        ] {
            assert_eq!(counters.get(wrong), 0, "{name}: {}", wrong.name());
        }
        assert!(counters.get(Counter::Verified) > 0, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn chunks_of_any_lengths_form_one_stream(
        lengths in prop::collection::vec(0_usize..20_000, 1..8),
        kind in 0_usize..3,
        level in 1_u8..10,
    ) {
        for (name, mut compressor, _) in compressors() {
            let text = sample(kind, lengths.iter().sum());
            let mut stream = Vec::new();
            let mut at = 0_usize;
            for length in &lengths {
                let chunk = Chunk {
                    level,
                    history: &text[at.saturating_sub(WINDOW)..at],
                    input: &text[at..at + length],
                    end: ChunkEnd::Open,
                };
                compressor.compress(&chunk, &mut stream);
                at += length;
            }
            stream.extend(FINAL_EMPTY);
            prop_assert!(inflate(&stream) == text, "{}", name);
        }
    }
}

/// Flips a bit of what libdeflate writes, returns too little, or fails.
struct Liar {
    kind: EngineKind,
    lie: Lie,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    FlippedBit,
    TooShort,
    NotItsInput,
    Error,
}

impl Engine for Liar {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn uses_history(&self) -> bool {
        false
    }

    fn compress(&mut self, chunk: &Chunk<'_>, output: &mut [u8]) -> Result<usize, EngineError> {
        let mut honest = millrace_deflate::libdeflate::Libdeflate::default();
        let length = honest.compress(chunk, output)?;
        match self.lie {
            Lie::FlippedBit => output[length / 2] ^= 0x10,
            Lie::TooShort => return Ok(length / 2),
            Lie::NotItsInput => {
                let other = Chunk { input: &chunk.input[1..], ..*chunk };
                return honest.compress(&other, output);
            }
            Lie::Error => return Err(EngineError::Failed(-7)),
        }
        Ok(length)
    }
}

/// zlib's `Z_SYNC_FLUSH` ends with an empty stored block. rsync takes its last four bytes away and puts them back.
#[test]
fn unfinished_chunk_ends_with_an_empty_stored_block_at_every_level() {
    const EMPTY: [u8; 4] = [0, 0, 0xff, 0xff];
    let noise = sample(1, 50_000);
    let mut looks_flushed = sample(1, 9_000);
    looks_flushed.extend(EMPTY);
    let inputs =
        [&b"a"[..], &noise[..300], &noise[..9_000], &noise, &looks_flushed, &sample(0, 50_000)];
    for (name, mut compressor, _) in compressors() {
        for (level, input) in (1..=9).flat_map(|level| inputs.map(|input| (level, input))) {
            let place = || format!("{name}, level {level}, {} bytes", input.len());
            for history in [&noise[..WINDOW], &[]] {
                let chunk = Chunk { level, history, input, end: ChunkEnd::Open };
                let mut output = Vec::new();
                compressor.compress(&chunk, &mut output);
                assert!(output.ends_with(&EMPTY), "{}", place());
                if history.is_empty() {
                    // Every byte of the input is there before the block.
                    let mut back = Vec::with_capacity(input.len() + 1);
                    Decompress::new(false)
                        .decompress_vec(
                            &output[..output.len() - EMPTY.len()],
                            &mut back,
                            FlushDecompress::Sync,
                        )
                        .expect("a deflate stream");
                    assert!(back == input, "{}", place());
                }
            }
        }
    }
}

#[test]
fn wrong_output_is_replaced_and_its_engine_quarantined() {
    let text = sample(0, 50_000);
    for lie in [Lie::FlippedBit, Lie::TooShort, Lie::NotItsInput, Lie::Error] {
        for spare in [true, false] {
            for end in [ChunkEnd::Final, ChunkEnd::Open] {
                let counters = Counters::private();
                let settings = CompressionSettings {
                    verify: ChunkVerification::All,
                    ..CompressionSettings::default()
                };
                let liar = Liar { kind: EngineKind::Isal, lie };
                let honest = spare.then(|| {
                    Box::new(millrace_deflate::libdeflate::Libdeflate::default()) as Box<dyn Engine>
                });
                let mut compressor = Compressor::with_engines(
                    settings,
                    counters,
                    Engines { isal: Some(Box::new(liar)), libdeflate: honest, qat: None },
                );
                let mut stream = Vec::new();
                let chunk = Chunk { level: 1, history: &[], input: &text, end };
                compressor.compress(&chunk, &mut stream);
                if end == ChunkEnd::Open {
                    stream.extend(FINAL_EMPTY);
                }
                assert!(inflate(&stream) == text, "{lie:?} {spare} {end:?}");
                let by = if spare { Counter::LibdeflateChunks } else { Counter::StoredChunks };
                assert_eq!(counters.get(by), 1, "{lie:?} {spare} {end:?}");
                // An error is not a wrong output: the engine is tried again.
                let quarantined = lie != Lie::Error;
                assert_eq!(counters.is_quarantined(EngineKind::Isal), quarantined, "{lie:?}");
                assert_eq!(compressor.is_useful(), spare || !quarantined, "{lie:?}");
            }
        }
    }
}

#[test]
fn bytes_that_do_not_compress_are_stored() {
    let mut noise = vec![0; 100_000];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    for (name, mut compressor, counters) in compressors() {
        let mut stream = Vec::new();
        let chunk = Chunk { level: 6, history: &[], input: &noise, end: ChunkEnd::Final };
        compressor.compress(&chunk, &mut stream);
        assert!(stream.len() <= blocks::stored_len(noise.len(), chunk.end), "{name}");
        assert!(inflate(&stream) == noise, "{name}");
        assert_eq!(
            counters.get(Counter::FailedIsal) + counters.get(Counter::FailedLibdeflate),
            0,
            "{name}"
        );
    }
}

/// Counts its calls, and finds every chunk too long.
struct Overflowing {
    kind: EngineKind,
    calls: Rc<Cell<u32>>,
}

impl Engine for Overflowing {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn uses_history(&self) -> bool {
        false
    }

    fn compress(&mut self, _: &Chunk<'_>, _: &mut [u8]) -> Result<usize, EngineError> {
        self.calls.set(self.calls.get() + 1);
        Err(EngineError::NoRoom)
    }
}

#[test]
fn packed_bytes_that_one_engine_cannot_shorten_are_stored_without_the_other() {
    let packed: Vec<u8> =
        (0..20_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    for (input, tried_by_libdeflate) in [(packed, 0), (sample(0, 20_000), 1)] {
        let calls = [(); 2].map(|()| Rc::new(Cell::new(0)));
        let engine = |kind, calls: &Rc<Cell<u32>>| {
            let calls = Rc::clone(calls);
            Some(Box::new(Overflowing { kind, calls }) as Box<dyn Engine>)
        };
        let counters = Counters::private();
        let mut compressor = Compressor::with_engines(
            CompressionSettings::default(),
            counters,
            Engines {
                isal: engine(EngineKind::Isal, &calls[0]),
                libdeflate: engine(EngineKind::Libdeflate, &calls[1]),
                qat: None,
            },
        );
        let mut stream = Vec::new();
        let chunk = Chunk { level: 6, history: &[], input: &input, end: ChunkEnd::Final };
        compressor.compress(&chunk, &mut stream);
        assert!(inflate(&stream) == input);
        assert_eq!(counters.get(Counter::StoredChunks), 1);
        assert_eq!(calls.map(|calls| calls.get()), [1, tried_by_libdeflate]);
    }
}
