// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key encapsulation with ML-KEM-768 and its hybrids, in both directions: OpenSSL silently ignores an algorithm with
//! one of them.

use std::ffi::c_int;
use std::sync::Arc;

use super::{DONE, ShareObject};
use crate::error::{Error, Reason, Result};
use crate::ffi::delegate::{Rows, dispatch};
use crate::ffi::handle::{Failure, free, give, owned, with_context};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::memory::{bytes, too_short, write_len};
use crate::ffi::params::entries;
use crate::ffi::stack;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::Param;
use crate::local::share::ShareKey;

#[rustfmt::skip]
pub(super) fn rows() -> Rows {
    dispatch! { kem {
        NEWCTX           => newctx<>;
        FREECTX          => free<Encapsulation>;
        DUPCTX           => dupctx<>;
        ENCAPSULATE_INIT => init<>;
        ENCAPSULATE      => encapsulate<>;
        DECAPSULATE_INIT => init<>;
        DECAPSULATE      => decapsulate<>;
    } }
}

/// The context of an encapsulation or decapsulation.
#[derive(Clone)]
struct Encapsulation {
    provider: &'static Provider,
    key: Option<Arc<ShareKey>>,
}

owned!(Encapsulation);

impl Encapsulation {
    fn key(&self) -> Result<&ShareKey> {
        self.key.as_deref().ok_or_else(|| Error::new(Reason::Key, "no key is set"))
    }
}

unsafe extern "C" fn newctx<const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(Encapsulation { provider, key: None })))
}

unsafe extern "C" fn dupctx<const ID: i32>(pointer: Ptr) -> Ptr {
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, |context: &mut Encapsulation| Ok(give(context.clone()))) }
}

unsafe extern "C" fn init<const ID: i32>(
    pointer: Ptr,
    object: Ptr,
    settings: *const Param,
) -> c_int {
    let entry = |context: &mut Encapsulation| {
        // SAFETY: libcrypto passes null or an array of parameters with its end.
        if unsafe { entries(settings) }.next().is_some() {
            let text = "an encapsulation takes no parameters";
            return Err(Error::new(Reason::NotOffered, text));
        }
        // SAFETY: libcrypto passes null or a key object of the same name and provider.
        context.key = Some(unsafe { ShareObject::key_of(object) }?);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn encapsulate<const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    secret: *mut u8,
    secret_len: *mut usize,
) -> c_int {
    let entry = |context: &mut Encapsulation| {
        let key = context.key()?;
        let share = key.share();
        if out.is_null() {
            // SAFETY: libcrypto passes null or a place for a length.
            unsafe { write_len(out_len, share.ciphertext_len()) };
            // SAFETY: as above.
            unsafe { write_len(secret_len, share.secret_len()) };
            return Ok(DONE);
        }
        let (ciphertext, shared) =
            stack::with_room(context.provider, || key.encapsulate(context.provider.pair_maker()))?;
        // SAFETY: libcrypto passes a buffer with its length.
        unsafe { deliver(secret, secret_len, &shared) }?;
        // SAFETY: libcrypto passes a buffer with its length.
        unsafe { deliver(out, out_len, &ciphertext) }?;
        context.provider.stats.served_locally(share.row().primitive);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn decapsulate<const ID: i32>(
    pointer: Ptr,
    secret: *mut u8,
    secret_len: *mut usize,
    input: *const u8,
    len: usize,
) -> c_int {
    let entry = |context: &mut Encapsulation| {
        let key = context.key()?;
        if secret.is_null() {
            // SAFETY: libcrypto passes null or a place for a length.
            unsafe { write_len(secret_len, key.share().secret_len()) };
            return Ok(DONE);
        }
        // SAFETY: libcrypto passes `len` readable bytes, which nothing changes during the call.
        let ciphertext = unsafe { bytes(input, len) };
        let shared = stack::with_room(context.provider, || key.decapsulate(ciphertext))?;
        // SAFETY: libcrypto passes a buffer with its length.
        unsafe { deliver(secret, secret_len, &shared) }?;
        context.provider.stats.served_locally(key.share().row().primitive);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

/// Copies a result into a buffer of the application, whose room is in `len`. Without a buffer only the length is
/// written.
///
/// # Safety
/// `out` is null or writable for as many bytes as `len` says, which is null or writable.
unsafe fn deliver(out: *mut u8, len: *mut usize, result: &[u8]) -> Result<()> {
    // SAFETY: by this function's contract.
    let Some(room) = (unsafe { len.as_mut() }) else {
        return Err(Error::new(Reason::Buffer, "there is no place for the length"));
    };
    if !out.is_null() {
        if *room < result.len() {
            return Err(too_short(result.len(), *room));
        }
        // SAFETY: not null, with room enough by this function's contract, and a result is memory of ours.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, result.len()) };
    }
    *room = result.len();
    Ok(())
}
