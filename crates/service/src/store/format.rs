// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The encoding of a key file. Pure: no files and no cryptography here.
//!
//! ```text
//!  8  magic "MILLRKEY"                      ┐
//!  1  version (1)                           │
//!  8  fingerprint of the key-encryption key │ authenticated:
//!  2  length of the metadata                │ the AAD of the seal
//!  …  metadata: name, created, type, SPKI,  │
//!     identities, operations, hashes        ┘
//! 12  nonce
//!  4  length of the sealed key
//!  …  the PKCS#8 under AES-256-GCM, with its tag
//! ```
//!
//! Numbers are big-endian, strings carry their length, and every value has exactly one encoding: a missing,
//! extra, unknown or out-of-bounds part is an error. The fields are in the clear because they are public;
//! only a reader with the key-encryption key can verify them ([`super::KeyMeta::authenticated`]).

use millrace_operation::{HashAlgorithms, KeyInfo, KeyType, MAX_PRIVATE_KEY_LEN, OperationSet};
use thiserror::Error;

use crate::fields::{Damaged, RecordReader, push_len, push_short};
use crate::policy::KeyPolicy;

/// Bound on a key's name, in bytes: the bound of the wire protocol.
pub const MAX_NAME_LEN: usize = 128;

/// Bound on the identities in a policy. For more clients, use `*` or several nodes.
pub const MAX_IDENTITIES: usize = 256;

/// Bound on one identity, in bytes: `cert:` and a DNS name (RFC 1035 section 2.3.4).
pub const MAX_IDENTITY_LEN: usize = 5 + 253;

/// Bound on a `SubjectPublicKeyInfo`, in bytes: DSA and DH carry their group, three numbers of at
/// most 1024 bytes each.
pub const MAX_SPKI_LEN: usize = 4 * 1024;

/// Bound on a key file, in bytes: the metadata's length has 16 bits, and a key has its own bound.
pub const MAX_FILE_LEN: usize = FIXED_LEN + u16::MAX as usize + MAX_PRIVATE_KEY_LEN + TAG_LEN;

/// Length of an AES-GCM nonce.
pub const NONCE_LEN: usize = 12;

/// Length of an AES-GCM tag.
pub(super) const TAG_LEN: usize = 16;

/// Length of a fingerprint of a key-encryption key.
pub const FINGERPRINT_LEN: usize = 8;

const MAGIC: &[u8; 8] = b"MILLRKEY";
const VERSION: u8 = 1;
/// Length of the part that says under which key-encryption key a file was sealed.
pub(super) const HEAD_LEN: usize = MAGIC.len() + 1 + FINGERPRINT_LEN;
const FIXED_LEN: usize = HEAD_LEN + 2 + NONCE_LEN + 4;

/// Error of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The file does not begin with the magic.
    #[error("not a millrace key file")]
    Magic,
    /// A newer Millrace has written it.
    #[error("version {0} of the key file is not known here: upgrade millrace")]
    Version(u8),
    /// A key type, operation or hash that this version does not know: a newer Millrace wrote the file, or its
    /// clear part is damaged.
    #[error("the key file has a {0} that is not known here: upgrade millrace")]
    Unknown(&'static str),
    /// The file is truncated, has extra bytes, or a field is out of its bounds.
    #[error("the key file is damaged ({0})")]
    Damaged(&'static str),
}

/// The clear part of a key file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The name of the key, and of its file without the suffix.
    pub name: String,
    /// Time of the import, in seconds since 1970.
    pub created: u64,
    /// Type and public half of the key.
    pub info: KeyInfo,
    /// The identities that may use the key, and the operations that they may do.
    pub policy: KeyPolicy,
}

/// A parsed key file.
#[derive(Clone, Debug)]
pub struct KeyFile<'a> {
    /// The clear part.
    pub metadata: Metadata,
    /// Fingerprint of the key-encryption key that sealed the file.
    pub fingerprint: [u8; FINGERPRINT_LEN],
    /// The bytes that the seal authenticates.
    pub aad: &'a [u8],
    /// The nonce of the seal.
    pub nonce: [u8; NONCE_LEN],
    /// The sealed key with its tag.
    pub sealed: &'a [u8],
}

/// Parses a key file.
///
/// # Errors
/// The first problem of the file.
pub fn parse(bytes: &[u8]) -> Result<KeyFile<'_>, FormatError> {
    let parts = split(bytes)?;
    let metadata = parse_metadata(parts.metadata)?;
    let KeyFileParts { fingerprint, metadata: _, aad, nonce, sealed } = parts;
    Ok(KeyFile { metadata, fingerprint, aad, nonce, sealed })
}

