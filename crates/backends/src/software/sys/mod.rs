// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AWS-LC's C interface behind owning types. The only `unsafe` of this backend.
//!
//! Rules for the whole folder:
//!
//! - A wrapper is the only owner of a non-null pointer, and frees it once, in `Drop`. AWS-LC zeroises
//!   all memory that it frees.
//! - Slices go in as pointer and length, and AWS-LC does not keep them.
//! - Each failure empties the thread's error queue, so that errors do not pile up there.
//! - One module per kind of object: `number`, `rsa`, `curves`, `finite_field`, `ml_dsa`.
//! - Threads share RSA, EC, DH and DSA objects. AWS-LC's headers document that any number of threads may use
//!   an object at the same time while no thread changes it. AWS-LC makes its lazy contexts under its own
//!   lock.

use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;

use aws_lc_sys as aws;
use millrace_engine::BackendError;
use millrace_operation::Hash;
use zeroize::Zeroizing;

/// Types that own an object of AWS-LC, and free it when they are dropped.
macro_rules! owner {
    ($(#[$doc:meta])* $visibility:vis $name:ident(aws::$object:ident), freed by aws::$free:ident;) => {
        $(#[$doc])*
        $visibility struct $name(NonNull<aws::$object>);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by AWS-LC; the wrapper is its only owner, and uses it no more.
                unsafe { aws::$free(self.0.as_ptr()) }
            }
        }
    };
}

mod curves;
mod finite_field;
mod ml_dsa;
mod number;
mod rsa;

pub(crate) use curves::{
    EcKey, curve_numbers, ed25519_expand, ed25519_sign, is_point, join_points, x25519,
    x25519_public,
};
pub(crate) use finite_field::{Dh, Dsa};
pub(crate) use ml_dsa::MlDsa;
pub(crate) use number::{Factor, Modulus, Number};
pub(crate) use rsa::{Rsa, RsaParts};

/// The name and version of the library.
pub(crate) fn version() -> String {
    let number = aws::AWSLC_VERSION_NUMBER_STRING;
    format!("AWS-LC {}", String::from_utf8_lossy(&number[..number.len() - 1]))
}

/// Empties the thread's error queue.
fn clear_errors() {
    // SAFETY: no arguments; touches only thread-local state.
    unsafe { aws::ERR_clear_error() }
}

/// `true` for 1, AWS-LC's success; otherwise empties the error queue.
fn succeeded(code: c_int) -> bool {
    if code != 1 {
        clear_errors();
    }
    code == 1
}

/// An error unless the code is that of success.
fn checked(code: c_int) -> Result<(), BackendError> {
    succeeded(code).then_some(()).ok_or(BackendError::Failed)
}

/// Owns what `pointer` points to, or empties the error queue if it is null.
fn owned<T>(pointer: *mut T) -> Option<NonNull<T>> {
    let owned = NonNull::new(pointer);
    if owned.is_none() {
        clear_errors();
    }
    owned
}

/// Fills `out` from AWS-LC's generator. It reseeds after a fork, and after a snapshot if the system reports
/// it.
pub(crate) fn random(out: &mut [u8]) -> Result<(), BackendError> {
    // SAFETY: `out` is writable for its length.
    let code = unsafe { aws::RAND_bytes(out.as_mut_ptr(), out.len()) };
    checked(code)
}

/// Writes the digest of `data` to `out`, which must have the length of the digest.
///
/// # Errors
/// `NotOffered` for md5sha1, `Failed` if `out` has another length.
pub(crate) fn digest(hash: Hash, data: &[u8], out: &mut [u8]) -> Result<(), BackendError> {
    if out.len() != hash.digest_len() {
        return Err(BackendError::Failed);
    }
    let function = match hash {
        Hash::Sha1 => aws::SHA1,
        Hash::Sha224 => aws::SHA224,
        Hash::Sha256 => aws::SHA256,
        Hash::Sha384 => aws::SHA384,
        Hash::Sha512 => aws::SHA512,
        Hash::Sha512_256 => aws::SHA512_256,
        Hash::Md5Sha1 => return Err(BackendError::NotOffered),
    };
    // SAFETY: `data` is readable for its length; `out` is writable for a whole digest, as checked
    // above. The function has no state and cannot fail on valid memory.
    unsafe { function(data.as_ptr(), data.len(), out.as_mut_ptr()) };
    Ok(())
}

/// HMAC-SHA256.
pub(crate) fn hmac_sha256(
    key: &[u8; 32],
    data: &[u8],
) -> Result<Zeroizing<[u8; 32]>, BackendError> {
    let mut out = Zeroizing::new([0; 32]);
    let mut out_len: c_uint = 0;
    // SAFETY: the digest is a static of the library; `key` and `data` are readable for their
    // lengths, `out` is writable for the 32 bytes of a SHA-256 MAC.
    let mac = unsafe {
        aws::HMAC(
            aws::EVP_sha256(),
            key.as_ptr().cast(),
            key.len(),
            data.as_ptr(),
            data.len(),
            out.as_mut_ptr(),
            &raw mut out_len,
        )
    };
    if mac.is_null() || out_len != 32 {
        clear_errors();
        return Err(BackendError::Failed);
    }
    Ok(out)
}
