// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Classes of work that CPU time is spent on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A class of work that CPU time is spent on. Tables use this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// RSA with a private key: signatures, and decryption in TLS 1.2's RSA key exchange.
    RsaPrivate,
    /// Signatures with an elliptic-curve key: ECDSA, Ed25519.
    EcPrivate,
    /// ML-DSA with a private key, without the hashing in it, which counts as hashing.
    MlDsaPrivate,
    /// Key agreement with keys made for one connection: ECDH, X25519. They never leave the process.
    KeyAgreement,
    /// Other public-key operations: verification.
    OtherPublicKey,
    /// Big-number functions shared by several of the above, without a calibration to divide them.
    BigNumbers,
    /// AES in any mode.
    Aes,
    /// ChaCha20 and Poly1305.
    ChaCha,
    /// Hash functions, HMAC and key derivation.
    Hash,
    /// Random numbers.
    Random,
    /// libcrypto around the operations: parsing, ASN.1, fetching and calling implementations.
    Overhead,
    /// libcrypto, otherwise unknown.
    CryptoUnknown,
    /// libssl: the protocol.
    Tls,
    /// Millrace's own provider and preload library.
    Edge,
    /// The C library: memory, copies, locks, the user side of system calls.
    Libc,
    /// The program, and other libraries.
    Application,
    /// The kernel: sockets, scheduling, files.
    Kernel,
    /// Addresses outside all files.
    Unknown,
}

impl Class {
    /// All classes, in table order.
    pub const ALL: [Self; 18] = [
        Self::RsaPrivate,
        Self::EcPrivate,
        Self::MlDsaPrivate,
        Self::KeyAgreement,
        Self::OtherPublicKey,
        Self::BigNumbers,
        Self::Aes,
        Self::ChaCha,
        Self::Hash,
        Self::Random,
        Self::Overhead,
        Self::CryptoUnknown,
        Self::Tls,
        Self::Edge,
        Self::Libc,
        Self::Application,
        Self::Kernel,
        Self::Unknown,
    ];

    /// Whether a pool can take it over: operations with a long-lived private key.
    #[must_use]
    pub fn is_private_key(self) -> bool {
        matches!(
            self,
            Self::RsaPrivate | Self::EcPrivate | Self::MlDsaPrivate
        )
    }

    /// Whether it is bulk encryption, which inline accelerators and kTLS can take over.
    #[must_use]
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Aes | Self::ChaCha)
    }

    /// Whether its purpose is unknown.
    #[must_use]
    pub fn is_unclassified(self) -> bool {
        matches!(self, Self::CryptoUnknown | Self::Unknown)
    }

    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RsaPrivate => "RSA, private key",
            Self::EcPrivate => "EC signatures",
            Self::MlDsaPrivate => "ML-DSA signatures",
            Self::KeyAgreement => "ECDH, X25519",
            Self::OtherPublicKey => "other public-key",
            Self::BigNumbers => "shared big numbers",
            Self::Aes => "AES",
            Self::ChaCha => "ChaCha20-Poly1305",
            Self::Hash => "hashes, key derivation",
            Self::Random => "random numbers",
            Self::Overhead => "libcrypto overhead",
            Self::CryptoUnknown => "libcrypto, unclassified",
            Self::Tls => "libssl",
            Self::Edge => "Millrace's edge",
            Self::Libc => "C library",
            Self::Application => "application",
            Self::Kernel => "kernel",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Class;

    #[test]
    fn all_classes_are_listed_once_in_order() {
        assert!(Class::ALL.is_sorted());
        let mut names: Vec<_> = Class::ALL.iter().map(|class| class.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Class::ALL.len());
    }
}
