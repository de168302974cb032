// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Input: the number of a key, the code of an operation, its parameters, a byte that says whether the
//! rest is cut or filled to the length that the operation wants, and the input. Whatever is asked of a
//! good key ends as a result or as the asker's fault, never as one of the backend's.
#![no_main]

use std::cell::RefCell;
use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, BackendKey, Queue, Task};
use millrace_operation::{ML_DSA_MU_LEN, Hash, KeyType, MlDsaInput, Operation, OperationKind};
use millrace_engine::{BackendError};
use millrace_testkit::keys;

struct Bench {
    queue: Box<dyn Queue>,
    keys: Vec<(KeyType, BackendKey)>,
    /// Holds the keys.
    _backend: Software,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench::new());
}

impl Bench {
    fn new() -> Self {
        let backend = Software::new();
        let keys = [
            keys::rsa_2048(),
            keys::p_256(),
            keys::p_384(),
            keys::p_521(),
            keys::x25519(),
            keys::ed25519(),
            keys::dh_ffdhe2048(),
            keys::dsa_2048(),
            keys::ml_dsa_44(),
            keys::ml_dsa_65(),
            keys::ml_dsa_87(),
        ];
        let open = |key: keys::TestKey| {
            let opened = backend.open_key(&key.private_key()).expect("a good key");
            (opened.info.key_type, opened.key)
        };
        Self {
            keys: keys.into_iter().map(open).collect(),
            queue: backend.open_queue().expect("software is usable everywhere"),
            _backend: backend,
        }
    }

    fn run(&mut self, data: &[u8]) -> Option<()> {
        let mut rest = data;
        let number = usize::from(byte(&mut rest)?);
        let (key_type, key) = self.keys[number % self.keys.len()];
        let operation = operation(&mut rest)?;
        let mut input = match byte(&mut rest)? & 1 {
            0 => rest.to_vec(),
            _ => {
                let mut input = rest.to_vec();
                input.resize(fitting_len(&operation, key_type), 0x5a);
                input
            }
        };
        input.truncate(millrace_operation::MAX_INPUT_LEN);
        let offered = operation.check(key_type, &input).is_ok();
        let kind = operation.kind();
        let mut tasks = VecDeque::from([Task { token: 1, key, operation, input }]);
        assert_eq!(self.queue.submit(&mut tasks), 1);
        let mut done = Vec::new();
        while self.queue.poll(&mut done) > 0 {}
        assert_eq!(done.len(), 1);
        match &done[0].result {
            Ok(output) => {
                assert!(offered, "{kind} with {key_type} should not have been done");
                check_output(kind, key_type, output.len());
            }
            Err(BackendError::BadInput | BackendError::NotOffered) => {}
            Err(error) => panic!("{kind} with {key_type}: {error}"),
        }
        Some(())
    }
}

fuzz_target!(|data: &[u8]| {
    BENCH.with(|bench| bench.borrow_mut().run(data));
});

fn byte(rest: &mut &[u8]) -> Option<u8> {
    let (&first, more) = rest.split_first()?;
    *rest = more;
    Some(first)
}

fn hash(rest: &mut &[u8]) -> Option<Hash> {
    Some(Hash::ALL[usize::from(byte(rest)?) % Hash::ALL.len()])
}

fn short(rest: &mut &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes([byte(rest)?, byte(rest)?]))
}

fn operation(rest: &mut &[u8]) -> Option<Operation> {
    let kinds = OperationKind::ALL;
    Some(match kinds[usize::from(byte(rest)?) % kinds.len()] {
        OperationKind::RsaPkcs1Sign => Operation::RsaPkcs1Sign { hash: hash(rest)? },
        OperationKind::RsaPssSign => Operation::RsaPssSign {
            hash: hash(rest)?,
            mgf_hash: hash(rest)?,
            salt_len: short(rest)?,
        },
        OperationKind::RsaOaepDecrypt => Operation::RsaOaepDecrypt {
            hash: hash(rest)?,
            mgf_hash: hash(rest)?,
            // Beyond the bound as well.
            label: vec![0x4c; usize::from(short(rest)? % 512)],
        },
        OperationKind::RsaPkcs1Decrypt => Operation::RsaPkcs1Decrypt,
        OperationKind::RsaTlsPremaster => {
            Operation::RsaTlsPremaster { client_version: short(rest)? }
        }
        OperationKind::RsaRaw => Operation::RsaRaw,
        OperationKind::EcdsaSign => Operation::EcdsaSign { hash: hash(rest)? },
        OperationKind::Ecdh => Operation::Ecdh,
        OperationKind::X25519 => Operation::X25519,
        OperationKind::Ed25519Sign => Operation::Ed25519Sign,
        OperationKind::DhDerive => Operation::DhDerive,
        OperationKind::DsaSign => Operation::DsaSign { hash: hash(rest)? },
        OperationKind::MlDsaSign => Operation::MlDsaSign {
            input: MlDsaInput::ALL[usize::from(byte(rest)?) % MlDsaInput::ALL.len()],
        },
    })
}

/// The length of input that the operation wants.
fn fitting_len(operation: &Operation, key_type: KeyType) -> usize {
    match (operation, key_type) {
        (
            Operation::RsaPkcs1Sign { hash }
            | Operation::RsaPssSign { hash, .. }
            | Operation::EcdsaSign { hash }
            | Operation::DsaSign { hash },
            _,
        ) => hash.digest_len(),
        (Operation::Ecdh, KeyType::Ec(curve)) => 1 + 2 * curve.field_len(),
        (Operation::X25519 | Operation::Ed25519Sign, _) => 32,
        (Operation::MlDsaSign { .. }, _) => ML_DSA_MU_LEN,
        (
            Operation::RsaOaepDecrypt { .. }
            | Operation::RsaPkcs1Decrypt
            | Operation::RsaTlsPremaster { .. }
            | Operation::RsaRaw
            | Operation::Ecdh
            | Operation::DhDerive,
            _,
        ) => key_type.modulus_len(),
    }
}

fn check_output(kind: OperationKind, key_type: KeyType, len: usize) {
    let modulus = key_type.modulus_len();
    match (kind, key_type) {
        (OperationKind::RsaPkcs1Sign | OperationKind::RsaPssSign | OperationKind::RsaRaw, _) => {
            assert_eq!(len, modulus);
        }
        (OperationKind::RsaOaepDecrypt | OperationKind::RsaPkcs1Decrypt, _) => {
            assert!(len < modulus);
        }
        (OperationKind::RsaTlsPremaster, _) => assert_eq!(len, 48),
        (OperationKind::Ecdh, KeyType::Ec(curve)) => assert_eq!(len, curve.field_len()),
        (OperationKind::X25519, _) => assert_eq!(len, 32),
        (OperationKind::Ed25519Sign, _) => assert_eq!(len, 64),
        (OperationKind::MlDsaSign, KeyType::MlDsa(set)) => assert_eq!(len, set.signature_len()),
        (OperationKind::MlDsaSign, _) => panic!("{kind} with {key_type}"),
        (OperationKind::DhDerive, _) => assert_eq!(len, modulus),
        (OperationKind::Ecdh | OperationKind::EcdsaSign | OperationKind::DsaSign, _) => {
            assert!((8..=141).contains(&len), "{kind}: {len}");
        }
    }
}
