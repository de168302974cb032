// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AES-GCM and ChaCha20-Poly1305 as OpenSSL's `default` provider offers them, with the bulk work by AWS-LC: for a
//! libcrypto that was built without assembly. Sizes, flags and the lists of parameters are OpenSSL's own answers.
//!
//! [`AeadContext`] keeps the nonces, which OpenSSL leaves to the provider. It follows `ciphercommon_gcm.c` and
//! `cipher_chacha20_poly1305.c`, and is stricter in two places: a nonce of ChaCha20-Poly1305 encrypts one message, as
//! one of AES-GCM does, and no decryption ends well without a tag.

mod context;
mod sample;

use std::ffi::c_int;

use super::{DONE, give, with};
use crate::algorithms::{Aead, each_aead};
use crate::error::{Error, Reason, Result};
use crate::ffi::core::guard_bare;
use crate::ffi::delegate::{Failure, Rows, dispatch, free};
use crate::ffi::ids;
use crate::ffi::inner::{self, call};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::private::bytes;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::Param;
use context::AeadContext;
pub(super) use sample::AeadSample;

/// The rows of each cipher's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Aead::ALL.len()] = each_aead!(rows);

#[rustfmt::skip]
fn rows<const A: usize>() -> Rows {
    let mut rows = dispatch! { aead {
        NEWCTX              => newctx<A>;
        ENCRYPT_INIT        => init<>;
        DECRYPT_INIT        => init<>;
        UPDATE              => update<>;
        FINAL               => finish<>;
        CIPHER              => cipher<>;
        FREECTX             => free<AeadContext>;
        DUPCTX              => dupctx<>;
        GET_CTX_PARAMS      => get_params<>;
        SET_CTX_PARAMS      => set_params<>;
        GETTABLE_PARAMS     => listing<A>;
        GETTABLE_CTX_PARAMS => context_listing<A>;
        SETTABLE_CTX_PARAMS => context_listing<A>;
    } };
    // Without a context and without ours in it: OpenSSL's own function answers.
    rows.push((ids::aead::GET_PARAMS, std::ptr::null()));
    rows
}

unsafe extern "C" fn newctx<const A: usize, const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(AeadContext::new(provider, Aead::ALL[A])?)))
}

unsafe extern "C" fn dupctx<const ID: i32>(pointer: Ptr) -> Ptr {
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, |context: &mut AeadContext| Ok(give(context.copy()?))) }
}

unsafe extern "C" fn init<const ID: i32>(
    pointer: Ptr,
    key: *const u8,
    key_len: usize,
    nonce: *const u8,
    nonce_len: usize,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut AeadContext| {
        // SAFETY: libcrypto passes null, or readable bytes that nothing changes during the call.
        let given =
            |start: *const u8, len| (!start.is_null()).then(|| unsafe { bytes(start, len) });
        let encrypts = ID == ids::aead::ENCRYPT_INIT;
        context.start(encrypts, given(key, key_len), given(nonce, nonce_len))?;
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { context.set(settings) }?;
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

/// Takes a part of the message; without an output, data to be authenticated; with the data of a TLS record set, that
/// record. Returns the length of what was written.
///
/// # Safety
/// `input` is readable, and `out` null or writable, for `len` bytes: the same place, or one that does not overlap.
unsafe fn take(
    context: &mut AeadContext,
    out: *mut u8,
    input: *const u8,
    len: usize,
) -> Result<usize> {
    if context.is_in_record() {
        // SAFETY: by this function's contract.
        return unsafe { context.record(out, input, len) };
    }
    if out.is_null() {
        // SAFETY: by this function's contract.
        context.authenticate(unsafe { bytes(input, len) })?;
    } else {
        // SAFETY: by this function's contract.
        unsafe { context.process(out, input, len) }?;
    }
    Ok(len)
}

/// # Safety
/// `place` is null or writable.
unsafe fn say(place: *mut usize, len: usize) {
    // SAFETY: by this function's contract.
    if let Some(place) = unsafe { place.as_mut() } {
        *place = len;
    }
}

fn check_room(room: usize, len: usize) -> Result<()> {
    if room < len {
        return Err(Error::new(Reason::Buffer, "the buffer is shorter than the message"));
    }
    Ok(())
}

unsafe extern "C" fn update<const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut AeadContext| {
        let mut written = 0;
        if len > 0 {
            check_room(room, len)?;
            // SAFETY: libcrypto passes `len` readable bytes, and null or room for as many.
            written = unsafe { take(context, out, input, len) }?;
        }
        // SAFETY: libcrypto passes null or a place for the length.
        unsafe { say(out_len, written) };
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn finish<const ID: i32>(
    pointer: Ptr,
    _out: *mut u8,
    out_len: *mut usize,
    _room: usize,
) -> c_int {
    let entry = |context: &mut AeadContext| {
        context.finish()?;
        // SAFETY: libcrypto passes null or a place for the length.
        unsafe { say(out_len, 0) };
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

/// `EVP_Cipher`: a part of a message, a record, or without an input the end.
unsafe extern "C" fn cipher<const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
    input: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut AeadContext| {
        check_room(room, len)?;
        let mut written = 0;
        if input.is_null() {
            context.finish()?;
        } else {
            // SAFETY: libcrypto passes `len` readable bytes, and null or room for as many.
            written = unsafe { take(context, out, input, len) }?;
        }
        // OpenSSL says so for AES-GCM, also where it took a nonce and a tag away.
        let said = if context.kind().is_gcm() { len } else { written };
        // SAFETY: libcrypto passes null or a place for the length.
        unsafe { say(out_len, said) };
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn set_params<const ID: i32>(pointer: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut AeadContext| {
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        unsafe { context.set(settings) }.map(|()| DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn get_params<const ID: i32>(pointer: Ptr, request: *mut Param) -> c_int {
    let entry = |context: &mut AeadContext| {
        // SAFETY: libcrypto passes null or an array of parameters with its end, to be written.
        unsafe { context.get(request) }.map(|()| DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with(pointer, entry) }
}

unsafe extern "C" fn listing<const A: usize, const ID: i32>(_provctx: Ptr) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(&context.aeads, A).ok()?;
        // SAFETY: the listing takes the context of the provider whose algorithm this is.
        unsafe { call!(functions, ID, fn(context.provctx => Ptr) -> *const Param) }.ok()
    })
}

unsafe extern "C" fn context_listing<const A: usize, const ID: i32>(
    _: Ptr,
    _provctx: Ptr,
) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        let functions = inner::algorithm_at(&context.aeads, A).ok()?;
        let none: Ptr = std::ptr::null_mut();
        // SAFETY: the listings take null for the context of an operation, and that of the provider whose algorithm
        // this is.
        unsafe { call!(functions, ID, fn(none => Ptr, context.provctx => Ptr) -> *const Param) }
            .ok()
    })
}
