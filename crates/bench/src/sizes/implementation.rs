// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The libraries and interfaces that are compared, each behind [`OpenLibrary`].
//!
//! Every operation is complete, as in an application: a packet is sealed under a new nonce, a signature is made over
//! a message. Every result is checked: sealed packets and hashes against those of the other implementations, the
//! others by their own inverse.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::digest;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::kem;
use clap::ValueEnum;
use millrace_kernel_crypto::BulkInterface;

use super::kernel;
use super::repeat::{Function, Nonces, Prepared, RepeatedOperation, key};
use super::rows::{SizeRequest, SizeRow};
use crate::bench_key::BenchKey;
use crate::error::LibraryError;
use crate::libcrypto::{self, KeyPair, Libcrypto};
use crate::workload::LibraryKey;

/// The message that is signed: as long as what TLS signs after hashing.
const MESSAGE: [u8; 32] = [0x5a; 32];

/// A way to compute that needs no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Known {
    /// This machine's libcrypto.so.3
    Openssl,
    /// The same without the processor's AES and carry-less multiplication, everything else left on
    OpensslNoAes,
    /// The library of a node
    AwsLc,
    /// The kernel's ciphers by sockets
    AfAlg,
    /// The kernel's ciphers by the device of cryptodev-linux
    DevCrypto,
}

/// One way to compute: its library, and how its process is started.
#[derive(Clone, Debug)]
pub(super) struct Implementation {
    /// Name of the implementation in tables and files.
    pub(super) name: String,
    /// The libcrypto, by path or by the loader's name; `None` for AWS-LC, which is in this binary, and the kernel.
    pub(super) library: Option<PathBuf>,
    /// The kernel, by this interface.
    pub(super) kernel: Option<BulkInterface>,
    /// A variable in the environment of its process, because libraries read it when they start.
    pub(super) variable: Option<(&'static str, &'static str)>,
}

/// Turns off hardware AES and carry-less multiplication.
#[cfg(target_arch = "x86_64")]
const NO_AES: (&str, &str) = ("OPENSSL_ia32cap", millrace_sampler::NO_AES);

/// Leaves only the presence of the vector unit of an Arm processor.
#[cfg(not(target_arch = "x86_64"))]
const NO_AES: (&str, &str) = ("OPENSSL_armcap", "0x1");

impl From<Known> for Implementation {
    fn from(known: Known) -> Self {
        let system = || Some(PathBuf::from(libcrypto::SYSTEM));
        let (library, kernel, variable) = match known {
            Known::Openssl => (system(), None, None),
            Known::OpensslNoAes => (system(), None, Some(NO_AES)),
            Known::AwsLc => (None, None, None),
            Known::AfAlg => (None, Some(BulkInterface::AfAlg), None),
            Known::DevCrypto => (None, Some(BulkInterface::DevCrypto), None),
        };
        Self { name: known.to_string(), library, kernel, variable }
    }
}

impl From<&PathBuf> for Implementation {
    fn from(path: &PathBuf) -> Self {
        let name = path.display().to_string();
        Self { name, library: Some(path.clone()), kernel: None, variable: None }
    }
}

/// A library that is ready to compute.
pub(super) struct OpenLibrary {
    /// `None` for AWS-LC and the kernel.
    libcrypto: Option<Libcrypto>,
    kernel: Option<BulkInterface>,
    /// Keys are made once: an RSA key of 4096 bits takes seconds.
    keys: RefCell<HashMap<BenchKey, Rc<LibraryKey>>>,
}

impl OpenLibrary {
    /// Opens a libcrypto, or AWS-LC.
    pub(super) fn open(library: Option<&Path>) -> Result<Self, LibraryError> {
        let libcrypto = library.map(Libcrypto::open).transpose()?;
        Ok(Self { libcrypto, kernel: None, keys: RefCell::default() })
    }

    /// The kernel, by this interface.
    pub(super) fn of_kernel(interface: BulkInterface) -> Result<Self, LibraryError> {
        drop(kernel::sealer(interface, "AES-128-CBC", 16)?);
        Ok(Self { libcrypto: None, kernel: Some(interface), keys: RefCell::default() })
    }

    /// Version of the library and its view of the processor.
    pub(super) fn describe(&self) -> String {
        if let Some(interface) = self.kernel {
            return format!("Linux by {}", interface.name());
        }
        let aws_lc = || "AWS-LC, linked into this binary".to_owned();
        self.libcrypto.map_or_else(aws_lc, Libcrypto::describe)
    }

