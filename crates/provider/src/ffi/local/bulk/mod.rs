// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ciphers and digests of OpenSSL's `default` provider, with whole packets by the kernel where [`crate::bulk`] says
//! that it pays.
//!
//! Each context owns OpenSSL's own context, which is always ready to do the next call: it gets every initialisation and
//! every parameter, and all data but what the kernel has done. So every size, flag and error is OpenSSL's, and a
//! failure of the kernel is nothing but a call of OpenSSL's function.
//!
//! - `block`: CBC and CTR, which go on from any block.
//! - `sealed`: GCM, whose messages are sealed as a whole.
//! - `hash`: digests and HMAC, of whole messages.
//! - `check`: known answers of the kernel, compared with OpenSSL's.

mod block;
mod check;
mod hash;
mod sealed;

use std::ffi::{CStr, c_int};

use super::super::delegate::{Failure, Rows, dispatch, free};
use super::{DONE, Owned, give, with};
use crate::algorithms::{Bulk, BulkForm, each_bulk};
use crate::bulk::BulkRoutes;
use crate::error::{Error, Reason, Result};
use crate::ffi::core::guard_bare;
use crate::ffi::ids;
use crate::ffi::inner::{self, InnerAlgorithm, call};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::params::entries;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::Param;

/// The rows of each algorithm's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Bulk::ALL.len()] = each_bulk!(rows);

fn rows<const A: usize>() -> Rows {
    match Bulk::ALL[A].row().form {
        BulkForm::Cipher if Bulk::ALL[A].is_gcm() => sealed::rows::<A>(),
        BulkForm::Cipher => block::rows::<A>(),
        BulkForm::Digest => hash::digest_rows::<A>(),
        BulkForm::Mac => hash::mac_rows::<A>(),
    }
}

impl Bulk {
    /// Whether this is AES in Galois/Counter mode.
    fn is_gcm(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm)
    }
}

/// A context of OpenSSL's own provider, freed with its owner.
struct Inner {
    functions: &'static InnerAlgorithm,
    context: Ptr,
    free: i32,
}

impl Inner {
    fn new(algorithm: Bulk, new: i32, free: i32) -> Result<Self> {
        let context = inner::context()?;
        let functions = inner::algorithm_at(&context.bulk, algorithm as usize)?;
        let provctx = context.provctx;
        // SAFETY: the constructors of these operations take the context of their provider.
        let made = unsafe { call!(functions, new, fn(provctx => Ptr) -> Ptr) }?;
        if made.is_null() {
            return Err(Error::library());
        }
        Ok(Self { functions, context: made, free })
    }

    fn copy(&self, duplicate: i32) -> Result<Self> {
        // SAFETY: the duplicators of these operations take a live context.
        let made = unsafe { call!(self.functions, duplicate, fn(self.context => Ptr) -> Ptr) }?;
        if made.is_null() {
            return Err(Error::library());
        }
        Ok(Self { functions: self.functions, context: made, free: self.free })
    }

    /// Sets or gets parameters.
    ///
    /// # Safety
    /// `id` is a function of this operation that takes a context and parameters, which are libcrypto's for it.
    unsafe fn params<P>(&self, id: i32, params: P) -> Result<c_int> {
        // SAFETY: by this function's contract.
        unsafe { call!(self.functions, id, fn(self.context => Ptr, params => P) -> c_int) }
    }

    /// Answers parameters by OpenSSL, but for those that `own` answers, with whether it could.
    ///
    /// # Safety
    /// As [`Self::params`], and `request` is null or an array that a null key ends, to be written.
    unsafe fn answer(
        &self,
        id: i32,
        request: *mut Param,
        own: impl Fn(&CStr, &mut Param) -> Option<bool>,
    ) -> Result<c_int> {
        // SAFETY: by this function's contract.
        let count = unsafe { entries(request) }.count();
        for index in 0..count {
            // SAFETY: one of the entries counted above, which may be written by this function's contract.
            let param = unsafe { &mut *request.add(index) };
            // SAFETY: the key of a counted entry is a C string.
            let name = unsafe { CStr::from_ptr(param.key) };
            let answered = match own(name, param) {
                Some(answered) => c_int::from(answered),
                None => {
                    let mut one = [*param, Param::END];
                    // SAFETY: by this function's contract, with an array of one entry.
                    let answered = unsafe { self.params(id, one.as_mut_ptr()) }?;
                    param.return_size = one[0].return_size;
                    answered
                }
            };
            if answered != DONE {
                return Ok(answered);
            }
        }
        Ok(DONE)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: takes a context that is not used again; every algorithm has it.
        let _ = unsafe { call!(self.functions, self.free, fn(self.context => Ptr) -> ()) };
    }
}

/// Notes that OpenSSL does what the kernel should have done.
fn note_failure(provider: &Provider, error: &std::io::Error) {
    provider.stats.kernel_bulk_failed.add();
    provider.log(&format!("done by OpenSSL, not by the kernel: {error}"));
}

/// Result of a message's end that is not OpenSSL's.
fn refused(text: &'static str) -> Error {
    Error::new(Reason::Message, text)
}

/// # Safety
/// `place` is null or writable.
unsafe fn say(place: *mut usize, len: usize) {
    // SAFETY: by this function's contract.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = len;
    }
}

/// The routes to the kernel. A table of these algorithms exists only where there are some.
fn routes(provider: &'static Provider) -> Result<&'static BulkRoutes> {
    provider.bulk().ok_or_else(|| Error::new(Reason::Internal, "no routes to the kernel"))
}

/// Lists parameters of an algorithm, without a context.
unsafe extern "C" fn listing<const A: usize, const ID: i32>(_provctx: Ptr) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(&context.bulk, A).ok()?;
        // SAFETY: the listing takes the context of the provider whose algorithm this is.
        unsafe { call!(functions, ID, fn(context.provctx => Ptr) -> *const Param) }.ok()
    })
}

