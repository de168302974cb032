// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AES-GCM. The kernel seals a whole message in one call. OpenSSL's interface does not mark the last part. So the
//! kernel processes the first part as if it were the whole message, and the provider keeps that input. If more follows,
//! OpenSSL gets the input, and continues.
//!
//! A nonce that the kernel has used encrypts no other message: the application has to set another.

use std::ffi::{CStr, c_int};

use millrace_kernel_crypto::{MAX_AAD_LEN, NONCE_LEN, TAG_LEN};
use zeroize::Zeroizing;

use super::*;
use crate::bulk::{BulkAttempt, KernelKey};
use crate::ffi::inner::succeeded;
use crate::ffi::memory::{bytes, write_len};
use crate::ffi::params::{octets, set_bytes};

/// Which implementation has which part of the message.
#[derive(Clone)]
enum State {
    /// OpenSSL has all input so far, and does the rest.
    OfOpenssl,
    /// A nonce is set. OpenSSL does not have this additional authenticated data yet.
    Begun(Vec<u8>),
    /// The kernel has done this input, which may be the whole message.
    ByKernel { aad: Vec<u8>, input: Zeroizing<Vec<u8>>, tag: [u8; TAG_LEN] },
    /// The kernel has done the whole message.
    Ended { tag: [u8; TAG_LEN] },
}

/// The context of a cipher.
pub(super) struct SealedContext {
    provider: &'static Provider,
    inner: Inner,
    key: KernelKey,
    encrypts: bool,
    nonce: Option<[u8; NONCE_LEN]>,
    /// Tag of the message to be decrypted.
    expected: Option<[u8; TAG_LEN]>,
    state: State,
}

owned!(SealedContext);

fn used_up() -> Error {
    refused("the nonce was used: each message needs its own")
}

impl Computing for SealedContext {
    fn algorithms(context: &'static InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.bulk
    }

    fn make(provider: &'static Provider, algorithm: usize) -> Result<Self> {
        let algorithm = Bulk::ALL[algorithm];
        Ok(Self {
            provider,
            inner: Inner::new(algorithm, ids::aead::NEWCTX, ids::aead::FREECTX)?,
            key: KernelKey::new(routes(provider)?, algorithm.row().kernel),
            encrypts: false,
            nonce: None,
            expected: None,
            state: State::OfOpenssl,
        })
    }

    fn copy(&mut self) -> Result<Self> {
        if matches!(self.state, State::ByKernel { .. }) {
            self.yield_to_openssl()?;
        }
        let inner = self.inner.copy(ids::aead::DUPCTX)?;
        let key = self.key.copy();
        Ok(Self { inner, key, state: self.state.clone(), ..*self })
    }
}

impl CipherContext for SealedContext {
    unsafe fn start(
        &mut self,
        id: i32,
        key: Option<&[u8]>,
        iv: Option<&[u8]>,
        settings: *const Param,
    ) -> Result<c_int> {
        let encrypts = id == ids::aead::ENCRYPT_INIT;
        if iv.is_none() && !matches!(self.state, State::Ended { .. }) {
            self.yield_to_openssl()?;
        }
        // SAFETY: by this function's contract.
        let status = unsafe { self.inner.start(id, key, iv, settings) }?;
        self.encrypts = encrypts;
        if status != DONE {
            self.nonce = None;
            if !matches!(self.state, State::Ended { .. }) {
                self.state = State::OfOpenssl;
            }
            return Ok(status);
        }
        if let Some(key) = key {
            self.key.set(key);
        }
        if let Some(iv) = iv {
            self.nonce = iv.try_into().ok();
            let is_ours = self.nonce.is_some() && self.key.is_set();
            self.state = if is_ours { State::Begun(Vec::new()) } else { State::OfOpenssl };
        }
        // SAFETY: by this function's contract.
        unsafe { self.note(settings) }?;
        Ok(status)
    }

