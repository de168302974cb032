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
//! The engine knows no socket, no file, and of backends only the codes of their kinds: backends are values handed to
//! [`Engine::start`]. What is deliberately absent: padding done by the caller, raw RSA on a key that the caller did not
//! import, and any timer that waits for a batch to fill.
//!
//! - [`operation`]: the vocabulary. What can be asked, and of which key.
//! - [`key`]: key types, secret key bytes.
//! - [`sets`]: [`OperationSet`], [`HashAlgorithms`]: what a key may be used for.
//! - [`backend`]: the contract that every implementation fulfils.
//! - [`engine`]: [`Engine`], [`Job`], [`Completion`]; the choice of a backend, and the workers.
//! - `queue`: the fair queue of one class; [`Owner`].
//! - [`error`]: why a backend, a job or a key failed.
//! - [`der`]: the part of DER that key and signature formats need.
//! - [`stats`]: counters and histograms.
//! - [`sync`]: a lock that a panic does not poison.
//! - [`traditional`]: PKCS#1 and SEC 1 private keys, wrapped into PKCS#8.
#![forbid(unsafe_code)]

pub mod backend;
mod coded;
pub mod der;
pub mod engine;
pub mod error;
pub mod key;
pub mod operation;
mod queue;
pub mod sets;
pub mod stats;
pub mod sync;
pub mod traditional;

pub use backend::{Backend, BackendKind};
pub use engine::{
    BackendEvent, Completion, CompletionSink, Engine, EngineConfig, EngineSession, Job, JobId, Key,
    Observer, Placement, WorkerThread,
};
pub use error::{BackendError, JobError, KeyError};
pub use key::{Curve, KeyInfo, KeyKind, KeyType, MlDsaSet, PrivateKey};
pub use operation::{Class, Hash, MlDsaInput, Operation, OperationKind, Output};
pub use queue::{Owner, PriorityLevel};
pub use sets::{HashAlgorithms, OperationSet};
