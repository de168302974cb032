// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A call on another stack: an ordinary call and its return with another stack pointer in between, so that shadow
//! stacks stay right. What the called function saves and restores is as in every call.
//!
//! Each version begins with the mark of a target of indirect calls, which is none on processors without such a check,
//! and tells debuggers where its caller's frame is.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

/// Whether there is a version for this processor.
pub(super) const IS_HERE: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The function of an ASYNC job.
pub(super) type JobFunction = unsafe extern "C" fn(*mut c_void) -> c_int;

/// Calls `function` with this argument on the stack that ends at `top`, and returns its result.
///
/// # Safety
/// `top` is aligned to 16 bytes, and below it is a stack that nothing else uses until this returns. The function may
/// be called with the argument, and does not unwind.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call_on(
    top: *mut c_void,
    function: JobFunction,
    argument: *mut c_void,
) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// As the version for x86-64.
///
/// # Safety
/// As there.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn call_on(
    top: *mut c_void,
    function: JobFunction,
    argument: *mut c_void,
) -> c_int {
    naked_asm!(
        ".cfi_startproc",
        "hint 34",
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov sp, x0",
        "mov x0, x2",
        "blr x1",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
    )
}

/// Stays on this stack. Nothing calls it where [`IS_HERE`] is false.
///
/// # Safety
/// As there.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) unsafe extern "C" fn call_on(
    _top: *mut c_void,
    function: JobFunction,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { function(argument) }
}

#[cfg(test)]
mod tests {
    use super::super::stack;
    use super::*;

    extern "C" fn deep(argument: *mut c_void) -> c_int {
        let mut room = [0_u8; 200 * 1024];
        std::hint::black_box(&mut room)[0] = 1;
        let here = std::hint::black_box(&raw const room).addr();
        // SAFETY: the argument of the test below.
        let seen = unsafe { &mut *argument.cast::<usize>() };
        *seen = here;
        7
    }

    #[test]
    fn tools_know_the_same_processors() {
        let known = millrace_edge::servers::JOB_STACKS.contains(&std::env::consts::ARCH);
        assert_eq!(known, IS_HERE);
    }

    #[test]
    fn function_runs_on_the_stack_and_its_result_comes_back() {
        let stack = stack::take().expect("a stack");
        let mut seen = 0_usize;
        for _ in 0..3 {
            // SAFETY: a stack that nothing uses, and a function for this argument.
            let result = unsafe { call_on(stack.top(), deep, (&raw mut seen).cast()) };
            assert_eq!(result, 7);
            let below = stack.top().addr().checked_sub(seen).expect("below the top");
            assert!(below <= stack::STACK_LEN, "{below} bytes below the top");
        }
    }
}
