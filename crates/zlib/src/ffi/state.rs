// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The one block of memory of a stream that was taken over.
//!
//! ```text
//! ┌ State ──────────────────────────────────┬ memory ───────────────────────────────────────────────┐
//! │ owner, status, magic: what zlib's own   │ history | gathered input or waiting output            │
//! │ check of a state looks at; the stream;  │ after a flush: everything that the system's zlib      │
//! │ the system's z_stream                   │ allocates, one piece behind the other                 │
//! └─────────────────────────────────────────┴───────────────────────────────────────────────────────┘
//! ```
//!
//! The block has the size that zlib itself would take, rounded up as nginx expects: nginx sets exactly that aside, and
//! logs an alert for every response that needs more.

use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::ptr;

use millrace_edge::compression::{Counter, EngineKind};

use super::abi::{MAX_WBITS, Z_BUF_ERROR, Z_OK, Z_STREAM_END, ZStream};
use super::next::Zlib;
use super::process::ServedProcess;
use crate::stream::{CallOutcome, Flush, Io, MIN_MEMORY, Stream, Tools};

/// Arguments of `deflateInit2_`, to begin again with zlib.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) level: c_int,
    pub(super) method: c_int,
    pub(super) window_bits: c_int,
    pub(super) memory_level: c_int,
    pub(super) strategy: c_int,
}

/// No status of zlib: if a function that is not interposed gets the stream, zlib refuses it.
const STATUS: c_int = 0x4d52;

/// `mrdefl01`: no state of zlib has it in this place.
const MAGIC: u64 = 0x6d72_6465_666c_3031;

/// Target of zlib's `z_stream::state`. zlib's own states begin with the same two fields.
#[repr(C)]
pub(super) struct State {
    owner: *mut ZStream,
    status: c_int,
    magic: u64,
    size: usize,
    pub(super) parameters: Parameters,
    pub(super) stream: Stream,
    /// The system's zlib on this block, after a flush.
    inner: ZStream,
    inner_open: bool,
    /// Bytes of the memory that it has allocated.
    inner_used: usize,
}

/// Alignment of all allocations, zlib's and ours.
const ALIGNMENT: usize = 16;

/// Offset of the memory in the block.
const HEAD: usize = size_of::<State>().next_multiple_of(ALIGNMENT);

/// Bytes of the block for these parameters: zlib's own need with 8 KiB for its state, as nginx computes it.
pub(super) fn block_size(window_bits: c_int, memory_level: c_int) -> usize {
    let window = 1_usize << (block_bits(window_bits) + 2);
    let whole = 8192 + window + (1 << (memory_level.unsigned_abs() + 9));
    // nginx rounds sizes that are not a multiple of 512, and are small, up to 8192.
    whole & !511
}

impl State {
    /// Puts a stream into a block of its owner's memory.
    ///
    /// # Safety
    /// `owner` is a valid stream whose allocator works. It must not move while it has a state, as with zlib.
    pub(super) unsafe fn create(
        owner: *mut ZStream,
        parameters: Parameters,
        stream: impl FnOnce(usize) -> Stream,
    ) -> Option<()> {
        let size = block_size(parameters.window_bits, parameters.memory_level);
        // SAFETY: the caller's promise.
        let block = unsafe { allocate(owner, 1, c_uint::try_from(size).ok()?) };
        if block.is_null() {
            return None;
        }
        let memory = size.checked_sub(HEAD).filter(|memory| *memory >= MIN_MEMORY)?;
        let state = Self {
            owner,
            status: STATUS,
            magic: MAGIC,
            size,
            parameters,
            stream: stream(memory),
            inner: ZStream::empty(),
            inner_open: false,
            inner_used: 0,
        };
        // SAFETY: `size` bytes, aligned as `malloc` aligns; the state fits.
        unsafe {
            block.cast::<Self>().write(state);
            (*owner).state = block;
        }
        Some(())
    }

    /// The state of a stream that was taken over. `None` if the state is zlib's, or null.
    ///
    /// # Safety
    /// `owner` is null or a stream, whose state is null or one of zlib's or of this library.
    pub(super) unsafe fn of<'a>(owner: *mut ZStream) -> Option<&'a mut Self> {
        if owner.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let state = unsafe { (*owner).state }.cast::<Self>();
        if state.is_null() {
            return None;
        }
        // SAFETY: zlib's states begin with a pointer and a status, too, and are longer than these three fields.
        let ours = unsafe {
            (*state).owner == owner && (*state).status == STATUS && (*state).magic == MAGIC
        };
        // SAFETY: written by `create`; the caller uses a stream on one thread at a time.
        ours.then(|| unsafe { &mut *state })
    }

    /// The stream and its memory. Not while the system's zlib has that.
    fn parts(&mut self) -> (&mut Stream, &mut [u8]) {
        let length = self.size - HEAD;
        // SAFETY: the block is `size` bytes long, and the memory behind the state belongs to the stream. It comes
        // from a C allocator, and no byte of it is read before it is written.
        let memory = unsafe {
            let start = ptr::from_mut(self).cast::<u8>().add(HEAD);
            std::slice::from_raw_parts_mut(start, length)
        };
        (&mut self.stream, memory)
    }

