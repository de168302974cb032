// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The functions that libcrypto calls: pointers in, [`Context`] methods, pointers out.

use std::ffi::{c_char, c_int, c_void};

use super::super::core::{guard, guard_bare};
use super::super::ids;
use super::super::inner::{self, SIGNATURES};
use super::super::libcrypto::Ptr;
use super::super::private::{bytes, hand_out};
use super::super::provider::Provider;
use super::super::types::{Dispatch, Param};
use super::{
    Context, DigestInit, DupCtx, Final, GetParams, Hasher, Init, Listing, MAX_DIGEST, MdListing,
    Produce, SetParams, Update, VerifyFinal, VerifyFn, functions,
};
use crate::error::{Error, Result};

/// The functions that are offered: those that OpenSSL has for the algorithm.
pub(crate) fn table_of(algorithm: usize) -> Result<Vec<Dispatch>> {
    let inner = functions(algorithm)?;
    let (new, gettable, settable) = constructors(algorithm).ok_or_else(Error::library)?;
    let all: [(i32, *const c_void); 31] = [
        (ids::OSSL_FUNC_SIGNATURE_NEWCTX, new as *const c_void),
        (ids::OSSL_FUNC_SIGNATURE_FREECTX, freectx as *const c_void),
        (ids::OSSL_FUNC_SIGNATURE_DUPCTX, dupctx as *const c_void),
        (
            ids::OSSL_FUNC_SIGNATURE_SIGN_INIT,
            sign_init as *const c_void,
        ),
        (ids::OSSL_FUNC_SIGNATURE_SIGN, sign as *const c_void),
        (
            ids::OSSL_FUNC_SIGNATURE_VERIFY_INIT,
            verify_init as *const c_void,
        ),
        (ids::OSSL_FUNC_SIGNATURE_VERIFY, verify as *const c_void),
        (
            ids::OSSL_FUNC_SIGNATURE_VERIFY_RECOVER_INIT,
            verify_recover_init as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_VERIFY_RECOVER,
            verify_recover as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN_INIT,
            digest_sign_init as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN_UPDATE,
            digest_sign_update as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN_FINAL,
            digest_sign_final as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN,
            digest_sign as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_INIT,
            digest_verify_init as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_UPDATE,
            digest_verify_update as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_FINAL,
            digest_verify_final as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY,
            digest_verify as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_GET_CTX_PARAMS,
            get_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_GETTABLE_CTX_PARAMS,
            gettable as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SET_CTX_PARAMS,
            set_ctx_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SETTABLE_CTX_PARAMS,
            settable as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_GET_CTX_MD_PARAMS,
            get_ctx_md_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_GETTABLE_CTX_MD_PARAMS,
            gettable_ctx_md_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SET_CTX_MD_PARAMS,
            set_ctx_md_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SETTABLE_CTX_MD_PARAMS,
            settable_ctx_md_params as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_INIT,
            sign_message_init as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_UPDATE,
            sign_message_update as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_FINAL,
            sign_message_final as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_INIT,
            verify_message_init as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_UPDATE,
            verify_message_update as *const c_void,
        ),
        (
            ids::OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_FINAL,
            verify_message_final as *const c_void,
        ),
    ];
    let mut entries: Vec<Dispatch> = all
        .into_iter()
        .filter(|(id, _)| inner.has(*id))
        .map(|(id, function)| Dispatch { id, function })
        .collect();
    // Takes nothing and gives the names of key types, which are the same here.
    entries.extend(inner.entry(ids::OSSL_FUNC_SIGNATURE_QUERY_KEY_TYPES));
    entries.push(Dispatch::END);
    Ok(entries)
}

type Constructors = (
    unsafe extern "C" fn(Ptr, *const c_char) -> Ptr,
    Listing,
    Listing,
);

/// The functions that are not told which algorithm they are for, and so are made for each.
fn constructors(algorithm: usize) -> Option<Constructors> {
    macro_rules! each {
        ($($n:literal)*) => {
            [$((
                newctx::<$n> as unsafe extern "C" fn(Ptr, *const c_char) -> Ptr,
                gettable_ctx_params::<$n> as Listing,
                settable_ctx_params::<$n> as Listing,
            )),*]
        };
    }
    let all: [Constructors; SIGNATURES.len()] =
        each!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);
    all.get(algorithm).copied()
}

