// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! zlib's functions for compression. They carry no version, so that they stand for every version of a symbol that
//! a program asks for. Those of the system's zlib call each other through the program's symbols, and so may call
//! these: each goes on to the system's function if the stream is not one that was taken over.

mod abi;
mod next;
mod process;
mod state;

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

pub use abi::{Alloc, Free, ZStream};
use abi::{
    DEFAULT_MEMORY_LEVEL, MAX_WBITS, Z_BLOCK, Z_BUF_ERROR, Z_DATA_ERROR, Z_MEM_ERROR, Z_OK,
    Z_STREAM_END, Z_STREAM_ERROR, Z_UNKNOWN, Z_VERSION_ERROR,
};
use millrace_edge::compression::Counter;
use next::Zlib;
use process::{ServedProcess, process};
use state::{Parameters, State};

use crate::program::{DEFAULT_LEVEL, DEFLATED, NotTaken, Wanted};
use crate::stream::{CallOutcome, Flush, Io, Stream};

/// Runs the body of an exported function. A fault of ours becomes an error of zlib, and is counted.
fn guard(body: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        if let Some(process) = process() {
            process.counters.add(Counter::Panics, 1);
        }
        Z_STREAM_ERROR
    })
}

/// Calls a function of the system's zlib, or says that there is none.
fn forward(call: impl FnOnce(&Zlib) -> c_int) -> c_int {
    next::zlib().map_or(Z_MEM_ERROR, call)
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateInit_`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateInit_(
    stream: *mut ZStream,
    level: c_int,
    version: *const c_char,
    stream_size: c_int,
) -> c_int {
    // SAFETY: as zlib's own does.
    unsafe {
        deflateInit2_(
            stream,
            level,
            DEFLATED,
            MAX_WBITS,
            DEFAULT_MEMORY_LEVEL,
            0,
            version,
            stream_size,
        )
    }
}

/// Interposed: takes the stream over if it is a response of a server that is known.
///
/// # Safety
/// As for zlib's `deflateInit2_`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateInit2_(
    stream: *mut ZStream,
    level: c_int,
    method: c_int,
    window_bits: c_int,
    memory_level: c_int,
    strategy: c_int,
    version: *const c_char,
    stream_size: c_int,
) -> c_int {
    let parameters = Parameters { level, method, window_bits, memory_level, strategy };
    guard(|| {
        // SAFETY: a C string, if any.
        let known = !version.is_null() && unsafe { *version } == b'1'.cast_signed();
        let sized = usize::try_from(stream_size) == Ok(size_of::<ZStream>());
        if !known || !sized {
            return Z_VERSION_ERROR;
        }
        if stream.is_null() {
            return Z_STREAM_ERROR;
        }
        if let Some(process) = process() {
            // SAFETY: valid by this function's contract.
            match unsafe { take(process, stream, parameters) } {
                Ok(()) => return Z_OK,
                Err(reason) => process.counters.add(reason, 1),
            }
        }
        // SAFETY: forwarded unchanged.
        forward(|zlib| unsafe { begin(zlib, stream, parameters) })
    })
}

/// # Safety
/// As for zlib's `deflateInit2_`.
unsafe fn begin(zlib: &Zlib, stream: *mut ZStream, parameters: Parameters) -> c_int {
    let Parameters { level, method, window_bits, memory_level, strategy } = parameters;
    let size = c_int::try_from(size_of::<ZStream>()).unwrap_or(0);
    // SAFETY: the caller's promise; the version and the size were checked.
    unsafe {
        (zlib.init2)(
            stream,
            level,
            method,
            window_bits,
            memory_level,
            strategy,
            c"1".as_ptr(),
            size,
        )
    }
}

/// Takes a stream over.
///
/// # Errors
/// Counter of the reason why the stream is left to zlib.
///
/// # Safety
/// `stream` is valid.
unsafe fn take(
    process: &ServedProcess,
    stream: *mut ZStream,
    parameters: Parameters,
) -> Result<(), Counter> {
    // SAFETY: the caller's promise.
    let fields = unsafe { &mut *stream };
    let wanted = Wanted {
        level: parameters.level,
        method: parameters.method,
        window_bits: parameters.window_bits,
        memory_level: parameters.memory_level,
        strategy: parameters.strategy,
        own_memory: fields.zalloc.is_some(),
    };
    let (format, level) = process.program.takes(&wanted).map_err(|reason| match reason {
        NotTaken::Format => Counter::ForwardedFormat,
        NotTaken::Level => Counter::ForwardedLevel,
    })?;
    if !process.is_useful() {
        return Err(Counter::ForwardedEngines);
    }
    // As zlib does.
    if fields.zalloc.is_none() {
        fields.zalloc = Some(allocate);
        fields.opaque = ptr::null_mut();
    }
    if fields.zfree.is_none() {
        fields.zfree = Some(release);
    }
    let gather = process.settings.gather;
    // SAFETY: valid, with an allocator.
    let created = unsafe {
        State::create(stream, parameters, |memory| Stream::new(format, level, gather, memory))
    };
    created.ok_or(Counter::ForwardedMemory)?;
    process.counters.add(Counter::Streams, 1);
    // SAFETY: as above.
    unsafe { clear_totals(stream) };
    Ok(())
}

/// # Safety
/// `stream` is one that was taken over.
unsafe fn clear_totals(stream: *mut ZStream) {
    // SAFETY: the caller's promise.
    unsafe {
        (*stream).total_in = 0;
        (*stream).total_out = 0;
        (*stream).msg = ptr::null();
        (*stream).data_type = Z_UNKNOWN;
        if let Some(state) = State::of(stream) {
            (*stream).adler = c_ulong::from(state.stream.check());
        }
    }
}

/// zlib's default allocator.
unsafe extern "C" fn allocate(_: *mut c_void, items: c_uint, size: c_uint) -> *mut c_void {
    // SAFETY: takes a number; `calloc` checks the product.
    unsafe { libc::calloc(items as usize, size as usize) }
}

/// zlib's default function that frees memory.
unsafe extern "C" fn release(_: *mut c_void, memory: *mut c_void) {
    // SAFETY: allocated by `allocate`, or by zlib's own default, which is `malloc`.
    unsafe { libc::free(memory) };
}

/// Interposed: compresses.
///
/// # Safety
/// As for zlib's `deflate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflate(stream: *mut ZStream, flush: c_int) -> c_int {
    guard(|| {
        // SAFETY: valid by this function's contract.
        let (Some(state), Some(process)) = (unsafe { State::of(stream) }, process()) else {
            // SAFETY: forwarded unchanged.
            return forward(|zlib| unsafe { (zlib.deflate)(stream, flush) });
        };
        // SAFETY: not null, since it has a state.
        let fields = unsafe { &mut *stream };
        let Some(wish) = Flush::from_code(flush) else {
            return Z_STREAM_ERROR;
        };
        if fields.next_out.is_null() || fields.avail_in != 0 && fields.next_in.is_null() {
            return Z_STREAM_ERROR;
        }
        // SAFETY: the caller's buffers are as long as stated, and distinct.
        let (input, output) = unsafe {
            let input = match fields.avail_in {
                0 => &[][..],
                length => slice::from_raw_parts(fields.next_in, length as usize),
            };
            (input, slice::from_raw_parts_mut(fields.next_out, fields.avail_out as usize))
        };
        let mut io = Io::new(input, output);
        let zlib = next::zlib();
        let finished = state.stream.is_ended();
        let outcome =
            process.with_tools(|tools| state.step(process, zlib, tools, &mut io, wish, flush));
        let Io { read, written, .. } = io;
        // SAFETY: within the caller's buffers.
        unsafe { advance(fields, read, written) };
        fields.adler = c_ulong::from(state.stream.check());
        if outcome == CallOutcome::End && !finished {
            process.counters.add(Counter::Finished, 1);
        }
        match outcome {
            CallOutcome::Ok | CallOutcome::System => Z_OK,
            CallOutcome::End => Z_STREAM_END,
            CallOutcome::Nothing => Z_BUF_ERROR,
            CallOutcome::Misuse => Z_STREAM_ERROR,
        }
    })
}

/// # Safety
/// Both numbers are within what the caller gave.
unsafe fn advance(fields: &mut ZStream, read: usize, written: usize) {
    // Neither is more than what was given as a `c_uint`.
    let taken = c_uint::try_from(read).unwrap_or(c_uint::MAX);
    let put = c_uint::try_from(written).unwrap_or(c_uint::MAX);
    if read > 0 {
        // SAFETY: the caller's promise.
        fields.next_in = unsafe { fields.next_in.add(read) };
    }
    // SAFETY: as above.
    fields.next_out = unsafe { fields.next_out.add(written) };
    fields.avail_in -= taken;
    fields.avail_out -= put;
    fields.total_in += c_ulong::from(taken);
    fields.total_out += c_ulong::from(put);
}

/// Interposed: gives the stream's memory back.
///
/// # Safety
/// As for zlib's `deflateEnd`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateEnd(stream: *mut ZStream) -> c_int {
    guard(|| {
        // SAFETY: valid by this function's contract.
        let Some(state) = (unsafe { State::of(stream) }) else {
            // SAFETY: forwarded unchanged.
            return forward(|zlib| unsafe { (zlib.end)(stream) });
        };
        if let Some(process) = process() {
            process.counters.add(Counter::Ended, 1);
        }
        // SAFETY: the state is not used afterwards.
        let complete = unsafe { state.destroy(next::zlib()) };
        if complete { Z_OK } else { Z_DATA_ERROR }
    })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateReset`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateReset(stream: *mut ZStream) -> c_int {
    // SAFETY: as for this function.
    guard(|| unsafe { reset(stream, |zlib| zlib.reset) })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateResetKeep`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateResetKeep(stream: *mut ZStream) -> c_int {
    // SAFETY: as for this function.
    guard(|| unsafe { reset(stream, |zlib| zlib.reset_keep) })
}

/// # Safety
/// As for zlib's `deflateReset`.
unsafe fn reset(
    stream: *mut ZStream,
    function: impl FnOnce(&Zlib) -> unsafe extern "C" fn(*mut ZStream) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(state) = (unsafe { State::of(stream) }) else {
        // SAFETY: forwarded unchanged.
        return forward(|zlib| unsafe { function(zlib)(stream) });
    };
    state.reset(next::zlib());
    // SAFETY: it was taken over.
    unsafe { clear_totals(stream) };
    Z_OK
}

/// Gives a stream of which nothing was asked yet back to zlib. False if something was asked of it, or zlib refuses.
///
/// # Safety
/// `stream` is one that was taken over.
unsafe fn give_back(zlib: &Zlib, stream: *mut ZStream) -> bool {
    // SAFETY: the caller's promise.
    let Some(state) = (unsafe { State::of(stream) }).filter(|state| state.stream.is_fresh()) else {
        return false;
    };
    let parameters = Parameters { level: c_int::from(state.stream.level()), ..state.parameters };
    if let Some(process) = process() {
        process.counters.add(Counter::ForwardedCall, 1);
    }
    // SAFETY: the state is not used afterwards; the parameters are those of the caller.
    unsafe {
        state.destroy(Some(zlib));
        begin(zlib, stream, parameters) == Z_OK
    }
}

/// Calls a function that only zlib has, for a stream of zlib's or one that goes back to it.
///
/// # Safety
/// As for that function.
unsafe fn only_in_zlib(stream: *mut ZStream, call: impl FnOnce(&Zlib) -> c_int) -> c_int {
    forward(|zlib| {
        // SAFETY: the caller's promise.
        if unsafe { State::of(stream).is_some() && !give_back(zlib, stream) } {
            return Z_STREAM_ERROR;
        }
        call(zlib)
    })
}

/// Interposed: another level holds from the next chunk on; a strategy needs zlib.
///
/// # Safety
/// As for zlib's `deflateParams`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateParams(
    stream: *mut ZStream,
    level: c_int,
    strategy: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: valid by this function's contract.
        let Some(state) = (unsafe { State::of(stream) }) else {
            // SAFETY: forwarded unchanged.
            return forward(|zlib| unsafe { (zlib.params)(stream, level, strategy) });
        };
        let new = match level {
            -1 => Some(DEFAULT_LEVEL),
            1..=9 => u8::try_from(level).ok(),
            _ => None,
        };
        let (Some(new), 0) = (new, strategy) else {
            // SAFETY: forwarded, if nothing was asked of the stream.
            return unsafe { only_in_zlib(stream, |zlib| (zlib.params)(stream, level, strategy)) };
        };
        if state.stream.is_finished() || state.stream.is_system() {
            return Z_STREAM_ERROR;
        }
        if !state.stream.is_fresh() && new != state.stream.level() {
            // Input that waits was given under the former level, as in zlib.
            // SAFETY: as for this function.
            let result = unsafe { deflate(stream, Z_BLOCK) };
            if result == Z_STREAM_ERROR {
                return result;
            }
        }
        // SAFETY: as above; the call may have changed it.
        let Some(state) = (unsafe { State::of(stream) }) else {
            return Z_STREAM_ERROR;
        };
        if state.stream.waiting() > 0 {
            return Z_BUF_ERROR;
        }
        state.stream.set_level(new);
        Z_OK
    })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateTune`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateTune(
    stream: *mut ZStream,
    good: c_int,
    lazy: c_int,
    nice: c_int,
    chain: c_int,
) -> c_int {
    // SAFETY: forwarded unchanged.
    guard(|| unsafe { only_in_zlib(stream, |zlib| (zlib.tune)(stream, good, lazy, nice, chain)) })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateBound`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateBound(stream: *mut ZStream, length: c_ulong) -> c_ulong {
    // SAFETY: valid by this function's contract.
    let ours = unsafe { State::of(stream) }.map(|state| {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        state.stream.bound(length, state.memory_len()) as c_ulong
    });
    // SAFETY: forwarded unchanged.
    let zlibs = next::zlib().map(|zlib| unsafe {
        // zlib's own bound for a stream that it does not know is larger than for one that it does.
        let stream = if ours.is_some() { ptr::null_mut() } else { stream };
        (zlib.bound)(stream, length)
    });
    // The stream may still go back to zlib, whose bound then holds.
    ours.unwrap_or(0).max(zlibs.unwrap_or(0))
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflatePending`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflatePending(
    stream: *mut ZStream,
    pending: *mut c_uint,
    bits: *mut c_int,
) -> c_int {
    guard(|| {
        // SAFETY: valid by this function's contract.
        let Some(state) = (unsafe { State::of(stream) }) else {
            // SAFETY: forwarded unchanged.
            return forward(|zlib| unsafe { (zlib.pending)(stream, pending, bits) });
        };
        let waiting = c_uint::try_from(state.stream.waiting()).unwrap_or(c_uint::MAX);
        // SAFETY: the caller's places, if any. Chunks end at a byte.
        unsafe {
            if !pending.is_null() {
                *pending = waiting;
            }
            if !bits.is_null() {
                *bits = 0;
            }
        }
        Z_OK
    })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflatePrime`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflatePrime(stream: *mut ZStream, bits: c_int, value: c_int) -> c_int {
    // SAFETY: forwarded unchanged.
    guard(|| unsafe { only_in_zlib(stream, |zlib| (zlib.prime)(stream, bits, value)) })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateSetHeader`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateSetHeader(stream: *mut ZStream, head: *mut c_void) -> c_int {
    // SAFETY: forwarded unchanged.
    guard(|| unsafe { only_in_zlib(stream, |zlib| (zlib.set_header)(stream, head)) })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateSetDictionary`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateSetDictionary(
    stream: *mut ZStream,
    dictionary: *const u8,
    length: c_uint,
) -> c_int {
    // SAFETY: forwarded unchanged.
    guard(|| unsafe {
        only_in_zlib(stream, |zlib| (zlib.set_dictionary)(stream, dictionary, length))
    })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateGetDictionary`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateGetDictionary(
    stream: *mut ZStream,
    dictionary: *mut u8,
    length: *mut c_uint,
) -> c_int {
    // SAFETY: forwarded unchanged.
    guard(|| unsafe {
        only_in_zlib(stream, |zlib| (zlib.get_dictionary)(stream, dictionary, length))
    })
}

/// Interposed.
///
/// # Safety
/// As for zlib's `deflateCopy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deflateCopy(to: *mut ZStream, from: *mut ZStream) -> c_int {
    guard(|| {
        // SAFETY: valid by this function's contract.
        let Some(state) = (unsafe { State::of(from) }) else {
            // SAFETY: forwarded unchanged.
            return forward(|zlib| unsafe { (zlib.copy)(to, from) });
        };
        if to.is_null() {
            return Z_STREAM_ERROR;
        }
        // SAFETY: both are valid; the copy gets a state of its own.
        let copied = unsafe {
            *to = *from;
            (*to).state = ptr::null_mut();
            state.copy_to(to, next::zlib())
        };
        if copied.is_none() {
            return Z_MEM_ERROR;
        }
        if let Some(process) = process() {
            process.counters.add(Counter::Streams, 1);
        }
        Z_OK
    })
}
