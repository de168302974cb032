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

impl Cipher {
    /// Name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
            Self::Aes256CbcSha256 => "AES-256-CBC with HMAC-SHA-256",
        }
    }

    /// Name in `millrace bench sizes`; none where that measures only a part of it.
    pub(crate) fn measured_as(self) -> Option<&'static str> {
        match self {
            Self::Aes128Gcm => Some("aes-128-gcm"),
            Self::Aes256Gcm => Some("aes-256-gcm"),
            Self::ChaCha20Poly1305 => Some("chacha20-poly1305"),
            Self::Aes256CbcSha256 => None,
        }
    }

    /// strongSwan's keyword for ESP and IKE, with the integrity if that is a separate transform.
    pub(crate) fn strongswan(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes128gcm16",
            Self::Aes256Gcm => "aes256gcm16",
            Self::ChaCha20Poly1305 => "chacha20poly1305",
            Self::Aes256CbcSha256 => "aes256-sha256",
        }
    }

    /// VyOS's keyword for IPsec; the integrity is a separate setting.
    pub(crate) fn vyos(self) -> &'static str {
        match self {
            Self::Aes128Gcm => "aes128gcm128",
            Self::Aes256Gcm => "aes256gcm128",
            Self::ChaCha20Poly1305 => "chacha20poly1305",
            Self::Aes256CbcSha256 => "aes256",
        }
    }

    /// OpenVPN's and OpenSSL's name for AEAD; none if only IPsec uses it here.
    pub(crate) fn openvpn(self) -> Option<&'static str> {
        match self {
            Self::Aes128Gcm => Some("AES-128-GCM"),
            Self::Aes256Gcm => Some("AES-256-GCM"),
            Self::ChaCha20Poly1305 => Some("CHACHA20-POLY1305"),
            Self::Aes256CbcSha256 => None,
        }
    }

    /// The end of a TLS 1.2 suite's name in OpenSSL; none if only IPsec uses it here.
    pub(crate) fn tls12(self) -> Option<&'static str> {
        match self {
            Self::Aes128Gcm => Some("AES128-GCM-SHA256"),
            Self::Aes256Gcm => Some("AES256-GCM-SHA384"),
            Self::ChaCha20Poly1305 => Some("CHACHA20-POLY1305"),
            Self::Aes256CbcSha256 => None,
        }
    }

    /// The TLS 1.3 suite; none if only IPsec uses it here.
    pub(crate) fn tls13(self) -> Option<&'static str> {
        match self {
            Self::Aes128Gcm => Some("TLS_AES_128_GCM_SHA256"),
            Self::Aes256Gcm => Some("TLS_AES_256_GCM_SHA384"),
            Self::ChaCha20Poly1305 => Some("TLS_CHACHA20_POLY1305_SHA256"),
            Self::Aes256CbcSha256 => None,
        }
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
        Esp {
            fixed: 8 + vector + check,
            multiple,
        }
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
pub(crate) enum Group {
    /// X25519.
    Curve25519,
    /// NIST P-256.
    P256,
    /// NIST P-384.
    P384,
    /// X25519 together with ML-KEM-768: a later quantum computer cannot decrypt recorded traffic.
    Curve25519MlKem768,
}

impl Group {
    /// Name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Curve25519 => "X25519",
            Self::P256 => "P-256",
            Self::P384 => "P-384",
            Self::Curve25519MlKem768 => "X25519 with ML-KEM-768",
        }
    }

    /// strongSwan's keywords.
    pub(crate) fn strongswan(self) -> &'static str {
        match self {
            Self::Curve25519 => "curve25519",
            Self::P256 => "ecp256",
            Self::P384 => "ecp384",
            Self::Curve25519MlKem768 => "curve25519-ke1_mlkem768",
        }
    }

    /// The number in IKE, which is VyOS's name; none if VyOS lacks the group.
    pub(crate) fn vyos(self) -> Option<u8> {
        match self {
            Self::Curve25519 => Some(31),
            Self::P256 => Some(19),
            Self::P384 => Some(20),
            Self::Curve25519MlKem768 => None,
        }
    }

    /// OpenSSL's name for TLS.
    pub(crate) fn openssl(self) -> &'static str {
        match self {
            Self::Curve25519 => "X25519",
            Self::P256 => "prime256v1",
            Self::P384 => "secp384r1",
            Self::Curve25519MlKem768 => "X25519MLKEM768",
        }
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
    /// Name for people.
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
