// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! State machine of one stream. Safe code on slices: the stream's memory, input, output.
//!
//! ```text
//! Gather ── input is copied into the stream's memory until there is a chunk, a flush or the end
//!    │  ▲   a chunk is compressed at once; what does not fit into the output waits in the same memory
//!    │  └── the chunk is out
//!    ├── end: the last chunk and the trailer ─────────────────────────────────────► Finished
//!    └── flush: everything so far goes out ──► Flushed ── more input ──► System ──► Finished
//!                                                 └── end ─────────────────────────► Finished
//! ```
//!
//! A server that flushes sends small pieces that belong together (server-sent events). There a window over the
//! pieces matters more than speed, so that such a stream continues with the system's zlib, in the same memory.

use std::ops::Range;

use millrace_deflate::compressor::Compressor;
use millrace_deflate::engine::{Chunk, ChunkEnd, WINDOW};
use millrace_deflate::libdeflate::{adler32, crc32};

/// Frame around the deflate blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Zlib,
    Gzip,
}

/// zlib's flush values, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Flush {
    None,
    Block,
    Partial,
    Sync,
    Full,
    Finish,
}

impl Flush {
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            0 => Self::None,
            1 => Self::Partial,
            2 => Self::Sync,
            3 => Self::Full,
            4 => Self::Finish,
            5 => Self::Block,
            _ => return None,
        })
    }
}

/// The call before the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormerCall {
    /// There was none.
    None,
    /// The call filled the output.
    OutputFull,
    /// The call did all that this flush asks.
    Done(Flush),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// All that could be done was done.
    Ok,
    /// The stream is complete and out.
    End,
    /// There was nothing to do.
    Nothing,
    /// The caller must not do that now.
    Misuse,
    /// The rest of this call is for the system's zlib.
    System,
}

/// Input and output of one call.
#[derive(Debug)]
pub(crate) struct Io<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) output: &'a mut [u8],
    pub(crate) read: usize,
    pub(crate) written: usize,
}

impl<'a> Io<'a> {
    pub(crate) fn new(input: &'a [u8], output: &'a mut [u8]) -> Self {
        Self { input, output, read: 0, written: 0 }
    }

    fn rest(&self) -> &'a [u8] {
        &self.input[self.read..]
    }

    /// Copies as much as fits, and returns how much.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.output[self.written..];
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.written += count;
        count
    }
}

/// Compressor and buffer of a thread, used within one call.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) compressor: Compressor,
    pub(crate) output: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gather,
    Flushed,
    System,
    Finished,
}

/// A stream without its memory.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    format: Format,
    level: u8,
    phase: Phase,
    former: FormerCall,
    header_sent: bool,
    /// Checksum of the input that was compressed.
    check: u32,
    /// Length of the input that was compressed, modulo 2³².
    length: u32,
    chunks: u32,
    /// Bytes to gather before the first ones are sent.
    first_chunk: usize,
    /// Whether the head of the memory keeps the last [`WINDOW`] bytes, for engines that use them.
    keeps_history: bool,
    history: usize,
    /// Input that waits in the memory.
    gathered: usize,
    /// Output that waits in the memory.
    pending: Range<usize>,
    /// The trailer behind what the system's zlib wrote.
    tail: [u8; MAX_TRAILER_LEN],
    tail_pending: Range<usize>,
}

/// Bound on the trailer, in bytes: checksum and length of gzip.
const MAX_TRAILER_LEN: usize = 8;

/// Memory that output may take beyond its input, in bytes: head and trailer, and a header for each stored block of
/// 64 KiB in the largest memory that zlib's parameters give (392 KiB).
const SLACK: usize = 128;

/// Smallest memory of which a part keeps the history, in bytes: with less, chunks would become too short.
const MIN_MEMORY_FOR_HISTORY: usize = 4 * WINDOW;

/// Smallest memory for a stream, in bytes; zlib's smallest parameters give four times that.
pub(crate) const MIN_MEMORY: usize = 2048;

impl Stream {
    pub(crate) fn new(format: Format, level: u8, gather: usize, memory: usize) -> Self {
        Self {
            format,
            level,
            phase: Phase::Gather,
            former: FormerCall::None,
            header_sent: false,
            check: u32::from(format == Format::Zlib),
            length: 0,
            chunks: 0,
            first_chunk: gather,
            // Only ISA-L uses it, which is the choice at level 1.
            keeps_history: level == 1 && memory >= MIN_MEMORY_FOR_HISTORY,
            history: 0,
            gathered: 0,
            pending: 0..0,
            tail: [0; MAX_TRAILER_LEN],
            tail_pending: 0..0,
        }
    }

    /// Whether nothing has been asked of it yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.former == FormerCall::None
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Whether everything is out.
    pub(crate) fn is_ended(&self) -> bool {
        self.phase == Phase::Finished && self.pending.is_empty() && self.tail_pending.is_empty()
    }

    /// Whether the system's zlib holds a part of it.
    pub(crate) fn is_system(&self) -> bool {
        self.phase == Phase::System
    }

