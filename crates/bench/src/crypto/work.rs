// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that are measured: keys, inputs, the library called directly, and a check of every
//! kind of output.
//!
//! Four keys of each type take turns, so that neighbours in a batch share nothing. What an output must
//! be is known beforehand, or it is a signature that is verified with the public key.

use std::fmt;

use aws_lc_rs::agreement::{self, UnparsedPublicKey as PeerKey};
use aws_lc_rs::digest::{Digest, SHA256, SHA384, digest};
use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::rsa::{
    KeySize, OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, OaepPublicEncryptingKey,
    Pkcs1PrivateDecryptingKey, Pkcs1PublicEncryptingKey, PrivateDecryptingKey,
};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1,
    ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair,
    RSA_PKCS1_SHA256, RSA_PSS_2048_8192_SHA256, RSA_PSS_SHA256, RsaKeyPair, UnparsedPublicKey,
    VerificationAlgorithm,
};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use millrace_engine::{Hash, Operation, OperationKind, PrivateKey};

use super::foreign::Foreign;
use crate::error::BenchError;

/// Keys of each type.
pub(super) const KEYS: usize = 4;

/// Different inputs: enough that nothing is answered from a cache of one entry. A multiple of [`KEYS`].
const INPUTS: usize = 64;

/// Outputs that are kept per round to be verified after it, where they cannot be compared at once.
const MAX_SAMPLES: usize = 256;

/// The same where each verification is a process.
const MAX_FOREIGN_SAMPLES: usize = 4;

/// The fixed bytes in front of the 32 of an X25519 private key in PKCS#8 (RFC 8410 section 7).
const X25519_PKCS8_PREFIX: [u8; 16] =
    *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20";

/// The TLS version in a premaster secret: 1.2.
const CLIENT_VERSION: u16 = 0x0303;

/// The types of keys that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
pub enum CryptoKey {
    /// RSA with 2048 bits
    #[value(name = "rsa-2048")]
    #[serde(rename = "rsa-2048")]
    Rsa2048,
    /// RSA with 3072 bits
    #[value(name = "rsa-3072")]
    #[serde(rename = "rsa-3072")]
    Rsa3072,
    /// RSA with 4096 bits
    #[value(name = "rsa-4096")]
    #[serde(rename = "rsa-4096")]
    Rsa4096,
    /// NIST P-256
    #[value(name = "p-256")]
    #[serde(rename = "p-256")]
    P256,
    /// NIST P-384
    #[value(name = "p-384")]
    #[serde(rename = "p-384")]
    P384,
    /// X25519
    #[value(name = "x25519")]
    #[serde(rename = "x25519")]
    X25519,
    /// Ed25519
    #[value(name = "ed25519")]
    #[serde(rename = "ed25519")]
    Ed25519,
    /// Finite-field DH, group ffdhe2048
    #[value(name = "dh-2048")]
    #[serde(rename = "dh-2048")]
    Dh2048,
    /// DSA with 2048 bits
    #[value(name = "dsa-2048")]
    #[serde(rename = "dsa-2048")]
    Dsa2048,
}

impl CryptoKey {
    /// The name used in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rsa2048 => "rsa-2048",
            Self::Rsa3072 => "rsa-3072",
            Self::Rsa4096 => "rsa-4096",
            Self::P256 => "p-256",
            Self::P384 => "p-384",
            Self::X25519 => "x25519",
            Self::Ed25519 => "ed25519",
            Self::Dh2048 => "dh-2048",
            Self::Dsa2048 => "dsa-2048",
        }
    }
}

impl fmt::Display for CryptoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One operation on one type of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) operation: OperationKind,
    pub(super) key: CryptoKey,
    /// What `openssl speed` calls the same, if it knows it.
    pub(super) speed: Option<&'static str>,
}

impl Case {
    /// Whether batches of every size are measured: all operations on an RSA key cost the same.
    pub(super) fn stands_for_others(&self) -> bool {
        self.operation == OperationKind::RsaPkcs1Sign
    }

