// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Converts private keys in PEM to PKCS#8, the only form that the engine accepts.
//!
//! The module supports `PRIVATE KEY` (PKCS#8) and the two traditional forms, `RSA PRIVATE KEY` (PKCS#1) and `EC PRIVATE
//! KEY` (SEC 1), which the engine wraps into PKCS#8. It parses only the outermost structure and does not check the key;
//! the engine checks it when it loads it.

use millrace_operation::der::{DerReader, tag};
use millrace_operation::stub::BYTE_ORDER_MARK;
use millrace_operation::traditional::{EC_PUBLIC_KEY, Sec1Error};
use millrace_operation::{MAX_PRIVATE_KEY_LEN, PrivateKey};
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
    /// The file is DER.
    #[error(
        "the file is DER, not PEM: convert it first (openssl pkey -inform DER -in FILE -out KEY.pem)"
    )]
    Der,
    /// The file is PKCS#12.
    #[error(
        "the file is PKCS#12 (.p12, .pfx), not PEM: take the key out of it first (openssl pkcs12 -in FILE -nocerts \
         -nodes -out KEY.pem)"
    )]
    Pkcs12,
    /// The curve is described by its numbers, also if it is one that Millrace supports.
    #[error(
        "the curve of the private key has explicit parameters and no name: name it first (openssl ec -in FILE \
         -param_enc named_curve -out KEY.pem)"
    )]
    ExplicitCurve,
    /// Millrace does not support the elliptic curve.
    #[error("the curve of the private key is not offered (P-256, P-384 and P-521 are)")]
    Curve,
}

/// Reads the first private key in `pem`.
pub fn read_private_key(pem: &[u8]) -> Result<PrivateKey, PemError> {
    if pem.len() > MAX_PEM_LEN {
        return Err(PemError::TooLarge);
    }
    // Editors on other systems write it; OpenSSL skips it, too.
    let pem = pem.strip_prefix(BYTE_ORDER_MARK).unwrap_or(pem);
    if let Some(binary) = binary_form(pem) {
        return Err(binary);
    }
    let encrypted = [&b"BEGIN ENCRYPTED PRIVATE KEY"[..], &b"Proc-Type: 4,ENCRYPTED"[..]];
    if encrypted.iter().any(|mark| pem.windows(mark.len()).any(|window| window == *mark)) {
        return Err(PemError::Encrypted);
    }
    let mut found = PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => PemError::NotFound,
        _ => PemError::Malformed,
    })?;
    let key = match &found {
        PrivateKeyDer::Pkcs8(key) => {
            Ok(PrivateKey::from_pkcs8(Zeroizing::new(key.secret_pkcs8_der().to_vec())))
        }
        PrivateKeyDer::Pkcs1(key) => Ok(PrivateKey::from_pkcs1(key.secret_pkcs1_der())),
        PrivateKeyDer::Sec1(key) => {
            PrivateKey::from_sec1(key.secret_sec1_der()).map_err(|error| match error {
                Sec1Error::Malformed => PemError::Malformed,
                Sec1Error::Curve if has_explicit_curve(key.secret_sec1_der()) => {
                    PemError::ExplicitCurve
                }
                Sec1Error::Curve => PemError::Curve,
            })
        }
        _ => Err(PemError::Malformed),
    };
    found.zeroize();
    let key = key?;
    let pkcs8 = key.dangerous_pkcs8();
    if pkcs8.len() > MAX_PRIVATE_KEY_LEN {
        return Err(PemError::TooLarge);
    }
    if pkcs8.first() != Some(&tag::SEQUENCE) {
        return Err(PemError::Malformed);
    }
    if pkcs8_has_explicit_curve(pkcs8) {
        return Err(PemError::ExplicitCurve);
    }
    Ok(key)
}

/// The error of a file that has DER in the place of PEM.
fn binary_form(bytes: &[u8]) -> Option<PemError> {
    let mut outer = DerReader::new(bytes);
    let mut fields = DerReader::new(outer.take(tag::SEQUENCE)?);
    // PFX (RFC 7292 section 4) begins with its version 3, private keys with 0 or 1.
    Some(match fields.take(tag::INTEGER)? {
        [3] => PemError::Pkcs12,
        _ => PemError::Der,
    })
}

/// Whether an `ECPrivateKey` (RFC 5915) has `specifiedCurve` in the place of the name of its curve.
fn has_explicit_curve(sec1: &[u8]) -> bool {
    let parameters = || {
        let mut fields = DerReader::new(DerReader::new(sec1).take(tag::SEQUENCE)?);
        fields.take(tag::INTEGER)?;
        fields.take(tag::OCTET_STRING)?;
        fields.take(tag::CONTEXT_0)
    };
    parameters().is_some_and(|parameters| parameters.first() == Some(&tag::SEQUENCE))
}

/// Whether the algorithm of a PKCS#8 key is id-ecPublicKey with a `specifiedCurve` (RFC 5480 section 2.1.1).
fn pkcs8_has_explicit_curve(pkcs8: &[u8]) -> bool {
    let parameters = || {
        let mut fields = DerReader::new(DerReader::new(pkcs8).take(tag::SEQUENCE)?);
        fields.take(tag::INTEGER)?;
        let algorithm = fields.take(tag::SEQUENCE)?;
        algorithm.strip_prefix(EC_PUBLIC_KEY)
    };
    parameters().is_some_and(|parameters| parameters.first() == Some(&tag::SEQUENCE))
}

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
        read_private_key(pem.as_bytes()).unwrap().dangerous_pkcs8().to_vec()
    }

    #[test]
    fn pkcs1_key_is_converted_as_by_openssl() {
        assert_eq!(der(PKCS1), der(PKCS1_AS_PKCS8));
    }

    #[test]
    fn sec1_key_becomes_pkcs8_around_the_same_bytes() {
        // OpenSSL drops the parameters inside; both forms are valid (RFC 5915 section 3).
        let ours = der(SEC1);
        let mut outer = DerReader::new(&ours);
        let body = outer.take(tag::SEQUENCE).unwrap();
        assert!(outer.is_empty());
        assert!(body.starts_with(&[tag::INTEGER, 1, 0]));
        let theirs = der(SEC1_AS_PKCS8);
        let scalar = &theirs[36..68];
        assert!(ours.windows(32).any(|window| window == scalar));
    }

    #[test]
    fn encrypted_key_error_names_the_remedy() {
        for pem in [ENCRYPTED, OLD_ENCRYPTED] {
            assert_eq!(read_private_key(pem.as_bytes()).unwrap_err(), PemError::Encrypted);
        }
    }

    #[test]
    fn invalid_pem_is_refused() {
        assert_eq!(read_private_key(b"").unwrap_err(), PemError::NotFound);
        assert_eq!(read_private_key(&vec![b'a'; MAX_PEM_LEN + 1]).unwrap_err(), PemError::TooLarge);
        let broken = "-----BEGIN EC PRIVATE KEY-----\nMAA=\n-----END EC PRIVATE KEY-----\n";
        assert_eq!(read_private_key(broken.as_bytes()).unwrap_err(), PemError::Malformed);
    }

    #[test]
    fn every_prefix_of_a_sec1_key_is_an_error_and_no_panic() {
        let ours = der(SEC1);
        // The octet string with the SEC 1 key begins after header, version and algorithm.
        let start = ours.len() - 121;
        for end in 0..121 {
            assert!(PrivateKey::from_sec1(&ours[start..start + end]).is_err());
        }
        assert!(PrivateKey::from_sec1(&ours[start..]).is_ok());
    }
}
