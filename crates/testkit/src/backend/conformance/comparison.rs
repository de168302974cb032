// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Random operations: deterministic results equal those of the reference bit for bit, randomised ones verify.

use std::fmt::Debug;

use millrace_operation::{Hash, KeyInfo, KeyType, ML_DSA_MU_LEN, MlDsaInput, Operation, Output};

use super::{ConformanceReport, QueueDriver};
use crate::keys::{self, TestKey};
use crate::verify;

/// Digests that every operation with a digest accepts.
const HASHES: [Hash; 6] =
    [Hash::Sha1, Hash::Sha224, Hash::Sha256, Hash::Sha384, Hash::Sha512, Hash::Sha512_256];

/// Returns one good input for each operation of `key`, with random digests, messages and peers.
#[must_use]
pub(super) fn operations(key: &TestKey, spki: &[u8]) -> Vec<(Operation, Vec<u8>)> {
    let hash = HASHES[usize::from(random(1)[0]) % HASHES.len()];
    let digest = random(hash.digest_len());
    match key.key_type {
        KeyType::Rsa { .. } => rsa_operations(key.key_type, spki, hash, digest),
        KeyType::Ec(_) => vec![
            (Operation::EcdsaSign { hash }, digest),
            (Operation::Ecdh, verify::agreement(key).0),
        ],
        KeyType::X25519 => vec![(Operation::X25519, verify::agreement(key).0)],
        KeyType::Ed25519 => {
            vec![(Operation::Ed25519Sign, random(usize::from(random(1)[0])))]
        }
        KeyType::Dh { .. } => vec![(Operation::DhDerive, verify::agreement(key).0)],
        KeyType::Dsa { .. } => vec![(Operation::DsaSign { hash }, digest)],
        KeyType::MlDsa(_) => vec![
            (
                Operation::MlDsaSign { input: MlDsaInput::Message },
                random(usize::from(random(1)[0])),
            ),
            (Operation::MlDsaSign { input: MlDsaInput::Mu }, random(ML_DSA_MU_LEN)),
        ],
    }
}

fn rsa_operations(
    key_type: KeyType,
    spki: &[u8],
    hash: Hash,
    digest: Vec<u8>,
) -> Vec<(Operation, Vec<u8>)> {
    let mgf_hash = HASHES[usize::from(random(1)[0]) % HASHES.len()];
    let len = key_type.modulus_len();
    let salt_len = u16::from(random(1)[0]) % 191;
    // Label and message fit the smallest modulus with the longest digest.
    let label = random(usize::from(random(1)[0]) % 20);
    let message = random(40);
    let oaep = verify::encrypt_oaep(spki, hash, mgf_hash, &label, &message);
    let mut premaster = vec![3, 3];
    premaster.extend(random(46));
    let mut number = random(len);
    number[0] = 0;
    vec![
        (Operation::RsaPkcs1Sign { hash }, digest.clone()),
        (Operation::RsaPkcs1Sign { hash: Hash::Md5Sha1 }, random(36)),
        (Operation::RsaPssSign { hash, mgf_hash, salt_len }, digest),
        (Operation::RsaOaepDecrypt { hash, mgf_hash, label }, oaep),
        (Operation::RsaPkcs1Decrypt, verify::encrypt_pkcs1(spki, &message)),
        // A random number is almost certainly malformed, so implicit rejection applies, here and below.
        (Operation::RsaPkcs1Decrypt, number.clone()),
        (
            Operation::RsaTlsPremaster { client_version: 0x0303 },
            verify::encrypt_pkcs1(spki, &premaster),
        ),
        (Operation::RsaTlsPremaster { client_version: 0x0303 }, number.clone()),
        (Operation::RsaRaw, number),
    ]
}

/// Whether this operation accepts inputs of more than one length.
#[must_use]
pub(super) fn takes_any_length(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Ed25519Sign
            | Operation::DhDerive
            | Operation::MlDsaSign { input: MlDsaInput::Message }
    )
}

fn random(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    openssl::rand::rand_bytes(&mut bytes).expect("random bytes");
    bytes
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Expectation<'a> {
    /// Success; the result is verified where that needs no reference.
    Works,
    /// Success, and equal to this output if the operation is deterministic.
    Equals(&'a Output),
}

/// Checks a result.
pub(super) fn check(
    info: &KeyInfo,
    operation: &Operation,
    input: &[u8],
    result: &Result<Output, impl Debug>,
    expectation: Expectation<'_>,
) {
    let output = result.as_ref().unwrap_or_else(|error| panic!("{operation:?}: {error:?}"));
    let random = match operation {
        Operation::RsaPkcs1Sign { .. } | Operation::Ed25519Sign => {
            assert!(verify::signature(&info.spki, operation, input, output), "{operation:?}");
            false
        }
        Operation::RsaPssSign { .. }
        | Operation::EcdsaSign { .. }
        | Operation::DsaSign { .. }
        | Operation::MlDsaSign { .. } => {
            assert!(verify::signature(&info.spki, operation, input, output), "{operation:?}");
            true
        }
        Operation::RsaRaw => {
            assert_eq!(verify::rsa_public(&info.spki, output), input);
            false
        }
        Operation::RsaOaepDecrypt { .. }
        | Operation::RsaPkcs1Decrypt
        | Operation::RsaTlsPremaster { .. }
        | Operation::Ecdh
        | Operation::X25519
        | Operation::DhDerive => false,
    };
    if !random && let Expectation::Equals(expected) = expectation {
        assert_eq!(output, expected, "{operation:?}");
    }
}

/// Runs random operations on every good key. Compares the results with the reference if there is one, and
/// verifies them.
pub(super) fn run(
    driver: &mut QueueDriver,
    mut reference: Option<&mut QueueDriver>,
    rounds: usize,
    report: &mut ConformanceReport,
) {
    for key in keys::all() {
        let part = format!("comparison, {}", key.name);
        let Ok(ours) = driver.open(key.der) else {
            report.left_out(part);
            continue;
        };
        let theirs = reference.as_mut().map(|reference| reference.open_good(&key));
        if let Some(theirs) = &theirs {
            assert_eq!(ours.info, theirs.info, "{}", key.name);
        }
        // An operation with the largest keys takes milliseconds; a few rounds suffice.
        let rounds = if key.key_type.modulus_len() > 512 { rounds.div_ceil(10) } else { rounds };
        let mut executed = 0;
        for _ in 0..rounds {
            for (operation, input) in operations(&key, &ours.info.spki) {
                if !driver.offers(operation.kind(), key.key_type) {
                    continue;
                }
                let expected = reference
                    .as_mut()
                    .zip(theirs.as_ref())
                    .map(|(reference, theirs)| reference.output(theirs.key, &operation, &input));
                let result = driver.perform(ours.key, &operation, &input);
                let expectation = expected.as_ref().map_or(Expectation::Works, Expectation::Equals);
                check(&ours.info, &operation, &input, &result, expectation);
                executed += 1;
            }
        }
        driver.close(ours.key);
        if let (Some(reference), Some(theirs)) = (&mut reference, theirs) {
            reference.close(theirs.key);
        }
        if executed > 0 {
            report.ran(part, executed);
        } else {
            report.left_out(part);
        }
    }
}
