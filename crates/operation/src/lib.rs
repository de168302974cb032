// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The vocabulary of a pool: what can be asked, of which key, and why it fails.
//!
//! Frames, clients, engines and backends share it. It holds data and their rules, no thread, no clock and no I/O:
//! a client, which lives in a foreign web server, gets nothing of the engine with it.
//!
//! - [`operation`]: operations, hashes, bounds of their input.
//! - [`key`]: key types, their classes, secret key bytes.
//! - [`sets`]: [`OperationSet`], [`HashAlgorithms`]: what a key may be used for.
//! - [`error`]: why a job or a key failed.
//! - [`backend_kind`]: which implementation served a job.
//! - [`der`]: the part of DER that key and signature formats need.
//! - [`traditional`]: PKCS#1 and SEC 1 private keys, wrapped into PKCS#8.
//! - [`stub`]: files and URIs that name a key of the pool.
//! - [`sync`]: a lock that a panic does not poison.
#![forbid(unsafe_code)]

pub mod backend_kind;
mod coded;
pub mod der;
pub mod error;
pub mod key;
pub mod operation;
pub mod sets;
pub mod stub;
pub mod sync;
pub mod traditional;

pub use backend_kind::BackendKind;
pub use error::{JobError, KeyError};
pub use key::{Class, Curve, KeyInfo, KeyKind, KeyType, MlDsaSet, PrivateKey};
pub use operation::{Hash, JobId, MlDsaInput, Operation, OperationKind, Output};
pub use sets::{HashAlgorithms, OperationSet};