/// Runs an entry on the context behind a pointer that `newctx` or `dupctx` gave out.
///
/// # Safety
/// They did, `freectx` has not taken it back, and nobody else uses it meanwhile.
unsafe fn with<T>(pointer: Ptr, failed: T, entry: impl FnOnce(&mut Context) -> Result<T>) -> T {
    // SAFETY: the caller's promise.
    match unsafe { pointer.cast::<Context>().as_mut() } {
        Some(context) => guard(context.provider, failed, || entry(context)),
        None => failed,
    }
}

fn done(status: c_int) -> Result<c_int> {
    if status == 1 {
        Ok(1)
    } else {
        Err(Error::library())
    }
}

unsafe extern "C" fn newctx<const A: usize>(provctx: Ptr, _properties: *const c_char) -> Ptr {
    // SAFETY: OpenSSL hands back the context of the provider.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, std::ptr::null_mut(), || {
        Ok(Box::into_raw(Box::new(Context::new(provider, A)?)).cast())
    })
}

unsafe extern "C" fn freectx(pointer: Ptr) {
    if pointer.is_null() {
        return;
    }
    guard_bare((), || {
        // SAFETY: OpenSSL gives it back and does not use it again.
        drop(unsafe { Box::from_raw(pointer.cast::<Context>()) });
        Some(())
    });
}

unsafe extern "C" fn dupctx(pointer: Ptr) -> Ptr {
    let entry = |context: &mut Context| {
        // SAFETY: the type of `signature_dupctx`.
        let dup = unsafe {
            context
                .functions
                .function::<DupCtx>(ids::OSSL_FUNC_SIGNATURE_DUPCTX)
        }?;
        let digest = context.digest.as_ref().map(Hasher::copy).transpose()?;
        // SAFETY: a live inner context.
        let inner = unsafe { dup(context.inner) };
        if inner.is_null() {
            return Err(Error::library());
        }
        let copy = Context {
            provider: context.provider,
            functions: context.functions,
            kind: context.kind,
            inner,
            key: context.key.clone(),
            digest,
            message: context.message,
            special: context.special,
        };
        Ok(Box::into_raw(Box::new(copy)).cast())
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, std::ptr::null_mut(), entry) }
}

/// Delegates an initialisation with a key.
///
/// # Safety
/// As [`with`]; `object` is null or a key object, `settings` an array that a null key ends or null.
unsafe fn init(pointer: Ptr, id: i32, object: Ptr, settings: *const Param) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: the caller's promise.
        let data = unsafe { context.take_key(object) }?;
        context.digest = None;
        context.message = false;
        context.special = false;
        // SAFETY: the caller's array.
        unsafe { context.note_settings(settings) };
        // SAFETY: the three initialisations have this type.
        let init = unsafe { context.functions.function::<Init>(id) }?;
        // SAFETY: a live inner context and key data.
        done(unsafe { init(context.inner, data, settings) })
    };
    // SAFETY: the caller's promise.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn sign_init(pointer: Ptr, object: Ptr, settings: *const Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe {
        init(
            pointer,
            ids::OSSL_FUNC_SIGNATURE_SIGN_INIT,
            object,
            settings,
        )
    }
}

unsafe extern "C" fn verify_init(pointer: Ptr, object: Ptr, settings: *const Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe {
        init(
            pointer,
            ids::OSSL_FUNC_SIGNATURE_VERIFY_INIT,
            object,
            settings,
        )
    }
}

unsafe extern "C" fn verify_recover_init(
    pointer: Ptr,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe {
        init(
            pointer,
            ids::OSSL_FUNC_SIGNATURE_VERIFY_RECOVER_INIT,
            object,
            settings,
        )
    }
}

