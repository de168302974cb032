// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Converts private keys in PEM to PKCS#8, the only form that the engine accepts.
//!
//! It supports `PRIVATE KEY` (PKCS#8) and the two traditional forms, `RSA PRIVATE KEY` (PKCS#1) and `EC
//! PRIVATE KEY` (SEC 1), which it wraps into PKCS#8. It parses only the outermost structure and does not
//! check the key; the engine checks it when it loads it.

use millrace_engine::PrivateKey;
use millrace_engine::der::{MAX_HEADER_LEN, Reader, push_header, tag};
use millrace_engine::key::MAX_PRIVATE_KEY_LEN;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

/// Bound on a PEM file, in bytes: four times the base64 size of the largest key, for a certificate chain
/// before the key.
pub const MAX_PEM_LEN: usize = 64 * 1024;

/// Error of [`read_private_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PemError {
    /// The file has no `PRIVATE KEY` section.
    #[error("no private key in PEM form found")]
    NotFound,
    /// The key is encrypted with a passphrase.
    #[error("the private key is encrypted: decrypt it first (openssl pkey -in FILE -out PLAIN)")]
    Encrypted,
    /// More than [`MAX_PEM_LEN`] bytes, or a key above the bound on keys.
    #[error("the file is too large to be a private key")]
    TooLarge,
    /// The base64 or the outermost structure is invalid.
    #[error("the private key does not parse")]
    Malformed,
    /// Millrace does not support the elliptic curve.
    #[error("the curve of the private key is not offered (P-256, P-384 and P-521 are)")]
    Curve,
}

/// Reads the first private key in `pem`.
///
/// # Errors
/// The problem of the file, with a text for the operator.
pub fn read_private_key(pem: &[u8]) -> Result<PrivateKey, PemError> {
    if pem.len() > MAX_PEM_LEN {
        return Err(PemError::TooLarge);
    }
    let encrypted = [
        &b"BEGIN ENCRYPTED PRIVATE KEY"[..],
        &b"Proc-Type: 4,ENCRYPTED"[..],
    ];
    if encrypted
        .iter()
        .any(|mark| pem.windows(mark.len()).any(|window| window == *mark))
    {
        return Err(PemError::Encrypted);
    }
    let mut found = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => PemError::NotFound,
        _ => PemError::Malformed,
    })?;
    let pkcs8 = match &found {
        PrivateKeyDer::Pkcs8(key) => Ok(Zeroizing::new(key.secret_pkcs8_der().to_vec())),
        PrivateKeyDer::Pkcs1(key) => Ok(wrap(RSA_ALGORITHM, key.secret_pkcs1_der())),
        PrivateKeyDer::Sec1(key) => wrap_sec1(key.secret_sec1_der()),
        _ => Err(PemError::Malformed),
    };
    found.zeroize();
    let pkcs8 = pkcs8?;
    if pkcs8.len() > MAX_PRIVATE_KEY_LEN {
        return Err(PemError::TooLarge);
    }
    if pkcs8.first() != Some(&tag::SEQUENCE) {
        return Err(PemError::Malformed);
    }
    Ok(PrivateKey::from_pkcs8(pkcs8))
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

/// `ECPrivateKey ::= SEQUENCE { INTEGER 1, OCTET STRING, [0] parameters OPTIONAL, [1] … }` (RFC 5915).
/// Without parameters, the length of the scalar determines the curve.
fn wrap_sec1(key: &[u8]) -> Result<Zeroizing<Vec<u8>>, PemError> {
    let mut outer = Reader::new(key);
    let mut fields = Reader::new(outer.take(tag::SEQUENCE).ok_or(PemError::Malformed)?);
    let version = fields.take(tag::INTEGER).ok_or(PemError::Malformed)?;
    let scalar = fields.take(tag::OCTET_STRING).ok_or(PemError::Malformed)?;
    if !outer.is_empty() || version != [1] {
        return Err(PemError::Malformed);
    }
    let curve = match fields.take(tag::CONTEXT_0) {
        Some(oid) => EC_CURVES.iter().find(|(known, _)| *known == oid),
        None => EC_CURVES.iter().find(|(_, len)| *len == scalar.len()),
    };
    let (oid, _) = curve.ok_or(PemError::Curve)?;
    let mut algorithm = Vec::new();
    push_header(
        &mut algorithm,
        tag::SEQUENCE,
        EC_PUBLIC_KEY.len() + oid.len(),
    );
    algorithm.extend_from_slice(EC_PUBLIC_KEY);
    algorithm.extend_from_slice(oid);
    Ok(wrap(&algorithm, key))
}

