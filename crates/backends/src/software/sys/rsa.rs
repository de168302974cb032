// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA: the raw private operation, which AWS-LC verifies, and the public one.

use std::ffi::c_int;
use std::ptr::NonNull;

use aws_lc_sys as aws;
use millrace_engine::BackendError;
use zeroize::Zeroize;

use super::{Number, clear_errors, owned};

/// The numbers of a two-prime RSA private key, in the order of RFC 8017 appendix A.1.2.
pub(crate) struct RsaParts<'a> {
    pub(crate) modulus: &'a Number,
    pub(crate) public_exponent: &'a Number,
    pub(crate) private_exponent: &'a Number,
    pub(crate) prime1: &'a Number,
    pub(crate) prime2: &'a Number,
    pub(crate) exponent1: &'a Number,
    pub(crate) exponent2: &'a Number,
    pub(crate) coefficient: &'a Number,
}

owner! {
    /// An RSA private key with a public exponent.
    pub(crate) Rsa(aws::RSA), freed by aws::RSA_free;
}

// SAFETY: an RSA object has no thread affinity.
unsafe impl Send for Rsa {}
// SAFETY: after construction it is only used by operations that AWS-LC documents as safe from
// several threads at once; blinding and Montgomery contexts are under the object's own lock.
unsafe impl Sync for Rsa {}

impl Rsa {
    /// Builds a key and checks it: p·q = n, d·e = 1 modulo p-1 and q-1, the CRT parts, an odd public
    /// exponent of 2 to 33 bits. `None` if anything does not hold.
    pub(crate) fn new(parts: &RsaParts<'_>) -> Option<Self> {
        // SAFETY: all numbers are valid; AWS-LC copies them.
        owned(unsafe {
            aws::RSA_new_private_key(
                parts.modulus.as_ptr(),
                parts.public_exponent.as_ptr(),
                parts.private_exponent.as_ptr(),
                parts.prime1.as_ptr(),
                parts.prime2.as_ptr(),
                parts.exponent1.as_ptr(),
                parts.exponent2.as_ptr(),
                parts.coefficient.as_ptr(),
            )
        })
        .map(Self)
    }

    /// `input^d mod n`, blinded, in constant time, verified by AWS-LC. Both slices are as long as
    /// the modulus, and `1 < input < n - 1`.
    ///
    /// # Errors
    /// `Fault` if AWS-LC's own verification failed. `output` is zeroised on every error.
    pub(crate) fn private(&self, input: &[u8], output: &mut [u8]) -> Result<(), BackendError> {
        // Signing without padding is AWS-LC's raw private operation.
        if self.raw(aws::RSA_sign_raw, input, output) {
            return Ok(());
        }
        output.zeroize();
        // AWS-LC reports a result that does not verify as an internal error of its RSA code.
        // SAFETY: reads thread-local state.
        let error = unsafe { aws::ERR_peek_last_error() };
        clear_errors();
        let verification = aws::ERR_GET_LIB(error) == aws::ERR_LIB_RSA
            && aws::ERR_GET_REASON(error) == aws::ERR_R_INTERNAL_ERROR;
        Err(if verification { BackendError::Fault } else { BackendError::Failed })
    }

    /// `input^e mod n`. Both slices are as long as the modulus.
    ///
    /// # Errors
    /// `BadInput` for an input that is not below n.
    pub(crate) fn public(&self, input: &[u8], output: &mut [u8]) -> Result<(), BackendError> {
        if self.raw(aws::RSA_verify_raw, input, output) {
            return Ok(());
        }
        clear_errors();
        Err(BackendError::BadInput)
    }

    /// Whether a raw operation filled `output`. Leaves its errors in the thread's queue.
    fn raw(&self, operation: Raw, input: &[u8], output: &mut [u8]) -> bool {
        let mut len = 0;
        // SAFETY: the key is valid; both slices are valid for the lengths given, and AWS-LC writes no more than
        // the length of `output`. Both operations have this type.
        let code = unsafe {
            operation(
                self.0.as_ptr(),
                &raw mut len,
                output.as_mut_ptr(),
                output.len(),
                input.as_ptr(),
                input.len(),
                aws::RSA_NO_PADDING,
            )
        };
        code == 1 && len == output.len()
    }
}

/// `RSA_sign_raw` and `RSA_verify_raw`.
type Raw = unsafe extern "C" fn(
    *mut aws::RSA,
    *mut usize,
    *mut u8,
    usize,
    *const u8,
    usize,
    c_int,
) -> c_int;

#[cfg(test)]
impl Rsa {
    /// Replaces the first CRT exponent. Every private operation is then wrong modulo p only, as with a broken
    /// multiplier.
    pub(crate) fn break_first_exponent(&mut self) {
        let wrong = Number::from_bytes(&[0x5a; 128]).expect("memory for a number").into_raw();
        // SAFETY: the key is valid and ours alone; it takes over the number and keeps the others.
        let code = unsafe {
            aws::RSA_set0_crt_params(
                self.0.as_ptr(),
                wrong,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(code, 1);
    }
}
