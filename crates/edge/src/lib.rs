// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Formats that the edges in a gateway's process share with the tools that look at them from outside. A format enters
//! only if an edge writes or reads it, and a tool does the other. The crate is not an edge itself.
//!
//! - [`bulk_sizes`]: the file of sizes from which the kernel's ciphers pay.
//! - [`settings`]: the keys that the provider reads, and what each takes.
//! - [`servers`]: names of the server programs in which edges act, because a tool must see the same programs as
//!   they do.
//! - [`counters`]: the memory file in which the provider counts what it computes itself.
//! - [`local_counts`]: the numbers of that file as a tool reads them.
//! - [`compression`]: the memory file in which the compression library counts.
//!
//! The crate has no dependency, so that it weighs nothing in a gateway.
#![forbid(unsafe_code)]

pub mod bulk_sizes;
pub mod compression;
pub mod counters;
pub mod local_counts;
pub mod servers;
pub mod settings;
