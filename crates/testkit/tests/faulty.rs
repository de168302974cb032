// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The fakes behave as configured.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use millrace_engine::BackendError;
use millrace_engine::backend::{Backend, BackendKey, Done, Queue, Task};
use millrace_operation::{BackendKind, Hash, KeyError, Operation};
use millrace_testkit::fake::{FakeBackend, FakeOptions};
use millrace_testkit::faulty::{FaultControls, FaultyBackend, InjectedFault};
use millrace_testkit::keys;

fn faulty() -> (FaultyBackend, FaultControls) {
    let faulty = FaultyBackend::posing_as(BackendKind::Simd, Arc::new(FakeBackend::default()));
    let controls = faulty.controls();
    (faulty, controls)
}

fn task(token: u32) -> Task {
    let operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };
    Task { token, key: BackendKey(0), operation, input: vec![0; 32] }
}

fn one(queue: &mut dyn Queue) -> Result<Vec<u8>, BackendError> {
    assert_eq!(queue.submit(&mut VecDeque::from([task(1)])), 1);
    let mut done = Vec::new();
    queue.poll(&mut done);
    done.pop().expect("a task that ended").result.map(|output| output.to_vec())
}

#[test]
fn injected_faults_hit_as_configured_and_stop() {
    let (backend, controls) = faulty();
    assert_eq!(backend.describe().kind, BackendKind::Simd);
    let mut queue = backend.open_queue().expect("a queue");
    assert_eq!(one(&mut *queue), Ok(b"fake".to_vec()));
    controls.inject(InjectedFault::BitFlip);
    assert_eq!(one(&mut *queue), Err(BackendError::Fault));
    controls.inject(InjectedFault::Lie);
    assert_eq!(one(&mut *queue), Ok(b"gake".to_vec()));
    controls.inject(InjectedFault::Error(BackendError::Failed));
    controls.times(1);
    assert_eq!(one(&mut *queue), Err(BackendError::Failed));
    assert_eq!(one(&mut *queue), Ok(b"fake".to_vec()));
    assert_eq!(controls.injected(), 3);
    controls.heal();
    controls.inject(InjectedFault::Panic);
    assert!(catch_unwind(AssertUnwindSafe(|| one(&mut *queue))).is_err());
    controls.heal();
    assert_eq!(one(&mut *queue), Ok(b"fake".to_vec()));
}

#[test]
fn every_third_task_fails() {
    let (backend, controls) = faulty();
    let mut queue = backend.open_queue().expect("a queue");
    controls.inject(InjectedFault::BitFlip);
    controls.every(3);
    let failures = (0..30).filter(|_| one(&mut *queue).is_err()).count();
    assert_eq!(failures, 10);
}

#[test]
fn lost_task_stays_in_flight() {
    let (backend, controls) = faulty();
    let mut queue = backend.open_queue().expect("a queue");
    controls.inject(InjectedFault::Lose);
    assert_eq!(queue.submit(&mut VecDeque::from([task(1)])), 1);
    let mut done: Vec<Done> = Vec::new();
    assert_eq!(queue.poll(&mut done), 1);
    assert!(done.is_empty());
}

#[test]
fn gate_holds_a_poll_until_it_opens() {
    let (backend, controls) = faulty();
    controls.close_gate();
    let worker = std::thread::spawn(move || {
        let mut queue = backend.open_queue().expect("a queue");
        one(&mut *queue)
    });
    controls.wait_at_gate(1);
    assert!(!worker.is_finished());
    controls.open_gate();
    assert_eq!(worker.join().expect("no panic"), Ok(b"fake".to_vec()));
}

#[test]
fn controls_refuse_keys_queues_and_probe() {
    let (backend, controls) = faulty();
    controls.refuse_keys(Some(KeyError::TooMany));
    let refused = backend.open_key(&keys::rsa_2048().private_key()).map(|opened| opened.key);
    assert_eq!(refused, Err(KeyError::TooMany));
    controls.refuse_keys(None);
    assert!(backend.open_key(&keys::rsa_2048().private_key()).is_ok());
    controls.refuse_queues();
    assert!(backend.open_queue().is_err());
    controls.make_unusable();
    assert!(backend.probe().is_err());
}

#[test]
fn fake_completes_batches_and_counts() {
    let backend = FakeBackend::new(FakeOptions { capacity: 8, batch: 3, ..Default::default() });
    let mut queue = backend.open_queue().expect("a queue");
    let mut tasks: VecDeque<_> = (0..10).map(task).collect();
    assert_eq!((queue.submit(&mut tasks), tasks.len()), (8, 2));
    let mut done = Vec::new();
    assert_eq!(queue.poll(&mut done), 5);
    assert_eq!((done.len(), backend.tasks(), backend.largest_batch()), (3, 3, 8));
}
