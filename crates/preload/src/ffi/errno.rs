// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The calling thread's `errno`, which the program reads after an interposed call.

use std::ffi::c_int;

pub(super) fn errno() -> c_int {
    // SAFETY: errno is thread-local and always valid.
    unsafe { *libc::__errno_location() }
}

pub(super) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs `f`, after which `errno` is what it was.
pub(super) fn with_errno_kept<T>(f: impl FnOnce() -> T) -> T {
    let before = errno();
    let value = f();
    set_errno(before);
    value
}
