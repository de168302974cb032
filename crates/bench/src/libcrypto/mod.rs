// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Any libcrypto of this machine (OpenSSL 3.0 and later), opened at run time and called directly.
//!
//! This libcrypto is not a backend but the peer that measurements compare with: the very file that the gateways of this
//! machine use, a slow build of it, or another release. The binary links none.
//!
//! ```text
//!  Libcrypto::open ─► cipher(name, key) ─► seal one packet ─┐
//!                  ─► digest(name)      ─► hash one block   ├─ as an application does it: a new nonce,
//!                  ─► key(kind)         ─► sign, verify, …  ┘  the whole call, the result checked
//! ```
//!
//! A cipher, digest or key belongs to one thread.

#[expect(
    unsafe_code,
    reason = "calls into a library opened at run time; the only unsafe code of this crate"
)]
mod sys;

pub(crate) use self::sys::{KeyPair, Libcrypto};

/// The name under which the loader finds this machine's OpenSSL 3.
pub(crate) const SYSTEM: &str = "libcrypto.so.3";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench_key::BenchKey;
    use crate::error::LibraryError;

    fn system() -> Libcrypto {
        Libcrypto::open(Path::new(SYSTEM)).expect("the system's OpenSSL 3")
    }

    #[test]
    fn sealed_packet_has_its_tag_and_depends_on_the_nonce() {
        // The bytes are compared with those of AWS-LC in `sizes`.
        let mut cipher = system().cipher("AES-256-GCM", &[0; 32]).expect("cipher");
        assert_eq!(cipher.iv_len(), 12);
        let mut one = Vec::new();
        let mut two = Vec::new();
        cipher.seal(&[1; 12], &[0; 16], &mut one).expect("sealed");
        cipher.seal(&[2; 12], &[0; 16], &mut two).expect("sealed");
        assert_eq!((one.len(), two.len()), (32, 32));
        assert_ne!(one, two);
        let short = cipher.seal(&[3; 11], &[0; 16], &mut one);
        assert!(matches!(short, Err(LibraryError::Failed(_))), "a short nonce");
    }

    /// NIST SP 800-38A, F.5.5: a cipher without a tag adds nothing to the packet.
    #[test]
    fn counter_mode_is_that_of_the_standard() {
        let key = [
            0x603d_eb10_15ca_71be_2b73_aef0_857d_7781_u128,
            0x1f35_2c07_3b61_08d7_2d98_10a3_0914_dff4,
        ];
        let key = key.map(u128::to_be_bytes).concat();
        let iv = 0xf0f1_f2f3_f4f5_f6f7_f8f9_fafb_fcfd_feff_u128.to_be_bytes();
        let packet = 0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128.to_be_bytes();
        let mut cipher = system().cipher("AES-256-CTR", &key).expect("cipher");
        let mut output = Vec::new();
        cipher.seal(&iv, &packet, &mut output).expect("encrypted");
        assert_eq!(output, 0x601e_c313_7757_89a5_b7a7_f504_bbf3_d228_u128.to_be_bytes());
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
            let peer = lib.key(kind).expect("key");
            let mut here = Vec::new();
            let mut there = Vec::new();
            key.derive(&peer, &mut here).expect("secret");
            peer.derive(&key, &mut there).expect("secret");
            assert!(!here.is_empty() && here == there, "{kind:?}");
        }
    }

    #[test]
    fn missing_algorithm_or_library_is_an_error_that_says_so() {
        let lib = system();
        let missing = |error| matches!(error, Some(LibraryError::Missing(_)));
        assert!(missing(lib.cipher("ROT-13", &[0; 16]).err()));
        assert!(missing(lib.cipher("AES-256-GCM", &[0; 16]).err()), "a short key");
        assert!(missing(lib.digest("CRC").err()));
        let none = Libcrypto::open(Path::new("/nonexistent/libcrypto.so"));
        assert!(matches!(none, Err(LibraryError::Open { .. })));
        let other = Libcrypto::open(Path::new("libc.so.6"));
        assert!(matches!(other, Err(LibraryError::Open { .. })), "no libcrypto at all");
    }
}
