// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The vocabulary of a pool: what can be asked, of which key, and why it fails.
//!
//! Frames, clients, engines and backends share it. It holds data and their rules, no thread, no clock and no I/O:
//! a client, which lives in a foreign web server, gets nothing of the engine with it.
//!
//! - `coded`: one declaration of an enum with its codes and names.
//! - `operation`: operations, hashes, bounds of their input.
//! - `key`: key types, their classes, secret key bytes.
//! - `sets`: [`OperationSet`], [`HashAlgorithms`]: what a key may be used for.
//! - `endpoint`: [`EndpointParts`], the address of a node.
//! - `error`: why a job or a key failed.
//! - `backend_kind`: which implementation served a job.
//! - [`der`]: the part of DER that key and signature formats need.
//! - [`traditional`]: PKCS#1 and SEC 1 private keys, wrapped into PKCS#8.
//! - [`stub`]: files and URIs that name a key of the pool.
//! - [`sync`]: a lock that a panic does not poison, for the crates above this one; leaves that do not depend on it
//!   (`deflate`, `qat`, `hostfs`) have their own line.
#![forbid(unsafe_code)]

mod backend_kind;
mod coded;
pub mod der;
mod endpoint;
mod error;
mod key;
mod operation;
mod sets;
pub mod stub;
pub mod sync;
pub mod traditional;

pub use backend_kind::BackendKind;
pub use endpoint::EndpointParts;
pub use error::{JobError, KeyError};
pub use key::{
    Class, Curve, KeyInfo, KeyKind, KeyType, MAX_DSA_BITS, MAX_KEY_NAME_LEN, MAX_MODULUS_BITS,
    MAX_PRIVATE_KEY_LEN, MIN_MODULUS_BITS, MlDsaSet, PrivateKey,
};
pub use operation::{
    Hash, JobId, MAX_INPUT_LEN, MAX_LABEL_LEN, ML_DSA_MU_LEN, MlDsaInput, Operation, OperationKind,
    Output, Purpose,
};
pub use sets::{HashAlgorithms, OperationSet};
