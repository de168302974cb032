// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every operation that a client can ask of a pool.
//!
//! Operations are *typed*: padding and encoding happen where the key is. A service that answers raw RSA would
//! be a signing oracle and a decryption oracle at once. The one raw operation, [`Operation::RsaRaw`], is only
//! for keys that the caller imported into its own session.

use std::fmt;

use zeroize::Zeroizing;

use crate::coded_enum;
use crate::error::JobError;
use crate::key::{KeyKind, KeyType};

/// Number of a job. The caller chooses it, unique among the jobs in flight of its session; the wire carries it as it
/// is.
pub type JobId = u64;

/// The result bytes of an operation. Always zeroised on drop, because a decryption or a key agreement yields
/// a secret.
pub type Output = Zeroizing<Vec<u8>>;

coded_enum! {
    /// A digest algorithm that an operation names.
    pub enum Hash {
        /// MD5 followed by SHA-1, 36 bytes, no `DigestInfo` (TLS 1.0 and 1.1, RFC 4346 section 7.4.3).
        /// Only for PKCS#1 v1.5 signatures.
        Md5Sha1 = 0x01 "md5sha1",
        /// SHA-1, 20 bytes.
        Sha1 = 0x02 "sha1",
        /// SHA-224, 28 bytes.
        Sha224 = 0x03 "sha224",
        /// SHA-256, 32 bytes.
        Sha256 = 0x04 "sha256",
        /// SHA-384, 48 bytes.
        Sha384 = 0x05 "sha384",
        /// SHA-512, 64 bytes.
        Sha512 = 0x06 "sha512",
        /// SHA-512/256, 32 bytes.
        Sha512_256 = 0x07 "sha512-256",
    }
}

/// `DigestInfo` up to the digest, for the hashes below 2.16.840.1.101.3.4.2 (RFC 8017 appendix B.1).
const fn sha2_digest_info(arc: u8, len: u8) -> [u8; 19] {
    [
        0x30,
        0x11 + len,
        0x30,
        0x0d,
        0x06,
        0x09,
        0x60,
        0x86,
        0x48,
        0x01,
        0x65,
        0x03,
        0x04,
        0x02,
        arc,
        0x05,
        0x00,
        0x04,
        len,
    ]
}

