// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reads a host: the running machine, a mounted file system, a fixture or a support bundle; writes files that commands
//! generate.
//!
//! The crate handles files, processes and configuration syntax. It contains no cryptography and depends on no
//! other crate of Millrace. Generated files are here and in no separate crate, since they are compared with
//! the files of the host, tested by its programs and restored after a refusal, all with the modules below (ADR 40).
//!
//! ```text
//! files      root/         bounded reads below one folder or bundle; no link leads out
//!            unavailable   reasons for which something could not be read
//!            glob          names of files with wildcards
//!            ordinary      one ordinary file at a path; nothing in its place makes the reader wait
//!            trusted       whether another user could replace a folder
//!            replace       a file replaced as a whole, or put under a free name
//!            output_path   whether a user can write where a result is to go
//!            generated/    files that a command generates: compared, written, tested, restored
//! processes  process       processes; maps: the files that they have mapped
//!            cpu_list      lists of processors
//! changes    change/       a change applied, confirmed or taken back; records on disk
//! configs    systemd       unit files, and the environment of a service; environment: its syntax
//!            nginx, haproxy, openssl_cnf  configuration syntax, without its meaning
//!            accounts      local users
//! programs   child         child processes with a time and an output limit
//!            probe         programs that provide data which no file contains
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

pub mod accounts;
pub mod certbot;
pub mod change;
pub mod child;
pub mod cpu_list;
pub mod environment;
pub mod generated;
pub mod glob;
pub mod haproxy;
mod kind;
mod lexer;
pub mod maps;
pub mod nginx;
pub mod openssl_cnf;
pub mod ordinary;
pub mod output_path;
mod probe;
pub mod process;
pub mod replace;
mod root;
pub mod systemd;
pub mod trusted;
mod unavailable;

pub use kind::FileKind;
pub use probe::Probe;
pub use root::{
    ATTRIBUTE_BYTES, BundleError, Content, KERNEL_PARAMETERS, LIBRARY_BYTES, MANIFEST, MAX_NAMES,
    Manifest, Names, OpenError, Record, Recorder, Root, TABLE_BYTES,
};
pub use unavailable::{ReadResult, Unavailable};
