// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Fixed private keys: good ones of every type, and bad ones with the error that a backend must return.
//!
//! The keys are files in `keys/` of this crate, as PEM and as DER. Tests that start a program can pass it
//! [`TestKey::path`].

use std::path::{Path, PathBuf};

use millrace_operation::der::{element, tag};
use millrace_operation::{Curve, KeyError, KeyType, MlDsaSet, PrivateKey};
use zeroize::Zeroizing;

/// A valid key for tests.
#[derive(Clone, Copy, Debug)]
pub struct TestKey {
    /// Name of the key and of its file.
    pub name: &'static str,
    /// Type of the key.
    pub key_type: KeyType,
    /// DER `PrivateKeyInfo`.
    pub der: &'static [u8],
    /// PEM with the same content.
    pub pem: &'static str,
}

impl TestKey {
    /// The key as a backend takes it.
    #[must_use]
    pub fn private_key(&self) -> PrivateKey {
        private_key(self.der)
    }

    /// Path of the PEM file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("keys").join(format!("{}.pem", self.name))
    }
}

/// A key that a backend must refuse.
#[derive(Clone, Copy, Debug)]
pub struct BadKey {
    /// Name of the key and of its file.
    pub name: &'static str,
    /// The error that a backend must return.
    pub error: KeyError,
    /// The file's bytes, DER except for the defect.
    pub der: &'static [u8],
}

impl BadKey {
    /// The key as a backend takes it.
    #[must_use]
    pub fn private_key(&self) -> PrivateKey {
        private_key(self.der)
    }
}

/// Wraps DER bytes as a key, without a check.
#[must_use]
pub fn private_key(der: &[u8]) -> PrivateKey {
    PrivateKey::from_pkcs8(Zeroizing::new(der.to_vec()))
}

/// Encodes a P-256, P-384 or P-521 key from its scalar, without its point.
///
/// # Panics
/// If the scalar is longer than the field.
#[must_use]
pub fn ec_private_key(curve: Curve, scalar: &[u8]) -> Vec<u8> {
    let oid: &[u8] = match curve {
        Curve::P256 => &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        Curve::P384 => &[0x2b, 0x81, 0x04, 0x00, 0x22],
        Curve::P521 => &[0x2b, 0x81, 0x04, 0x00, 0x23],
    };
    let algorithm = [
        &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01],
        &*element(tag::OBJECT_IDENTIFIER, oid),
    ]
    .concat();
    let mut padded = vec![0; curve.field_len() - scalar.len()];
    padded.extend_from_slice(scalar);
    let inner =
        element(tag::SEQUENCE, &[&[2, 1, 1], &*element(tag::OCTET_STRING, &padded)].concat());
    pkcs8(&algorithm, &inner)
}

/// Encodes an X25519 key from its 32 bytes.
#[must_use]
pub fn x25519_private_key(secret: &[u8; 32]) -> Vec<u8> {
    pkcs8(&[0x06, 0x03, 0x2b, 0x65, 0x6e], &element(tag::OCTET_STRING, secret))
}

/// Encodes an Ed25519 key from its seed.
#[must_use]
pub fn ed25519_private_key(seed: &[u8; 32]) -> Vec<u8> {
    pkcs8(&[0x06, 0x03, 0x2b, 0x65, 0x70], &element(tag::OCTET_STRING, seed))
}

fn pkcs8(algorithm: &[u8], private_key: &[u8]) -> Vec<u8> {
    let parts = [
        &[2, 1, 0],
        &*element(tag::SEQUENCE, algorithm),
        &*element(tag::OCTET_STRING, private_key),
    ];
    element(tag::SEQUENCE, &parts.concat())
}

/// Encodes an ML-DSA key from its seed (RFC 9881 section 6).
#[must_use]
pub fn ml_dsa_seed_private_key(set: MlDsaSet, seed: &[u8]) -> Vec<u8> {
    pkcs8(&ml_dsa_oid(set), &element(tag::CONTEXT_0_PRIMITIVE, seed))
}

/// Encodes an ML-DSA key from its expanded form (RFC 9881 section 6).
#[must_use]
pub fn ml_dsa_expanded_private_key(set: MlDsaSet, expanded: &[u8]) -> Vec<u8> {
    pkcs8(&ml_dsa_oid(set), &element(tag::OCTET_STRING, expanded))
}

fn ml_dsa_oid(set: MlDsaSet) -> [u8; 11] {
    let arc = match set {
        MlDsaSet::MlDsa44 => 0x11,
        MlDsaSet::MlDsa65 => 0x12,
        MlDsaSet::MlDsa87 => 0x13,
    };
    [0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, arc]
}

macro_rules! good {
    ($($(#[$doc:meta])* $function:ident: $key_type:expr,)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $function() -> TestKey {
            TestKey {
                name: stringify!($function),
                key_type: $key_type,
                der: include_bytes!(concat!("../../keys/", stringify!($function), ".der")),
                pem: include_str!(concat!("../../keys/", stringify!($function), ".pem")),
            }
        })*

        /// Every good key.
        #[must_use]
        pub fn all() -> Vec<TestKey> {
            vec![$($function()),*]
        }
    };
}