    /// Whether it is what most handshakes ask for: these are measured by load, too.
    pub(super) fn is_common(&self) -> bool {
        [
            (OperationKind::RsaPkcs1Sign, CryptoKey::Rsa2048),
            (OperationKind::EcdsaSign, CryptoKey::P256),
        ]
        .contains(&(self.operation, self.key))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.operation, self.key)
    }
}

const fn case(operation: OperationKind, key: CryptoKey, speed: Option<&'static str>) -> Case {
    Case {
        operation,
        key,
        speed,
    }
}

/// Everything that is measured. The other paddings of the larger RSA keys cost what signing does.
pub(super) const CASES: &[Case] = &[
    case(
        OperationKind::RsaPkcs1Sign,
        CryptoKey::Rsa2048,
        Some("rsa2048"),
    ),
    case(
        OperationKind::RsaPkcs1Sign,
        CryptoKey::Rsa3072,
        Some("rsa3072"),
    ),
    case(
        OperationKind::RsaPkcs1Sign,
        CryptoKey::Rsa4096,
        Some("rsa4096"),
    ),
    case(OperationKind::RsaPssSign, CryptoKey::Rsa2048, None),
    case(OperationKind::RsaOaepDecrypt, CryptoKey::Rsa2048, None),
    case(OperationKind::RsaPkcs1Decrypt, CryptoKey::Rsa2048, None),
    case(OperationKind::RsaTlsPremaster, CryptoKey::Rsa2048, None),
    case(OperationKind::RsaRaw, CryptoKey::Rsa2048, None),
    case(OperationKind::EcdsaSign, CryptoKey::P256, Some("ecdsap256")),
    case(OperationKind::EcdsaSign, CryptoKey::P384, Some("ecdsap384")),
    case(OperationKind::Ecdh, CryptoKey::P256, Some("ecdhp256")),
    case(OperationKind::Ecdh, CryptoKey::P384, Some("ecdhp384")),
    case(OperationKind::X25519, CryptoKey::X25519, Some("ecdhx25519")),
    case(
        OperationKind::Ed25519Sign,
        CryptoKey::Ed25519,
        Some("ed25519"),
    ),
    case(OperationKind::DhDerive, CryptoKey::Dh2048, Some("ffdh2048")),
    case(OperationKind::DsaSign, CryptoKey::Dsa2048, Some("dsa2048")),
];

/// The keys of one type, made once for all operations on them.
pub(super) struct Keys {
    pub(super) key: CryptoKey,
    pkcs8: Vec<Zeroizing<Vec<u8>>>,
    library: Vec<Library>,
}

/// A key inside the library.
enum Library {
    Rsa(Box<Rsa>),
    Ec {
        pair: EcdsaKeyPair,
        agreement: agreement::PrivateKey,
    },
    X25519(agreement::PrivateKey),
    Ed25519(Ed25519KeyPair),
    /// The library has no interface of its own for these.
    Foreign(Box<Foreign>),
}

/// An RSA key in the forms that the library has for each operation.
struct Rsa {
    pair: RsaKeyPair,
    oaep: OaepPrivateDecryptingKey,
    pkcs1: Pkcs1PrivateDecryptingKey,
    to_oaep: OaepPublicEncryptingKey,
    to_pkcs1: Pkcs1PublicEncryptingKey,
}

impl Keys {
    pub(super) fn generate(key: CryptoKey) -> Result<Self, BenchError> {
        let mut keys = Self {
            key,
            pkcs8: Vec::new(),
            library: Vec::new(),
        };
        for _ in 0..KEYS {
            let (pkcs8, library) = generate(key)?;
            keys.pkcs8.push(pkcs8);
            keys.library.push(library);
        }
        Ok(keys)
    }

    /// The keys as a backend takes them.
    pub(super) fn private_keys(&self) -> impl Iterator<Item = PrivateKey> {
        self.pkcs8
            .iter()
            .map(|der| PrivateKey::from_pkcs8(der.clone()))
    }
}

