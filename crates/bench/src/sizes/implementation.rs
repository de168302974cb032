// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The implementations that are compared, each behind the same few calls.
//!
//! Every operation is a whole one, as an application does it: a packet is sealed under a new nonce, a
//! signature is made over a message. Every result is checked: sealed packets and hashes by comparing
//! them between implementations, the others by their own inverse.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::libcrypto::{Key, KeyKind, Libcrypto};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement;
use aws_lc_rs::cipher::{self, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::digest;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::kem;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, PqdsaKeyPair, RsaKeyPair, UnparsedPublicKey,
};

use super::rows::{Row, Work};

/// The message that is signed: as long as what TLS signs after hashing.
const MESSAGE: [u8; 32] = [0x5a; 32];

/// One way to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Implementation {
    /// Its name in tables and files.
    pub(crate) name: String,
    /// Where it comes from.
    pub(crate) source: Source,
    /// What its process gets into its environment, because libraries read it when they start.
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// Where an implementation comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A libcrypto, by path or by the loader's name.
    Libcrypto(PathBuf),
    /// AWS-LC, as it is in this binary.
    AwsLc,
}

/// Turns off what the first capability word has of hardware AES (bit 57) and carry-less multiplication
/// (bit 33), and nothing else. The second word has to be given, with nothing to turn off: a mask of one
/// word clears the second, too, and with it AVX2, AVX-512 and SHA (measured with OpenSSL 3.0).
const NO_AES_X86: &str = "~0x200000200000000:~0x0";

/// Leaves only the presence of the vector unit of what an Arm processor has.
const NO_AES_ARM: &str = "0x1";

/// Names of the implementations that need no path.
pub(crate) const KNOWN: [&str; 3] = ["openssl", "openssl-no-aes", "aws-lc"];

impl Implementation {
    /// The one of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let system = || Source::Libcrypto(PathBuf::from("libcrypto.so.3"));
        let (source, environment) = match name {
            "openssl" => (system(), vec![]),
            "openssl-no-aes" if cfg!(target_arch = "x86_64") => {
                (system(), vec![("OPENSSL_ia32cap", NO_AES_X86.into())])
            }
            "openssl-no-aes" => (system(), vec![("OPENSSL_armcap", NO_AES_ARM.into())]),
            "aws-lc" => (Source::AwsLc, vec![]),
            _ => return None,
        };
        Some(Self {
            name: name.to_owned(),
            source,
            environment,
        })
    }

    /// A libcrypto that the user names.
    pub(crate) fn library(path: &Path) -> Self {
        Self {
            name: path.display().to_string(),
            source: Source::Libcrypto(path.to_owned()),
            environment: vec![],
        }
    }
}

/// An implementation that is ready to compute.
pub(crate) struct Opened {
    library: Library,
    /// Keys are made once: an RSA key of 4096 bits takes seconds.
    keys: RefCell<HashMap<KeyKind, Keys>>,
}

enum Library {
    Libcrypto(Libcrypto),
    AwsLc,
}

/// A key of either library, shared by the operations on it.
#[derive(Clone)]
enum Keys {
    Libcrypto(Rc<RefCell<Key>>),
    AwsLc(Rc<AwsLcSigner>),
}

/// One operation that can be repeated. `Err` says what went wrong.
pub(crate) type Operation = Box<dyn FnMut() -> Result<(), String>>;

/// An operation made ready.
pub(crate) struct Prepared {
    /// Does it once.
    pub(crate) run: Operation,
    /// What the first one gives, if every implementation must give the same.
    pub(crate) output: Option<Vec<u8>>,
}

impl Opened {
    /// # Errors
    /// Why it is not there.
    pub(crate) fn open(source: &Source) -> Result<Self, String> {
        let library = match source {
            Source::Libcrypto(path) => Library::Libcrypto(Libcrypto::open(path).map_err(text)?),
            Source::AwsLc => Library::AwsLc,
        };
        Ok(Self {
            library,
            keys: RefCell::default(),
        })
    }

