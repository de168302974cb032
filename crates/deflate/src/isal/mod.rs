// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel's ISA-L (igzip), loaded at run time from the system: four to six times as fast as zlib's level 1, at
//! the same size of output or less. Its levels end at about zlib's level 4.
//!
//! Only its compressor is used, each chunk with a state that was initialised for it: ISA-L up to 2.31 has
//! faults in its decompressor and in reused streams (fixed in 2.32.1).

use millrace_edge::compression::EngineKind;
use thiserror::Error;

use crate::blocks::{EMPTY, STORED_HEADER};
use crate::engine::{Chunk, ChunkEnd, Engine, EngineError};
use crate::libdeflate::Decompressor;

#[expect(unsafe_code, reason = "calls ISA-L through its C interface")]
mod sys;

/// The library that is looked for; Debian has it in the package libisal2.
pub const LIBRARY: &str = "libisal.so.2";

/// Why ISA-L is not used.
#[derive(Debug, Error)]
pub enum IsalError {
    /// There is no such library, or it lacks a function.
    #[error("{LIBRARY} cannot be loaded ({0}); Debian's package is libisal2")]
    Load(#[from] libloading::Error),
    /// There is no memory for its tables.
    #[error("no memory for the tables of {LIBRARY}")]
    NoMemory,
    /// The library compressed a known text wrongly, or wrote outside of its memory: another version than 2.x.
    #[error("{LIBRARY} does not behave as version 2 does; install Debian's libisal2")]
    Unknown,
}

/// ISA-L with its tables.
#[derive(Debug)]
pub struct Isal {
    state: sys::State,
}

impl Isal {
    /// Loads the library, and lets it compress a known text at each of its levels.
    pub fn load() -> Result<Self, IsalError> {
        let library = sys::Library::load()?;
        let state = sys::State::new(library).ok_or(IsalError::NoMemory)?;
        let mut loaded = Self { state };
        loaded.check().ok_or(IsalError::Unknown)?;
        Ok(loaded)
    }

    /// A further set of tables for another thread. `None` without memory.
    #[must_use]
    pub fn again(&self) -> Option<Self> {
        let state = sys::State::new(self.state.library())?;
        Some(Self { state })
    }

    fn check(&mut self) -> Option<()> {
        let text: Vec<u8> =
            (0..4_000_u32).flat_map(|n| (n * n % 9_973).to_string().into_bytes()).collect();
        let mut decompressor = Decompressor::new()?;
        let mut output = vec![0; 2 * text.len()];
        let mut back = vec![0; text.len()];
        for level in 1..=9 {
            let chunk = Chunk { level, history: &[], input: &text, end: ChunkEnd::Final };
            let length = self.compress(&chunk, &mut output).ok()?;
            let good = decompressor.fills(&output[..length], &mut back) && back == text;
            (good && self.state.is_within_bounds()).then_some(())?;
        }
        Some(())
    }
}

/// ISA-L's level for one of zlib's. Its level 3 costs about twice its level 1.
fn own_level(level: u8) -> u32 {
    match level {
        0 | 1 => 1,
        2..=5 => 2,
        _ => 3,
    }
}

impl Engine for Isal {
    fn kind(&self) -> EngineKind {
        EngineKind::Isal
    }

    fn uses_history(&self) -> bool {
        true
    }

    fn compress(&mut self, chunk: &Chunk<'_>, output: &mut [u8]) -> Result<usize, EngineError> {
        let level = own_level(chunk.level);
        let length = if chunk.history.is_empty() {
            self.state.stateless(level, chunk.input, chunk.end, output)?
        } else {
            self.state.continued(level, chunk.history, chunk.input, chunk.end, output)?
        };
        // ISA-L leaves out the empty block of a flush where a stored block has just ended at a byte. zlib always
        // writes it, and rsync waits for it. A second one does no harm, so input that looks like one gets it, too.
        let flushed = output[..length].ends_with(&EMPTY) && !chunk.input.ends_with(&EMPTY);
        if chunk.end == ChunkEnd::Final || flushed {
            return Ok(length);
        }
        let end = length + STORED_HEADER;
        let room = output.get_mut(length..end).ok_or(EngineError::NoRoom)?;
        room[0] = 0;
        room[1..].copy_from_slice(&EMPTY);
        Ok(end)
    }
}
