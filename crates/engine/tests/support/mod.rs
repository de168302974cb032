// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A backend under the control of a test, and a sink that collects.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, Done, OpenedKey, Queue, Task, Unusable,
};
use millrace_engine::{
    BackendError, Completion, CompletionSink, Engine, EngineSession, Job, Key, Owner,
};
use millrace_operation::{
    BackendKind, Curve, Hash, KeyError, KeyInfo, KeyType, Operation, OperationKind, Output,
    PrivateKey,
};

/// Behaviour of the backend for a task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behaviour {
    Answer,
    Fail(BackendError),
    Panic,
    /// Answers after computing for this long.
    Work(Duration),
}

#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) kind: BackendKind,
    pub(crate) on_cpu: bool,
    pub(crate) batch: usize,
    pub(crate) behaviour: Mutex<Behaviour>,
    /// While closed, tasks of slow keys wait in `poll`.
    pub(crate) gate: Gate,
    pub(crate) served: AtomicU64,
    /// Names of the threads at which slow tasks were computed, by task.
    pub(crate) threads: Mutex<Vec<String>>,
    /// Why queues are refused, if they are.
    pub(crate) refuses_queues: Mutex<Option<&'static str>>,
    pub(crate) queues_asked_for: AtomicU64,
    pub(crate) open_keys: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicU64,
}

impl Gate {
    pub(crate) fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }
    pub(crate) fn open(&self) {
        *self.closed.lock().unwrap() = false;
        self.changed.notify_all();
    }
    fn pass(&self) {
        let mut closed = self.closed.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_all();
        while *closed {
            closed = self.changed.wait(closed).unwrap();
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
    /// Number of tasks that stand at the closed gate now.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::SeqCst)
    }
    /// Returns when `count` tasks stand at the closed gate.
    pub(crate) fn wait_for(&self, count: u64) {
        let mut closed = self.closed.lock().unwrap();
        while self.waiting.load(Ordering::SeqCst) < count {
            closed = self.changed.wait(closed).unwrap();
        }
    }
}

impl Scripted {
    pub(crate) fn new(kind: BackendKind) -> Arc<Self> {
        Self::with_batch(kind, 1)
    }

    pub(crate) fn with_batch(kind: BackendKind, batch: usize) -> Arc<Self> {
        Self::with(kind, batch, true)
    }

    pub(crate) fn device(kind: BackendKind, batch: usize) -> Arc<Self> {
        Self::with(kind, batch, false)
    }

    fn with(kind: BackendKind, batch: usize, on_cpu: bool) -> Arc<Self> {
        Arc::new(Self {
            kind,
            on_cpu,
            batch,
            behaviour: Mutex::new(Behaviour::Answer),
            gate: Gate::default(),
            served: AtomicU64::new(0),
            threads: Mutex::default(),
            refuses_queues: Mutex::default(),
            queues_asked_for: AtomicU64::new(0),
            open_keys: AtomicU64::new(0),
        })
    }
}

const CAPABILITIES: &[Capability] = &[
    Capability {
        operation: OperationKind::EcdsaSign,
        smallest: KeyType::Ec(Curve::P256),
        largest: KeyType::Ec(Curve::P521),
    },
    Capability {
        operation: OperationKind::RsaPkcs1Sign,
        smallest: KeyType::Rsa { bits: 2048 },
        largest: KeyType::Rsa { bits: 8192 },
    },
];

/// A wrapper, because the backend has to reach itself from its queues.
#[derive(Debug)]
pub(crate) struct Shared(pub(crate) Arc<Scripted>);

impl Backend for Shared {
    fn describe(&self) -> Description {
        let version = "scripted".to_owned();
        Description { kind: self.0.kind, version, on_cpu: self.0.on_cpu, batch: self.0.batch }
    }
    fn capabilities(&self) -> &[Capability] {
        CAPABILITIES
    }
    fn probe(&self) -> Result<(), Unusable> {
        Ok(())
    }
    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let key_type = match key.dangerous_pkcs8() {
            b"p256" => KeyType::Ec(Curve::P256),
            b"rsa" => KeyType::Rsa { bits: 4096 },
            _ => return Err(KeyError::Malformed),
        };
        self.0.open_keys.fetch_add(1, Ordering::SeqCst);
        let name = u64::from(key_type == KeyType::Ec(Curve::P256));
        Ok(OpenedKey { key: BackendKey(name), info: KeyInfo { key_type, spki: vec![] } })
    }
    fn close_key(&self, _key: BackendKey) {
        self.0.open_keys.fetch_sub(1, Ordering::SeqCst);
    }
    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        self.0.queues_asked_for.fetch_add(1, Ordering::SeqCst);
        if let Some(reason) = *self.0.refuses_queues.lock().unwrap() {
            return Err(Unusable(reason.to_owned()));
        }
        Ok(Box::new(ScriptedQueue { backend: Arc::clone(&self.0), tasks: VecDeque::new() }))
    }
}

struct ScriptedQueue {
    backend: Arc<Scripted>,
    tasks: VecDeque<Task>,
}

