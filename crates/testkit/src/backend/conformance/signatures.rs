// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Wycheproof's files for signature verification. A backend only signs, so each file has two uses. Its
//! verdicts test the verifier of the suite. Its messages are signed with our keys, and the verifier checks
//! the signatures.

use millrace_operation::{KeyType, MlDsaInput, Operation};
use serde_json::Value;

use super::known::hash;
use super::{ConformanceReport, QueueDriver};
use crate::keys::{self, TestKey};
use crate::vectors::{Vectors, bytes, tests, text};
use crate::verify;

/// The files, each with the key that signs its messages.
fn files() -> Vec<(&'static str, TestKey)> {
    let k2048 = keys::rsa_2048();
    let k3072 = keys::rsa_3072();
    let k4096 = keys::rsa_4096();
    vec![
        ("rsa_signature_2048_sha256", k2048),
        ("rsa_signature_2048_sha384", k2048),
        ("rsa_signature_2048_sha512", k2048),
        ("rsa_signature_3072_sha256", k3072),
        ("rsa_signature_4096_sha512", k4096),
        ("rsa_pss_2048_sha256_mgf1_0", k2048),
        ("rsa_pss_2048_sha256_mgf1_32", k2048),
        ("rsa_pss_3072_sha256_mgf1_32", k3072),
        ("rsa_pss_4096_sha384_mgf1_48", k4096),
        ("rsa_pss_4096_sha512_mgf1_64", k4096),
        ("ecdsa_secp256r1_sha256", keys::p_256()),
        ("ecdsa_secp384r1_sha384", keys::p_384()),
        ("ed25519", keys::ed25519()),
        ("mldsa_44_verify", keys::ml_dsa_44()),
        ("mldsa_65_verify", keys::ml_dsa_65()),
        ("mldsa_87_verify", keys::ml_dsa_87()),
    ]
}

pub(super) fn run(driver: &mut QueueDriver, report: &mut ConformanceReport) {
    for (name, key) in files() {
        let file = Vectors::wycheproof(name);
        let operation = operation(&file.groups[0], key.key_type);
        let part = format!("{name}, signed and verified");
        if driver.offers(operation.kind(), key.key_type) {
            report.ran(part, sign_messages(driver, &file, &key, &operation));
        } else {
            report.left_out(part);
        }
    }
}

/// The operation that makes signatures like those of a group.
fn operation(group: &Value, key_type: KeyType) -> Operation {
    match (text(group, "type"), key_type) {
        ("RsassaPkcs1Verify", _) => Operation::RsaPkcs1Sign { hash: hash(text(group, "sha")) },
        ("RsassaPssVerify", _) => Operation::RsaPssSign {
            hash: hash(text(group, "sha")),
            mgf_hash: hash(text(group, "mgfSha")),
            salt_len: group["sLen"].as_u64().and_then(|len| len.try_into().ok()).expect("a length"),
        },
        ("EcdsaVerify", _) => Operation::EcdsaSign { hash: hash(text(group, "sha")) },
        ("EddsaVerify", _) => Operation::Ed25519Sign,
        ("MlDsaVerify", _) => Operation::MlDsaSign { input: MlDsaInput::Message },
        (other, _) => panic!("no operation for {other}"),
    }
}

/// Returns operation and input that sign the message of a test. The input is the digest if the operation has
/// a hash, and the message representative if an ML-DSA test has a context. `None` if the context is too long.
fn asked(operation: &Operation, test: &Value, spki: &[u8]) -> Option<(Operation, Vec<u8>)> {
    let message = bytes(test, "msg");
    let context = test.get("ctx").map(|_| bytes(test, "ctx")).unwrap_or_default();
    match (operation.hash(), context.len()) {
        (Some(hash), _) => Some((operation.clone(), verify::digest(hash, &message))),
        (None, 0) => Some((operation.clone(), message)),
        (None, 1..=255) => {
            let mu = verify::ml_dsa_mu(spki, &context, &message);
            Some((Operation::MlDsaSign { input: MlDsaInput::Mu }, mu.to_vec()))
        }
        (None, _) => None,
    }
}

fn sign_messages(
    driver: &mut QueueDriver,
    file: &Vectors,
    key: &TestKey,
    operation: &Operation,
) -> usize {
    let opened = driver.open_good(key);
    let mut signed = 0;
    for group in &file.groups {
        let theirs = bytes(group, "publicKeyDer");
        for test in tests(group) {
            signed += 1;
            let ours = &opened.info.spki;
            let asked = |spki| asked(operation, test, spki);
            let (Some((operation, input)), Some(to_verify)) = (asked(ours), asked(&theirs)) else {
                continue;
            };
            check_verifier(&theirs, &to_verify.0, &to_verify.1, test);
            let signature = driver.output(opened.key, &operation, &input);
            assert!(verify::signature(ours, &operation, &input, &signature));
        }
    }
    driver.close(opened.key);
    assert_eq!(signed, file.number_of_tests);
    signed
}

/// Compares the verifier with the verdict of a test.
fn check_verifier(spki: &[u8], operation: &Operation, input: &[u8], test: &Value) {
    let accepted = verify::signature(spki, operation, input, &bytes(test, "sig"));
    match text(test, "result") {
        "valid" => assert!(accepted, "test {} is valid", test["tcId"]),
        "invalid" => assert!(!accepted, "test {} is invalid", test["tcId"]),
        _ => {}
    }
}
