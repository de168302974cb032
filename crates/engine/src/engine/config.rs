// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The settings of an engine, and the reasons for which it does not start.

use std::sync::Arc;
use std::{fmt, io, thread};

use thiserror::Error;

use super::status::Observer;

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Worker threads per class. Default: the cores available to this process.
    pub workers: usize,
    /// Jobs that may wait per class; more end as [`JobError::Busy`](millrace_operation::JobError::Busy). In a full
    /// queue an owner below its share by weight takes the place of another owner's newest job. Default 8192: at 0.3 ms
    /// each and one core that is 2.5 s of work, more than any handshake waits.
    pub queue_limit: usize,
    /// Jobs of one session that may wait per class. Default 4096: half of the above, so that no
    /// session can fill the queue alone.
    pub session_queue_limit: usize,
    /// Prepares the worker threads. `None` leaves them to the operating system.
    pub placement: Option<Arc<dyn Placement>>,
    /// Logs changes in the state of the backends.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            workers: thread::available_parallelism().map_or(1, usize::from),
            queue_limit: 8192,
            session_queue_limit: 4096,
            placement: None,
            observer: None,
        }
    }
}

/// Prepares worker threads: their processors and their scheduling. The engine makes no system calls, so the
/// program that starts it does.
pub trait Placement: Send + Sync + fmt::Debug {
    /// Prepares the calling thread. Called once by each worker, before its first job. Failures are ignored.
    fn place(&self, worker: WorkerThread);

    /// Whether regular workers give way to all other threads of the process. Then the express worker of a
    /// class computes the first jobs of an owner that has nothing in service, even if a regular worker is
    /// free: that one may not run before threads that decode another owner's flood sleep.
    fn express_first(&self) -> bool {
        false
    }
}

/// The role of a worker thread in its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerThread {
    /// Worker with this number, from 0: computes for as long as jobs wait.
    Regular(usize),
    /// The express worker: computes a few jobs of owners that have nothing in service, so it should run soon
    /// after it is woken.
    Express,
}

/// Why an engine did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// No backend can be used here. Holds the reasons, one per backend.
    #[error("no backend is usable on this machine: {0}")]
    NoBackend(String),
    /// The operating system refused a thread.
    #[error("cannot start a worker thread")]
    Thread(#[from] io::Error),
}
