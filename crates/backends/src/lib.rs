// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends: the implementations that run jobs.
//!
//! Each backend is one folder with the same files:
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the type that implements [`Backend`](millrace_engine::backend::Backend) |
//! | `capabilities.rs` | the table of operations, key kinds and sizes that the backend offers |
//! | `keys.rs` | parsing, checking and holding keys |
//! | `queue.rs` | the hot path: submit and poll |
//! | `operations.rs` | one function per operation |
//! | `sys.rs` | the foreign interface, and the only `unsafe` |
//!
//! Two modules are shared by several backends. `padding` has PKCS#1, PSS and OAEP around the raw RSA
//! operation, in constant time where a secret is involved. `raw_rsa` applies it to the tasks of a backend
//! that computes only `x^d mod n`.

pub mod cuda;
mod padding;
mod raw_rsa;
pub mod simd;
pub mod software;

pub use cuda::Cuda;
pub use simd::Simd;
pub use software::Software;

use millrace_engine::{BackendError, JobError, KeyType, Operation};

/// [`Operation::check`], with the error as a [`BackendError`].
fn check(operation: &Operation, key_type: KeyType, input: &[u8]) -> Result<(), BackendError> {
    operation.check(key_type, input).map_err(|error| {
        if error == JobError::NotOffered {
            BackendError::NotOffered
        } else {
            BackendError::BadInput
        }
    })
}
