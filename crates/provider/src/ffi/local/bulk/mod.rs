// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ciphers and digests of OpenSSL's `default` provider, with whole messages by the kernel where [`crate::bulk`] has a
//! route.
//!
//! Each context owns OpenSSL's own context, which is always ready for the next call: it gets every initialisation and
//! every parameter, and all data but what the kernel has done. So every size, flag and error is OpenSSL's. After a
//! failure of the kernel OpenSSL's function does the same.
//!
//! - `block`: CBC and CTR, which continue from any block.
//! - `sealed`: GCM, which the kernel computes for a whole message alone.
//! - `hash`: digests and HMAC, of whole messages.
//! - `check`: known answers of the kernel, compared with OpenSSL's.

mod block;
mod check;
mod hash;
mod sealed;

use std::ffi::{CStr, c_int};

use super::DONE;
use super::entries::{CipherContext, Computing, HashContext, cipher_rows, digest_rows};
use crate::algorithms::{Bulk, BulkForm, each_bulk};
use crate::bulk::BulkRoutes;
use crate::error::{Error, Reason, Result};
use crate::ffi::delegate::Rows;
use crate::ffi::handle::owned;
use crate::ffi::ids;
use crate::ffi::inner::{self, InnerAlgorithm, InnerContext, call};
use crate::ffi::libcrypto::Ptr;
use crate::ffi::params::entries;
use crate::ffi::state::Provider;
use crate::ffi::types::Param;
use block::BlockContext;
use hash::BulkHash;
use sealed::SealedContext;

/// The rows of each algorithm's dispatch table.
pub(super) const DISPATCH: [fn() -> Rows; Bulk::ALL.len()] = each_bulk!(rows);

fn rows<const A: usize>() -> Rows {
    match Bulk::ALL[A].row().form {
        BulkForm::Cipher if Bulk::ALL[A].is_gcm() => cipher_rows::<SealedContext, A>(),
        BulkForm::Cipher => cipher_rows::<BlockContext, A>(),
        BulkForm::Digest => digest_rows::<BulkHash, A>(),
        BulkForm::Mac => hash::mac_rows::<A>(),
    }
}

impl Bulk {
    /// Whether this is AES in Galois/Counter mode.
    fn is_gcm(self) -> bool {
        matches!(self, Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm)
    }
}

/// A context of OpenSSL's own provider, freed with its owner.
struct Inner {
    functions: &'static InnerAlgorithm,
    context: Ptr,
    free: i32,
}

impl Inner {
    fn new(algorithm: Bulk, new: i32, free: i32) -> Result<Self> {
        let context = inner::context()?;
        let functions = inner::algorithm_at(&context.bulk, algorithm as usize)?;
        let provctx = context.provctx;
        // SAFETY: the constructors of these operations take the context of their provider.
        let made = unsafe { call!(functions, new, fn(provctx => Ptr) -> Ptr) }?;
        if made.is_null() {
            return Err(Error::library());
        }
        Ok(Self { functions, context: made, free })
    }

    fn copy(&self, duplicate: i32) -> Result<Self> {
        // SAFETY: the duplicators of these operations take a live context.
        let made = unsafe { call!(self.functions, duplicate, fn(self.context => Ptr) -> Ptr) }?;
        if made.is_null() {
            return Err(Error::library());
        }
        Ok(Self { functions: self.functions, context: made, free: self.free })
    }

    /// Sets or gets parameters.
    ///
    /// # Safety
    /// `id` is a function of this operation that takes a context and parameters, which are libcrypto's for it.
    unsafe fn params<P>(&self, id: i32, params: P) -> Result<c_int> {
        // SAFETY: by this function's contract.
        unsafe { call!(self.functions, id, fn(self.context => Ptr, params => P) -> c_int) }
    }

    /// Begins a message of a cipher.
    ///
    /// # Safety
    /// `settings` is null or an array that a null key ends.
    unsafe fn start(
        &self,
        id: i32,
        key: Option<&[u8]>,
        iv: Option<&[u8]>,
        settings: *const Param,
    ) -> Result<c_int> {
        let parts = |part: Option<&[u8]>| {
            part.map_or((std::ptr::null(), 0), |part| (part.as_ptr(), part.len()))
        };
        let ((key, key_len), (iv, iv_len)) = (parts(key), parts(iv));
        // SAFETY: the initialisations have this type: null, or bytes with their length; null or parameters.
        unsafe {
            call!(self.functions, id,
                fn(self.context => Ptr, key => *const u8, key_len => usize, iv => *const u8, iv_len => usize,
                    settings => *const Param) -> c_int)
        }
    }

