// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations that a server computed in its own process, and what its preload library spared it.

use std::path::Path;

use millrace_edge::counters::{MAX_BYTES, MEMORY_NAME};
use millrace_edge::local_counts::LocalCounts;
use millrace_hostfs::process::Proc;

/// Counters of the provider in a process and in those that share its memory; none if it computes nothing there.
///
/// # Panics
/// If there is no `/proc`.
#[must_use]
pub fn local_counts(id: u32) -> Option<LocalCounts> {
    let proc = Proc::open(Path::new("/proc")).expect("/proc");
    let memory = proc.memory_file(id, MEMORY_NAME.to_str().ok()?, MAX_BYTES)?;
    LocalCounts::parse(&memory.bytes)
}
