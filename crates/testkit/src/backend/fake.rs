// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A backend that computes nothing and answers with a fixed output, for tests of queues, batching, fairness and
//! accounting. It answers at once, or after a time that the test sets.
//!
//! The backend counts its tasks, so that a test knows which of several backends served.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, Done, OpenedKey, Queue, Task, Unusable,
};
use millrace_operation::{
    BackendKind, KeyError, KeyInfo, KeyType, OperationKind, Output, PrivateKey,
};

/// The behaviour of a [`FakeBackend`].
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// Kind of backend that the fake claims to be.
    pub kind: BackendKind,
    /// Whether the fake claims to compute on the calling CPU.
    pub on_cpu: bool,
    /// The type of every key that it opens.
    pub key_type: KeyType,
    /// The only key that it opens. `None` if it opens any.
    pub only_key: Option<&'static [u8]>,
    /// Time that each task computes on the calling core.
    pub work: Duration,
    /// Whether a task sleeps for that time instead, so that each worker stands for a core of its own.
    pub sleeps: bool,
    /// The output of every task.
    pub output: Vec<u8>,
    /// Number of tasks that a queue holds.
    pub capacity: usize,
    /// Number of tasks that one poll completes; at least 1.
    pub batch: usize,
}

impl Default for FakeOptions {
    /// A software backend with RSA-2048 keys, whose queues hold 32 tasks and complete one per poll.
    fn default() -> Self {
        Self {
            kind: BackendKind::Software,
            on_cpu: true,
            key_type: KeyType::Rsa { bits: 2048 },
            only_key: None,
            work: Duration::ZERO,
            sleeps: false,
            output: b"fake".to_vec(),
            capacity: 32,
            batch: 1,
        }
    }
}

/// A backend that answers with a fixed output. It accepts any key bytes.
#[derive(Debug)]
pub struct FakeBackend {
    options: FakeOptions,
    capabilities: Vec<Capability>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    next_key: AtomicU64,
    open_keys: AtomicUsize,
    tasks: AtomicU64,
    largest_batch: AtomicUsize,
}

impl FakeBackend {
    /// Makes a backend with this behaviour. It offers every operation of its type of key.
    #[must_use]
    pub fn new(options: FakeOptions) -> Self {
        let key_type = options.key_type;
        let capabilities = OperationKind::ALL
            .iter()
            .filter(|kind| kind.fits(key_type))
            .map(|kind| Capability { operation: *kind, smallest: key_type, largest: key_type })
            .collect();
        Self { options, capabilities, counters: Arc::default() }
    }

    /// Number of completed tasks.
    #[must_use]
    pub fn tasks(&self) -> u64 {
        self.counters.tasks.load(Ordering::SeqCst)
    }

    /// Number of open keys.
    #[must_use]
    pub fn open_keys(&self) -> usize {
        self.counters.open_keys.load(Ordering::SeqCst)
    }

    /// Most tasks that were in flight in one queue.
    #[must_use]
    pub fn largest_batch(&self) -> usize {
        self.counters.largest_batch.load(Ordering::SeqCst)
    }
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self::new(FakeOptions::default())
    }
}

impl Backend for FakeBackend {
    fn describe(&self) -> Description {
        Description {
            kind: self.options.kind,
            version: "fake".to_owned(),
            on_cpu: self.options.on_cpu,
            batch: 1,
        }
    }

    fn capabilities(&self) -> &[Capability] {
        &self.capabilities
    }

    fn probe(&self) -> Result<(), Unusable> {
        Ok(())
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        if self.options.only_key.is_some_and(|only| key.dangerous_pkcs8() != only) {
            return Err(KeyError::NotOffered);
        }
        self.counters.open_keys.fetch_add(1, Ordering::SeqCst);
        Ok(OpenedKey {
            key: BackendKey(self.counters.next_key.fetch_add(1, Ordering::SeqCst)),
            info: KeyInfo { key_type: self.options.key_type, spki: b"fake".to_vec() },
        })
    }

    fn close_key(&self, _key: BackendKey) {
        self.counters.open_keys.fetch_sub(1, Ordering::SeqCst);
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        Ok(Box::new(FakeQueue {
            options: self.options.clone(),
            counters: Arc::clone(&self.counters),
            waiting: VecDeque::new(),
        }))
    }
}

struct FakeQueue {
    options: FakeOptions,
    counters: Arc<Counters>,
    waiting: VecDeque<Task>,
}

impl Queue for FakeQueue {
    fn capacity(&self) -> usize {
        self.options.capacity
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        let taken = tasks.len().min(self.options.capacity - self.waiting.len());
        self.waiting.extend(tasks.drain(..taken));
        self.counters.largest_batch.fetch_max(self.waiting.len(), Ordering::SeqCst);
        taken
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        let count = self.waiting.len().min(self.options.batch.max(1));
        for task in self.waiting.drain(..count) {
            let start = Instant::now();
            if self.options.sleeps {
                std::thread::sleep(self.options.work);
            }
            while start.elapsed() < self.options.work {
                std::hint::spin_loop();
            }
            self.counters.tasks.fetch_add(1, Ordering::SeqCst);
            done.push(Done {
                task,
                result: Ok(Output::new(self.options.output.clone())),
                service_time: self.options.work,
            });
        }
        self.waiting.len()
    }
}
