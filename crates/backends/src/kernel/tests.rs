// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backend on a stand-in for the kernel's system calls, which computes with AWS-LC.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use millrace_engine::BackendError;
use millrace_engine::backend::{Done, Task};
use millrace_operation::sync::lock;
use millrace_operation::{Hash, Operation};
use millrace_testkit::conformance::{self, Options};
use millrace_testkit::keys::{self, TestKey};
use millrace_testkit::wait::{SOON, until};

use super::errors::Errno;
use super::sys::{KeyFacts, Serial};
use super::*;
use crate::raw_rsa::secret;
use crate::software::Software;
use crate::software::keys::{self as software_keys, LoadedKey};

const SIGN: Operation = Operation::RsaPkcs1Sign { hash: Hash::Sha256 };

/// A call that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Join,
    Add,
    Query,
    Decrypt,
}

/// The kernel and the driver.
#[derive(Default)]
struct StandIn {
    keys: Mutex<BTreeMap<Serial, Arc<LoadedKey>>>,
    serials: AtomicI32,
    /// Error of every call of a kind.
    errors: Mutex<BTreeMap<Step, i32>>,
    /// Whether answers have a flipped bit.
    wrong: AtomicBool,
    /// Whether the device gives no answers.
    silent: Mutex<bool>,
    heard: Condvar,
    /// Calls that wait for the device.
    waiting: AtomicUsize,
    driver: Mutex<Option<&'static str>>,
    /// Looks at the driver.
    looks: AtomicUsize,
}

impl StandIn {
    fn new() -> Arc<Self> {
        let stand_in = Self { driver: Mutex::new(Some("stand-in-rsa")), ..Self::default() };
        Arc::new(stand_in)
    }

    fn backend(self: &Arc<Self>) -> Kernel {
        let driver = Arc::clone(self);
        let lookup = move || {
            driver.looks.fetch_add(1, Ordering::Relaxed);
            let found = lock(&driver.driver).map(str::to_owned);
            found.ok_or_else(|| Unusable("no driver".to_owned()))
        };
        // Tests share two cores with each other and with compilers.
        Kernel::on(Arc::clone(self) as Arc<dyn Calls>, Arc::new(lookup)).answer_time(SOON)
    }

    /// A backend that serves, one of its keys, and a queue.
    fn serving(self: &Arc<Self>, key: TestKey) -> (Kernel, BackendKey, Box<dyn Queue>) {
        let backend = self.backend();
        assert_eq!(backend.probe(), Ok(()));
        until_up(&backend);
        let key = backend.open_key(&key.private_key()).expect("a key").key;
        let queue = backend.open_queue().expect("a queue");
        (backend, key, queue)
    }

    fn fail(&self, step: Step, error: i32) {
        lock(&self.errors).insert(step, error);
    }

    fn recover(&self) {
        lock(&self.errors).clear();
    }

    fn silence(&self) {
        *lock(&self.silent) = true;
    }

    fn answer_again(&self) {
        *lock(&self.silent) = false;
        self.heard.notify_all();
    }

    fn step(&self, step: Step) -> Result<(), Errno> {
        match lock(&self.errors).get(&step) {
            Some(error) => Err(Errno(*error)),
            None => Ok(()),
        }
    }