    /// Bytes that wait for output.
    pub(crate) fn waiting(&self) -> usize {
        self.pending.len() + self.tail_pending.len()
    }

    /// Checksum so far, as zlib shows it.
    pub(crate) fn check(&self) -> u32 {
        self.check
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Changes the level of a stream of which nothing has been asked, or whose chunk is out.
    pub(crate) fn set_level(&mut self, level: u8) {
        self.level = level;
    }

    /// Begins again.
    pub(crate) fn reset(&mut self, memory: usize) {
        *self = Self::new(self.format, self.level, self.first_chunk, memory);
    }

    /// Bytes before the first gathered one.
    fn base(&self) -> usize {
        if self.keeps_history { WINDOW } else { 0 }
    }

    /// Advances the stream until input or output is used up.
    pub(crate) fn step(
        &mut self,
        memory: &mut [u8],
        tools: &mut Tools,
        io: &mut Io<'_>,
        flush: Flush,
    ) -> CallOutcome {
        if let Some(refused) = self.refuse(io, flush) {
            return refused;
        }
        self.former = FormerCall::Done(flush);
        loop {
            self.drain(memory, io);
            if self.waiting() > 0 {
                self.former = FormerCall::OutputFull;
                return CallOutcome::Ok;
            }
            match self.phase {
                Phase::Finished => return CallOutcome::End,
                Phase::System => return CallOutcome::System,
                Phase::Flushed if !io.rest().is_empty() => {
                    self.phase = Phase::System;
                    return CallOutcome::System;
                }
                Phase::Flushed if flush == Flush::Finish => {
                    self.emit(memory, tools, io, Source::Memory, ChunkEnd::Final);
                }
                Phase::Flushed => return self.rested(io),
                Phase::Gather => {
                    if let Some(outcome) = self.gather(memory, tools, io, flush) {
                        return outcome;
                    }
                }
            }
        }
    }

    /// zlib's rules on calls that make no sense.
    fn refuse(&self, io: &Io<'_>, flush: Flush) -> Option<CallOutcome> {
        let finished = self.phase == Phase::Finished;
        if finished && flush != Flush::Finish {
            return Some(CallOutcome::Misuse);
        }
        // The rest: after the system's zlib has taken the input of this call, the end of the stream is not misuse.
        if io.output.is_empty() || finished && !io.rest().is_empty() {
            return Some(CallOutcome::Nothing);
        }
        // A weaker flush after a stronger one asks for nothing new.
        let is_weaker = matches!(self.former, FormerCall::Done(former) if flush <= former);
        let asks_nothing = io.input.is_empty() && flush != Flush::Finish && is_weaker;
        let idle = asks_nothing && self.waiting() == 0 && !self.is_system();
        idle.then_some(CallOutcome::Nothing)
    }

    /// Everything that was asked is done. With a full output the same flush may come again.
    fn rested(&mut self, io: &Io<'_>) -> CallOutcome {
        if io.written == io.output.len() {
            self.former = FormerCall::OutputFull;
        }
        CallOutcome::Ok
    }

    fn drain(&mut self, memory: &[u8], io: &mut Io<'_>) {
        self.pending.start += io.write(&memory[self.pending.clone()]);
        if self.pending.is_empty() {
            self.tail_pending.start += io.write(&self.tail[self.tail_pending.clone()]);
        }
    }

    /// One step of [`Phase::Gather`]. `None` if it made a chunk.
    fn gather(
        &mut self,
        memory: &mut [u8],
        tools: &mut Tools,
        io: &mut Io<'_>,
        flush: Flush,
    ) -> Option<CallOutcome> {
        let capacity = memory.len() - self.base() - SLACK;
        let input = io.rest();
        if flush == Flush::Finish && self.gathered == 0 && input.len() <= capacity {
            self.emit(memory, tools, io, Source::Input, ChunkEnd::Final);
            return None;
        }
        let limit = match (flush, self.chunks) {
            (Flush::None, 0) => capacity.min(self.first_chunk),
            _ => capacity,
        };
        let count = input.len().min(limit.saturating_sub(self.gathered));
        let at = self.base() + self.gathered;
        memory[at..at + count].copy_from_slice(&input[..count]);
        self.gathered += count;
        io.read += count;
        if count < input.len() {
            self.emit(memory, tools, io, Source::Memory, ChunkEnd::Open);
            return None;
        }
        match flush {
            Flush::None => return Some(CallOutcome::Ok),
            Flush::Finish => self.emit(memory, tools, io, Source::Memory, ChunkEnd::Final),
            Flush::Partial | Flush::Sync | Flush::Full | Flush::Block => {
                self.emit(memory, tools, io, Source::Memory, ChunkEnd::Open);
                self.phase = Phase::Flushed;
            }
        }
        None
    }

    /// Compresses a chunk: what was gathered, or all input of the call. Output that does not fit is kept where the
    /// gathered input was.
    fn emit(
        &mut self,
        memory: &mut [u8],
        tools: &mut Tools,
        io: &mut Io<'_>,
        source: Source,
        end: ChunkEnd,
    ) {
        let base = self.base();
        let (kept, rest) = memory.split_at_mut(base);
        let input = match source {
            Source::Memory => &rest[..self.gathered],
            Source::Input => io.rest(),
        };
        self.check = checksum(self.format, self.check, input);
        self.length = self.length.wrapping_add(low_half(input.len()));
        let output = &mut tools.output;
        output.clear();
        if !self.header_sent {
            self.header_sent = true;
            output.extend(header(self.format, self.level));
        }
        let chunk = Chunk { level: self.level, history: &kept[..self.history], input, end };
        tools.compressor.compress(&chunk, output);
        if end == ChunkEnd::Final {
            output.extend(trailer(self.format, self.check, self.length));
            self.phase = Phase::Finished;
        } else if self.keeps_history {
            self.history = remember(kept, self.history, input);
        }
        match source {
            Source::Memory => self.gathered = 0,
            Source::Input => io.read = io.input.len(),
        }
        self.chunks += 1;
        let written = io.write(output);
        let left = &output[written..];
        rest[..left.len()].copy_from_slice(left);
        self.pending = base..base + left.len();
    }

    /// The system's zlib could not be had: the stream stays with the engines.
    pub(crate) fn without_system(&mut self) {
        self.phase = Phase::Gather;
        self.history = 0;
    }

    /// The system's zlib took this input.
    pub(crate) fn system_took(&mut self, input: &[u8]) {
        self.check = checksum(self.format, self.check, input);
        self.length = self.length.wrapping_add(low_half(input.len()));
    }

    /// The system's zlib has completed its blocks: the trailer follows.
    pub(crate) fn system_ended(&mut self) {
        let trailer = trailer(self.format, self.check, self.length);
        self.tail[..trailer.len()].copy_from_slice(&trailer);
        self.tail_pending = 0..trailer.len();
        self.phase = Phase::Finished;
    }

    /// Upper bound of the output for `input` bytes in one stream with `memory` bytes.
    pub(crate) fn bound(&self, input: usize, memory: usize) -> usize {
        let chunk = (memory - self.base() - SLACK).min(self.first_chunk).min(65_535);
        input.saturating_add(16 * (input / chunk + 1)).saturating_add(SLACK)
    }
}

/// Place of a chunk's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Memory,
    Input,
}