    /// What it says of itself and of the processor.
    pub(crate) fn describe(&self) -> String {
        match &self.library {
            Library::Libcrypto(lib) => format!("{}; {}", lib.version(), lib.processor()),
            Library::AwsLc => "AWS-LC, linked into this binary".to_owned(),
        }
    }

    /// Makes a row's operation ready for packets or blocks of `size` bytes.
    ///
    /// # Errors
    /// Why this implementation does not do it.
    pub(crate) fn prepare(&self, row: &Row, size: usize) -> Result<Prepared, String> {
        let plain = |run| Prepared { run, output: None };
        match (&self.library, row.work) {
            (Library::Libcrypto(lib), Work::Seal(name, len)) => {
                libcrypto_seal(lib, name, len, size)
            }
            (Library::Libcrypto(lib), Work::Hash(name)) => libcrypto_hash(lib, name, size),
            (Library::AwsLc, Work::Seal(name, len)) => aws_lc_seal(name, len, size),
            (Library::AwsLc, Work::Hash(name)) => aws_lc_hash(name, size),
            (
                Library::AwsLc,
                Work::Derive(kind) | Work::Encapsulate(kind) | Work::Decapsulate(kind),
            ) => aws_lc_agreement(row.work, kind).map(plain),
            (
                _,
                Work::Sign(kind)
                | Work::Verify(kind)
                | Work::Derive(kind)
                | Work::Encapsulate(kind)
                | Work::Decapsulate(kind),
            ) => match self.key(kind)? {
                Keys::Libcrypto(key) => libcrypto_public(key, row.work).map(plain),
                Keys::AwsLc(key) => aws_lc_signature(key, row.work).map(plain),
            },
        }
    }

    fn key(&self, kind: KeyKind) -> Result<Keys, String> {
        if let Some(keys) = self.keys.borrow().get(&kind) {
            return Ok(keys.clone());
        }
        let keys = match &self.library {
            Library::Libcrypto(lib) => {
                Keys::Libcrypto(Rc::new(RefCell::new(lib.key(kind).map_err(text)?)))
            }
            Library::AwsLc => Keys::AwsLc(Rc::new(AwsLcSigner::new(kind)?)),
        };
        self.keys.borrow_mut().insert(kind, keys.clone());
        Ok(keys)
    }
}

/// The packets' contents: no pattern that anything could be fast with.
fn contents(size: usize) -> Vec<u8> {
    (0..size)
        .map(|at| at.wrapping_mul(167).to_le_bytes()[0])
        .collect()
}

/// A key with a length.
fn key(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| at.wrapping_mul(29).wrapping_add(7).to_le_bytes()[0])
        .collect()
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn libcrypto_seal(
    lib: &Libcrypto,
    name: &str,
    len: usize,
    size: usize,
) -> Result<Prepared, String> {
    let mut first = Vec::new();
    lib.cipher(name, &key(len))
        .and_then(|mut cipher| cipher.seal(&contents(size), &mut first))
        .map_err(text)?;
    let mut cipher = lib.cipher(name, &key(len)).map_err(text)?;
    let (packet, mut output) = (contents(size), Vec::new());
    Ok(Prepared {
        run: Box::new(move || cipher.seal(&packet, &mut output).map_err(text)),
        output: Some(first),
    })
}

fn libcrypto_hash(lib: &Libcrypto, name: &str, size: usize) -> Result<Prepared, String> {
    let mut digest = lib.digest(name).map_err(text)?;
    let (block, mut output, mut first) = (contents(size), Vec::new(), Vec::new());
    digest.hash(&block, &mut first).map_err(text)?;
    Ok(Prepared {
        run: Box::new(move || digest.hash(&block, &mut output).map_err(text)),
        output: Some(first),
    })
}

