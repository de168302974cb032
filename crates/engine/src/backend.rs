// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The contract that every backend fulfils. It has two faces.
//!
//! *Slow face*, [`Backend`]: describe, probe, open and close keys, open queues. Called rarely, from
//! any thread, may block.
//!
//! *Fast face*, [`Queue`]: submit a batch, poll completions. Owned by one worker thread, no locks
//! in between. A device answers `poll` from its completion ring. A backend that computes on the CPU does
//! **one task or one batch of lanes inside `poll`**: the worker delivers early results while later ones are
//! computed.
//!
//! Every backend verifies an RSA private result with one public operation before it returns it, and
//! answers [`BackendError::Fault`] instead of a result that does not verify.
//!
//! **Order of calls.** [`Engine::start`](crate::Engine::start) calls `describe` and `probe` once, and
//! `capabilities` if the probe succeeds. Each key is opened in every usable backend before the first job
//! with it, and closed after its last. Each worker opens one queue at its first task for the backend and
//! then calls `submit` and `poll` in turn until the queue is empty. After a panic the queue is dropped.
//!
//! **Devices.** A worker tops a device up while it has room, and between two polls that return nothing it
//! waits as [`Queue::pace`] says. [`Backend::health`] tells the engine when a device goes away and comes back;
//! the engine then drops the queues that it opened before. A task that a device holds beyond its job's
//! deadline is lost: its job ends, and the engine drops the queue once nothing else is in flight in it.
//!
//! A backend that signs with one "key" type, and a job through the engine:
//!
//! ```
//! use std::collections::VecDeque;
//! use std::sync::{Arc, mpsc};
//! use std::time::{Duration, Instant};
//!
//! use millrace_engine::backend::{
//!     Backend, BackendKey, Capability, Description, Done, OpenedKey, Queue, Task, Unusable,
//! };
//! use millrace_engine::{Completion, CompletionSink, Engine, EngineConfig, Job, Owner};
//! use millrace_operation::{
//!     BackendKind, KeyError, KeyInfo, KeyType, Operation, OperationKind, Output, PrivateKey,
//! };
//!
//! /// "Signs" by reversing the message.
//! #[derive(Debug)]
//! struct Reversing;
//!
//! impl Backend for Reversing {
//!     fn describe(&self) -> Description {
//!         let version = "example".to_owned();
//!         Description { kind: BackendKind::Software, version, on_cpu: true, batch: 1 }
//!     }
//!     fn capabilities(&self) -> &[Capability] {
//!         const KEY: KeyType = KeyType::Ed25519;
//!         &[Capability { operation: OperationKind::Ed25519Sign, smallest: KEY, largest: KEY }]
//!     }
//!     fn probe(&self) -> Result<(), Unusable> {
//!         Ok(())
//!     }
//!     fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
//!         // A real backend parses and checks `key`, and keeps what it needs under a new number.
//!         let _pkcs8 = key.dangerous_pkcs8();
//!         let info = KeyInfo { key_type: KeyType::Ed25519, spki: Vec::new() };
//!         Ok(OpenedKey { key: BackendKey(1), info })
//!     }
//!     fn close_key(&self, _key: BackendKey) {}
//!     fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
//!         Ok(Box::new(Tasks::default()))
//!     }
//! }
//!
//! #[derive(Default)]
//! struct Tasks(VecDeque<Task>);
//!
//! impl Queue for Tasks {
//!     fn capacity(&self) -> usize {
//!         8
//!     }
//!     fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
//!         let room = self.capacity() - self.0.len();
//!         let taken = tasks.len().min(room);
//!         self.0.extend(tasks.drain(..taken));
//!         taken
//!     }
//!     fn poll(&mut self, done: &mut Vec<Done>) -> usize {
//!         if let Some(task) = self.0.pop_front() {
//!             let start = Instant::now();
//!             let result = Ok(Output::new(task.input.iter().rev().copied().collect()));
//!             done.push(Done { task, result, service_time: start.elapsed() });
//!         }
//!         self.0.len()
//!     }
//! }
//!
//! struct Sink(mpsc::Sender<Completion>);
//!
//! impl CompletionSink for Sink {
//!     fn complete(&self, completions: &mut Vec<Completion>) {
//!         for completion in completions.drain(..) {
//!             let _ = self.0.send(completion);
//!         }
//!     }
//! }
//!
//! let engine = Engine::start(EngineConfig::default(), vec![Arc::new(Reversing)])?;
//! let key = engine.load_key(&PrivateKey::from_pkcs8(b"a key".to_vec().into()))?;
//! let (sender, completions) = mpsc::channel();
//! let session = engine.open_session(Arc::new(Sink(sender)), Owner::new(1, 1));
//! engine.submit(vec![Job {
//!     id: 7,
//!     session,
//!     key,
//!     operation: Operation::Ed25519Sign,
//!     input: b"abc".to_vec(),
//!     deadline: Instant::now() + Duration::from_secs(5),
//! }]);
//! let completion = completions.recv()?;
//! assert_eq!((completion.id, completion.served_by), (7, Some(BackendKind::Software)));
//! assert_eq!(*completion.result?, b"cba");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use thiserror::Error;

