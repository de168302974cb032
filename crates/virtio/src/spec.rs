// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The numbers of the virtio-crypto specification (virtio 1.3, section 5.9), and the device's configuration space.
//!
//! Wherever Linux differs from the specification, the device follows the specification and the row says so.

use millrace_operation::{Curve, Hash};

/// The virtio device number of a crypto device.
pub const DEVICE_ID: u16 = 20;

/// Length of the header of a control request, in bytes.
pub(crate) const CONTROL_HEADER_LEN: usize = 16;

/// Length of the fixed fields of every control request without `VIRTIO_CRYPTO_F_REVISION_1`.
pub(crate) const CONTROL_LEGACY_LEN: usize = 56;

/// Length of the header of a data request, in bytes.
pub(crate) const DATA_HEADER_LEN: usize = 24;

/// Length of the fixed fields of every data request without `VIRTIO_CRYPTO_F_REVISION_1`.
pub(crate) const DATA_LEGACY_LEN: usize = 48;

/// Low byte of the opcode that creates a session of any service but [`CryptoService::Akcipher`].
pub(crate) const CREATE_SESSION: u8 = 2;

/// Low byte of the opcode that destroys a session of any service but [`CryptoService::Akcipher`].
pub(crate) const DESTROY_SESSION: u8 = 3;

/// Low byte of `VIRTIO_CRYPTO_AKCIPHER_CREATE_SESSION`.
pub(crate) const AKCIPHER_CREATE_SESSION: u8 = 4;

/// Low byte of `VIRTIO_CRYPTO_AKCIPHER_DESTROY_SESSION`.
pub(crate) const AKCIPHER_DESTROY_SESSION: u8 = 5;

/// `VIRTIO_CRYPTO_FLAG_SESSION_MODE`: the request names a session.
pub(crate) const FLAG_SESSION_MODE: u32 = 1;

/// The status of a request. There is no "busy": a device absorbs overload by queueing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The result is in the guest's buffers.
    Ok = 0,
    /// Any failure without a status of its own.
    Err = 1,
    /// An AEAD tag does not verify.
    BadMessage = 2,
    /// An algorithm or operation that the device does not have.
    NotSupported = 3,
    /// No such session on this device.
    InvalidSession = 4,
    /// No room for another session. Only with `VIRTIO_CRYPTO_F_REVISION_1`.
    NoSpace = 5,
    /// A signature does not verify.
    KeyRejected = 6,
}

/// The services, which are also the high bytes of opcodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CryptoService {
    /// Symmetric ciphers, alone or chained with a hash or MAC.
    Cipher = 0,
    /// Hashes without a key.
    Hash = 1,
    /// Message authentication codes.
    Mac = 2,
    /// Authenticated encryption.
    Aead = 3,
    /// Public-key operations.
    Akcipher = 4,
}

impl CryptoService {
    /// In the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Cipher, Self::Hash, Self::Mac, Self::Aead, Self::Akcipher];

    pub(crate) fn of_opcode(opcode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|service| u32::from(*service as u8) == opcode >> 8)
    }
}

/// Feature bits of the device class.
pub mod feature {
    use super::CryptoService;

    /// `VIRTIO_CRYPTO_F_REVISION_1`: fixed fields have their own length, and `flag` has a meaning.
    pub const REVISION_1: u64 = 1 << 0;

    /// The feature with which requests of a service may bring their own parameters instead of a session.
    #[must_use]
    pub const fn stateless(service: CryptoService) -> u64 {
        1 << (1 + service as u8)
    }

    /// The features of the device class that this device offers. Linux acknowledges none of them.
    pub const OFFERED: u64 = REVISION_1
        | stateless(CryptoService::Cipher)
        | stateless(CryptoService::Hash)
        | stateless(CryptoService::Mac)
        | stateless(CryptoService::Aead)
        | stateless(CryptoService::Akcipher);
}

/// Direction of a cipher or AEAD: the session states it, and the opcode of each request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub enum Direction {
    Encrypt,
    Decrypt,
}