    pub(super) fn memory_len(&self) -> usize {
        self.size - HEAD
    }

    /// `deflate` for a stream that was taken over.
    pub(super) fn step(
        &mut self,
        process: &ServedProcess,
        zlib: Option<&Zlib>,
        tools: &mut Tools,
        io: &mut Io<'_>,
        flush: Flush,
        code: c_int,
    ) -> CallOutcome {
        loop {
            let (stream, memory) = self.parts();
            let outcome = stream.step(memory, tools, io, flush);
            if outcome != CallOutcome::System {
                return outcome;
            }
            let Some(zlib) = zlib.filter(|zlib| self.inner_open || self.open(process, zlib)) else {
                self.stream.without_system();
                continue;
            };
            let outcome = self.ask_system(process, zlib, io, code);
            if outcome != CallOutcome::End {
                return outcome;
            }
            self.stream.system_ended();
        }
    }

    /// Sets the system's zlib up in the stream's memory, for raw blocks.
    fn open(&mut self, process: &ServedProcess, zlib: &Zlib) -> bool {
        let parameters = self.parameters;
        let bits = block_bits(parameters.window_bits);
        self.inner = ZStream {
            zalloc: Some(allocate_inner),
            zfree: Some(free_inner),
            opaque: ptr::from_mut(self).cast(),
            ..ZStream::empty()
        };
        self.inner_used = 0;
        let size = c_int::try_from(size_of::<ZStream>()).unwrap_or(0);
        // SAFETY: a zeroed stream whose allocator hands out this block's memory.
        let result = unsafe {
            (zlib.init2)(
                &raw mut self.inner,
                c_int::from(self.stream.level()),
                parameters.method,
                -bits,
                parameters.memory_level,
                parameters.strategy,
                c"1".as_ptr(),
                size,
            )
        };
        self.inner_open = result == Z_OK;
        process.counters.add(Counter::Flushed, u64::from(self.inner_open));
        self.inner_open
    }

    fn ask_system(
        &mut self,
        process: &ServedProcess,
        zlib: &Zlib,
        io: &mut Io<'_>,
        code: c_int,
    ) -> CallOutcome {
        let input = &io.input[io.read..];
        let output = &mut io.output[io.written..];
        let given = c_uint::try_from(input.len()).unwrap_or(c_uint::MAX);
        let room = c_uint::try_from(output.len()).unwrap_or(c_uint::MAX);
        self.inner.next_in = input.as_ptr();
        self.inner.avail_in = given;
        self.inner.next_out = output.as_mut_ptr();
        self.inner.avail_out = room;
        self.inner.opaque = ptr::from_mut(self).cast();
        let start = std::time::Instant::now();
        // SAFETY: opened, and the buffers live across the call.
        let result = unsafe { (zlib.deflate)(&raw mut self.inner, code) };
        let read = (given - self.inner.avail_in) as usize;
        let written = (room - self.inner.avail_out) as usize;
        process.counters.add_chunk(EngineKind::System, read, written, start.elapsed());
        self.stream.system_took(&input[..read]);
        io.read += read;
        io.written += written;
        match result {
            Z_STREAM_END => CallOutcome::End,
            Z_OK => CallOutcome::Ok,
            Z_BUF_ERROR => CallOutcome::Nothing,
            _ => CallOutcome::Misuse,
        }
    }

    /// Ends the system's part and gives the block back. False if the stream was not complete.
    ///
    /// # Safety
    /// `self` is the state of its owner, and not used afterwards.
    pub(super) unsafe fn destroy(&mut self, zlib: Option<&Zlib>) -> bool {
        self.close(zlib);
        let owner = self.owner;
        let complete = self.stream.is_ended() || self.stream.is_fresh();
        // What a second `deflateEnd` finds is not a state.
        self.magic = 0;
        self.status = 0;
        // SAFETY: allocated by `create` from this owner.
        unsafe {
            free(owner, ptr::from_mut(self).cast());
            (*owner).state = ptr::null_mut();
        }
        complete
    }

    fn close(&mut self, zlib: Option<&Zlib>) {
        if mem::take(&mut self.inner_open)
            && let Some(zlib) = zlib
        {
            self.inner.opaque = ptr::from_mut(self).cast();
            // SAFETY: opened by `open`.
            unsafe { (zlib.end)(&raw mut self.inner) };
        }
    }

    /// Begins again.
    pub(super) fn reset(&mut self, zlib: Option<&Zlib>) {
        self.close(zlib);
        let memory = self.memory_len();
        self.stream.reset(memory);
    }

