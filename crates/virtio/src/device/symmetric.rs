// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ciphers, hashes, MACs and AEADs, computed on the thread of the rings.

use crate::primitives::{AeadError, CipherContext};
use crate::request::{ChainOperation, DataOperation};
use crate::session::{Material, OwnedHashOrMac};
use crate::spec::{Direction, Status};

/// Computes what needs no key of the pool.
pub(super) fn compute(
    operation: &DataOperation<'_>,
    material: &mut Material,
) -> Result<Vec<u8>, Status> {
    match (operation, material) {
        (DataOperation::Cipher { direction, iv, source, room }, Material::Cipher(cipher)) => {
            // Of two different lengths one is wrong (CVE-2023-3180).
            if *direction != cipher.direction() || *room != source.len() {
                return Err(Status::Err);
            }
            let mut text = source.to_vec();
            cipher.run(iv, &mut text).then_some(text).ok_or(Status::Err)
        }
        (DataOperation::Chain(operation), Material::Chain { cipher, check, cipher_first }) => {
            chain(operation, cipher, check, *cipher_first)
        }
        (DataOperation::HashOrMac { service, source, len }, Material::HashOrMac(check))
            if *service == check.service() =>
        {
            check.run(source, *len)
        }
        (
            DataOperation::Aead { direction, nonce, source, aad, tag_len, room },
            Material::Aead { aead, tag_len: own, direction: own_direction },
        ) => {
            if direction != own_direction || tag_len != own {
                return Err(Status::Err);
            }
            let len = match direction {
                Direction::Encrypt => source.len().checked_add(*tag_len),
                Direction::Decrypt => source.len().checked_sub(*tag_len),
            };
            let len = len.filter(|len| len <= room).ok_or(Status::Err)?;
            let mut result = vec![0; len];
            let done = match direction {
                Direction::Encrypt => aead.seal(nonce, aad, source, &mut result),
                Direction::Decrypt => aead.open(nonce, aad, source, &mut result),
            };
            done.map_err(|error| match error {
                AeadError::Tag => Status::BadMessage,
                AeadError::Length => Status::Err,
            })?;
            Ok(result)
        }
        // A session of another service, or a chain where the session has a cipher alone.
        (
            DataOperation::Cipher { .. }
            | DataOperation::Chain(_)
            | DataOperation::HashOrMac { .. }
            | DataOperation::Aead { .. }
            | DataOperation::Akcipher { .. },
            _,
        ) => Err(Status::InvalidSession),
    }
}

/// Computes a cipher and a hash or MAC over parts of one source. The device does not compare MACs: the driver does.
fn chain(
    operation: &ChainOperation<'_>,
    cipher: &mut CipherContext,
    check: &OwnedHashOrMac,
    cipher_first: bool,
) -> Result<Vec<u8>, Status> {
    if operation.direction != cipher.direction() {
        return Err(Status::Err);
    }
    let mut text = operation.source.to_vec();
    let mut hashed = operation.aad.to_vec();
    let (from, to) = operation.hash;
    if !cipher_first {
        hashed.extend_from_slice(&text[from..to]);
    }
    let (start, end) = operation.cipher;
    if !cipher.run(operation.iv, &mut text[start..end]) {
        return Err(Status::Err);
    }
    if cipher_first {
        hashed.extend_from_slice(&text[from..to]);
    }
    let digest = check.run(&hashed, operation.hash_len)?;
    text.extend_from_slice(&digest);
    Ok(text)
}
