// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The functions between C and the contexts of ciphers and digests: one set for what AWS-LC computes
//! (`aead`, `digest`) and for what the kernel may compute (`bulk`).

use std::ffi::c_int;

use super::DONE;
use crate::error::Result;
use crate::ffi::core::guard_bare;
use crate::ffi::delegate::{Rows, dispatch};
use crate::ffi::handle::{Failure, Owned, free, give, with_context};
use crate::ffi::ids;
use crate::ffi::inner::{self, InnerAlgorithm, InnerContext, call};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::memory::bytes;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::Param;

/// The context of an operation, of one of several algorithms.
pub(super) trait Computing: Owned + Sized {
    /// OpenSSL's own algorithms, which answer what does not depend on a context.
    fn algorithms(context: &'static InnerContext) -> &'static [Option<InnerAlgorithm>];

    /// Makes a context of the algorithm with this index.
    fn make(provider: &'static Provider, algorithm: usize) -> Result<Self>;

    /// The same context at the same place of its message.
    fn copy(&mut self) -> Result<Self>;
}

/// A cipher. The pointers are those of OpenSSL: null, or memory that nothing changes during the call.
pub(super) trait CipherContext: Computing {
    /// Begins a message; `id` is the function for encryption or that for decryption.
    ///
    /// Sets parameters of the operation.
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn start(
        &mut self,
        id: i32,
        key: Option<&[u8]>,
        iv: Option<&[u8]>,
        settings: *const Param,
    ) -> Result<c_int>;

    /// Takes a part of the message.
    ///
    /// # Safety
    /// `input` is readable for `len` bytes, and `out` null or writable for `room`: the same place, or one that does
    /// not overlap. `out_len` is null or a place for the length.
    unsafe fn update(
        &mut self,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<c_int>;

    /// Ends the message.
    ///
    /// # Safety
    /// As [`Self::update`].
    unsafe fn finish(&mut self, out: *mut u8, out_len: *mut usize, room: usize) -> Result<c_int>;

    /// `EVP_Cipher`: a part of a message, a record, or without an input the end.
    ///
    /// # Safety
    /// As [`Self::update`], and `input` may be null.
    unsafe fn cipher(
        &mut self,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<c_int>;

    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn set(&mut self, settings: *const Param) -> Result<c_int>;

    /// Answers parameters of the operation.
    ///
    /// # Safety
    /// `request` is null or an array that a null key ends, to be written.
    unsafe fn get(&mut self, request: *mut Param) -> Result<c_int>;
}

/// A digest, or the parts of a MAC that are as those of a digest.
pub(super) trait HashContext: Computing {
    /// Begins a message of a digest; `id` is the function.
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn start(&mut self, id: i32, settings: *const Param) -> Result<c_int>;

    /// Takes a part of the message.
    ///
    /// # Safety
    /// `data` is readable for `len` bytes.
    unsafe fn update(&mut self, data: *const u8, len: usize) -> Result<c_int>;

    /// Ends the message.
    ///
    /// # Safety
    /// `out` is null or writable for `room` bytes, `out_len` null or a place for the length.
    unsafe fn finish(&mut self, out: *mut u8, out_len: *mut usize, room: usize) -> Result<c_int>;
}

/// The rows of a cipher's dispatch table.
#[rustfmt::skip]
pub(super) fn cipher_rows<T: CipherContext, const A: usize>() -> Rows {
    let mut rows = dispatch! { aead {
        NEWCTX              => newctx<T, A>;
        ENCRYPT_INIT        => cipher_init<T>;
        DECRYPT_INIT        => cipher_init<T>;
        UPDATE              => cipher_update<T>;
        FINAL               => cipher_final<T>;
        CIPHER              => cipher<T>;
        FREECTX             => free<T>;
        DUPCTX              => dupctx<T>;
        GET_CTX_PARAMS      => get_params<T>;
        SET_CTX_PARAMS      => set_params<T>;
        GETTABLE_PARAMS     => listing<T, A>;
        GETTABLE_CTX_PARAMS => context_listing<T, A>;
        SETTABLE_CTX_PARAMS => context_listing<T, A>;
    } };
    // Takes no context: OpenSSL's own function answers.
    rows.push((ids::aead::GET_PARAMS, std::ptr::null()));
    rows
}

/// The rows of a digest's dispatch table.
#[rustfmt::skip]
pub(super) fn digest_rows<T: HashContext, const A: usize>() -> Rows {
    let mut rows = dispatch! { digest {
        NEWCTX          => newctx<T, A>;
        INIT            => digest_init<T>;
        UPDATE          => hash_update<T>;
        FINAL           => hash_final<T>;
        FREECTX         => free<T>;
        DUPCTX          => dupctx<T>;
        COPYCTX         => copyctx<T>;
        GETTABLE_PARAMS => listing<T, A>;
    } };
    // As above.
    rows.push((ids::digest::GET_PARAMS, std::ptr::null()));
    rows
}

pub(super) unsafe extern "C" fn newctx<T: Computing, const A: usize, const ID: i32>(
    provctx: Ptr,
) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(T::make(provider, A)?)))
}

pub(super) unsafe extern "C" fn dupctx<T: Computing, const ID: i32>(pointer: Ptr) -> Ptr {
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, |context: &mut T| Ok(give(context.copy()?))) }
}

