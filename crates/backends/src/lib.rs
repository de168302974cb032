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
//! What backends share is beside the folders: `der` (key formats), `padding` (PKCS#1, PSS and OAEP
//! around a bare RSA operation, in constant time where a secret is involved), and `bare`, which uses it
//! for tasks on a backend that only computes the bare operation.

mod bare;
pub mod cuda;
mod der;
mod padding;
pub mod simd;
pub mod software;

pub use cuda::Cuda;
pub use simd::Simd;
pub use software::Software;
