// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys and points of the NIST curves, X25519 and Ed25519: signatures, key agreement, public halves.
//!
//! The callers parse and write PKCS#8 and `SubjectPublicKeyInfo`; here are numbers, points and raw keys only. A point
//! from outside is checked to be on its curve before a private key meets it.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, NonNull};

use aws_lc_sys as aws;
use millrace_engine::BackendError;
use millrace_operation::Curve;
use zeroize::{Zeroize, Zeroizing};

use super::{Number, checked, clear_errors, owned, succeeded};

owner! {
    /// A point on a curve.
    Point(aws::EC_POINT), freed by aws::EC_POINT_free;
}

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

/// p, a and b of a curve y² = x³ + ax + b over the integers modulo p, each as long as the field.
pub(crate) fn curve_numbers(curve: Curve) -> Option<[Vec<u8>; 3]> {
    let group = group(curve)?;
    let new = || Number::from_bytes(&[]);
    let numbers = [new()?, new()?, new()?];
    let [p, a, b] = numbers.each_ref().map(Number::as_ptr);
    // SAFETY: the group is a static of the library, and the numbers are ours; no context.
    let code = unsafe { aws::EC_GROUP_get_curve_GFp(group, p, a, b, ptr::null_mut()) };
    if !succeeded(code) {
        return None;
    }
    let [p, a, b] = numbers.map(|number| Some(number.to_bytes(curve.field_len())?.to_vec()));
    Some([p?, a?, b?])
}

/// Whether `encoded` is an uncompressed point of the curve.
pub(crate) fn is_point(curve: Curve, encoded: &[u8]) -> bool {
    encoded.first() == Some(&4) && Point::decode(curve, encoded).is_some()
}

/// The x coordinate of A + B, if A + 2B is `both`: A, B and `both` are uncompressed points, the multiples of one point
/// by the shares of [`EcKey::split`]. One that is wrong is noticed.
///
/// # Errors
/// `Fault` if one of them is not on the curve, or if they do not go together.
pub(crate) fn join_points(
    curve: Curve,
    [a, b, both]: [&[u8]; 3],
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    let decode = |encoded| Point::decode(curve, encoded).ok_or(BackendError::Fault);
    let mut sum = decode(a)?;
    let b = decode(b)?;
    let both = decode(both)?;
    let group = group(curve).ok_or(BackendError::Failed)?;
    let add = |sum: &mut Point| {
        let place = sum.0.as_ptr();
        // SAFETY: the points are valid and of this group; the sum may be one of them. No context.
        checked(unsafe { aws::EC_POINT_add(group, place, place, b.0.as_ptr(), ptr::null_mut()) })
    };
    add(&mut sum)?;
    let mut encoded = Zeroizing::new(vec![0; 1 + 2 * curve.field_len()]);
    // SAFETY: group and point are valid; `encoded` is writable for its length, and the form fixes how much is
    // written.
    let len = unsafe {
        aws::EC_POINT_point2oct(
            group,
            sum.0.as_ptr(),
            aws::point_conversion_form_t::POINT_CONVERSION_UNCOMPRESSED,
            encoded.as_mut_ptr(),
            encoded.len(),
            ptr::null_mut(),
        )
    };
    if len != encoded.len() {
        clear_errors();
        return Err(BackendError::Fault);
    }
    add(&mut sum)?;
    // SAFETY: group and both points are valid; no context.
    let order =
        unsafe { aws::EC_POINT_cmp(group, sum.0.as_ptr(), both.0.as_ptr(), ptr::null_mut()) };
    if order != 0 {
        clear_errors();
        return Err(BackendError::Fault);
    }
    Ok(Zeroizing::new(encoded[1..=curve.field_len()].to_vec()))
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

    /// Shares of the secret scalar modulo the order: a and b with a + b = the scalar, and a + 2b; each is as long as
    /// the field. `None` if there is no memory.
    pub(crate) fn split(&self) -> Option<[Zeroizing<Vec<u8>>; 3]> {
        // SAFETY: the key is valid and has a scalar below the order, both of which live as long as it does.
        let shares = unsafe {
            let order = aws::EC_GROUP_get0_order(group(self.curve)?);
            Number::split(aws::EC_KEY_get0_private_key(self.key.as_ptr()), order)?
        };
        let [a, b, both] = shares.map(|share| share.to_bytes(self.curve.field_len()));
        Some([a?, b?, both?])
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
        checked(code)?;
        Ok(len as usize)
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
    if succeeded(code) { Ok(()) } else { Err(BackendError::BadInput) }
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
        aws::ED25519_sign(out.as_mut_ptr(), message.as_ptr(), message.len(), private.as_ptr())
    };
    checked(code)
}
