// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AES-GCM and ChaCha20-Poly1305 as OpenSSL's `default` provider offers them, with the bulk work by AWS-LC: for a
//! libcrypto that was built without assembly. Sizes, flags and the lists of parameters are OpenSSL's own answers.
//!
//! [`AeadContext`] keeps the nonces, which OpenSSL leaves to the provider. It follows `ciphercommon_gcm.c` and
//! `cipher_chacha20_poly1305.c`, and is stricter in two places. A nonce of ChaCha20-Poly1305 encrypts one message only,
//! as one of AES-GCM does. A decryption without a tag fails.

mod context;
mod sample;

use std::ffi::c_int;

use super::DONE;
use super::entries::{CipherContext, Computing, cipher_rows};
use crate::algorithms::{Aead, each_aead};
use crate::error::{Error, Reason, Result};
use crate::ffi::delegate::Rows;
use crate::ffi::ids;
use crate::ffi::inner::{InnerAlgorithm, InnerContext};
use crate::ffi::memory::{bytes, write_len};
use crate::ffi::state::Provider;
use crate::ffi::types::Param;
use context::AeadContext;
pub(super) use sample::AeadSample;

/// The rows of each cipher's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Aead::ALL.len()] = each_aead!(rows);

fn rows<const A: usize>() -> Rows {
    cipher_rows::<AeadContext, A>()
}

impl Computing for AeadContext {
    fn algorithms(context: &'static InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.aeads
    }

    fn make(provider: &'static Provider, algorithm: usize) -> Result<Self> {
        Self::new(provider, Aead::ALL[algorithm])
    }

    fn copy(&mut self) -> Result<Self> {
        self.duplicate()
    }
}

impl CipherContext for AeadContext {
    unsafe fn start(
        &mut self,
        id: i32,
        key: Option<&[u8]>,
        nonce: Option<&[u8]>,
        settings: *const Param,
    ) -> Result<c_int> {
        self.begin_message(id == ids::aead::ENCRYPT_INIT, key, nonce)?;
        // SAFETY: by this function's contract.
        unsafe { self.set(settings) }
    }

    unsafe fn update(
        &mut self,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<c_int> {
        let mut written = 0;
        if len > 0 {
            check_room(room, len)?;
            // SAFETY: by this function's contract, with room for as many bytes as the input has.
            written = unsafe { take(self, out, input, len) }?;
        }
        // SAFETY: by this function's contract.
        unsafe { write_len(out_len, written) };
        Ok(DONE)
    }

    unsafe fn finish(&mut self, _: *mut u8, out_len: *mut usize, _: usize) -> Result<c_int> {
        self.finish_message()?;
        // SAFETY: by this function's contract.
        unsafe { write_len(out_len, 0) };
        Ok(DONE)
    }

    unsafe fn cipher(
        &mut self,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<c_int> {
        check_room(room, len)?;
        let mut written = 0;
        if input.is_null() {
            self.finish_message()?;
        } else {
            // SAFETY: by this function's contract, with room for as many bytes as the input has.
            written = unsafe { take(self, out, input, len) }?;
        }
        // OpenSSL says so for AES-GCM, also where it took a nonce and a tag away.
        let said = if self.kind().is_gcm() { len } else { written };
        // SAFETY: by this function's contract.
        unsafe { write_len(out_len, said) };
        Ok(DONE)
    }

    unsafe fn set(&mut self, settings: *const Param) -> Result<c_int> {
        // SAFETY: by this function's contract.
        unsafe { self.note(settings) }.map(|()| DONE)
    }

    unsafe fn get(&mut self, request: *mut Param) -> Result<c_int> {
        // SAFETY: by this function's contract.
        unsafe { self.answer_all(request) }.map(|()| DONE)
    }
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

fn check_room(room: usize, len: usize) -> Result<()> {
    if room < len {
        return Err(Error::new(Reason::Buffer, "the buffer is shorter than the message"));
    }
    Ok(())
}
