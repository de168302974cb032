// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compression engines behind one trait, for gateways that send gzip.
//!
//! An [`Engine`](engine::Engine) compresses one chunk into raw deflate blocks that end at a byte. It keeps
//! nothing of a stream between two calls, so that its memory belongs to a thread and never to a response: a
//! server may forget a response half-way, and nothing leaks.
//!
//! ```text
//! chunk ──► Compressor ── policy: level, goal, length, kind of bytes ─────► ISA-L     level 1, packed, goal cpu
//!                │                                                         libdeflate  levels 2 to 9
//!                │                                                         QAT card    where it is asked for
//!                ├── verifies: decompresses and compares, all or a sample
//!                └── a result that is wrong or larger than its input: the other engine, or stored blocks
//! ```
//!
//! - [`engine`]: the contract. [`isal`], [`libdeflate`], [`qat`]: the engines.
//! - [`choice`]: which engine compresses a chunk. [`compressor`]: verification, what happens when one fails.
//! - [`blocks`]: deflate blocks as bits: stored blocks, and how a final block becomes one that is not.
//! - [`settings`]: what an administrator may set. What is counted, and how others read it: `edge::compression`.
//!
//! The crate knows no C interface of zlib; that is `crates/zlib`.

pub mod blocks;
pub mod choice;
pub mod compressor;
pub mod engine;
pub mod isal;
pub mod libdeflate;
pub mod qat;
pub mod settings;