    /// Hands a part of a message to a cipher: its function `UPDATE`, or `CIPHER`.
    ///
    /// # Safety
    /// As [`CipherContext::update`], and for `CIPHER` as [`CipherContext::cipher`].
    unsafe fn part(
        &self,
        id: i32,
        (out, out_len, room): (*mut u8, *mut usize, usize),
        (input, len): (*const u8, usize),
    ) -> Result<c_int> {
        // SAFETY: both functions have this type; the arguments are as libcrypto has them, by this function's contract.
        unsafe {
            call!(self.functions, id,
                fn(self.context => Ptr, out => *mut u8, out_len => *mut usize, room => usize, input => *const u8,
                    len => usize) -> c_int)
        }
    }

    /// Begins a message of a MAC.
    ///
    /// # Safety
    /// `key` is null or readable for `key_len` bytes; `settings` is null or an array that a null key ends.
    unsafe fn start_mac(
        &self,
        key: *const u8,
        key_len: usize,
        settings: *const Param,
    ) -> Result<c_int> {
        // SAFETY: `mac_init` has this type; the arguments are as it takes them, by this function's contract.
        unsafe {
            call!(self.functions, ids::mac::INIT,
                fn(self.context => Ptr, key => *const u8, key_len => usize, settings => *const Param) -> c_int)
        }
    }

    /// Hands a part of a message to a digest or a MAC by the function `id`.
    ///
    /// # Safety
    /// `start` is readable for `len` bytes.
    unsafe fn hash(&self, id: i32, start: *const u8, len: usize) -> Result<c_int> {
        // SAFETY: the functions that take a part have this type, in both operations.
        unsafe {
            call!(self.functions, id,
                fn(self.context => Ptr, start => *const u8, len => usize) -> c_int)
        }
    }

    /// Ends a message by the function `id`.
    ///
    /// # Safety
    /// `out` is null or writable for `room` bytes, `out_len` null or a place for the length.
    unsafe fn finish(
        &self,
        id: i32,
        out: *mut u8,
        out_len: *mut usize,
        room: usize,
    ) -> Result<c_int> {
        // SAFETY: the functions that end a message have this type, in each operation.
        unsafe {
            call!(self.functions, id,
                fn(self.context => Ptr, out => *mut u8, out_len => *mut usize, room => usize) -> c_int)
        }
    }

    /// Answers parameters by `own`, which returns whether it could, and the others by OpenSSL.
    ///
    /// # Safety
    /// As [`Self::params`], and `request` is null or an array that a null key ends, to be written.
    unsafe fn answer(
        &self,
        id: i32,
        request: *mut Param,
        own: impl Fn(&CStr, &mut Param) -> Option<bool>,
    ) -> Result<c_int> {
        // SAFETY: by this function's contract.
        let count = unsafe { entries(request) }.count();
        for index in 0..count {
            // SAFETY: one of the entries counted above, which may be written by this function's contract.
            let param = unsafe { &mut *request.add(index) };
            // SAFETY: the key of a counted entry is a C string.
            let name = unsafe { CStr::from_ptr(param.key) };
            let answered = match own(name, param) {
                Some(answered) => c_int::from(answered),
                None => {
                    let mut one = [*param, Param::END];
                    // SAFETY: by this function's contract, with an array of one entry.
                    let answered = unsafe { self.params(id, one.as_mut_ptr()) }?;
                    param.return_size = one[0].return_size;
                    answered
                }
            };
            if answered != DONE {
                return Ok(answered);
            }
        }
        Ok(DONE)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: takes a context that is not used again; every algorithm has it.
        let _ = unsafe { call!(self.functions, self.free, fn(self.context => Ptr) -> ()) };
    }
}

/// Notes that OpenSSL does what the kernel should have done.
fn note_failure(provider: &Provider, error: &std::io::Error) {
    provider.stats.kernel_bulk_failed.add();
    provider.log(&format!("done by OpenSSL, not by the kernel: {error}"));
}

fn refused(text: &'static str) -> Error {
    Error::new(Reason::Message, text)
}

/// The routes to the kernel. Without any, no table of these algorithms exists.
fn routes(provider: &'static Provider) -> Result<&'static BulkRoutes> {
    provider.bulk().ok_or_else(|| Error::new(Reason::Internal, "no routes to the kernel"))
}
