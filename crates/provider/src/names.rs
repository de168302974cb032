// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Names of digests as OpenSSL spells them, and `DigestInfo` of PKCS#1 v1.5 taken apart.

use std::ffi::CStr;

use millrace_operation::Hash;

/// The digests of the pool with their OpenSSL names. The first one is fetched.
#[rustfmt::skip]
const NAMES: [(Hash, &[&CStr]); Hash::ALL.len()] = [
    (Hash::Md5Sha1,    &[c"MD5-SHA1"]),
    (Hash::Sha1,       &[c"SHA1", c"SHA-1", c"SSL3-SHA1"]),
    (Hash::Sha224,     &[c"SHA2-224", c"SHA224", c"SHA-224"]),
    (Hash::Sha256,     &[c"SHA2-256", c"SHA256", c"SHA-256"]),
    (Hash::Sha384,     &[c"SHA2-384", c"SHA384", c"SHA-384"]),
    (Hash::Sha512,     &[c"SHA2-512", c"SHA512", c"SHA-512"]),
    (Hash::Sha512_256, &[c"SHA2-512/256", c"SHA512-256", c"SHA-512/256"]),
];

/// The digest with this OpenSSL name, if the pool has it. Names are compared without case.
#[must_use]
pub fn hash_from_name(name: &str) -> Option<Hash> {
    NAMES
        .iter()
        .find(|(_, names)| {
            names.iter().any(|known| known.to_bytes().eq_ignore_ascii_case(name.as_bytes()))
        })
        .map(|(hash, _)| *hash)
}

/// The name under which OpenSSL 3 and later fetch this digest.
#[must_use]
pub fn openssl_name(hash: Hash) -> Option<&'static CStr> {
    let (_, names) = NAMES.iter().find(|(known, _)| *known == hash)?;
    names.first().copied()
}

/// A digest by its length, where only the length matters (ECDSA and DSA of a bare digest).
#[must_use]
pub fn hash_by_len(len: usize) -> Option<Hash> {
    [Hash::Sha1, Hash::Sha224, Hash::Sha256, Hash::Sha384, Hash::Sha512]
        .into_iter()
        .find(|hash| hash.digest_len() == len)
}

/// Splits an encoded `DigestInfo` (RFC 8017 section 9.2) into its digest algorithm and digest.
#[must_use]
pub fn split_digest_info(encoded: &[u8]) -> Option<(Hash, &[u8])> {
    Hash::ALL.iter().find_map(|hash| {
        let prefix = Some(hash.digest_info_prefix()).filter(|prefix| !prefix.is_empty())?;
        let digest = encoded.strip_prefix(prefix)?;
        (digest.len() == hash.digest_len()).then_some((*hash, digest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_every_spelling_that_openssl_uses() {
        for hash in Hash::ALL {
            let name = openssl_name(*hash).and_then(|name| name.to_str().ok()).unwrap_or("");
            assert_eq!(hash_from_name(name), Some(*hash));
            assert_eq!(hash_from_name(&name.to_lowercase()), Some(*hash));
        }
        assert_eq!(hash_from_name("SHA3-256"), None);
        assert_eq!(hash_from_name(""), None);
    }

    #[test]
    fn digest_info_is_split_only_if_its_length_fits() {
        let mut encoded = Hash::Sha256.digest_info_prefix().to_vec();
        encoded.extend([7; 32]);
        assert_eq!(split_digest_info(&encoded), Some((Hash::Sha256, &[7; 32][..])));
        encoded.push(0);
        assert_eq!(split_digest_info(&encoded), None);
        assert_eq!(split_digest_info(&[]), None);
    }
}