    /// Makes a row's operation ready for packets or blocks of `size` bytes.
    pub(super) fn prepare(&self, row: &SizeRow, size: usize) -> Result<Prepared, LibraryError> {
        if let Some(interface) = self.kernel {
            return match row.request {
                SizeRequest::Seal(name, len) => {
                    Prepared::of(|| kernel::sealer(interface, name, len), size)
                }
                SizeRequest::Hash(name) => Prepared::of(|| kernel::hasher(interface, name), size),
                SizeRequest::Sign(_)
                | SizeRequest::Verify(_)
                | SizeRequest::Derive(_)
                | SizeRequest::Encapsulate(_)
                | SizeRequest::Decapsulate(_) => Err(LibraryError::missing(row.name)),
            };
        }
        let plain = |run| Prepared { run, output: None };
        match (row.request, self.libcrypto) {
            (SizeRequest::Seal(name, len), Some(lib)) => {
                Prepared::of(|| libcrypto_sealer(lib, name, len), size)
            }
            (SizeRequest::Seal(name, len), None) => Prepared::of(|| aws_lc_sealer(name, len), size),
            (SizeRequest::Hash(name), Some(lib)) => {
                Prepared::of(|| libcrypto_hasher(lib, name), size)
            }
            (SizeRequest::Hash(name), None) => Prepared::of(|| aws_lc_hasher(name), size),
            (SizeRequest::Encapsulate(_), None) => aws_lc_encapsulation().map(plain),
            (SizeRequest::Decapsulate(_), None) => aws_lc_decapsulation().map(plain),
            (SizeRequest::Encapsulate(kind), Some(lib)) => {
                libcrypto_encapsulation(lib.key(kind)?).map(plain)
            }
            (SizeRequest::Decapsulate(kind), Some(lib)) => {
                libcrypto_decapsulation(lib.key(kind)?).map(plain)
            }
            (SizeRequest::Sign(kind), _) => signing(self.key(kind)?).map(plain),
            (SizeRequest::Verify(kind), _) => verification(self.key(kind)?).map(plain),
            (SizeRequest::Derive(kind), _) => {
                agreement(self.key(kind)?, self.make(kind)?).map(plain)
            }
        }
    }

    fn key(&self, kind: BenchKey) -> Result<Rc<LibraryKey>, LibraryError> {
        if let Some(key) = self.keys.borrow().get(&kind) {
            return Ok(Rc::clone(key));
        }
        let key = Rc::new(self.make(kind)?);
        self.keys.borrow_mut().insert(kind, Rc::clone(&key));
        Ok(key)
    }

    fn make(&self, kind: BenchKey) -> Result<LibraryKey, LibraryError> {
        match self.libcrypto {
            Some(lib) => Ok(LibraryKey::OpenSsl(RefCell::new(lib.key(kind)?))),
            // Keys of these types would be the system's OpenSSL's.
            None if matches!(kind, BenchKey::Dsa2048 | BenchKey::Dh2048) => {
                Err(LibraryError::missing(kind))
            }
            None => Ok(LibraryKey::generate(kind)?.1),
        }
    }
}

fn agreed(good: bool) -> Result<(), LibraryError> {
    let disagree = LibraryError::Wrong("both sides disagree");
    good.then_some(()).ok_or(disagree)
}

fn verified(good: bool) -> Result<(), LibraryError> {
    let invalid = LibraryError::Wrong("its signature does not verify");
    good.then_some(()).ok_or(invalid)
}

fn libcrypto_sealer(lib: Libcrypto, name: &str, len: usize) -> Result<Function, LibraryError> {
    let mut cipher = lib.cipher(name, &key(len))?;
    let mut nonces = Nonces::default();
    let unused = 16_usize.saturating_sub(cipher.iv_len());
    Ok(Box::new(move |packet, output| cipher.seal(&nonces.next()[unused..], packet, output)))
}

fn libcrypto_hasher(lib: Libcrypto, name: &str) -> Result<Function, LibraryError> {
    let mut digest = lib.digest(name)?;
    Ok(Box::new(move |block, output| digest.hash(block, output)))
}

fn libcrypto_encapsulation(key: KeyPair) -> Result<RepeatedOperation, LibraryError> {
    let (mut capsule, mut secret) = agreed_capsule(&key)?;
    Ok(Box::new(move || key.encapsulate(&mut capsule, &mut secret)))
}

fn libcrypto_decapsulation(key: KeyPair) -> Result<RepeatedOperation, LibraryError> {
    let (capsule, secret) = agreed_capsule(&key)?;
    let mut output = Vec::new();
    Ok(Box::new(move || {
        key.decapsulate(&capsule, &mut output)?;
        agreed(output == secret)
    }))
}

/// A capsule for this key and the secret on which both sides agree.
fn agreed_capsule(key: &KeyPair) -> Result<(Vec<u8>, Vec<u8>), LibraryError> {
    let mut capsule = Vec::new();
    let mut secret = Vec::new();
    let mut output = Vec::new();
    key.encapsulate(&mut capsule, &mut secret)?;
    key.decapsulate(&capsule, &mut output)?;
    agreed(output == secret)?;
    Ok((capsule, secret))
}

fn signing(key: Rc<LibraryKey>) -> Result<RepeatedOperation, LibraryError> {
    let mut signature = verified_signature(&key)?;
    Ok(Box::new(move || key.sign_message(&MESSAGE, &mut signature)))
}

fn verification(key: Rc<LibraryKey>) -> Result<RepeatedOperation, LibraryError> {
    let signature = verified_signature(&key)?;
    Ok(Box::new(move || verified(key.verify_message(&MESSAGE, &signature))))
}

