// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What is measured: one row per algorithm. Names are those of the command line, of the tables and of
//! the files.

use crate::libcrypto::KeyKind;

/// One algorithm, as it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its name.
    pub(crate) name: &'static str,
    /// What is done.
    pub(crate) work: Work,
}

/// What one operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Sealing one packet: a new nonce, all bytes, the tag. The name in OpenSSL, bytes of the key.
    Seal(&'static str, usize),
    /// Hashing one block.
    Hash(&'static str),
    /// A signature over a 32-byte message.
    Sign(KeyKind),
    /// Its verification.
    Verify(KeyKind),
    /// A key agreement with one's own key.
    Derive(KeyKind),
    /// Encapsulation for a public key.
    Encapsulate(KeyKind),
    /// Decapsulation.
    Decapsulate(KeyKind),
}

impl Work {
    /// Whether the cost depends on the size of what is worked on.
    pub(crate) fn sized(self) -> bool {
        matches!(self, Self::Seal(..) | Self::Hash(_))
    }
}

use Work::{Decapsulate, Derive, Encapsulate, Hash, Seal, Sign, Verify};

const fn row(name: &'static str, work: Work) -> Row {
    Row { name, work }
}

/// Every row: ciphers of VPNs and TLS, hashes, then public keys.
pub(crate) const ROWS: [Row; 27] = [
    row("aes-128-gcm", Seal("AES-128-GCM", 16)),
    row("aes-256-gcm", Seal("AES-256-GCM", 32)),
    row("chacha20-poly1305", Seal("ChaCha20-Poly1305", 32)),
    row("aes-128-cbc", Seal("AES-128-CBC", 16)),
    row("aes-256-cbc", Seal("AES-256-CBC", 32)),
    row("sha1", Hash("SHA1")),
    row("sha256", Hash("SHA256")),
    row("sha512", Hash("SHA512")),
    row("rsa-2048-sign", Sign(KeyKind::Rsa(2048))),
    row("rsa-2048-verify", Verify(KeyKind::Rsa(2048))),
    row("rsa-3072-sign", Sign(KeyKind::Rsa(3072))),
    row("rsa-3072-verify", Verify(KeyKind::Rsa(3072))),
    row("rsa-4096-sign", Sign(KeyKind::Rsa(4096))),
    row("rsa-4096-verify", Verify(KeyKind::Rsa(4096))),
    row("dsa-2048-sign", Sign(KeyKind::Dsa)),
    row("dsa-2048-verify", Verify(KeyKind::Dsa)),
    row("ecdsa-p256-sign", Sign(KeyKind::P256)),
    row("ecdsa-p256-verify", Verify(KeyKind::P256)),
    row("ed25519-sign", Sign(KeyKind::Ed25519)),
    row("ed25519-verify", Verify(KeyKind::Ed25519)),
    row("ecdh-p256", Derive(KeyKind::P256)),
    row("x25519", Derive(KeyKind::X25519)),
    row("dh-ffdhe2048", Derive(KeyKind::Dh)),
    row("ml-kem-768-encap", Encapsulate(KeyKind::MlKem768)),
    row("ml-kem-768-decap", Decapsulate(KeyKind::MlKem768)),
    row("ml-dsa-65-sign", Sign(KeyKind::MlDsa65)),
    row("ml-dsa-65-verify", Verify(KeyKind::MlDsa65)),
];

/// The row of that name.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_there_once() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(
                ROWS[at + 1..].iter().all(|other| other.name != row.name),
                "{}",
                row.name
            );
            assert_eq!(find(row.name), Some(row));
        }
    }
}
