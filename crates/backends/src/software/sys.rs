// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! AWS-LC's C interface behind owning types. The only `unsafe` of this backend.
//!
//! Rules for the whole file:
//!
//! - A wrapper is the only owner of a non-null pointer, and frees it once, in `Drop`. AWS-LC zeroises
//!   all memory that it frees.
//! - Slices go in as pointer and length, and AWS-LC does not keep them.
//! - Each failure empties the thread's error queue, so that errors do not pile up there.
//! - Threads share RSA, EC, DH and DSA objects. AWS-LC's headers document that any number of threads may use
//!   an object at the same time while no thread changes it. AWS-LC makes its lazy contexts under its own
//!   lock.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use aws_lc_sys as aws;
use millrace_engine::{BackendError, Curve, Hash, MlDsaSet};
use zeroize::{Zeroize, Zeroizing};

/// The name and version of the library.
pub(crate) fn version() -> String {
    let number = aws::AWSLC_VERSION_NUMBER_STRING;
    format!(
        "AWS-LC {}",
        String::from_utf8_lossy(&number[..number.len() - 1])
    )
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
    if succeeded(code) {
        Ok(())
    } else {
        Err(BackendError::Failed)
    }
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

/// A number, zeroised when freed.
pub(crate) struct Number(NonNull<aws::BIGNUM>);

impl Number {
    /// Converts big-endian bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: `bytes` is readable for its length; null asks for a new number.
        owned(unsafe { aws::BN_bin2bn(bytes.as_ptr(), bytes.len(), ptr::null_mut()) }).map(Self)
    }

    /// Writes big-endian bytes, padded on the left to the length of `out`; `false` if they do not fit.
    pub(crate) fn write_padded(&self, out: &mut [u8]) -> bool {
        // SAFETY: the number is valid; `out` is writable for its length.
        succeeded(unsafe { aws::BN_bn2bin_padded(out.as_mut_ptr(), out.len(), self.as_ptr()) })
    }

    /// Length, in bits.
    pub(crate) fn bits(&self) -> usize {
        // SAFETY: the number is valid.
        unsafe { aws::BN_num_bits(self.as_ptr()) as usize }
    }

    pub(crate) fn is_odd(&self) -> bool {
        // SAFETY: the number is valid.
        unsafe { aws::BN_is_odd(self.as_ptr()) == 1 }
    }

    pub(crate) fn is_below(&self, other: &Self) -> bool {
        // SAFETY: both numbers are valid.
        unsafe { aws::BN_cmp(self.as_ptr(), other.as_ptr()) < 0 }
    }

    /// The number minus one; negative for zero.
    pub(crate) fn minus_one(&self) -> Option<Self> {
        // SAFETY: the number is valid; the copy is new.
        let copy = Self(owned(unsafe { aws::BN_dup(self.as_ptr()) })?);
        // SAFETY: the copy is valid and ours alone.
        succeeded(unsafe { aws::BN_sub_word(copy.as_ptr(), 1) }).then_some(copy)
    }

    /// Half of the number, rounded down.
    pub(crate) fn half(&self) -> Option<Self> {
        // SAFETY: allocates a number.
        let half = Self(owned(unsafe { aws::BN_new() })?);
        // SAFETY: both numbers are valid.
        succeeded(unsafe { aws::BN_rshift1(half.as_ptr(), self.as_ptr()) }).then_some(half)
    }

    /// Tests primality with the number of Miller-Rabin rounds that AWS-LC uses for numbers that are not
    /// adversarial. `None` if there is no memory.
    pub(crate) fn is_probably_prime(&self) -> Option<bool> {
        let context = NumberContext::new()?;
        // SAFETY: number and context are valid; no callback is given.
        let code = unsafe {
            aws::BN_is_prime_fasttest_ex(
                self.as_ptr(),
                aws::BN_prime_checks_for_generation,
                context.0.as_ptr(),
                1,
                ptr::null_mut(),
            )
        };
        if code < 0 {
            clear_errors();
            return None;
        }
        Some(code == 1)
    }

    /// `self^exponent mod modulus` in constant time in base and exponent. The modulus is odd and the
    /// base below it; `None` otherwise, or if there is no memory.
    pub(crate) fn power(&self, exponent: &Self, modulus: &Self) -> Option<Self> {
        if !modulus.is_odd() || !self.is_below(modulus) {
            return None;
        }
        let context = NumberContext::new()?;
        // SAFETY: allocates a number.
        let result = Self(owned(unsafe { aws::BN_new() })?);
        // SAFETY: all numbers and the context are valid; null asks for a fresh Montgomery context.
        let code = unsafe {
            aws::BN_mod_exp_mont_consttime(
                result.as_ptr(),
                self.as_ptr(),
                exponent.as_ptr(),
                modulus.as_ptr(),
                context.0.as_ptr(),
                ptr::null(),
            )
        };
        succeeded(code).then_some(result)
    }

    fn as_ptr(&self) -> *mut aws::BIGNUM {
        self.0.as_ptr()
    }

    /// Passes ownership to a callee that frees the number.
    fn into_raw(self) -> *mut aws::BIGNUM {
        let pointer = self.0.as_ptr();
        std::mem::forget(self);
        pointer
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::BN_clear_free(self.as_ptr()) }
    }
}

