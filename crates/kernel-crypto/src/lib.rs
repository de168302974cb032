// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Ciphers, digests and MACs of the kernel for whole messages: `AF_ALG`, and the `/dev/crypto` of cryptodev-linux.
//!
//! | file | contents |
//! |---|---|
//! | `algorithm.rs` | the algorithms and the two interfaces, with their names and numbers |
//! | `session.rs` | a key in the kernel, and the messages that it serves |
//! | `crossovers.rs` | sizes from which the kernel was measured to be faster, and the file that keeps them |
//! | `sys.rs` | the system calls |
//!
//! A [`BulkSession`] has one key and one algorithm, and serves one message per call. The call blocks until the kernel
//! has the result. After a failure the input is unchanged, so that another implementation can compute the result.

mod algorithm;
pub mod crossovers;
mod session;
#[expect(unsafe_code, reason = "makes system calls")]
mod sys;

pub use algorithm::{BulkAlgorithm, BulkDirection, BulkInterface, BulkKind};
pub use session::{BLOCK_LEN, BulkSession, MAX_AAD_LEN, MAX_MESSAGE, NONCE_LEN, TAG_LEN};
