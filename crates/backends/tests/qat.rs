// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The qat backend on a stand-in for the card, under Intel's library in two versions. Each test runs itself
//! again as a process on such a machine, since the library has one state per process.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_backends::{Qat, Software};
use millrace_engine::backend::{BackendDeviceStatus, BackendKey, Done, Health, Queue, Task};
use millrace_engine::{
    Backend, BackendError, Engine, EngineConfig, Hash, Job, Operation, Owner, PrivateKey,
};
use millrace_testkit::collector::Collector;
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::keys::{self, TestKey};
use millrace_testkit::qat::{self, CardEvent, QatControls, QatMachine, VERSIONS, inside};
use millrace_testkit::verify;
use millrace_testkit::wait::until;
use openssl::pkey::PKey;

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

/// A wrong answer to any request of an agreement is noticed; one that the firmware flags is noticed where the library
/// passes the flag on, and else by the check.
#[test]
fn wrong_answers_to_agreements_never_come_out() {
    let Some(controls) = on_machines("wrong_answers_to_agreements_never_come_out", 1) else {
        return;
    };
    let backend = backend();
    for work in agreements(&backend) {
        let mut queue = backend.open_queue().expect("a queue");
        controls.set(qat::WRONG_EVERY, 7);
        controls.set(qat::FAIL_EVERY, 11);
        let mut tasks = (0..24).map(|token| work.task(token)).collect();
        let done = drain(&mut *queue, &mut tasks, 24);
        let mut right = 0;
        for done in done {
            match done.result {
                Ok(secret) => {
                    assert_eq!(*secret, work.expected, "{:?}", work.operation);
                    right += 1;
                }
                Err(BackendError::Fault | BackendError::Failed) => {}
                Err(error) => panic!("{:?}: {error:?}", work.operation),
            }
        }
        println!("{:?}: {right} of 24 right", work.operation);
        assert!((1..24).contains(&right), "{:?}: {right}", work.operation);
    }
    assert_eq!((controls.get(qat::DMA_FAULTS), controls.get(qat::UNKNOWN_FUNCTIONS)), (0, 0));
}

#[test]
fn agreements_in_flight_at_an_event_end_and_the_card_comes_back() {
    let Some(controls) =
        on_machines("agreements_in_flight_at_an_event_end_and_the_card_comes_back", 1)
    else {
        return;
    };
    let backend = backend();
    let agreements = agreements(&backend);
    let key = open(&backend, keys::rsa_2048().der);
    for event in [CardEvent::Fatal, CardEvent::Restarting] {
        let mut queue = serving_queue(&backend, key);
        let (before, restarts) = (controls.get(qat::REQUESTS), backend.tally().restarts);
        let mut tasks: VecDeque<Task> =
            (0..20).map(|token| agreements[token as usize % 5].task(token)).collect();
        let mut done = Vec::new();
        queue.submit(&mut tasks);
        until("the card or the queue has some", || {
            queue.poll(&mut done);
            controls.get(qat::REQUESTS) > before || !done.is_empty()
        });
        controls.send(event);
        let rest = 20 - done.len();
        done.extend(drain(&mut *queue, &mut tasks, rest));
        let tokens: BTreeSet<u32> = done.iter().map(|done| done.task.token).collect();
        assert_eq!(tokens.len(), 20, "each ends once");
        for done in &done {
            if let Ok(secret) = &done.result {
                assert_eq!(**secret, agreements[done.task.token as usize % 5].expected);
            }
        }
        if event == CardEvent::Restarting {
            controls.send(CardEvent::Restarted);
        }
        until("it is restarted", || backend.tally().restarts > restarts);
    }
    drop(serving_queue(&backend, key));
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
    let (rsa, p384) = (keys::rsa_2048(), keys::p_384());
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

/// One lost request, and nothing else that the card could answer: the known answer tells that it serves.
#[test]
fn instance_that_lost_one_request_serves_again_without_a_restart() {
    let Some(controls) =
        on_machines("instance_that_lost_one_request_serves_again_without_a_restart", 1)
    else {
        return;
    };
    let backend = up(Qat::new());
    let key = open(&backend, keys::rsa_2048().der);
    let mut queue = serving_queue(&backend, key);
    for token in 0..3 {
        let lost = backend.tally().lost;
        controls.set(qat::LOSE_EVERY, 1);
        let mut tasks = VecDeque::from([task(token, key)]);
        let done = drain(&mut *queue, &mut tasks, 1);
        controls.set(qat::LOSE_EVERY, 0);
        assert!(done[0].result.is_err() && backend.tally().lost > lost);
        // A queue of a silent instance takes nothing, and ends nothing.
        let mut tasks = VecDeque::from([task(token, key)]);
        let mut done = Vec::new();
        until("the task is taken and answered", || {
            queue.submit(&mut tasks);
            queue.poll(&mut done);
            !done.is_empty()
        });
        assert!(done[0].result.is_ok(), "{:?}", done[0]);
    }
    assert_eq!(backend.tally().restarts, 0, "{:?}", backend.tally());
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

/// Processor time of the engine's workers for keys of medium cost.
fn workers_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads").flatten();
    let is_worker = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.starts_with("mr-medium")
    };
    tasks.filter(is_worker).map(|task| schedstat(&task.path())).sum()
}