/// `good`, or in words that it is not.
fn agreed(good: bool) -> Result<(), String> {
    good.then_some(())
        .ok_or_else(|| "both sides disagree".to_owned())
}

/// `good`, or in words that it is not.
fn verified(good: bool) -> Result<(), String> {
    good.then_some(())
        .ok_or_else(|| "its signature does not verify".to_owned())
}

fn libcrypto_public(key: Rc<RefCell<Key>>, work: Work) -> Result<Operation, String> {
    let (mut output, mut other) = (Vec::new(), Vec::new());
    let mut own = key.borrow_mut();
    let run: Operation = match work {
        Work::Sign(_) | Work::Verify(_) => {
            own.sign(&MESSAGE, &mut output).map_err(text)?;
            verified(own.verify(&MESSAGE, &output))?;
            let key = Rc::clone(&key);
            match work {
                Work::Sign(_) => {
                    Box::new(move || key.borrow_mut().sign(&MESSAGE, &mut output).map_err(text))
                }
                _ => Box::new(move || verified(key.borrow_mut().verify(&MESSAGE, &output))),
            }
        }
        Work::Derive(_) => {
            own.derive_as_peer(&mut other).map_err(text)?;
            let key = Rc::clone(&key);
            Box::new(move || {
                key.borrow_mut().derive(&mut output).map_err(text)?;
                agreed(output == other)
            })
        }
        _ => {
            let mut capsule = Vec::new();
            own.encapsulate(&mut capsule, &mut other).map_err(text)?;
            own.decapsulate(&capsule, &mut output).map_err(text)?;
            agreed(output == other)?;
            let key = Rc::clone(&key);
            match work {
                Work::Encapsulate(_) => Box::new(move || {
                    key.borrow_mut()
                        .encapsulate(&mut capsule, &mut output)
                        .map_err(text)
                }),
                _ => Box::new(move || {
                    key.borrow_mut()
                        .decapsulate(&capsule, &mut output)
                        .map_err(text)?;
                    agreed(output == other)
                }),
            }
        }
    };
    Ok(run)
}

/// Counts nonces up from one, as [`crate::libcrypto::PacketCipher`] does.
struct Counter<const LEN: usize>([u8; LEN]);

impl<const LEN: usize> Counter<LEN> {
    fn next(&mut self) -> [u8; LEN] {
        for byte in self.0.iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        self.0
    }
}

fn aws_lc_seal(name: &str, len: usize, size: usize) -> Result<Prepared, String> {
    let mut first = Vec::new();
    aws_lc_sealer(name, len)?(&contents(size), &mut first)?;
    let mut seal = aws_lc_sealer(name, len)?;
    let (packet, mut output) = (contents(size), Vec::new());
    Ok(Prepared {
        run: Box::new(move || seal(&packet, &mut output)),
        output: Some(first),
    })
}

fn aws_lc_hash(name: &str, size: usize) -> Result<Prepared, String> {
    let algorithm = match name {
        "SHA1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        "SHA256" => &digest::SHA256,
        "SHA512" => &digest::SHA512,
        _ => return Err(absent(name)),
    };
    let block = contents(size);
    let first = digest::digest(algorithm, &block).as_ref().to_vec();
    let expected = first.clone();
    Ok(Prepared {
        run: Box::new(move || {
            let good = digest::digest(algorithm, &block).as_ref() == expected;
            good.then_some(())
                .ok_or_else(|| "its hash differs from before".to_owned())
        }),
        output: Some(first),
    })
}

fn absent(what: &str) -> String {
    format!("this libcrypto has no {what}")
}

type Sealer = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> Result<(), String>>;

