// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What CPU time is spent on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What CPU time is spent on. In tables the order is this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Class {
    /// RSA with a private key: signatures, and decryption in TLS 1.2's RSA key exchange.
    RsaPrivate,
    /// Signatures with an elliptic-curve key: ECDSA, Ed25519.
    EcPrivate,
    /// ML-DSA with a private key, without the hashing in it, which counts as hashing.
    MlDsaPrivate,
    /// Key agreement with keys made for one connection: ECDH, X25519. They never leave the process.
    KeyAgreement,
    /// Other public-key work: verification.
    OtherPublicKey,
    /// Big numbers that several of the above share, where there was no calibration to divide them.
    BigNumbers,
    /// AES in any mode.
    Aes,
    /// ChaCha20 and Poly1305.
    ChaCha,
    /// Hash functions, HMAC and key derivation.
    Hash,
    /// Random numbers.
    Random,
    /// libcrypto around the operations: parsing, ASN.1, fetching and calling of implementations.
    Overhead,
    /// libcrypto, but nothing says what.
    CryptoUnknown,
    /// libssl: the protocol.
    Tls,
    /// Millrace's own provider and preload library.
    Edge,
    /// The C library: memory, copies, locks, system calls' user side.
    Libc,
    /// The program, and other libraries.
    Application,
    /// The kernel: sockets, scheduling, files.
    Kernel,
    /// Addresses that belong to no file.
    Unknown,
}

impl Class {
    /// All, in their order.
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

    /// Whether a pool can take it: the operations with a long-lived private key.
    #[must_use]
    pub fn is_private_key(self) -> bool {
        matches!(
            self,
            Self::RsaPrivate | Self::EcPrivate | Self::MlDsaPrivate
        )
    }

    /// Whether it is work on the data itself, which inline accelerators and kTLS take.
    #[must_use]
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Aes | Self::ChaCha)
    }

    /// Whether nothing says what it is.
    #[must_use]
    pub fn is_unclassified(self) -> bool {
        matches!(self, Self::CryptoUnknown | Self::Unknown)
    }

    /// As tables say it.
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
