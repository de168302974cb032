// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys: their type, their public half, and an opaque secret.
//!
//! One table has each kind of key with its codes, its sizes and its class, so that wire, store and queue agree. Parsing
//! and arithmetic are the backends': a [`PrivateKey`] here is PKCS#8 bytes that are zeroised when dropped.

use std::fmt;

use zeroize::Zeroizing;

use crate::coded_enum;

/// Bound on the name of a key, in bytes. It fits a label, not every host name (253 bytes).
pub const MAX_KEY_NAME_LEN: usize = 128;

/// A NIST prime curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    pub const fn field_len(self) -> usize {
        match self {
            Self::P256 => 32,
            Self::P384 => 48,
            Self::P521 => 66,
        }
    }
}

/// A parameter set of ML-DSA (FIPS 204 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MlDsaSet {
    /// ML-DSA-44: security category 2
    MlDsa44,
    /// ML-DSA-65: security category 3
    MlDsa65,
    /// ML-DSA-87: security category 5
    MlDsa87,
}

impl MlDsaSet {
    /// Length of a signature, in bytes.
    #[must_use]
    pub const fn signature_len(self) -> usize {
        match self {
            Self::MlDsa44 => 2420,
            Self::MlDsa65 => 3309,
            Self::MlDsa87 => 4627,
        }
    }

    /// Length of an encoded public key, in bytes.
    #[must_use]
    pub const fn public_key_len(self) -> usize {
        match self {
            Self::MlDsa44 => 1312,
            Self::MlDsa65 => 1952,
            Self::MlDsa87 => 2592,
        }
    }

    /// Length of an expanded private key, in bytes.
    #[must_use]
    pub const fn private_key_len(self) -> usize {
        match self {
            Self::MlDsa44 => 2560,
            Self::MlDsa65 => 4032,
            Self::MlDsa87 => 4896,
        }
    }
}

/// The type of a key, with its size or curve. Operations and their cost depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// ML-DSA
    MlDsa(MlDsaSet),
}

coded_enum! {
    /// A [`KeyType`] without its size.
    pub enum KeyKind {
        /// [`KeyType::Rsa`]
        Rsa = 0x01 "rsa",
        /// [`Curve::P256`]
        P256 = 0x02 "p-256",
        /// [`Curve::P384`]
        P384 = 0x03 "p-384",
        /// [`Curve::P521`]
        P521 = 0x04 "p-521",
        /// [`KeyType::X25519`]
        X25519 = 0x05 "x25519",
        /// [`KeyType::Ed25519`]
        Ed25519 = 0x06 "ed25519",
        /// [`KeyType::Dh`]
        Dh = 0x07 "dh",
        /// [`KeyType::Dsa`]
        Dsa = 0x08 "dsa",
        /// [`MlDsaSet::MlDsa44`]
        MlDsa44 = 0x09 "ml-dsa-44",
        /// [`MlDsaSet::MlDsa65`]
        MlDsa65 = 0x0a "ml-dsa-65",
        /// [`MlDsaSet::MlDsa87`]
        MlDsa87 = 0x0b "ml-dsa-87",
    }
}

/// The other columns of the table that [`KeyKind`] begins.
struct KeyKindRow {
    /// Code and size in key files. They can differ from those on the wire.
    stored: (u8, u16),
    /// Smallest and largest size in bits, where the kind has sizes.
    sizes: Option<(u16, u16)>,
    /// Largest sizes of the classes `Fast` and `Medium`, in bits; larger keys are `Slow`.
    classes: (u16, u16),
}

const MODULUS: Option<(u16, u16)> = Some((MIN_MODULUS_BITS, MAX_MODULUS_BITS));
const FAST: (u16, u16) = (u16::MAX, u16::MAX);
const MEDIUM: (u16, u16) = (0, u16::MAX);
const SLOW: (u16, u16) = (0, 0);

impl KeyKind {
    #[rustfmt::skip]
    const fn row(self) -> KeyKindRow {
        match self {
            Self::Rsa     => KeyKindRow { stored: (1, 0),   sizes: MODULUS, classes: (0, 3072) },
            Self::P256    => KeyKindRow { stored: (2, 256), sizes: None,    classes: FAST },
            Self::P384    => KeyKindRow { stored: (2, 384), sizes: None,    classes: MEDIUM },
            Self::P521    => KeyKindRow { stored: (2, 521), sizes: None,    classes: MEDIUM },
            Self::X25519  => KeyKindRow { stored: (3, 0),   sizes: None,    classes: FAST },
            Self::Ed25519 => KeyKindRow { stored: (4, 0),   sizes: None,    classes: FAST },
            Self::Dh      => KeyKindRow { stored: (5, 0),   sizes: MODULUS, classes: SLOW },
            Self::Dsa     => KeyKindRow { stored: (6, 0),   sizes: Some((MIN_MODULUS_BITS, MAX_DSA_BITS)), classes: MEDIUM },
            Self::MlDsa44 => KeyKindRow { stored: (7, 44),  sizes: None,    classes: MEDIUM },
            Self::MlDsa65 => KeyKindRow { stored: (7, 65),  sizes: None,    classes: MEDIUM },
            Self::MlDsa87 => KeyKindRow { stored: (7, 87),  sizes: None,    classes: MEDIUM },
        }
    }

