// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: a private key in DER. A backend that accepts a key can use it.
#![no_main]

use std::collections::VecDeque;
use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};
use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, Task};
use millrace_engine::{BackendError};
use millrace_operation::{Hash, KeyType, MlDsaInput, Operation, PrivateKey};
use zeroize::Zeroizing;

/// ML-DSA-65 with seed and expanded key takes 4.0 KiB, RSA-2048 1.2; larger keys only make every check slower.
const MAX_LEN: usize = 4200;

static BACKEND: LazyLock<Software> = LazyLock::new(Software::new);

fuzz_target!(|data: &[u8]| -> Corpus {
    if data.len() > MAX_LEN {
        return Corpus::Reject;
    }
    let key = PrivateKey::from_pkcs8(Zeroizing::new(data.to_vec()));
    let Ok(opened) = BACKEND.open_key(&key) else {
        return Corpus::Keep;
    };
    assert!(!opened.info.spki.is_empty());
    let (operation, input) = small_operation(opened.info.key_type);
    operation.check(opened.info.key_type, &input).expect("the operation fits the key");
    let mut tasks = VecDeque::from([Task { token: 7, key: opened.key, operation, input }]);
    let mut queue = BACKEND.open_queue().expect("software is usable everywhere");
    assert_eq!(queue.submit(&mut tasks), 1);
    BACKEND.close_key(opened.key);
    let mut done = Vec::new();
    while queue.poll(&mut done) > 0 {}
    assert_eq!(done.len(), 1);
    match &done[0].result {
        Ok(output) => assert!(!output.is_empty()),
        // The peer's share may lie outside of the group of a key that the input chose.
        Err(error) => {
            assert_eq!(*error, BackendError::BadInput);
            assert!(matches!(opened.info.key_type, KeyType::Dh { .. }));
        }
    }
    Corpus::Keep
});

fn small_operation(key_type: KeyType) -> (Operation, Vec<u8>) {
    let hash = Hash::Sha256;
    match key_type {
        KeyType::Rsa { .. } => (Operation::RsaPkcs1Sign { hash }, vec![7; 32]),
        KeyType::Ec(_) => (Operation::EcdsaSign { hash }, vec![7; 32]),
        KeyType::X25519 => (Operation::X25519, vec![9; 32]),
        KeyType::Ed25519 => (Operation::Ed25519Sign, b"message".to_vec()),
        KeyType::Dh { .. } => (Operation::DhDerive, vec![2]),
        KeyType::Dsa { .. } => (Operation::DsaSign { hash }, vec![7; 32]),
        KeyType::MlDsa(_) => {
            (Operation::MlDsaSign { input: MlDsaInput::Message }, b"message".to_vec())
        }
    }
}