good! {
    /// RSA, 2048 bits.
    rsa_2048: KeyType::Rsa { bits: 2048 },
    /// RSA, 3072 bits.
    rsa_3072: KeyType::Rsa { bits: 3072 },
    /// RSA, 4096 bits.
    rsa_4096: KeyType::Rsa { bits: 4096 },
    /// RSA, 8192 bits, the largest accepted size.
    rsa_8192: KeyType::Rsa { bits: 8192 },
    /// P-256.
    p_256: KeyType::Ec(Curve::P256),
    /// `p_256` without its public point, which is optional.
    p_256_without_point: KeyType::Ec(Curve::P256),
    /// P-384.
    p_384: KeyType::Ec(Curve::P384),
    /// P-521.
    p_521: KeyType::Ec(Curve::P521),
    /// X25519.
    x25519: KeyType::X25519,
    /// Ed25519.
    ed25519: KeyType::Ed25519,
    /// `ed25519` with its public key (`OneAsymmetricKey`, RFC 5958).
    ed25519_v2: KeyType::Ed25519,
    /// PKCS#3 Diffie-Hellman on the named group ffdhe2048.
    dh_ffdhe2048: KeyType::Dh { bits: 2048 },
    /// PKCS#3 Diffie-Hellman on the named group ffdhe8192, the largest accepted size.
    dh_ffdhe8192: KeyType::Dh { bits: 8192 },
    /// PKCS#3 Diffie-Hellman on a safe prime outside the named groups.
    dh_explicit_2048: KeyType::Dh { bits: 2048 },
    /// X9.42 Diffie-Hellman with a subgroup order, on a prime that is not safe.
    dhx_2048: KeyType::Dh { bits: 2048 },
    /// DSA, 2048 bits, with an order of 256 bits.
    dsa_2048: KeyType::Dsa { bits: 2048 },
    /// ML-DSA-44 as its seed.
    ml_dsa_44: KeyType::MlDsa(MlDsaSet::MlDsa44),
    /// ML-DSA-65 as its seed.
    ml_dsa_65: KeyType::MlDsa(MlDsaSet::MlDsa65),
    /// ML-DSA-65 as its expanded key.
    ml_dsa_65_expanded: KeyType::MlDsa(MlDsaSet::MlDsa65),
    /// ML-DSA-65 as both seed and expanded key.
    ml_dsa_65_both: KeyType::MlDsa(MlDsaSet::MlDsa65),
    /// ML-DSA-87 as its seed.
    ml_dsa_87: KeyType::MlDsa(MlDsaSet::MlDsa87),
}

macro_rules! bad {
    ($($name:ident: $error:ident,)*) => {
        /// Every key that a backend must refuse, with the error.
        #[must_use]
        pub fn bad() -> Vec<BadKey> {
            vec![$(BadKey {
                name: stringify!($name),
                error: KeyError::$error,
                der: include_bytes!(concat!("../../keys/", stringify!($name), ".der")),
            }),*]
        }
    };
}

bad! {
    bad_truncated: Malformed,
    bad_trailing: Malformed,
    bad_rsa_inner_trailing: Malformed,
    bad_ed25519_short: Malformed,
    bad_rsa_three_primes: NotOffered,
    bad_rsa_pss: NotOffered,
    bad_secp256k1: NotOffered,
    bad_ed448: NotOffered,
    bad_dh_not_safe_prime: NotOffered,
    bad_rsa_1024: Size,
    bad_rsa_no_exponent: NoPublicExponent,
    bad_rsa_even_exponent: NoPublicExponent,
    bad_rsa_large_exponent: NoPublicExponent,
    bad_rsa_exponent_mismatch: Inconsistent,
    bad_rsa_modulus: Inconsistent,
    bad_rsa_private_exponent: Inconsistent,
    bad_rsa_prime: Inconsistent,
    bad_rsa_composite_prime: Inconsistent,
    bad_rsa_exponent1: Inconsistent,
    bad_rsa_exponent2: Inconsistent,
    bad_rsa_coefficient: Inconsistent,
    bad_rsa_no_primes: Inconsistent,
    bad_p_256_off_curve: Inconsistent,
    bad_p_256_other_point: Inconsistent,
    bad_p_256_zero: Inconsistent,
    bad_p_256_order: Inconsistent,
    bad_ed25519_public: Inconsistent,
    bad_dh_zero: Inconsistent,
    bad_dh_private_too_large: Inconsistent,
    bad_dh_generator: Inconsistent,
    bad_dh_composite: Inconsistent,
    bad_dsa_generator: Inconsistent,
    bad_dsa_private_too_large: Inconsistent,
    bad_dsa_order: Inconsistent,
    bad_ml_dsa_short_seed: Malformed,
    bad_ml_dsa_parameters: Malformed,
    bad_ml_dsa_other_seed: Inconsistent,
    bad_ml_dsa_expanded: Inconsistent,
}
