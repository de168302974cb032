// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stacks of ASYNC jobs: larger than OpenSSL's 32 KiB, with a guard page below.
//!
//! An application can choose them from OpenSSL 3.2 on. Before, the 32 KiB have to suffice. With OpenSSL 3.0 and nginx,
//! a handshake uses 8 KiB of them at most, and 13 KiB with a provider built without optimization: measured with a
//! pooled operation, client certificates, early data, and certificates that are read during the handshake.

use std::ffi::c_void;
use std::ptr;
use std::sync::Once;

use super::next::Jobs;

/// Size of a stack without its guard, in bytes: four times OpenSSL's own.
const STACK_LEN: usize = 128 * 1024;

/// Size of the guard, in bytes. `mprotect` protects whole pages: this is one page of kernels with the largest pages
/// (64 KiB, on some Arm machines), and a whole number of them on every other.
const GUARD_LEN: usize = 64 * 1024;

/// Installs the functions below, once, where OpenSSL allows it. This has an effect only before the first job of the
/// process.
pub(super) fn install_guarded_stacks(jobs: &Jobs) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(set) = jobs.set_mem_functions {
            // SAFETY: both functions have the required signatures and live as long as the process.
            unsafe { set(allocate, free) };
        }
    });
}

unsafe extern "C" fn allocate(len: *mut usize) -> *mut c_void {
    // SAFETY: an anonymous mapping touches nothing that exists.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            GUARD_LEN + STACK_LEN,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    // SAFETY: the first part of the mapping made above.
    if unsafe { libc::mprotect(base, GUARD_LEN, libc::PROT_NONE) } != 0 {
        // SAFETY: the whole mapping, which no other code has seen yet.
        unsafe { libc::munmap(base, GUARD_LEN + STACK_LEN) };
        return ptr::null_mut();
    }
    // SAFETY: OpenSSL passes a valid pointer to the length, which may be changed.
    unsafe { *len = STACK_LEN };
    // SAFETY: within the mapping.
    unsafe { base.byte_add(GUARD_LEN) }
}

unsafe extern "C" fn free(stack: *mut c_void) {
    if stack.is_null() {
        return;
    }
    // SAFETY: `stack` came from `allocate`, so the guard lies right before it.
    let base = unsafe { stack.byte_sub(GUARD_LEN) };
    // SAFETY: the whole mapping, nothing else.
    unsafe { libc::munmap(base, GUARD_LEN + STACK_LEN) };
}
