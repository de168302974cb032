// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads a host: the running machine, a mounted file system, a fixture or a support bundle.
//!
//! The crate handles files, processes and configuration syntax. It contains no cryptography and depends on no
//! other crate of Millrace.
//!
//! ```text
//! root/           bounded reads below one folder or bundle; no link leads out
//! unavailable.rs  reasons for which something could not be read
//! process.rs      processes; maps.rs: the files that they have mapped
//! systemd.rs      unit files, and the environment of a service; environment.rs: its syntax
//! nginx.rs, haproxy.rs, openssl_cnf.rs  configuration syntax, without its meaning
//! glob.rs         names of files with wildcards
//! child.rs        child processes with a time and an output limit
//! probe.rs        programs that provide data which no file contains
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
pub mod environment;
pub mod glob;
pub mod haproxy;
mod lexer;
pub mod maps;
pub mod nginx;
pub mod openssl_cnf;
mod probe;
pub mod process;
mod root;
pub mod systemd;
mod unavailable;

pub use probe::Probe;
pub use root::{
    ATTRIBUTE_BYTES, BundleError, Content, FileKind, LIBRARY_BYTES, MANIFEST, MAX_NAMES, Manifest,
    Names, OpenError, Record, Recorder, Root, TABLE_BYTES,
};
pub use unavailable::{ReadResult, Unavailable};
