// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measurements that verify their answers.
//!
//! ```text
//!  millrace bench tls                             millrace bench pool
//!    load generator ──TLS──► HAProxy / nginx        A: the library, called directly
//!         │                    │  provider          B: client ──unix socket──► node
//!         │ checks every       ▼                    outputs of A and B are both checked
//!         └ signature         node (counts)
//!
//!  millrace bench crypto                          millrace bench sizes
//!    AWS-LC and OpenSSL called directly ·           each crypto library in a separate process,
//!    each backend's queue · an engine               by the size of its input
//!    under load · a node
//! ```
//!
//! | module | what |
//! |---|---|
//! | `cli` | the door for the binary: options, and the functions that run a benchmark |
//! | `options` | bounds and parsers of options that several benchmarks have |
//! | `bench_key`, `arrivals` | types of keys; random times at which jobs arrive |
//! | `workload` | keys, requests, verification, and the implementations that compute them |
//! | `compression`, `crypto`, `manager`, `pool`, `sizes`, `tls`, `virtio`, `vpn` | one benchmark each |
//! | `libcrypto` | any OpenSSL of this machine, opened at run time; the only unsafe code of this crate |
//! | `node`, `process`, `relay`, `cores` | what runs beside, and on which core |
//! | `keys`, `speed` | keys and certificates of one run; `openssl speed` |
//! | `stats`, `table`, `goals`, `machine`, `report`, `plot` | ranges, tables, goals, the machine, text and JSON, charts |
//! | `progress`, `error` | the course of a run and the signals that end it; why it yields no figures |
//!
//! Three rules hold for every figure that leaves this crate:
//!
//! - *Verified*: a round whose outputs were wrong yields no figure, it ends the run.
//! - *Paired*: contenders ran in the same run, on the same pinned cores, in interleaved rounds
//!   (A B A B); their figures are given as a ratio with median, minimum and maximum.
//! - *Repeatable*: the report names machine, kernel, versions and commit, and keeps the raw rounds.
//!
//! The crate is neither a load tester for a network nor a tuner. Everything runs on this machine, over loopback, unix
//! sockets and (`vpn`) two network namespaces, in a temporary directory.

mod arrivals;
mod bench_key;
pub mod cli;
mod compression;
mod cores;
mod crypto;
mod error;
mod goals;
mod keys;
mod libcrypto;
mod machine;
mod manager;
mod node;
mod options;
pub mod plot;
mod pool;
mod process;
mod progress;
mod relay;
mod report;
mod sizes;
mod speed;
mod stats;
mod table;
mod tls;
mod virtio;
mod vpn;
mod workload;

pub use error::{BenchError, LibraryError};