impl Hash {
    /// Length of a digest, in bytes.
    #[must_use]
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Md5Sha1 => 36,
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 | Self::Sha512_256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The DER of a PKCS#1 v1.5 `DigestInfo` up to the digest (RFC 8017 section 9.2 note 1). Empty for
    /// md5sha1, which TLS 1.0 signs without a `DigestInfo`.
    #[must_use]
    pub const fn digest_info_prefix(self) -> &'static [u8] {
        const SHA1: &[u8] = b"\x30\x21\x30\x09\x06\x05\x2b\x0e\x03\x02\x1a\x05\x00\x04\x14";
        match self {
            Self::Md5Sha1 => &[],
            Self::Sha1 => SHA1,
            Self::Sha224 => const { &sha2_digest_info(4, 28) },
            Self::Sha256 => const { &sha2_digest_info(1, 32) },
            Self::Sha384 => const { &sha2_digest_info(2, 48) },
            Self::Sha512 => const { &sha2_digest_info(3, 64) },
            Self::Sha512_256 => const { &sha2_digest_info(6, 32) },
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One typed cryptographic request, without its key and its input.
///
/// Each variant describes its input and output; a job carries both as bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// RSASSA-PKCS1-v1_5 signature (RFC 8017 section 8.2) over a given digest.
    /// Input: the digest. Output: the signature, as long as the modulus.
    RsaPkcs1Sign {
        /// Digest algorithm: selects the `DigestInfo` prefix and the length of the input.
        hash: Hash,
    },
    /// RSASSA-PSS signature (RFC 8017 section 8.1) over a given digest.
    /// Input: the digest. Output: the signature, as long as the modulus.
    RsaPssSign {
        /// Digest algorithm of the message.
        hash: Hash,
        /// Digest algorithm of MGF1.
        mgf_hash: Hash,
        /// Salt length in bytes.
        salt_len: u16,
    },
    /// RSAES-OAEP decryption (RFC 8017 section 7.1.2).
    /// Input: the ciphertext, as long as the modulus. Output: the message.
    RsaOaepDecrypt {
        /// Digest algorithm of the label.
        hash: Hash,
        /// Digest algorithm of MGF1.
        mgf_hash: Hash,
        /// The label, usually empty; at most [`MAX_LABEL_LEN`] bytes.
        label: Vec<u8>,
    },
    /// RSAES-PKCS1-v1_5 decryption with implicit rejection: malformed padding yields a
    /// message derived from key and ciphertext, never an error (draft-irtf-cfrg-rsa-guidance).
    /// Only if the policy of the key allows it.
    /// Input: the ciphertext, as long as the modulus. Output: a message.
    RsaPkcs1Decrypt,
    /// The premaster secret of a TLS RSA key exchange (RFC 5246 section 7.4.7.1): always 48 bytes;
    /// if the padding or the version is wrong, bytes that key, ciphertext and version determine, in constant time.
    /// Only if the policy of the key allows it.
    /// Input: the ciphertext, as long as the modulus. Output: 48 bytes.
    RsaTlsPremaster {
        /// The version in the `ClientHello`, e.g. `0x0303`.
        client_version: u16,
    },
    /// The bare private operation `input^d mod n`. Only for a key that the caller imported.
    /// Input: a number below the modulus, as long as the modulus. Output: the same length.
    RsaRaw,
    /// ECDSA signature (FIPS 186-5 section 6.4) over a given digest.
    /// Input: the digest. Output: a DER `Ecdsa-Sig-Value` (RFC 3279 section 2.2.3).
    EcdsaSign {
        /// Digest algorithm: fixes the length of the input.
        hash: Hash,
    },
    /// ECDH on P-256, P-384 or P-521 (SP 800-56A section 5.7.1.2, cofactor 1).
    /// Input: the peer's uncompressed point. Output: the x coordinate, as long as the field.
    Ecdh,
    /// X25519 (RFC 7748). Input: the peer's 32 bytes. Output: 32 bytes; all-zero is refused.
    X25519,
    /// Ed25519 (RFC 8032), pure. Input: the message. Output: 64 bytes.
    Ed25519Sign,
    /// Finite-field Diffie-Hellman. Input: the peer's public value, big-endian.
    /// Output: the shared secret, left-padded to the length of the prime.
    DhDerive,
    /// DSA signature over a given digest. Input: the digest. Output: a DER `Dss-Sig-Value`.
    DsaSign {
        /// Digest algorithm: fixes the length of the input.
        hash: Hash,
    },
    /// ML-DSA signature (FIPS 204 section 5.2), hedged with fresh randomness.
    /// Output: the signature, 2420, 3309 or 4627 bytes.
    MlDsaSign {
        /// The form of the input.
        input: MlDsaInput,
    },
}

coded_enum! {
    /// The form of the input of an ML-DSA signature.
    pub enum MlDsaInput {
        /// The message, with the empty context: what TLS 1.3 and X.509 sign.
        Message = 0x01 "message",
        /// The 64 bytes of the message representative μ (FIPS 204 algorithm 7, step 6), which the caller
        /// computed: for another context, or a message above [`MAX_INPUT_LEN`].
        Mu = 0x02 "mu",
    }
}

/// Length of the message representative μ of ML-DSA, in bytes.
pub const ML_DSA_MU_LEN: usize = 64;

/// Bound on an OAEP label, in bytes. RFC 8017 allows 2^61; every protocol in use sends none.
pub const MAX_LABEL_LEN: usize = 256;

/// Bound on the input of one job, in bytes: a ciphertext or group element of 8192 bits is 1024 bytes;
/// Ed25519 and ML-DSA take whole messages, and certificates and transcripts stay below this (a TLS 1.3
/// `CertificateVerify` signs at most 162 bytes, RFC 8446 section 4.4.3).
pub const MAX_INPUT_LEN: usize = 16 * 1024;

impl Operation {
    /// Whether the result is a signature, which anybody who has the public key can verify.
    #[must_use]
    pub const fn is_signature(&self) -> bool {
        match self {
            Self::RsaPkcs1Sign { .. }
            | Self::RsaPssSign { .. }
            | Self::EcdsaSign { .. }
            | Self::Ed25519Sign
            | Self::DsaSign { .. }
            | Self::MlDsaSign { .. } => true,
            Self::RsaOaepDecrypt { .. }
            | Self::RsaPkcs1Decrypt
            | Self::RsaTlsPremaster { .. }
            | Self::RsaRaw
            | Self::Ecdh
            | Self::X25519
            | Self::DhDerive => false,
        }
    }

