// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Wraps the two traditional forms of private keys, PKCS#1 (RSA) and SEC 1 (NIST curves), into PKCS#8, the only
//! form that backends parse. It reads the outermost structure only; a backend checks the key when it loads it.

use thiserror::Error;
use zeroize::Zeroizing;

use crate::der::{DerReader, MAX_HEADER_LEN, push_header, tag};
use crate::key::{Curve, PrivateKey};

/// Why a SEC 1 key was not wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Sec1Error {
    /// The bytes are no `ECPrivateKey`.
    #[error("the private key does not parse")]
    Malformed,
    /// A curve other than P-256, P-384 and P-521.
    #[error("the curve of the private key is not offered (P-256, P-384 and P-521 are)")]
    Curve,
}

impl PrivateKey {
    /// Wraps the DER of an `RSAPrivateKey` (RFC 8017 appendix A.1.2), without a check of its content.
    #[must_use]
    pub fn from_pkcs1(key: &[u8]) -> Self {
        Self::from_pkcs8(wrap(RSA_ALGORITHM, key))
    }

    /// Wraps the DER of an `ECPrivateKey` (RFC 5915). Without parameters the length of the scalar determines the
    /// curve.
    pub fn from_sec1(key: &[u8]) -> Result<Self, Sec1Error> {
        let mut outer = DerReader::new(key);
        let mut fields = DerReader::new(outer.take(tag::SEQUENCE).ok_or(Sec1Error::Malformed)?);
        let version = fields.take(tag::INTEGER).ok_or(Sec1Error::Malformed)?;
        let scalar = fields.take(tag::OCTET_STRING).ok_or(Sec1Error::Malformed)?;
        if !outer.is_empty() || version != [1] {
            return Err(Sec1Error::Malformed);
        }
        let curve = match fields.take(tag::CONTEXT_0) {
            Some(oid) => CURVES.iter().find(|(_, known)| *known == oid),
            None => CURVES.iter().find(|(curve, _)| curve.field_len() == scalar.len()),
        };
        let (_, oid) = curve.ok_or(Sec1Error::Curve)?;
        let mut algorithm = Vec::new();
        push_header(&mut algorithm, tag::SEQUENCE, EC_PUBLIC_KEY.len() + oid.len());
        algorithm.extend_from_slice(EC_PUBLIC_KEY);
        algorithm.extend_from_slice(oid);
        Ok(Self::from_pkcs8(wrap(&algorithm, key)))
    }
}

/// `PrivateKeyInfo ::= SEQUENCE { INTEGER 0, AlgorithmIdentifier, OCTET STRING }` (RFC 5208).
fn wrap(algorithm: &[u8], key: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut header = Vec::new();
    push_header(&mut header, tag::OCTET_STRING, key.len());
    let body = VERSION_0.len() + algorithm.len() + header.len() + key.len();
    // Reserves the full size: growing would leave copies of the key in freed memory.
    let mut out = Zeroizing::new(Vec::with_capacity(body + MAX_HEADER_LEN));
    push_header(&mut out, tag::SEQUENCE, body);
    out.extend_from_slice(VERSION_0);
    out.extend_from_slice(algorithm);
    out.extend_from_slice(&header);
    out.extend_from_slice(key);
    out
}

const VERSION_0: &[u8] = &[tag::INTEGER, 1, 0];
/// `AlgorithmIdentifier` of rsaEncryption, with its NULL (RFC 8017 appendix A.1).
const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// OBJECT IDENTIFIER id-ecPublicKey (RFC 5480 section 2.1.1).
pub const EC_PUBLIC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// OBJECT IDENTIFIER of each curve (RFC 5480 section 2.1.1.1).
const CURVES: &[(Curve, &[u8])] = &[
    (Curve::P256, &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07]),
    (Curve::P384, &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22]),
    (Curve::P521, &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23]),
];