impl Direction {
    /// The direction that `VIRTIO_CRYPTO_OP_ENCRYPT` or `VIRTIO_CRYPTO_OP_DECRYPT` selects.
    pub(crate) fn of_session(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Encrypt),
            2 => Some(Self::Decrypt),
            _ => None,
        }
    }
}

/// Declares an enum of the algorithms of one service that this device has, with their codes.
macro_rules! algorithms {
    ($(#[$doc:meta])* $name:ident { $($(#[$row:meta])* $variant:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "the names of the algorithms")]
        pub enum $name {
            $($(#[$row])* $variant = $code,)+
        }

        impl $name {
            /// Every algorithm of this service that the device has.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// `None` for a code of another algorithm of the service.
            #[must_use]
            pub fn from_code(code: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| u32::from(*known as u8) == code)
            }

            /// One bit per algorithm, as in the configuration space.
            #[must_use]
            pub fn mask() -> u64 {
                Self::ALL.iter().fold(0, |mask, known| mask | 1 << (*known as u8))
            }
        }
    };
}

algorithms! {
    /// Symmetric ciphers (section 5.9.4.1). Key sizes are those that AWS-LC has.
    CipherAlgorithm {
        /// AES in ECB mode: 128, 192 and 256 bits.
        AesEcb = 2,
        /// AES in CBC mode: 128, 192 and 256 bits, whole blocks.
        AesCbc = 3,
        /// AES in CTR mode: 128, 192 and 256 bits.
        AesCtr = 4,
        /// AES in XTS mode with two keys of 256 bits. AWS-LC has no XTS with two keys of 128 bits.
        AesXts = 13,
    }
}

algorithms! {
    /// Hashes (section 5.9.4.2).
    HashAlgorithm {
        Sha1 = 2,
        Sha224 = 3,
        Sha256 = 4,
        Sha384 = 5,
        Sha512 = 6,
        Sha3_224 = 7,
        Sha3_256 = 8,
        Sha3_384 = 9,
        Sha3_512 = 10,
    }
}

algorithms! {
    /// Message authentication codes (section 5.9.4.3).
    MacAlgorithm {
        HmacSha1 = 2,
        HmacSha224 = 3,
        HmacSha256 = 4,
        HmacSha384 = 5,
        HmacSha512 = 6,
        /// CMAC with AES of 128 or 256 bits.
        CmacAes = 26,
    }
}

algorithms! {
    /// Authenticated encryption (section 5.9.4.4).
    AeadAlgorithm {
        /// AES-GCM with a nonce of 12 bytes.
        Gcm = 1,
        /// AES-CCM with a nonce of 7 to 13 bytes.
        Ccm = 2,
        /// ChaCha20-Poly1305 (RFC 8439).
        ChaCha20Poly1305 = 3,
    }
}

algorithms! {
    /// Public-key algorithms. Linux's header gives ECDSA 3 and DSA 2, which no driver uses; the specification's
    /// number holds here.
    AkcipherAlgorithm {
        /// RSA of 512 to 8192 bits.
        Rsa = 1,
        /// ECDSA on P-256, P-384 and P-521.
        Ecdsa = 2,
    }
}

impl HashAlgorithm {
    /// Length of a digest, in bytes.
    #[must_use]
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha224 | Self::Sha3_224 => 28,
            Self::Sha256 | Self::Sha3_256 => 32,
            Self::Sha384 | Self::Sha3_384 => 48,
            Self::Sha512 | Self::Sha3_512 => 64,
        }
    }
}

impl MacAlgorithm {
    /// Length of a full MAC, in bytes.
    #[must_use]
    pub const fn mac_len(self) -> usize {
        match self {
            Self::HmacSha1 => 20,
            Self::HmacSha224 => 28,
            Self::HmacSha256 => 32,
            Self::HmacSha384 => 48,
            Self::HmacSha512 => 64,
            Self::CmacAes => 16,
        }
    }
}