/// Scratch space for arithmetic.
struct NumberContext(NonNull<aws::BN_CTX>);

impl NumberContext {
    fn new() -> Option<Self> {
        // SAFETY: allocates a context.
        owned(unsafe { aws::BN_CTX_new() }).map(Self)
    }
}

impl Drop for NumberContext {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::BN_CTX_free(self.0.as_ptr()) }
    }
}

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

/// An RSA private key with a public exponent.
pub(crate) struct Rsa(NonNull<aws::RSA>);

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
        let mut len = 0;
        // SAFETY: the key is valid; both slices are valid for the lengths given. Signing without
        // padding is AWS-LC's raw private operation.
        let code = unsafe {
            aws::RSA_sign_raw(
                self.0.as_ptr(),
                &raw mut len,
                output.as_mut_ptr(),
                output.len(),
                input.as_ptr(),
                input.len(),
                aws::RSA_NO_PADDING,
            )
        };
        if code == 1 && len == output.len() {
            return Ok(());
        }
        output.zeroize();
        // AWS-LC reports a result that does not verify as an internal error of its RSA code.
        // SAFETY: reads thread-local state.
        let error = unsafe { aws::ERR_peek_last_error() };
        clear_errors();
        let verification = aws::ERR_GET_LIB(error) == aws::ERR_LIB_RSA
            && aws::ERR_GET_REASON(error) == aws::ERR_R_INTERNAL_ERROR;
        Err(if verification {
            BackendError::Fault
        } else {
            BackendError::Failed
        })
    }

    /// `input^e mod n`. Both slices are as long as the modulus.
    ///
    /// # Errors
    /// `BadInput` for an input that is not below n.
    pub(crate) fn public(&self, input: &[u8], output: &mut [u8]) -> Result<(), BackendError> {
        let mut len = 0;
        // SAFETY: the key is valid; both slices are valid for the lengths given.
        let code = unsafe {
            aws::RSA_verify_raw(
                self.0.as_ptr(),
                &raw mut len,
                output.as_mut_ptr(),
                output.len(),
                input.as_ptr(),
                input.len(),
                aws::RSA_NO_PADDING,
            )
        };
        if succeeded(code) && len == output.len() {
            Ok(())
        } else {
            Err(BackendError::BadInput)
        }
    }
}

