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

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::digest;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::kem;

use super::rows::{Request, Row};
use crate::error::LibraryError;
use crate::libcrypto::{self, Key, Libcrypto};
use crate::workload::{BenchKey, Library, agree};

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
        let system = || Source::Libcrypto(PathBuf::from(libcrypto::SYSTEM));
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
    /// The libcrypto that was opened; none for AWS-LC.
    libcrypto: Option<Libcrypto>,
    /// Keys are made once: an RSA key of 4096 bits takes seconds.
    keys: RefCell<HashMap<BenchKey, SharedKey>>,
}

/// A key of either library, shared by the operations on it.
#[derive(Clone)]
enum SharedKey {
    Libcrypto(Rc<RefCell<Key>>),
    AwsLc(Rc<Library>),
}

/// One operation that can be repeated.
pub(crate) type Operation = Box<dyn FnMut() -> Result<(), LibraryError>>;

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
    pub(crate) fn open(source: &Source) -> Result<Self, LibraryError> {
        let libcrypto = match source {
            Source::Libcrypto(path) => Some(Libcrypto::open(path)?),
            Source::AwsLc => None,
        };
        Ok(Self {
            libcrypto,
            keys: RefCell::default(),
        })
    }

    /// What it says of itself and of the processor.
    pub(crate) fn describe(&self) -> String {
        match &self.libcrypto {
            Some(lib) => format!("{}; {}", lib.version(), lib.processor()),
            None => "AWS-LC, linked into this binary".to_owned(),
        }
    }

    /// Makes a row's operation ready for packets or blocks of `size` bytes.
    ///
    /// # Errors
    /// Why this implementation does not do it.
    pub(crate) fn prepare(&self, row: &Row, size: usize) -> Result<Prepared, LibraryError> {
        let plain = |run| Prepared { run, output: None };
        let lib = self.libcrypto.as_ref();
        match row.request {
            Request::Seal(name, len) => {
                let sealer = || match lib {
                    Some(lib) => libcrypto_sealer(lib, name, len),
                    None => aws_lc_sealer(name, len),
                };
                repeated(sealer, size)
            }
            Request::Hash(name) => {
                let hasher = || match lib {
                    Some(lib) => libcrypto_hasher(lib, name),
                    None => aws_lc_hasher(name),
                };
                repeated(hasher, size)
            }
            Request::Encapsulate(_) | Request::Decapsulate(_) if lib.is_none() => {
                aws_lc_kem(row.request).map(plain)
            }
            Request::Sign(kind)
            | Request::Verify(kind)
            | Request::Derive(kind)
            | Request::Encapsulate(kind)
            | Request::Decapsulate(kind) => match self.key(kind)? {
                SharedKey::Libcrypto(key) => libcrypto_public(key, row.request).map(plain),
                SharedKey::AwsLc(key) => aws_lc_public(key, row.request, kind).map(plain),
            },
        }
    }

    fn key(&self, kind: BenchKey) -> Result<SharedKey, LibraryError> {
        if let Some(key) = self.keys.borrow().get(&kind) {
            return Ok(key.clone());
        }
        let key = match &self.libcrypto {
            Some(lib) => SharedKey::Libcrypto(Rc::new(RefCell::new(lib.key(kind)?))),
            // Keys of these types would be the system's OpenSSL's.
            None if matches!(kind, BenchKey::Dsa2048 | BenchKey::Dh2048) => {
                return Err(LibraryError::Missing(kind.to_string()));
            }
            None => SharedKey::AwsLc(Rc::new(Library::generate(kind)?.1)),
        };
        self.keys.borrow_mut().insert(kind, key.clone());
        Ok(key)
    }
}

/// Computes from an input into a buffer.
type Function = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> Result<(), LibraryError>>;

/// A function made ready for inputs of `size` bytes, with its first output, which all implementations
/// share: it is computed by an instance of its own, because nonces count up.
fn repeated(
    function: impl Fn() -> Result<Function, LibraryError>,
    size: usize,
) -> Result<Prepared, LibraryError> {
    let (input, mut first, mut output) = (contents(size), Vec::new(), Vec::new());
    function()?(&input, &mut first)?;
    let mut function = function()?;
    Ok(Prepared {
        run: Box::new(move || function(&input, &mut output)),
        output: Some(first),
    })
}

/// The contents of packets: no pattern that anything could be fast with.
fn contents(size: usize) -> Vec<u8> {
    (0..size)
        .map(|offset| offset.wrapping_mul(167).to_le_bytes()[0])
        .collect()
}

/// A symmetric key with a length.
fn key(len: usize) -> Vec<u8> {
    (0..len)
        .map(|offset| offset.wrapping_mul(29).wrapping_add(7).to_le_bytes()[0])
        .collect()
}

fn failed(error: impl std::fmt::Display) -> LibraryError {
    LibraryError::Failed(error.to_string())
}

fn missing(what: impl std::fmt::Display) -> LibraryError {
    LibraryError::Missing(what.to_string())
}

fn agreed(good: bool) -> Result<(), LibraryError> {
    good.then_some(())
        .ok_or(LibraryError::Wrong("both sides disagree"))
}

fn verified(good: bool) -> Result<(), LibraryError> {
    good.then_some(())
        .ok_or(LibraryError::Wrong("its signature does not verify"))
}

fn libcrypto_sealer(lib: &Libcrypto, name: &str, len: usize) -> Result<Function, LibraryError> {
    let mut cipher = lib.cipher(name, &key(len))?;
    Ok(Box::new(move |packet, output| cipher.seal(packet, output)))
}

fn libcrypto_hasher(lib: &Libcrypto, name: &str) -> Result<Function, LibraryError> {
    let mut digest = lib.digest(name)?;
    Ok(Box::new(move |block, output| digest.hash(block, output)))
}

