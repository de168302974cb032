// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Constant-time measurements of whole operations as a worker runs them. Each test compares two classes of
//! keys, messages or ciphertexts, on the simd backend (full batches, on each fast implementation) and on the
//! software backend. An ordinary run is coarse; `make test-timing` measures precisely and prints t.
//!
//! One class is fixed, the other random. The fixed key is opened as many times as there are random keys, so
//! that both classes use the caches alike.

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_backends::simd::{Implementation, Simd};
use millrace_backends::software::Software;
use millrace_engine::backend::{Backend, BackendKey, Done, Queue, Task};
use millrace_operation::{Curve, Hash, Operation};
use millrace_testkit::keys;
use millrace_testkit::random::SeededRandom;
use millrace_testkit::timing::{Timing, nanoseconds};
use openssl::pkey::PKey;
use openssl::rsa::{Padding, Rsa};

/// Keys of each class.
const KEYS: usize = 8;

/// The backends that are fast on this processor, each with its number of tasks per batch.
fn subjects() -> Vec<(String, Arc<dyn Backend>, usize)> {
    let mut subjects: Vec<(String, Arc<dyn Backend>, usize)> = Vec::new();
    for implementation in [Implementation::Avx512Ifma, Implementation::Avx512Fp52] {
        if implementation.is_available() {
            let simd = Simd::with(implementation);
            let batch = simd.describe().batch;
            let name = format!("simd, {}", implementation.name());
            subjects.push((name, Arc::new(simd), batch));
        } else {
            let reason = format!("no AVX-512 for {}", implementation.name());
            millrace_testkit::skip::record(concat!(file!(), ":", line!()), &reason);
        }
    }
    subjects.push(("software".to_owned(), Arc::new(Software::new()), 1));
    subjects
}

fn open(backend: &dyn Backend, der: &[u8]) -> BackendKey {
    let key = keys::private_key(der);
    backend.open_key(&key).expect("a good key").key
}

/// A queue, and the index of the next key of a class.
struct Bench {
    queue: Box<dyn Queue>,
    batch: usize,
    turn: usize,
    tasks: VecDeque<Task>,
    done: Vec<Done>,
}

impl Bench {
    fn new(backend: &dyn Backend, batch: usize) -> Self {
        Self {
            queue: backend.open_queue().expect("a queue"),
            batch,
            turn: 0,
            tasks: VecDeque::new(),
            done: Vec::new(),
        }
    }

    /// The time of one full batch on these inputs, with these keys in turn, in nanoseconds.
    fn time(&mut self, keys: &[BackendKey], operation: &Operation, inputs: Vec<Vec<u8>>) -> u64 {
        assert_eq!(inputs.len(), self.batch);
        for (token, input) in (0..).zip(inputs) {
            self.turn += 1;
            self.tasks.push_back(Task {
                token,
                key: keys[self.turn % keys.len()],
                operation: operation.clone(),
                input,
            });
        }
        let queue = &mut self.queue;
        let tasks = &mut self.tasks;
        let done = &mut self.done;
        let time = nanoseconds(|| {
            queue.submit(tasks);
            while queue.poll(done) > 0 {}
        });
        assert!(self.done.iter().all(|done| done.result.is_ok()));
        assert_eq!(self.done.drain(..).count(), self.batch);
        time
    }
}

/// Random RSA-2048 keys.
fn rsa_keys() -> Vec<Vec<u8>> {
    (0..KEYS)
        .map(|_| {
            let key = PKey::from_rsa(Rsa::generate(2048).expect("a key")).expect("a key");
            key.private_key_to_pkcs8().expect("DER")
        })
        .collect()
}

#[test]
fn rsa_keys_take_the_same_time() {
    let others = rsa_keys();
    let mut random = SeededRandom::new(1);
    for (name, backend, batch) in subjects() {
        let fixed = keys::rsa_2048().der;
        let classes: [Vec<_>; 2] = [
            (0..KEYS).map(|_| open(&*backend, fixed)).collect(),
            others.iter().map(|der| open(&*backend, der)).collect(),
        ];
        let mut bench = Bench::new(&*backend, batch);
        Timing::from_environment().same_time(&format!("{name}, RSA-2048 keys"), |class| {
            let inputs = (0..batch).map(|_| random.number(256)).collect();
            bench.time(&classes[class], &Operation::RsaRaw, inputs)
        });
    }
}

