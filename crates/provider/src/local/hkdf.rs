// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! HKDF (RFC 5869) over the digests of AWS-LC.

use millrace_operation::Hash;
use zeroize::Zeroizing;

use super::LocalError;
use super::sys::{Digesting, MAX_DIGEST};
use crate::algorithms::Sha2;
use crate::names::hash_from_name;

/// A hash for HKDF. The cipher suites of TLS 1.3 have the first two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HkdfHash {
    /// SHA-256
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}

impl HkdfHash {
    /// Bytes of the hash's output.
    #[must_use]
    pub const fn digest_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The digest of this hash.
    #[must_use]
    pub const fn sha2(self) -> Sha2 {
        match self {
            Self::Sha256 => Sha2::Sha256,
            Self::Sha384 => Sha2::Sha384,
            Self::Sha512 => Sha2::Sha512,
        }
    }

    /// Bytes of a block of the hash's input.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha384 | Self::Sha512 => 128,
        }
    }

    /// The hash with this OpenSSL name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        // Fast path: libssl passes these two names 21 times per handshake.
        match name {
            "SHA2-256" => return Some(Self::Sha256),
            "SHA2-384" => return Some(Self::Sha384),
            _ => {}
        }
        match hash_from_name(name)? {
            Hash::Sha256 => Some(Self::Sha256),
            Hash::Sha384 => Some(Self::Sha384),
            Hash::Sha512 => Some(Self::Sha512),
            Hash::Md5Sha1 | Hash::Sha1 | Hash::Sha224 | Hash::Sha512_256 => None,
        }
    }
}

/// Bytes of the longest block of a hash.
const MAX_BLOCK: usize = 128;

/// HMAC (RFC 2104) over parts that follow each other. AWS-LC's own functions for it choose the hash by a table at each
/// step, which takes a third of the time of inputs as short as these.
fn hmac(hash: HkdfHash, key: &[u8], parts: [&[u8]; 3]) -> Zeroizing<[u8; MAX_DIGEST]> {
    let digest_len = hash.digest_len();
    let block = &mut Zeroizing::new([0; MAX_BLOCK])[..hash.block_len()];
    if let Some(room) = block.get_mut(..key.len()) {
        room.copy_from_slice(key);
    } else {
        let mut short = Digesting::new(hash.sha2());
        short.update(key);
        block[..digest_len].copy_from_slice(&short.finish()[..digest_len]);
    }
    block.iter_mut().for_each(|byte| *byte ^= 0x36);
    let mut inner = Digesting::new(hash.sha2());
    inner.update(block);
    parts.iter().for_each(|part| inner.update(part));
    let inner = inner.finish();
    block.iter_mut().for_each(|byte| *byte ^= 0x36 ^ 0x5c);
    let mut outer = Digesting::new(hash.sha2());
    outer.update(block);
    outer.update(&inner[..digest_len]);
    outer.finish()
}

/// HKDF-Extract (RFC 5869) into `out`, which has the length of the hash.
pub(super) fn extract(
    hash: HkdfHash,
    salt: &[u8],
    secret: &[u8],
    out: &mut [u8],
) -> Result<(), LocalError> {
    if out.len() != hash.digest_len() {
        return Err(LocalError::Refused("an extracted key has the hash's length"));
    }
    let key = hmac(hash, salt, [secret, &[], &[]]);
    out.copy_from_slice(&key[..out.len()]);
    Ok(())
}

/// HKDF-Expand (RFC 5869) into the whole of `out`.
pub(super) fn expand(
    hash: HkdfHash,
    key: &[u8],
    info: &[u8],
    out: &mut [u8],
) -> Result<(), LocalError> {
    let digest_len = hash.digest_len();
    let mut before = Zeroizing::new([0; MAX_DIGEST]);
    let mut before_len = 0;
    for (index, part) in out.chunks_mut(digest_len).enumerate() {
        let number = u8::try_from(index + 1)
            .map_err(|_| LocalError::Refused("a label, a context or an output is too long"))?;
        before = hmac(hash, key, [&before[..before_len], info, &[number]]);
        before_len = digest_len;
        part.copy_from_slice(&before[..part.len()]);
    }
    Ok(())
}
