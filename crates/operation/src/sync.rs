// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The one way to lock a mutex. It is here because every crate that locks beside the pool's words depends on this one;
//! a crate for one function would weigh more.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a thread has panicked while it held it. For data that every critical section leaves
/// consistent wherever it may panic, as all of Millrace's do.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
