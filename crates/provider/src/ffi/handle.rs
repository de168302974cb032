// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Objects of the provider that OpenSSL holds by a pointer: how they are handed out, used by an entry, and freed.

use std::ffi::{c_int, c_void};

use super::core::guard_bare;
use super::inner::InnerAlgorithm;
use super::libcrypto::Ptr;
use super::state::{Provider, guard};
use crate::error::Result;

/// An object that OpenSSL holds by a pointer.
pub(crate) trait Owned {
    fn provider(&self) -> &'static Provider;
}

/// Implements [`Owned`] for a type with the field `provider`.
macro_rules! owned {
    ($type:ty) => {
        impl $crate::ffi::handle::Owned for $type {
            fn provider(&self) -> &'static $crate::ffi::state::Provider {
                self.provider
            }
        }
    };
}
pub(crate) use owned;

/// An object that owns one of the inner context.
pub(crate) trait Handle: Owned {
    /// The algorithm of the inner object.
    fn functions(&self) -> &'static InnerAlgorithm;
    /// The inner object; valid as long as the handle.
    fn inner(&self) -> Ptr;
}

/// Value that a function returns to C if it failed.
pub(crate) trait Failure {
    const VALUE: Self;
}

impl Failure for c_int {
    const VALUE: Self = 0;
}

impl<T> Failure for *const T {
    const VALUE: Self = std::ptr::null();
}

impl<T> Failure for *mut T {
    const VALUE: Self = std::ptr::null_mut();
}

/// Runs an entry on an object that several threads may use.
///
/// # Safety
/// `pointer` is null or leads to a `T` that is not freed until this returns.
pub(crate) unsafe fn with_object<T: Owned, R: Failure>(
    pointer: *const c_void,
    entry: impl FnOnce(&T) -> Result<R>,
) -> R {
    // SAFETY: by this function's contract.
    match unsafe { pointer.cast::<T>().as_ref() } {
        Some(object) => guard(object.provider(), R::VALUE, || entry(object)),
        None => R::VALUE,
    }
}

/// Runs an entry on the context of an operation.
///
/// # Safety
/// `pointer` is null or leads to a `T` that is not freed until this returns, and that no other thread uses: OpenSSL's
/// rule for the contexts of operations.
pub(crate) unsafe fn with_context<T: Owned, R: Failure>(
    pointer: Ptr,
    entry: impl FnOnce(&mut T) -> Result<R>,
) -> R {
    // SAFETY: by this function's contract the pointer is null or the only way to a live box.
    match unsafe { pointer.cast::<T>().as_mut() } {
        Some(context) => guard(context.provider(), R::VALUE, || entry(context)),
        None => R::VALUE,
    }
}

/// Hands a value to OpenSSL, which returns it by [`free`].
pub(crate) fn give<T>(value: T) -> Ptr {
    Box::into_raw(Box::new(value)).cast()
}

/// Takes back what [`give`] has handed out.
pub(crate) unsafe extern "C" fn free<T, const ID: i32>(pointer: Ptr) {
    if pointer.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: libcrypto returns what the constructor of this table gave, a box of `T`, and does not
        // use it again.
        drop(unsafe { Box::from_raw(pointer.cast::<T>()) });
        Some(())
    });
}
