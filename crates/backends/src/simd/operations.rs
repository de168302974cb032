// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations around the private operation: what goes into the lanes, and what is made of what comes out.

use millrace_engine::{BackendError, JobError, KeyType, Operation, Output};
use zeroize::Zeroizing;

use super::keys::SimdKey;
use crate::padding;

/// The number that a task has to be exponentiated, as long as the modulus.
///
/// # Errors
/// What is wrong with operation or input. Both are public, so this may take a varying time.
pub(super) fn prepare(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    let key_type = key.info().key_type;
    operation
        .check(key_type, input)
        .map_err(|error| match error {
            JobError::NotOffered => BackendError::NotOffered,
            _ => BackendError::BadInput,
        })?;
    let KeyType::Rsa { bits } = key_type else {
        return Err(BackendError::NotOffered);
    };
    let mut block = Zeroizing::new(vec![0; key.modulus().len()]);
    match operation {
        Operation::RsaPkcs1Sign { hash } => {
            padding::encode_pkcs1_signature(*hash, input, &mut block)?;
        }
        Operation::RsaPssSign {
            hash,
            mgf_hash,
            salt_len,
        } => {
            let (salt_len, bits) = (usize::from(*salt_len), usize::from(bits));
            padding::encode_pss(*hash, *mgf_hash, salt_len, input, bits, &mut block)?;
        }
        Operation::RsaOaepDecrypt { .. }
        | Operation::RsaPkcs1Decrypt
        | Operation::RsaTlsPremaster { .. }
        | Operation::RsaRaw => block.copy_from_slice(input),
        _ => return Err(BackendError::NotOffered),
    }
    if block.as_slice() >= key.modulus() {
        return Err(BackendError::BadInput);
    }
    Ok(block)
}

/// The output of a task from its verified result.
///
/// # Errors
/// `BadInput` for an OAEP message that does not decode.
pub(super) fn finish(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
    mut block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    match operation {
        Operation::RsaOaepDecrypt {
            hash,
            mgf_hash,
            label,
        } => padding::decode_oaep(*hash, *mgf_hash, label, &mut block),
        Operation::RsaPkcs1Decrypt => {
            let rejection_key = key.rejection_key().ok_or(BackendError::Failed)?;
            padding::decode_pkcs1_implicit(rejection_key, input, &block)
        }
        Operation::RsaTlsPremaster { client_version } => {
            padding::decode_premaster(*client_version, &block)
        }
        _ => Ok(block),
    }
}
