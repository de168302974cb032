// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys and key shares of the installed OpenSSL, to be measured.

use std::ffi::c_int;
use std::ptr;

use crate::algorithms::{Exchange, Share};
use crate::error::{Error, Result};
use crate::ffi::ids::{self, select};
use crate::ffi::inner::{self, InnerAlgorithm, InnerContext, call, succeeded};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::types::{Callback, Param};

/// A fresh key of the installed OpenSSL, which the caller frees. `settings` ends with [`Param::END`].
pub(super) fn generated(keys: &InnerAlgorithm, settings: &[Param]) -> Result<Ptr> {
    debug_assert!(settings.last().is_some_and(|param| param.key.is_null()));
    let provctx = inner::context()?.provctx;
    let settings = settings.as_ptr();
    let both = select::PRIVATE_KEY | select::PUBLIC_KEY | select::DOMAIN_PARAMETERS;
    // SAFETY: `keymgmt_gen_init` takes the context of its provider, a selection, and parameters with their end.
    let start = unsafe {
        call!(keys, ids::keymgmt::GEN_INIT,
            fn(provctx => Ptr, both => c_int, settings => *const Param) -> Ptr)
    }?;
    if start.is_null() {
        return Err(Error::library());
    }
    let (callback, argument): (Option<Callback>, Ptr) = (None, ptr::null_mut());
    // SAFETY: `keymgmt_gen` takes what `gen_init` gave, and no callback.
    let pair = unsafe {
        call!(keys, ids::keymgmt::GEN,
            fn(start => Ptr, callback => Option<Callback>, argument => Ptr) -> Ptr)
    };
    // SAFETY: `keymgmt_gen_cleanup` takes the same, which is not used again.
    unsafe { call!(keys, ids::keymgmt::GEN_CLEANUP, fn(start => Ptr) -> ()) }?;
    pair.and_then(|pair| if pair.is_null() { Err(Error::library()) } else { Ok(pair) })
}

/// A key share of the installed OpenSSL, and the algorithm that uses it.
pub(super) struct StockShare {
    context: &'static InnerContext,
    keys: &'static InnerAlgorithm,
    work: &'static InnerAlgorithm,
    is_agreement: bool,
    peer: Ptr,
}

impl StockShare {
    /// The share in the installed OpenSSL; `None` if that does not have it.
    pub(super) fn new(context: &'static InnerContext, share: Share) -> Result<Option<Self>> {
        let is_agreement = share.is_agreement();
        let work = if is_agreement {
            &context.exchanges[Exchange::X25519 as usize]
        } else {
            &context.kems[share as usize]
        };
        let (Some(keys), Some(work)) = (&context.shares[share as usize], work) else {
            return Ok(None);
        };
        let mut stock = Self { context, keys, work, is_agreement, peer: ptr::null_mut() };
        stock.peer = stock.pair()?;
        Ok(Some(stock))
    }

    fn pair(&self) -> Result<Ptr> {
        generated(self.keys, &[Param::END])
    }

    fn free_key(&self, key: Ptr) {
        // SAFETY: `keymgmt_free` takes a key of this key manager, which is not used again; every one has it.
        let _ = unsafe { call!(self.keys, ids::keymgmt::FREE, fn(key => Ptr) -> ()) };
    }

    /// A pair and an agreement, or an encapsulation.
    pub(super) fn run(&self) -> Result<()> {
        let provctx = self.context.provctx;
        let (new, free) = if self.is_agreement {
            (ids::keyexch::NEWCTX, ids::keyexch::FREECTX)
        } else {
            (ids::kem::NEWCTX, ids::kem::FREECTX)
        };
        // SAFETY: both constructors take the context of their provider.
        let context = unsafe { call!(self.work, new, fn(provctx => Ptr) -> Ptr) }?;
        if context.is_null() {
            return Err(Error::library());
        }
        let done = if self.is_agreement { self.agree(context) } else { self.encapsulate(context) };
        // SAFETY: takes the context made above, which is not used again.
        let freed = unsafe { call!(self.work, free, fn(context => Ptr) -> ()) };
        done.and(freed)
    }

    fn agree(&self, context: Ptr) -> Result<()> {
        let key = self.pair()?;
        let derived = self.derive(context, key);
        self.free_key(key);
        derived
    }

    fn derive(&self, context: Ptr, key: Ptr) -> Result<()> {
        let (none, peer): (*const Param, Ptr) = (ptr::null(), self.peer);
        // SAFETY: `keyexch_init` takes a fresh context, a live key of its key manager, and no parameters.
        succeeded(unsafe {
            call!(self.work, ids::keyexch::INIT,
                fn(context => Ptr, key => Ptr, none => *const Param) -> c_int)
        }?)?;
        // SAFETY: `keyexch_set_peer` takes the context and a live key of its key manager.
        succeeded(unsafe {
            call!(self.work, ids::keyexch::SET_PEER, fn(context => Ptr, peer => Ptr) -> c_int)
        }?)?;
        let mut secret = [0_u8; 32];
        let mut written = 0;
        let start = secret.as_mut_ptr();
        let written = &raw mut written;
        let room = secret.len();
        // SAFETY: `keyexch_derive` takes a buffer with its length, and a place for the length of the result.
        succeeded(unsafe {
            call!(self.work, ids::keyexch::DERIVE,
                fn(context => Ptr, start => *mut u8, written => *mut usize, room => usize) -> c_int)
        }?)
    }

    fn encapsulate(&self, context: Ptr) -> Result<()> {
        /// Room for a ciphertext or a secret: more than any share needs.
        const ROOM: usize = 2048;
        let (none, peer): (*const Param, Ptr) = (ptr::null(), self.peer);
        // SAFETY: `kem_encapsulate_init` takes a fresh context, a live key of its key manager, and no parameters.
        succeeded(unsafe {
            call!(self.work, ids::kem::ENCAPSULATE_INIT,
                fn(context => Ptr, peer => Ptr, none => *const Param) -> c_int)
        }?)?;
        let mut out = [0_u8; ROOM];
        let mut secret = [0_u8; ROOM];
        let mut out_len = ROOM;
        let mut secret_len = ROOM;
        let out = out.as_mut_ptr();
        let secret = secret.as_mut_ptr();
        let out_len = &raw mut out_len;
        let secret_len = &raw mut secret_len;
        // SAFETY: `kem_encapsulate` takes two buffers with places that have their lengths.
        succeeded(unsafe {
            call!(self.work, ids::kem::ENCAPSULATE,
                fn(context => Ptr, out => *mut u8, out_len => *mut usize, secret => *mut u8,
                    secret_len => *mut usize) -> c_int)
        }?)
    }
}

impl Drop for StockShare {
    fn drop(&mut self) {
        if !self.peer.is_null() {
            self.free_key(self.peer);
        }
    }
}
