// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! RSA tasks for a backend that computes only `x^d mod n`: encodes the input of that raw operation and
//! decodes its result. `padding` has the encodings.

use millrace_engine::BackendError;
use millrace_engine::backend::Capability;
use millrace_operation::{KeyType, MIN_MODULUS_BITS, Operation, OperationKind, Output};
use zeroize::Zeroizing;

use crate::arguments::check_arguments;
use crate::software::keys::{LoadedKey, Secret};
use crate::software::padding;
use crate::software::rsa::RsaSecret;

/// The operations on an RSA private key of up to `max_bits`.
pub(crate) const fn capabilities(max_bits: u16) -> [Capability; 6] {
    const fn row(operation: OperationKind, max_bits: u16) -> Capability {
        Capability {
            operation,
            smallest: KeyType::Rsa { bits: MIN_MODULUS_BITS },
            largest: KeyType::Rsa { bits: max_bits },
        }
    }
    [
        row(OperationKind::RsaPkcs1Sign, max_bits),
        row(OperationKind::RsaPssSign, max_bits),
        row(OperationKind::RsaOaepDecrypt, max_bits),
        row(OperationKind::RsaPkcs1Decrypt, max_bits),
        row(OperationKind::RsaTlsPremaster, max_bits),
        row(OperationKind::RsaRaw, max_bits),
    ]
}

/// The same, for moduli of exactly these sizes, in bits.
pub(crate) const fn capabilities_of<const ROWS: usize>(sizes: &[u16]) -> [Capability; ROWS] {
    let every = capabilities(sizes[0]);
    assert!(ROWS == sizes.len() * every.len(), "a row per size and operation");
    let mut rows = [every[0]; ROWS];
    let mut row = 0;
    while row < ROWS {
        let size = KeyType::Rsa { bits: sizes[row / every.len()] };
        rows[row] = Capability {
            operation: every[row % every.len()].operation,
            smallest: size,
            largest: size,
        };
        row += 1;
    }
    rows
}

/// Encodes the input of a task as the number to exponentiate, as long as the modulus.
///
/// # Errors
/// `NotOffered` or `BadInput` for a bad operation or input. Both are public, so the time may vary.
pub(crate) fn prepare(
    key: &LoadedKey,
    operation: &Operation,
    input: &[u8],
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    let key_type = key.info.key_type;
    check_arguments(operation, key_type, input)?;
    let KeyType::Rsa { bits } = key_type else {
        return Err(BackendError::NotOffered);
    };
    let modulus = &secret(key)?.modulus;
    let mut block = Zeroizing::new(vec![0; modulus.len()]);
    match operation {
        Operation::RsaPkcs1Sign { hash } => {
            padding::encode_pkcs1_signature(*hash, input, &mut block)?;
        }
        Operation::RsaPssSign { hash, mgf_hash, salt_len } => {
            let salt_len = usize::from(*salt_len);
            let bits = usize::from(bits);
            padding::encode_pss(*hash, *mgf_hash, salt_len, input, bits, &mut block)?;
        }
        Operation::RsaOaepDecrypt { .. }
        | Operation::RsaPkcs1Decrypt
        | Operation::RsaTlsPremaster { .. }
        | Operation::RsaRaw => block.copy_from_slice(input),
        Operation::EcdsaSign { .. }
        | Operation::Ecdh
        | Operation::X25519
        | Operation::Ed25519Sign
        | Operation::DhDerive
        | Operation::DsaSign { .. }
        | Operation::MlDsaSign { .. } => return Err(BackendError::NotOffered),
    }
    if block.as_slice() >= modulus.as_slice() {
        return Err(BackendError::BadInput);
    }
    Ok(block)
}

/// Decodes the verified result of a task into its output.
///
/// # Errors
/// `BadInput` for an OAEP message that does not decode.
pub(crate) fn finish(
    key: &LoadedKey,
    operation: &Operation,
    input: &[u8],
    mut block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    match operation {
        Operation::RsaOaepDecrypt { hash, mgf_hash, label } => {
            padding::decode_oaep(*hash, *mgf_hash, label, &mut block)
        }
        Operation::RsaPkcs1Decrypt => {
            padding::decode_pkcs1_implicit(&secret(key)?.rejection_key, input, &block)
        }
        Operation::RsaTlsPremaster { client_version } => {
            let rejection_key = &secret(key)?.rejection_key;
            padding::decode_premaster(rejection_key, input, *client_version, &block)
        }
        Operation::RsaPkcs1Sign { .. } | Operation::RsaPssSign { .. } | Operation::RsaRaw => {
            Ok(block)
        }
        Operation::EcdsaSign { .. }
        | Operation::Ecdh
        | Operation::X25519
        | Operation::Ed25519Sign
        | Operation::DhDerive
        | Operation::DsaSign { .. }
        | Operation::MlDsaSign { .. } => Err(BackendError::NotOffered),
    }
}

/// The RSA half of a key.
///
/// # Errors
/// `NotOffered` for a key of another kind.
pub(crate) fn secret(key: &LoadedKey) -> Result<&RsaSecret, BackendError> {
    match &key.secret {
        Secret::Rsa(rsa) => Ok(rsa),
        _ => Err(BackendError::NotOffered),
    }
}
