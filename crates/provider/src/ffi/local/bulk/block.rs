// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AES-CBC and AES-CTR. After whole blocks by the kernel OpenSSL's context continues with the block that comes next:
//! the last ciphertext, or the counter.

use std::ffi::CStr;
use std::ffi::c_int;

use millrace_kernel_crypto::{BLOCK_LEN, BulkAlgorithm, BulkDirection, MAX_MESSAGE};
use zeroize::Zeroizing;

use super::*;
use crate::bulk::{BulkAttempt, KernelKey};
use crate::ffi::memory::{bytes, write_len};
use crate::ffi::params::{integer, set_bytes, set_bytes_ptr};

type Block = [u8; BLOCK_LEN];

/// The context of a cipher.
pub(super) struct BlockContext {
    provider: &'static Provider,
    algorithm: Bulk,
    inner: Inner,
    key: KernelKey,
    encrypts: bool,
    /// OpenSSL adds padding at the end, or removes it.
    pads: bool,
    /// The initialisation vector of the application.
    iv: Option<Block>,
    /// The vector of the next block. `None` unless the kernel can do that block.
    next: Option<Block>,
    /// OpenSSL's context was restarted with another vector than that of the application.
    moved: bool,
    /// A parameter was set that only OpenSSL knows.
    is_special: bool,
    /// The direction was changed without setting the key again. OpenSSL's CBC then computes what no other does.
    is_turned: bool,
}

owned!(BlockContext);

impl Computing for BlockContext {
    fn algorithms(context: &'static InnerContext) -> &'static [Option<InnerAlgorithm>] {
        &context.bulk
    }

    fn make(provider: &'static Provider, algorithm: usize) -> Result<Self> {
        let algorithm = Bulk::ALL[algorithm];
        Ok(Self {
            provider,
            algorithm,
            inner: Inner::new(algorithm, ids::aead::NEWCTX, ids::aead::FREECTX)?,
            key: KernelKey::new(routes(provider)?, algorithm.row().kernel),
            encrypts: false,
            pads: true,
            iv: None,
            next: None,
            moved: false,
            is_special: false,
            is_turned: false,
        })
    }

    fn copy(&mut self) -> Result<Self> {
        let inner = self.inner.copy(ids::aead::DUPCTX)?;
        let key = self.key.copy();
        Ok(Self { inner, key, ..*self })
    }
}

impl CipherContext for BlockContext {
    unsafe fn start(
        &mut self,
        id: i32,
        key: Option<&[u8]>,
        iv: Option<&[u8]>,
        settings: *const Param,
    ) -> Result<c_int> {
        // Without a vector CBC starts with the original one again, and CTR continues.
        let original = self.iv.filter(|_| self.moved && self.is_cbc());
        let first = iv.or_else(|| original.as_ref().map(|block| &block[..]));
        // SAFETY: by this function's contract.
        let status = unsafe { self.inner.start(id, key, first, settings) }?;
        if status != DONE {
            self.next = None;
            return Ok(status);
        }
        let encrypts = id == ids::aead::ENCRYPT_INIT;
        self.is_turned = key.is_none() && (self.is_turned || encrypts != self.encrypts);
        self.encrypts = encrypts;
        if let Some(key) = key {
            self.key.set(key);
        }
        if let Some(iv) = iv {
            self.iv = Block::try_from(iv).ok();
        }
        if iv.is_some() || self.is_cbc() {
            (self.next, self.moved) = (self.iv, false);
        }
        // SAFETY: by this function's contract.
        unsafe { self.note(settings) };
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
        let whole = self.whole(len);
        let fits = !out.is_null() && room >= whole && self.key.is_long_enough(len);
        let done = match self.next {
            Some(next) if fits && !self.is_special && !(self.is_turned && self.is_cbc()) => {
                // SAFETY: by this function's contract, and `whole` is at most `len` and `room`.
                unsafe { self.by_kernel(next, out, input, whole) }?
            }
            _ => 0,
        };
        if done == len {
            // SAFETY: by this function's contract.
            unsafe { write_len(out_len, done) };
            return Ok(DONE);
        }
        self.next = None;
        let mut written = 0;
        let place = &raw mut written;
        // SAFETY: not beyond the ends of both places, of which `done` bytes were used; null stays null.
        let (out, input) =
            unsafe { (if out.is_null() { out } else { out.add(done) }, input.add(done)) };
        let output = (out, place, room - done.min(room));
        let rest = (input, len - done);
        // SAFETY: the rest of both places is libcrypto's for it.
        let status = unsafe { self.inner.part(ids::aead::UPDATE, output, rest) }?;
        // SAFETY: by this function's contract.
        unsafe { write_len(out_len, done + written) };
        Ok(status)
    }