fn generate(key: CryptoKey) -> Result<(Zeroizing<Vec<u8>>, Library), BenchError> {
    let random = SystemRandom::new();
    match key {
        CryptoKey::Rsa2048 => rsa(KeySize::Rsa2048),
        CryptoKey::Rsa3072 => rsa(KeySize::Rsa3072),
        CryptoKey::Rsa4096 => rsa(KeySize::Rsa4096),
        CryptoKey::P256 => ec(&ECDSA_P256_SHA256_ASN1_SIGNING, &agreement::ECDH_P256),
        CryptoKey::P384 => ec(&ECDSA_P384_SHA384_ASN1_SIGNING, &agreement::ECDH_P384),
        CryptoKey::X25519 => {
            let mut pkcs8 = Zeroizing::new(X25519_PKCS8_PREFIX.to_vec());
            let mut bytes = Zeroizing::new([0_u8; 32]);
            random.fill(bytes.as_mut()).map_err(refused)?;
            pkcs8.extend_from_slice(bytes.as_ref());
            let key = agreement::PrivateKey::from_private_key(&agreement::X25519, bytes.as_ref());
            Ok((pkcs8, Library::X25519(key.map_err(refused)?)))
        }
        CryptoKey::Ed25519 => {
            let pkcs8 = Ed25519KeyPair::generate_pkcs8v1(&random).map_err(refused)?;
            let pair =
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8.as_ref()).map_err(refused)?;
            let pkcs8 = Zeroizing::new(pkcs8.as_ref().to_vec());
            Ok((pkcs8, Library::Ed25519(pair)))
        }
        CryptoKey::Dh2048 => Ok(foreign(Foreign::dh()?)),
        CryptoKey::Dsa2048 => Ok(foreign(Foreign::dsa()?)),
    }
}

fn foreign(key: Foreign) -> (Zeroizing<Vec<u8>>, Library) {
    (key.pkcs8.clone(), Library::Foreign(Box::new(key)))
}

fn rsa(size: KeySize) -> Result<(Zeroizing<Vec<u8>>, Library), BenchError> {
    let key = PrivateDecryptingKey::generate(size).map_err(refused)?;
    let der = AsDer::as_der(&key).map_err(refused)?;
    let pkcs8 = Zeroizing::new(der.as_ref().to_vec());
    let public = || key.public_key();
    let rsa = Rsa {
        pair: RsaKeyPair::from_pkcs8(&pkcs8).map_err(refused)?,
        to_oaep: OaepPublicEncryptingKey::new(public()).map_err(refused)?,
        to_pkcs1: Pkcs1PublicEncryptingKey::new(public()).map_err(refused)?,
        oaep: OaepPrivateDecryptingKey::new(key.clone()).map_err(refused)?,
        pkcs1: Pkcs1PrivateDecryptingKey::new(key).map_err(refused)?,
    };
    Ok((pkcs8, Library::Rsa(Box::new(rsa))))
}

fn ec(
    signing: &'static EcdsaSigningAlgorithm,
    agreeing: &'static agreement::Algorithm,
) -> Result<(Zeroizing<Vec<u8>>, Library), BenchError> {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(signing, &SystemRandom::new()).map_err(refused)?;
    let pair = EcdsaKeyPair::from_pkcs8(signing, pkcs8.as_ref()).map_err(refused)?;
    let agreement = agreement::PrivateKey::from_private_key_der(agreeing, pkcs8.as_ref());
    let agreement = agreement.map_err(refused)?;
    let pkcs8 = Zeroizing::new(pkcs8.as_ref().to_vec());
    Ok((pkcs8, Library::Ec { pair, agreement }))
}

/// A case with its keys and inputs.
pub(super) struct Work<'a> {
    pub(super) case: Case,
    pub(super) keys: &'a Keys,
    pub(super) operation: Operation,
    inputs: Vec<Input>,
}

/// What one operation works on.
struct Input {
    /// What a backend takes.
    job: Vec<u8>,
    /// What the library takes for the same.
    message: Message,
    /// The expected output, where it is known beforehand.
    expected: Option<Vec<u8>>,
}

/// What the library takes.
enum Message {
    Digest(Digest),
    Bytes,
}