fn schedstat(task: &Path) -> Duration {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let first = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

/// Clock of the processor, in cycles per nanosecond; none where the kernel does not say.
fn cycles_per_ns() -> Option<f64> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    Some(line.rsplit(' ').next()?.parse::<f64>().ok()? / 1e3)
}

/// Pause between polls without an answer: a worker of the engine sleeps as long at most.
const POLL_PAUSE: Duration = Duration::from_micros(50);

/// Figures of a queue that was kept full.
struct Saturated {
    /// Processor time of this thread between two sleeps in which it submitted or collected something, less that of
    /// as many without.
    work: Duration,
    /// Processor time of a poll without an answer, with the sleep after it.
    idle_poll: Duration,
    elapsed: Duration,
    /// Mean of the requests that the card held while the queue had more.
    held: f64,
}

/// Keeps a queue full until `count` tasks have ended, and sleeps after each poll without an answer, as a worker does.
fn saturate(
    queue: &mut dyn Queue,
    controls: &QatControls,
    count: u32,
    task: impl Fn(u32) -> Task,
) -> Saturated {
    let mut tasks: VecDeque<Task> = (0..count).map(task).collect();
    let start = Instant::now();
    // Exact after a sleep alone: the scheduler adds the time of a thread when it leaves its core.
    let time = || schedstat("/proc/thread-self".as_ref());
    let (mut ended, mut held, mut looks) = (0, 0, 0);
    let (mut working, mut idle) = ((Duration::ZERO, 0), (Duration::ZERO, 0));
    let mut done = Vec::new();
    thread::sleep(POLL_PAUSE);
    let (mut before, mut worked) = (time(), false);
    while ended < count as usize {
        worked |= queue.submit(&mut tasks) > 0;
        queue.poll(&mut done);
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        ended += done.len();
        worked |= !done.is_empty();
        if done.is_empty() {
            // While the queue still has tasks to fill the card with.
            if !tasks.is_empty() {
                (held, looks) = (held + controls.get(qat::IN_FLIGHT), looks + 1);
            }
            thread::sleep(POLL_PAUSE);
            let now = time();
            let kind = if worked { &mut working } else { &mut idle };
            (kind.0, kind.1) = (kind.0 + now.saturating_sub(before), kind.1 + 1);
            (before, worked) = (now, false);
        }
        done.clear();
    }
    let idle_poll = idle.0 / idle.1.max(1);
    Saturated {
        work: working.0.saturating_sub(idle_poll * working.1),
        idle_poll,
        elapsed: start.elapsed(),
        held: held as f64 / f64::from(looks.max(1)),
    }
}

/// Figures of docs/benchmarks/qat.md: what a card is filled to, what a task costs the thread that submits it, and what
/// a worker of the engine costs at a tenth of the rate. Printed, and not compared with a limit: the stand-in computes
/// on the same cores.
#[test]
fn figures_of_the_host_are_measured() {
    let Some(controls) = on_machines("figures_of_the_host_are_measured", 1) else {
        return;
    };
    let backend = Arc::new(backend());
    let root = open(&backend, keys::rsa_2048().der);
    let agreements = agreements(&backend);
    controls.set(qat::LATENCY_US, 400);
    let mut queue = serving_queue(&backend, root);
    let clock = cycles_per_ns();
    let mut rate = 0.0;
    let count = if millrace_testkit::is_long() { 20_000 } else { 1_000 };
    let kinds: [(&str, &dyn Fn(u32) -> Task); 4] = [
        ("RSA-2048 signature", &|token| task(token, root)),
        ("X25519", &|token| agreements[3].task(token)),
        ("ECDH P-384", &|token| agreements[1].task(token)),
        ("Diffie-Hellman, 2048 bits", &|token| agreements[4].task(token)),
    ];
    for (name, make) in kinds {
        let count = if name.starts_with('R') || name.starts_with('X') { count } else { count / 10 };
        let before = backend.tally();
        let found = saturate(&mut *queue, &controls, count, make);
        let requests = backend.tally().served - before.served;
        assert!(requests >= u64::from(count));
        let each = found.work.as_nanos() as f64 / f64::from(count);
        let cycles = clock.map_or_else(String::new, |clock| {
            format!(", {:.0} cycles at {clock:.2} GHz", each * clock)
        });
        let found_rate = f64::from(count) / found.elapsed.as_secs_f64();
        println!(
            "{name}: {} requests each, {found_rate:.0} tasks/s, {:.1} of 63 held, {:.1} us of the thread each{cycles}, \
             {:.1} us for a poll without an answer and the sleep after it",
            requests / u64::from(count),
            found.held,
            each / 1e3,
            found.idle_poll.as_nanos() as f64 / 1e3,
        );
        if rate == 0.0 {
            rate = found_rate;
        }
    }
    drop(queue);
    let cores = worker_at(&backend, rate / 10.0);
    println!("a worker at a tenth of the rate of RSA-2048: {:.1} % of a core", cores * 100.0);
    assert_eq!((controls.get(qat::DMA_FAULTS), controls.get(qat::UNKNOWN_FUNCTIONS)), (0, 0));
}

