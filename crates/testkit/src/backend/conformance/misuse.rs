// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tasks that a backend must refuse with the right error, although the dispatcher should have refused them
//! before.

use millrace_engine::BackendError;
use millrace_engine::backend::BackendKey;
use millrace_operation::{Hash, KeyType, Operation, OperationKind};

use super::comparison::{operations, takes_any_length};
use super::{ConformanceReport, QueueDriver};
use crate::keys::{self, TestKey};
use crate::verify;

pub(super) fn run(driver: &mut QueueDriver, report: &mut ConformanceReport) {
    let mut executed = unknown_keys(driver);
    let keys: Vec<_> = keys::all()
        .into_iter()
        .filter(|key| OperationKind::ALL.iter().any(|kind| driver.offers(*kind, key.key_type)))
        .collect();
    for key in &keys {
        executed += wrong_operations(driver, key);
        executed += wrong_lengths(driver, key);
        executed += bad_key_agreement(driver, key);
        executed += out_of_range(driver, key);
    }
    report.ran("misuse", executed);

    let refused = bad_keys(driver, report);
    if refused > 0 {
        report.ran("bad keys", refused);
    }
}

/// Tasks with a key that was never opened, or that was closed.
fn unknown_keys(driver: &mut QueueDriver) -> usize {
    let operation = Operation::Ed25519Sign;
    let result = driver.perform(BackendKey(u64::MAX), &operation, b"message");
    assert!(matches!(result, Err(error) if error.retry_elsewhere()), "a key never opened");
    driver.close(BackendKey(u64::MAX));
    let offered = keys::all().into_iter().find_map(|key| {
        OperationKind::ALL.iter().find(|kind| driver.offers(**kind, key.key_type))?;
        Some(key)
    });
    let key = offered.expect("a backend offers something");
    let opened = driver.open_good(&key);
    driver.close(opened.key);
    driver.close(opened.key);
    let (operation, input) = operations(&key, &opened.info.spki).swap_remove(0);
    let result = driver.perform(opened.key, &operation, &input);
    assert!(matches!(result, Err(error) if error.retry_elsewhere()), "a closed key");
    2
}

/// Asserts that a job ends with this error.
fn assert_refused(
    driver: &mut QueueDriver,
    key: &TestKey,
    opened: BackendKey,
    (operation, input): (&Operation, &[u8]),
    error: BackendError,
) {
    let result = driver.perform(opened, operation, input);
    let name = key.name;
    let input = hex::encode(input);
    assert_eq!(result, Err(error), "{name} {operation:?} of {input}");
}

/// Operations of other types of key.
fn wrong_operations(driver: &mut QueueDriver, key: &TestKey) -> usize {
    let opened = driver.open_good(key);
    let mut executed = 0;
    let others = [
        keys::rsa_2048(),
        keys::p_256(),
        keys::x25519(),
        keys::ed25519(),
        keys::dh_ffdhe2048(),
        keys::dsa_2048(),
        keys::ml_dsa_44(),
    ];
    for other in others {
        for (operation, input) in operations(&other, &verify::spki(&other)) {
            if operation.kind().fits(key.key_type) {
                continue;
            }
            let expected = BackendError::NotOffered;
            assert_refused(driver, key, opened.key, (&operation, &input), expected);
            executed += 1;
        }
    }
    driver.close(opened.key);
    executed
}

/// Inputs that are one byte too short or too long, or empty.
fn wrong_lengths(driver: &mut QueueDriver, key: &TestKey) -> usize {
    let opened = driver.open_good(key);
    let mut executed = 0;
    for (operation, input) in operations(key, &opened.info.spki) {
        if takes_any_length(&operation) || !driver.offers(operation.kind(), key.key_type) {
            continue;
        }
        let longer = [&input[..], &[0]].concat();
        for wrong in [&input[1..], &input[..input.len() - 1], &longer, &[]] {
            let expected = BackendError::BadInput;
            assert_refused(driver, key, opened.key, (&operation, wrong), expected);
            executed += 1;
        }
    }
    driver.close(opened.key);
    executed
}

