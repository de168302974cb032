// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The key derivation of TLS 1.3 (RFC 8446, section 7.1) in the two modes of OpenSSL's `TLS13-KDF`, and the derivation
//! of an X25519 key for HPKE (RFC 9180, section 7.1.3).

use std::sync::OnceLock;

use zeroize::Zeroizing;

use super::LocalError;
use super::hkdf::{self, HkdfHash};
use super::sys::{self, MAX_DIGEST};

/// The hash of no bytes, which the extraction takes for the transcript.
const EMPTY_SHA256: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];
const EMPTY_SHA384: [u8; 48] = [
    0x38, 0xb0, 0x60, 0xa7, 0x51, 0xac, 0x96, 0x38, 0x4c, 0xd9, 0x32, 0x7e, 0xb1, 0xb1, 0xe3, 0x6a,
    0x21, 0xfd, 0xb7, 0x11, 0x14, 0xbe, 0x07, 0x43, 0x4c, 0x0c, 0xc7, 0xbf, 0x63, 0xf6, 0xe1, 0xda,
    0x27, 0x4e, 0xde, 0xbf, 0xe7, 0x6f, 0x65, 0xfb, 0xd5, 0x1a, 0xd2, 0xf1, 0x48, 0x98, 0xb9, 0x5b,
];
const EMPTY_SHA512: [u8; 64] = [
    0xcf, 0x83, 0xe1, 0x35, 0x7e, 0xef, 0xb8, 0xbd, 0xf1, 0x54, 0x28, 0x50, 0xd6, 0x6d, 0x80, 0x07,
    0xd6, 0x20, 0xe4, 0x05, 0x0b, 0x57, 0x15, 0xdc, 0x83, 0xf4, 0xa9, 0x21, 0xd3, 0x6c, 0xe9, 0xce,
    0x47, 0xd0, 0xd1, 0x3c, 0x5d, 0x85, 0xf2, 0xb0, 0xff, 0x83, 0x18, 0xd2, 0x87, 0x7e, 0xec, 0x2f,
    0x63, 0xb9, 0x31, 0xbd, 0x47, 0x41, 0x7a, 0x81, 0xa5, 0x38, 0x32, 0x7a, 0xf9, 0x27, 0xda, 0x3e,
];

/// The digest of no bytes.
const fn hash_of_nothing(hash: HkdfHash) -> &'static [u8] {
    match hash {
        HkdfHash::Sha256 => &EMPTY_SHA256,
        HkdfHash::Sha384 => &EMPTY_SHA384,
        HkdfHash::Sha512 => &EMPTY_SHA512,
    }
}

/// A label with the prefix of the protocol: `tls13 ` and `c hs traffic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleLabel<'a> {
    /// Prefix of the protocol, which stands before every label.
    pub prefix: &'a [u8],
    /// The label.
    pub label: &'a [u8],
}

/// HKDF-Expand-Label with `data` as the context, into the whole of `out`.
///
/// # Errors
/// The label or `data` is longer than 255 bytes, or `out` longer than 255 times the hash.
pub fn expand_label(
    hash: HkdfHash,
    key: &[u8],
    label: ScheduleLabel<'_>,
    data: &[u8],
    out: &mut [u8],
) -> Result<(), LocalError> {
    /// Two bytes of length, a label and a context of up to 255 bytes, and a length before each.
    const MAX_INFO: usize = 2 + 2 * (1 + 255);
    let too_long = |_| LocalError::Refused("a label, a context or an output is too long");
    let out_len = u16::try_from(out.len()).map_err(too_long)?;
    let label_len = u8::try_from(label.prefix.len() + label.label.len()).map_err(too_long)?;
    let data_len = u8::try_from(data.len()).map_err(too_long)?;
    let mut info = [0; MAX_INFO];
    let mut filled = 0;
    let parts: [&[u8]; 6] =
        [&out_len.to_be_bytes(), &[label_len], label.prefix, label.label, &[data_len], data];
    for part in parts {
        info[filled..filled + part.len()].copy_from_slice(part);
        filled += part.len();
    }
    hkdf::expand(hash, key, &info[..filled], out)
}