fn aws_lc_sealer(name: &str, len: usize) -> Result<Sealer, String> {
    let algorithm = match name {
        "AES-128-GCM" => &aead::AES_128_GCM,
        "AES-256-GCM" => &aead::AES_256_GCM,
        "ChaCha20-Poly1305" => &aead::CHACHA20_POLY1305,
        _ => return aws_lc_cbc(name, len),
    };
    let key = UnboundKey::new(algorithm, &key(len)).map_err(text)?;
    let key = LessSafeKey::new(key);
    let mut nonces = Counter([0; 12]);
    Ok(Box::new(move |packet, output| {
        output.clear();
        output.extend_from_slice(packet);
        let nonce = Nonce::assume_unique_for_key(nonces.next());
        key.seal_in_place_append_tag(nonce, Aad::empty(), output)
            .map_err(text)
    }))
}

fn aws_lc_cbc(name: &str, len: usize) -> Result<Sealer, String> {
    let algorithm = match name {
        "AES-128-CBC" => &cipher::AES_128,
        "AES-256-CBC" => &cipher::AES_256,
        _ => return Err(absent(name)),
    };
    let key = UnboundCipherKey::new(algorithm, &key(len)).map_err(text)?;
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).map_err(text)?;
    let mut ivs = Counter([0; 16]);
    Ok(Box::new(move |packet, output| {
        output.clear();
        output.extend_from_slice(packet);
        let iv = EncryptionContext::Iv128(FixedLength::from(ivs.next()));
        key.less_safe_encrypt(output, iv).map(drop).map_err(text)
    }))
}

fn aws_lc_signature(key: Rc<AwsLcSigner>, work: Work) -> Result<Operation, String> {
    let mut signature = Vec::new();
    key.sign(&mut signature)?;
    key.verify(&signature)?;
    Ok(match work {
        Work::Sign(_) => Box::new(move || key.sign(&mut signature)),
        _ => Box::new(move || key.verify(&signature)),
    })
}

fn aws_lc_agreement(work: Work, kind: KeyKind) -> Result<Operation, String> {
    let algorithm = match kind {
        KeyKind::P256 => &agreement::ECDH_P256,
        KeyKind::X25519 => &agreement::X25519,
        KeyKind::MlKem768 => return aws_lc_kem(work),
        _ => return Err(absent(&kind.to_string())),
    };
    let own = agreement::PrivateKey::generate(algorithm).map_err(text)?;
    let peer = agreement::PrivateKey::generate(algorithm).map_err(text)?;
    let agree = |own: &agreement::PrivateKey, public: &[u8]| {
        let public = agreement::UnparsedPublicKey::new(algorithm, public);
        let failed = || "agreement failed".to_owned();
        agreement::agree(own, public, failed(), |secret| Ok(secret.to_vec()))
    };
    let mine = own.compute_public_key().map_err(text)?;
    let public = peer.compute_public_key().map_err(text)?;
    let expected = agree(&peer, mine.as_ref())?;
    Ok(Box::new(move || {
        agreed(agree(&own, public.as_ref())? == expected)
    }))
}

fn aws_lc_kem(work: Work) -> Result<Operation, String> {
    let key = kem::DecapsulationKey::generate(&kem::ML_KEM_768).map_err(text)?;
    let public = key.encapsulation_key().map_err(text)?;
    if matches!(work, Work::Encapsulate(_)) {
        return Ok(Box::new(move || {
            public.encapsulate().map(drop).map_err(text)
        }));
    }
    let (capsule, secret) = public.encapsulate().map_err(text)?;
    let capsule = capsule.as_ref().to_vec();
    Ok(Box::new(move || {
        let found = key.decapsulate(capsule.as_slice().into()).map_err(text)?;
        agreed(found.as_ref() == secret.as_ref())
    }))
}

/// AWS-LC's key pairs behind one face.
enum AwsLcSigner {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    MlDsa(PqdsaKeyPair),
}

