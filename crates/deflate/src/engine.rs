// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The contract of an engine.

use millrace_edge::compression::EngineKind;
use thiserror::Error;

/// Longest distance back that a deflate stream may refer to, in bytes (RFC 1951, section 2).
pub const WINDOW: usize = 32 * 1024;

/// A piece of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// zlib's level, 1 to 9.
    pub level: u8,
    /// The bytes before the input, at most [`WINDOW`]; an engine may refer to them.
    pub history: &'a [u8],
    /// The bytes to compress.
    pub input: &'a [u8],
    /// Whether the stream ends with this chunk.
    pub last: bool,
}

/// Why an engine gave no output.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum EngineError {
    /// The output is longer than the space for it: the input does not compress.
    #[error("the output does not fit")]
    NoRoom,
    /// The library reported an error, or wrote something that is no deflate stream.
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
    /// The blocks end at a byte: with a final block if the chunk is the last one, else with an empty stored
    /// block, after which another chunk may follow.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`] if `output` is too short, else what went wrong. `output` is then undefined.
    fn compress(&mut self, chunk: &Chunk<'_>, output: &mut [u8]) -> Result<usize, EngineError>;
}
