// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Formats that the provider, an edge in a gateway's process, shares with the tools that look at it from outside.
//!
//! - [`settings`]: the keys that it reads, and what each takes.
//! - [`counters`]: the memory file in which it counts what it computes itself.
//! - [`local_counts`]: the numbers of that file as a tool reads them.
//!
//! The crate has no dependency, so that it weighs nothing in a gateway.
#![forbid(unsafe_code)]

pub mod counters;
pub mod local_counts;
pub mod settings;
