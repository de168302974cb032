// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The qat backend on a stand-in for the card, under Intel's library in two versions. Each test runs itself
//! again as a process on such a machine, since the library has one state per process.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millrace_backends::qat::Qat;
use millrace_backends::software::Software;
use millrace_engine::backend::{
    Backend, BackendDeviceStatus, BackendKey, Done, Health, Queue, Task,
};
use millrace_engine::{BackendError, Engine, EngineConfig, Job, Owner};
use millrace_operation::sync::lock;
use millrace_operation::{Hash, Operation, PrivateKey};
use millrace_testkit::collector::Collector;
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::keys::{self, TestKey};
use millrace_testkit::qat::{self, CardEvent, QatControls, QatMachine, VERSIONS, inside};
use millrace_testkit::verify;
use millrace_testkit::wait::until;
use openssl::pkey::PKey;

mod faults;
mod figures;
mod proof;

/// Runs the calling test on a machine of each version, or returns the controls if it runs there already.
fn on_machines(test: &str, functions: u32) -> Option<QatControls> {
    if let Some(controls) = inside() {
        return Some(controls);
    }
    // One at a time: a stand-in that gets no core answers too late.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = lock(&TURN);
    for version in VERSIONS {
        match QatMachine::new(version, 1, functions) {
            Ok(machine) => machine.run_test(test),
            Err(reason) => millrace_testkit::skip::record(test, &reason.to_string()),
        }
    }
    None
}

fn backend() -> Qat {
    // The stand-in computes on the cores that the tests share, so its answers may take long.
    up(Qat::new().fast_curves(true).answer_time(Duration::from_secs(5)))
}

/// The backend, once it is up.
fn up(backend: Qat) -> Qat {
    assert_eq!(backend.probe(), Ok(()));
    let start = Instant::now();
    while backend.health() != Health::Up {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", backend.health());
        thread::sleep(Duration::from_millis(2));
    }
    backend
}

fn open(backend: &Qat, der: &[u8]) -> BackendKey {
    let key = PrivateKey::from_pkcs8(der.to_vec().into());
    backend.open_key(&key).expect("a key of a size that it takes").key
}

/// A kind of work: a key, an operation of it, and an input with its result.
struct Work {
    key: BackendKey,
    operation: Operation,
    input: Vec<u8>,
    expected: Vec<u8>,
}

impl Work {
    fn task(&self, token: u32) -> Task {
        let Self { key, operation, input, expected: _ } = self;
        Task { token, key: *key, operation: operation.clone(), input: input.clone() }
    }
}

/// Every key agreement that the card has, with a peer.
fn agreements(backend: &Qat) -> Vec<Work> {
    let work = |(key, operation): (TestKey, Operation)| {
        let (input, expected) = verify::agreement(&key);
        Work { key: open(backend, key.der), operation, input, expected }
    };
    let rows = [
        (keys::p_256(), Operation::Ecdh),
        (keys::p_384(), Operation::Ecdh),
        (keys::p_521(), Operation::Ecdh),
        (keys::x25519(), Operation::X25519),
        (keys::dh_ffdhe2048(), Operation::DhDerive),
        (keys::dh_ffdhe8192(), Operation::DhDerive),
    ];
    rows.into_iter().map(work).collect()
}

fn task(token: u32, key: BackendKey) -> Task {
    Task {
        token,
        key,
        operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
        input: token.to_le_bytes().repeat(8),
    }
}

/// Polls until all tasks have ended.
fn drain(queue: &mut dyn Queue, tasks: &mut VecDeque<Task>, count: usize) -> Vec<Done> {
    let mut done = Vec::new();
    let start = Instant::now();
    while done.len() < count {
        queue.submit(tasks);
        queue.poll(&mut done);
        assert!(start.elapsed() < Duration::from_secs(120), "{} of {count}", done.len());
        thread::yield_now();
    }
    done
}

/// Asserts that a signature is what the software backend computes.
fn expected(software: &Software, key: BackendKey, done: &Done) -> Vec<u8> {
    let mut queue = software.open_queue().expect("a queue");
    let mut tasks = VecDeque::from([Task { key, ..task(done.task.token, key) }]);
    queue.submit(&mut tasks);
    let mut found = Vec::new();
    queue.poll(&mut found);
    found.remove(0).result.expect("a signature").to_vec()
}

