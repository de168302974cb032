// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every ASYNC job of a known program runs on a stack of ours (see `stack`).
//!
//! libssl starts its jobs by `ASYNC_start_job`, through its symbol table. A new job gets [`run`] for its function. That
//! runs on OpenSSL's own stack, calls the function of the job on ours, and keeps the stack when it has returned. A
//! pause saves the stack pointer wherever it is, so libcrypto needs to know nothing of this, in any version.
//!
//! What the job's function needs lies at the end of its stack, and libcrypto copies the address of the stack only:
//!
//! ```text
//! guard │ … the job's frames   ◄── │ arguments │ Call │
//!       └───────────────── stack ──────────────────────┘
//! ```
//!
//! Where there is no stack, the function is called without a job: it blocks the thread, but is right. Where jobs cannot
//! be reached, nginx gets none.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::next::{self, Libssl};
use super::program::{Inactive, is_haproxy, is_nginx};
use super::stack::{self, STACK_LEN, Stack};
use super::switch::{self, JobFunction, call_on};

/// Results of `ASYNC_start_job`. With `ASYNC_ERR` and `ASYNC_NO_JOBS` a new job has not run.
const ASYNC_ERR: c_int = 0;
const ASYNC_NO_JOBS: c_int = 1;
const ASYNC_FINISH: c_int = 3;

/// Most bytes of a job's arguments, a small part of its stack. libssl's are below one hundred.
const MAX_ARGUMENTS: usize = STACK_LEN / 64;

/// A job's function, at the end of its stack.
#[repr(C, align(16))]
struct Call {
    function: JobFunction,
    /// Bytes of the arguments, which lie below.
    len: usize,
    /// Whether there are arguments: null stays null.
    has_arguments: bool,
}

/// Writes what the job's function needs to the end of the stack.
///
/// # Safety
/// `arguments` is null or has `len` readable bytes.
unsafe fn place(stack: &Stack, function: JobFunction, arguments: *const c_void, len: usize) {
    let call = stack.top().wrapping_byte_sub(size_of::<Call>()).cast::<Call>();
    let has_arguments = !arguments.is_null();
    // SAFETY: within the stack, which is aligned and on which nothing runs.
    unsafe { call.write(Call { function, len, has_arguments }) };
    if has_arguments {
        // SAFETY: the caller has checked that there is room.
        unsafe { ptr::copy_nonoverlapping(arguments.cast(), below(call, len), len) };
    }
}

/// Where the arguments lie, and from where the function's frames go on.
fn below(call: *mut Call, len: usize) -> *mut u8 {
    call.cast::<u8>().wrapping_sub(len.next_multiple_of(16))
}

/// The function of every new job, on OpenSSL's stack.
///
/// # Safety
/// `copy` points to the address of a stack on which [`place`] has put a call, and which is the job's now.
unsafe extern "C" fn run(copy: *mut c_void) -> c_int {
    // SAFETY: by this function's contract.
    let stack = unsafe { Stack::from_base(copy.cast::<*mut c_void>().read()) };
    let call = stack.top().wrapping_byte_sub(size_of::<Call>()).cast::<Call>();
    // SAFETY: `place` has written it.
    let &Call { function, len, has_arguments } = unsafe { &*call };
    let top = below(call, len).cast();
    let arguments = if has_arguments { top } else { ptr::null_mut() };
    // SAFETY: below `top` is the unused rest of the stack, and `function` takes a copy of its arguments.
    let result = unsafe { call_on(top, function, arguments) };
    stack::give(stack);
    result
}

/// Interposed: a new job runs on a stack of ours.
///
/// # Safety
/// As for `ASYNC_start_job(3)`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ASYNC_start_job(
    job: *mut *mut c_void,
    wait_ctx: *mut c_void,
    result: *mut c_int,
    function: JobFunction,
    arguments: *mut c_void,
    len: usize,
) -> c_int {
    let Some(next) = next::start_job() else {
        return ASYNC_ERR;
    };
    let known = switch::IS_HERE && (is_nginx() || is_haproxy());
    // SAFETY: `job` is valid by this function's contract.
    if !known || unsafe { !(*job).is_null() } {
        // SAFETY: forwarded unchanged.
        return unsafe { next(job, wait_ctx, result, function, arguments, len) };
    }
    let Some(stack) = Some(len).filter(|len| *len <= MAX_ARGUMENTS).and_then(|_| stack::take())
    else {
        // SAFETY: called as the job would have called it.
        unsafe { result.write(function(arguments)) };
        return ASYNC_FINISH;
    };
    // SAFETY: the arguments are readable by this function's contract, and there is room for them.
    unsafe { place(&stack, function, arguments, len) };
    let mut base = stack.into_base();
    let copied = (&raw mut base).cast();
    // SAFETY: forwarded, with a function and the argument that it takes.
    let outcome = unsafe { next(job, wait_ctx, result, run, copied, size_of_val(&base)) };
    if matches!(outcome, ASYNC_ERR | ASYNC_NO_JOBS) {
        // SAFETY: the job has not run, so nothing has taken the stack.
        stack::give(unsafe { Stack::from_base(base) });
    }
    outcome
}

/// Whether libssl starts its jobs here. If it and libcrypto are one library, it may call itself; another library may
/// stand before this one.
pub(super) fn are_reached(libssl: &Libssl) -> Result<(), Inactive> {
    if !switch::IS_HERE {
        return Err(Inactive::NoJobStacks);
    }
    let Some(next) = next::start_job() else {
        return Err(Inactive::JobsNotReached);
    };
    let objects = [libssl.do_handshake as usize, next as usize].map(next::object_of);
    let apart = matches!(objects, [Some(libssl), Some(libcrypto)] if libssl != libcrypto);
    if next::is_ours(c"ASYNC_start_job") && apart { Ok(()) } else { Err(Inactive::JobsNotReached) }
}