unsafe extern "C" fn copyctx<T: Computing, const ID: i32>(to: Ptr, from: Ptr) {
    // SAFETY: libcrypto passes a context of the same table, which nothing else uses during the call.
    let Some(from) = (unsafe { from.cast::<T>().as_mut() }) else {
        return;
    };
    let entry = |context: &mut T| {
        *context = from.copy()?;
        Ok(DONE)
    };
    // SAFETY: libcrypto passes another context of this table.
    let _: c_int = unsafe { with_context(to, entry) };
}

unsafe extern "C" fn cipher_init<T: CipherContext, const ID: i32>(
    pointer: Ptr,
    key: *const u8,
    key_len: usize,
    iv: *const u8,
    iv_len: usize,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut T| {
        // SAFETY: libcrypto passes null, or readable bytes that nothing changes during the call.
        let given =
            |start: *const u8, len| (!start.is_null()).then(|| unsafe { bytes(start, len) });
        let key = given(key, key_len);
        let iv = given(iv, iv_len);
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { context.start(ID, key, iv, settings) }
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn cipher_update<T: CipherContext, const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, `len` readable bytes, null or `room` writable ones, which are
    // the same place or do not overlap, and null or a place for the length.
    unsafe {
        with_context(pointer, |context: &mut T| context.update(out, out_len, room, input, len))
    }
}

unsafe extern "C" fn cipher_final<T: CipherContext, const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and null or what the function may write.
    unsafe { with_context(pointer, |context: &mut T| context.finish(out, out_len, room)) }
}

unsafe extern "C" fn cipher<T: CipherContext, const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: as in `cipher_update`, and `input` may be null.
    unsafe {
        with_context(pointer, |context: &mut T| context.cipher(out, out_len, room, input, len))
    }
}

unsafe extern "C" fn set_params<T: CipherContext, const ID: i32>(
    pointer: Ptr,
    settings: *const Param,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and null or an array of parameters with its end.
    unsafe { with_context(pointer, |context: &mut T| context.set(settings)) }
}

unsafe extern "C" fn get_params<T: CipherContext, const ID: i32>(
    pointer: Ptr,
    request: *mut Param,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and null or an array of parameters with its end, to be written.
    unsafe { with_context(pointer, |context: &mut T| context.get(request)) }
}

unsafe extern "C" fn digest_init<T: HashContext, const ID: i32>(
    pointer: Ptr,
    settings: *const Param,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and null or an array of parameters with its end.
    unsafe { with_context(pointer, |context: &mut T| context.start(ID, settings)) }
}

pub(super) unsafe extern "C" fn hash_update<T: HashContext, const ID: i32>(
    pointer: Ptr,
    data: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and `len` readable bytes.
    unsafe { with_context(pointer, |context: &mut T| context.update(data, len)) }
}

pub(super) unsafe extern "C" fn hash_final<T: HashContext, const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> c_int {
    // SAFETY: libcrypto passes a context of this table, and null or what the function may write.
    unsafe { with_context(pointer, |context: &mut T| context.finish(out, out_len, room)) }
}

/// Lists parameters of an algorithm, without a context.
pub(super) unsafe extern "C" fn listing<T: Computing, const A: usize, const ID: i32>(
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(T::algorithms(context), A).ok()?;
        // SAFETY: the listing takes the context of the provider whose algorithm this is.
        unsafe { call!(functions, ID, fn(context.provctx => Ptr) -> *const Param) }.ok()
    })
}

/// Lists parameters of a context.
pub(super) unsafe extern "C" fn context_listing<T: Computing, const A: usize, const ID: i32>(
    _: Ptr,
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(T::algorithms(context), A).ok()?;
        let none: Ptr = std::ptr::null_mut();
        // SAFETY: the listings take null for the context of an operation, and that of the provider whose algorithm
        // this is.
        unsafe { call!(functions, ID, fn(none => Ptr, context.provctx => Ptr) -> *const Param) }
            .ok()
    })
}
