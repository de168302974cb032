// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! libdeflate, linked: the output of zlib's levels in about half the time, chunk by chunk. It also
//! decompresses, which is how every engine's output is verified, and computes the checksums.

use millrace_edge::compression::EngineKind;

use crate::blocks::{self, REOPEN_BYTES};
use crate::engine::{Chunk, ChunkEnd, Engine, EngineError};

#[expect(unsafe_code, reason = "calls libdeflate")]
mod sys;

pub use sys::{Decompressor, adler32, crc32};

/// The highest level of libdeflate, for what is compressed once and sent often.
pub const MAX_LEVEL: u8 = 12;

/// Reported where libdeflate writes a stream that its own walker cannot follow.
const UNREADABLE: i32 = -1;

/// Compressors, one for each level that was used.
#[derive(Debug, Default)]
pub struct Libdeflate {
    compressors: [Option<sys::Compressor>; MAX_LEVEL as usize + 1],
}

impl Libdeflate {
    /// Writes a complete stream at a level up to [`MAX_LEVEL`], and returns its length.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`] if `output` is too short; [`EngineError::NoMemory`].
    pub fn whole(
        &mut self,
        level: u8,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, EngineError> {
        let level = level.min(MAX_LEVEL);
        let place = &mut self.compressors[usize::from(level)];
        if place.is_none() {
            *place = sys::Compressor::new(level);
        }
        let compressor = place.as_mut().ok_or(EngineError::NoMemory)?;
        compressor.compress(input, output).ok_or(EngineError::NoRoom)
    }
}

impl Engine for Libdeflate {
    fn kind(&self) -> EngineKind {
        EngineKind::Libdeflate
    }

    fn uses_history(&self) -> bool {
        false
    }

    fn compress(&mut self, chunk: &Chunk<'_>, output: &mut [u8]) -> Result<usize, EngineError> {
        if chunk.end == ChunkEnd::Final {
            return self.whole(chunk.level, chunk.input, output);
        }
        let room = output.len().checked_sub(REOPEN_BYTES).ok_or(EngineError::NoRoom)?;
        let length = self.whole(chunk.level, chunk.input, &mut output[..room])?;
        blocks::reopen(output, length).map_err(|_| EngineError::Failed(UNREADABLE))
    }
}
