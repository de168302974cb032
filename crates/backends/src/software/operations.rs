// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One function per operation, on a loaded key.
//!
//! [`run`] checks the arguments again ([`Operation::check`] is cheap), so that a backend can be called
//! without the dispatcher. The functions after it rely on correct lengths.

use millrace_engine::BackendError;
use millrace_engine::backend::Task;
use millrace_operation::{Hash, KeyType, MlDsaInput, Operation, Output};

use super::keys::{LoadedKey, Secret};
use super::padding;
use super::rsa::{RsaSecret, rsa_private};
use super::sys::{self, Dh, Dsa, EcKey, MlDsa, Number};
use crate::arguments::check_arguments;

/// Runs a task with the key that it names; fails if there is none.
pub(crate) fn run_task(key: Option<&LoadedKey>, task: &Task) -> Result<Output, BackendError> {
    let key = key.ok_or(BackendError::Failed)?;
    run(key, &task.operation, &task.input)
}

/// Checks and runs one operation.
pub(crate) fn run(
    key: &LoadedKey,
    operation: &Operation,
    input: &[u8],
) -> Result<Output, BackendError> {
    check_arguments(operation, key.info.key_type, input)?;
    match (operation, &key.secret) {
        (Operation::RsaPkcs1Sign { hash }, Secret::Rsa(rsa)) => rsa_pkcs1_sign(rsa, *hash, input),
        (Operation::RsaPssSign { hash, mgf_hash, salt_len }, Secret::Rsa(rsa)) => {
            let KeyType::Rsa { bits } = key.info.key_type else {
                return Err(BackendError::Failed);
            };
            let salt_len = usize::from(*salt_len);
            let modulus_bits = usize::from(bits);
            rsa_sign(rsa, |encoded| {
                padding::encode_pss(*hash, *mgf_hash, salt_len, input, modulus_bits, encoded)
            })
        }
        (Operation::RsaOaepDecrypt { hash, mgf_hash, label }, Secret::Rsa(rsa)) => {
            rsa_decrypt(rsa, input, |encoded| {
                padding::decode_oaep(*hash, *mgf_hash, label, encoded)
            })
        }
        (Operation::RsaPkcs1Decrypt, Secret::Rsa(rsa)) => rsa_decrypt(rsa, input, |encoded| {
            padding::decode_pkcs1_implicit(&rsa.rejection_key, input, encoded)
        }),
        (Operation::RsaTlsPremaster { client_version }, Secret::Rsa(rsa)) => {
            rsa_decrypt(rsa, input, |encoded| {
                padding::decode_premaster(&rsa.rejection_key, input, *client_version, encoded)
            })
        }
        (Operation::RsaRaw, Secret::Rsa(rsa)) => rsa_raw(rsa, input),
        (Operation::EcdsaSign { .. }, Secret::Ec(ec)) => ecdsa_sign(ec, input),
        (Operation::Ecdh, Secret::Ec(ec)) => ecdh(ec, input),
        (Operation::X25519, Secret::X25519(secret)) => x25519(secret, input),
        (Operation::Ed25519Sign, Secret::Ed25519(secret)) => ed25519_sign(secret, input),
        (Operation::DhDerive, Secret::Dh(dh)) => {
            dh_derive(dh, key.info.key_type.modulus_len(), input)
        }
        (Operation::DsaSign { .. }, Secret::Dsa(dsa)) => dsa_sign(dsa, input),
        (Operation::MlDsaSign { input: form }, Secret::MlDsa(key)) => {
            ml_dsa_sign(key, *form, input)
        }
        _ => Err(BackendError::NotOffered),
    }
}

fn rsa_pkcs1_sign(rsa: &RsaSecret, hash: Hash, digest: &[u8]) -> Result<Output, BackendError> {
    rsa_sign(rsa, |encoded| padding::encode_pkcs1_signature(hash, digest, encoded))
}

/// Encodes the digest, then signs the block.
fn rsa_sign(
    rsa: &RsaSecret,
    encode: impl FnOnce(&mut [u8]) -> Result<(), BackendError>,
) -> Result<Output, BackendError> {
    let mut encoded = padding::block();
    let encoded = &mut encoded[..rsa.modulus.len()];
    encode(encoded)?;
    rsa_raw(rsa, encoded)
}

