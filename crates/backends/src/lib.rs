// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The implementations that run jobs.
//!
//! Each backend is one folder with the same rooms:
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the type that implements [`Backend`](millrace_engine::backend::Backend) |
//! | `capabilities.rs` | what it can do, as a table |
//! | `keys.rs` | parsing, checking and holding keys |
//! | `queue.rs` | the fast face: submit and poll |
//! | `operations.rs` | one function per operation |
//! | `sys.rs` | the foreign interface, and the only `unsafe` |
//!
//! What backends share is beside the folders: `padding` (PKCS#1, PSS and OAEP
//! around the raw RSA operation, in constant time where a secret is involved), and `raw_rsa`, which uses it
//! for tasks of a backend that only computes `x^d mod n`.

pub mod cuda;
mod padding;
mod raw_rsa;
pub mod simd;
pub mod software;

pub use cuda::Cuda;
pub use simd::Simd;
pub use software::Software;

use millrace_engine::{BackendError, JobError, KeyType, Operation};

/// [`Operation::check`], as a backend answers it.
fn check(operation: &Operation, key_type: KeyType, input: &[u8]) -> Result<(), BackendError> {
    operation.check(key_type, input).map_err(|error| {
        if error == JobError::NotOffered {
            BackendError::NotOffered
        } else {
            BackendError::BadInput
        }
    })
}
