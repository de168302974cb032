// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The simd backend passes the suite on each implementation of the lanes that this processor runs, and its
//! queue makes batches of the waiting tasks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use millrace_backends::simd::{Implementation, Simd};
use millrace_backends::software::Software;
use millrace_engine::BackendError;
use millrace_engine::backend::{Backend, Done, OpenedKey, Queue, Task};
use millrace_operation::{BackendKind, Hash, KeyError, Operation};
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::keys::{self, TestKey};
use millrace_testkit::random::SeededRandom;
use millrace_testkit::{is_long, verify};

/// The implementations that this processor runs; prints the names of the others.
fn available() -> Vec<Implementation> {
    let (here, missing): (Vec<_>, Vec<_>) =
        Implementation::ALL.into_iter().partition(|implementation| implementation.is_available());
    for missing in missing {
        millrace_testkit::skip::record(file!(), &format!("no AVX-512 for {}", missing.name()));
    }
    here
}

/// The available implementations that are fast enough for thousands of operations.
fn fast() -> Vec<Implementation> {
    let mut fast = available();
    fast.retain(|implementation| *implementation != Implementation::Portable);
    fast
}

/// Runs the suite and checks that it was not empty.
fn conform(simd: Simd, rounds: usize) {
    let options = Options { reference: Some(Arc::new(Software::new())), rounds };
    let name = format!("{simd:?}");
    let report = conformance::run(Arc::new(simd), &options);
    println!("{name}\n{report}");
    assert!(report.total() > 1_000, "only {} tests ran", report.total());
    for part in ["rsa_2048", "rsa_3072", "rsa_4096"] {
        assert!(report.executed.contains_key(&format!("comparison, {part}")));
    }
}

#[test]
fn avx512_ifma_conforms_with_single_tasks_in_lanes() {
    if Implementation::Avx512Ifma.is_available() {
        conform(Simd::with(Implementation::Avx512Ifma).lanes_from(1), 10);
    } else {
        millrace_testkit::skip::record(file!(), "no AVX-512 IFMA");
    }
}

#[test]
fn avx512_fp52_conforms_with_single_tasks_in_lanes() {
    if Implementation::Avx512Fp52.is_available() {
        conform(Simd::with(Implementation::Avx512Fp52).lanes_from(1), 10);
    } else {
        millrace_testkit::skip::record(file!(), "no AVX-512F");
    }
}

#[test]
fn portable_lanes_conform() {
    // Single tasks run on AWS-LC except in long runs: the twin takes 12 ms for a batch of RSA-2048 and 57 ms
    // for RSA-4096, over a minute for all vectors.
    let lanes_from = if is_long() { 1 } else { 2 };
    conform(Simd::with(Implementation::Portable).lanes_from(lanes_from), 1);
}

fn raw(token: u32, opened: &OpenedKey, seed: u64) -> Task {
    let input = SeededRandom::new(seed).number(opened.info.key_type.modulus_len());
    Task { token, key: opened.key, operation: Operation::RsaRaw, input }
}

/// Runs all tasks through a queue and returns the results by token.
fn drive(queue: &mut dyn Queue, mut tasks: VecDeque<Task>) -> BTreeMap<u32, Done> {
    let count = tasks.len();
    let mut finished = BTreeMap::new();
    while finished.len() < count {
        queue.submit(&mut tasks);
        let mut done = Vec::new();
        queue.poll(&mut done);
        for done in done {
            assert!(finished.insert(done.task.token, done).is_none());
        }
    }
    finished
}

/// Fresh RSA keys of a size, and the fixed one.
fn some_keys(fixed: &TestKey, bits: u32, fresh: usize) -> Vec<Vec<u8>> {
    let mut ders = vec![fixed.der.to_vec()];
    for _ in 0..fresh {
        let rsa = openssl::rsa::Rsa::generate(bits).expect("a key");
        let key = openssl::pkey::PKey::from_rsa(rsa).expect("a key");
        ders.push(key.private_key_to_pkcs8().expect("DER"));
    }
    ders
}

