// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calls of ISA-L, and the fields of its structure that a caller sets (`igzip_lib.h`, the same in 2.30, 2.31
//! and 2.32).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};

use crate::engine::{ChunkEnd, EngineError};

/// The public head of `struct isal_zstream`.
#[repr(C)]
struct Head {
    next_in: *const u8,
    avail_in: u32,
    total_in: u32,
    next_out: *mut u8,
    avail_out: u32,
    total_out: u32,
    hufftables: *mut c_void,
    level: u32,
    level_buf_size: u32,
    level_buf: *mut u8,
    end_of_stream: u16,
    flush: u16,
    gzip_flag: u16,
    hist_bits: u16,
}

const NO_FLUSH: u16 = 0;
const SYNC_FLUSH: u16 = 1;
const FULL_FLUSH: u16 = 2;
const COMP_OK: c_int = 0;
const STATELESS_OVERFLOW: c_int = -1;

/// Reported when ISA-L says that all is well and leaves input.
const INPUT_LEFT: i32 = -1000;

/// Memory for the whole structure: 82,384 bytes in all versions of the library so far.
const STREAM_BYTES: usize = 128 * 1024;
/// Bytes that the structure may take; behind it lie [`GUARD`] bytes.
const KNOWN_STREAM_BYTES: usize = 96 * 1024;
/// Memory for the tables of a level: the largest that the library asks for is `ISAL_DEF_LVL3_EXTRA_LARGE`, 348,160.
const LEVEL_BYTES: usize = 384 * 1024;
/// Bytes of it that the library may use.
const KNOWN_LEVEL_BYTES: u32 = 348_160;
const GUARD: u8 = 0xa5;
/// The widest vectors of the library.
const ALIGNMENT: usize = 64;

type Init = unsafe extern "C" fn(*mut Head);
type Deflate = unsafe extern "C" fn(*mut Head) -> c_int;
type SetDict = unsafe extern "C" fn(*mut Head, *const u8, u32) -> c_int;

/// Functions of the loaded library, which stays loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    deflate_init: Init,
    deflate: Deflate,
    stateless_init: Init,
    stateless: Deflate,
    set_dict: SetDict,
}

impl Library {
    pub(super) fn load() -> Result<Self, libloading::Error> {
        // SAFETY: ISA-L has no constructors beyond resolving which processor this is.
        let library = unsafe { libloading::Library::new(super::LIBRARY)? };
        // SAFETY: the types are those of `igzip_lib.h`.
        let found = unsafe {
            Self {
                deflate_init: *library.get(b"isal_deflate_init\0")?,
                deflate: *library.get(b"isal_deflate\0")?,
                stateless_init: *library.get(b"isal_deflate_stateless_init\0")?,
                stateless: *library.get(b"isal_deflate_stateless\0")?,
                set_dict: *library.get(b"isal_deflate_set_dict\0")?,
            }
        };
        // The functions are valid as long as the library is loaded.
        std::mem::forget(library);
        Ok(found)
    }
}

/// Zeroed memory with guard bytes behind what the library uses.
struct Area {
    start: NonNull<u8>,
    size: usize,
    used: usize,
}

impl Area {
    fn new(size: usize, used: usize) -> Option<Self> {
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: the area is `size` bytes long, and `used` is less.
        unsafe { ptr::write_bytes(start.as_ptr().add(used), GUARD, size - used) };
        Some(Self { start, size, used })
    }