/// Decrypts, then decodes the block.
fn rsa_decrypt(
    rsa: &RsaSecret,
    ciphertext: &[u8],
    decode: impl FnOnce(&mut [u8]) -> Result<Output, BackendError>,
) -> Result<Output, BackendError> {
    let mut encoded = padding::block();
    let encoded = &mut encoded[..rsa.modulus.len()];
    rsa_private(rsa, ciphertext, encoded)?;
    decode(encoded)
}

fn rsa_raw(rsa: &RsaSecret, input: &[u8]) -> Result<Output, BackendError> {
    let mut output = Output::new(vec![0; rsa.modulus.len()]);
    rsa_private(rsa, input, &mut output)?;
    Ok(output)
}

fn ecdsa_sign(key: &EcKey, digest: &[u8]) -> Result<Output, BackendError> {
    let mut signature = Output::new(vec![0; key.max_signature_len()]);
    let len = key.sign(digest, &mut signature)?;
    signature.truncate(len);
    Ok(signature)
}

fn ecdh(key: &EcKey, peer: &[u8]) -> Result<Output, BackendError> {
    // Besides the uncompressed form only the hybrid form has this length, and no known peer sends it.
    if peer.first() != Some(&4) {
        return Err(BackendError::BadInput);
    }
    let mut secret = Output::new(vec![0; (peer.len() - 1) / 2]);
    key.agree(peer, &mut secret)?;
    Ok(secret)
}

fn x25519(private: &[u8; 32], peer: &[u8]) -> Result<Output, BackendError> {
    let peer = peer.try_into().map_err(|_| BackendError::BadInput)?;
    let mut secret = Output::new(vec![0; 32]);
    let place = secret.as_mut_slice().try_into().map_err(|_| BackendError::Failed)?;
    sys::x25519(private, peer, place)?;
    Ok(secret)
}

fn ed25519_sign(private: &[u8; 64], message: &[u8]) -> Result<Output, BackendError> {
    let mut signature = Output::new(vec![0; 64]);
    let place = signature.as_mut_slice().try_into().map_err(|_| BackendError::Failed)?;
    sys::ed25519_sign(private, message, place)?;
    Ok(signature)
}

fn dh_derive(key: &Dh, prime_len: usize, peer: &[u8]) -> Result<Output, BackendError> {
    let peer = Number::from_bytes(peer).ok_or(BackendError::Failed)?;
    let mut secret = Output::new(vec![0; prime_len]);
    key.agree(&peer, &mut secret)?;
    Ok(secret)
}

fn dsa_sign(key: &Dsa, digest: &[u8]) -> Result<Output, BackendError> {
    let mut signature = Output::new(vec![0; key.max_signature_len()]);
    let len = key.sign(digest, &mut signature)?;
    signature.truncate(len);
    Ok(signature)
}

fn ml_dsa_sign(key: &MlDsa, form: MlDsaInput, input: &[u8]) -> Result<Output, BackendError> {
    let mut signature = Output::new(vec![0; key.set().signature_len()]);
    match form {
        MlDsaInput::Message => key.sign_message(input, &mut signature)?,
        MlDsaInput::Mu => key.sign_mu(input, &mut signature)?,
    }
    Ok(signature)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::software::keys;

    #[test]
    fn wrong_rsa_result_is_a_fault_and_output_is_zeroised() {
        let mut key = keys::load(millrace_testkit::keys::rsa_2048().der).expect("a good key");
        let sign = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
        assert!(run(&key, &sign, &[7; 32]).is_ok());
        let Secret::Rsa(rsa) = &mut key.secret else { panic!("not an RSA key") };
        rsa.key.break_first_exponent();
        let mut output = [0xaa; 256];
        let input = [0x11; 256];
        assert_eq!(rsa_private(rsa, &input, &mut output), Err(BackendError::Fault));
        assert_eq!(output, [0; 256]);
        for operation in [
            sign,
            Operation::RsaPssSign { hash: Hash::Sha256, mgf_hash: Hash::Sha256, salt_len: 32 },
        ] {
            assert_eq!(run(&key, &operation, &[7; 32]), Err(BackendError::Fault));
        }
        for operation in [
            Operation::RsaRaw,
            Operation::RsaPkcs1Decrypt,
            Operation::RsaTlsPremaster { client_version: 0x0303 },
        ] {
            assert_eq!(run(&key, &operation, &input), Err(BackendError::Fault));
        }
    }
}
