// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The backends: the implementations that run jobs.
//!
//! Each backend is one folder. The files that all five have:
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the type that implements [`Backend`](millrace_engine::backend::Backend) |
//! | `capabilities.rs` | the table of operations, key kinds and sizes that the backend offers |
//! | `keys.rs` | parsing, checking and holding keys |
//! | `queue.rs` or `queue/` | the hot path: submit and poll |
//! | `sys.rs` or `sys/` | the foreign interface or the intrinsics, and the only `unsafe` |
//!
//! All but `kernel` and `qat` have `operations.rs`, which does the operations or encodes and decodes around them. The
//! documentation of `cuda`, `kernel`, `qat` and `simd` lists their other files.
//!
//! Modules that several backends share:
//!
//! | module | contents |
//! |---|---|
//! | `arguments` | the check of an operation and its input, which each backend repeats |
//! | `blinding` | RSA keys with blinding and verification by the host, for devices that do neither |
//! | `counters` | what a device has done, for display |
//! | `known_answer` | one operation that a device computes before it serves |
//! | `key_table` | the open keys by name, at most 65 536 per backend |
//! | `raw_rsa` | applies `software::padding` to the tasks of a backend that computes only `x^d mod n` |
//! | `software` | for the others: parses and checks their keys, does single operations on AWS-LC, and pads around raw RSA |

mod arguments;
mod blinding;
mod counters;
pub mod cuda;
pub mod kernel;
mod key_table;
mod known_answer;
pub mod qat;
mod raw_rsa;
pub mod simd;
pub mod software;