use millrace_operation::{
    BackendKind, KeyError, KeyInfo, KeyType, Operation, OperationKind, Output, PrivateKey,
};

use crate::error::BackendError;

/// The slow face of a backend.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Kind and version of the backend: constant for the life of the value.
    fn describe(&self) -> Description;

    /// Operations and sizes that the backend supports, as data: constant for the life of the value.
    fn capabilities(&self) -> &[Capability];

    /// Whether the backend can be used on this machine now. Called once by the engine, before everything but
    /// `describe`, while the node starts: it may load libraries, open devices and run a self-test, for some seconds.
    /// There is no second call: a backend whose hardware may come later succeeds here, and [`health`](Self::health)
    /// says that it is away.
    ///
    /// # Errors
    /// A reason that a person can act on. Missing hardware is an answer, not a failure.
    fn probe(&self) -> Result<(), Unusable>;

    /// Parses, checks and loads a key. Called for every usable backend before the key serves its first job,
    /// so a slow one delays a reload of the keys.
    ///
    /// # Errors
    /// The fault of the key, or [`KeyError::NotOffered`] if this backend lacks its type.
    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError>;

    /// Forgets a key and zeroises what was derived from it once no task uses it. Unknown keys are
    /// ignored.
    fn close_key(&self, key: BackendKey);

    /// Whether the backend serves now. Read about 50 times a second after a successful `probe`, so it must be cheap:
    /// the backend watches its device elsewhere. While it is away, keys are opened and closed as usual, jobs go to
    /// other backends, and the tasks that its queues hold must end.
    fn health(&self) -> Health {
        Health::Up
    }

    /// Devices of the backend, or the instances of one, with their counters, for display. Only a backend that tells
    /// them apart has any.
    fn devices(&self) -> Vec<BackendDeviceStatus> {
        Vec::new()
    }

    /// Queues that may be open at once; the engine asks for no more. `None` if there is no bound.
    fn max_queues(&self) -> Option<usize> {
        None
    }

    /// Opens a queue for one worker thread, at its first task for this backend. An engine has three classes
    /// with a worker per core and an express worker each, and threads that run jobs inline.
    ///
    /// # Errors
    /// Why there is none (for instance, all instances of a device are taken). The worker then passes the
    /// backend over for a second, and `BackendStatus::queue_refused` has the reason.
    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable>;
}

/// The fast face of a backend: one submission and completion queue, owned by one worker.
pub trait Queue: Send {
    /// Bound on the tasks that the queue holds in flight. At least 1, constant.
    fn capacity(&self) -> usize;

    /// Takes as many tasks from the front of `tasks` as it has room for, and returns their number.
    /// The others stay: backpressure is a return value. Never blocks. A queue that holds nothing and takes nothing
    /// says that its device does not serve now: the worker gives the tasks to other backends, and keeps those that no
    /// other backend can serve, to offer them again.
    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize;

    /// Makes progress and appends the tasks that are done, in any order. Returns the number still in
    /// flight. A CPU backend computes one task, or one batch of lanes, per call; a device returns at once.
    fn poll(&mut self, done: &mut Vec<Done>) -> usize;

    /// Rhythm of a worker's polls while they return nothing.
    fn pace(&self) -> Pace {
        Pace::default()
    }
}

/// Rhythm in which a device is polled while it computes. The worker polls without a pause for `spin`, then sleeps
/// between polls: for `first`, then twice as long each time up to `longest`. A new job ends a sleep early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time without a result before the first sleep.
    pub spin: Duration,
    /// Length of the first sleep; each further one is twice as long.
    pub first: Duration,
    /// The longest sleep: what a result may wait for at most, beside the operating system's timer.
    pub longest: Duration,
}

impl Default for Pace {
    /// Suits devices that answer within a millisecond: a result waits for a tenth of that at most, and a worker that
    /// sleeps 50 µs between polls uses a few percent of its core.
    fn default() -> Self {
        Self {
            spin: Duration::from_micros(5),
            first: Duration::from_micros(10),
            longest: Duration::from_micros(50),
        }
    }
}

