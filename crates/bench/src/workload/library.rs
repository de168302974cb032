// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys inside the library that backends compute with (AWS-LC), and its operations called directly: the peer of
//! every comparison. AWS-LC's interface has no DH and no DSA; the system's OpenSSL makes keys of these types and
//! verifies their outputs.

use std::cell::RefCell;
use std::path::Path;

use aws_lc_rs::agreement::{self, UnparsedPublicKey as PeerKey};
use aws_lc_rs::digest::Digest;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::rsa::{
    KeySize, OAEP_SHA256_MGF1SHA256, OaepPrivateDecryptingKey, OaepPublicEncryptingKey,
    Pkcs1PrivateDecryptingKey, Pkcs1PublicEncryptingKey, PrivateDecryptingKey,
};
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, PqdsaKeyPair,
    PqdsaSigningAlgorithm, RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use millrace_operation::{OperationKind, PrivateKey};
use zeroize::Zeroizing;

use crate::bench_key::BenchKey;
use crate::error::LibraryError;
use crate::libcrypto::{self, Libcrypto, SYSTEM};

/// Keys of each type. They take turns, so that neighbours in a batch share nothing.
pub(crate) const KEYS: usize = 4;

/// The fixed bytes in front of the 32 of an X25519 private key in PKCS#8 (RFC 8410 section 7).
const X25519_PKCS8_PREFIX: [u8; 16] =
    *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20";

/// The keys of one type, made once for all operations on them.
pub(crate) struct Keys {
    pub(super) key: BenchKey,
    pkcs8: Vec<Zeroizing<Vec<u8>>>,
    pub(super) library: Vec<LibraryKey>,
}

impl Keys {
    pub(crate) fn generate(key: BenchKey) -> Result<Self, LibraryError> {
        let made: Result<Vec<_>, _> = (0..KEYS).map(|_| LibraryKey::generate(key)).collect();
        let (pkcs8, library) = made?.into_iter().unzip();
        Ok(Self { key, pkcs8, library })
    }

    /// The keys as a backend takes them.
    pub(crate) fn private_keys(&self) -> impl Iterator<Item = PrivateKey> {
        self.pkcs8.iter().map(|der| PrivateKey::from_pkcs8(der.clone()))
    }
}

/// A key inside the library.
pub(crate) enum LibraryKey {
    Rsa(Box<Rsa>),
    Ec {
        pair: EcdsaKeyPair,
        agreement: agreement::PrivateKey,
    },
    X25519(agreement::PrivateKey),
    Ed25519(Ed25519KeyPair),
    MlDsa(PqdsaKeyPair),
    /// A key of the system's OpenSSL.
    OpenSsl(RefCell<libcrypto::KeyPair>),
}

/// An RSA key in the forms that the library has for each operation.
pub(crate) struct Rsa {
    pub(super) pair: RsaKeyPair,
    oaep: OaepPrivateDecryptingKey,
    pkcs1: Pkcs1PrivateDecryptingKey,
    to_oaep: OaepPublicEncryptingKey,
    to_pkcs1: Pkcs1PublicEncryptingKey,
}

type Generated = Result<(Zeroizing<Vec<u8>>, LibraryKey), LibraryError>;