fn verified_signature(key: &LibraryKey) -> Result<Vec<u8>, LibraryError> {
    let mut signature = Vec::new();
    key.sign_message(&MESSAGE, &mut signature)?;
    verified(key.verify_message(&MESSAGE, &signature))?;
    Ok(signature)
}

fn agreement(key: Rc<LibraryKey>, peer: LibraryKey) -> Result<RepeatedOperation, LibraryError> {
    let expected = peer.agree_with(&key)?;
    let public = peer.public_value()?;
    Ok(Box::new(move || {
        let secret = match &*key {
            LibraryKey::OpenSsl(_) => key.agree_with(&peer)?,
            _ => key.agree(&public)?,
        };
        agreed(secret == expected)
    }))
}

fn aws_lc_sealer(name: &str, len: usize) -> Result<Function, LibraryError> {
    let algorithm = match name {
        "AES-128-GCM" => &aead::AES_128_GCM,
        "AES-256-GCM" => &aead::AES_256_GCM,
        "ChaCha20-Poly1305" => &aead::CHACHA20_POLY1305,
        _ => return aws_lc_cbc(name, len),
    };
    let key =
        LessSafeKey::new(UnboundKey::new(algorithm, &key(len)).map_err(LibraryError::failed)?);
    let mut nonces = Nonces::default();
    Ok(Box::new(move |packet, output| {
        packet.clone_into(output);
        let [_, _, _, _, nonce @ ..] = nonces.next();
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::empty(), output).map_err(LibraryError::failed)
    }))
}

fn aws_lc_cbc(name: &str, len: usize) -> Result<Function, LibraryError> {
    let algorithm = match name {
        "AES-128-CBC" => &cipher::AES_128,
        "AES-256-CBC" => &cipher::AES_256,
        _ => return Err(LibraryError::missing(name)),
    };
    let key = UnboundCipherKey::new(algorithm, &key(len)).map_err(LibraryError::failed)?;
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).map_err(LibraryError::failed)?;
    let mut nonces = Nonces::default();
    Ok(Box::new(move |packet, output| {
        packet.clone_into(output);
        let iv = EncryptionContext::Iv128(FixedLength::from(nonces.next()));
        key.less_safe_encrypt(output, iv).map(drop).map_err(LibraryError::failed)
    }))
}

fn aws_lc_hasher(name: &str) -> Result<Function, LibraryError> {
    let algorithm = match name {
        "SHA1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        "SHA256" => &digest::SHA256,
        "SHA512" => &digest::SHA512,
        _ => return Err(LibraryError::missing(name)),
    };
    Ok(Box::new(move |block, output| {
        digest::digest(algorithm, block).as_ref().clone_into(output);
        Ok(())
    }))
}

fn aws_lc_encapsulation() -> Result<RepeatedOperation, LibraryError> {
    let key = kem::DecapsulationKey::generate(&kem::ML_KEM_768).map_err(LibraryError::failed)?;
    let public = key.encapsulation_key().map_err(LibraryError::failed)?;
    Ok(Box::new(move || public.encapsulate().map(drop).map_err(LibraryError::failed)))
}

fn aws_lc_decapsulation() -> Result<RepeatedOperation, LibraryError> {
    let key = kem::DecapsulationKey::generate(&kem::ML_KEM_768).map_err(LibraryError::failed)?;
    let public = key.encapsulation_key().map_err(LibraryError::failed)?;
    let (capsule, secret) = public.encapsulate().map_err(LibraryError::failed)?;
    let capsule = capsule.as_ref().to_vec();
    Ok(Box::new(move || {
        let found = key.decapsulate(capsule.as_slice().into()).map_err(LibraryError::failed)?;
        agreed(found.as_ref() == secret.as_ref())
    }))
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn implementations_agree_on_every_byte_and_check_what_they_compute() {
        let openssl = OpenLibrary::open(Some(Path::new(libcrypto::SYSTEM))).expect("OpenSSL");
        let aws_lc = OpenLibrary::open(None).expect("AWS-LC");
        // Making large RSA keys takes seconds, and they add nothing to what the small one shows.
        let large = |name: &str| name.starts_with("rsa-3072") || name.starts_with("rsa-4096");
        for row in ROWS.iter().filter(|row| !large(row.name)) {
            let size = 1420;
            let ours = aws_lc.prepare(row, size);
            let theirs = openssl.prepare(row, size);
            for prepared in [&ours, &theirs] {
                if let Err(reason) = prepared {
                    let missing = matches!(reason, LibraryError::Missing(_));
                    assert!(missing, "{}: {reason}", row.name);
                }
            }
            let (Ok(mut ours), Ok(mut theirs)) = (ours, theirs) else {
                continue;
            };
            assert_eq!(ours.output, theirs.output, "{}", row.name);
            assert_eq!(ours.output.is_some(), row.request.sized(), "{}", row.name);
            (ours.run)().expect(row.name);
            (theirs.run)().expect(row.name);
        }
    }
}