/// Share of a core that one worker of an engine uses while it serves `rate` RSA-2048 signatures a second by the card.
fn worker_at(backend: &Arc<Qat>, rate: f64) -> f64 {
    let config = EngineConfig { workers: 1, ..EngineConfig::default() };
    let engine = Engine::start(config, vec![Arc::clone(backend) as _]).expect("an engine");
    let sink = Arc::new(Collector::default());
    let session = engine.open_session(Arc::clone(&sink) as _, Owner::new(1, 1));
    let key = keys::rsa_2048().private_key();
    let key = engine.load_key(&key).expect("the card takes it");
    let jobs: u32 = if millrace_testkit::is_long() { 2_000 } else { 200 };
    let (start, before) = (Instant::now(), workers_time());
    for id in 0..jobs {
        let due = Duration::from_secs_f64(f64::from(id) / rate);
        thread::sleep(due.saturating_sub(start.elapsed()));
        engine.submit(vec![Job {
            id: id.into(),
            session: session.clone(),
            key: Arc::clone(&key),
            operation: Operation::RsaPkcs1Sign { hash: Hash::Sha256 },
            input: vec![1; 32],
            deadline: Instant::now() + Duration::from_secs(60),
        }]);
    }
    let ended = sink.take(jobs as usize);
    assert!(ended.iter().all(|completion| completion.result.is_ok()));
    (workers_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}

/// Tasks of the proof in one release that the card has answered: 20,000 in both, or a million.
fn answers_of_the_proof() -> u32 {
    if millrace_testkit::is_long() { 500_000 } else { 10_000 }
}

/// Most tasks that may end without an answer of the card, beside those answered: half as many.
const UNANSWERED_SHARE: u32 = 2;

/// Two workers on a card that computes 1 % of its answers wrong, flags 1 % as failed, loses 0.1 %, fails and is
/// reset: no wrong result, every task ends once, and few end because the card does not answer.
#[test]
fn tasks_end_once_and_never_wrong_on_a_faulty_card() {
    let Some(controls) = on_machines("tasks_end_once_and_never_wrong_on_a_faulty_card", 1) else {
        return;
    };
    let backend = Qat::new().fast_curves(true).answer_time(Duration::from_millis(500));
    let backend = up(backend);
    let works = works_of_the_proof(&backend);
    controls.set(qat::WRONG_EVERY, 100);
    controls.set(qat::FAIL_EVERY, 103);
    controls.set(qat::LOSE_EVERY, 1000);
    let [right, faults, unanswered] = [const { AtomicU32::new(0) }; 3];
    let wanted = answers_of_the_proof();
    let proof = Proof { backend, works, wanted, right, faults, unanswered };
    thread::scope(|scope| {
        let workers = [0, 1].map(|worker| {
            let proof = &proof;
            scope.spawn(move || proof.work(worker))
        });
        // Events at a fifth, two fifths, … of the answers.
        let events =
            [CardEvent::Fatal, CardEvent::Restarting, CardEvent::Fatal, CardEvent::Restarting];
        for (event, part) in events.into_iter().zip(1..) {
            while proof.answered() < proof.wanted / 5 * part {
                thread::sleep(Duration::from_millis(5));
            }
            let restarts = proof.backend.tally().restarts;
            controls.send(event);
            if event == CardEvent::Restarting {
                // A second event would replace one that no function has seen yet.
                until("the reset is noticed", || {
                    proof.backend.health() != Health::Up
                        || proof.backend.tally().restarts > restarts
                });
                controls.send(CardEvent::Restarted);
            }
        }
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    });
    let [right, faults, unanswered] =
        [&proof.right, &proof.faults, &proof.unanswered].map(|count| count.load(Ordering::Relaxed));
    println!(
        "{} tasks answered: {right} right, {faults} faults noticed; {unanswered} ended without an answer of the \
         card; {:?}",
        right + faults,
        proof.backend.tally()
    );
    assert!(right + faults >= proof.wanted && faults > 0);
    assert!(unanswered < proof.wanted / UNANSWERED_SHARE, "{unanswered}");
    let (tally, wrong) =
        (proof.backend.tally(), controls.get(qat::WRONG) + controls.get(qat::FAILED));
    assert!(
        tally.faults > 0 && tally.lost > 0 && tally.restarts >= 2 && wrong >= tally.faults,
        "{tally:?}"
    );
    assert_eq!(controls.get(qat::DMA_FAULTS), 0);
}

/// RSA-2048 signatures of several inputs, and the agreements but those of the slowest key: expected results are
/// computed before, since comparing costs less than verifying.
fn works_of_the_proof(backend: &Qat) -> Vec<Work> {
    let software = Software::new();
    let private = PrivateKey::from_pkcs8(keys::rsa_2048().der.to_vec().into());
    let reference = software.open_key(&private).expect("a key").key;
    let key = open(backend, keys::rsa_2048().der);
    let mut queue = software.open_queue().expect("a queue");
    let mut tasks = (0..24).map(|token| task(token, reference)).collect();
    let signed = drain(&mut *queue, &mut tasks, 24).into_iter().map(|done| Work {
        key,
        operation: done.task.operation,
        input: done.task.input,
        expected: done.result.expect("a signature").to_vec(),
    });
    let agreements = agreements(backend).into_iter();
    let (fast, slow): (Vec<Work>, Vec<Work>) = agreements.partition(|work| work.input.len() <= 65);
    // Slow ones once each, and the more of the others the faster the stand-in computes them.
    let slow = slow.into_iter().filter(|work| work.input.len() < 512);
    let mut works: Vec<Work> = signed.chain(slow).collect();
    for work in fast {
        for _ in 0..if work.operation == Operation::X25519 { 512 } else { 64 } {
            let Work { key, operation, input, expected } = &work;
            let (operation, input) = (operation.clone(), input.clone());
            works.push(Work { key: *key, operation, input, expected: expected.clone() });
        }
    }
    works
}

/// The proof: what the workers share.
struct Proof {
    backend: Qat,
    works: Vec<Work>,
    /// Tasks that the card must answer.
    wanted: u32,
    right: AtomicU32,
    faults: AtomicU32,
    unanswered: AtomicU32,
}

impl Proof {
    fn answered(&self) -> u32 {
        self.right.load(Ordering::Relaxed) + self.faults.load(Ordering::Relaxed)
    }

    /// One worker: submits tasks until the card has answered enough, with a new queue after each restart.
    fn work(&self, worker: u32) {
        let mut tokens = (0..).map(|number: u32| number * 2 + worker);
        let (mut open, mut waiting) = (BTreeSet::<u32>::new(), VecDeque::new());
        let mut queue = None;
        loop {
            let enough = self.answered() >= self.wanted;
            if enough && open.is_empty() {
                return;
            }
            if open.is_empty() && (queue.is_none() || self.backend.health() != Health::Up) {
                // The former one first: it holds a seat.
                drop(queue.take());
                until("a queue", || self.backend.health() == Health::Up);
                queue = self.backend.open_queue().ok();
            }
            let Some(queue) = &mut queue else { continue };
            // The queue of a session that is over ends what it is given.
            let serves = self.backend.health() == Health::Up;
            if waiting.is_empty() && serves && !enough {
                let tokens = tokens.by_ref().take(queue.capacity());
                waiting.extend(tokens.map(|token| self.task(token)));
            }
            if serves && !enough {
                let before: Vec<u32> = waiting.iter().map(|task: &Task| task.token).collect();
                let taken = queue.submit(&mut waiting);
                open.extend(&before[..taken]);
            }
            let mut done = Vec::new();
            queue.poll(&mut done);
            if done.is_empty() {
                thread::yield_now();
            }
            for done in done {
                assert!(open.remove(&done.task.token), "{} ended twice", done.task.token);
                self.count(&done);
            }
        }
    }

    fn of(&self, token: u32) -> &Work {
        &self.works[token as usize % self.works.len()]
    }

    fn task(&self, token: u32) -> Task {
        self.of(token).task(token)
    }

    fn count(&self, done: &Done) {
        let counter = match &done.result {
            Ok(output) => {
                let expected = &self.of(done.task.token).expected;
                assert_eq!(**output, *expected, "a wrong result came out");
                &self.right
            }
            Err(BackendError::Fault) => &self.faults,
            Err(BackendError::Failed) => &self.unanswered,
            Err(error) => panic!("{error:?}"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
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
        if version == "trixie" {
            run(&["/usr/bin/openssl", "speed", "-engine", "qatengine", "-seconds", "1", "rsa2048"]);
        }
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