#[test]
fn queue_serves_many_keys_of_all_sizes() {
    let ders = [
        some_keys(&keys::rsa_2048(), 2048, 5),
        some_keys(&keys::rsa_3072(), 3072, 1),
        some_keys(&keys::rsa_4096(), 4096, 1),
        some_keys(&keys::rsa_2048(), 2560, 1),
    ]
    .concat();
    for implementation in available() {
        let portable = implementation == Implementation::Portable;
        let count = match (portable, is_long()) {
            (true, _) => 40,
            (false, false) => 1_200,
            (false, true) => 1_000_000,
        };
        let simd = Simd::with(implementation);
        let opened: Vec<_> = ders
            .iter()
            .map(|der| simd.open_key(&keys::private_key(der)).expect("a good key"))
            .collect();
        let mut queue = simd.open_queue().expect("a queue");
        let mut seed = 7;
        for chunk in 0..count / 40 {
            let tasks = (0..40)
                .map(|token| {
                    seed += 1;
                    // Keys in random order, so that runs of one key and all orders occur.
                    let key = SeededRandom::new(seed).below(opened.len());
                    raw(token, &opened[key], seed)
                })
                .collect();
            for done in drive(&mut *queue, tasks).into_values() {
                let key = opened
                    .iter()
                    .find(|opened| opened.key == done.task.key)
                    .expect("a key that was asked for");
                let output = done.result.expect("a good task");
                assert_eq!(
                    verify::rsa_public(&key.info.spki, &output),
                    done.task.input,
                    "{implementation:?}, chunk {chunk}"
                );
            }
        }
        let tally = simd.tally();
        println!("{implementation:?}: {tally:?}");
        assert!(tally.batches[3] > 0, "no batch was full: {tally:?}");
    }
}

#[test]
fn poll_runs_up_to_four_tasks_of_the_oldest_size() {
    for implementation in available() {
        for waiting in 1..=8_u32 {
            let simd = Simd::with(implementation);
            let opened = simd.open_key(&keys::rsa_2048().private_key()).expect("a good key");
            let mut queue = simd.open_queue().expect("a queue");
            let mut tasks: VecDeque<_> = (0..waiting).map(|token| raw(token, &opened, 1)).collect();
            assert_eq!(queue.submit(&mut tasks), waiting as usize);
            let mut done = Vec::new();
            let left = queue.poll(&mut done);
            assert_eq!(done.len(), waiting.min(4) as usize);
            assert_eq!(left, waiting.saturating_sub(4) as usize);
            while queue.poll(&mut done) > 0 {}
            assert_eq!(done.len(), waiting as usize);
            let tally = simd.tally();
            assert_eq!(tally.single, u64::from(waiting % 4 == 1), "{waiting} waiting");
            assert_eq!(tally.batches[3], u64::from(waiting / 4));
        }
    }
}

#[test]
fn batch_has_one_size_and_the_oldest_task_goes_first() {
    let simd = Simd::with(Implementation::Portable);
    let [small, large] = [keys::rsa_2048(), keys::rsa_3072()]
        .map(|key| simd.open_key(&key.private_key()).expect("a good key"));
    let mut queue = simd.open_queue().expect("a queue");
    let order = [&large, &small, &small, &large];
    let mut tasks = (0..).zip(order).map(|(token, key)| raw(token, key, 3)).collect();
    queue.submit(&mut tasks);
    let mut done = Vec::new();
    assert_eq!(queue.poll(&mut done), 2);
    let tokens: Vec<_> = done.drain(..).map(|done| done.task.token).collect();
    assert_eq!(tokens, [0, 3]);
    assert_eq!(queue.poll(&mut done), 0);
    assert_eq!(simd.tally().batches, [0, 2, 0, 0]);
}