/// A key file whose metadata is not read yet: enough to open the seal.
pub(super) struct KeyFileParts<'a> {
    pub(super) fingerprint: [u8; FINGERPRINT_LEN],
    metadata: &'a [u8],
    pub(super) aad: &'a [u8],
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) sealed: &'a [u8],
}

/// The fingerprint at the beginning of a key file; `bytes` may end after [`HEAD_LEN`] bytes.
pub(super) fn fingerprint(bytes: &[u8]) -> Result<[u8; FINGERPRINT_LEN], FormatError> {
    head(&mut RecordReader::new(bytes))
}

fn head(reader: &mut RecordReader<'_>) -> Result<[u8; FINGERPRINT_LEN], FormatError> {
    if reader.take(MAGIC.len(), "magic").map_err(|_| FormatError::Magic)? != MAGIC {
        return Err(FormatError::Magic);
    }
    match reader.u8("version")? {
        VERSION => {}
        version => return Err(FormatError::Version(version)),
    }
    Ok(reader.array("fingerprint")?)
}

/// # Errors
/// As [`parse`], except for the metadata.
pub(super) fn split(bytes: &[u8]) -> Result<KeyFileParts<'_>, FormatError> {
    let mut reader = RecordReader::new(bytes);
    let fingerprint = head(&mut reader)?;
    let metadata_len = usize::from(reader.u16("metadata")?);
    let metadata = reader.take(metadata_len, "metadata")?;
    let aad = &bytes[..bytes.len() - reader.rest().len()];
    let nonce = reader.array("nonce")?;
    let sealed_len = reader.u32("sealed key")?;
    let sealed = reader.rest();
    let in_bounds = (TAG_LEN + 1..=MAX_PRIVATE_KEY_LEN + TAG_LEN).contains(&sealed.len());
    if !in_bounds || usize::try_from(sealed_len) != Ok(sealed.len()) {
        return Err(FormatError::Damaged("sealed key"));
    }
    Ok(KeyFileParts { fingerprint, metadata, aad, nonce, sealed })
}

/// The part of a key file that the seal authenticates.
///
/// # Errors
/// A field that is out of its bounds.
pub(super) fn encode_aad(
    metadata: &Metadata,
    fingerprint: [u8; FINGERPRINT_LEN],
) -> Result<Vec<u8>, FormatError> {
    let body = encode_metadata(metadata)?;
    let mut out = Vec::with_capacity(FIXED_LEN + body.len());
    out.extend_from_slice(MAGIC);
    out.push(VERSION);
    out.extend_from_slice(&fingerprint);
    push_short(&mut out, &body, "metadata")?;
    // Ensures that every written file can be read: only the reader checks the bounds.
    parse_metadata(&body)?;
    Ok(out)
}

/// Encodes a key file. `sealed` is at most a bounded key with its tag.
#[must_use]
pub(super) fn encode(aad: &[u8], nonce: [u8; NONCE_LEN], sealed: &[u8]) -> Vec<u8> {
    let len = u32::try_from(sealed.len()).unwrap_or(u32::MAX);
    [aad, &nonce, &len.to_be_bytes(), sealed].concat()
}

/// Whether `name` may name a key. It becomes a file name, so it has no separators and no leading dot.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    (1..=MAX_NAME_LEN).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether `identity` can be in a policy: printable ASCII without blanks, bounded.
#[must_use]
pub fn valid_identity(identity: &str) -> bool {
    (1..=MAX_IDENTITY_LEN).contains(&identity.len())
        && identity.bytes().all(|byte| byte.is_ascii_graphic())
}

fn encode_metadata(metadata: &Metadata) -> Result<Vec<u8>, FormatError> {
    let Metadata { name, created, info, policy } = metadata;
    let KeyPolicy { identities, operations, hashes } = policy;
    let mut out = Vec::new();
    push_short(&mut out, name.as_bytes(), "name")?;
    out.extend_from_slice(&created.to_be_bytes());
    let (code, bits) = info.key_type.stored();
    out.push(code);
    out.extend_from_slice(&bits.to_be_bytes());
    push_short(&mut out, &info.spki, "public key")?;
    push_len(&mut out, identities.len(), "identities")?;
    for identity in identities {
        push_short(&mut out, identity.as_bytes(), "identity")?;
    }
    out.extend_from_slice(&operations.bits().to_be_bytes());
    out.extend_from_slice(&hashes.bits().to_be_bytes());
    Ok(out)
}

