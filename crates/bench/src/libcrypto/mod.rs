// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Any libcrypto of this machine, opened at run time and called directly.
//!
//! No backend: it is the peer that measurements compare with, and it is exactly the file that the
//! gateways of this machine use (or a slow build of it, or one for another purpose). OpenSSL 3.0 and
//! later; nothing is linked.
//!
//! ```text
//!  Libcrypto::open ─► cipher(name, key) ─► seal one packet ─┐
//!                  ─► digest(name)      ─► hash one block   ├─ each as an application does it: fresh
//!                  ─► key(kind)         ─► sign, verify, …  ┘  nonce, whole call, result checked
//! ```
//!
//! One handle belongs to one thread; nothing here is shared.

#[expect(
    unsafe_code,
    reason = "calls into a library opened at run time; the only unsafe code of this crate"
)]
mod sys;

use std::ffi::CString;
use std::path::Path;

use zeroize::Zeroizing;

use self::sys::{Context, Digester, Lib, PublicKeyContext};
use crate::error::LibraryError;
use crate::workload::BenchKey;

/// The name under which the loader finds this machine's OpenSSL 3.
pub(crate) const SYSTEM: &str = "libcrypto.so.3";

/// Bytes of an authentication tag.
const TAG_LEN: usize = 16;

/// Bytes of the longest IV of a cipher that is offered here.
const MAX_IV_LEN: usize = 16;

/// An opened library.
#[derive(Debug)]
pub(crate) struct Libcrypto {
    lib: &'static Lib,
}

impl Libcrypto {
    /// Opens a library, which stays mapped as long as the process lives.
    ///
    /// # Errors
    /// [`LibraryError::Open`].
    pub(crate) fn open(path: &Path) -> Result<Self, LibraryError> {
        let lib = Lib::open(path)?;
        Ok(Self {
            lib: Box::leak(Box::new(lib)),
        })
    }

    /// `OpenSSL 3.0.17 1 Jul 2025`
    #[must_use]
    pub(crate) fn version(&self) -> String {
        self.lib.text(sys::VERSION)
    }

    /// What it says of the processor; `CPUINFO: N/A` where it was built without assembly.
    #[must_use]
    pub(crate) fn processor(&self) -> String {
        self.lib.text(sys::CPU_INFO)
    }

    /// A cipher for packets: AEAD (`AES-256-GCM`, `ChaCha20-Poly1305`) or `AES-256-CBC`.
    ///
    /// # Errors
    /// [`LibraryError::Missing`].
    pub(crate) fn cipher(&self, name: &str, key: &[u8]) -> Result<PacketCipher, LibraryError> {
        let missing = || LibraryError::Missing(name.to_owned());
        let text = CString::new(name).map_err(|_| missing())?;
        let (context, iv_len) = Context::new(self.lib, &text, key).ok_or_else(missing)?;
        if iv_len > MAX_IV_LEN {
            return Err(missing());
        }
        Ok(PacketCipher {
            context,
            iv: [0; MAX_IV_LEN],
            iv_len,
            aead: !name.ends_with("CBC"),
        })
    }

    /// A hash function.
    ///
    /// # Errors
    /// [`LibraryError::Missing`].
    pub(crate) fn digest(&self, name: &str) -> Result<BlockDigest, LibraryError> {
        let missing = || LibraryError::Missing(name.to_owned());
        let text = CString::new(name).map_err(|_| missing())?;
        let digester = Digester::new(self.lib, &text).ok_or_else(missing)?;
        Ok(BlockDigest { digester })
    }

    /// A new key.
    ///
    /// # Errors
    /// [`LibraryError::Missing`] if the library has no such algorithm.
    pub(crate) fn key(&self, kind: BenchKey) -> Result<Key, LibraryError> {
        let missing = || LibraryError::Missing(kind.to_string());
        let own = PublicKeyContext::generate(self.lib, kind).ok_or_else(missing)?;
        // A peer for agreements; its public half is what a client would send.
        let peer = match kind {
            BenchKey::P256 | BenchKey::X25519 | BenchKey::Dh2048 => {
                Some(own.sibling(kind).ok_or_else(missing)?)
            }
            _ => None,
        };
        Ok(Key { own, peer, kind })
    }
}

/// Seals packets under one key, each with a nonce of its own.
#[derive(Debug)]
pub(crate) struct PacketCipher {
    context: Context,
    iv: [u8; MAX_IV_LEN],
    iv_len: usize,
    aead: bool,
}

impl PacketCipher {
    /// Encrypts one packet into `output`, replacing what is there; the tag follows if the cipher has
    /// one. The nonce counts up with each call, from one.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn seal(&mut self, packet: &[u8], output: &mut Vec<u8>) -> Result<(), LibraryError> {
        for byte in self.iv[..self.iv_len].iter_mut().rev() {
            *byte = byte.wrapping_add(1);
            if *byte != 0 {
                break;
            }
        }
        let tag = if self.aead { TAG_LEN } else { 0 };
        self.context
            .seal(&self.iv[..self.iv_len], packet, tag, output)
            .ok_or_else(|| failed("encryption"))
    }
}

/// Hashes blocks.
#[derive(Debug)]
pub(crate) struct BlockDigest {
    digester: Digester,
}

impl BlockDigest {
    /// The hash of one block.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn hash(&mut self, block: &[u8], output: &mut Vec<u8>) -> Result<(), LibraryError> {
        self.digester
            .hash(block, output)
            .ok_or_else(|| failed("hashing"))
    }
}