unsafe extern "C" fn sign(
    pointer: Ptr,
    sig: *mut u8,
    siglen: *mut usize,
    room: usize,
    tbs: *const u8,
    tbslen: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        if let Some(key) = context.pooled().filter(|_| !sig.is_null()).cloned() {
            let mut value = [0; MAX_DIGEST];
            let output = if context.message && context.digest.is_none() {
                // SAFETY: the caller's input.
                context.sign_message(&key, unsafe { bytes(tbs, tbslen) })?
            } else {
                // SAFETY: the caller's input.
                let digest = match unsafe { context.finish_message(tbs, tbslen, &mut value) }? {
                    Some(len) => &value[..len],
                    // SAFETY: the caller's input.
                    None => unsafe { bytes(tbs, tbslen) },
                };
                context.sign_digest(&key, digest)?
            };
            if let Some(output) = output {
                // SAFETY: the caller's buffer.
                unsafe { hand_out(&output, sig, siglen, room) }?;
                return Ok(1);
            }
        } else if !sig.is_null() {
            context.provider.stats.local.add();
        }
        // SAFETY: the type of `signature_sign`.
        let sign = unsafe {
            context
                .functions
                .function::<Produce>(ids::OSSL_FUNC_SIGNATURE_SIGN)
        }?;
        // SAFETY: a live inner context, the caller's buffers.
        done(unsafe { sign(context.inner, sig, siglen, room, tbs, tbslen) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn verify(
    pointer: Ptr,
    sig: *const u8,
    siglen: usize,
    tbs: *const u8,
    tbslen: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: the type of `signature_verify`.
        let verify = unsafe {
            context
                .functions
                .function::<VerifyFn>(ids::OSSL_FUNC_SIGNATURE_VERIFY)
        }?;
        // SAFETY: a live inner context, the caller's buffers.
        Ok(unsafe { verify(context.inner, sig, siglen, tbs, tbslen) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn verify_recover(
    pointer: Ptr,
    out: *mut u8,
    outlen: *mut usize,
    room: usize,
    sig: *const u8,
    siglen: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_SIGNATURE_VERIFY_RECOVER;
        // SAFETY: the type of `signature_verify_recover`.
        let recover = unsafe { context.functions.function::<Produce>(id) }?;
        // SAFETY: a live inner context, the caller's buffers.
        Ok(unsafe { recover(context.inner, out, outlen, room, sig, siglen) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_sign_init(
    pointer: Ptr,
    name: *const c_char,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: a key object or null.
        let data = unsafe { context.take_key(object) }?;
        context.digest = None;
        context.message = false;
        context.special = false;
        // SAFETY: the caller's array.
        unsafe { context.note_settings(settings) };
        let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN_INIT;
        // SAFETY: the type of `signature_digest_sign_init`.
        let init = unsafe { context.functions.function::<DigestInit>(id) }?;
        // SAFETY: a live inner context and key data; the caller's name and settings.
        done(unsafe { init(context.inner, name, data, settings) })?;
        context.start_digest()
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

/// Takes a part of the message that is signed.
///
/// # Safety
/// As [`with`]; `data` is readable for `len` bytes; `id` is one of the two functions that do this.
unsafe fn update_signed(pointer: Ptr, id: i32, data: *const u8, len: usize) -> c_int {
    let entry = |context: &mut Context| {
        if let Some(digest) = &context.digest {
            // SAFETY: the caller's input.
            unsafe { digest.update(data, len) }?;
        }
        if !context.inner_hashes() {
            return Ok(1);
        }
        // SAFETY: both functions have this type.
        let update = unsafe { context.functions.function::<Update>(id) }?;
        // SAFETY: a live inner context, the caller's input.
        done(unsafe { update(context.inner, data, len) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_sign_update(pointer: Ptr, data: *const u8, len: usize) -> c_int {
    let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN_UPDATE;
    // SAFETY: what OpenSSL passes.
    unsafe { update_signed(pointer, id, data, len) }
}

unsafe extern "C" fn sign_message_update(pointer: Ptr, data: *const u8, len: usize) -> c_int {
    let id = ids::OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_UPDATE;
    // SAFETY: what OpenSSL passes.
    unsafe { update_signed(pointer, id, data, len) }
}

/// Ends the message that is signed.
///
/// # Safety
/// As [`with`]; the caller's buffer; `id` is one of the two functions that do this.
unsafe fn finish_signed(
    pointer: Ptr,
    id: i32,
    sig: *mut u8,
    siglen: *mut usize,
    room: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        if let (false, Some(digest)) = (sig.is_null(), &context.digest) {
            let mut value = [0; MAX_DIGEST];
            let len = digest.finish(&mut value)?;
            if let Some(key) = context.pooled().cloned()
                && let Some(output) = context.sign_digest(&key, &value[..len])?
            {
                // SAFETY: the caller's buffer.
                unsafe { hand_out(&output, sig, siglen, room) }?;
                return Ok(1);
            }
        } else if !sig.is_null() {
            context.provider.stats.local.add();
        }
        // SAFETY: both functions have this type.
        let finish = unsafe { context.functions.function::<Final>(id) }?;
        // SAFETY: a live inner context, the caller's buffer.
        done(unsafe { finish(context.inner, sig, siglen, room) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_sign_final(
    pointer: Ptr,
    sig: *mut u8,
    siglen: *mut usize,
    room: usize,
) -> c_int {
    let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN_FINAL;
    // SAFETY: what OpenSSL passes.
    unsafe { finish_signed(pointer, id, sig, siglen, room) }
}

unsafe extern "C" fn sign_message_final(
    pointer: Ptr,
    sig: *mut u8,
    siglen: *mut usize,
    room: usize,
) -> c_int {
    let id = ids::OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_FINAL;
    // SAFETY: what OpenSSL passes.
    unsafe { finish_signed(pointer, id, sig, siglen, room) }
}

unsafe extern "C" fn sign_message_init(pointer: Ptr, object: Ptr, settings: *const Param) -> c_int {
    let id = ids::OSSL_FUNC_SIGNATURE_SIGN_MESSAGE_INIT;
    // SAFETY: what OpenSSL passes.
    if unsafe { init(pointer, id, object, settings) } != 1 {
        return 0;
    }
    let entry = |context: &mut Context| {
        context.message = true;
        context.start_digest()
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn verify_message_init(
    pointer: Ptr,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    let id = ids::OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_INIT;
    // SAFETY: what OpenSSL passes.
    unsafe { init(pointer, id, object, settings) }
}

unsafe extern "C" fn verify_message_update(pointer: Ptr, data: *const u8, len: usize) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_UPDATE;
        // SAFETY: the type of `signature_verify_message_update`.
        let update = unsafe { context.functions.function::<Update>(id) }?;
        // SAFETY: a live inner context, the caller's input.
        done(unsafe { update(context.inner, data, len) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

/// The signature was set as a parameter.
unsafe extern "C" fn verify_message_final(pointer: Ptr) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_SIGNATURE_VERIFY_MESSAGE_FINAL;
        // SAFETY: the type of `signature_verify_message_final`.
        let finish = unsafe {
            context
                .functions
                .function::<unsafe extern "C" fn(Ptr) -> c_int>(id)
        }?;
        // SAFETY: a live inner context.
        Ok(unsafe { finish(context.inner) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

/// One-shot: what EdDSA has instead of update and final.
unsafe extern "C" fn digest_sign(
    pointer: Ptr,
    sig: *mut u8,
    siglen: *mut usize,
    room: usize,
    tbs: *const u8,
    tbslen: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        if let Some(key) = context.pooled().filter(|_| !sig.is_null()).cloned() {
            // SAFETY: the caller's input.
            let message = unsafe { bytes(tbs, tbslen) };
            if let Some(output) = context.sign_message(&key, message)? {
                // SAFETY: the caller's buffer.
                unsafe { hand_out(&output, sig, siglen, room) }?;
                return Ok(1);
            }
        } else if !sig.is_null() {
            context.provider.stats.local.add();
        }
        let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_SIGN;
        // SAFETY: the type of `signature_digest_sign`.
        let sign = unsafe { context.functions.function::<Produce>(id) }?;
        // SAFETY: a live inner context, the caller's buffers.
        done(unsafe { sign(context.inner, sig, siglen, room, tbs, tbslen) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_verify_init(
    pointer: Ptr,
    name: *const c_char,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: a key object or null.
        let data = unsafe { context.take_key(object) }?;
        context.digest = None;
        context.message = false;
        context.special = false;
        // SAFETY: the caller's array.
        unsafe { context.note_settings(settings) };
        let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_INIT;
        // SAFETY: the type of `signature_digest_verify_init`.
        let init = unsafe { context.functions.function::<DigestInit>(id) }?;
        // SAFETY: a live inner context and key data; the caller's name and settings.
        done(unsafe { init(context.inner, name, data, settings) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_verify_update(pointer: Ptr, data: *const u8, len: usize) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_UPDATE;
        // SAFETY: the type of `signature_digest_verify_update`.
        let update = unsafe { context.functions.function::<Update>(id) }?;
        // SAFETY: a live inner context, the caller's input.
        done(unsafe { update(context.inner, data, len) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_verify_final(pointer: Ptr, sig: *const u8, siglen: usize) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY_FINAL;
        // SAFETY: the type of `signature_digest_verify_final`.
        let finish = unsafe { context.functions.function::<VerifyFinal>(id) }?;
        // SAFETY: a live inner context, the caller's signature.
        Ok(unsafe { finish(context.inner, sig, siglen) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn digest_verify(
    pointer: Ptr,
    sig: *const u8,
    siglen: usize,
    tbs: *const u8,
    tbslen: usize,
) -> c_int {
    let entry = |context: &mut Context| {
        let id = ids::OSSL_FUNC_SIGNATURE_DIGEST_VERIFY;
        // SAFETY: the type of `signature_digest_verify`.
        let verify = unsafe { context.functions.function::<VerifyFn>(id) }?;
        // SAFETY: a live inner context, the caller's buffers.
        Ok(unsafe { verify(context.inner, sig, siglen, tbs, tbslen) })
    };
    // SAFETY: OpenSSL hands back a context of ours.
    unsafe { with(pointer, 0, entry) }
}

/// Delegates a reading of parameters.
///
/// # Safety
/// As [`with`]; `request` is the caller's array.
unsafe fn get(pointer: Ptr, id: i32, request: *mut Param) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: both readings have this type.
        let get = unsafe { context.functions.function::<GetParams>(id) }?;
        // SAFETY: a live inner context, the caller's array.
        Ok(unsafe { get(context.inner, request) })
    };
    // SAFETY: the caller's promise.
    unsafe { with(pointer, 0, entry) }
}

/// Delegates a setting of parameters.
///
/// # Safety
/// As [`with`]; `settings` is the caller's array.
unsafe fn set(pointer: Ptr, id: i32, settings: *const Param) -> c_int {
    let entry = |context: &mut Context| {
        // SAFETY: the caller's array.
        unsafe { context.note_settings(settings) };
        // SAFETY: both settings have this type.
        let set = unsafe { context.functions.function::<SetParams>(id) }?;
        // SAFETY: a live inner context, the caller's array.
        Ok(unsafe { set(context.inner, settings) })
    };
    // SAFETY: the caller's promise.
    unsafe { with(pointer, 0, entry) }
}

unsafe extern "C" fn get_ctx_params(pointer: Ptr, request: *mut Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe { get(pointer, ids::OSSL_FUNC_SIGNATURE_GET_CTX_PARAMS, request) }
}

unsafe extern "C" fn get_ctx_md_params(pointer: Ptr, request: *mut Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe { get(pointer, ids::OSSL_FUNC_SIGNATURE_GET_CTX_MD_PARAMS, request) }
}

unsafe extern "C" fn set_ctx_params(pointer: Ptr, settings: *const Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe { set(pointer, ids::OSSL_FUNC_SIGNATURE_SET_CTX_PARAMS, settings) }
}

unsafe extern "C" fn set_ctx_md_params(pointer: Ptr, settings: *const Param) -> c_int {
    // SAFETY: what OpenSSL passes.
    unsafe {
        set(
            pointer,
            ids::OSSL_FUNC_SIGNATURE_SET_CTX_MD_PARAMS,
            settings,
        )
    }
}

/// Delegates a listing of parameters; `pointer` may be null (`openssl list` asks so).
///
/// # Safety
/// As [`with`], if it is not null.
unsafe fn listing(pointer: Ptr, algorithm: usize, id: i32) -> *const Param {
    guard_bare(std::ptr::null(), || {
        let context = inner::context().ok()?;
        // SAFETY: both listings have this type.
        let list = unsafe { functions(algorithm).ok()?.function::<Listing>(id) }.ok()?;
        // SAFETY: the caller's promise.
        let inner = unsafe { pointer.cast::<Context>().as_ref() };
        let inner = inner.map_or(std::ptr::null_mut(), |context| context.inner);
        // SAFETY: a live inner context or null, and the inner provider's context.
        Some(unsafe { list(inner, context.provctx) })
    })
}

unsafe extern "C" fn gettable_ctx_params<const A: usize>(
    pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { listing(pointer, A, ids::OSSL_FUNC_SIGNATURE_GETTABLE_CTX_PARAMS) }
}

unsafe extern "C" fn settable_ctx_params<const A: usize>(
    pointer: Ptr,
    _provctx: Ptr,
) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { listing(pointer, A, ids::OSSL_FUNC_SIGNATURE_SETTABLE_CTX_PARAMS) }
}

/// Delegates a listing of the parameters of the digest.
///
/// # Safety
/// As [`with`].
unsafe fn md_listing(pointer: Ptr, id: i32) -> *const Param {
    let entry = |context: &mut Context| {
        // SAFETY: both listings have this type.
        let list = unsafe { context.functions.function::<MdListing>(id) }?;
        // SAFETY: a live inner context.
        Ok(unsafe { list(context.inner) })
    };
    // SAFETY: the caller's promise.
    unsafe { with(pointer, std::ptr::null(), entry) }
}

unsafe extern "C" fn gettable_ctx_md_params(pointer: Ptr) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { md_listing(pointer, ids::OSSL_FUNC_SIGNATURE_GETTABLE_CTX_MD_PARAMS) }
}

unsafe extern "C" fn settable_ctx_md_params(pointer: Ptr) -> *const Param {
    // SAFETY: what OpenSSL passes.
    unsafe { md_listing(pointer, ids::OSSL_FUNC_SIGNATURE_SETTABLE_CTX_MD_PARAMS) }
}
