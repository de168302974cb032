// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! All versions of a key in one secret, on the way from a manager to a node. The bundle is key material: it exists
//! only inside a seal.
//!
//! ```text
//!  1  version (1)
//!  4  operations of the policy
//!  4  hashes of the policy
//!  1  number of keys, 1 to 5
//!  …  each: its length (16 bits), its PKCS#8; the current version first
//! ```
//!
//! Numbers are big-endian. Every bundle has one encoding: a reader refuses all others.

use millrace_operation::{HashAlgorithms, MAX_PRIVATE_KEY_LEN, OperationSet, PrivateKey};
use zeroize::Zeroizing;

use super::MAX_FORMER;
use super::format::FormatError;
use crate::fields::RecordReader;

const VERSION: u8 = 1;
const HEAD_LEN: usize = 1 + 4 + 4 + 1;

/// Bound on an encoded bundle, in bytes: a current key and its former versions, each at its own bound.
pub const MAX_BUNDLE_LEN: usize = HEAD_LEN + (1 + MAX_FORMER) * (2 + MAX_PRIVATE_KEY_LEN);

/// The versions of a key, and what may be done with them.
#[derive(Debug)]
pub struct KeyBundle {
    /// Allowed operations.
    pub operations: OperationSet,
    /// Allowed hashes.
    pub hashes: HashAlgorithms,
    /// The current version, then former ones, the newest first.
    pub versions: Vec<PrivateKey>,
}

impl KeyBundle {
    /// The encoding.
    ///
    /// # Errors
    /// No key, more than a current one and [`MAX_FORMER`] former ones, or one that is too long.
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, FormatError> {
        let Self { operations, hashes, versions } = self;
        // Reserves all: growing would leave copies of the keys in freed memory.
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_BUNDLE_LEN));
        let count = u8::try_from(versions.len()).map_err(|_| FormatError::Damaged("keys"))?;
        if !in_bounds(count) {
            return Err(FormatError::Damaged("keys"));
        }
        out.push(VERSION);
        out.extend_from_slice(&operations.bits().to_be_bytes());
        out.extend_from_slice(&hashes.bits().to_be_bytes());
        out.push(count);
        for key in versions {
            let pkcs8 = key.dangerous_pkcs8();
            let len = u16::try_from(pkcs8.len()).ok();
            let len = len.filter(|_| (1..=MAX_PRIVATE_KEY_LEN).contains(&pkcs8.len()));
            let len = len.ok_or(FormatError::Damaged("key"))?;
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(pkcs8);
        }
        Ok(out)
    }

    /// Reads a bundle.
    ///
    /// # Errors
    /// The bundle is truncated, has extra bytes, a field is out of its bounds, or a newer version wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = RecordReader::new(bytes);
        match reader.u8("version")? {
            VERSION => {}
            version => return Err(FormatError::Version(version)),
        }
        let operations = reader.u32("operations")?;
        let hashes = reader.u32("hashes")?;
        let count = reader.u8("keys")?;
        if !in_bounds(count) {
            return Err(FormatError::Damaged("keys"));
        }
        let mut versions = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let pkcs8 = reader.short("key")?;
            if !(1..=MAX_PRIVATE_KEY_LEN).contains(&pkcs8.len()) {
                return Err(FormatError::Damaged("key"));
            }
            versions.push(PrivateKey::from_pkcs8(Zeroizing::new(pkcs8.to_vec())));
        }
        if !reader.rest().is_empty() {
            return Err(FormatError::Damaged("keys"));
        }
        let bundle = Self {
            operations: OperationSet::from_bits(operations),
            hashes: HashAlgorithms::from_bits(hashes),
            versions,
        };
        // A policy that this version does not fully understand must not silently become a different policy.
        if bundle.operations.bits() != operations {
            return Err(FormatError::Unknown("operation"));
        }
        if bundle.hashes.bits() != hashes {
            return Err(FormatError::Unknown("hash"));
        }
        Ok(bundle)
    }
}

fn in_bounds(count: u8) -> bool {
    (1..=1 + MAX_FORMER).contains(&usize::from(count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::KeyPolicy;

    fn bundle(lengths: &[usize]) -> KeyBundle {
        let policy = KeyPolicy::signing([]);
        let key = |len: &usize| PrivateKey::from_pkcs8(Zeroizing::new(vec![7; *len]));
        KeyBundle {
            operations: policy.operations,
            hashes: policy.hashes,
            versions: lengths.iter().map(key).collect(),
        }
    }

    #[test]
    fn bundle_at_its_bounds_survives_and_past_them_is_refused() {
        let most = [MAX_PRIVATE_KEY_LEN; 1 + MAX_FORMER];
        let bytes = bundle(&most).encode().unwrap();
        assert_eq!(bytes.len(), MAX_BUNDLE_LEN);
        assert_eq!(KeyBundle::parse(&bytes).unwrap().versions.len(), most.len());
        for wrong in [&[][..], &[0], &[MAX_PRIVATE_KEY_LEN + 1], &[9; 2 + MAX_FORMER]] {
            assert!(bundle(wrong).encode().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_refused_or_are_the_one_encoding(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(bundle) = KeyBundle::parse(&bytes) {
                prop_assert_eq!(&*bundle.encode().unwrap(), &bytes);
            }
        }

        #[test]
        fn changed_and_truncated_bundle_is_no_other_one_of_its_length(at in 0_usize..200, flip in 1_u8..) {
            let bytes = bundle(&[90, 60, 30]).encode().unwrap();
            let mut changed = bytes.to_vec();
            let at = at % changed.len();
            changed[at] ^= flip;
            if let Ok(bundle) = KeyBundle::parse(&changed) {
                prop_assert_eq!(&*bundle.encode().unwrap(), &changed);
            }
            prop_assert!(KeyBundle::parse(&bytes[..at]).is_err());
        }
    }
}