/// A call failed that must not.
fn failed(what: &str) -> LibraryError {
    LibraryError::Failed(format!("libcrypto failed in {what}"))
}

/// A key, and the operations that it can do.
#[derive(Debug)]
pub(crate) struct Key {
    own: PublicKeyContext,
    peer: Option<PublicKeyContext>,
    kind: BenchKey,
}

impl Key {
    /// Signs a message (SHA-256 where the algorithm has no hash of its own), as TLS does.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn sign(
        &mut self,
        message: &[u8],
        signature: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        self.own
            .sign(self.hash(), message, signature)
            .ok_or_else(|| failed("signing"))
    }

    /// Whether a signature is good.
    pub(crate) fn verify(&mut self, message: &[u8], signature: &[u8]) -> bool {
        self.own.verify(self.hash(), message, signature)
    }

    /// The secret agreed on with the peer.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn derive(&self, secret: &mut Vec<u8>) -> Result<(), LibraryError> {
        let peer = self.peer.as_ref();
        peer.and_then(|peer| self.own.derive(peer, self.is_padded(), secret))
            .ok_or_else(|| failed("agreement"))
    }

    /// The same secret from the peer's side.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn derive_as_peer(&self, secret: &mut Vec<u8>) -> Result<(), LibraryError> {
        let peer = self.peer.as_ref();
        peer.and_then(|peer| peer.derive(&self.own, self.is_padded(), secret))
            .ok_or_else(|| failed("agreement"))
    }

    /// The private key in PKCS#8, not encrypted.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn pkcs8(&self) -> Result<Zeroizing<Vec<u8>>, LibraryError> {
        self.own.pkcs8().ok_or_else(|| failed("encoding a key"))
    }

    /// The public value of the peer that [`Self::derive`] agrees with, as TLS sends it.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn peer_public(&self) -> Result<Vec<u8>, LibraryError> {
        let peer = self.peer.as_ref();
        peer.and_then(PublicKeyContext::public_value)
            .ok_or_else(|| failed("encoding a public value"))
    }

    /// A new secret and its capsule for this key.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn encapsulate(
        &self,
        capsule: &mut Vec<u8>,
        secret: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        self.own
            .encapsulate(capsule, secret)
            .ok_or_else(|| failed("encapsulation"))
    }

    /// The secret in a capsule.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub(crate) fn decapsulate(
        &self,
        capsule: &[u8],
        secret: &mut Vec<u8>,
    ) -> Result<(), LibraryError> {
        self.own
            .decapsulate(capsule, secret)
            .ok_or_else(|| failed("decapsulation"))
    }

    fn is_padded(&self) -> bool {
        self.kind == BenchKey::Dh2048
    }

    /// The hash that goes before the signature, unless the algorithm has its own.
    fn hash(&self) -> Option<&'static std::ffi::CStr> {
        match self.kind {
            BenchKey::Ed25519 | BenchKey::MlDsa44 | BenchKey::MlDsa65 | BenchKey::MlDsa87 => None,
            _ => Some(c"SHA256"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system() -> Libcrypto {
        Libcrypto::open(Path::new("libcrypto.so.3")).expect("the system's OpenSSL 3")
    }

    #[test]
    fn packets_are_sealed_as_the_test_vector_says() {
        // NIST GCM test case 14 has an all-zero nonce; with ours, counted from one, the tag differs but
        // the length does not. The known answer is that of AWS-LC, compared in millrace-bench.
        let mut cipher = system().cipher("AES-256-GCM", &[0; 32]).expect("cipher");
        let (mut one, mut two) = (Vec::new(), Vec::new());
        cipher.seal(&[0; 16], &mut one).expect("sealed");
        cipher.seal(&[0; 16], &mut two).expect("sealed");
        assert_eq!((one.len(), two.len()), (32, 32));
        assert_ne!(one, two, "a nonce is never used twice");
    }

    #[test]
    fn hashes_are_right() {
        let mut digest = system().digest("SHA256").expect("hash");
        let mut output = Vec::new();
        digest.hash(b"abc", &mut output).expect("hashed");
        assert_eq!(output[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(output.len(), 32);
    }

    #[test]
    fn keys_sign_verify_and_agree() {
        let lib = system();
        for kind in [BenchKey::Rsa2048, BenchKey::P256, BenchKey::Ed25519] {
            let mut key = lib.key(kind).expect("key");
            let mut signature = Vec::new();
            key.sign(b"message", &mut signature).expect("signature");
            assert!(key.verify(b"message", &signature), "{kind:?}");
            assert!(!key.verify(b"massage", &signature), "{kind:?}");
        }
        for kind in [BenchKey::P256, BenchKey::X25519, BenchKey::Dh2048] {
            let key = lib.key(kind).expect("key");
            let (mut here, mut there) = (Vec::new(), Vec::new());
            key.derive(&mut here).expect("secret");
            key.derive_as_peer(&mut there).expect("secret");
            assert!(!here.is_empty() && here == there, "{kind:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_said() {
        let lib = system();
        assert!(matches!(
            lib.cipher("ROT-13", &[0; 16]),
            Err(LibraryError::Missing(_))
        ));
        assert!(matches!(lib.digest("CRC"), Err(LibraryError::Missing(_))));
        let none = Libcrypto::open(Path::new("/nonexistent/libcrypto.so"));
        assert!(matches!(none, Err(LibraryError::Open { .. })));
        let other = Libcrypto::open(Path::new("libc.so.6"));
        assert!(
            matches!(other, Err(LibraryError::Open { .. })),
            "no libcrypto at all"
        );
    }
}