#[cfg(test)]
impl Rsa {
    /// Replaces the first CRT exponent. Every private operation is then wrong modulo p only, as with a broken
    /// multiplier.
    pub(crate) fn break_first_exponent(&mut self) {
        let wrong = Number::from_bytes(&[0x5a; 128])
            .expect("memory for a number")
            .into_raw();
        // SAFETY: the key is valid and ours alone; it takes over the number and keeps the others.
        let code = unsafe {
            aws::RSA_set0_crt_params(self.0.as_ptr(), wrong, ptr::null_mut(), ptr::null_mut())
        };
        assert_eq!(code, 1);
    }
}

impl Drop for Rsa {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::RSA_free(self.0.as_ptr()) }
    }
}

/// A point on a curve.
struct Point(NonNull<aws::EC_POINT>);

impl Point {
    /// Decodes a point; `None` unless it is on the curve.
    fn decode(curve: Curve, encoded: &[u8]) -> Option<Self> {
        let group = group(curve)?;
        // SAFETY: the group is a static of the library.
        let point = Self(owned(unsafe { aws::EC_POINT_new(group) })?);
        // SAFETY: group and point are valid, `encoded` is readable for its length; no context.
        let code = unsafe {
            aws::EC_POINT_oct2point(
                group,
                point.0.as_ptr(),
                encoded.as_ptr(),
                encoded.len(),
                ptr::null_mut(),
            )
        };
        succeeded(code).then_some(point)
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::EC_POINT_free(self.0.as_ptr()) }
    }
}

/// AWS-LC's numeric identifier (NID) of a curve.
fn curve_nid(curve: Curve) -> c_int {
    match curve {
        Curve::P256 => aws::NID_X9_62_prime256v1,
        Curve::P384 => aws::NID_secp384r1,
        Curve::P521 => aws::NID_secp521r1,
    }
}

/// The group of a curve; it is a static of the library.
fn group(curve: Curve) -> Option<*const aws::EC_GROUP> {
    let nid = curve_nid(curve);
    // SAFETY: any number may be asked for; known curves are statics that are never freed.
    owned(unsafe { aws::EC_GROUP_new_by_curve_name(nid) }).map(|group| group.as_ptr().cast_const())
}

/// A private key on a NIST curve.
pub(crate) struct EcKey {
    key: NonNull<aws::EC_KEY>,
    curve: Curve,
}

// SAFETY: an EC key has no thread affinity.
unsafe impl Send for EcKey {}
// SAFETY: after construction it is only read.
unsafe impl Sync for EcKey {}

impl EcKey {
    /// Makes a key from its secret scalar and computes the public point. `None` unless 0 < scalar < order.
    pub(crate) fn new(curve: Curve, scalar: &Number) -> Option<Self> {
        // SAFETY: any number may be asked for.
        let key = owned(unsafe { aws::EC_KEY_new_by_curve_name(curve_nid(curve)) })?;
        let key = Self { key, curve };
        let group = group(curve)?;
        // SAFETY: the key is valid and ours alone; AWS-LC copies the scalar, and refuses one that is
        // zero or not below the order.
        if !succeeded(unsafe { aws::EC_KEY_set_private_key(key.key.as_ptr(), scalar.as_ptr()) }) {
            return None;
        }
        // SAFETY: the group is a static of the library.
        let point = Point(owned(unsafe { aws::EC_POINT_new(group) })?);
        // SAFETY: group, point and scalar are valid; nulls leave out the second product and the
        // context. Multiplication of the generator is in constant time.
        let code = unsafe {
            aws::EC_POINT_mul(
                group,
                point.0.as_ptr(),
                scalar.as_ptr(),
                ptr::null(),
                ptr::null(),
                ptr::null_mut(),
            )
        };
        if !succeeded(code) {
            return None;
        }
        // SAFETY: key and point are valid; AWS-LC copies the point.
        let code = unsafe { aws::EC_KEY_set_public_key(key.key.as_ptr(), point.0.as_ptr()) };
        if !succeeded(code) {
            return None;
        }
        // SAFETY: the key is valid and complete.
        succeeded(unsafe { aws::EC_KEY_check_key(key.key.as_ptr()) }).then_some(key)
    }