    /// The key type of this kind and size; `None` for a size out of range. A kind without sizes has size 0.
    #[must_use]
    pub const fn with_bits(self, bits: u16) -> Option<KeyType> {
        let (smallest, largest) = match self.row().sizes {
            Some(sizes) => sizes,
            None => (0, 0),
        };
        if bits < smallest || bits > largest {
            return None;
        }
        Some(match self {
            Self::Rsa => KeyType::Rsa { bits },
            Self::P256 => KeyType::Ec(Curve::P256),
            Self::P384 => KeyType::Ec(Curve::P384),
            Self::P521 => KeyType::Ec(Curve::P521),
            Self::X25519 => KeyType::X25519,
            Self::Ed25519 => KeyType::Ed25519,
            Self::Dh => KeyType::Dh { bits },
            Self::Dsa => KeyType::Dsa { bits },
            Self::MlDsa44 => KeyType::MlDsa(MlDsaSet::MlDsa44),
            Self::MlDsa65 => KeyType::MlDsa(MlDsaSet::MlDsa65),
            Self::MlDsa87 => KeyType::MlDsa(MlDsaSet::MlDsa87),
        })
    }

    /// Smallest and largest size, in bits; `None` for a kind without sizes.
    #[must_use]
    pub const fn sizes(self) -> Option<(u16, u16)> {
        self.row().sizes
    }

    /// The smallest and the largest type of this kind. They are equal for a kind without sizes.
    #[must_use]
    pub fn extremes(self) -> [KeyType; 2] {
        let (smallest, largest) = self.row().sizes.unwrap_or((0, 0));
        [smallest, largest].map(|bits| self.with_bits(bits).expect("the bounds are sizes"))
    }

    /// The class of every operation with a key of this kind and size.
    #[must_use]
    pub(crate) const fn class(self, bits: u16) -> Class {
        let (fast, medium) = self.row().classes;
        if bits <= fast && fast > 0 {
            Class::Fast
        } else if bits <= medium && medium > 0 {
            Class::Medium
        } else {
            Class::Slow
        }
    }
}

impl KeyType {
    /// The kind of this type.
    #[must_use]
    pub const fn kind(self) -> KeyKind {
        match self {
            Self::Rsa { .. } => KeyKind::Rsa,
            Self::Ec(Curve::P256) => KeyKind::P256,
            Self::Ec(Curve::P384) => KeyKind::P384,
            Self::Ec(Curve::P521) => KeyKind::P521,
            Self::X25519 => KeyKind::X25519,
            Self::Ed25519 => KeyKind::Ed25519,
            Self::Dh { .. } => KeyKind::Dh,
            Self::Dsa { .. } => KeyKind::Dsa,
            Self::MlDsa(MlDsaSet::MlDsa44) => KeyKind::MlDsa44,
            Self::MlDsa(MlDsaSet::MlDsa65) => KeyKind::MlDsa65,
            Self::MlDsa(MlDsaSet::MlDsa87) => KeyKind::MlDsa87,
        }
    }

    /// Bits of the modulus or prime; 0 for keys that have none.
    #[must_use]
    pub const fn bits(self) -> u16 {
        match self {
            Self::Rsa { bits } | Self::Dh { bits } | Self::Dsa { bits } => bits,
            Self::Ec(_) | Self::X25519 | Self::Ed25519 | Self::MlDsa(_) => 0,
        }
    }

    /// Length of the modulus or prime in bytes; 0 for keys that have none.
    #[must_use]
    pub const fn modulus_len(self) -> usize {
        (self.bits() as usize).div_ceil(8)
    }

    /// Code and size in key files.
    #[must_use]
    pub const fn stored(self) -> (u8, u16) {
        let (code, size) = self.kind().row().stored;
        (code, if self.bits() > 0 { self.bits() } else { size })
    }

    /// The key type with this code and size in key files; the inverse of [`Self::stored`].
    #[must_use]
    pub fn from_stored(code: u8, size: u16) -> Option<Self> {
        KeyKind::ALL.iter().find_map(|kind| {
            let key_type = kind.with_bits(if kind.sizes().is_some() { size } else { 0 })?;
            (key_type.stored() == (code, size)).then_some(key_type)
        })
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind().name(), self.bits()) {
            (name, 0) => f.write_str(name),
            (name, bits) => write!(f, "{name}-{bits}"),
        }
    }
}