/// The first secret of every handshake without a pre-shared key, and the salt of the next step: constants that follow
/// from RFC 8446.
#[derive(Clone, Copy)]
struct Beginning {
    secret: [u8; MAX_DIGEST],
    salt: [u8; MAX_DIGEST],
}

impl Beginning {
    fn of(hash: HkdfHash) -> &'static Self {
        static KNOWN: [OnceLock<Beginning>; 3] = [const { OnceLock::new() }; 3];
        KNOWN[hash as usize].get_or_init(|| {
            let mut known = Self { secret: [0; MAX_DIGEST], salt: [0; MAX_DIGEST] };
            let len = hash.digest_len();
            let zeros = [0; MAX_DIGEST];
            let secret = &mut known.secret[..len];
            let salt = &mut known.salt[..len];
            // The lengths fit, which is all that can fail.
            let extracted = hkdf::extract(hash, &[], &zeros[..len], secret);
            let expanded = expand_label(hash, secret, DERIVED, hash_of_nothing(hash), salt);
            debug_assert!(extracted.is_ok() && expanded.is_ok());
            known
        })
    }
}

/// The label between two secrets of the schedule.
const DERIVED: ScheduleLabel<'static> = ScheduleLabel { prefix: b"tls13 ", label: b"derived" };

/// One step of the key schedule: derives a salt from the `previous` secret with the label, and extracts `secret` under
/// it. `None` stands for the first step, and for a secret of zeros.
///
/// # Errors
/// `out` does not have the length of the hash, or the label is too long.
pub fn next_secret(
    hash: HkdfHash,
    previous: Option<&[u8]>,
    secret: Option<&[u8]>,
    label: ScheduleLabel<'_>,
    out: &mut [u8],
) -> Result<(), LocalError> {
    let zeros = [0; MAX_DIGEST];
    let len = hash.digest_len();
    let beginning = Beginning::of(hash);
    if previous.is_none() && secret.is_none() && out.len() == len {
        out.copy_from_slice(&beginning.secret[..len]);
        return Ok(());
    }
    let secret = secret.unwrap_or(&zeros[..len]);
    let Some(previous) = previous else {
        return hkdf::extract(hash, &[], secret, out);
    };
    if label == DERIVED && sys::equal(previous, &beginning.secret[..len]) {
        return hkdf::extract(hash, &beginning.salt[..len], secret, out);
    }
    let mut salt = Zeroizing::new([0; MAX_DIGEST]);
    let salt = &mut salt[..hash.digest_len()];
    expand_label(hash, previous, label, hash_of_nothing(hash), salt)?;
    hkdf::extract(hash, salt, secret, out)
}