    fn is_intact(&self) -> bool {
        // SAFETY: initialised by `new`, and inside of the area.
        let guard = unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(self.used), self.size - self.used)
        };
        guard.iter().all(|byte| *byte == GUARD)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if let Ok(layout) = Layout::from_size_align(self.size, ALIGNMENT) {
            // SAFETY: allocated by `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// The structure and the tables of one thread.
pub(super) struct State {
    library: Library,
    stream: Area,
    level: Area,
}

// SAFETY: the memory belongs to this value alone, and the library keeps no state.
unsafe impl Send for State {}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl State {
    pub(super) fn new(library: Library) -> Option<Self> {
        let known = usize::try_from(KNOWN_LEVEL_BYTES).ok()?;
        Some(Self {
            library,
            stream: Area::new(STREAM_BYTES, KNOWN_STREAM_BYTES)?,
            level: Area::new(LEVEL_BYTES, known)?,
        })
    }

    pub(super) fn library(&self) -> Library {
        self.library
    }

    /// Whether the library has written only where it may.
    pub(super) fn is_within_bounds(&self) -> bool {
        self.stream.is_intact() && self.level.is_intact()
    }

    /// Compresses a chunk that refers to nothing before it.
    pub(super) fn stateless(
        &mut self,
        level: u32,
        input: &[u8],
        end: ChunkEnd,
        output: &mut [u8],
    ) -> Result<usize, EngineError> {
        let (end_of_stream, flush) = match end {
            ChunkEnd::Final => (1, NO_FLUSH),
            ChunkEnd::Open => (0, FULL_FLUSH),
        };
        let head = self.prepare(self.library.stateless_init, level, input, output)?;
        // SAFETY: `prepare` gives the structure, whose buffers live across the call.
        let result = unsafe {
            (*head).end_of_stream = end_of_stream;
            (*head).flush = flush;
            (self.library.stateless)(head)
        };
        // SAFETY: as above.
        unsafe { Self::outcome(head, result) }
    }

    /// Compresses a chunk that may refer to the history.
    pub(super) fn continued(
        &mut self,
        level: u32,
        history: &[u8],
        input: &[u8],
        end: ChunkEnd,
        output: &mut [u8],
    ) -> Result<usize, EngineError> {
        let (end_of_stream, flush) = match end {
            ChunkEnd::Final => (1, NO_FLUSH),
            ChunkEnd::Open => (0, SYNC_FLUSH),
        };
        let length = u32::try_from(history.len()).map_err(|_| EngineError::NoRoom)?;
        let head = self.prepare(self.library.deflate_init, level, input, output)?;
        // SAFETY: `prepare` gives the structure; the library copies the history.
        let result = unsafe { (self.library.set_dict)(head, history.as_ptr(), length) };
        if result != COMP_OK {
            return Err(EngineError::Failed(result));
        }
        // SAFETY: the buffers live across the call.
        let result = unsafe {
            (*head).end_of_stream = end_of_stream;
            (*head).flush = flush;
            (self.library.deflate)(head)
        };
        // SAFETY: as above.
        unsafe { Self::outcome(head, result) }
    }

    fn prepare(
        &self,
        init: Init,
        level: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<*mut Head, EngineError> {
        let head: *mut Head = self.stream.start.as_ptr().cast();
        let avail_in = u32::try_from(input.len()).map_err(|_| EngineError::NoRoom)?;
        let avail_out = u32::try_from(output.len()).unwrap_or(u32::MAX);
        // SAFETY: the area is larger than the structure and aligned; raw deflate (gzip_flag 0) is what the
        // initialisation sets.
        unsafe {
            init(head);
            (*head).next_in = input.as_ptr();
            (*head).avail_in = avail_in;
            (*head).next_out = output.as_mut_ptr();
            (*head).avail_out = avail_out;
            (*head).level = level;
            (*head).level_buf = self.level.start.as_ptr();
            (*head).level_buf_size = KNOWN_LEVEL_BYTES;
        }
        Ok(head)
    }

    /// # Safety
    /// `head` is the structure after a call of the library.
    unsafe fn outcome(head: *mut Head, result: c_int) -> Result<usize, EngineError> {
        // SAFETY: the caller's promise.
        let (left, room, written) =
            unsafe { ((*head).avail_in, (*head).avail_out, (*head).total_out) };
        match result {
            STATELESS_OVERFLOW => Err(EngineError::NoRoom),
            // A full output may hide a rest.
            COMP_OK if room == 0 => Err(EngineError::NoRoom),
            COMP_OK if left != 0 => Err(EngineError::Failed(INPUT_LEFT)),
            COMP_OK => usize::try_from(written).map_err(|_| EngineError::NoRoom),
            error => Err(EngineError::Failed(error)),
        }
    }
}