/// How operations with an RSA session pad their input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RsaPadding {
    /// None: numbers below the modulus, left-padded with zeros.
    Raw,
    /// PKCS#1 v1.5; the hash of signatures, if the session names one.
    Pkcs1(Option<Hash>),
}

impl RsaPadding {
    /// The padding that the `padding_algo` and `hash_algo` of a session select.
    pub(crate) fn of_session(padding: u32, hash: u32) -> Option<Self> {
        match (padding, hash) {
            (0, _) => Some(Self::Raw),
            (1, 0) => Some(Self::Pkcs1(None)),
            (1, 5) => Some(Self::Pkcs1(Some(Hash::Sha1))),
            (1, 6) => Some(Self::Pkcs1(Some(Hash::Sha256))),
            (1, 7) => Some(Self::Pkcs1(Some(Hash::Sha384))),
            (1, 8) => Some(Self::Pkcs1(Some(Hash::Sha512))),
            (1, 9) => Some(Self::Pkcs1(Some(Hash::Sha224))),
            _ => None,
        }
    }
}

/// The curve with this `curve_id`, if the device has it.
pub(crate) fn curve(id: u32) -> Option<Curve> {
    match id {
        3 => Some(Curve::P256),
        4 => Some(Curve::P384),
        5 => Some(Curve::P521),
        _ => None,
    }
}

/// Length of the configuration space, in bytes.
pub const CONFIG_LEN: usize = 56;

/// `VIRTIO_CRYPTO_S_HW_READY` in the status. Linux breaks the device if any other bit is set.
const HW_READY: u32 = 1;

/// Longest cipher key that the configuration space announces, in bytes: two AES-256 keys of XTS.
pub const MAX_CIPHER_KEY_LEN: usize = 64;

/// Longest MAC key that the configuration space announces, in bytes. QEMU announces the same.
pub const MAX_AUTH_KEY_LEN: usize = 512;

/// The configuration space.
///
/// `max_size` is the largest number there is. A Linux guest whose request exceeds it wedges its own crypto engine
/// (observed on 6.1 and 6.12). An error status for a request above
/// [`MAX_REQUEST_LEN`](crate::request::MAX_REQUEST_LEN) is harmless.
#[must_use]
pub fn config_space(data_queues: u16, ready: bool) -> [u8; CONFIG_LEN] {
    let mut space = [0; CONFIG_LEN];
    let mut put = |offset: usize, value: u64, len: usize| {
        space[offset..offset + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    let services = CryptoService::ALL.iter().fold(0, |mask, service| mask | 1 << (*service as u8));
    put(0, u64::from(if ready { HW_READY } else { 0 }), 4);
    put(4, u64::from(data_queues), 4);
    put(8, services, 4);
    put(12, CipherAlgorithm::mask(), 8);
    put(20, HashAlgorithm::mask(), 4);
    put(24, MacAlgorithm::mask(), 8);
    put(32, AeadAlgorithm::mask(), 4);
    put(36, MAX_CIPHER_KEY_LEN as u64, 4);
    put(40, MAX_AUTH_KEY_LEN as u64, 4);
    put(44, AkcipherAlgorithm::mask(), 4);
    put(48, u64::MAX, 8);
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_space_has_the_layout_of_the_specification() {
        let space = config_space(1, true);
        let word = |offset: usize| {
            u32::from_le_bytes(space[offset..offset + 4].try_into().expect("four bytes"))
        };
        assert_eq!((word(0), word(4), word(8)), (1, 1, 0b1_1111));
        assert_eq!(word(12), 1 << 2 | 1 << 3 | 1 << 4 | 1 << 13);
        assert_eq!(word(24) & (1 << 26), 1 << 26);
        assert_eq!((word(36), word(40), word(44)), (64, 512, 0b110));
        assert_eq!(space[48..], [0xff; 8]);
        assert_eq!(config_space(1, false)[0], 0);
    }
}
