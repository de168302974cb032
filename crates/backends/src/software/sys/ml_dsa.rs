// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! ML-DSA (FIPS 204).

use std::ptr::{self, NonNull};

use aws_lc_sys as aws;
use millrace_engine::BackendError;
use millrace_operation::MlDsaSet;
use zeroize::Zeroizing;

use super::{checked, owned, succeeded};

/// An ML-DSA private key.
pub(crate) struct MlDsa {
    key: NonNull<aws::EVP_PKEY>,
    set: MlDsaSet,
}

// SAFETY: the object has no thread affinity.
unsafe impl Send for MlDsa {}
// SAFETY: after construction it is only read; its reference count is atomic.
unsafe impl Sync for MlDsa {}

impl MlDsa {
    /// Makes a key from a seed of 32 bytes or from an expanded key; the length decides. `None` for an
    /// expanded key whose parts contradict each other.
    pub(crate) fn new(set: MlDsaSet, private: &[u8]) -> Option<Self> {
        let nid = match set {
            MlDsaSet::MlDsa44 => aws::NID_MLDSA44,
            MlDsaSet::MlDsa65 => aws::NID_MLDSA65,
            MlDsaSet::MlDsa87 => aws::NID_MLDSA87,
        };
        // SAFETY: `private` is readable for its length; AWS-LC copies it and refuses any other length.
        let key = unsafe {
            aws::EVP_PKEY_pqdsa_new_raw_private_key(nid, private.as_ptr(), private.len())
        };
        owned(key).map(|key| Self { key, set })
    }

    pub(crate) fn set(&self) -> MlDsaSet {
        self.set
    }

    /// The public key.
    pub(crate) fn public(&self) -> Option<Vec<u8>> {
        let mut out = vec![0; self.set.public_key_len()];
        let mut len = out.len();
        // SAFETY: the key is valid; `out` is writable for `len` bytes.
        let code = unsafe {
            aws::EVP_PKEY_get_raw_public_key(self.key.as_ptr(), out.as_mut_ptr(), &raw mut len)
        };
        (succeeded(code) && len == out.len()).then_some(out)
    }

    /// The expanded private key.
    pub(crate) fn expanded(&self) -> Option<Zeroizing<Vec<u8>>> {
        let mut out = Zeroizing::new(vec![0; self.set.private_key_len()]);
        let mut len = out.len();
        // SAFETY: the key is valid; `out` is writable for `len` bytes.
        let code = unsafe {
            aws::EVP_PKEY_get_raw_private_key(self.key.as_ptr(), out.as_mut_ptr(), &raw mut len)
        };
        (succeeded(code) && len == out.len()).then_some(out)
    }

    /// Writes a hedged signature over a message, with the empty context, to `out`, which is as long as a
    /// signature.
    pub(crate) fn sign_message(&self, message: &[u8], out: &mut [u8]) -> Result<(), BackendError> {
        let context = DigestContext::new().ok_or(BackendError::Failed)?;
        let mut len = out.len();
        // SAFETY: context and key are valid; nulls ask for no digest, no engine, and not for the inner context.
        // The context takes a reference to the key.
        let code = unsafe {
            aws::EVP_DigestSignInit(
                context.0.as_ptr(),
                ptr::null_mut(),
                ptr::null(),
                ptr::null_mut(),
                self.key.as_ptr(),
            )
        };
        checked(code)?;
        // SAFETY: the context is ready; `out` is writable for `len` bytes, `message` readable for its length.
        let code = unsafe {
            aws::EVP_DigestSign(
                context.0.as_ptr(),
                out.as_mut_ptr(),
                &raw mut len,
                message.as_ptr(),
                message.len(),
            )
        };
        checked(code)?;
        whole(len, out)
    }

    /// Writes a hedged signature over a message representative of 64 bytes to `out`, which is as long as a
    /// signature.
    pub(crate) fn sign_mu(&self, mu: &[u8], out: &mut [u8]) -> Result<(), BackendError> {
        // SAFETY: the key is valid; no engine.
        let context = owned(unsafe { aws::EVP_PKEY_CTX_new(self.key.as_ptr(), ptr::null_mut()) })
            .map(KeyContext)
            .ok_or(BackendError::Failed)?;
        // SAFETY: the context is valid and ours alone.
        if !succeeded(unsafe { aws::EVP_PKEY_sign_init(context.0.as_ptr()) }) {
            return Err(BackendError::Failed);
        }
        let mut len = out.len();
        // SAFETY: the context is ready; `out` is writable for `len` bytes, `mu` readable for its length, which
        // AWS-LC checks.
        let code = unsafe {
            aws::EVP_PKEY_sign(
                context.0.as_ptr(),
                out.as_mut_ptr(),
                &raw mut len,
                mu.as_ptr(),
                mu.len(),
            )
        };
        checked(code)?;
        whole(len, out)
    }

    /// Whether this is a signature of the message, with the empty context.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Some(context) = DigestContext::new() else {
            return false;
        };
        // SAFETY: as in `sign_message`.
        let code = unsafe {
            aws::EVP_DigestVerifyInit(
                context.0.as_ptr(),
                ptr::null_mut(),
                ptr::null(),
                ptr::null_mut(),
                self.key.as_ptr(),
            )
        };
        // SAFETY: the context is ready; both slices are readable for their lengths.
        succeeded(code)
            && succeeded(unsafe {
                aws::EVP_DigestVerify(
                    context.0.as_ptr(),
                    signature.as_ptr(),
                    signature.len(),
                    message.as_ptr(),
                    message.len(),
                )
            })
    }
}

impl Drop for MlDsa {
    fn drop(&mut self) {
        // SAFETY: our reference, given up once; AWS-LC zeroises the key with the last one.
        unsafe { aws::EVP_PKEY_free(self.key.as_ptr()) }
    }
}

owner! {
    /// The state of one signature over a message.
    DigestContext(aws::EVP_MD_CTX), freed by aws::EVP_MD_CTX_free;
}

impl DigestContext {
    fn new() -> Option<Self> {
        // SAFETY: allocates a context.
        owned(unsafe { aws::EVP_MD_CTX_new() }).map(Self)
    }
}

owner! {
    /// The state of one signature over a message representative.
    KeyContext(aws::EVP_PKEY_CTX), freed by aws::EVP_PKEY_CTX_free;
}

/// An error unless the signature fills its place.
fn whole(len: usize, out: &[u8]) -> Result<(), BackendError> {
    (len == out.len()).then_some(()).ok_or(BackendError::Failed)
}