    fn wait_for_device(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let heard = self.heard.wait_while(lock(&self.silent), |silent| *silent);
        drop(heard.unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn key(&self, serial: Serial) -> Result<Arc<LoadedKey>, Errno> {
        let key = lock(&self.keys).get(&serial).cloned();
        key.ok_or(Errno(libc::ENOKEY))
    }
}

impl Calls for StandIn {
    fn join(&self) -> Result<(), Errno> {
        self.step(Step::Join)
    }

    fn add(&self, _name: &str, pkcs8: &[u8]) -> Result<Serial, Errno> {
        self.step(Step::Add)?;
        let key = software_keys::load(pkcs8).map_err(|_| Errno(libc::EBADMSG))?;
        let serial = self.serials.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.keys).insert(serial, Arc::new(key));
        Ok(serial)
    }

    fn query(&self, key: Serial) -> Result<KeyFacts, Errno> {
        self.wait_for_device();
        self.step(Step::Query)?;
        Ok(KeyFacts { modulus_len: self.key(key)?.info.key_type.modulus_len(), decrypts: true })
    }

    fn decrypt(&self, key: Serial, input: &[u8], output: &mut [u8]) -> Result<usize, Errno> {
        self.wait_for_device();
        self.step(Step::Decrypt)?;
        let key = self.key(key)?;
        let rsa = secret(&key).expect("an RSA key");
        rsa.key.private(input, output).map_err(|_| Errno(libc::EINVAL))?;
        if self.wrong.load(Ordering::Relaxed) {
            output[9] ^= 1;
        }
        // As drivers do that write a number without its leading zeros.
        let zeros = output.iter().take_while(|byte| **byte == 0).count();
        output.rotate_left(zeros);
        Ok(output.len() - zeros)
    }

    fn remove(&self, key: Serial) {
        lock(&self.keys).remove(&key);
    }
}

fn tasks(key: BackendKey, count: u32) -> VecDeque<Task> {
    let task =
        |token: u32| Task { token, key, operation: SIGN, input: token.to_le_bytes().repeat(8) };
    (0..count).map(task).collect()
}

/// Hands tasks in and polls until all have ended.
fn drain(queue: &mut dyn Queue, mut tasks: VecDeque<Task>) -> Vec<Done> {
    let count = tasks.len();
    let mut done = Vec::new();
    until("all tasks have ended", || {
        queue.submit(&mut tasks);
        queue.poll(&mut done);
        done.len() == count
    });
    done
}

/// The result of one task.
fn sign(queue: &mut dyn Queue, key: BackendKey) -> Result<Vec<u8>, BackendError> {
    let done = drain(queue, tasks(key, 1)).remove(0);
    done.result.map(|output| output.to_vec())
}

fn reason(backend: &Kernel) -> String {
    match backend.health() {
        Health::Away(reason) => reason.0,
        Health::Up => "up".to_owned(),
    }
}

fn until_up(backend: &Kernel) {
    until("the backend serves", || backend.health() == Health::Up);
}

#[test]
fn kernel_conforms_on_the_stand_in() {
    let options = Options { reference: Some(Arc::new(Software::new())), rounds: 3 };
    let backend = Arc::new(StandIn::new().backend());
    let report = conformance::run(Arc::clone(&backend) as Arc<dyn Backend>, &options);
    println!("{report}");
    assert!(backend.tally().served > 200, "{:?}", backend.tally());
    assert_eq!(backend.tally().faults, 0);
}

#[test]
fn calls_run_at_once_on_many_threads_and_queues_share_them() {
    let stand_in = StandIn::new();
    let (backend, key, mut first) = stand_in.serving(keys::rsa_2048());
    let mut second = backend.open_queue().expect("a queue");
    stand_in.silence();
    let count = u32::try_from(CALLERS).expect("a number");
    let mut one = tasks(key, count);
    let mut other = tasks(key, count);
    assert_eq!(first.submit(&mut one), CALLERS);
    until("every caller has a call", || stand_in.waiting.load(Ordering::Relaxed) == CALLERS);
    assert_eq!(second.submit(&mut other), CALLERS);
    assert_eq!(backend.devices()[0].in_flight, CALLERS);
    stand_in.answer_again();
    for queue in [&mut first, &mut second] {
        let mut done = Vec::new();
        until("all tasks have ended", || queue.poll(&mut done) == 0);
        assert_eq!(done.len(), CALLERS);
        assert!(done.iter().all(|done| done.result.is_ok()));
    }
    let device = &backend.devices()[0];
    assert_eq!((device.in_flight, device.served), (0, 2 * CALLERS as u64));
    assert!(device.full > 0);
    assert_eq!(device.name, "stand-in-rsa");
}

#[test]
fn start_without_keyrings_or_operations_says_what_is_missing() {
    for (step, error, advice) in [
        (Step::Join, libc::ENOSYS, "CONFIG_KEYS"),
        (Step::Join, libc::EPERM, "seccomp"),
        (Step::Join, libc::EDQUOT, "maxkeys"),
        (Step::Add, libc::EPERM, "seccomp"),
        (Step::Query, libc::EOPNOTSUPP, "Linux 4.20"),
    ] {
        let stand_in = StandIn::new();
        stand_in.fail(step, error);
        let backend = stand_in.backend();
        let problem = backend.probe().expect_err("unusable");
        assert!(problem.0.contains(advice), "{error}: {problem}");
        assert_eq!(backend.health(), Health::Away(problem.clone()));
        assert_eq!(backend.open_queue().err(), Some(problem));
        let key = keys::rsa_2048().private_key();
        assert_eq!(backend.open_key(&key).err(), Some(KeyError::NotOffered));
    }
}

#[test]
fn missing_module_is_named_and_the_backend_comes_up_once_it_is_there() {
    for (step, error, advice) in [
        (Step::Add, libc::ENODEV, "CONFIG_ASYMMETRIC_KEY_TYPE"),
        (Step::Add, libc::EBADMSG, "modprobe pkcs8_key_parser"),
        (Step::Query, libc::ENOPKG, "load the driver"),
        (Step::Add, libc::EACCES, "security module"),
        (Step::Decrypt, libc::EKEYREJECTED, "kernel log"),
        (Step::Decrypt, libc::EIO, "Input/output error"),
    ] {
        let stand_in = StandIn::new();
        stand_in.fail(step, error);
        let backend = stand_in.backend();
        assert_eq!(backend.probe(), Ok(()));
        assert!(reason(&backend).contains(advice), "{}", reason(&backend));
        // Keys are opened while it is away.
        let key = backend.open_key(&keys::rsa_2048().private_key());
        let key = key.expect("a key").key;
        let mut queue = backend.open_queue().expect("a queue");
        assert_eq!(sign(&mut *queue, key), Err(BackendError::Failed));
        stand_in.recover();
        until_up(&backend);
        assert!(sign(&mut *queue, key).is_ok());
    }
}

#[test]
fn driver_that_goes_takes_the_backend_away_until_it_is_back() {
    let stand_in = StandIn::new();
    let (backend, key, mut queue) = stand_in.serving(keys::rsa_2048());
    assert!(sign(&mut *queue, key).is_ok());
    *lock(&stand_in.driver) = None;
    until("it is away", || reason(&backend) == "no driver");
    assert_eq!(sign(&mut *queue, key), Err(BackendError::Failed));
    *lock(&stand_in.driver) = Some("another");
    until_up(&backend);
    assert!(sign(&mut *queue, key).is_ok());
    let device = &backend.devices()[0];
    assert_eq!((device.restarts, device.name.as_str()), (1, "another"));
}

#[test]
fn call_that_hangs_ends_as_failed_and_the_backend_is_away_until_an_answer_comes() {
    let stand_in = StandIn::new();
    let backend = stand_in.backend().answer_time(Duration::from_millis(300));
    assert_eq!(backend.probe(), Ok(()));
    until_up(&backend);
    let key = backend.open_key(&keys::rsa_2048().private_key());
    let key = key.expect("a key").key;
    let mut queue = backend.open_queue().expect("a queue");
    stand_in.silence();
    let done = drain(&mut *queue, tasks(key, 3));
    assert!(done.iter().all(|done| done.result.as_ref().err() == Some(&BackendError::Failed)));
    let first = reason(&backend);
    assert!(first.contains("not returned") || first.contains("no answer"), "{first}");
    let device = &backend.devices()[0];
    assert_eq!((device.slots_lost, device.in_flight, device.lost), (3, 3, 3));
    // Further looks do not ask for the known answer while a request for it hangs.
    until("it has looked", || reason(&backend).contains("no answer"));
    let looks = || stand_in.looks.load(Ordering::Relaxed);
    let before = looks();
    until("it has looked twice more", || looks() >= before + 2);
    assert_eq!(stand_in.waiting.load(Ordering::Relaxed), 4);
    stand_in.answer_again();
    until_up(&backend);
    until("no call hangs", || backend.devices()[0].slots_lost == 0);
    until("no permit is lost", || backend.devices()[0].in_flight == 0);
    assert!(sign(&mut *queue, key).is_ok());
    // Dropped while calls hang: their answers go nowhere.
    stand_in.silence();
    queue.submit(&mut tasks(key, 2));
    drop(queue);
    drop(backend);
    stand_in.answer_again();
    until("its keys are gone", || lock(&stand_in.keys).is_empty());
}

#[test]
fn wrong_answer_is_a_fault() {
    let stand_in = StandIn::new();
    let (backend, key, mut queue) = stand_in.serving(keys::rsa_2048());
    stand_in.wrong.store(true, Ordering::Relaxed);
    let done = drain(&mut *queue, tasks(key, 20));
    assert!(done.iter().all(|done| done.result.as_ref().err() == Some(&BackendError::Fault)));
    assert_eq!((backend.tally().faults, backend.tally().served), (20, 0));
    // One that starts on such a device does not serve.
    let second = stand_in.backend();
    assert_eq!(second.probe(), Ok(()));
    assert!(reason(&second).contains("wrong result"), "{}", reason(&second));
}

#[test]
fn several_errors_in_a_row_take_the_backend_away_and_single_ones_do_not() {
    let stand_in = StandIn::new();
    let (backend, key, mut queue) = stand_in.serving(keys::rsa_2048());
    stand_in.fail(Step::Decrypt, libc::EIO);
    for _ in 0..7 {
        assert_eq!(sign(&mut *queue, key), Err(BackendError::Failed));
    }
    stand_in.recover();
    assert!(sign(&mut *queue, key).is_ok());
    assert_eq!(backend.health(), Health::Up);
    stand_in.fail(Step::Decrypt, libc::EIO);
    let failed = drain(&mut *queue, tasks(key, 8));
    assert!(failed.iter().all(|done| done.result.is_err()));
    // The first reason, or that of the known answer, which has been asked for since.
    let reason = reason(&backend);
    assert!(reason.contains("Input/output error"), "{reason}");
}

#[test]
fn key_that_the_kernel_lost_is_added_again() {
    for error in [libc::ENOKEY, libc::EKEYREVOKED, libc::EKEYEXPIRED] {
        let stand_in = StandIn::new();
        let (backend, key, mut queue) = stand_in.serving(keys::rsa_2048());
        stand_in.fail(Step::Decrypt, error);
        assert_eq!(sign(&mut *queue, key), Err(BackendError::Failed));
        stand_in.recover();
        let before = stand_in.serials.load(Ordering::Relaxed);
        assert!(sign(&mut *queue, key).is_ok());
        assert_eq!(stand_in.serials.load(Ordering::Relaxed), before + 1);
        assert_eq!(backend.health(), Health::Up);
    }
}

#[test]
fn key_that_the_driver_refuses_is_not_offered() {
    let stand_in = StandIn::new();
    let (backend, _, _queue) = stand_in.serving(keys::rsa_2048());
    let other = keys::rsa_3072().private_key();
    for (error, verdict) in [
        (libc::EINVAL, Some(KeyError::NotOffered)),
        // The first request tries again.
        (libc::EIO, None),
    ] {
        stand_in.fail(Step::Query, error);
        assert_eq!(backend.open_key(&other).err(), verdict);
    }
    stand_in.recover();
    stand_in.fail(Step::Add, libc::EDQUOT);
    assert_eq!(backend.open_key(&other).err(), Some(KeyError::TooMany));
    assert_eq!(backend.health(), Health::Up);
    let large = backend.open_key(&keys::rsa_8192().private_key());
    assert_eq!(large.err(), Some(KeyError::NotOffered));
}

#[test]
fn key_refused_at_its_first_request_is_not_offered_from_then_on() {
    let stand_in = StandIn::new();
    *lock(&stand_in.driver) = None;
    let late = stand_in.backend();
    assert_eq!(late.probe(), Ok(()));
    let key = late.open_key(&keys::rsa_2048().private_key());
    let key = key.expect("a key").key;
    *lock(&stand_in.driver) = Some("back");
    until_up(&late);
    stand_in.fail(Step::Query, libc::EINVAL);
    let mut queue = late.open_queue().expect("a queue");
    for _ in 0..3 {
        assert_eq!(sign(&mut *queue, key), Err(BackendError::NotOffered));
    }
    assert_eq!(late.devices()[0].submitted, 1);
    assert_eq!(late.health(), Health::Up);
}

#[test]
fn worker_never_waits_for_a_driver_that_loads_a_key() {
    let stand_in = StandIn::new();
    *lock(&stand_in.driver) = None;
    let backend = stand_in.backend();
    assert_eq!(backend.probe(), Ok(()));
    let key = backend.open_key(&keys::rsa_2048().private_key());
    let key = key.expect("a key").key;
    *lock(&stand_in.driver) = Some("slow");
    until_up(&backend);
    let mut queue = backend.open_queue().expect("a queue");
    stand_in.silence();
    queue.submit(&mut tasks(key, 1));
    until("the driver loads the key", || stand_in.waiting.load(Ordering::Relaxed) == 1);
    let worker = std::thread::spawn(move || {
        queue.submit(&mut tasks(key, 4));
        queue.poll(&mut Vec::new())
    });
    until("the worker is back", || worker.is_finished());
    assert_eq!(worker.join().expect("a worker"), 5);
    stand_in.answer_again();
}

#[test]
fn closed_keys_leave_the_kernel() {
    let stand_in = StandIn::new();
    let (backend, key, mut queue) = stand_in.serving(keys::rsa_2048());
    let known_answer = 1;
    assert_eq!(lock(&stand_in.keys).len(), known_answer + 1);
    // In use: the key leaves once its task has ended.
    stand_in.silence();
    queue.submit(&mut tasks(key, 1));
    backend.close_key(key);
    stand_in.answer_again();
    let mut done = Vec::new();
    until("the task has ended", || queue.poll(&mut done) == 0);
    assert!(done[0].result.is_ok());
    until("the key is gone", || lock(&stand_in.keys).len() == known_answer);
    assert_eq!(sign(&mut *queue, key), Err(BackendError::Failed));
    drop((queue, backend));
    until("no key is left", || lock(&stand_in.keys).is_empty());
}

#[test]
fn numbers_that_are_their_own_root_need_no_call() {
    let stand_in = StandIn::new();
    let (backend, key, mut queue) = stand_in.serving(keys::rsa_2048());
    let mut one = vec![0; 256];
    one[255] = 1;
    for input in [vec![0; 256], one] {
        let task = Task { token: 0, key, operation: Operation::RsaRaw, input: input.clone() };
        let done = drain(&mut *queue, VecDeque::from([task])).remove(0);
        assert_eq!(done.result.expect("a root").to_vec(), input);
    }
    assert_eq!(backend.devices()[0].submitted, 0);
}

#[test]
fn this_machine_serves_or_says_what_is_missing() {
    let backend = Kernel::new(|| Ok("of this machine".to_owned()));
    let reason = match backend.probe() {
        Ok(()) => reason(&backend),
        Err(reason) => reason.0,
    };
    println!("{reason}");
    let known = errors::ERRORS.iter().any(|(.., advice)| reason.contains(advice));
    assert!(known || reason == "up", "{reason}");
}