    /// The operation without its parameters.
    #[must_use]
    pub const fn kind(&self) -> OperationKind {
        match self {
            Self::RsaPkcs1Sign { .. } => OperationKind::RsaPkcs1Sign,
            Self::RsaPssSign { .. } => OperationKind::RsaPssSign,
            Self::RsaOaepDecrypt { .. } => OperationKind::RsaOaepDecrypt,
            Self::RsaPkcs1Decrypt => OperationKind::RsaPkcs1Decrypt,
            Self::RsaTlsPremaster { .. } => OperationKind::RsaTlsPremaster,
            Self::RsaRaw => OperationKind::RsaRaw,
            Self::EcdsaSign { .. } => OperationKind::EcdsaSign,
            Self::Ecdh => OperationKind::Ecdh,
            Self::X25519 => OperationKind::X25519,
            Self::Ed25519Sign => OperationKind::Ed25519Sign,
            Self::DhDerive => OperationKind::DhDerive,
            Self::DsaSign { .. } => OperationKind::DsaSign,
            Self::MlDsaSign { .. } => OperationKind::MlDsaSign,
        }
    }

    /// The hash of the message and that of MGF1, for operations that have them.
    #[must_use]
    pub const fn hashes(&self) -> [Option<Hash>; 2] {
        match *self {
            Self::RsaPkcs1Sign { hash } | Self::EcdsaSign { hash } | Self::DsaSign { hash } => {
                [Some(hash), None]
            }
            Self::RsaPssSign { hash, mgf_hash, .. }
            | Self::RsaOaepDecrypt { hash, mgf_hash, .. } => [Some(hash), Some(mgf_hash)],
            Self::RsaPkcs1Decrypt
            | Self::RsaTlsPremaster { .. }
            | Self::RsaRaw
            | Self::Ecdh
            | Self::X25519
            | Self::Ed25519Sign
            | Self::DhDerive
            | Self::MlDsaSign { .. } => [None, None],
        }
    }

    /// The hash of the message (not that of MGF1), for operations that have one.
    #[must_use]
    pub const fn hash(&self) -> Option<Hash> {
        self.hashes()[0]
    }

