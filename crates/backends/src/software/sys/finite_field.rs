// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Finite-field Diffie-Hellman and DSA.

use std::ffi::{c_int, c_uint};
use std::ptr::{self, NonNull};

use aws_lc_sys as aws;
use millrace_engine::BackendError;
use zeroize::Zeroize;

use super::{Number, checked, clear_errors, owned, succeeded};

owner! {
    /// A finite-field Diffie-Hellman private key.
    pub(crate) Dh(aws::DH), freed by aws::DH_free;
}

// SAFETY: a DH object has no thread affinity.
unsafe impl Send for Dh {}
// SAFETY: after construction it is only used by key agreement, which makes its Montgomery context
// under the object's own lock and changes nothing else.
unsafe impl Sync for Dh {}

impl Dh {
    /// Makes a key from a group and a private value; the subgroup order is optional.
    pub(crate) fn new(
        prime: Number,
        order: Option<Number>,
        generator: Number,
        private: Number,
    ) -> Option<Self> {
        // SAFETY: allocates an object.
        let dh = Self(owned(unsafe { aws::DH_new() })?);
        let order = order.map_or(ptr::null_mut(), Number::into_raw);
        // SAFETY: the object is valid and empty; it takes over the three numbers. It refuses only
        // a missing prime or generator, so nothing leaks.
        let code = unsafe {
            aws::DH_set0_pqg(dh.0.as_ptr(), prime.into_raw(), order, generator.into_raw())
        };
        if !succeeded(code) {
            return None;
        }
        // SAFETY: the object is valid; it takes over the private value. No public value.
        let code = unsafe { aws::DH_set0_key(dh.0.as_ptr(), ptr::null_mut(), private.into_raw()) };
        succeeded(code).then_some(dh)
    }

    /// Checks a peer's public value.
    ///
    /// # Errors
    /// `BadInput` unless 1 < peer < p-1 and, if the order is known, the peer's value has it.
    pub(crate) fn check_peer(&self, peer: &Number) -> Result<(), BackendError> {
        let mut flags: c_int = 0;
        // SAFETY: object and number are valid.
        let code = unsafe { aws::DH_check_pub_key(self.0.as_ptr(), peer.as_ptr(), &raw mut flags) };
        if succeeded(code) && flags == 0 { Ok(()) } else { Err(BackendError::BadInput) }
    }

    /// The prime, big-endian and without zeros before it.
    pub(crate) fn prime(&self) -> Option<Vec<u8>> {
        // SAFETY: the object is valid and has a prime, which lives as long.
        let (prime, len) = unsafe {
            let prime = aws::DH_get0_p(self.0.as_ptr());
            (prime, aws::BN_num_bytes(prime) as usize)
        };
        let mut bytes = vec![0; len];
        // SAFETY: the number is valid; `bytes` is writable for its length.
        let code = unsafe { aws::BN_bn2bin_padded(bytes.as_mut_ptr(), bytes.len(), prime) };
        succeeded(code).then_some(bytes)
    }

    /// Shares of the private value modulo p-1, which is a multiple of the order of every element: a and b with a + b =
    /// the private value, and a + 2b. `None` if there is no memory.
    pub(crate) fn split(&self) -> Option<[Number; 3]> {
        let prime = Number::from_bytes(&self.prime()?)?;
        let order = prime.minus_one()?;
        // SAFETY: the object is valid and has a private value below p-1, which lives as long.
        unsafe { Number::split(aws::DH_get0_priv_key(self.0.as_ptr()), order.as_ptr()) }
    }

    /// Writes the shared secret with a peer's public value to `out`, which is as long as the prime.
    ///
    /// # Errors
    /// `BadInput` unless 1 < peer < p-1 and, if the order is known, the peer's value has it.
    pub(crate) fn agree(&self, peer: &Number, out: &mut [u8]) -> Result<(), BackendError> {
        self.check_peer(peer)?;
        // SAFETY: the object is valid.
        let len = unsafe { aws::DH_size(self.0.as_ptr()) };
        if usize::try_from(len) != Ok(out.len()) {
            return Err(BackendError::Failed);
        }
        // SAFETY: object and number are valid; `out` is as long as the prime, as checked above.
        let len =
            unsafe { aws::DH_compute_key_padded(out.as_mut_ptr(), peer.as_ptr(), self.0.as_ptr()) };
        if usize::try_from(len) == Ok(out.len()) {
            return Ok(());
        }
        clear_errors();
        out.zeroize();
        // After the checks above the only cause left is a secret of 1 or p-1, which the peer chose.
        Err(BackendError::BadInput)
    }
}

owner! {
    /// A DSA private key.
    pub(crate) Dsa(aws::DSA), freed by aws::DSA_free;
}

// SAFETY: a DSA object has no thread affinity.
unsafe impl Send for Dsa {}
// SAFETY: after construction it is only used to sign, which makes its Montgomery contexts under the
// object's own lock and changes nothing else.
unsafe impl Sync for Dsa {}

impl Dsa {
    /// Makes a key from a group and a key pair.
    pub(crate) fn new(
        prime: Number,
        order: Number,
        generator: Number,
        public: Number,
        private: Number,
    ) -> Option<Self> {
        // SAFETY: allocates an object.
        let dsa = Self(owned(unsafe { aws::DSA_new() })?);
        // SAFETY: the object is valid and empty; it takes over the numbers, none of which is missing.
        let code = unsafe {
            aws::DSA_set0_pqg(
                dsa.0.as_ptr(),
                prime.into_raw(),
                order.into_raw(),
                generator.into_raw(),
            )
        };
        if !succeeded(code) {
            return None;
        }
        // SAFETY: the object is valid; it takes over the numbers, none of which is missing.
        let code =
            unsafe { aws::DSA_set0_key(dsa.0.as_ptr(), public.into_raw(), private.into_raw()) };
        succeeded(code).then_some(dsa)
    }

    /// An upper bound on the length of a DER signature.
    pub(crate) fn max_signature_len(&self) -> usize {
        // SAFETY: the object is valid.
        usize::try_from(unsafe { aws::DSA_size(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Writes a DER signature over a digest to `out`, which has `max_signature_len` bytes; returns its length.
    pub(crate) fn sign(&self, digest: &[u8], out: &mut [u8]) -> Result<usize, BackendError> {
        if out.len() < self.max_signature_len() {
            return Err(BackendError::Failed);
        }
        let mut len: c_uint = 0;
        // SAFETY: the object is valid, `digest` readable for its length, and `out` has the room that
        // AWS-LC asks for, as checked above. The type is ignored.
        let code = unsafe {
            aws::DSA_sign(
                0,
                digest.as_ptr(),
                digest.len(),
                out.as_mut_ptr(),
                &raw mut len,
                self.0.as_ptr(),
            )
        };
        checked(code)?;
        Ok(len as usize)
    }
}