fn libcrypto_public(key: Rc<RefCell<Key>>, request: Request) -> Result<Operation, LibraryError> {
    let (mut output, mut other, mut capsule) = (Vec::new(), Vec::new(), Vec::new());
    let mut own = key.borrow_mut();
    let again = Rc::clone(&key);
    Ok(match request {
        Request::Sign(_) | Request::Verify(_) => {
            own.sign(&MESSAGE, &mut output)?;
            verified(own.verify(&MESSAGE, &output))?;
            match request {
                Request::Sign(_) => {
                    Box::new(move || again.borrow_mut().sign(&MESSAGE, &mut output))
                }
                _ => Box::new(move || verified(again.borrow_mut().verify(&MESSAGE, &output))),
            }
        }
        Request::Derive(_) => {
            own.derive_as_peer(&mut other)?;
            Box::new(move || {
                again.borrow_mut().derive(&mut output)?;
                agreed(output == other)
            })
        }
        _ => {
            own.encapsulate(&mut capsule, &mut other)?;
            own.decapsulate(&capsule, &mut output)?;
            agreed(output == other)?;
            match request {
                Request::Encapsulate(_) => {
                    Box::new(move || again.borrow_mut().encapsulate(&mut capsule, &mut output))
                }
                _ => Box::new(move || {
                    again.borrow_mut().decapsulate(&capsule, &mut output)?;
                    agreed(output == other)
                }),
            }
        }
    })
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

fn aws_lc_sealer(name: &str, len: usize) -> Result<Function, LibraryError> {
    let algorithm = match name {
        "AES-128-GCM" => &aead::AES_128_GCM,
        "AES-256-GCM" => &aead::AES_256_GCM,
        "ChaCha20-Poly1305" => &aead::CHACHA20_POLY1305,
        _ => return aws_lc_cbc(name, len),
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, &key(len)).map_err(failed)?);
    let mut nonces = Counter([0; 12]);
    Ok(Box::new(move |packet, output| {
        output.clear();
        output.extend_from_slice(packet);
        let nonce = Nonce::assume_unique_for_key(nonces.next());
        key.seal_in_place_append_tag(nonce, Aad::empty(), output)
            .map_err(failed)
    }))
}

fn aws_lc_cbc(name: &str, len: usize) -> Result<Function, LibraryError> {
    let algorithm = match name {
        "AES-128-CBC" => &cipher::AES_128,
        "AES-256-CBC" => &cipher::AES_256,
        _ => return Err(missing(name)),
    };
    let key = UnboundCipherKey::new(algorithm, &key(len)).map_err(failed)?;
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).map_err(failed)?;
    let mut ivs = Counter([0; 16]);
    Ok(Box::new(move |packet, output| {
        output.clear();
        output.extend_from_slice(packet);
        let iv = EncryptionContext::Iv128(FixedLength::from(ivs.next()));
        key.less_safe_encrypt(output, iv).map(drop).map_err(failed)
    }))
}

fn aws_lc_hasher(name: &str) -> Result<Function, LibraryError> {
    let algorithm = match name {
        "SHA1" => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        "SHA256" => &digest::SHA256,
        "SHA512" => &digest::SHA512,
        _ => return Err(missing(name)),
    };
    Ok(Box::new(move |block, output| {
        output.clear();
        output.extend_from_slice(digest::digest(algorithm, block).as_ref());
        Ok(())
    }))
}

fn aws_lc_public(
    key: Rc<Library>,
    request: Request,
    kind: BenchKey,
) -> Result<Operation, LibraryError> {
    if let Request::Derive(_) = request {
        let peer = Library::generate(kind)?.1;
        let public = |key: &Library| {
            let key = key.agreement()?.compute_public_key().map_err(failed)?;
            Ok::<_, LibraryError>(key.as_ref().to_vec())
        };
        let expected = agree(peer.agreement()?, &public(&key)?)?;
        let public = public(&peer)?;
        return Ok(Box::new(move || {
            agreed(agree(key.agreement()?, &public)? == expected)
        }));
    }
    let mut signature = Vec::new();
    key.sign_message(&MESSAGE, &mut signature)?;
    verified(key.verify_message(&MESSAGE, &signature))?;
    Ok(match request {
        Request::Sign(_) => Box::new(move || key.sign_message(&MESSAGE, &mut signature)),
        _ => Box::new(move || verified(key.verify_message(&MESSAGE, &signature))),
    })
}

fn aws_lc_kem(request: Request) -> Result<Operation, LibraryError> {
    let key = kem::DecapsulationKey::generate(&kem::ML_KEM_768).map_err(failed)?;
    let public = key.encapsulation_key().map_err(failed)?;
    if matches!(request, Request::Encapsulate(_)) {
        return Ok(Box::new(move || {
            public.encapsulate().map(drop).map_err(failed)
        }));
    }
    let (capsule, secret) = public.encapsulate().map_err(failed)?;
    let capsule = capsule.as_ref().to_vec();
    Ok(Box::new(move || {
        let found = key.decapsulate(capsule.as_slice().into()).map_err(failed)?;
        agreed(found.as_ref() == secret.as_ref())
    }))
}

#[cfg(test)]
mod tests {
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn implementations_agree_on_every_byte_and_check_what_they_compute() {
        let openssl =
            Opened::open(&Source::Libcrypto(PathBuf::from(libcrypto::SYSTEM))).expect("OpenSSL");
        let aws_lc = Opened::open(&Source::AwsLc).expect("AWS-LC");
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

    #[test]
    fn every_known_name_has_an_implementation() {
        for name in KNOWN {
            assert_eq!(Implementation::named(name).expect(name).name, name);
        }
        assert_eq!(Implementation::named("abacus"), None);
    }
}