/// Lists parameters of a context.
unsafe extern "C" fn context_listing<const A: usize, const ID: i32>(
    _: Ptr,
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(&context.bulk, A).ok()?;
        let none: Ptr = std::ptr::null_mut();
        // SAFETY: the listings take null for the context of an operation, and that of the provider whose algorithm
        // this is.
        unsafe { call!(functions, ID, fn(none => Ptr, context.provctx => Ptr) -> *const Param) }
            .ok()
    })
}

/// The rows that the contexts of both kinds of ciphers have.
macro_rules! cipher_rows {
    ($context:ident, $A:ident) => {{
        let mut rows = dispatch! { aead {
            NEWCTX              => newctx<$A>;
            ENCRYPT_INIT        => init<>;
            DECRYPT_INIT        => init<>;
            UPDATE              => update<>;
            FINAL               => finish<>;
            CIPHER              => cipher<>;
            FREECTX             => free<$context>;
            DUPCTX              => dupctx<>;
            GET_CTX_PARAMS      => get_params<>;
            SET_CTX_PARAMS      => set_params<>;
            GETTABLE_PARAMS     => listing<$A>;
            GETTABLE_CTX_PARAMS => context_listing<$A>;
            SETTABLE_CTX_PARAMS => context_listing<$A>;
        } };
        // Without a context and without ours in it: OpenSSL's own function answers.
        rows.push((ids::aead::GET_PARAMS, std::ptr::null()));
        rows
    }};
}
use cipher_rows;

/// The functions between C and the contexts of both kinds of ciphers.
macro_rules! cipher_entries {
    ($context:ident) => {
        unsafe extern "C" fn newctx<const A: usize, const ID: i32>(provctx: Ptr) -> Ptr {
            // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
            let provider = unsafe { Provider::of(provctx) };
            guard(provider, Ptr::VALUE, || Ok(give($context::new(provider, Bulk::ALL[A])?)))
        }

        unsafe extern "C" fn dupctx<const ID: i32>(pointer: Ptr) -> Ptr {
            // SAFETY: libcrypto passes a context of this table.
            unsafe { with(pointer, |context: &mut $context| Ok(give(context.copy()?))) }
        }

        unsafe extern "C" fn init<const ID: i32>(
            pointer: Ptr,
            key: *const u8,
            key_len: usize,
            iv: *const u8,
            iv_len: usize,
            settings: *const Param,
        ) -> c_int {
            let entry = |context: &mut $context| {
                let given = |start: *const u8, len| {
                    let is_given = !start.is_null();
                    // SAFETY: libcrypto passes null, or readable bytes that nothing changes during the call.
                    is_given.then(|| unsafe { bytes(start, len) })
                };
                let (key, iv) = (given(key, key_len), given(iv, iv_len));
                // SAFETY: libcrypto passes null or an array of parameters with its end.
                unsafe { context.start(ID, key, iv, settings) }
            };
            // SAFETY: libcrypto passes a context of this table.
            unsafe { with(pointer, entry) }
        }

        unsafe extern "C" fn update<const ID: i32>(
            pointer: Ptr,
            out: *mut u8,
            out_len: *mut usize,
            room: usize,
            input: *const u8,
            len: usize,
        ) -> c_int {
            let entry = |context: &mut $context| {
                // SAFETY: libcrypto passes `len` readable bytes, null or `room` writable ones, which are the same
                // place or do not overlap, and null or a place for the length.
                unsafe { context.update(out, out_len, room, input, len) }
            };
            // SAFETY: libcrypto passes a context of this table.
            unsafe { with(pointer, entry) }
        }

        unsafe extern "C" fn finish<const ID: i32>(
            pointer: Ptr,
            out: *mut u8,
            out_len: *mut usize,
            room: usize,
        ) -> c_int {
            // SAFETY: libcrypto passes a context of this table, and null or what the function may write.
            unsafe { with(pointer, |context: &mut $context| context.finish(out, out_len, room)) }
        }

        unsafe extern "C" fn cipher<const ID: i32>(
            pointer: Ptr,
            out: *mut u8,
            out_len: *mut usize,
            room: usize,
            input: *const u8,
            len: usize,
        ) -> c_int {
            let entry = |context: &mut $context| {
                context.yield_to_openssl()?;
                let inner = &context.inner;
                // SAFETY: the function has this type; the arguments are libcrypto's for it.
                unsafe {
                    call!(inner.functions, ID,
                        fn(inner.context => Ptr, out => *mut u8, out_len => *mut usize, room => usize,
                            input => *const u8, len => usize) -> c_int)
                }
            };
            // SAFETY: libcrypto passes a context of this table.
            unsafe { with(pointer, entry) }
        }

        unsafe extern "C" fn set_params<const ID: i32>(
            pointer: Ptr,
            settings: *const Param,
        ) -> c_int {
            let entry = |context: &mut $context| {
                // SAFETY: libcrypto passes null or an array of parameters with its end.
                unsafe { context.set(settings) }
            };
            // SAFETY: libcrypto passes a context of this table.
            unsafe { with(pointer, entry) }
        }

        unsafe extern "C" fn get_params<const ID: i32>(pointer: Ptr, request: *mut Param) -> c_int {
            let entry = |context: &mut $context| {
                // SAFETY: libcrypto passes null or an array of parameters with its end, to be written.
                unsafe { context.get(request) }
            };
            // SAFETY: libcrypto passes a context of this table.
            unsafe { with(pointer, entry) }
        }

        impl Owned for $context {
            fn provider(&self) -> &'static Provider {
                self.provider
            }
        }
    };
}
use cipher_entries;