impl<'a> Work<'a> {
    pub(super) fn new(case: Case, keys: &'a Keys) -> Result<Self, BenchError> {
        let hash = match case.key {
            CryptoKey::P384 => Hash::Sha384,
            _ => Hash::Sha256,
        };
        let operation = match case.operation {
            OperationKind::RsaPkcs1Sign => Operation::RsaPkcs1Sign { hash },
            OperationKind::RsaPssSign => Operation::RsaPssSign {
                hash,
                mgf_hash: hash,
                salt_len: 32,
            },
            OperationKind::RsaOaepDecrypt => Operation::RsaOaepDecrypt {
                hash,
                mgf_hash: hash,
                label: Vec::new(),
            },
            OperationKind::RsaPkcs1Decrypt => Operation::RsaPkcs1Decrypt,
            OperationKind::RsaTlsPremaster => Operation::RsaTlsPremaster {
                client_version: CLIENT_VERSION,
            },
            OperationKind::RsaRaw => Operation::RsaRaw,
            OperationKind::EcdsaSign => Operation::EcdsaSign { hash },
            OperationKind::Ecdh => Operation::Ecdh,
            OperationKind::X25519 => Operation::X25519,
            OperationKind::Ed25519Sign => Operation::Ed25519Sign,
            OperationKind::DhDerive => Operation::DhDerive,
            OperationKind::DsaSign => Operation::DsaSign { hash },
        };
        let mut work = Self {
            case,
            keys,
            operation,
            inputs: Vec::with_capacity(INPUTS),
        };
        for index in 0..INPUTS {
            let input = work.make_input(index)?;
            work.inputs.push(input);
        }
        work.expect_signatures()?;
        Ok(work)
    }

    /// What deterministic signatures must be: what the library says.
    fn expect_signatures(&mut self) -> Result<(), BenchError> {
        let deterministic = [
            OperationKind::RsaPkcs1Sign,
            OperationKind::RsaRaw,
            OperationKind::Ed25519Sign,
        ];
        if deterministic.contains(&self.case.operation) {
            for index in 0..INPUTS {
                let signature = self.library(index)?;
                self.inputs[index].expected = Some(signature);
            }
        }
        Ok(())
    }

    /// Which key job number `index` uses.
    pub(super) fn key_of(&self, index: usize) -> usize {
        index % KEYS
    }

    /// The input of job number `index`, as a backend takes it.
    pub(super) fn input(&self, index: usize) -> Vec<u8> {
        self.inputs[index % INPUTS].job.clone()
    }

    fn make_input(&self, index: usize) -> Result<Input, BenchError> {
        let algorithm = match self.keys.key {
            CryptoKey::P384 => &SHA384,
            _ => &SHA256,
        };
        let hashed = digest(algorithm, &index.to_be_bytes());
        let secret = hashed.as_ref().to_vec();
        let known = |job: Vec<u8>, expected: Vec<u8>| Input {
            job,
            message: Message::Bytes,
            expected: Some(expected),
        };
        let library = &self.keys.library[self.key_of(index)];
        Ok(match (self.case.operation, library) {
            (OperationKind::RsaOaepDecrypt, Library::Rsa(rsa)) => {
                let mut sealed = vec![0; rsa.to_oaep.ciphertext_size()];
                rsa.to_oaep
                    .encrypt(&OAEP_SHA256_MGF1SHA256, &secret, &mut sealed, None)
                    .map_err(refused)?;
                known(sealed, secret)
            }
            (OperationKind::RsaPkcs1Decrypt, Library::Rsa(rsa)) => {
                known(rsa.encrypt_pkcs1(&secret)?, secret)
            }
            (OperationKind::RsaTlsPremaster, Library::Rsa(rsa)) => {
                let version = CLIENT_VERSION.to_be_bytes();
                let premaster = [&version[..], &secret, &secret[..14]].concat();
                known(rsa.encrypt_pkcs1(&premaster)?, premaster)
            }
            (OperationKind::RsaRaw, Library::Rsa(rsa)) => Input {
                job: padded(hashed.as_ref(), rsa.pair.public_modulus_len()),
                message: Message::Digest(hashed),
                expected: None,
            },
            (OperationKind::DhDerive, Library::Foreign(key)) => {
                let (peer, secret) = key.agreed.clone().unwrap_or_default();
                known(peer, secret)
            }
            (OperationKind::Ecdh | OperationKind::X25519, own) => {
                let (_, peer) = generate(self.keys.key)?;
                let (peer, own) = (peer.agreement()?, own.agreement()?);
                let public = |key: &agreement::PrivateKey| -> Result<Vec<u8>, BenchError> {
                    let key = key.compute_public_key().map_err(refused)?;
                    Ok(key.as_ref().to_vec())
                };
                known(public(peer)?, agree(peer, &public(own)?)?)
            }
            (OperationKind::Ed25519Sign, _) => Input {
                job: secret,
                message: Message::Bytes,
                expected: None,
            },
            _ => Input {
                job: secret,
                message: Message::Digest(hashed),
                expected: None,
            },
        })
    }

