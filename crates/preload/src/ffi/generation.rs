// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! How long a thread may keep what it has learnt of libcrypto: the methods of `fetch`, the answers of `sigalgs`, the
//! context of `decoders`.
//!
//! They hold for one generation of the default library context. Another context may be freed, and its address used
//! again.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The default library context while threads keep what they learn; null while they do not.
static DEFAULT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Changed by every call that may change the result of a fetch. Tables begin with 0, which is never current.
static CURRENT: AtomicU64 = AtomicU64::new(1);

/// From now on, threads keep what they learn of this context, the default one.
pub(super) fn start(default: *mut c_void) {
    DEFAULT.store(default, Ordering::Release);
}

/// From now on, nothing is kept.
pub(super) fn stop() {
    DEFAULT.store(ptr::null_mut(), Ordering::Release);
}

pub(super) fn is_started() -> bool {
    !DEFAULT.load(Ordering::Acquire).is_null()
}

/// The generation of what is known of this library context. `None` if nothing of it is kept.
pub(super) fn of(context: *mut c_void) -> Option<u64> {
    let default = DEFAULT.load(Ordering::Acquire);
    let is_default = context.is_null() || context == default;
    (!default.is_null() && is_default).then(current)
}

/// The generation of what a thread learns now.
pub(super) fn current() -> u64 {
    CURRENT.load(Ordering::Acquire)
}

pub(super) fn is_current(generation: u64) -> bool {
    current() == generation
}

/// Begins the next generation, and returns it.
pub(super) fn advance() -> u64 {
    CURRENT.fetch_add(1, Ordering::AcqRel) + 1
}