impl LibraryKey {
    /// A new key, in PKCS#8 and inside the library.
    pub(crate) fn generate(key: BenchKey) -> Generated {
        let random = SystemRandom::new();
        match key {
            BenchKey::Rsa2048 => rsa(KeySize::Rsa2048),
            BenchKey::Rsa3072 => rsa(KeySize::Rsa3072),
            BenchKey::Rsa4096 => rsa(KeySize::Rsa4096),
            BenchKey::P256 => {
                let signing = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
                ec(signing, &agreement::ECDH_P256)
            }
            BenchKey::P384 => {
                let signing = &signature::ECDSA_P384_SHA384_ASN1_SIGNING;
                ec(signing, &agreement::ECDH_P384)
            }
            BenchKey::X25519 => {
                let mut bytes = Zeroizing::new([0_u8; 32]);
                random.fill(bytes.as_mut()).map_err(failed)?;
                let pkcs8 = Zeroizing::new([&X25519_PKCS8_PREFIX, &bytes[..]].concat());
                let key = agreement::PrivateKey::from_private_key(&agreement::X25519, &bytes[..]);
                Ok((pkcs8, Self::X25519(key.map_err(failed)?)))
            }
            BenchKey::Ed25519 => {
                let pkcs8 = Ed25519KeyPair::generate_pkcs8v1(&random).map_err(failed)?;
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8.as_ref());
                let pkcs8 = Zeroizing::new(pkcs8.as_ref().to_vec());
                Ok((pkcs8, Self::Ed25519(pair.map_err(failed)?)))
            }
            BenchKey::MlDsa44 => ml_dsa(&signature::ML_DSA_44_SIGNING),
            BenchKey::MlDsa65 => ml_dsa(&signature::ML_DSA_65_SIGNING),
            BenchKey::MlDsa87 => ml_dsa(&signature::ML_DSA_87_SIGNING),
            BenchKey::Dh2048 | BenchKey::Dsa2048 => {
                let key = Libcrypto::open(Path::new(SYSTEM))?.key(key)?;
                Ok((key.pkcs8()?, Self::OpenSsl(RefCell::new(key))))
            }
            // No operation here: P-521 is measured in handshakes, ML-KEM in the libraries' own rows.
            BenchKey::P521 | BenchKey::MlKem768 => {
                Err(LibraryError::Missing(format!("{key} as a private key")))
            }
        }
    }

    /// Signs a message, hashing included where the algorithm signs a digest.
    pub(crate) fn sign_message(
        &self,
        message: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(rsa) => {
                into.resize(rsa.pair.public_modulus_len(), 0);
                let padding = &signature::RSA_PKCS1_SHA256;
                rsa.pair.sign(padding, &random, message, into).map_err(failed)?;
            }
            Self::MlDsa(pair) => {
                into.resize(pair.algorithm().signature_len(), 0);
                pair.sign(message, into).map_err(failed)?;
            }
            Self::Ec { pair, .. } => {
                let signature = pair.sign(&random, message).map_err(failed)?;
                signature.as_ref().clone_into(into);
            }
            Self::Ed25519(pair) => pair.sign(message).as_ref().clone_into(into),
            Self::OpenSsl(key) => key.borrow_mut().sign(message, into)?,
            Self::X25519(_) => return Err(missing("signatures")),
        }
        Ok(())
    }

    /// Signs a digest, as a node does, or the whole message where the algorithm hashes by itself.
    pub(super) fn sign(
        &self,
        operation: OperationKind,
        digest: &Digest,
    ) -> Result<Vec<u8>, LibraryError> {
        let mut signature = Vec::new();
        match self {
            Self::Rsa(rsa) => {
                let padding = match operation {
                    OperationKind::RsaPssSign => &signature::RSA_PSS_SHA256,
                    _ => &signature::RSA_PKCS1_SHA256,
                };
                signature.resize(rsa.pair.public_modulus_len(), 0);
                rsa.pair.sign_digest(padding, digest, &mut signature).map_err(failed)?;
            }
            Self::Ec { pair, .. } => {
                signature = pair.sign_digest(digest).map_err(failed)?.as_ref().to_vec();
            }
            _ => self.sign_message(digest.as_ref(), &mut signature)?,
        }
        Ok(signature)
    }

    /// Verifies a signature over a message.
    pub(crate) fn verify_message(&self, message: &[u8], signature: &[u8]) -> bool {
        if let Self::OpenSsl(key) = self {
            return key.borrow_mut().verify(message, signature);
        }
        let verifier = self.verifier(&signature::RSA_PKCS1_2048_8192_SHA256);
        verifier.is_some_and(|public| public.verify(message, signature).is_ok())
    }

    /// Verifies a randomised signature: PSS, ECDSA and DSA sign the digest of `message`, ML-DSA signs the
    /// digest's bytes as its message.
    pub(super) fn verify(&self, message: &[u8], digest: &Digest, signature: &[u8]) -> bool {
        if let Self::OpenSsl(key) = self {
            return key.borrow_mut().verify(message, signature);
        }
        let verifier = self.verifier(&signature::RSA_PSS_2048_8192_SHA256);
        verifier.is_some_and(|public| match self {
            Self::MlDsa(_) => public.verify(digest.as_ref(), signature).is_ok(),
            _ => public.verify_digest(digest, signature).is_ok(),
        })
    }

    fn verifier(
        &self,
        rsa: &'static dyn VerificationAlgorithm,
    ) -> Option<UnparsedPublicKey<&[u8]>> {
        let (algorithm, public): (&'static dyn VerificationAlgorithm, &[u8]) = match self {
            Self::Rsa(key) => (rsa, key.pair.public_key().as_ref()),
            Self::Ec { pair, agreement } => {
                let public = pair.public_key().as_ref();
                if *agreement.algorithm() == agreement::ECDH_P256 {
                    (&signature::ECDSA_P256_SHA256_ASN1, public)
                } else {
                    (&signature::ECDSA_P384_SHA384_ASN1, public)
                }
            }
            Self::Ed25519(pair) => (&signature::ED25519, pair.public_key().as_ref()),
            Self::MlDsa(pair) => {
                let public = pair.public_key().as_ref();
                match pair.algorithm().signature_len() {
                    2420 => (&signature::ML_DSA_44, public),
                    3309 => (&signature::ML_DSA_65, public),
                    _ => (&signature::ML_DSA_87, public),
                }
            }
            Self::X25519(_) | Self::OpenSsl(_) => return None,
        };
        Some(UnparsedPublicKey::new(algorithm, public))
    }

    fn agreement(&self) -> Result<&agreement::PrivateKey, LibraryError> {
        match self {
            Self::Ec { agreement, .. } | Self::X25519(agreement) => Ok(agreement),
            _ => Err(missing("agreement")),
        }
    }

    /// The public value that a peer agrees with.
    pub(crate) fn public_value(&self) -> Result<Vec<u8>, LibraryError> {
        if let Self::OpenSsl(key) = self {
            return key.borrow().public_value();
        }
        let public = self.agreement()?.compute_public_key().map_err(failed)?;
        Ok(public.as_ref().to_vec())
    }

    /// The secret agreed on with a public value.
    pub(crate) fn agree(&self, public: &[u8]) -> Result<Vec<u8>, LibraryError> {
        let key = self.agreement()?;
        let failed = LibraryError::Failed("key agreement failed".to_owned());
        let peer = PeerKey::new(key.algorithm(), public);
        agreement::agree(key, peer, failed, |secret| Ok(secret.to_vec()))
    }

    /// The secret agreed on with another key of this type.
    pub(crate) fn agree_with(&self, other: &Self) -> Result<Vec<u8>, LibraryError> {
        let (Self::OpenSsl(own), Self::OpenSsl(other)) = (self, other) else {
            return self.agree(&other.public_value()?);
        };
        let mut secret = Vec::new();
        own.borrow().derive(&other.borrow(), &mut secret)?;
        Ok(secret)
    }
}

