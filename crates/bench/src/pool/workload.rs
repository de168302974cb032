// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that are measured: a key, inputs, the library called directly, and a check of
//! every kind of output.

use std::fmt;

use aws_lc_rs::agreement;
use aws_lc_rs::digest;
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RSA_PSS_2048_8192_SHA256, RSA_PSS_SHA256,
    RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use clap::ValueEnum;
use rcgen::{KeyPair, PKCS_ED25519};
use serde::Serialize;
use zeroize::Zeroizing;

use millrace_engine::{Hash, Operation, PrivateKey};

use crate::error::BenchError;
use crate::keys::{KeyKind, generate};

/// Different inputs per workload: enough that nothing is answered from a cache of one entry.
const INPUTS: usize = 256;

/// The fixed bytes in front of the 32 of an X25519 private key in PKCS#8 (RFC 8410 section 7).
const X25519_PKCS8_PREFIX: [u8; 16] =
    *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20";

/// Which operation is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// RSASSA-PKCS1-v1_5 with RSA-2048 and SHA-256.
    RsaPkcs1Sign,
    /// RSASSA-PSS with RSA-2048 and SHA-256.
    RsaPssSign,
    /// ECDSA with P-256 and SHA-256.
    EcdsaSign,
    /// Ed25519 over 32 bytes.
    #[value(name = "ed25519-sign")]
    #[serde(rename = "ed25519-sign")]
    Ed25519Sign,
    /// X25519 with another public key.
    #[value(name = "x25519-derive")]
    #[serde(rename = "x25519-derive")]
    X25519Derive,
}