    /// Whether the library does this by an interface of its own.
    pub(super) fn has_library(&self) -> bool {
        !matches!(self.keys.library.first(), Some(Library::Foreign(_)))
    }

    /// How many outputs of a round are looked at, where that cannot be done at once.
    pub(super) fn max_samples(&self) -> usize {
        if self.has_library() {
            MAX_SAMPLES
        } else {
            MAX_FOREIGN_SAMPLES
        }
    }

    /// Does job number `index` by calling the library directly.
    pub(super) fn library(&self, index: usize) -> Result<Vec<u8>, BenchError> {
        let input = &self.inputs[index % INPUTS];
        match (&self.keys.library[self.key_of(index)], &input.message) {
            (Library::Rsa(rsa), Message::Digest(digest)) => {
                let padding = match self.case.operation {
                    OperationKind::RsaPssSign => &RSA_PSS_SHA256,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; rsa.pair.public_modulus_len()];
                rsa.pair
                    .sign_digest(padding, digest, &mut signature)
                    .map_err(refused)?;
                Ok(signature)
            }
            (Library::Rsa(rsa), Message::Bytes) => {
                let mut output = vec![0; rsa.pair.public_modulus_len()];
                let opened = match self.case.operation {
                    OperationKind::RsaOaepDecrypt => {
                        rsa.oaep
                            .decrypt(&OAEP_SHA256_MGF1SHA256, &input.job, &mut output, None)
                    }
                    _ => rsa.pkcs1.decrypt(&input.job, &mut output),
                };
                Ok(opened.map_err(refused)?.to_vec())
            }
            (Library::Ec { pair, .. }, Message::Digest(digest)) => {
                let signature = pair.sign_digest(digest).map_err(refused)?;
                Ok(signature.as_ref().to_vec())
            }
            (Library::Ed25519(pair), _) => Ok(pair.sign(&input.job).as_ref().to_vec()),
            (key, _) => agree(key.agreement()?, &input.job),
        }
    }

    /// Whether this is what job number `index` must yield, as far as that can be told at once.
    pub(super) fn is_expected(&self, index: usize, output: &[u8]) -> bool {
        let expected = self.inputs[index % INPUTS].expected.as_deref();
        expected.is_none_or(|expected| expected == output)
    }

    /// Whether an output has to be looked at by [`Self::check`] after its round.
    pub(super) fn is_checked_later(&self) -> bool {
        self.inputs.iter().any(|input| input.expected.is_none())
    }