impl Queue for ScriptedQueue {
    fn capacity(&self) -> usize {
        4
    }
    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let taken = tasks.len().min(self.capacity() - self.tasks.len());
        self.tasks.extend(tasks.drain(..taken));
        taken
    }
    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        let Some(task) = self.tasks.pop_front() else {
            return 0;
        };
        if task.key == BackendKey(0) {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            self.backend.threads.lock().unwrap().push(thread);
            self.backend.gate.pass();
        }
        let behaviour = *self.backend.behaviour.lock().unwrap();
        let result = match behaviour {
            Behaviour::Answer => Ok(Output::new(task.input.clone())),
            Behaviour::Fail(error) => Err(error),
            Behaviour::Work(time) => {
                let start = Instant::now();
                while start.elapsed() < time {
                    std::hint::spin_loop();
                }
                Ok(Output::new(task.input.clone()))
            }
            Behaviour::Panic => panic!("scripted panic"),
        };
        self.backend.served.fetch_add(1, Ordering::SeqCst);
        done.push(Done { task, result, service_time: Duration::from_micros(1) });
        self.tasks.len()
    }
}

/// Collects completions and lets a test wait for them.
#[derive(Default)]
pub(crate) struct Collector {
    completions: Mutex<Vec<Completion>>,
    arrived: Condvar,
}

impl CompletionSink for Collector {
    fn complete(&self, completions: &mut Vec<Completion>) {
        self.completions.lock().unwrap().append(completions);
        self.arrived.notify_all();
    }
}

impl Collector {
    /// Waits until `count` completions are there and takes them all.
    pub(crate) fn take(&self, count: usize) -> Vec<Completion> {
        let mut completions = self.completions.lock().unwrap();
        while completions.len() < count {
            let (guard, timeout) =
                self.arrived.wait_timeout(completions, Duration::from_secs(60)).unwrap();
            completions = guard;
            assert!(!timeout.timed_out(), "{} of {count} completions", completions.len());
        }
        std::mem::take(&mut *completions)
    }
}

/// The owner of the fixture's session.
pub(crate) const OWNER: u64 = 1;

/// An engine above scripted backends, with one session.
pub(crate) struct Fixture {
    pub(crate) engine: Engine,
    pub(crate) session: EngineSession,
    pub(crate) sink: Arc<Collector>,
    pub(crate) fast: Arc<Key>,
    pub(crate) slow: Arc<Key>,
}

impl Fixture {
    pub(crate) fn new(backends: &[&Arc<Scripted>], workers: usize) -> Self {
        Self::with_limits(backends, workers, 64)
    }

    /// A fixture with room for `queue_limit` jobs per class, half of it for one session.
    pub(crate) fn with_limits(
        backends: &[&Arc<Scripted>],
        workers: usize,
        queue_limit: usize,
    ) -> Self {
        Self::start(
            backends,
            millrace_engine::EngineConfig {
                workers,
                queue_limit,
                session_queue_limit: queue_limit / 2,
                ..millrace_engine::EngineConfig::default()
            },
        )
    }

    pub(crate) fn with_placement(
        backends: &[&Arc<Scripted>],
        workers: usize,
        placement: Arc<dyn millrace_engine::Placement>,
    ) -> Self {
        Self::start(
            backends,
            millrace_engine::EngineConfig {
                workers,
                placement: Some(placement),
                ..millrace_engine::EngineConfig::default()
            },
        )
    }

    fn start(backends: &[&Arc<Scripted>], config: millrace_engine::EngineConfig) -> Self {
        let backends = backends
            .iter()
            .map(|scripted| Arc::new(Shared(Arc::clone(scripted))) as Arc<dyn Backend>)
            .collect();
        let engine = Engine::start(config, backends).unwrap();
        let sink = Arc::new(Collector::default());
        let session =
            engine.open_session(Arc::clone(&sink) as Arc<dyn CompletionSink>, Owner::new(OWNER, 1));
        let key = |name: &[u8]| PrivateKey::from_pkcs8(name.to_vec().into());
        let fast = engine.load_key(&key(b"p256")).unwrap();
        let slow = engine.load_key(&key(b"rsa")).unwrap();
        Self { engine, session, sink, fast, slow }
    }

    /// A session of another owner, with the fixture's sink.
    pub(crate) fn session_of(&self, owner: u64) -> EngineSession {
        let sink = Arc::clone(&self.sink) as Arc<dyn CompletionSink>;
        self.engine.open_session(sink, Owner::new(owner, 1))
    }

    pub(crate) fn fast_job(&self, id: u64) -> Job {
        self.job(id, &self.fast, Operation::EcdsaSign { hash: Hash::Sha256 })
    }

    pub(crate) fn slow_job(&self, id: u64) -> Job {
        self.job(id, &self.slow, Operation::RsaPkcs1Sign { hash: Hash::Sha256 })
    }

    fn job(&self, id: u64, key: &Arc<Key>, operation: Operation) -> Job {
        Job {
            id,
            session: self.session.clone(),
            key: Arc::clone(key),
            operation,
            input: vec![u8::try_from(id % 251).unwrap(); 32],
            deadline: Instant::now() + Duration::from_secs(60),
        }
    }
}