    /// Checks everything that needs no private key: `key_type` has this operation, and the input has a
    /// possible length.
    ///
    /// # Errors
    /// [`JobError::NotOffered`] for an operation that this type of key does not have,
    /// [`JobError::BadInput`] for parameters or an input length that cannot be right.
    pub fn check(&self, key_type: KeyType, input: &[u8]) -> Result<(), JobError> {
        if !self.kind().fits(key_type) {
            return Err(JobError::NotOffered);
        }
        let good = match self {
            Self::RsaPkcs1Sign { hash } => input.len() == hash.digest_len(),
            Self::RsaPssSign { hash, mgf_hash, salt_len } => {
                let room = key_type.modulus_len().saturating_sub(hash.digest_len() + 2);
                *hash != Hash::Md5Sha1
                    && *mgf_hash != Hash::Md5Sha1
                    && input.len() == hash.digest_len()
                    && usize::from(*salt_len) <= room
            }
            Self::EcdsaSign { hash } | Self::DsaSign { hash } => {
                *hash != Hash::Md5Sha1 && input.len() == hash.digest_len()
            }
            Self::RsaOaepDecrypt { hash, mgf_hash, label } => {
                *hash != Hash::Md5Sha1
                    && *mgf_hash != Hash::Md5Sha1
                    && label.len() <= MAX_LABEL_LEN
                    && input.len() == key_type.modulus_len()
            }
            Self::RsaPkcs1Decrypt | Self::RsaTlsPremaster { .. } | Self::RsaRaw => {
                input.len() == key_type.modulus_len()
            }
            Self::Ecdh => {
                matches!(key_type, KeyType::Ec(curve) if input.len() == 1 + 2 * curve.field_len())
            }
            Self::X25519 => input.len() == 32,
            Self::Ed25519Sign => input.len() <= MAX_INPUT_LEN,
            Self::MlDsaSign { input: MlDsaInput::Message } => input.len() <= MAX_INPUT_LEN,
            Self::MlDsaSign { input: MlDsaInput::Mu } => input.len() == ML_DSA_MU_LEN,
            Self::DhDerive => !input.is_empty() && input.len() <= key_type.modulus_len(),
        };
        if good { Ok(()) } else { Err(JobError::BadInput) }
    }
}

coded_enum! {
    /// An [`Operation`] without its parameters: for capabilities, policies, metrics.
    pub enum OperationKind {
        /// [`Operation::RsaPkcs1Sign`]
        RsaPkcs1Sign = 0x01 "rsa-pkcs1-sign",
        /// [`Operation::RsaPssSign`]
        RsaPssSign = 0x02 "rsa-pss-sign",
        /// [`Operation::RsaOaepDecrypt`]
        RsaOaepDecrypt = 0x03 "rsa-oaep-decrypt",
        /// [`Operation::RsaPkcs1Decrypt`]
        RsaPkcs1Decrypt = 0x04 "rsa-pkcs1-decrypt",
        /// [`Operation::RsaTlsPremaster`]
        RsaTlsPremaster = 0x05 "rsa-tls-premaster",
        /// [`Operation::RsaRaw`]
        RsaRaw = 0x06 "rsa-raw",
        /// [`Operation::EcdsaSign`]
        EcdsaSign = 0x07 "ecdsa-sign",
        /// [`Operation::Ecdh`]
        Ecdh = 0x08 "ecdh-derive",
        /// [`Operation::X25519`]
        X25519 = 0x09 "x25519-derive",
        /// [`Operation::Ed25519Sign`]
        Ed25519Sign = 0x0a "ed25519-sign",
        /// [`Operation::DhDerive`]
        DhDerive = 0x0b "dh-derive",
        /// [`Operation::DsaSign`]
        DsaSign = 0x0c "dsa-sign",
        /// [`Operation::MlDsaSign`]
        MlDsaSign = 0x0d "ml-dsa-sign",
    }
}

/// The purpose of an operation: keys of different kinds have different operations for the same purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A signature.
    Sign,
    /// Something encrypted for the key is opened.
    Decrypt,
    /// A secret is agreed on with another party.
    Agree,
    /// The bare operation of the key, which serves every purpose.
    Raw,
}

impl OperationKind {
    /// The purpose of the operation.
    #[must_use]
    pub const fn purpose(self) -> Purpose {
        match self {
            Self::RsaPkcs1Sign
            | Self::RsaPssSign
            | Self::EcdsaSign
            | Self::Ed25519Sign
            | Self::DsaSign
            | Self::MlDsaSign => Purpose::Sign,
            Self::RsaOaepDecrypt | Self::RsaPkcs1Decrypt | Self::RsaTlsPremaster => {
                Purpose::Decrypt
            }
            Self::Ecdh | Self::X25519 | Self::DhDerive => Purpose::Agree,
            Self::RsaRaw => Purpose::Raw,
        }
    }

