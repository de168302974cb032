// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls of libdeflate.

use std::ptr::NonNull;

use libdeflate_sys as c;

/// Tables of one level.
#[derive(Debug)]
pub(super) struct Compressor(NonNull<c::libdeflate_compressor>);

// SAFETY: the C object belongs to this value alone and is bound to no thread.
unsafe impl Send for Compressor {}

impl Compressor {
    /// Allocates them. `None` without memory, or for a level that libdeflate does not have.
    pub(super) fn new(level: u8) -> Option<Self> {
        // SAFETY: takes a number, and returns null for one that is out of range.
        NonNull::new(unsafe { c::libdeflate_alloc_compressor(level.into()) }).map(Self)
    }

    /// Writes a complete stream of raw deflate and returns its length. `None` if `output` is too short.
    pub(super) fn compress(&mut self, input: &[u8], output: &mut [u8]) -> Option<usize> {
        // SAFETY: both buffers are as long as stated, and do not overlap since one is exclusive.
        let length = unsafe {
            c::libdeflate_deflate_compress(
                self.0.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                output.as_mut_ptr().cast(),
                output.len(),
            )
        };
        (length != 0).then_some(length)
    }
}

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and freed once.
        unsafe { c::libdeflate_free_compressor(self.0.as_ptr()) };
    }
}

/// Decompresses raw deflate.
#[derive(Debug)]
pub struct Decompressor(NonNull<c::libdeflate_decompressor>);

// SAFETY: as for `Compressor`.
unsafe impl Send for Decompressor {}

impl Decompressor {
    /// A decompressor. `None` without memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        // SAFETY: takes nothing.
        NonNull::new(unsafe { c::libdeflate_alloc_decompressor() }).map(Self)
    }

    /// Whether the stream is complete, takes all of its bytes, and decompresses to exactly `output.len()` bytes,
    /// which are then there. It writes no more than that, whatever the stream says.
    pub fn fills(&mut self, stream: &[u8], output: &mut [u8]) -> bool {
        let mut read = 0;
        // SAFETY: both buffers are as long as stated; without a place for the length of the output, libdeflate
        // requires exactly this many bytes.
        let result = unsafe {
            c::libdeflate_deflate_decompress_ex(
                self.0.as_ptr(),
                stream.as_ptr().cast(),
                stream.len(),
                output.as_mut_ptr().cast(),
                output.len(),
                &raw mut read,
                std::ptr::null_mut(),
            )
        };
        result == c::libdeflate_result_LIBDEFLATE_SUCCESS && read == stream.len()
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, and freed once.
        unsafe { c::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}

/// The CRC-32 of gzip, continued from `before` (0 at the start).
#[must_use]
pub fn crc32(before: u32, bytes: &[u8]) -> u32 {
    // SAFETY: the buffer is as long as stated; for an empty one, libdeflate reads nothing of it.
    unsafe { c::libdeflate_crc32(before, bytes.as_ptr().cast(), bytes.len()) }
}

/// The Adler-32 of zlib's format, continued from `before` (1 at the start).
#[must_use]
pub fn adler32(before: u32, bytes: &[u8]) -> u32 {
    // SAFETY: as above.
    unsafe { c::libdeflate_adler32(before, bytes.as_ptr().cast(), bytes.len()) }
}
