// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The vocabulary of the pool: what can be asked, of which key, and why it fails. Client, protocol, node and backends
//! share it; nothing here computes, waits or reads a clock.
//!
//! - [`operation`]: [`Operation`] with its parameters and the bounds on its input.
//! - [`key`]: key types, secret key bytes.
//! - [`sets`]: [`OperationSet`], [`HashAlgorithms`]: what a key may be used for.
//! - [`backend_kind`]: [`BackendKind`], the name of the implementation that served a job.
//! - [`error`]: why a backend, a job or a key failed.
//! - [`coded_enum!`]: an enum whose values have a code and a name.
//! - [`der`]: the part of DER that key and signature formats need.
//! - [`traditional`]: PKCS#1 and SEC 1 private keys, wrapped into PKCS#8.
//! - [`sync`]: a lock that a panic does not poison.
#![forbid(unsafe_code)]

pub mod backend_kind;
mod coded;
pub mod der;
pub mod error;
pub mod key;
pub mod operation;
pub mod sets;
pub mod sync;
pub mod traditional;

pub use backend_kind::BackendKind;
pub use error::{BackendError, JobError, KeyError};
pub use key::{Curve, KeyInfo, KeyKind, KeyType, MlDsaSet, PrivateKey};
pub use operation::{Class, Hash, JobId, MlDsaInput, Operation, OperationKind, Output};
pub use sets::{HashAlgorithms, OperationSet};
