// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A running digest of the inner library context.

use millrace_operation::Hash;

use super::inner::{self, succeeded};
use super::libcrypto::{Lib, Ptr};
use crate::error::{Error, Result};

/// Largest digest, in bytes: SHA-512 and SHA3-512.
pub(crate) const MAX_DIGEST: usize = 64;

/// A digest of what it was updated with so far.
pub(crate) struct Hasher {
    lib: &'static Lib,
    hash: Hash,
    /// An `EVP_MD_CTX` of its own, never null.
    ctx: Ptr,
}

impl Drop for Hasher {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own, and is not used again.
        unsafe { (self.lib.EVP_MD_CTX_free)(self.ctx) };
    }
}

impl Hasher {
    fn empty(lib: &'static Lib, hash: Hash) -> Result<Self> {
        // SAFETY: takes nothing.
        let ctx = unsafe { (lib.EVP_MD_CTX_new)() };
        if ctx.is_null() {
            return Err(Error::library());
        }
        Ok(Self { lib, hash, ctx })
    }

    pub(crate) fn start(hash: Hash) -> Result<Self> {
        let context = inner::context()?;
        let digest = context.digest(hash)?;
        let hasher = Self::empty(context.lib, hash)?;
        // SAFETY: a context of ours, a digest that was fetched, no parameters.
        succeeded(unsafe {
            (context.lib.EVP_DigestInit_ex2)(hasher.ctx, digest, std::ptr::null())
        })?;
        Ok(hasher)
    }

    pub(crate) fn copy(&self) -> Result<Self> {
        let copy = Self::empty(self.lib, self.hash)?;
        // SAFETY: two live contexts, of which the first is ours alone.
        succeeded(unsafe { (self.lib.EVP_MD_CTX_copy_ex)(copy.ctx, self.ctx) })?;
        Ok(copy)
    }

    pub(crate) fn update(&mut self, data: &[u8]) -> Result<()> {
        // SAFETY: a live context, and as many readable bytes as the slice has.
        succeeded(unsafe {
            (self.lib.EVP_DigestUpdate)(self.ctx, data.as_ptr().cast(), data.len())
        })
    }

    /// Ends the digest, which is the returned number of bytes of `out`.
    pub(crate) fn finish(&mut self, out: &mut [u8; MAX_DIGEST]) -> Result<usize> {
        let mut len = 0;
        // SAFETY: a live context, and room for the largest digest (`EVP_MAX_MD_SIZE`).
        succeeded(unsafe { (self.lib.EVP_DigestFinal_ex)(self.ctx, out.as_mut_ptr(), &mut len) })?;
        match usize::try_from(len) {
            Ok(len) if len == self.hash.digest_len() => Ok(len),
            _ => Err(Error::library()),
        }
    }
}
