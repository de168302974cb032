// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The engine: takes typed jobs, chooses a backend for each, batches, retries, counts.
//!
//! ```text
//!   Job ──► Engine ──► one bounded queue per class ──► worker ──Task──► Backend
//!                                                        │                 │
//!   Completion ◄─────────────────────────────────────────┴◄──────Done──────┘
//! ```
//!
//! A queue is fair between owners, then between the sessions of one owner. There is exactly one completion per
//! job, by its deadline.
//!
//! The engine knows no socket and no file. Backends are values handed to [`Engine::start`]. Deliberately absent:
//! padding done by the caller, raw RSA on a key that the caller did not import, and any timer that waits for a batch to
//! fill.
//!
//! - [`backend`]: the contract that every implementation fulfils.
//! - `engine`: [`Engine`], [`Job`], [`Completion`]; the choice of a backend, and the workers.
//! - `queue`: the fair queue of one class; [`Owner`].
//! - `error`: why a backend failed.
//! - [`stats`]: counters and histograms.
//!
//! The vocabulary (operations, keys, errors of jobs) is the crate [`millrace_operation`].
#![forbid(unsafe_code)]

pub mod backend;
mod engine;
mod error;
mod queue;
pub mod stats;

pub use engine::{
    BackendChoice, BackendEvent, BackendStatus, Completion, CompletionSink, Engine, EngineConfig,
    EngineSession, Job, Key, Observer, Placement, SWEEP_INTERVAL, StartError, WorkerThread,
};
pub use error::BackendError;
pub use queue::{Owner, PriorityLevel};
