// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A record to be measured: encrypted by AWS-LC, and by the dispatch table of the installed OpenSSL.

use std::cell::RefCell;
use std::ffi::c_int;

use super::AeadContext;
use crate::algorithms::Aead;
use crate::error::{Error, Result};
use crate::ffi::ids;
use crate::ffi::inner::{self, InnerAlgorithm, call, succeeded};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::state::Provider;
use crate::ffi::types::Param;
use crate::local::TAG_LEN;

/// Additional authenticated data of the record.
const AAD: [u8; 13] = [7; 13];

/// Nonce of every record: the plaintext is zeros, and the ciphertext is dropped.
const NONCE: [u8; 12] = [3; 12];

/// A context of each implementation, with a key.
pub(in crate::ffi::local) struct AeadSample {
    ours: RefCell<AeadContext>,
    theirs: &'static InnerAlgorithm,
    context: Ptr,
    message: RefCell<Vec<u8>>,
}

impl AeadSample {
    pub(in crate::ffi::local) fn new(
        provider: &'static Provider,
        kind: Aead,
        len: usize,
    ) -> Result<Self> {
        let context = inner::context()?;
        let theirs = inner::algorithm_at(&context.aeads, kind as usize)?;
        let key = vec![9; kind.row().key_len];
        let mut ours = AeadContext::new(provider, kind)?;
        ours.begin_message(true, Some(&key), None)?;
        let ours = RefCell::new(ours);
        let provctx = context.provctx;
        // SAFETY: `cipher_newctx` takes the context of the provider whose algorithm this is.
        let context = unsafe { call!(theirs, ids::aead::NEWCTX, fn(provctx => Ptr) -> Ptr) }?;
        if context.is_null() {
            return Err(Error::library());
        }
        let sample = Self { ours, theirs, context, message: RefCell::new(vec![0; len]) };
        sample.start_openssl(&key)?;
        Ok(sample)
    }

    pub(in crate::ffi::local) fn encrypt_local(&self) -> Result<()> {
        let mut ours = self.ours.borrow_mut();
        let mut message = self.message.borrow_mut();
        ours.begin_message(true, None, Some(&NONCE))?;
        ours.authenticate(&AAD)?;
        let start = message.as_mut_ptr();
        let len = message.len();
        // SAFETY: a buffer of this length, in its place.
        unsafe { ours.process(start, start, len) }?;
        ours.end()
    }

    pub(in crate::ffi::local) fn encrypt_openssl(&self) -> Result<()> {
        let mut message = self.message.borrow_mut();
        self.start_openssl(&[])?;
        let aad = AAD;
        // SAFETY: an input with its length, and no output.
        unsafe { self.update_openssl(std::ptr::null_mut(), aad.as_ptr(), aad.len()) }?;
        let start = message.as_mut_ptr();
        // SAFETY: a buffer of this length, in its place.
        unsafe { self.update_openssl(start, start, message.len()) }?;
        let context = self.context;
        let mut written = 0;
        let written = &raw mut written;
        // SAFETY: `cipher_final` takes a live context, a buffer, a place for a length, and the buffer's room.
        succeeded(unsafe {
            call!(self.theirs, ids::aead::FINAL,
                fn(context => Ptr, start => *mut u8, written => *mut usize, 0 => usize) -> c_int)
        }?)?;
        let mut tag = [0; TAG_LEN];
        let mut request = [Param::buffer(c"tag", &mut tag), Param::END];
        let request = request.as_mut_ptr();
        // SAFETY: `cipher_get_ctx_params` takes a live context and an array with its end.
        succeeded(unsafe {
            call!(self.theirs, ids::aead::GET_CTX_PARAMS,
                fn(context => Ptr, request => *mut Param) -> c_int)
        }?)
    }

    /// Starts a record, with a key if there is one.
    fn start_openssl(&self, key: &[u8]) -> Result<()> {
        let (context, none): (_, *const Param) = (self.context, std::ptr::null());
        let nonce = NONCE.as_ptr();
        let nonce_len = NONCE.len();
        let len = key.len();
        let key = if key.is_empty() { std::ptr::null() } else { key.as_ptr() };
        // SAFETY: `cipher_encrypt_init` takes a live context, null or a key and a nonce with their lengths, and no
        // parameters.
        succeeded(unsafe {
            call!(self.theirs, ids::aead::ENCRYPT_INIT,
                fn(context => Ptr, key => *const u8, len => usize, nonce => *const u8,
                    nonce_len => usize, none => *const Param) -> c_int)
        }?)
    }

    /// # Safety
    /// `input` is readable, and `out` null or writable, for `len` bytes: the same place, or one that does not overlap.
    unsafe fn update_openssl(&self, out: *mut u8, input: *const u8, len: usize) -> Result<()> {
        let context = self.context;
        let mut written = 0;
        let written = &raw mut written;
        // SAFETY: `cipher_update` takes a live context, null or a buffer with its room, a place for a length, and an
        // input with its length; the callers pass the same place, or no buffer.
        succeeded(unsafe {
            call!(self.theirs, ids::aead::UPDATE,
                fn(context => Ptr, out => *mut u8, written => *mut usize, len => usize,
                    input => *const u8, len => usize) -> c_int)
        }?)
    }
}

impl Drop for AeadSample {
    fn drop(&mut self) {
        let context = self.context;
        // SAFETY: `cipher_freectx` takes the context of `new`, which is not used again; every cipher has it.
        let _ = unsafe { call!(self.theirs, ids::aead::FREECTX, fn(context => Ptr) -> ()) };
    }
}