fn parse_metadata(bytes: &[u8]) -> Result<Metadata, FormatError> {
    let mut reader = RecordReader::new(bytes);
    let name = reader.text("name")?;
    if !valid_name(name) {
        return Err(FormatError::Damaged("name"));
    }
    let created = reader.u64("time")?;
    let code = reader.u8("key type")?;
    let bits = reader.u16("key type")?;
    let key_type = KeyType::from_stored(code, bits).ok_or(FormatError::Unknown("key type"))?;
    let spki = reader.short("public key")?;
    if spki.is_empty() || spki.len() > MAX_SPKI_LEN {
        return Err(FormatError::Damaged("public key"));
    }
    let count = usize::from(reader.u16("identities")?);
    if count > MAX_IDENTITIES {
        return Err(FormatError::Damaged("identities"));
    }
    let mut identities = Vec::with_capacity(count);
    for _ in 0..count {
        let identity = reader.text("identity")?;
        if !valid_identity(identity) {
            return Err(FormatError::Damaged("identity"));
        }
        identities.push(identity.to_owned());
    }
    let operations = reader.u32("operations")?;
    let hashes = reader.u32("hashes")?;
    let policy = KeyPolicy {
        identities,
        operations: OperationSet::from_bits(operations),
        hashes: HashAlgorithms::from_bits(hashes),
    };
    // A policy that this version does not fully understand must not silently become a different policy.
    if policy.operations.bits() != operations {
        return Err(FormatError::Unknown("operation"));
    }
    if policy.hashes.bits() != hashes {
        return Err(FormatError::Unknown("hash"));
    }
    if !reader.rest().is_empty() {
        return Err(FormatError::Damaged("metadata"));
    }
    Ok(Metadata {
        name: name.to_owned(),
        created,
        info: KeyInfo { key_type, spki: spki.to_vec() },
        policy,
    })
}

impl From<Damaged> for FormatError {
    fn from(Damaged(what): Damaged) -> Self {
        Self::Damaged(what)
    }
}

#[cfg(test)]
mod tests {
    use millrace_operation::KeyKind;

    use super::*;

    fn metadata(key_type: KeyType) -> Metadata {
        Metadata {
            name: "www.example-1_a".to_owned(),
            created: 1_700_000_000,
            info: KeyInfo { key_type, spki: vec![0x30; 91] },
            policy: KeyPolicy {
                identities: vec!["uid:33".to_owned(), "cert:gateway-1".to_owned()],
                ..KeyPolicy::signing(["*"])
            },
        }
    }

    fn file(metadata: &Metadata) -> Vec<u8> {
        encode(&encode_aad(metadata, [7; FINGERPRINT_LEN]).unwrap(), [9; NONCE_LEN], &[1; 150])
    }

    #[test]
    fn every_key_type_survives_the_round_trip() {
        for key_type in KeyKind::ALL.iter().flat_map(|kind| kind.extremes()) {
            let metadata = metadata(key_type);
            let bytes = file(&metadata);
            let parsed = parse(&bytes).unwrap();
            assert_eq!(parsed.metadata, metadata);
            assert_eq!(parsed.fingerprint, [7; 8]);
            assert_eq!(parsed.nonce, [9; 12]);
            assert_eq!(parsed.sealed, [1; 150]);
            assert_eq!(bytes.len(), parsed.aad.len() + 12 + 4 + 150);
        }
    }

    #[test]
    fn every_truncation_and_every_extra_byte_is_an_error() {
        let mut bytes = file(&metadata(KeyType::Ed25519));
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).is_err(), "{end} bytes");
        }
        bytes.push(0);
        assert_eq!(parse(&bytes).unwrap_err(), FormatError::Damaged("sealed key"));
    }

    #[test]
    fn no_single_byte_change_makes_the_parser_panic() {
        let bytes = file(&metadata(KeyType::Rsa { bits: 2048 }));
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                let _ = parse(&changed);
            }
        }
    }

    #[test]
    fn unknown_bit_in_a_policy_is_an_error() {
        let bytes = file(&metadata(KeyType::X25519));
        let operations = bytes.len() - 150 - 4 - 12 - 8;
        let mut changed = bytes;
        changed[operations] |= 0x80;
        assert_eq!(parse(&changed).unwrap_err(), FormatError::Unknown("operation"));
    }

    #[test]
    fn names_are_file_names() {
        for good in ["a", "www.example.com", "A-1_b", &"n".repeat(MAX_NAME_LEN)] {
            assert!(valid_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".tmp", "a/b", "a b", "a\0", "ä", &"n".repeat(129)] {
            assert!(!valid_name(bad), "{bad}");
        }
    }

    #[test]
    fn values_out_of_bounds_are_not_written() {
        let mut metadata = metadata(KeyType::X25519);
        metadata.policy.identities = vec!["uid:1".to_owned(); MAX_IDENTITIES + 1];
        assert!(encode_aad(&metadata, [0; 8]).is_err());
        metadata.policy.identities = vec!["has blank".to_owned()];
        assert!(encode_aad(&metadata, [0; 8]).is_err());
    }
}