impl AwsLcSigner {
    fn new(kind: KeyKind) -> Result<Self, String> {
        let rsa = |size| RsaKeyPair::generate(size).map(Self::Rsa).map_err(text);
        match kind {
            KeyKind::Rsa(2048) => rsa(KeySize::Rsa2048),
            KeyKind::Rsa(3072) => rsa(KeySize::Rsa3072),
            KeyKind::Rsa(4096) => rsa(KeySize::Rsa4096),
            KeyKind::P256 => EcdsaKeyPair::generate(&signature::ECDSA_P256_SHA256_ASN1_SIGNING)
                .map(Self::P256)
                .map_err(text),
            KeyKind::Ed25519 => Ed25519KeyPair::generate().map(Self::Ed25519).map_err(text),
            KeyKind::MlDsa65 => PqdsaKeyPair::generate(&signature::ML_DSA_65_SIGNING)
                .map(Self::MlDsa)
                .map_err(text),
            _ => Err(absent(&kind.to_string())),
        }
    }

    fn sign(&self, into: &mut Vec<u8>) -> Result<(), String> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                into.resize(pair.public_modulus_len(), 0);
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, &MESSAGE, into)
                    .map_err(text)
            }
            Self::P256(pair) => {
                let signature = pair.sign(&random, &MESSAGE).map_err(text)?;
                into.clear();
                into.extend_from_slice(signature.as_ref());
                Ok(())
            }
            Self::Ed25519(pair) => {
                into.clear();
                into.extend_from_slice(pair.sign(&MESSAGE).as_ref());
                Ok(())
            }
            Self::MlDsa(pair) => {
                into.resize(pair.algorithm().signature_len(), 0);
                pair.sign(&MESSAGE, into).map(drop).map_err(text)
            }
        }
    }

    fn verify(&self, signature: &[u8]) -> Result<(), String> {
        let checked = match self {
            Self::Rsa(pair) => UnparsedPublicKey::new(
                &signature::RSA_PKCS1_2048_8192_SHA256,
                pair.public_key().as_ref(),
            )
            .verify(&MESSAGE, signature),
            Self::P256(pair) => UnparsedPublicKey::new(
                &signature::ECDSA_P256_SHA256_ASN1,
                pair.public_key().as_ref(),
            )
            .verify(&MESSAGE, signature),
            Self::Ed25519(pair) => {
                UnparsedPublicKey::new(&signature::ED25519, pair.public_key().as_ref())
                    .verify(&MESSAGE, signature)
            }
            Self::MlDsa(pair) => {
                UnparsedPublicKey::new(&signature::ML_DSA_65, pair.public_key().as_ref())
                    .verify(&MESSAGE, signature)
            }
        };
        verified(checked.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn implementations_agree_on_every_byte_and_check_what_they_compute() {
        let openssl =
            Opened::open(&Source::Libcrypto(PathBuf::from("libcrypto.so.3"))).expect("OpenSSL");
        let aws_lc = Opened::open(&Source::AwsLc).expect("AWS-LC");
        // Making large RSA keys takes seconds, and they add nothing to what the small one shows.
        let large = |name: &str| name.starts_with("rsa-3072") || name.starts_with("rsa-4096");
        for row in ROWS.iter().filter(|row| !large(row.name)) {
            let size = 1420;
            let ours = aws_lc.prepare(row, size);
            let theirs = openssl.prepare(row, size);
            for prepared in [&ours, &theirs] {
                if let Err(reason) = prepared {
                    assert!(
                        reason.starts_with("this libcrypto has no"),
                        "{}: {reason}",
                        row.name
                    );
                }
            }
            let (Ok(mut ours), Ok(mut theirs)) = (ours, theirs) else {
                continue;
            };
            assert_eq!(ours.output, theirs.output, "{}", row.name);
            assert_eq!(ours.output.is_some(), row.work.sized(), "{}", row.name);
            (ours.run)().expect(row.name);
            (theirs.run)().expect(row.name);
        }
    }

    #[test]
    fn every_known_name_has_an_implementation() {
        for name in KNOWN {
            assert_eq!(Implementation::named(name).expect(name).name, name);
        }
        assert_eq!(Implementation::named("abacus"), None);
    }
}