/// Bound on an encoded private key, in bytes. RSA-8192 with its CRT parts takes about 4.7 KiB;
/// DH-8192 with its group about 3 KiB.
pub const MAX_PRIVATE_KEY_LEN: usize = 8 * 1024;

/// Smallest RSA, DH or DSA modulus that is accepted, in bits (SP 800-131A).
pub const MIN_MODULUS_BITS: u16 = 2048;

/// Largest RSA or DH modulus that is accepted, in bits. Above it, one operation takes longer than a handshake
/// may take.
pub const MAX_MODULUS_BITS: u16 = 8192;

/// Largest DSA prime that is accepted, in bits (FIPS 186-4 section 4.2).
pub const MAX_DSA_BITS: u16 = 3072;

/// A private key as DER `PrivateKeyInfo` (PKCS#8, RFC 5958), zeroised on drop.
///
/// The type has no `Debug` of its bytes, no equality and no serialisation.
#[derive(Clone)]
pub struct PrivateKey {
    pkcs8: Zeroizing<Vec<u8>>,
}

impl PrivateKey {
    /// Wraps the DER of a `PrivateKeyInfo`. It does not check the bytes; the backend parses them.
    #[must_use]
    pub fn from_pkcs8(pkcs8: Zeroizing<Vec<u8>>) -> Self {
        Self { pkcs8 }
    }

    /// The DER bytes. They are key material: the caller must not copy them to memory that is not zeroised.
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

/// The public information about a key: its type and its public half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// As the backend found it in the key.
    pub key_type: KeyType,
    /// DER `SubjectPublicKeyInfo` (RFC 5280 section 4.1.2.7).
    pub spki: Vec<u8>,
}

/// The cost class of an operation. Jobs of one class share a queue and workers, so that a slow class never
/// blocks a fast one.
///
/// The limits are times on one core of a current server: below about 100 µs, up to about 1.5 ms, and above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// P-256, X25519, Ed25519: tens of microseconds.
    Fast,
    /// RSA up to 3072 bits, P-384, P-521, DSA, ML-DSA: hundreds of microseconds. The rejection loop of ML-DSA
    /// sometimes takes many times its mean.
    Medium,
    /// RSA above 3072 bits, finite-field Diffie-Hellman: milliseconds.
    Slow,
}

impl Class {
    /// Every class, fastest first.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Medium, Self::Slow];

    /// The class of every operation with a key of this type: see the column `classes` of `KeyKindRow`.
    #[must_use]
    pub fn of(key_type: KeyType) -> Self {
        key_type.kind().class(key_type.bits())
    }

    /// Index in [`Self::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Name in metrics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Medium => "medium",
            Self::Slow => "slow",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::OperationKind;

    #[test]
    fn every_key_kind_has_operations_and_codes_that_round_trip() {
        let mut stored = std::collections::HashSet::new();
        for kind in KeyKind::ALL.iter().copied() {
            assert!(OperationKind::of(kind).count() > 0, "{} has no operation", kind.name());
            for key_type in kind.extremes() {
                assert_eq!(key_type.kind(), kind);
                assert_eq!(kind.with_bits(key_type.bits()), Some(key_type));
                let (code, size) = key_type.stored();
                assert_eq!(KeyType::from_stored(code, size), Some(key_type));
            }
            stored.insert(kind.extremes()[0].stored());
            assert_eq!(kind.with_bits(u16::MAX), None);
            assert_eq!(kind.with_bits(1), None);
        }
        assert_eq!(stored.len(), KeyKind::ALL.len(), "two kinds share a code in key files");
        assert_eq!(KeyType::from_stored(2, 0), None);
        assert_eq!(KeyType::from_stored(3, 1), None);
    }

    #[test]
    fn class_depends_on_kind_and_size() {
        for (key_type, class) in [
            (KeyType::Ec(Curve::P256), Class::Fast),
            (KeyType::X25519, Class::Fast),
            (KeyType::Ed25519, Class::Fast),
            (KeyType::Ec(Curve::P384), Class::Medium),
            (KeyType::Rsa { bits: 3072 }, Class::Medium),
            (KeyType::Dsa { bits: 3072 }, Class::Medium),
            (KeyType::MlDsa(MlDsaSet::MlDsa44), Class::Medium),
            (KeyType::Rsa { bits: 3073 }, Class::Slow),
            (KeyType::Dh { bits: 2048 }, Class::Slow),
        ] {
            assert_eq!(Class::of(key_type), class, "{key_type}");
        }
    }

    #[test]
    fn key_type_display_has_the_size() {
        assert_eq!(KeyType::Rsa { bits: 2048 }.to_string(), "rsa-2048");
        assert_eq!(KeyType::Ec(Curve::P521).to_string(), "p-521");
        assert_eq!(KeyType::Dh { bits: 8192 }.to_string(), "dh-8192");
    }
}