impl Workload {
    /// The name of the operation, as everywhere.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RsaPkcs1Sign => "rsa-pkcs1-sign",
            Self::RsaPssSign => "rsa-pss-sign",
            Self::EcdsaSign => "ecdsa-sign",
            Self::Ed25519Sign => "ed25519-sign",
            Self::X25519Derive => "x25519-derive",
        }
    }

    /// The key that it uses.
    #[must_use]
    pub fn key_name(self) -> &'static str {
        match self {
            Self::RsaPkcs1Sign | Self::RsaPssSign => "rsa-2048",
            Self::EcdsaSign => "p-256",
            Self::Ed25519Sign => "ed25519",
            Self::X25519Derive => "x25519",
        }
    }

    /// The key that `openssl speed` knows the same operation by, if it does.
    pub(crate) fn speed_key(self) -> Option<KeyKind> {
        match self {
            Self::RsaPkcs1Sign => Some(KeyKind::Rsa2048),
            Self::EcdsaSign => Some(KeyKind::P256),
            Self::RsaPssSign | Self::Ed25519Sign | Self::X25519Derive => None,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A workload with its key and inputs.
pub(crate) struct Job {
    pub(crate) workload: Workload,
    pub(crate) key: PrivateKey,
    pub(crate) operation: Operation,
    inputs: Vec<Input>,
    check: Check,
    library: Library,
}

/// What one operation works on.
struct Input {
    /// What the library takes: a message that it hashes, or a public key.
    message: Vec<u8>,
    /// What a node takes: the digest of the message, or the same as the library.
    job: Vec<u8>,
    /// The expected output, where it is known beforehand.
    expected: Option<Vec<u8>>,
}

/// How an output is checked.
enum Check {
    Signature {
        algorithm: &'static dyn VerificationAlgorithm,
        public_key: Vec<u8>,
    },
    Equal,
}

/// The key inside the library.
enum Library {
    RsaPkcs1(RsaKeyPair),
    RsaPss(RsaKeyPair),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    X25519(agreement::PrivateKey),
}

impl Job {
    /// Makes a key and inputs.
    pub(crate) fn new(workload: Workload) -> Result<Self, BenchError> {
        match workload {
            Workload::RsaPkcs1Sign => {
                let pair = generate(KeyKind::Rsa2048)?;
                let library = RsaKeyPair::from_pkcs8(pair.serialized_der()).map_err(refused)?;
                let operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
                let library = Library::RsaPkcs1(library);
                Self::signing(
                    workload,
                    &pair,
                    library,
                    operation,
                    &RSA_PKCS1_2048_8192_SHA256,
                )
            }
            Workload::RsaPssSign => {
                let pair = generate(KeyKind::Rsa2048)?;
                let library = RsaKeyPair::from_pkcs8(pair.serialized_der()).map_err(refused)?;
                let hash = Hash::Sha256;
                let operation = Operation::RsaPssSign {
                    hash,
                    mgf_hash: hash,
                    salt_len: 32,
                };
                let library = Library::RsaPss(library);
                Self::signing(
                    workload,
                    &pair,
                    library,
                    operation,
                    &RSA_PSS_2048_8192_SHA256,
                )
            }
            Workload::EcdsaSign => {
                let pair = generate(KeyKind::P256)?;
                let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
                let library =
                    EcdsaKeyPair::from_pkcs8(algorithm, pair.serialized_der()).map_err(refused)?;
                let operation = Operation::EcdsaSign { hash: Hash::Sha256 };
                let library = Library::Ecdsa(library);
                Self::signing(workload, &pair, library, operation, &ECDSA_P256_SHA256_ASN1)
            }
            Workload::Ed25519Sign => {
                let pair = KeyPair::generate_for(&PKCS_ED25519).map_err(refused)?;
                let library = Ed25519KeyPair::from_pkcs8(pair.serialized_der()).map_err(refused)?;
                let library = Library::Ed25519(library);
                Self::signing(workload, &pair, library, Operation::Ed25519Sign, &ED25519)
            }
            Workload::X25519Derive => Self::x25519(),
        }
    }

    fn signing(
        workload: Workload,
        pair: &KeyPair,
        library: Library,
        operation: Operation,
        algorithm: &'static dyn VerificationAlgorithm,
    ) -> Result<Self, BenchError> {
        let input = |index: usize| {
            let message = digest::digest(&digest::SHA256, &index.to_be_bytes())
                .as_ref()
                .to_vec();
            let job = match operation.hash() {
                None => message.clone(),
                Some(_) => digest::digest(&digest::SHA256, &message).as_ref().to_vec(),
            };
            Input {
                message,
                job,
                expected: None,
            }
        };
        let mut made = Self {
            workload,
            key: PrivateKey::from_pkcs8(Zeroizing::new(pair.serialized_der().to_vec())),
            inputs: (0..INPUTS).map(input).collect(),
            operation,
            check: Check::Signature {
                algorithm,
                public_key: pair.public_key_raw().to_vec(),
            },
            library,
        };
        if matches!(made.library, Library::RsaPkcs1(_) | Library::Ed25519(_)) {
            // Deterministic: what the library says is what a node must say, byte for byte.
            for index in 0..INPUTS {
                let expected = made.run_library(index)?;
                made.inputs[index].expected = Some(expected);
            }
        }
        Ok(made)
    }

    fn x25519() -> Result<Self, BenchError> {
        let random = SystemRandom::new();
        let secret = || -> Result<_, BenchError> {
            let mut bytes = Zeroizing::new([0_u8; 32]);
            random.fill(bytes.as_mut()).map_err(refused)?;
            let key = agreement::PrivateKey::from_private_key(&agreement::X25519, bytes.as_ref())
                .map_err(refused)?;
            Ok((bytes, key))
        };
        let (bytes, own) = secret()?;
        let own_public = own.compute_public_key().map_err(refused)?;
        let mut inputs = Vec::with_capacity(INPUTS);
        for _ in 0..INPUTS {
            let (_, peer) = secret()?;
            let message = peer
                .compute_public_key()
                .map_err(refused)?
                .as_ref()
                .to_vec();
            let expected = Some(agree(&peer, own_public.as_ref())?);
            inputs.push(Input {
                job: message.clone(),
                message,
                expected,
            });
        }
        let mut pkcs8 = Zeroizing::new(X25519_PKCS8_PREFIX.to_vec());
        pkcs8.extend_from_slice(bytes.as_ref());
        Ok(Self {
            workload: Workload::X25519Derive,
            key: PrivateKey::from_pkcs8(pkcs8),
            operation: Operation::X25519,
            inputs,
            check: Check::Equal,
            library: Library::X25519(own),
        })
    }

    /// The input of job number `index`, as a node takes it.
    pub(crate) fn input(&self, index: usize) -> Vec<u8> {
        self.inputs[index % INPUTS].job.clone()
    }

    /// Does job number `index` by calling the library directly.
    pub(crate) fn run_library(&self, index: usize) -> Result<Vec<u8>, BenchError> {
        let message = &self.inputs[index % INPUTS].message;
        let random = SystemRandom::new();
        let rsa = |pair: &RsaKeyPair, algorithm| {
            let mut signature = vec![0; pair.public_modulus_len()];
            pair.sign(algorithm, &random, message, &mut signature)
                .map_err(refused)?;
            Ok(signature)
        };
        match &self.library {
            Library::RsaPkcs1(pair) => rsa(pair, &RSA_PKCS1_SHA256),
            Library::RsaPss(pair) => rsa(pair, &RSA_PSS_SHA256),
            Library::Ecdsa(pair) => Ok(pair
                .sign(&random, message)
                .map_err(refused)?
                .as_ref()
                .to_vec()),
            Library::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Library::X25519(key) => agree(key, message),
        }
    }

    /// # Errors
    /// [`BenchError::Wrong`] if this is not what job number `index` must yield.
    pub(crate) fn check(&self, index: usize, output: &[u8]) -> Result<(), BenchError> {
        let input = &self.inputs[index % INPUTS];
        let known = input
            .expected
            .as_deref()
            .is_none_or(|expected| expected == output);
        let valid = match &self.check {
            Check::Equal => true,
            Check::Signature {
                algorithm,
                public_key,
            } => UnparsedPublicKey::new(*algorithm, public_key)
                .verify(&input.message, output)
                .is_ok(),
        };
        if known && valid {
            return Ok(());
        }
        Err(BenchError::Wrong(format!(
            "{}: the output of job {index} is wrong",
            self.workload
        )))
    }
}

fn agree(key: &agreement::PrivateKey, peer: &[u8]) -> Result<Vec<u8>, BenchError> {
    let peer = agreement::UnparsedPublicKey::new(&agreement::X25519, peer);
    let failed = BenchError::Setup("key agreement failed".to_owned());
    agreement::agree(key, peer, failed, |secret| Ok(secret.to_vec()))
}

fn refused(error: impl fmt::Display) -> BenchError {
    BenchError::Setup(format!("the library refused: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_checks_what_the_library_yields() {
        for &workload in Workload::value_variants() {
            let job = Job::new(workload).expect("a key and inputs");
            let output = job.run_library(7).expect("an output");
            job.check(7, &output).expect("the right output");
            job.check(7 + INPUTS, &output).expect("inputs repeat");
            assert!(
                job.check(8, &output).is_err(),
                "{workload}: the output of another job"
            );
            let mut flipped = output;
            flipped[3] ^= 1;
            assert!(job.check(7, &flipped).is_err(), "{workload}: a flipped bit");
        }
    }
}
