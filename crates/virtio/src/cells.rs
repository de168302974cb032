// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Counters as numbers, in the journal of a device or in this process alone.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory};

/// Counters by their index, which is below the number that they were made for.
pub(crate) enum KeptCells {
    Own(Vec<AtomicU64>),
    /// Eight bytes for each, from `start` on, in memory that has room for all.
    Kept {
        memory: GuestMemoryMmap,
        start: u64,
    },
}

impl KeptCells {
    /// Counters of this process.
    pub(crate) fn own(count: usize) -> Self {
        Self::Own((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    fn with(&self, index: usize, run: impl FnOnce(&AtomicU64) -> u64) -> u64 {
        match self {
            Self::Own(cells) => cells.get(index).map_or(0, run),
            Self::Kept { memory, start } => {
                let slice = memory.get_slice(GuestAddress(start + 8 * index as u64), 8);
                slice.map_or(0, |slice| slice.get_atomic_ref::<AtomicU64>(0).map_or(0, run))
            }
        }
    }

    /// Counts.
    pub(crate) fn add(&self, index: usize, count: u64) {
        self.with(index, |cell| cell.fetch_add(count, Ordering::Relaxed));
    }

    /// One counter.
    pub(crate) fn get(&self, index: usize) -> u64 {
        self.with(index, |cell| cell.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for KeptCells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptCells")
    }
}
