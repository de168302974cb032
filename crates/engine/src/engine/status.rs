// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports of an engine on its backends: their state, its choices between them, and events.

use std::fmt;
use std::time::Duration;

use millrace_operation::BackendKind;
use thiserror::Error;

use crate::backend::{BackendDeviceStatus, Description};

/// State of one backend, for display.
#[derive(Clone, Debug)]
pub struct BackendStatus {
    /// Kind, version and batch size.
    pub description: Description,
    /// Reason for which the backend cannot be used; `None` if it can.
    pub unusable: Option<String>,
    /// Reason for which the backend does not serve at present, although it may later; `None` if it serves.
    pub away: Option<String>,
    /// Queues that are open.
    pub queues: usize,
    /// Reason for which the last queue that a worker asked for was refused; `None` if it was opened. Other workers may
    /// have theirs.
    pub queue_refused: Option<String>,
    /// Queues that the backend refused since the start.
    pub queues_refused: u64,
    /// Tasks that the backend held beyond the deadline of their jobs, since the start.
    pub lost: u64,
    /// Devices of the backend, if it tells them apart.
    pub devices: Vec<BackendDeviceStatus>,
    /// Whether the backend is passed over because a result of it failed verification, or it panicked.
    pub quarantined: bool,
}

/// Measured costs and the chosen backend, for jobs of one kind and number in a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendChoice {
    /// The jobs: `rsa-2048` (any private operation), `p-256 sign`, ….
    pub jobs: String,
    /// Upper batch size of this row; `None` for the last row, which has no limit.
    pub max_batch: Option<usize>,
    /// The backend that serves these jobs.
    pub serving: BackendKind,
    /// Number of times that the serving backend changed.
    pub switches: u64,
    /// Running median of the time that a backend needs for one job; only backends that were measured.
    pub costs: Vec<(BackendKind, Duration)>,
}

/// Logs changes in the state of a backend: the engine writes no log itself.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Takes an event. Called from the engine's threads, so it must not block or call back. Each event is a
    /// change or at least [`SWEEP_INTERVAL`](crate::SWEEP_INTERVAL) apart from the last of its kind, for one backend
    /// and worker.
    fn note(&self, backend: BackendKind, event: &BackendEvent);
}

/// A change in the state of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BackendEvent {
    /// The backend refused a queue to a worker, for this reason. The worker asks again a second later.
    #[error("refuses a queue: {0}")]
    QueueRefused(String),
    /// The backend does not serve at present, for this reason. Its jobs go to other backends.
    #[error("is away: {0}")]
    Away(String),
    /// The backend serves again.
    #[error("is back")]
    Back,
    /// The engine passes over the backend for this long: a result failed verification, it panicked or it lost a task.
    #[error("is passed over for {} s after a fault", .0.as_secs())]
    Quarantined(Duration),
    /// The backend held this number of tasks beyond the deadline of their jobs.
    #[error("did not answer {0} tasks before their deadline")]
    Lost(usize),
}