    /// Copies the stream into a block of another owner, which has a copy of this owner's fields.
    ///
    /// # Safety
    /// `other` is a valid stream with a working allocator.
    pub(super) unsafe fn copy_to(
        &mut self,
        other: *mut ZStream,
        zlib: Option<&Zlib>,
    ) -> Option<()> {
        if self.inner_open && zlib.is_none() {
            return None;
        }
        let size = self.size;
        let stream = self.stream.clone();
        // SAFETY: the caller's promise.
        unsafe { Self::create(other, self.parameters, |_| stream)? };
        // SAFETY: just created.
        let copy = unsafe { Self::of(other)? };
        // SAFETY: both blocks have this size, and do not overlap.
        unsafe {
            let from = ptr::from_ref(self).cast::<u8>().add(HEAD);
            ptr::copy_nonoverlapping(from, ptr::from_mut(copy).cast::<u8>().add(HEAD), size - HEAD);
        }
        if self.inner_open
            && let Some(zlib) = zlib
        {
            // zlib copies the source's fields, and with them where memory comes from.
            self.inner.opaque = ptr::from_mut(copy).cast();
            copy.inner_used = 0;
            // SAFETY: the source was opened; the allocator hands out memory of the copy.
            let result = unsafe { (zlib.copy)(&raw mut copy.inner, &raw mut self.inner) };
            self.inner.opaque = ptr::from_mut(self).cast();
            copy.inner_open = result == Z_OK;
            if !copy.inner_open {
                // SAFETY: created above, and used no more.
                unsafe { copy.destroy(Some(zlib)) };
                return None;
            }
        }
        Some(())
    }
}

/// The window of these parameters, for raw blocks. 31 and less is gzip's way to say 15 and less, and zlib turns a
/// window of 8 bits into one of 9.
fn block_bits(window_bits: c_int) -> c_int {
    let bits = window_bits.abs();
    if bits > MAX_WBITS { bits - 16 } else { bits }.max(9)
}

impl ZStream {
    /// A stream as a caller of zlib prepares it.
    pub(super) fn empty() -> Self {
        Self {
            next_in: ptr::null(),
            avail_in: 0,
            total_in: 0,
            next_out: ptr::null_mut(),
            avail_out: 0,
            total_out: 0,
            msg: ptr::null(),
            state: ptr::null_mut(),
            zalloc: None,
            zfree: None,
            opaque: ptr::null_mut(),
            data_type: 0,
            adler: 0,
            reserved: 0,
        }
    }
}

/// # Safety
/// `owner` has an allocator.
unsafe fn allocate(owner: *mut ZStream, items: c_uint, size: c_uint) -> *mut c_void {
    // SAFETY: the caller's promise.
    match unsafe { (*owner).zalloc } {
        // SAFETY: as above.
        Some(zalloc) => unsafe { zalloc((*owner).opaque, items, size) },
        None => ptr::null_mut(),
    }
}

/// # Safety
/// `memory` came from this owner's allocator.
unsafe fn free(owner: *mut ZStream, memory: *mut c_void) {
    // SAFETY: the caller's promise.
    if let Some(zfree) = unsafe { (*owner).zfree } {
        // SAFETY: as above.
        unsafe { zfree((*owner).opaque, memory) };
    }
}

/// Memory of the block for the system's zlib; beyond that, of the stream's owner.
unsafe extern "C" fn allocate_inner(
    state: *mut c_void,
    items: c_uint,
    size: c_uint,
) -> *mut c_void {
    let state = state.cast::<State>();
    let bytes = (items as usize * size as usize).next_multiple_of(ALIGNMENT);
    // SAFETY: `open` and `copy_to` give their state; the memory behind it belongs to it. The fields are read and
    // written one by one, since the caller holds the state, too.
    unsafe {
        let used = (*state).inner_used;
        if bytes <= (*state).size - HEAD - used {
            (*state).inner_used = used + bytes;
            return state.cast::<u8>().add(HEAD + used).cast();
        }
        if let Some(process) = super::process::process() {
            process.counters.add(Counter::MoreMemory, 1);
        }
        allocate((*state).owner, items, size)
    }
}

/// Counterpart: the block is freed as a whole.
unsafe extern "C" fn free_inner(state: *mut c_void, memory: *mut c_void) {
    let state = state.cast::<State>();
    // SAFETY: as above.
    unsafe {
        let start = state.cast::<u8>();
        let block = start..start.add((*state).size);
        if !block.contains(&memory.cast::<u8>()) {
            free((*state).owner, memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nginx 1.22 and 1.26 set `8192 + 16 + (1 << (wbits + 2)) + (1 << (memlevel + 9))` bytes aside.
    #[test]
    fn block_fits_what_nginx_sets_aside_and_zlib_fits_the_block() {
        for bits in 9..=15 {
            for memory_level in 1..=9 {
                let aside = 8192 + 16 + (1_usize << (bits + 2)) + (1 << (memory_level + 9));
                let block = block_size(bits + 16, memory_level);
                assert!(block <= aside && block.is_multiple_of(512), "{bits} {memory_level}");
                assert_eq!(block, block_size(-bits, memory_level));
                // `sizeof(deflate_state)` of zlib 1.2.13 and 1.3.1 on 64 bits is 5,936 and 5,968.
                let zlib =
                    5_968 + 4 * ALIGNMENT + (1_usize << (bits + 2)) + (1 << (memory_level + 9));
                assert!(zlib <= block - HEAD, "{bits} {memory_level}: head {HEAD}");
                assert!(block - HEAD >= MIN_MEMORY);
            }
        }
    }
}