#[test]
fn qat_conforms() {
    let Some(controls) = on_machines("qat_conforms", 1) else {
        return;
    };
    let options = Options { reference: Some(Arc::new(Software::new())), rounds: 3 };
    let backend = Arc::new(backend());
    let report = conformance::run(Arc::clone(&backend) as Arc<dyn Backend>, &options);
    println!("{report}");
    assert!(controls.get(qat::REQUESTS) >= backend.tally().served);
    assert!(backend.tally().served > 200, "{:?}", backend.tally());
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// The primes of an RSA key are in the memory of the card while the key is open, and no longer. A scalar never is,
/// except that of X25519 for the time of its requests.
#[test]
fn memory_of_the_card_has_no_key_that_is_closed() {
    let Some(controls) = on_machines("memory_of_the_card_has_no_key_that_is_closed", 1) else {
        return;
    };
    let backend = backend();
    let rsa = keys::rsa_2048();
    let p384 = keys::p_384();
    let private = PKey::private_key_from_pkcs8(rsa.der).expect("a key").rsa().expect("an RSA key");
    let primes = [private.p(), private.q()].map(|prime| prime.expect("a prime").to_vec());
    let scalar =
        PKey::private_key_from_pkcs8(p384.der).expect("a key").ec_key().expect("an EC key");
    let scalar = scalar.private_key().to_vec();
    let x25519 = PKey::private_key_from_pkcs8(keys::x25519().der).expect("a key");
    let x25519: Vec<u8> = x25519.raw_private_key().expect("32 bytes").into_iter().rev().collect();
    // The first and the last byte are fixed before use.
    let [scalar, x25519] = [scalar, x25519].map(|number| number[1..number.len() - 1].to_vec());
    let key = open(&backend, rsa.der);
    let mut queue = serving_queue(&backend, key);
    for work in agreements(&backend) {
        let mut tasks = (0..4).map(|token| work.task(token)).collect();
        drain(&mut *queue, &mut tasks, 4);
    }
    for prime in &primes {
        assert_eq!(controls.count_in_memory(prime), 1, "an open key, once");
    }
    assert_eq!(controls.count_in_memory(&scalar), 0);
    assert_eq!(controls.count_in_memory(&x25519), 0, "after its requests");
    backend.close_key(key);
    for prime in &primes {
        assert_eq!(controls.count_in_memory(prime), 0, "a closed key");
    }
    controls.set(qat::HOLD, 1);
    let work = &agreements(&backend)[3];
    let mut tasks = VecDeque::from([work.task(0)]);
    queue.submit(&mut tasks);
    assert_eq!(controls.count_in_memory(&x25519), 2, "while its requests are held");
    controls.set(qat::HOLD, 0);
    drain(&mut *queue, &mut tasks, 1);
    assert_eq!(controls.count_in_memory(&x25519), 0, "after its requests");
}

/// Sends an event while the card has tasks, and drains them. Returns the restarts before.
fn end_tasks_by(controls: &QatControls, backend: &Qat, key: BackendKey, event: CardEvent) -> u64 {
    loop {
        let mut queue = serving_queue(backend, key);
        let before = controls.get(qat::REQUESTS);
        let restarts = backend.tally().restarts;
        let mut tasks: VecDeque<Task> = (0..40).map(|token| task(token, key)).collect();
        let mut done = Vec::new();
        queue.submit(&mut tasks);
        until("the card or the queue has some", || {
            queue.poll(&mut done);
            controls.get(qat::REQUESTS) > before || !done.is_empty()
        });
        let reached = controls.get(qat::REQUESTS) > before;
        if reached {
            controls.send(event);
        }
        let rest = 40 - done.len();
        done.extend(drain(&mut *queue, &mut tasks, rest));
        let tokens: BTreeSet<u32> = done.iter().map(|done| done.task.token).collect();
        assert_eq!(tokens.len(), 40, "each ends once");
        if reached {
            return restarts;
        }
    }
}

/// Asserts that the devices are the instances of one virtual function, and returns their number: the versions of
/// the library offer different ones.
fn assert_instances_of(backend: &Qat, function: &str) -> usize {
    let names: Vec<String> = backend.devices().into_iter().map(|device| device.name).collect();
    let expected: Vec<String> =
        (0..names.len()).map(|number| format!("{function}/{number}")).collect();
    assert!(!names.is_empty() && names == expected, "{names:?}");
    names.len()
}

#[test]
fn devices_are_the_instances_with_their_counters_over_restarts() {
    let Some(controls) =
        on_machines("devices_are_the_instances_with_their_counters_over_restarts", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    let count = assert_instances_of(&backend, "6b:00.1");
    drop(serving_queue(&backend, key));
    let restarts = end_tasks_by(&controls, &backend, key, CardEvent::Fatal);
    until("it is restarted", || backend.tally().restarts > restarts);
    drop(serving_queue(&backend, key));
    let devices = backend.devices();
    assert!(
        devices.len() == count
            && devices.iter().all(|device| device.serving && device.capacity == 63)
    );
    let sum = |count: fn(&BackendDeviceStatus) -> u64| devices.iter().map(count).sum::<u64>();
    assert!(sum(|device| device.served) >= 10, "those of both sessions: {devices:?}");
    assert!(sum(|device| device.submitted) >= sum(|device| device.served));
    assert!(devices.iter().all(|device| device.restarts == backend.tally().restarts));
}

#[test]
fn only_the_virtual_functions_that_are_named_serve() {
    let Some(_) = on_machines("only_the_virtual_functions_that_are_named_serve", 2) else {
        return;
    };
    let backend = Qat::new().functions(2).only(vec!["0000:6b:00.2".to_owned()]);
    let backend = up(backend.answer_time(Duration::from_secs(5)));
    assert_instances_of(&backend, "6b:00.2");
    drop(backend);
    let backend = Qat::new().functions(2).only(vec!["0000:ff:00.1".to_owned()]);
    assert_eq!(backend.probe(), Ok(()));
    let Health::Away(reason) = backend.health() else {
        panic!("it has no such function");
    };
    assert!(reason.to_string().contains("backend.qat.instances"), "{reason}");
}

/// A queue that has just served tasks: it may take some starts of the library.
fn serving_queue(backend: &Qat, key: BackendKey) -> Box<dyn Queue> {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "{backend:?}");
        if let Ok(mut queue) = backend.open_queue() {
            let mut tasks = (0..5).map(|token| task(token, key)).collect();
            let done = drain(&mut *queue, &mut tasks, 5);
            if done.iter().all(|done| done.result.is_ok()) {
                return queue;
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The stand-in is proven by programs that are not ours: Intel's sample program under both versions, and OpenSSL with
/// Intel's engine.
#[test]
fn programs_of_others_compute_on_the_stand_in() {
    for version in VERSIONS {
        let machine = match QatMachine::new(version, 1, 1) {
            Ok(machine) => machine,
            Err(reason) => millrace_testkit::skip!("{reason}"),
        };
        let controls = machine.controls();
        let run = |arguments: &[&str]| {
            let before = controls.get(qat::ANSWERS);
            let mut command = machine.command("/usr/bin/timeout");
            let output = command.arg("120").args(arguments).output().expect("a process");
            let said = [&output.stdout[..], &output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(output.status.success(), "{version}: {arguments:?}: {}: {said}", output.status);
            let answers = controls.get(qat::ANSWERS) - before;
            println!("{version}: {arguments:?}: {answers} answers");
            assert!(answers > 0, "{version}: {arguments:?} did not use the card: {said}");
        };
        run(&["/usr/bin/cpa_sample_code", "runTests=2", "signOfLife=1"]);
        // Later versions of the engine are a provider, which computes where it is asked for.
        let engine: &[&str] = match version {
            "trixie" => &["-engine", "qatengine"],
            _ => &[
                "-provider",
                "qatprovider",
                "-provider",
                "default",
                "-propquery",
                "?provider=qatprovider",
            ],
        };
        run(&[&["/usr/bin/openssl", "speed"], engine, &["-seconds", "1", "rsa2048"]].concat());
        let wrong = [qat::DMA_FAULTS, qat::UNKNOWN_FUNCTIONS].map(|count| controls.get(count));
        assert_eq!(wrong, [0, 0], "{version}");
    }
}

#[test]
fn layouts_are_those_of_intels_headers() {
    if let Err(reason) = QatMachine::new(VERSIONS[0], 1, 1) {
        millrace_testkit::skip!("{reason}");
    }
    for version in VERSIONS {
        assert_eq!(qat::compare_layouts(version), Ok(()), "{version}");
    }
}

#[test]
fn machine_without_the_library_says_what_to_install() {
    let backend = Qat::new()
        .libraries(PathBuf::from("/nowhere/libqat.so.4"), PathBuf::from("/nowhere/libusdm.so.0"));
    let reason = backend.probe().expect_err("there is no such library").to_string();
    assert!(reason.contains("install libqat4"), "{reason}");
    assert!(backend.open_queue().is_err());
}