impl Rsa {
    pub(super) fn seal_oaep(&self, secret: &[u8]) -> Result<Vec<u8>, LibraryError> {
        let mut sealed = vec![0; self.to_oaep.ciphertext_size()];
        let oaep = &OAEP_SHA256_MGF1SHA256;
        self.to_oaep.encrypt(oaep, secret, &mut sealed, None).map_err(failed)?;
        Ok(sealed)
    }

    pub(super) fn seal_pkcs1(&self, secret: &[u8]) -> Result<Vec<u8>, LibraryError> {
        let mut sealed = vec![0; self.to_pkcs1.ciphertext_size()];
        self.to_pkcs1.encrypt(secret, &mut sealed).map_err(failed)?;
        Ok(sealed)
    }

    pub(super) fn open(
        &self,
        operation: OperationKind,
        sealed: &[u8],
    ) -> Result<Vec<u8>, LibraryError> {
        let mut output = vec![0; self.pair.public_modulus_len()];
        let oaep = &OAEP_SHA256_MGF1SHA256;
        let opened = match operation {
            OperationKind::RsaOaepDecrypt => self.oaep.decrypt(oaep, sealed, &mut output, None),
            _ => self.pkcs1.decrypt(sealed, &mut output),
        };
        Ok(opened.map_err(failed)?.to_vec())
    }
}

fn rsa(size: KeySize) -> Generated {
    let key = PrivateDecryptingKey::generate(size).map_err(failed)?;
    let der = AsDer::as_der(&key).map_err(failed)?;
    let pkcs8 = Zeroizing::new(der.as_ref().to_vec());
    let rsa = Rsa {
        pair: RsaKeyPair::from_pkcs8(&pkcs8).map_err(failed)?,
        to_oaep: OaepPublicEncryptingKey::new(key.public_key()).map_err(failed)?,
        to_pkcs1: Pkcs1PublicEncryptingKey::new(key.public_key()).map_err(failed)?,
        oaep: OaepPrivateDecryptingKey::new(key.clone()).map_err(failed)?,
        pkcs1: Pkcs1PrivateDecryptingKey::new(key).map_err(failed)?,
    };
    Ok((pkcs8, LibraryKey::Rsa(Box::new(rsa))))
}

fn ec(
    signing: &'static EcdsaSigningAlgorithm,
    agreeing: &'static agreement::Algorithm,
) -> Generated {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(signing, &SystemRandom::new()).map_err(failed)?;
    let pair = EcdsaKeyPair::from_pkcs8(signing, pkcs8.as_ref()).map_err(failed)?;
    let agreement = agreement::PrivateKey::from_private_key_der(agreeing, pkcs8.as_ref());
    let library = LibraryKey::Ec { pair, agreement: agreement.map_err(failed)? };
    Ok((Zeroizing::new(pkcs8.as_ref().to_vec()), library))
}

fn ml_dsa(algorithm: &'static PqdsaSigningAlgorithm) -> Generated {
    let pair = PqdsaKeyPair::generate(algorithm).map_err(failed)?;
    let pkcs8: Pkcs8V1Der<'_> = pair.private_key().as_der().map_err(failed)?;
    Ok((Zeroizing::new(pkcs8.as_ref().to_vec()), LibraryKey::MlDsa(pair)))
}

fn missing(what: &str) -> LibraryError {
    LibraryError::Missing(format!("{what} with this key"))
}

fn failed(error: impl std::fmt::Display) -> LibraryError {
    LibraryError::Failed(format!("AWS-LC refused: {error}"))
}