    unsafe fn update(
        &mut self,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<c_int> {
        if let State::Begun(aad) = &mut self.state {
            if out.is_null() && len > 0 && aad.len() + len <= MAX_AAD_LEN {
                // SAFETY: by this function's contract.
                aad.extend_from_slice(unsafe { bytes(input, len) });
                // SAFETY: by this function's contract.
                unsafe { write_len(out_len, len) };
                return Ok(DONE);
            }
            // SAFETY: by this function's contract, and with room for the whole.
            if !out.is_null() && room >= len && unsafe { self.by_kernel(out, input, len) } {
                // SAFETY: by this function's contract.
                unsafe { write_len(out_len, len) };
                return Ok(DONE);
            }
        }
        self.yield_to_openssl()?;
        // SAFETY: by this function's contract.
        unsafe { self.inner.part(ids::aead::UPDATE, (out, out_len, room), (input, len)) }
    }

    unsafe fn finish(&mut self, out: *mut u8, out_len: *mut usize, room: usize) -> Result<c_int> {
        match &self.state {
            State::ByKernel { tag, .. } => {
                self.state = State::Ended { tag: *tag };
                // SAFETY: by this function's contract.
                unsafe { write_len(out_len, 0) };
                return Ok(DONE);
            }
            State::Ended { .. } => return Err(used_up()),
            State::Begun(_) | State::OfOpenssl => self.yield_to_openssl()?,
        }
        // SAFETY: by this function's contract.
        unsafe { self.inner.finish(ids::aead::FINAL, out, out_len, room) }
    }

    unsafe fn cipher(
        &mut self,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
        input: *const u8,
        len: usize,
    ) -> Result<c_int> {
        self.yield_to_openssl()?;
        // SAFETY: by this function's contract.
        unsafe { self.inner.part(ids::aead::CIPHER, (out, out_len, room), (input, len)) }
    }

    unsafe fn set(&mut self, settings: *const Param) -> Result<c_int> {
        if !matches!(self.state, State::Ended { .. } | State::Begun(_)) {
            self.yield_to_openssl()?;
        }
        // SAFETY: by this function's contract.
        let is_of_message = unsafe { entries(settings) }.all(|param| {
            // SAFETY: the key of an entry is a C string.
            [&b"tag"[..], b"keylen"].contains(&unsafe { CStr::from_ptr(param.key) }.to_bytes())
        });
        if !is_of_message && matches!(self.state, State::Begun(_)) {
            self.yield_to_openssl()?;
        }
        // SAFETY: libcrypto's parameters for this function.
        let status = unsafe { self.inner.params(ids::aead::SET_CTX_PARAMS, settings) }?;
        if status == DONE {
            // SAFETY: by this function's contract.
            unsafe { self.note(settings) }?;
        }
        Ok(status)
    }

    unsafe fn get(&mut self, request: *mut Param) -> Result<c_int> {
        let tag = match &self.state {
            State::Ended { tag } if self.encrypts => Some(tag),
            _ => None,
        };
        let own = |name: &CStr, param: &mut Param| {
            let tag = tag.filter(|_| name.to_bytes() == b"tag")?;
            let part = tag.get(..param.data_size).filter(|part| !part.is_empty());
            // SAFETY: the application has passed memory to be written.
            Some(part.is_some_and(|part| unsafe { set_bytes(param, part) }))
        };
        // SAFETY: by this function's contract.
        unsafe { self.inner.answer(ids::aead::GET_CTX_PARAMS, request, own) }
    }
}

impl SealedContext {
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn note(&mut self, settings: *const Param) -> Result<()> {
        // SAFETY: by this function's contract.
        for param in unsafe { entries(settings) } {
            // SAFETY: the key of an entry is a C string.
            match unsafe { CStr::from_ptr(param.key) }.to_bytes() {
                b"tag" => {
                    // SAFETY: by this function's contract.
                    let tag = unsafe { octets(param) };
                    self.expected = tag.and_then(|tag| tag.try_into().ok());
                }
                b"keylen" => {}
                // The length alone gives no other nonce.
                b"ivlen" if matches!(self.state, State::Ended { .. }) => {}
                // Records of TLS 1.2, nonces that count, and what a later OpenSSL has.
                _ => self.state = State::OfOpenssl,
            }
        }
        Ok(())
    }

    /// Gives OpenSSL all that it does not have of the message, so that it does the rest.
    fn yield_to_openssl(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.state, State::OfOpenssl) {
            State::OfOpenssl => Ok(()),
            State::Begun(aad) => self.give(&aad, None),
            State::ByKernel { aad, input, .. } => self.give(&aad, Some(&input)),
            ended @ State::Ended { .. } => {
                self.state = ended;
                Err(used_up())
            }
        }
    }

    /// Gives OpenSSL additional authenticated data, and input whose output the application has already.
    fn give(&self, aad: &[u8], input: Option<&[u8]>) -> Result<()> {
        if !aad.is_empty() {
            self.update_inner(None, aad)?;
        }
        if let Some(input) = input {
            let mut output_copy = Zeroizing::new(vec![0; input.len()]);
            self.update_inner(Some(&mut output_copy), input)?;
        }
        Ok(())
    }

    /// Without an output, `input` is additional authenticated data.
    fn update_inner(&self, out: Option<&mut [u8]>, input: &[u8]) -> Result<()> {
        let mut written = 0;
        let (start, room) = match out {
            Some(out) => (out.as_mut_ptr(), out.len()),
            None => (std::ptr::null_mut(), input.len()),
        };
        let output = (start, &raw mut written, room);
        // SAFETY: null or a buffer with its room, an input with its length, and a place for a length.
        succeeded(unsafe {
            self.inner.part(ids::aead::UPDATE, output, (input.as_ptr(), input.len()))
        }?)
    }

    /// Has the kernel do a part that may be the whole message; returns whether it did.
    ///
    /// # Safety
    /// `input` is readable and `out` writable for `len` bytes: the same place, or one that does not overlap.
    unsafe fn by_kernel(&mut self, out: *mut u8, input: *const u8, len: usize) -> bool {
        let (State::Begun(aad), Some(nonce)) = (&self.state, self.nonce) else {
            return false;
        };
        let expected = self.expected;
        if !self.key.takes(len) || (!self.encrypts && expected.is_none()) {
            return false;
        }
        // SAFETY: by this function's contract; nothing writes there until the copy below.
        let part = unsafe { bytes(input, len) };
        let mut result = Zeroizing::new(vec![0; len]);
        let outcome = self.key.run(check::known(), |session| match expected {
            Some(tag) if !self.encrypts => {
                session.open_sealed(&nonce, aad, part, &tag, &mut result)?;
                Ok(tag)
            }
            _ => session.seal(&nonce, aad, part, &mut result),
        });
        let tag = match outcome {
            BulkAttempt::Done(tag) => tag,
            // OpenSSL decrypts it, and reports the failure at the end.
            BulkAttempt::NotAuthentic => return false,
            BulkAttempt::Failed(error) => {
                note_failure(self.provider, &error);
                return false;
            }
        };
        let aad = aad.clone();
        let input = Zeroizing::new(part.to_vec());
        // SAFETY: by this function's contract; the result is memory of ours.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), out, len) };
        self.provider.stats.kernel_bulk.add();
        self.state = State::ByKernel { aad, input, tag };
        true
    }
}
