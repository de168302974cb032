// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The contract that every backend fulfils. It has two faces.
//!
//! *Slow face*, [`Backend`]: describe, probe, open and close keys, open queues. Called rarely, from
//! any thread, may block.
//!
//! *Fast face*, [`Queue`]: submit a batch, poll completions. Owned by one worker thread, no locks
//! in between. A backend with a device behind it answers `poll` from its completion ring; one that
//! computes on the CPU does the work of **one task or one batch of lanes inside `poll`**, so that the
//! worker can hand out early results while later ones are computed.
//!
//! Every backend verifies an RSA private result with one public operation before it returns it, and
//! answers [`BackendError::Fault`] instead of a result that does not verify.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::coded_enum;
use crate::error::{BackendError, KeyError};
use crate::key::{KeyInfo, KeyType, PrivateKey};
use crate::operation::{Operation, OperationKind, Output};

coded_enum! {
    /// Which implementation served a job (`served_by`).
    pub enum BackendKind {
        /// A well-kept library on the CPU, one operation at a time.
        Software = 0x01 "software",
        /// Several operations at once in the lanes of vector registers.
        Simd = 0x02 "simd",
        /// An NVIDIA GPU.
        Cuda = 0x03 "cuda",
        /// Linux kernel crypto.
        Kernel = 0x04 "kernel",
        /// An Intel QAT device.
        Qat = 0x05 "qat",
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The slow face of a backend.
pub trait Backend: Send + Sync + fmt::Debug {
    /// What this is: constant for the life of the value.
    fn describe(&self) -> Description;

    /// What it can do, as data: constant for the life of the value.
    fn capabilities(&self) -> &[Capability];

    /// Whether it can be used on this machine now.
    ///
    /// # Errors
    /// A reason that a person can act on. Missing hardware is an answer, not a failure.
    fn probe(&self) -> Result<(), Unusable>;

    /// Parses, checks and loads a key.
    ///
    /// # Errors
    /// What is wrong with the key, or [`KeyError::NotOffered`] if this backend lacks its type.
    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError>;

    /// Forgets a key and zeroises what was derived from it once no task uses it. Unknown keys are
    /// ignored.
    fn close_key(&self, key: BackendKey);

    /// Opens a queue for one worker thread.
    ///
    /// # Errors
    /// Why there is none to be had (for instance all instances of a device are taken).
    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable>;
}

/// The fast face of a backend: one submission and completion queue, owned by one worker.
pub trait Queue: Send {
    /// How many tasks it holds in flight at most. At least 1, constant.
    fn capacity(&self) -> usize;

    /// Takes as many tasks from the front of `tasks` as it has room for, and returns how many.
    /// What it does not take stays: backpressure is a return value. Never blocks.
    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize;

    /// Makes progress and appends what is done, in any order. Returns how many tasks are still in
    /// flight. A CPU backend computes one task, or one batch of lanes, per call.
    fn poll(&mut self, done: &mut Vec<Done>) -> usize;
}

/// What a backend is.
#[derive(Clone, Debug)]
pub struct Description {
    /// Its kind, which is also its name.
    pub kind: BackendKind,
    /// Library or device with its version, for people (`AWS-LC 1.2`, `H100`).
    pub version: String,
    /// Whether `poll` computes on the calling CPU (then a lone fast job may run on the thread that
    /// brought it, without waking a worker).
    pub on_cpu: bool,
    /// Tasks of one size that it computes together at little more than the cost of one; 1 if it
    /// gains nothing by that. A worker takes that many while they wait, rather than share them, for a
    /// backend on the CPU; a device is filled by all workers together.
    pub batch: usize,
}

/// One row of what a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// The operation.
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
    /// Its name in the backend.
    pub key: BackendKey,
    /// Its type and public half.
    pub info: KeyInfo,
}

/// A job as a backend sees it: no session, no tenant, no deadline. `Debug` shows no input.
pub struct Task {
    /// Given back in [`Done`]; unique among the tasks in flight in one queue.
    pub token: u32,
    /// The key, as named by [`Backend::open_key`].
    pub key: BackendKey,
    /// What to do.
    pub operation: Operation,
    /// The input; [`Operation::check`] has been passed.
    pub input: Vec<u8>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            token,
            key,
            operation,
            input,
        } = self;
        let (key, kind, len) = (key.0, operation.kind(), input.len());
        write!(
            f,
            "Task({token}, {kind} with key {key}, input of {len} bytes)"
        )
    }
}

/// A task that ended. `Debug` shows the length of the output, never its bytes.
pub struct Done {
    /// The task itself, so that it can be tried elsewhere without a copy.
    pub task: Task,
    /// The verified result, or why there is none.
    pub result: Result<Output, BackendError>,
    /// Time the backend worked on it (its share of a batch's time counts whole).
    pub service_time: Duration,
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            task,
            result,
            service_time,
        } = self;
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
        let text = format!(
            "{:?}",
            Done {
                task,
                result,
                service_time: Duration::ZERO
            }
        );
        assert!(
            text.contains("input of 3 bytes") && text.contains("Ok(5)"),
            "{text}"
        );
        for byte in ["170", "187", "aa", "bb"] {
            assert!(!text.contains(byte), "{text}");
        }
    }
}
