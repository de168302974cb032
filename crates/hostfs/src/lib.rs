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
//! probe.rs        programs that are run for what no file says
//! child.rs        child processes with a time and an output limit
//! ```
//!
//! ```
//! use millrace_hostfs::{Root, TABLE_BYTES};
//! let root = Root::open("/")?;
//! match root.text("proc/cpuinfo", TABLE_BYTES) {
//!     Ok(text) => println!("{} lines", text.lines().count()),
//!     Err(reason) => println!("{reason}"),
//! }
//! # Ok::<(), millrace_hostfs::OpenError>(())
//! ```
#![forbid(unsafe_code)]

pub mod child;
mod probe;
mod root;
mod unavailable;

pub use probe::Probe;
pub use root::{
    ATTRIBUTE_BYTES, BundleError, Content, FileKind, LIBRARY_BYTES, MANIFEST, MAX_NAMES, Manifest,
    Names, OpenError, Record, Recorder, Root, TABLE_BYTES,
};
pub use unavailable::{ReadResult, Unavailable};
