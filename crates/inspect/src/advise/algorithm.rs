// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! All algorithms that may be recommended, with their name in each format.
//!
//! Forbidden algorithms (3DES, Blowfish, RC4, MD5, SHA-1, groups below 2048 bits, ciphers without
//! authentication) are absent, so no rule can choose them.

/// A cipher with its integrity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cipher {
    /// AES with a key of 128 bits, authenticated by GHASH.
    Aes128Gcm,
    /// AES with a key of 256 bits, authenticated by GHASH.
    Aes256Gcm,
    /// ChaCha20 with a key of 256 bits, authenticated by Poly1305.
    ChaCha20Poly1305,
    /// AES in CBC mode with a key of 256 bits, authenticated by HMAC-SHA-256 (IPsec only).
    Aes256CbcSha256,
}

pub(crate) struct CipherNames {
    /// The displayed name. In capitals it is OpenVPN's, in small letters that of `millrace bench sizes`.
    pub(crate) name: &'static str,
    /// strongSwan's keyword for ESP and IKE, with the integrity if that is a separate transform.
    pub(crate) strongswan: &'static str,
    /// VyOS's keyword for IPsec; the integrity is a separate setting.
    pub(crate) vyos: &'static str,
    /// The end of a TLS 1.2 suite's name in OpenSSL, and the TLS 1.3 suite; none if only IPsec uses it here.
    pub(crate) tls: Option<(&'static str, &'static str)>,
}

impl Cipher {
    /// Names of the cipher in every format.
    #[rustfmt::skip]
    pub(crate) const fn names(self) -> CipherNames {
        let (name, strongswan, vyos, tls) = match self {
            Self::Aes128Gcm => ("AES-128-GCM", "aes128gcm16", "aes128gcm128",
                Some(("AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"))),
            Self::Aes256Gcm => ("AES-256-GCM", "aes256gcm16", "aes256gcm128",
                Some(("AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384"))),
            Self::ChaCha20Poly1305 => ("ChaCha20-Poly1305", "chacha20poly1305", "chacha20poly1305",
                Some(("CHACHA20-POLY1305", "TLS_CHACHA20_POLY1305_SHA256"))),
            Self::Aes256CbcSha256 => ("AES-256-CBC with HMAC-SHA-256", "aes256-sha256", "aes256", None),
        };
        CipherNames { name, strongswan, vyos, tls }
    }

    /// Whether the cipher includes integrity.
    pub(crate) fn is_aead(self) -> bool {
        self != Self::Aes256CbcSha256
    }

    /// Bytes that ESP in tunnel mode adds to a packet without outer addresses and padding: header,
    /// initialisation vector, check value; and the multiple to which it pads.
    ///
    /// Source: RFC 4303, 4106, 7634, 3602, 4868.
    pub(crate) fn esp(self) -> Esp {
        let (vector, check, multiple) = match self {
            Self::Aes128Gcm | Self::Aes256Gcm | Self::ChaCha20Poly1305 => (8, 16, 4),
            Self::Aes256CbcSha256 => (16, 16, 16),
        };
        Esp { fixed: 8 + vector + check, multiple }
    }
}

/// Bytes that ESP adds to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Esp {
    /// Header, initialisation vector and check value.
    pub(crate) fixed: u32,
    /// The encrypted part is padded to a multiple of this.
    pub(crate) multiple: u32,
}

/// A key exchange group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeGroup {
    /// X25519.
    Curve25519,
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
    /// X25519 together with ML-KEM-768: a later quantum computer cannot decrypt recorded traffic.
    Curve25519MlKem768,
}

pub(crate) struct GroupNames {
    pub(crate) name: &'static str,
    /// strongSwan's keywords.
    pub(crate) strongswan: &'static str,
    /// OpenSSL's name for TLS.
    pub(crate) openssl: &'static str,
    /// The number in IKE, which is VyOS's name; none if VyOS lacks the group.
    pub(crate) vyos: Option<u8>,
}

impl ExchangeGroup {
    /// Names of the group in every format.
    #[rustfmt::skip]
    pub(crate) const fn names(self) -> GroupNames {
        let (name, strongswan, openssl, vyos) = match self {
            Self::Curve25519 => ("X25519", "curve25519", "X25519", Some(31)),
            Self::P256 => ("P-256", "ecp256", "prime256v1", Some(19)),
            Self::P384 => ("P-384", "ecp384", "secp384r1", Some(20)),
            Self::Curve25519MlKem768 => ("X25519 with ML-KEM-768", "curve25519-ke1_mlkem768", "X25519MLKEM768", None),
        };
        GroupNames { name, strongswan, openssl, vyos }
    }
}

/// A hash: the pseudo-random function of IKE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prf {
    /// HMAC-SHA-256.
    Sha256,
    /// HMAC-SHA-384.
    Sha384,
}

impl Prf {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "HMAC-SHA-256",
            Self::Sha384 => "HMAC-SHA-384",
        }
    }

    /// Keyword of strongSwan and VyOS, after `prf` or as the name of a hash.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
        }
    }
}
