// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The engine: takes typed jobs, chooses a backend for each, batches, retries, counts.
//!
//! ```text
//!  server ──Job──►  Engine ──► one queue per class ──► worker ──Task──► Backend (Queue)
//!    ▲                          (fair between owners,    │
//!    └──────── Completion ◄──── then sessions; bounded)◄────┘  exactly one per job, by its deadline
//! ```
//!
//! It knows no socket, no file and no concrete backend: backends are values handed to
//! [`Engine::start`]. What is deliberately absent: padding done by the caller, raw RSA on a key that
//! the caller did not import, and any timer that waits for a batch to fill.
//!
//! - [`operation`]: the vocabulary. What can be asked, and of which key.
//! - [`key`]: key types, secret key bytes, [`KeyPolicy`].
//! - [`backend`]: the contract that every implementation fulfils.
//! - [`engine`]: [`Engine`], [`Job`], [`Completion`].
//! - [`der`]: the part of DER that key and signature formats need.
//! - [`stats`]: counters and histograms.
#![forbid(unsafe_code)]

pub mod backend;
mod coded;
pub mod der;
pub mod engine;
pub mod error;
pub mod key;
pub mod operation;
pub mod policy;
mod queue;
pub mod stats;

pub use backend::{Backend, BackendKind};
pub use engine::{
    Completion, CompletionSink, Engine, EngineConfig, Job, JobId, Key, Placement, Session,
    WorkerThread,
};
pub use error::{BackendError, JobError, KeyError};
pub use key::{Curve, KeyInfo, KeyKind, KeyType, MlDsaSet, PrivateKey};
pub use operation::{Class, Hash, MlDsaInput, Operation, OperationKind, Output};
pub use policy::{HashSet, KeyPolicy, OperationSet};
pub use queue::Owner;