/// Peer values that would reveal something about the private key.
fn bad_key_agreement(driver: &mut QueueDriver, key: &TestKey) -> usize {
    let (operation, peers) = match key.key_type {
        KeyType::Ec(curve) => {
            let len = 1 + 2 * curve.field_len();
            let (good, _) = verify::agreement(key);
            let mut off = good.clone();
            off[len - 1] ^= 1;
            let compressed_tag = [&[2], &good[1..]].concat();
            let hybrid = [&[6 | (good[len - 1] & 1)], &good[1..]].concat();
            let at_infinity = vec![0; len];
            let too_large = [&[4], &vec![0xff; len - 1][..]].concat();
            (Operation::Ecdh, vec![off, compressed_tag, hybrid, at_infinity, too_large])
        }
        KeyType::X25519 => {
            let mut one = vec![0; 32];
            one[0] = 1;
            (Operation::X25519, vec![vec![0; 32], one])
        }
        KeyType::Dh { .. } => {
            let p = verify::dh_prime(key);
            let mut last = p.clone();
            *last.last_mut().expect("a prime") -= 1;
            (Operation::DhDerive, vec![vec![0], vec![1], last, p.clone(), vec![0xff; p.len()]])
        }
        KeyType::Rsa { .. } | KeyType::Ed25519 | KeyType::Dsa { .. } | KeyType::MlDsa(_) => {
            return 0;
        }
    };
    if !driver.offers(operation.kind(), key.key_type) {
        return 0;
    }
    let opened = driver.open_good(key);
    for peer in &peers {
        assert_refused(driver, key, opened.key, (&operation, peer), BackendError::BadInput);
    }
    driver.close(opened.key);
    peers.len()
}

/// Numbers at and around the modulus.
fn out_of_range(driver: &mut QueueDriver, key: &TestKey) -> usize {
    if !driver.offers(OperationKind::RsaRaw, key.key_type) {
        return 0;
    }
    let opened = driver.open_good(key);
    let modulus = verify::rsa_modulus(&opened.info.spki);
    let mut above = modulus.clone();
    *above.last_mut().expect("a modulus") += 1;
    for bad in [&modulus, &above, &vec![0xff; modulus.len()]] {
        for operation in [
            Operation::RsaRaw,
            Operation::RsaPkcs1Decrypt,
            Operation::RsaTlsPremaster { client_version: 0x0303 },
            Operation::RsaOaepDecrypt { hash: Hash::Sha1, mgf_hash: Hash::Sha1, label: vec![] },
        ] {
            let expected = BackendError::BadInput;
            assert_refused(driver, key, opened.key, (&operation, bad), expected);
        }
    }
    // 0, 1 and n−1 are their own powers, and good inputs.
    let mut one = vec![0; modulus.len()];
    *one.last_mut().expect("a modulus") = 1;
    let mut last = modulus.clone();
    *last.last_mut().expect("a modulus") -= 1;
    for fixed in [vec![0; modulus.len()], one, last] {
        assert_eq!(*driver.output(opened.key, &Operation::RsaRaw, &fixed), fixed, "{}", key.name);
    }
    driver.close(opened.key);
    15
}

/// Every bad key is refused. The error must match if the backend offers keys of that family.
fn bad_keys(driver: &QueueDriver, report: &mut ConformanceReport) -> usize {
    let mut refused = 0;
    for key in keys::bad() {
        let error =
            driver.backend().open_key(&key.private_key()).map(|opened| opened.info.key_type);
        let expected = error == Err(key.error);
        let not_offered = error == Err(millrace_operation::KeyError::NotOffered);
        assert!(expected || not_offered, "{}: {error:?}", key.name);
        if expected {
            refused += 1;
        } else {
            report.left_out(key.name);
        }
    }
    refused
}
