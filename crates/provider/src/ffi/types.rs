// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The structs of `openssl/core.h`: the only ones whose layout is part of OpenSSL's interface.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `OSSL_DISPATCH`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Dispatch {
    pub(crate) id: c_int,
    pub(crate) function: *const c_void,
}

impl Dispatch {
    pub(crate) const END: Self = Self { id: 0, function: std::ptr::null() };
}

/// `OSSL_ALGORITHM`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Algorithm {
    pub(crate) names: *const c_char,
    pub(crate) properties: *const c_char,
    pub(crate) implementation: *const Dispatch,
    pub(crate) description: *const c_char,
}

impl Algorithm {
    pub(crate) const END: Self = Self {
        names: std::ptr::null(),
        properties: std::ptr::null(),
        implementation: std::ptr::null(),
        description: std::ptr::null(),
    };
}

/// `OSSL_ITEM`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) id: c_uint,
    pub(crate) pointer: *const c_void,
}

/// `OSSL_PARAM`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Param {
    pub(crate) key: *const c_char,
    pub(crate) data_type: c_uint,
    pub(crate) data: *mut c_void,
    pub(crate) data_size: usize,
    pub(crate) return_size: usize,
}

/// A table that OpenSSL reads and that is never written.
pub(crate) struct StaticTable<T: 'static>(pub(crate) &'static [T]);

// SAFETY: the pointers in a table lead to functions and constants of this module or of libcrypto,
// which is never unmapped before us; nothing is written through them.
unsafe impl<T> Send for StaticTable<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for StaticTable<T> {}

impl<T> StaticTable<T> {
    /// Keeps `entries` forever: OpenSSL holds on to them.
    pub(crate) fn leak(entries: Vec<T>) -> Self {
        Self(Vec::leak(entries))
    }

    pub(crate) fn as_ptr(&self) -> *const T {
        self.0.as_ptr()
    }
}

impl StaticTable<Dispatch> {
    /// A dispatch table of these rows, kept forever.
    pub(crate) fn dispatch(rows: Vec<(i32, *const c_void)>) -> Self {
        let entries = rows.into_iter().map(|(id, function)| Dispatch { id, function });
        Self::leak(entries.chain([Dispatch::END]).collect())
    }
}

/// `OSSL_CALLBACK`
pub(crate) type Callback = unsafe extern "C" fn(*const Param, *mut c_void) -> c_int;
