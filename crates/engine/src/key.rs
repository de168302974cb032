// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys as the engine sees them: their type, their public half, and an opaque secret.

use std::fmt;

use zeroize::Zeroizing;

/// A NIST prime curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Curve {
    /// secp256r1
    P256,
    /// secp384r1
    P384,
    /// secp521r1
    P521,
}

impl Curve {
    /// Length of a field element, in bytes.
    #[must_use]
    pub fn field_len(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}

/// The type of a key, with what its operations and their cost depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum KeyType {
    /// Two-prime RSA with a public exponent.
    Rsa {
        /// Bits of the modulus, 2048 to 8192.
        bits: u16,
    },
    /// A key on a NIST curve: ECDSA and ECDH.
    Ec(Curve),
    /// X25519
    X25519,
    /// Ed25519
    Ed25519,
    /// Finite-field Diffie-Hellman.
    Dh {
        /// Bits of the prime, 2048 to 8192.
        bits: u16,
    },
    /// DSA
    Dsa {
        /// Bits of the prime, 2048 to 3072.
        bits: u16,
    },
}

impl KeyType {
    /// Length of the modulus or prime in bytes; 0 for keys that have none.
    #[must_use]
    pub fn modulus_len(self) -> usize {
        match self {
            Self::Rsa { bits } | Self::Dh { bits } | Self::Dsa { bits } => {
                usize::from(bits).div_ceil(8)
            }
            Self::Ec(_) | Self::X25519 | Self::Ed25519 => 0,
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa { bits } => write!(f, "rsa-{bits}"),
            Self::Ec(Curve::P256) => f.write_str("p-256"),
            Self::Ec(Curve::P384) => f.write_str("p-384"),
            Self::Ec(Curve::P521) => f.write_str("p-521"),
            Self::X25519 => f.write_str("x25519"),
            Self::Ed25519 => f.write_str("ed25519"),
            Self::Dh { bits } => write!(f, "dh-{bits}"),
            Self::Dsa { bits } => write!(f, "dsa-{bits}"),
        }
    }
}

/// Bound on an encoded private key, in bytes. RSA-8192 with its CRT parts takes about 4.7 KiB;
/// DH-8192 with its group about 3 KiB.
pub const MAX_PRIVATE_KEY_LEN: usize = 8 * 1024;

/// Smallest RSA, DH or DSA modulus that is accepted, in bits (SP 800-131A).
pub const MIN_MODULUS_BITS: u16 = 2048;

/// Largest RSA or DH modulus that is accepted, in bits. Above, one operation takes longer than a
/// handshake may.
pub const MAX_MODULUS_BITS: u16 = 8192;

/// A private key as DER `PrivateKeyInfo` (PKCS#8, RFC 5958), zeroised on drop.
///
/// It has no `Debug` of its bytes, no equality and no serialisation.
#[derive(Clone)]
pub struct PrivateKey {
    pkcs8: Zeroizing<Vec<u8>>,
}

impl PrivateKey {
    /// Takes the DER of a `PrivateKeyInfo`. The bytes are not looked at: parsing is the backend's.
    #[must_use]
    pub fn from_pkcs8(pkcs8: Zeroizing<Vec<u8>>) -> Self {
        Self { pkcs8 }
    }

    /// The DER bytes. Whoever calls this holds key material and must not copy it anywhere that is
    /// not zeroised.
    #[must_use]
    pub fn dangerous_pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({} bytes)", self.pkcs8.len())
    }
}

/// What may be told about a key: its type and its public half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The type of the key.
    pub key_type: KeyType,
    /// DER `SubjectPublicKeyInfo` (RFC 5280 section 4.1.2.7).
    pub spki: Vec<u8>,
}