const VERSION_0: &[u8] = &[tag::INTEGER, 1, 0];
/// `AlgorithmIdentifier` of rsaEncryption, with its NULL (RFC 8017 appendix A.1).
const RSA_ALGORITHM: &[u8] = &[
    0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
];
/// OBJECT IDENTIFIER id-ecPublicKey (RFC 5480 section 2.1.1).
const EC_PUBLIC_KEY: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// OBJECT IDENTIFIER of each curve (RFC 5480 section 2.1.1.1) and the length of its scalars.
const EC_CURVES: &[(&[u8], usize)] = &[
    (
        &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        32,
    ),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22], 48),
    (&[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x23], 66),
];

#[cfg(test)]
mod tests {
    use super::*;

    // `openssl ecparam -name prime256v1 -genkey`, and the same through `openssl pkcs8 -topk8`.
    const SEC1: &str = include_str!("../../tests/data/p256-sec1.pem");
    const SEC1_AS_PKCS8: &str = include_str!("../../tests/data/p256-pkcs8.pem");
    const PKCS1: &str = include_str!("../../tests/data/rsa2048-pkcs1.pem");
    const PKCS1_AS_PKCS8: &str = include_str!("../../tests/data/rsa2048-pkcs8.pem");
    const ENCRYPTED: &str = include_str!("../../tests/data/p256-encrypted.pem");
    const OLD_ENCRYPTED: &str = include_str!("../../tests/data/rsa2048-old-encrypted.pem");

    fn der(pem: &str) -> Vec<u8> {
        read_private_key(pem.as_bytes())
            .unwrap()
            .dangerous_pkcs8()
            .to_vec()
    }

    #[test]
    fn pkcs1_key_is_converted_as_by_openssl() {
        assert_eq!(der(PKCS1), der(PKCS1_AS_PKCS8));
    }

    #[test]
    fn sec1_key_becomes_pkcs8_around_the_same_bytes() {
        // OpenSSL drops the parameters inside; both forms are valid (RFC 5915 section 3).
        let ours = der(SEC1);
        let mut outer = Reader::new(&ours);
        let body = outer.take(tag::SEQUENCE).unwrap();
        assert!(outer.is_empty());
        assert!(body.starts_with(VERSION_0));
        let theirs = der(SEC1_AS_PKCS8);
        let scalar = &theirs[36..68];
        assert!(ours.windows(32).any(|window| window == scalar));
    }

    #[test]
    fn encrypted_key_error_names_the_remedy() {
        for pem in [ENCRYPTED, OLD_ENCRYPTED] {
            assert_eq!(
                read_private_key(pem.as_bytes()).unwrap_err(),
                PemError::Encrypted
            );
        }
    }

    #[test]
    fn invalid_pem_is_refused() {
        assert_eq!(read_private_key(b"").unwrap_err(), PemError::NotFound);
        assert_eq!(
            read_private_key(&vec![b'a'; MAX_PEM_LEN + 1]).unwrap_err(),
            PemError::TooLarge
        );
        let broken = "-----BEGIN EC PRIVATE KEY-----\nMAA=\n-----END EC PRIVATE KEY-----\n";
        assert_eq!(
            read_private_key(broken.as_bytes()).unwrap_err(),
            PemError::Malformed
        );
    }

    #[test]
    fn every_prefix_of_a_sec1_key_is_an_error_and_no_panic() {
        let ours = der(SEC1);
        // The octet string with the SEC 1 key begins after header, version and algorithm.
        let start = ours.len() - 121;
        for end in 0..121 {
            assert!(wrap_sec1(&ours[start..start + end]).is_err());
        }
        assert!(wrap_sec1(&ours[start..]).is_ok());
    }
}
