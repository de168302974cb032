// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Key exchange with X25519.

use std::ffi::c_int;
use std::sync::Arc;

use super::{DONE, ShareObject};
use crate::error::{Error, Reason};
use crate::ffi::delegate::{Rows, dispatch};
use crate::ffi::handle::{Failure, free, give, owned, with_context};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::memory::Buffer;
use crate::ffi::state::{Provider, guard};
use crate::ffi::types::Param;
use crate::local::share::ShareKey;

#[rustfmt::skip]
pub(super) fn rows() -> Rows {
    dispatch! { keyexch {
        NEWCTX   => newctx<>;
        FREECTX  => free<Exchange>;
        DUPCTX   => dupctx<>;
        INIT     => init<>;
        SET_PEER => set_peer<>;
        DERIVE   => derive<>;
    } }
}

/// The context of a key exchange.
#[derive(Clone)]
struct Exchange {
    provider: &'static Provider,
    key: Option<Arc<ShareKey>>,
    peer: Option<Arc<ShareKey>>,
}

owned!(Exchange);

unsafe extern "C" fn newctx<const ID: i32>(provctx: Ptr) -> Ptr {
    // SAFETY: libcrypto passes the provider context of `OSSL_provider_init`.
    let provider = unsafe { Provider::of(provctx) };
    guard(provider, Ptr::VALUE, || Ok(give(Exchange { provider, key: None, peer: None })))
}

unsafe extern "C" fn dupctx<const ID: i32>(pointer: Ptr) -> Ptr {
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, |exchange: &mut Exchange| Ok(give(exchange.clone()))) }
}

unsafe extern "C" fn init<const ID: i32>(
    pointer: Ptr,
    object: Ptr,
    _settings: *const Param,
) -> c_int {
    let entry = |exchange: &mut Exchange| {
        // SAFETY: libcrypto passes null or a key object of the same name and provider.
        exchange.key = Some(unsafe { ShareObject::key_of(object) }?);
        exchange.peer = None;
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn set_peer<const ID: i32>(pointer: Ptr, object: Ptr) -> c_int {
    let entry = |exchange: &mut Exchange| {
        // SAFETY: libcrypto passes null or a key object of the same name and provider.
        exchange.peer = Some(unsafe { ShareObject::key_of(object) }?);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}

unsafe extern "C" fn derive<const ID: i32>(
    pointer: Ptr,
    out: *mut u8,
    out_len: *mut usize,
    room: usize,
) -> c_int {
    let entry = |exchange: &mut Exchange| {
        let (Some(key), Some(peer)) = (&exchange.key, &exchange.peer) else {
            let text = "a key exchange needs a key and the peer's share";
            return Err(Error::new(Reason::Key, text));
        };
        let buffer = Buffer::new(out, out_len, room);
        if out.is_null() {
            // SAFETY: libcrypto passes null or a place for the length.
            unsafe { buffer.set_len(key.share().secret_len()) }?;
            return Ok(DONE);
        }
        let secret = key.agree(peer)?;
        // SAFETY: libcrypto passes a buffer of `room` bytes, and null or a place for the length.
        unsafe { buffer.fill(&*secret) }?;
        exchange.provider.stats.served_locally(key.share().row().primitive);
        Ok(DONE)
    };
    // SAFETY: libcrypto passes a context of this table.
    unsafe { with_context(pointer, entry) }
}