/// `DeriveKeyPair` of DHKEM(X25519, HKDF-SHA256): the scalar from input key material.
pub fn hpke_x25519_scalar(ikm: &[u8]) -> Result<Zeroizing<[u8; 32]>, LocalError> {
    const VERSION: &[u8] = b"HPKE-v1";
    const SUITE: &[u8] = b"KEM\x00\x20";
    let labeled = Zeroizing::new([VERSION, SUITE, b"dkp_prk", ikm].concat());
    let mut key = Zeroizing::new([0; 32]);
    hkdf::extract(HkdfHash::Sha256, &[], &labeled, &mut *key)?;
    let info = [&[0, 32], VERSION, SUITE, b"sk"].concat();
    let mut scalar = Zeroizing::new([0; 32]);
    hkdf::expand(HkdfHash::Sha256, &*key, &info, &mut *scalar)?;
    Ok(scalar)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TLS13: &[u8] = b"tls13 ";

    fn label(label: &'static [u8]) -> ScheduleLabel<'static> {
        ScheduleLabel { prefix: TLS13, label }
    }

    fn bytes(digits: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
        (0..digits.len()).step_by(2).map(digit).collect()
    }

    /// RFC 8448, section 3: the secrets of a simple handshake.
    #[test]
    fn secrets_of_rfc_8448_are_derived() {
        let mut early = [0; 32];
        next_secret(HkdfHash::Sha256, None, None, label(b""), &mut early).expect("early secret");
        let expected = "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a";
        assert_eq!(early.to_vec(), bytes(expected));
        let shared = bytes("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d");
        let mut handshake = [0; 32];
        let derived = label(b"derived");
        next_secret(HkdfHash::Sha256, Some(&early), Some(&shared), derived, &mut handshake)
            .expect("handshake secret");
        let expected = "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac";
        assert_eq!(handshake.to_vec(), bytes(expected));
        let mut master = [0; 32];
        next_secret(HkdfHash::Sha256, Some(&handshake), None, derived, &mut master)
            .expect("master secret");
        let expected = "18df06843d13a08bf2a449844c5f8a478001bc4d4c627984d5a41da8d0402919";
        assert_eq!(master.to_vec(), bytes(expected));
    }

    /// The first step is the same whether it is known or computed, and so is the second.
    #[test]
    fn beginning_that_is_known_equals_the_one_that_is_computed() {
        for hash in [HkdfHash::Sha256, HkdfHash::Sha384, HkdfHash::Sha512] {
            let len = hash.digest_len();
            let mut known = vec![0; len];
            let mut computed = vec![0; len];
            next_secret(hash, None, None, label(b""), &mut known).expect("a secret");
            next_secret(hash, None, Some(&vec![0; len]), label(b""), &mut computed)
                .expect("a secret");
            assert_eq!(known, computed);
            let shared = [9; 32];
            let mut salt = vec![0; len];
            let mut plain = vec![0; len];
            expand_label(hash, &known, DERIVED, hash_of_nothing(hash), &mut salt).expect("a salt");
            hkdf::extract(hash, &salt, &shared, &mut plain).expect("a secret");
            let mut next = vec![0; len];
            next_secret(hash, Some(&known), Some(&shared), DERIVED, &mut next).expect("a secret");
            assert_eq!(next, plain);
            next_secret(hash, Some(&known), Some(&shared), label(b"other"), &mut next)
                .expect("a secret");
            assert_ne!(next, plain, "another label has another salt");
        }
    }

    /// RFC 4231, test case 6: a key that is longer than a block.
    #[test]
    fn long_key_is_hashed_first() {
        let key = [0xaa; 131];
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        let mut code = [0; 32];
        hkdf::extract(HkdfHash::Sha256, &key, text, &mut code).expect("a code");
        let expected = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
        assert_eq!(code.to_vec(), bytes(expected));
    }

    /// RFC 9180, appendix A.1.1.
    #[test]
    fn hpke_key_of_rfc_9180_is_derived() {
        let ikm = bytes("7268600d403fce431561aef583ee1613527cff655c1343f29812e66706df3234");
        let scalar = hpke_x25519_scalar(&ikm).expect("scalar");
        let expected = "52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736";
        assert_eq!(scalar.to_vec(), bytes(expected));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let long = [0; 256];
        let mut out = [0; 32];
        let key = [1; 32];
        let with = |prefix, data| {
            let label = ScheduleLabel { prefix, label: b"" };
            expand_label(HkdfHash::Sha256, &key, label, data, &mut [0; 32])
        };
        assert!(with(&long[..255], &long[..255]).is_ok());
        assert!(with(&long, b"").is_err());
        assert!(with(b"", &long).is_err());
        assert!(
            expand_label(HkdfHash::Sha256, &key, label(b""), b"", &mut vec![0; 256 * 32]).is_err()
        );
        assert!(next_secret(HkdfHash::Sha384, None, None, label(b""), &mut out).is_err());
    }
}