#[test]
fn rsa_messages_take_the_same_time() {
    let mut random = SeededRandom::new(2);
    for (name, backend, batch) in subjects() {
        let keys = [open(&*backend, keys::rsa_2048().der)];
        let mut bench = Bench::new(&*backend, batch);
        // Many zeros: the number that differs most from a random one.
        let mut fixed = vec![0; 256];
        fixed[255] = 2;
        let what = format!("{name}, RSA-2048 raw inputs");
        Timing::from_environment().same_time(&what, |class| {
            let other: Vec<_> = (0..batch).map(|_| random.number(256)).collect();
            let fixed = vec![fixed.clone(); batch];
            let inputs = if class == 0 { fixed } else { other };
            bench.time(&keys, &Operation::RsaRaw, inputs)
        });
    }
}

#[test]
fn rsa_ciphertexts_with_good_and_bad_padding_take_the_same_time() {
    let key = keys::rsa_2048();
    let rsa = PKey::private_key_from_der(key.der).expect("a key");
    let rsa = rsa.rsa().expect("an RSA key");
    let mut random = SeededRandom::new(3);
    // Too many for a branch predictor to learn.
    let good: Vec<Vec<u8>> = (0..64)
        .map(|_| {
            let mut sealed = vec![0; 256];
            rsa.public_encrypt(&random.bytes(48), &mut sealed, Padding::PKCS1)
                .expect("a ciphertext");
            sealed
        })
        .collect();
    let bad: Vec<Vec<u8>> = (0..64).map(|_| random.number(256)).collect();
    let classes = [good, bad];
    let operations =
        [Operation::RsaPkcs1Decrypt, Operation::RsaTlsPremaster { client_version: 0x0303 }];
    for (name, backend, batch) in subjects() {
        let keys = [open(&*backend, key.der)];
        for operation in &operations {
            let mut bench = Bench::new(&*backend, batch);
            let mut turn = 0;
            let what = format!("{name}, {} with good and bad padding", operation.kind());
            Timing::from_environment().same_time(&what, |class| {
                turn += batch;
                let of = |at: usize| classes[class][(turn + at) % 64].clone();
                bench.time(&keys, operation, (0..batch).map(of).collect())
            });
        }
    }
}

#[test]
fn keys_on_curves_take_the_same_time() {
    let backend = Software::new();
    let mut random = SeededRandom::new(4);
    let mut scalar = || {
        let mut scalar = random.bytes(32);
        scalar[0] &= 0x7f;
        scalar
    };
    let mut small = vec![0; 32];
    small[31] = 3;
    let p256 = |scalar: &[u8]| keys::ec_private_key(Curve::P256, scalar);
    let x25519 = |scalar: &[u8]| keys::x25519_private_key(scalar.try_into().expect("32 bytes"));
    let base = {
        let mut base = vec![0; 32];
        base[0] = 9;
        base
    };
    let sign = Operation::EcdsaSign { hash: Hash::Sha256 };
    let random_scalars: Vec<_> = (0..KEYS).map(|_| scalar()).collect();
    type Make<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, Make<'_>, Operation, Vec<u8>); 2] = [
        ("P-256 keys", &p256, sign, vec![0x5a; 32]),
        ("X25519 keys", &x25519, Operation::X25519, base),
    ];
    for (name, make, operation, input) in cases {
        let classes: [Vec<_>; 2] = [
            (0..KEYS).map(|_| open(&backend, &make(&small))).collect(),
            random_scalars.iter().map(|scalar| open(&backend, &make(scalar))).collect(),
        ];
        let mut bench = Bench::new(&backend, 1);
        Timing::from_environment().same_time(&format!("software, {name}"), |class| {
            bench.time(&classes[class], &operation, vec![input.clone()])
        });
    }
}
