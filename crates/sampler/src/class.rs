// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Classes of work that CPU time is spent on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr, VariantArray};

/// A class of work that CPU time is spent on. Tables use this order and these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Serialize, Deserialize, JsonSchema, Display, IntoStaticStr, VariantArray)]
#[serde(rename_all = "kebab-case")]
#[rustfmt::skip]
pub enum SymbolClass {
    /// RSA with a private key: signatures, and decryption in TLS 1.2's RSA key exchange.
    #[strum(to_string = "RSA, private key")] RsaPrivate,
    /// Signatures with an elliptic-curve key: ECDSA, Ed25519.
    #[strum(to_string = "EC signatures")] EcPrivate,
    /// ML-DSA with a private key, without the hashing in it, which counts as hashing.
    #[strum(to_string = "ML-DSA signatures")] MlDsaPrivate,
    /// Key agreement with keys made for one connection: ECDH, X25519. They never leave the process.
    #[strum(to_string = "ECDH, X25519")] KeyAgreement,
    /// Other public-key operations: verification.
    #[strum(to_string = "other public-key")] OtherPublicKey,
    /// Big-number functions shared by several of the above, without a calibration to divide them.
    #[strum(to_string = "shared big numbers")] BigNumbers,
    /// AES in any mode.
    #[strum(to_string = "AES")] Aes,
    /// ChaCha20 and Poly1305.
    #[strum(to_string = "ChaCha20-Poly1305")] ChaCha,
    /// Hash functions, HMAC and key derivation.
    #[strum(to_string = "hashes, key derivation")] Hash,
    /// Random numbers.
    #[strum(to_string = "random numbers")] Random,
    /// libcrypto around the operations: parsing, ASN.1, fetching and calling implementations.
    #[strum(to_string = "libcrypto overhead")] Overhead,
    /// libcrypto, otherwise unknown.
    #[strum(to_string = "libcrypto, unclassified")] CryptoUnknown,
    /// libssl: the protocol.
    #[strum(to_string = "libssl")] Tls,
    /// Millrace's own provider and preload library.
    #[strum(to_string = "Millrace's edge")] Edge,
    /// The C library: memory, copies, locks, the user side of system calls.
    #[strum(to_string = "C library")] Libc,
    /// The program, and other libraries.
    #[strum(to_string = "application")] Application,
    /// The kernel: sockets, scheduling, files.
    #[strum(to_string = "kernel")] Kernel,
    /// Addresses outside all files.
    #[strum(to_string = "unknown")] Unknown,
}

impl SymbolClass {
    /// All classes, in table order.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Whether a pool can take it over: operations with a long-lived private key.
    #[must_use]
    pub fn is_private_key(self) -> bool {
        matches!(self, Self::RsaPrivate | Self::EcPrivate | Self::MlDsaPrivate)
    }

    /// Whether the class is bulk encryption, which inline accelerators and kTLS can take over.
    #[must_use]
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Aes | Self::ChaCha)
    }

    /// Whether the purpose of the class's functions is unknown.
    #[must_use]
    pub fn is_unclassified(self) -> bool {
        matches!(self, Self::CryptoUnknown | Self::Unknown)
    }

    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::SymbolClass;

    #[test]
    fn all_classes_are_listed_once_in_order() {
        assert!(SymbolClass::ALL.is_sorted());
        let mut names: Vec<_> = SymbolClass::ALL.iter().map(|class| class.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SymbolClass::ALL.len());
    }
}
