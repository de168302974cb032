// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The qat backend on a stand-in for the card, under Intel's library in two versions. Each test runs itself
//! again as a process on such a machine, since the library has one state per process.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_backends::{Qat, Software};
use millrace_engine::backend::{BackendDeviceStatus, BackendKey, Done, Health, Queue, Task};
use millrace_engine::{Backend, BackendError, Hash, Operation, PrivateKey};
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::keys;
use millrace_testkit::qat::{self, CardEvent, QatControls, QatMachine, VERSIONS, inside};
use millrace_testkit::wait::until;

/// Runs the calling test on a machine of each version, or returns the controls if it runs there already.
fn on_machines(test: &str, functions: u32) -> Option<QatControls> {
    if let Some(controls) = inside() {
        return Some(controls);
    }
    // One at a time: a stand-in that gets no core answers too late.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for version in VERSIONS {
        match QatMachine::new(version, 1, functions) {
            Ok(machine) => machine.run_test(test),
            Err(reason) => millrace_testkit::skip::record(test, &reason),
        }
    }
    None
}

fn backend() -> Qat {
    // The stand-in computes on the cores that the tests share, so its answers may take long.
    up(Qat::new().answer_time(Duration::from_secs(5)))
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

#[test]
fn wrong_answers_of_the_card_end_as_faults_and_never_as_results() {
    let Some(controls) =
        on_machines("wrong_answers_of_the_card_end_as_faults_and_never_as_results", 1)
    else {
        return;
    };
    let (backend, software) = (backend(), Software::new());
    let key = open(&backend, keys::rsa_2048().der);
    let private = PrivateKey::from_pkcs8(keys::rsa_2048().der.to_vec().into());
    let reference = software.open_key(&private).expect("a key").key;
    controls.set(qat::WRONG_EVERY, 3);
    controls.set(qat::FAIL_EVERY, 7);
    let mut queue = backend.open_queue().expect("a queue");
    let mut tasks = (0..100).map(|token| task(token, key)).collect();
    let done = drain(&mut *queue, &mut tasks, 100);
    let mut faults = 0;
    for done in &done {
        match &done.result {
            Ok(signature) => assert_eq!(**signature, expected(&software, reference, done)),
            Err(error) => {
                assert_eq!(*error, BackendError::Fault);
                faults += 1;
            }
        }
    }
    assert!((30..70).contains(&faults), "{faults}");
}

#[test]
fn lost_request_ends_as_failed_and_the_card_is_restarted_when_many_are() {
    let Some(controls) =
        on_machines("lost_request_ends_as_failed_and_the_card_is_restarted_when_many_are", 1)
    else {
        return;
    };
    let backend = up(Qat::new());
    let key = open(&backend, keys::rsa_2048().der);
    controls.set(qat::LOSE_EVERY, 2);
    let mut queue = backend.open_queue().expect("a queue");
    let mut tasks = (0..40).map(|token| task(token, key)).collect();
    let done = drain(&mut *queue, &mut tasks, 40);
    let failed = done.iter().filter(|done| done.result.is_err()).count();
    assert!((15..=40).contains(&failed), "{failed}");
    controls.set(qat::LOSE_EVERY, 0);
    until("the card is restarted", || backend.tally().restarts > 0);
    drop(serving_queue(&backend, key));
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

#[test]
fn tasks_in_flight_at_an_event_end_and_the_card_comes_back() {
    let Some(controls) = on_machines("tasks_in_flight_at_an_event_end_and_the_card_comes_back", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    for event in [CardEvent::Fatal, CardEvent::Restarting, CardEvent::Fatal] {
        let restarts = end_tasks_by(&controls, &backend, key, event);
        if event == CardEvent::Restarting {
            // It may reach the library before or after its next start, which it may cost.
            controls.send(CardEvent::Restarted);
        }
        until("it is restarted", || backend.tally().restarts > restarts);
    }
    drop(serving_queue(&backend, key));
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// Sends an event while the card has tasks, and drains them. Returns the restarts before.
fn end_tasks_by(controls: &QatControls, backend: &Qat, key: BackendKey, event: CardEvent) -> u64 {
    loop {
        let mut queue = serving_queue(backend, key);
        let (before, restarts) = (controls.get(qat::REQUESTS), backend.tally().restarts);
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

/// The library tells of a card's first failure alone, and hands one that came with requests in flight to its next
/// session without a word: instances that refuse requests, or crash the library when they are polled.
#[test]
fn every_failure_of_a_card_is_noticed_and_the_next_start_serves() {
    let Some(controls) =
        on_machines("every_failure_of_a_card_is_noticed_and_the_next_start_serves", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    for round in 0..4 {
        let restarts = end_tasks_by(&controls, &backend, key, CardEvent::Fatal);
        until("it is restarted", || backend.tally().restarts > restarts);
        until("it is up", || backend.health() == Health::Up);
        let mut queue = backend.open_queue().expect("a queue");
        let mut tasks = (0..20).map(|token| task(token, key)).collect();
        let done = drain(&mut *queue, &mut tasks, 20);
        let failed = done.iter().filter(|done| done.result.is_err()).count();
        assert_eq!(failed, 0, "round {round}");
    }
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// The figures of docs/benchmarks/qat.md that the stand-in can give: refused submissions, and the times from a fatal
/// event to the end of the tasks in flight and to the next answer.
#[test]
fn submissions_are_not_refused_and_a_failure_is_over_soon() {
    let Some(controls) = on_machines("submissions_are_not_refused_and_a_failure_is_over_soon", 1)
    else {
        return;
    };
    let backend = backend();
    let key = open(&backend, keys::rsa_2048().der);
    controls.set(qat::LATENCY_US, 400);
    let mut queue = serving_queue(&backend, key);
    let mut tasks = (0..1000).map(|token| task(token, key)).collect();
    drain(&mut *queue, &mut tasks, 1000);
    drop(queue);
    let devices = backend.devices();
    let sum = |count: fn(&BackendDeviceStatus) -> u64| devices.iter().map(count).sum::<u64>();
    let (submitted, refused) = (sum(|device| device.submitted), sum(|device| device.full));
    let in_flight = controls.get(qat::MAX_IN_FLIGHT);
    println!("{submitted} submissions, {refused} refused, at most {in_flight} in flight");
    assert!(submitted >= 1000 && refused == 0);
    for _ in 0..5 {
        let mut queue = serving_queue(&backend, key);
        let mut tasks: VecDeque<Task> = (0..40).map(|token| task(token, key)).collect();
        queue.submit(&mut tasks);
        let (start, restarts) = (Instant::now(), backend.tally().restarts);
        controls.send(CardEvent::Fatal);
        drain(&mut *queue, &mut tasks, 40);
        let ended = start.elapsed();
        drop(queue);
        until("it is restarted", || backend.tally().restarts > restarts);
        drop(serving_queue(&backend, key));
        println!(
            "{:.1} ms to the end of the tasks in flight, {:.0} ms to the next answers",
            ended.as_secs_f64() * 1e3,
            start.elapsed().as_secs_f64() * 1e3
        );
    }
    let start = Instant::now();
    let absent = Qat::new()
        .libraries(PathBuf::from("/nowhere/libqat.so.4"), PathBuf::from("/nowhere/libusdm.so.0"));
    assert!(absent.probe().is_err());
    println!("{:.2} ms to a probe without the library", start.elapsed().as_secs_f64() * 1e3);
}

/// Jobs of the proof in one release: 20,000 in both, or a million.
fn jobs_of_the_proof() -> u32 {
    if millrace_testkit::is_long() { 500_000 } else { 10_000 }
}

/// Inputs of the proof, whose signatures are computed before: comparing costs less than verifying.
const INPUTS: u32 = 64;

/// Two workers on a card that computes 1 % of its answers wrong, flags 1 % as failed, loses 0.1 %, fails and is
/// reset: no wrong result, and every task ends once.
#[test]
fn tasks_end_once_and_never_wrong_on_a_faulty_card() {
    let Some(controls) = on_machines("tasks_end_once_and_never_wrong_on_a_faulty_card", 1) else {
        return;
    };
    let backend = up(Qat::new().answer_time(Duration::from_secs(2)));
    let key = open(&backend, keys::rsa_2048().der);
    let signatures = signatures_of_inputs();
    controls.set(qat::WRONG_EVERY, 100);
    controls.set(qat::FAIL_EVERY, 103);
    controls.set(qat::LOSE_EVERY, 1000);
    let jobs = jobs_of_the_proof();
    let ended = AtomicU32::new(0);
    let totals: Vec<[u64; 2]> = thread::scope(|scope| {
        let workers = [0, jobs / 2].map(|first| {
            let (backend, signatures, ended) = (&backend, &signatures, &ended);
            scope.spawn(move || work(backend, key, first..first + jobs / 2, signatures, ended))
        });
        // Events at a fifth, two fifths, … of the jobs.
        let events =
            [CardEvent::Fatal, CardEvent::Restarting, CardEvent::Fatal, CardEvent::Restarting];
        for (event, part) in events.into_iter().zip(1..) {
            while ended.load(Ordering::Relaxed) < jobs / 5 * part {
                thread::sleep(Duration::from_millis(5));
            }
            let restarts = backend.tally().restarts;
            controls.send(event);
            if event == CardEvent::Restarting {
                // A second event would replace one that no function has seen yet.
                until("the reset is noticed", || {
                    backend.health() != Health::Up || backend.tally().restarts > restarts
                });
                controls.send(CardEvent::Restarted);
            }
        }
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    });
    let [right, failed] = [0, 1].map(|count| totals.iter().map(|total| total[count]).sum::<u64>());
    println!(
        "{jobs} tasks: {right} right, {failed} to be computed elsewhere, {:?}",
        backend.tally()
    );
    assert_eq!(right + failed, u64::from(jobs));
    let (tally, wrong) = (backend.tally(), controls.get(qat::WRONG) + controls.get(qat::FAILED));
    assert!(
        tally.faults > 0 && tally.lost > 0 && tally.restarts >= 2 && wrong >= tally.faults,
        "{tally:?}"
    );
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

fn input(token: u32) -> Vec<u8> {
    (token % INPUTS).to_le_bytes().repeat(8)
}

fn signatures_of_inputs() -> Vec<Vec<u8>> {
    let software = Software::new();
    let private = PrivateKey::from_pkcs8(keys::rsa_2048().der.to_vec().into());
    let key = software.open_key(&private).expect("a key").key;
    let mut queue = software.open_queue().expect("a queue");
    let mut tasks = (0..INPUTS).map(|token| task(token, key)).collect();
    let mut done = drain(&mut *queue, &mut tasks, INPUTS as usize);
    done.sort_by_key(|done| done.task.token);
    let signature = |done: Done| done.result.expect("a signature").to_vec();
    done.into_iter().map(signature).collect()
}

/// One worker: runs the tasks, with a new queue after each restart. Returns how many ended right, and how many an
/// engine would compute elsewhere.
fn work(
    backend: &Qat,
    key: BackendKey,
    tokens: std::ops::Range<u32>,
    signatures: &[Vec<u8>],
    ended: &AtomicU32,
) -> [u64; 2] {
    let (mut open, mut counts) = (BTreeSet::new(), [0; 2]);
    let make = |token| Task { input: input(token), ..task(token, key) };
    let mut tokens = tokens.peekable();
    let mut queue = None;
    while tokens.peek().is_some() || !open.is_empty() {
        if open.is_empty() && (queue.is_none() || backend.health() != Health::Up) {
            // The former one first: it holds a seat.
            drop(queue.take());
            until("a queue", || backend.health() == Health::Up);
            queue = backend.open_queue().ok();
        }
        let Some(queue) = &mut queue else { continue };
        // A queue whose session is over ends what it is given, and so does one whose instance gives no answers.
        let serves =
            backend.health() == Health::Up && backend.devices().iter().all(|device| device.serving);
        let room = if serves { queue.capacity() - open.len() } else { 0 };
        let mut tasks: VecDeque<Task> = tokens.by_ref().take(room).map(make).collect();
        open.extend(tasks.iter().map(|task| task.token));
        queue.submit(&mut tasks);
        assert!(tasks.is_empty(), "it takes what it has room for");
        let mut done = Vec::new();
        queue.poll(&mut done);
        for done in done {
            assert!(open.remove(&done.task.token), "{} ended twice", done.task.token);
            let wanted = &signatures[(done.task.token % INPUTS) as usize];
            match done.result {
                Ok(signature) => {
                    assert_eq!(*signature, **wanted, "a wrong result came out");
                    counts[0] += 1;
                }
                Err(BackendError::Fault | BackendError::Failed) => counts[1] += 1,
                Err(error) => panic!("{error:?}"),
            }
            ended.fetch_add(1, Ordering::Relaxed);
        }
        if room == 0 {
            thread::yield_now();
        }
    }
    counts
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