    unsafe fn finish(&mut self, out: *mut u8, out_len: *mut usize, room: usize) -> Result<c_int> {
        self.next = None;
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
        self.next = None;
        // SAFETY: by this function's contract.
        unsafe { self.inner.part(ids::aead::CIPHER, (out, out_len, room), (input, len)) }
    }

    unsafe fn set(&mut self, settings: *const Param) -> Result<c_int> {
        // SAFETY: libcrypto's parameters for this function.
        let status = unsafe { self.inner.params(ids::aead::SET_CTX_PARAMS, settings) }?;
        // SAFETY: by this function's contract.
        unsafe { self.note(settings) };
        Ok(status)
    }

    unsafe fn get(&mut self, request: *mut Param) -> Result<c_int> {
        let original = self.iv.as_ref().filter(|_| self.moved);
        let own = |name: &CStr, param: &mut Param| {
            let iv = original.filter(|_| name.to_bytes() == b"iv")?;
            // SAFETY: the application has passed memory to be written; the vector lives as long as the context.
            Some(
                param.data_size >= iv.len()
                    && unsafe { set_bytes(param, iv) || set_bytes_ptr(param, iv) },
            )
        };
        // SAFETY: by this function's contract.
        unsafe { self.inner.answer(ids::aead::GET_CTX_PARAMS, request, own) }
    }
}

impl BlockContext {
    fn is_cbc(&self) -> bool {
        self.algorithm.row().kernel == BulkAlgorithm::AesCbc
    }

    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn note(&mut self, settings: *const Param) {
        // SAFETY: by this function's contract.
        for param in unsafe { entries(settings) } {
            // SAFETY: the key of an entry is a C string.
            match unsafe { CStr::from_ptr(param.key) }.to_bytes() {
                // SAFETY: by this function's contract.
                b"padding" => self.pads = unsafe { integer(param) } != Some(0),
                b"keylen" => {}
                // The offset in a block, records of TLS, and parameters of a later OpenSSL.
                _ => {
                    self.is_special = true;
                    self.next = None;
                }
            }
        }
    }

    /// Bytes at the start of an input that are blocks for the kernel. A decryption with padding keeps the last block.
    fn whole(&self, len: usize) -> usize {
        let keeps = self.is_cbc() && !self.encrypts && self.pads;
        let len = if keeps { len.saturating_sub(1) } else { len };
        len - len % BLOCK_LEN
    }

    /// Does blocks in the kernel, and returns their number of bytes. OpenSSL's context then continues after them.
    ///
    /// # Safety
    /// `input` is readable and `out` writable for `whole` bytes: the same place, or one that does not overlap.
    unsafe fn by_kernel(
        &mut self,
        next: Block,
        out: *mut u8,
        input: *const u8,
        whole: usize,
    ) -> Result<usize> {
        let mut scratch = Zeroizing::new(vec![0; whole.min(MAX_MESSAGE)]);
        let direction = if self.encrypts { BulkDirection::Encrypt } else { BulkDirection::Decrypt };
        let provider = self.provider;
        let mut next = next;
        let mut done = 0;
        while done < whole {
            let len = (whole - done).min(MAX_MESSAGE);
            // SAFETY: by this function's contract, within `whole`; nothing writes there until the copy below.
            let part = unsafe { bytes(input.add(done), len) };
            let scratch = &mut scratch[..len];
            let outcome = self
                .key
                .run(check::known(), |session| session.crypt(direction, &next, part, scratch));
            match outcome {
                BulkAttempt::Done(()) => {}
                BulkAttempt::Failed(error) => {
                    note_failure(provider, &error);
                    break;
                }
                BulkAttempt::NotAuthentic => break,
            }
            provider.stats.kernel_bulk.add();
            next = if self.is_cbc() {
                let ciphertext = if self.encrypts { &scratch[..] } else { part };
                Block::try_from(&ciphertext[len - BLOCK_LEN..]).map_err(|_| Error::library())?
            } else {
                let blocks = (len / BLOCK_LEN) as u128;
                u128::from_be_bytes(next).wrapping_add(blocks).to_be_bytes()
            };
            // SAFETY: by this function's contract, within `whole`; the scratch is memory of ours.
            unsafe { std::ptr::copy_nonoverlapping(scratch.as_ptr(), out.add(done), len) };
            done += len;
        }
        if done > 0 {
            let id = if self.encrypts { ids::aead::ENCRYPT_INIT } else { ids::aead::DECRYPT_INIT };
            // SAFETY: no parameters.
            if unsafe { self.inner.start(id, None, Some(&next), std::ptr::null()) }? != DONE {
                return Err(Error::library());
            }
            (self.next, self.moved) = (Some(next), true);
        }
        Ok(done)
    }
}