/// Whether a backend serves now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Keys open and queues take tasks.
    Up,
    /// The backend does not serve, for now or for good, for this reason.
    Away(Unusable),
}

/// One device of a backend, or one instance of it: what it does now, and counters since the process started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendDeviceStatus {
    /// Name of the device on this machine: for a QAT instance, bus address of the virtual function and number.
    pub name: String,
    /// Whether the device takes requests now.
    pub serving: bool,
    /// Requests that the device holds.
    pub in_flight: usize,
    /// Requests that the device can hold.
    pub capacity: usize,
    /// Places of requests that were given up, and that the device may still answer.
    pub slots_lost: usize,
    /// Requests handed to the device.
    pub submitted: u64,
    /// Requests that the device refused because it was full.
    pub full: u64,
    /// Requests that ended with a verified result.
    pub served: u64,
    /// Results that failed verification.
    pub faults: u64,
    /// Requests that were not answered in time.
    pub lost: u64,
    /// Starts of the device after the first.
    pub restarts: u64,
}

/// Description of a backend for the engine and for display.
#[derive(Clone, Debug)]
pub struct Description {
    /// Kind of the backend, which is also its name.
    pub kind: BackendKind,
    /// Library or device with its version, for display (`AWS-LC 1.2`, `H100`).
    pub version: String,
    /// Whether `poll` computes on the calling CPU. If so for every backend that can serve a lone fast job, the
    /// job may run on the thread that submits it, without waking a worker.
    pub on_cpu: bool,
    /// Preferred batch size: the number of equal-sized tasks that cost about as much as one; 1 without such
    /// a gain. For a backend on the CPU a worker takes at least that many of the jobs that wait, instead of
    /// sharing them evenly with the other workers. A device is filled by all workers together.
    pub batch: usize,
}

/// One row of what a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Operation that the backend can run.
    pub operation: OperationKind,
    /// The smallest key of that operation's family, as a bound on [`KeyType`] in its order.
    pub smallest: KeyType,
    /// The largest key of that family, inclusive.
    pub largest: KeyType,
}

impl Capability {
    /// Whether this row covers `operation` on a key of type `key_type`.
    #[must_use]
    pub fn covers(&self, operation: OperationKind, key_type: KeyType) -> bool {
        self.operation == operation
            && operation.fits(key_type)
            && (self.smallest..=self.largest).contains(&key_type)
    }
}

/// Why a backend cannot be used here, in words that say what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// Names a key inside one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey(pub u64);

/// A key that a backend accepted.
#[derive(Clone, Debug)]
pub struct OpenedKey {
    /// Name of the key in the backend.
    pub key: BackendKey,
    /// Type and public half of the key.
    pub info: KeyInfo,
}

/// A job as a backend sees it: without session, owner or deadline. `Debug` shows no input.
pub struct Task {
    /// Unique among the tasks in flight in one queue; returned in [`Done`].
    pub token: u32,
    /// The key, as named by [`Backend::open_key`].
    pub key: BackendKey,
    /// Operation to do with the key.
    pub operation: Operation,
    /// The input; [`Operation::check`] has been passed.
    pub input: Vec<u8>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, key, operation, input } = self;
        write!(f, "Task({token}, {} with key {}, ", operation.kind(), key.0)?;
        write!(f, "input of {} bytes)", input.len())
    }
}

/// A task that ended. `Debug` shows the length of the output, never its bytes.
pub struct Done {
    /// The task itself, so that it can be tried elsewhere without a copy.
    pub task: Task,
    /// The verified result, or why there is none.
    pub result: Result<Output, BackendError>,
    /// Time that the backend worked on it. Each task of a batch has the time of the whole batch.
    pub service_time: Duration,
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, result, service_time } = self;
        f.debug_struct("Done")
            .field("task", task)
            .field("result", &result.as_ref().map(|output| output.len()))
            .field("service_time", service_time)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_lengths_and_no_bytes() {
        let task = Task {
            token: 1,
            key: BackendKey(2),
            operation: Operation::Ed25519Sign,
            input: vec![0xaa; 3],
        };
        let result = Ok(Output::new(vec![0xbb; 5]));
        let text = format!("{:?}", Done { task, result, service_time: Duration::ZERO });
        assert!(text.contains("input of 3 bytes") && text.contains("Ok(5)"), "{text}");
        for byte in ["170", "187", "aa", "bb"] {
            assert!(!text.contains(byte), "{text}");
        }
    }
}
