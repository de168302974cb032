// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The contract of an engine.
//!
//! ```
//! use millrace_deflate::blocks::stored_len;
//! use millrace_deflate::engine::{Chunk, ChunkEnd, Engine};
//! use millrace_deflate::libdeflate::{Decompressor, Libdeflate};
//!
//! let input = b"the same words, the same words, the same words";
//! let chunk = Chunk { level: 6, history: &[], input, end: ChunkEnd::Final };
//! let mut output = vec![0; stored_len(input.len(), chunk.end)];
//! let length = Libdeflate::default().compress(&chunk, &mut output)?;
//! assert!(length < input.len());
//!
//! let mut back = vec![0; input.len()];
//! let mut decompressor = Decompressor::new().expect("memory");
//! assert!(decompressor.fills(&output[..length], &mut back));
//! assert_eq!(back, input);
//! # Ok::<(), millrace_deflate::engine::EngineError>(())
//! ```

use millrace_edge::compression::EngineKind;
use thiserror::Error;

/// Longest distance back that a deflate stream may refer to, in bytes (RFC 1951, section 2).
pub const WINDOW: usize = 32 * 1024;

/// How the blocks of a chunk end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkEnd {
    /// With an empty stored block: another chunk may follow.
    Open,
    /// With a final block: the stream ends.
    Final,
}

/// A piece of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// zlib's level, 1 to 9.
    pub level: u8,
    /// The bytes before the input, at most [`WINDOW`]; an engine may refer to them.
    pub history: &'a [u8],
    /// The bytes to compress.
    pub input: &'a [u8],
    /// How its blocks end.
    pub end: ChunkEnd,
}

/// Why an engine gave no output.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EngineError {
    /// The output is longer than the space for it: the input does not compress.
    #[error("the output does not fit")]
    NoRoom,
    /// The library reported an error, or wrote something that is not a deflate stream.
    #[error("the library failed with code {0}")]
    Failed(i32),
    /// There is no memory for its tables.
    #[error("out of memory")]
    NoMemory,
    /// There is no device, or it is being started.
    #[error("the device is not there")]
    Away,
    /// Others use the device.
    #[error("the device is busy")]
    Busy,
    /// The device gave no answer in time.
    #[error("the device did not answer")]
    Late,
}

/// A compressor of chunks. Its memory may serve any stream, since it keeps nothing of one.
pub trait Engine {
    /// Kind of the engine.
    fn kind(&self) -> EngineKind;

    /// Whether the engine uses [`Chunk::history`].
    fn uses_history(&self) -> bool;

    /// Writes the chunk, whose input is not empty, as raw deflate blocks and returns their length in bytes.
    ///
    /// The blocks end at a byte.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`] if `output` is too short, else what went wrong. `output` is then undefined.
    fn compress(&mut self, chunk: &Chunk<'_>, output: &mut [u8]) -> Result<usize, EngineError>;
}
