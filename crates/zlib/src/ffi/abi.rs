// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! zlib's types and numbers (`zlib.h`, unchanged since 1.2).

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

/// `alloc_func`.
pub type Alloc = unsafe extern "C" fn(*mut c_void, c_uint, c_uint) -> *mut c_void;
/// `free_func`.
pub type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// `z_stream` of `zlib.h`, field by field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ZStream {
    /// Next byte of input.
    pub next_in: *const u8,
    /// Bytes of input.
    pub avail_in: c_uint,
    /// Bytes read so far.
    pub total_in: c_ulong,
    /// Place of the next byte of output.
    pub next_out: *mut u8,
    /// Bytes of room for output.
    pub avail_out: c_uint,
    /// Bytes written so far.
    pub total_out: c_ulong,
    /// Last error, or null.
    pub msg: *const c_char,
    /// Private state of zlib, or of this library, for the stream.
    pub state: *mut c_void,
    /// The caller's allocator, or none.
    pub zalloc: Option<Alloc>,
    /// The caller's function that frees memory, or none.
    pub zfree: Option<Free>,
    /// First argument of both.
    pub opaque: *mut c_void,
    /// A guess at what the data are.
    pub data_type: c_int,
    /// Adler-32 or CRC-32 of the data so far.
    pub adler: c_ulong,
    /// Kept for the layout of zlib.
    pub reserved: c_ulong,
}

pub(super) const Z_OK: c_int = 0;
pub(super) const Z_STREAM_END: c_int = 1;
pub(super) const Z_STREAM_ERROR: c_int = -2;
pub(super) const Z_DATA_ERROR: c_int = -3;
pub(super) const Z_MEM_ERROR: c_int = -4;
pub(super) const Z_BUF_ERROR: c_int = -5;
pub(super) const Z_VERSION_ERROR: c_int = -6;
pub(super) const Z_UNKNOWN: c_int = 2;
pub(super) const Z_BLOCK: c_int = 5;
/// zlib.h: the largest window, 32 KiB.
pub(super) const MAX_WBITS: c_int = 15;
pub(super) const DEFAULT_MEMORY_LEVEL: c_int = 8;