/// Keeps the last bytes, and returns how many.
fn remember(kept: &mut [u8], before: usize, input: &[u8]) -> usize {
    let fresh = input.len().min(kept.len());
    let old = before.min(kept.len() - fresh);
    kept.copy_within(before - old..before, 0);
    kept[old..old + fresh].copy_from_slice(&input[input.len() - fresh..]);
    old + fresh
}

fn checksum(format: Format, before: u32, input: &[u8]) -> u32 {
    match format {
        Format::Raw => before,
        Format::Zlib => adler32(before, input),
        Format::Gzip => crc32(before, input),
    }
}

/// A length modulo 2³², as gzip has it.
fn low_half(length: usize) -> u32 {
    u32::try_from(length & 0xffff_ffff).unwrap_or_default()
}

/// The head of the stream, byte for byte that of zlib.
fn header(format: Format, level: u8) -> Vec<u8> {
    match format {
        Format::Raw => Vec::new(),
        Format::Zlib => {
            // RFC 1950: 32 KiB of window, and how hard the compressor tried.
            let tried = match level {
                0 | 1 => 0,
                2..=5 => 1,
                6 => 2,
                _ => 3_u16,
            };
            let head = 0x7800 | tried << 6;
            (head + 31 - head % 31).to_be_bytes().to_vec()
        }
        Format::Gzip => {
            // RFC 1952: no name, no time; how hard the compressor tried; Unix.
            let tried = match level {
                9 => 2,
                0 | 1 => 4,
                _ => 0,
            };
            vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, tried, 3]
        }
    }
}

fn trailer(format: Format, check: u32, length: u32) -> Vec<u8> {
    match format {
        Format::Raw => Vec::new(),
        Format::Zlib => check.to_be_bytes().to_vec(),
        Format::Gzip => [check.to_le_bytes(), length.to_le_bytes()].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_the_last_bytes_of_all_inputs() {
        let mut kept = vec![0; 10];
        let mut all = Vec::new();
        let mut length = 0;
        for piece in ["abc", "", "defgh", "ijkl", "0123456789abcdef", "z"] {
            all.extend(piece.as_bytes());
            length = remember(&mut kept, length, piece.as_bytes());
            assert_eq!(&kept[..length], &all[all.len() - all.len().min(10)..], "{piece}");
        }
    }

    #[test]
    fn heads_are_those_of_zlib() {
        assert_eq!(header(Format::Zlib, 1), [0x78, 0x01]);
        assert_eq!(header(Format::Zlib, 5), [0x78, 0x5e]);
        assert_eq!(header(Format::Zlib, 6), [0x78, 0x9c]);
        assert_eq!(header(Format::Zlib, 9), [0x78, 0xda]);
    }
}
