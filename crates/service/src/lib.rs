// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The service behind every front end of a node, without sockets and without an async runtime.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod client_reports;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod keys;
pub mod log_limit;
pub mod metrics;
pub mod outbox;
pub mod quota;
pub mod session;
pub mod status;
pub mod store;

pub use status::Status;
pub use store::{KekSource, KeyMeta, KeyStore};