    /// The kinds of keys with this operation.
    #[must_use]
    pub const fn key_kinds(self) -> &'static [KeyKind] {
        match self {
            Self::RsaPkcs1Sign
            | Self::RsaPssSign
            | Self::RsaOaepDecrypt
            | Self::RsaPkcs1Decrypt
            | Self::RsaTlsPremaster
            | Self::RsaRaw => &[KeyKind::Rsa],
            Self::EcdsaSign | Self::Ecdh => &[KeyKind::P256, KeyKind::P384, KeyKind::P521],
            Self::X25519 => &[KeyKind::X25519],
            Self::Ed25519Sign => &[KeyKind::Ed25519],
            Self::DhDerive => &[KeyKind::Dh],
            Self::DsaSign => &[KeyKind::Dsa],
            Self::MlDsaSign => &[KeyKind::MlDsa44, KeyKind::MlDsa65, KeyKind::MlDsa87],
        }
    }

    /// Whether keys of this type have this operation.
    #[must_use]
    pub const fn fits(self, key_type: KeyType) -> bool {
        self.fits_kind(key_type.kind())
    }

    /// Whether keys of this kind have this operation.
    #[must_use]
    pub const fn fits_kind(self, kind: KeyKind) -> bool {
        let kinds = self.key_kinds();
        let mut index = 0;
        while index < kinds.len() {
            if kinds[index].code() == kind.code() {
                return true;
            }
            index += 1;
        }
        false
    }

    /// The operations of keys of this kind.
    pub fn of(kind: KeyKind) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |operation| operation.fits_kind(kind))
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Curve;

    #[test]
    fn operation_and_hash_codes_round_trip_and_fit_a_policy() {
        for (index, kind) in OperationKind::ALL.iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(OperationKind::from_code(kind.code()), Some(*kind));
            assert_eq!(OperationKind::from_name(kind.name()), Some(*kind));
            assert!(kind.code() < 32, "a policy has a bit for each code");
            assert!(!kind.key_kinds().is_empty(), "{kind} fits no key");
        }
        for hash in Hash::ALL {
            assert_eq!(Hash::from_code(hash.code()), Some(*hash));
            assert_eq!(Hash::from_name(hash.name()), Some(*hash));
            assert!(hash.code() < 32, "a policy has a bit for each code");
        }
        assert_eq!(OperationKind::from_code(0), None);
        assert_eq!(Hash::from_code(0xff), None);
    }

    #[test]
    fn digest_of_wrong_length_is_bad_input() {
        let key_type = KeyType::Rsa { bits: 2048 };
        let sign = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
        assert_eq!(sign.check(key_type, &[0; 32]), Ok(()));
        assert_eq!(sign.check(key_type, &[0; 31]), Err(JobError::BadInput));
        assert_eq!(sign.check(key_type, &[0; 33]), Err(JobError::BadInput));
    }

    #[test]
    fn pss_salt_too_long_for_the_modulus_is_bad_input() {
        let key_type = KeyType::Rsa { bits: 2048 };
        let pss = |salt_len| Operation::RsaPssSign {
            hash: Hash::Sha256,
            mgf_hash: Hash::Sha256,
            salt_len,
        };
        // emLen 256 - hLen 32 - 2 (RFC 8017 section 9.1.1 step 3).
        assert_eq!(pss(222).check(key_type, &[0; 32]), Ok(()));
        assert_eq!(pss(223).check(key_type, &[0; 32]), Err(JobError::BadInput));
    }

    #[test]
    fn operation_of_another_key_type_is_not_offered() {
        let sign = Operation::EcdsaSign { hash: Hash::Sha256 };
        assert_eq!(sign.check(KeyType::Rsa { bits: 2048 }, &[0; 32]), Err(JobError::NotOffered));
        assert_eq!(sign.check(KeyType::X25519, &[0; 32]), Err(JobError::NotOffered));
        assert_eq!(sign.check(KeyType::Ec(Curve::P384), &[0; 32]), Ok(()));
    }

    #[test]
    fn md5sha1_is_accepted_only_for_pkcs1_signatures() {
        let digest = [0; 36];
        let rsa = KeyType::Rsa { bits: 2048 };
        let hash = Hash::Md5Sha1;
        assert_eq!(Operation::RsaPkcs1Sign { hash }.check(rsa, &digest), Ok(()));
        let pss = Operation::RsaPssSign { hash, mgf_hash: Hash::Sha1, salt_len: 20 };
        assert_eq!(pss.check(rsa, &digest), Err(JobError::BadInput));
        let ec = KeyType::Ec(Curve::P256);
        assert_eq!(Operation::EcdsaSign { hash }.check(ec, &digest), Err(JobError::BadInput));
    }
}