    /// # Errors
    /// [`BenchError::Wrong`] if this is not what job number `index` must yield.
    pub(super) fn check(&self, index: usize, output: &[u8]) -> Result<(), BenchError> {
        let input = &self.inputs[index % INPUTS];
        let valid = match (&input.expected, &input.message) {
            (Some(expected), _) => expected == output,
            (None, Message::Digest(digest)) => {
                if let Library::Foreign(key) = &self.keys.library[self.key_of(index)] {
                    let good = key.verifies(digest.as_ref(), output)?;
                    return if good { Ok(()) } else { Err(self.wrong(index)) };
                }
                let (algorithm, public_key): (&'static dyn VerificationAlgorithm, _) =
                    match &self.keys.library[self.key_of(index)] {
                        Library::Rsa(rsa) => {
                            (&RSA_PSS_2048_8192_SHA256, rsa.pair.public_key().as_ref())
                        }
                        Library::Ec { pair, .. } if self.keys.key == CryptoKey::P256 => {
                            (&ECDSA_P256_SHA256_ASN1, pair.public_key().as_ref())
                        }
                        Library::Ec { pair, .. } => {
                            (&ECDSA_P384_SHA384_ASN1, pair.public_key().as_ref())
                        }
                        Library::X25519(_) | Library::Ed25519(_) | Library::Foreign(_) => {
                            return Err(self.wrong(index));
                        }
                    };
                UnparsedPublicKey::new(algorithm, public_key)
                    .verify_digest(digest, output)
                    .is_ok()
            }
            (None, Message::Bytes) => false,
        };
        if valid {
            Ok(())
        } else {
            Err(self.wrong(index))
        }
    }

    /// The error for a wrong output.
    pub(super) fn wrong(&self, index: usize) -> BenchError {
        BenchError::Wrong(format!("{}: the output of job {index} is wrong", self.case))
    }
}

impl Rsa {
    fn encrypt_pkcs1(&self, secret: &[u8]) -> Result<Vec<u8>, BenchError> {
        let mut sealed = vec![0; self.to_pkcs1.ciphertext_size()];
        self.to_pkcs1
            .encrypt(secret, &mut sealed)
            .map_err(refused)?;
        Ok(sealed)
    }
}

impl Library {
    fn agreement(&self) -> Result<&agreement::PrivateKey, BenchError> {
        match self {
            Self::Ec { agreement, .. } | Self::X25519(agreement) => Ok(agreement),
            Self::Rsa(_) | Self::Ed25519(_) | Self::Foreign(_) => Err(BenchError::Setup(
                "this type of key does not agree on secrets".to_owned(),
            )),
        }
    }
}

/// EMSA-PKCS1-v1_5 of a SHA-256 digest, so that the raw operation yields a signature.
fn padded(digest: &[u8], len: usize) -> Vec<u8> {
    let tail = [&[0], Hash::Sha256.digest_info_prefix(), digest].concat();
    let mut block = vec![0xff; len];
    block[..2].copy_from_slice(&[0, 1]);
    block[len - tail.len()..].copy_from_slice(&tail);
    block
}

fn agree(key: &agreement::PrivateKey, peer: &[u8]) -> Result<Vec<u8>, BenchError> {
    let failed = BenchError::Setup("key agreement failed".to_owned());
    let peer = PeerKey::new(key.algorithm(), peer);
    agreement::agree(key, peer, failed, |secret| Ok(secret.to_vec()))
}

fn refused(error: impl fmt::Display) -> BenchError {
    BenchError::Setup(format!("the library refused: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_checks_what_the_library_yields() {
        for key in CryptoKey::value_variants() {
            // The larger keys take seconds to make, and differ in nothing else.
            if [CryptoKey::Rsa3072, CryptoKey::Rsa4096].contains(key) {
                continue;
            }
            let keys = Keys::generate(*key).expect("keys");
            for case in CASES.iter().filter(|case| case.key == *key) {
                let work = Work::new(*case, &keys).expect("inputs");
                for index in [5, 5 + INPUTS] {
                    if !work.has_library() {
                        continue;
                    }
                    let output = work.library(index).expect("an output");
                    assert!(work.is_expected(index, &output), "{case}");
                    work.check(index, &output).expect("the right output");
                    assert!(work.check(6, &output).is_err(), "{case}: of another job");
                    let mut flipped = output;
                    flipped[3] ^= 1;
                    assert!(
                        work.check(index, &flipped).is_err(),
                        "{case}: a flipped bit"
                    );
                }
            }
        }
    }

    #[test]
    fn every_type_of_key_has_a_case() {
        for key in CryptoKey::value_variants() {
            assert!(CASES.iter().any(|case| case.key == *key), "{key}");
        }
    }
}