#[test]
fn bad_task_does_not_affect_the_others_of_its_batch() {
    for implementation in available() {
        let simd = Simd::with(implementation);
        let opened = simd.open_key(&keys::rsa_2048().private_key()).expect("a good key");
        let mut queue = simd.open_queue().expect("a queue");
        let mut tasks: VecDeque<_> = (0..4).map(|token| raw(token, &opened, 9)).collect();
        tasks[0].input.fill(0xff);
        tasks[2].operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
        let done = drive(&mut *queue, tasks);
        for token in [0, 2] {
            assert_eq!(done[&token].result, Err(BackendError::BadInput));
        }
        for token in [1, 3] {
            assert!(done[&token].result.is_ok());
        }
    }
}

#[test]
fn queue_full_of_bad_tasks_ends_every_task() {
    let simd = Simd::with(Implementation::Portable);
    let opened = simd.open_key(&keys::rsa_2048().private_key()).expect("a good key");
    let mut queue = simd.open_queue().expect("a queue");
    let mut tasks: VecDeque<_> = (0..4).map(|token| raw(token, &opened, 9)).collect();
    for task in &mut tasks {
        task.input.truncate(3);
    }
    assert!(
        drive(&mut *queue, tasks)
            .into_values()
            .all(|done| done.result == Err(BackendError::BadInput))
    );
}

#[test]
fn many_threads_share_a_key_and_its_blinding_pairs() {
    for implementation in fast() {
        let simd = Simd::with(implementation);
        let opened = simd.open_key(&keys::rsa_2048().private_key()).expect("a good key");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let simd = &simd;
                let opened = &opened;
                scope.spawn(move || {
                    let mut queue = simd.open_queue().expect("a queue");
                    // Enough rounds to use up every pair.
                    for round in 0..100 {
                        let seed = 1_000 * thread + round;
                        let tasks = (0..4).map(|token| raw(token, opened, seed + u64::from(token)));
                        for done in drive(&mut *queue, tasks.collect()).into_values() {
                            let output = done.result.expect("a good task");
                            assert_eq!(
                                verify::rsa_public(&opened.info.spki, &output),
                                done.task.input
                            );
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn keys_with_different_public_exponents_share_a_batch() {
    let ders: Vec<_> = [3_u32, 17, 65_537, 0x7fff_ffff]
        .into_iter()
        .map(|e| {
            let e = openssl::bn::BigNum::from_u32(e).expect("a number");
            let rsa = openssl::rsa::Rsa::generate_with_e(2048, &e).expect("a key");
            let key = openssl::pkey::PKey::from_rsa(rsa).expect("a key");
            key.private_key_to_pkcs8().expect("DER")
        })
        .collect();
    for implementation in available() {
        let simd = Simd::with(implementation);
        let mut queue = simd.open_queue().expect("a queue");
        let opened: Vec<_> = ders
            .iter()
            .map(|der| simd.open_key(&keys::private_key(der)).expect("a good key"))
            .collect();
        let tasks = (0..).zip(&opened).map(|(token, key)| raw(token, key, 5)).collect();
        for (token, done) in drive(&mut *queue, tasks) {
            let output = done.result.expect("a good task");
            let spki = &opened[token as usize].info.spki;
            assert_eq!(verify::rsa_public(spki, &output), done.task.input);
        }
    }
}

#[test]
fn simd_describes_itself_and_refuses_other_keys() {
    let simd = Simd::new();
    assert_eq!(simd.describe().kind, BackendKind::Simd);
    assert!(simd.describe().on_cpu);
    match simd.implementation() {
        Some(implementation) => {
            assert!(implementation.is_available());
            assert_eq!(simd.probe(), Ok(()));
        }
        None => {
            let reason = simd.probe().expect_err("no lanes").to_string();
            assert!(reason.contains("AVX-512"), "{reason}");
            assert!(simd.open_queue().is_err());
        }
    }
    for key in [keys::p_256(), keys::rsa_8192(), keys::dsa_2048()] {
        let refused = simd.open_key(&key.private_key()).map(|opened| opened.info.key_type);
        assert_eq!(refused, Err(KeyError::NotOffered), "{}", key.name);
    }
    simd.open_key(&keys::rsa_2048().private_key()).expect("a good key");
    assert!(format!("{simd:?}").ends_with(", 1 keys)"), "{simd:?}");
}
