// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! zlib's interface over Millrace's compression engines, to preload into a stock web server.
//!
//! ```text
//! nginx's gzip filter ── deflateInit2_, deflate, deflateEnd ──► this library ── chunks ──► engines of a thread
//! image filter, perl  ── any other use of zlib             ──►      └─────────────────────► the system's zlib
//! ```
//!
//! The library takes a stream over when `program` says that the stream is a response of a web server that it knows;
//! every other call goes on to the system's zlib as it came. All that belongs to a stream that was taken over lies in
//! one block of the caller's `zalloc`, since nginx forgets streams without ending them: see
//! `docs/adr/0024-compression-in-the-gateway.md`.
//!
//! - `stream`: what happens to the bytes of one stream; safe code on slices.
//! - `program`: which programs and which of their streams.
//! - [`ffi`]: zlib's functions, the system's zlib, counters that other processes can read.

#[expect(unsafe_code, reason = "zlib's C interface; the only room for it in this crate")]
pub mod ffi;
mod program;
mod stream;
