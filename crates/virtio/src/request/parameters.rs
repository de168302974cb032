// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The parameters of a session: algorithm, direction, lengths and key. A data request without a session carries the
//! same.

use super::fields::{Cursor, Field, Kind, Values};
use super::{CipherParameters, HashOrMac, MAX_KEY_LEN, Parameters};
use crate::spec::{
    AeadAlgorithm, AkcipherAlgorithm, CipherAlgorithm, Direction, HashAlgorithm, MAX_AUTH_KEY_LEN,
    MAX_CIPHER_KEY_LEN, MacAlgorithm, RsaPadding, Status, curve,
};

/// The parameters in the fields of a request; their keys are taken from `rest`.
pub(super) fn parameters<'a>(
    kind: Kind,
    values: &Values,
    rest: &mut Cursor<'a>,
) -> Result<Parameters<'a>, Status> {
    match kind {
        Kind::Cipher => cipher(values, rest).map(Parameters::Cipher),
        Kind::Chain => chain(values, rest),
        Kind::Hash => hash(values).map(Parameters::HashOrMac),
        Kind::Mac => mac(values, rest).map(Parameters::HashOrMac),
        Kind::Aead => aead(values, rest),
        Kind::Akcipher => akcipher(values, rest),
    }
}

fn direction(values: &Values) -> Result<Direction, Status> {
    Direction::of_session(values.code(Field::Direction)).ok_or(Status::Err)
}

fn cipher<'a>(values: &Values, rest: &mut Cursor<'a>) -> Result<CipherParameters<'a>, Status> {
    let algorithm =
        CipherAlgorithm::from_code(values.code(Field::Algorithm)).ok_or(Status::NotSupported)?;
    let direction = direction(values)?;
    let key = rest.key(values.len(Field::KeyLen)?, MAX_CIPHER_KEY_LEN)?;
    let fits = match algorithm {
        CipherAlgorithm::AesEcb | CipherAlgorithm::AesCbc | CipherAlgorithm::AesCtr => {
            matches!(key.len(), 16 | 24 | 32)
        }
        CipherAlgorithm::AesXts => key.len() == 64,
    };
    if !fits {
        return Err(Status::NotSupported);
    }
    Ok(CipherParameters { algorithm, key, direction })
}

fn chain<'a>(values: &Values, rest: &mut Cursor<'a>) -> Result<Parameters<'a>, Status> {
    let cipher = cipher(values, rest)?;
    let cipher_first = match values.code(Field::Order) {
        1 => false,
        2 => true,
        _ => return Err(Status::Err),
    };
    let check = match values.code(Field::Mode) {
        1 => hash(values)?,
        2 => mac(values, rest)?,
        // Nested hashes, which no driver uses.
        _ => return Err(Status::NotSupported),
    };
    Ok(Parameters::Chain { cipher, check, cipher_first })
}

fn hash(values: &Values) -> Result<HashOrMac<'static>, Status> {
    let algorithm =
        HashAlgorithm::from_code(values.code(Field::CheckAlgorithm)).ok_or(Status::NotSupported)?;
    let len = values.len(Field::ResultLen)?;
    if len == 0 || len > algorithm.digest_len() {
        return Err(Status::Err);
    }
    Ok(HashOrMac::Hash { algorithm, len })
}

fn mac<'a>(values: &Values, rest: &mut Cursor<'a>) -> Result<HashOrMac<'a>, Status> {
    let algorithm =
        MacAlgorithm::from_code(values.code(Field::CheckAlgorithm)).ok_or(Status::NotSupported)?;
    let len = values.len(Field::ResultLen)?;
    if len == 0 || len > algorithm.mac_len() {
        return Err(Status::Err);
    }
    let key = rest.key(values.len(Field::CheckKeyLen)?, MAX_AUTH_KEY_LEN)?;
    if algorithm == MacAlgorithm::CmacAes && !matches!(key.len(), 16 | 32) {
        return Err(Status::NotSupported);
    }
    Ok(HashOrMac::Mac { algorithm, key, len })
}

fn aead<'a>(values: &Values, rest: &mut Cursor<'a>) -> Result<Parameters<'a>, Status> {
    let algorithm =
        AeadAlgorithm::from_code(values.code(Field::Algorithm)).ok_or(Status::NotSupported)?;
    let direction = direction(values)?;
    let key = rest.key(values.len(Field::KeyLen)?, MAX_CIPHER_KEY_LEN)?;
    let tag_len = values.len(Field::TagLen)?;
    let fits = match algorithm {
        // Shorter tags than SP 800-38D section 5.2.1.2 recommends are refused.
        AeadAlgorithm::Gcm => matches!(key.len(), 16 | 24 | 32) && (12..=16).contains(&tag_len),
        AeadAlgorithm::Ccm => {
            matches!(key.len(), 16 | 24 | 32) && matches!(tag_len, 4 | 6 | 8 | 10 | 12 | 14 | 16)
        }
        AeadAlgorithm::ChaCha20Poly1305 => key.len() == 32 && tag_len == 16,
    };
    if !fits {
        return Err(Status::NotSupported);
    }
    Ok(Parameters::Aead { algorithm, key, tag_len, direction })
}

fn akcipher<'a>(values: &Values, rest: &mut Cursor<'a>) -> Result<Parameters<'a>, Status> {
    let algorithm =
        AkcipherAlgorithm::from_code(values.code(Field::Algorithm)).ok_or(Status::NotSupported)?;
    let private = match values.code(Field::KeyType) {
        1 => false,
        2 => true,
        _ => return Err(Status::Err),
    };
    let key = rest.key(values.len(Field::KeyLen)?, MAX_KEY_LEN)?;
    let scheme = values.code(Field::Scheme);
    match algorithm {
        AkcipherAlgorithm::Rsa => {
            let padding = RsaPadding::of_session(scheme, values.code(Field::SchemeHash))
                .ok_or(Status::NotSupported)?;
            Ok(Parameters::Rsa { padding, private, key })
        }
        AkcipherAlgorithm::Ecdsa => {
            let curve = curve(scheme).ok_or(Status::NotSupported)?;
            Ok(Parameters::Ecdsa { curve, private, key })
        }
    }
}