    /// The public point, uncompressed.
    pub(crate) fn public_point(&self) -> Option<Vec<u8>> {
        let mut out = vec![0; 1 + 2 * self.curve.field_len()];
        // SAFETY: the key has a public point, which the key owns; `out` is writable for its length,
        // and the form fixes how much is written.
        let len = unsafe {
            aws::EC_POINT_point2oct(
                group(self.curve)?,
                aws::EC_KEY_get0_public_key(self.key.as_ptr()),
                aws::point_conversion_form_t::POINT_CONVERSION_UNCOMPRESSED,
                out.as_mut_ptr(),
                out.len(),
                ptr::null_mut(),
            )
        };
        (len == out.len()).then_some(out)
    }

    /// Whether `encoded` is this key's public point, in any of the encodings. False for a point off the
    /// curve.
    pub(crate) fn has_public_point(&self, encoded: &[u8]) -> bool {
        let (Some(group), Some(point)) = (group(self.curve), Point::decode(self.curve, encoded))
        else {
            return false;
        };
        // SAFETY: group and both points are valid; no context.
        let order = unsafe {
            aws::EC_POINT_cmp(
                group,
                point.0.as_ptr(),
                aws::EC_KEY_get0_public_key(self.key.as_ptr()),
                ptr::null_mut(),
            )
        };
        if order < 0 {
            clear_errors();
        }
        order == 0
    }

    /// An upper bound on the length of a DER signature.
    pub(crate) fn max_signature_len(&self) -> usize {
        // SAFETY: the key is valid.
        unsafe { aws::ECDSA_size(self.key.as_ptr()) }
    }

    /// Writes a DER signature over a digest to `out`, which has `max_signature_len` bytes; returns its length.
    pub(crate) fn sign(&self, digest: &[u8], out: &mut [u8]) -> Result<usize, BackendError> {
        if out.len() < self.max_signature_len() {
            return Err(BackendError::Failed);
        }
        let mut len: c_uint = 0;
        // SAFETY: the key is valid, `digest` readable for its length, and `out` has the room that
        // AWS-LC asks for, as checked above. The type is ignored.
        let code = unsafe {
            aws::ECDSA_sign(
                0,
                digest.as_ptr(),
                digest.len(),
                out.as_mut_ptr(),
                &raw mut len,
                self.key.as_ptr(),
            )
        };
        if succeeded(code) {
            Ok(len as usize)
        } else {
            Err(BackendError::Failed)
        }
    }

    /// Writes the x coordinate of scalar times `peer` to `out`, which is as long as the field.
    ///
    /// # Errors
    /// `BadInput` for a point that is not on the curve.
    pub(crate) fn agree(&self, peer: &[u8], out: &mut [u8]) -> Result<(), BackendError> {
        let peer = Point::decode(self.curve, peer).ok_or(BackendError::BadInput)?;
        // SAFETY: point and key are valid and of one group; `out` is writable for its length. No
        // key derivation function.
        let len = unsafe {
            aws::ECDH_compute_key(
                out.as_mut_ptr().cast::<c_void>(),
                out.len(),
                peer.0.as_ptr(),
                self.key.as_ptr(),
                None,
            )
        };
        if usize::try_from(len) == Ok(out.len()) {
            return Ok(());
        }
        clear_errors();
        out.zeroize();
        Err(BackendError::Failed)
    }
}

impl Drop for EcKey {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::EC_KEY_free(self.key.as_ptr()) }
    }
}

/// The X25519 public key of a private one.
pub(crate) fn x25519_public(private: &[u8; 32]) -> [u8; 32] {
    let mut public = [0; 32];
    // SAFETY: both are 32 bytes, which is what the function asks for.
    unsafe { aws::X25519_public_from_private(public.as_mut_ptr(), private.as_ptr()) };
    public
}

