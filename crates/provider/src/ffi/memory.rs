// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Memory of the application: bytes that it passes in, and buffers for results.

use crate::error::{Error, Reason, Result};

/// A buffer of the application, with a place for the length of what is put there.
pub(crate) struct Buffer {
    pub(crate) start: *mut u8,
    len: *mut usize,
    room: usize,
}

impl Buffer {
    pub(crate) fn new(start: *mut u8, len: *mut usize, room: usize) -> Self {
        Self { start, len, room }
    }

    /// Copies a result into the buffer.
    ///
    /// # Safety
    /// `start` is null or writable for `room` bytes, none of which belong to `output`; `len` is null or
    /// writable.
    pub(crate) unsafe fn fill(&self, output: &[u8]) -> Result<()> {
        if output.len() > self.room || self.start.is_null() {
            return Err(too_short(output.len(), self.room));
        }
        // SAFETY: not null and with room enough, and by this function's contract writable and apart from
        // `output`.
        unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), self.start, output.len()) };
        // SAFETY: by this function's contract.
        unsafe { self.set_len(output.len()) }
    }

    /// Says how long the result is or will be.
    ///
    /// # Safety
    /// `len` is null or writable.
    pub(crate) unsafe fn set_len(&self, len: usize) -> Result<()> {
        // SAFETY: by this function's contract, and it is checked for null.
        match unsafe { self.len.as_mut() } {
            Some(place) => *place = len,
            None => {
                return Err(Error::new(Reason::Internal, "there is no place for the length"));
            }
        }
        Ok(())
    }
}

/// The bytes that C describes by pointer and length.
///
/// # Safety
/// `data` is readable for `len` bytes, which do not change for `'a`; null is allowed if `len` is 0.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: not null, and by this function's contract readable and unchanged for `'a`.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// The error of a buffer of `room` bytes, for a result of `len`.
pub(crate) fn too_short(len: usize, room: usize) -> Error {
    let text = format!("the result has {len} bytes, the application's buffer only {room}");
    Error::new(Reason::Buffer, text)
}

/// Writes the length of a result, if the application has passed a place for it.
///
/// # Safety
/// `place` is null or writable.
pub(crate) unsafe fn write_len(place: *mut usize, len: usize) {
    // SAFETY: by this function's contract.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = len;
    }
}
