// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The types of keys that any benchmark uses, under the one name that options, tables and files have.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::{Display, EnumString, VariantArray, VariantNames};

/// A type of key. Each benchmark offers those it can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Display, EnumString, VariantArray, VariantNames)]
#[rustfmt::skip]
pub(crate) enum BenchKey {
    /// RSA with 2048 bits.
    #[strum(serialize = "rsa-2048")] Rsa2048,
    /// RSA with 3072 bits.
    #[strum(serialize = "rsa-3072")] Rsa3072,
    /// RSA with 4096 bits.
    #[strum(serialize = "rsa-4096")] Rsa4096,
    /// ECDSA and ECDH on NIST P-256.
    #[strum(serialize = "p-256")] P256,
    /// ECDSA and ECDH on NIST P-384.
    #[strum(serialize = "p-384")] P384,
    /// ECDSA on NIST P-521, in handshakes.
    #[strum(serialize = "p-521")] P521,
    /// X25519.
    #[strum(serialize = "x25519")] X25519,
    /// Ed25519.
    #[strum(serialize = "ed25519")] Ed25519,
    /// Finite-field Diffie-Hellman in the group ffdhe2048.
    #[strum(serialize = "dh-2048")] Dh2048,
    /// DSA with 2048 bits and a 256-bit group.
    #[strum(serialize = "dsa-2048")] Dsa2048,
    /// ML-KEM-768; OpenSSL has it since 3.5.
    #[strum(serialize = "ml-kem-768")] MlKem768,
    /// ML-DSA-44; OpenSSL has it since 3.5.
    #[strum(serialize = "ml-dsa-44")] MlDsa44,
    /// ML-DSA-65; OpenSSL has it since 3.5.
    #[strum(serialize = "ml-dsa-65")] MlDsa65,
    /// ML-DSA-87; OpenSSL has it since 3.5.
    #[strum(serialize = "ml-dsa-87")] MlDsa87,
}

impl Serialize for BenchKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BenchKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}
