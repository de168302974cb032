// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The algorithms, one row each. Names are those of the command line, of the tables and of
//! the files.

use SizeRequest::{Decapsulate, Derive, Encapsulate, Hash, Seal, Sign, Verify};

use crate::bench_key::BenchKey;

/// One algorithm, as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeRow {
    pub(crate) name: &'static str,
    pub(crate) request: SizeRequest,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SizeRequest {
    /// Sealing one packet: a new nonce, all bytes, the tag. The name in OpenSSL, bytes of the key.
    Seal(&'static str, usize),
    /// Hashing one block. The name in OpenSSL.
    Hash(&'static str),
    /// A signature over a 32-byte message.
    Sign(BenchKey),
    /// The verification of such a signature.
    Verify(BenchKey),
    /// A key agreement with a static key.
    Derive(BenchKey),
    /// Encapsulation for a public key.
    Encapsulate(BenchKey),
    Decapsulate(BenchKey),
}

impl SizeRequest {
    /// Whether the cost depends on the size of the input.
    pub(crate) fn sized(self) -> bool {
        matches!(self, Self::Seal(..) | Self::Hash(_))
    }
}

const fn row(name: &'static str, request: SizeRequest) -> SizeRow {
    SizeRow { name, request }
}

/// Every row: ciphers of VPNs and TLS, hashes, then public keys.
pub(crate) const ROWS: [SizeRow; 32] = [
    row("aes-128-gcm", Seal("AES-128-GCM", 16)),
    row("aes-256-gcm", Seal("AES-256-GCM", 32)),
    row("chacha20-poly1305", Seal("ChaCha20-Poly1305", 32)),
    row("aes-128-cbc", Seal("AES-128-CBC", 16)),
    row("aes-256-cbc", Seal("AES-256-CBC", 32)),
    row("aes-256-ctr", Seal("AES-256-CTR", 32)),
    row("sha1", Hash("SHA1")),
    row("sha256", Hash("SHA256")),
    row("sha512", Hash("SHA512")),
    row("rsa-2048-sign", Sign(BenchKey::Rsa2048)),
    row("rsa-2048-verify", Verify(BenchKey::Rsa2048)),
    row("rsa-3072-sign", Sign(BenchKey::Rsa3072)),
    row("rsa-3072-verify", Verify(BenchKey::Rsa3072)),
    row("rsa-4096-sign", Sign(BenchKey::Rsa4096)),
    row("rsa-4096-verify", Verify(BenchKey::Rsa4096)),
    row("dsa-2048-sign", Sign(BenchKey::Dsa2048)),
    row("dsa-2048-verify", Verify(BenchKey::Dsa2048)),
    row("ecdsa-p256-sign", Sign(BenchKey::P256)),
    row("ecdsa-p256-verify", Verify(BenchKey::P256)),
    row("ed25519-sign", Sign(BenchKey::Ed25519)),
    row("ed25519-verify", Verify(BenchKey::Ed25519)),
    row("ecdh-p256", Derive(BenchKey::P256)),
    row("x25519", Derive(BenchKey::X25519)),
    row("dh-ffdhe2048", Derive(BenchKey::Dh2048)),
    row("ml-kem-768-encap", Encapsulate(BenchKey::MlKem768)),
    row("ml-kem-768-decap", Decapsulate(BenchKey::MlKem768)),
    row("ml-dsa-44-sign", Sign(BenchKey::MlDsa44)),
    row("ml-dsa-44-verify", Verify(BenchKey::MlDsa44)),
    row("ml-dsa-65-sign", Sign(BenchKey::MlDsa65)),
    row("ml-dsa-65-verify", Verify(BenchKey::MlDsa65)),
    row("ml-dsa-87-sign", Sign(BenchKey::MlDsa87)),
    row("ml-dsa-87-verify", Verify(BenchKey::MlDsa87)),
];

/// The row of that name.
pub(crate) fn find(name: &str) -> Option<&'static SizeRow> {
    ROWS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        for (place, row) in ROWS.iter().enumerate() {
            assert!(ROWS[place + 1..].iter().all(|other| other.name != row.name), "{}", row.name);
            assert_eq!(find(row.name), Some(row));
        }
    }
}
