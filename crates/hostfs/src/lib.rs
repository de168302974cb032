// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads a host: the running machine, a mounted file system, a fixture or a support bundle.
//!
//! The crate knows files, processes and configuration syntax. It knows no cryptography and depends on no
//! other crate of Millrace.
//!
//! ```text
//! root/           bounded reads below one folder or bundle; no link leads out
//! unavailable.rs  why something could not be read
//! live.rs         programs that are run for what no file says
//! ```
#![forbid(unsafe_code)]

pub mod live;
pub mod root;
mod unavailable;

pub use unavailable::Why;