/// The X25519 shared secret.
///
/// # Errors
/// `BadInput` if it is all zero: the peer's point has a small order.
pub(crate) fn x25519(
    private: &[u8; 32],
    peer: &[u8; 32],
    out: &mut [u8; 32],
) -> Result<(), BackendError> {
    // SAFETY: all are 32 bytes, which is what the function asks for.
    let code = unsafe { aws::X25519(out.as_mut_ptr(), private.as_ptr(), peer.as_ptr()) };
    if succeeded(code) {
        Ok(())
    } else {
        Err(BackendError::BadInput)
    }
}

/// Computes an Ed25519 private key in AWS-LC's form, seed and public key, from the seed.
pub(crate) fn ed25519_expand(seed: &[u8; 32]) -> Zeroizing<[u8; 64]> {
    let mut public = [0; 32];
    let mut private = Zeroizing::new([0; 64]);
    // SAFETY: 32, 64 and 32 bytes, which is what the function asks for.
    unsafe {
        aws::ED25519_keypair_from_seed(public.as_mut_ptr(), private.as_mut_ptr(), seed.as_ptr());
    }
    private
}

/// An Ed25519 signature over a message.
pub(crate) fn ed25519_sign(
    private: &[u8; 64],
    message: &[u8],
    out: &mut [u8; 64],
) -> Result<(), BackendError> {
    // SAFETY: signature and key are 64 bytes; `message` is readable for its length.
    let code = unsafe {
        aws::ED25519_sign(
            out.as_mut_ptr(),
            message.as_ptr(),
            message.len(),
            private.as_ptr(),
        )
    };
    if succeeded(code) {
        Ok(())
    } else {
        Err(BackendError::Failed)
    }
}

/// A finite-field Diffie-Hellman private key.
pub(crate) struct Dh(NonNull<aws::DH>);

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

    /// Writes the shared secret with a peer's public value to `out`, which is as long as the prime.
    ///
    /// # Errors
    /// `BadInput` unless 1 < peer < p-1 and, if the order is known, the peer's value has it.
    pub(crate) fn agree(&self, peer: &Number, out: &mut [u8]) -> Result<(), BackendError> {
        let mut flags: c_int = 0;
        // SAFETY: object and number are valid.
        let code = unsafe { aws::DH_check_pub_key(self.0.as_ptr(), peer.as_ptr(), &raw mut flags) };
        if !succeeded(code) || flags != 0 {
            return Err(BackendError::BadInput);
        }
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

impl Drop for Dh {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::DH_free(self.0.as_ptr()) }
    }
}

/// A DSA private key.
pub(crate) struct Dsa(NonNull<aws::DSA>);

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
        if succeeded(code) {
            Ok(len as usize)
        } else {
            Err(BackendError::Failed)
        }
    }
}

impl Drop for Dsa {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::DSA_free(self.0.as_ptr()) }
    }
}

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
        if !succeeded(code) {
            return Err(BackendError::Failed);
        }
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
        if succeeded(code) && len == out.len() {
            Ok(())
        } else {
            Err(BackendError::Failed)
        }
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
        if succeeded(code) && len == out.len() {
            Ok(())
        } else {
            Err(BackendError::Failed)
        }
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

/// The state of one signature over a message.
struct DigestContext(NonNull<aws::EVP_MD_CTX>);

impl DigestContext {
    fn new() -> Option<Self> {
        // SAFETY: allocates a context.
        owned(unsafe { aws::EVP_MD_CTX_new() }).map(Self)
    }
}

impl Drop for DigestContext {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::EVP_MD_CTX_free(self.0.as_ptr()) }
    }
}

/// The state of one signature over a message representative.
struct KeyContext(NonNull<aws::EVP_PKEY_CTX>);

impl Drop for KeyContext {
    fn drop(&mut self) {
        // SAFETY: ours alone, freed once.
        unsafe { aws::EVP_PKEY_CTX_free(self.0.as_ptr()) }
    }
}
