// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The memory file of [`SharedCells`]: made once, by the first provider that computes something itself.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use millrace_edge::counters::MEMORY_NAME;

use crate::shared_cells::{LEN, SharedCells};

/// The cells of this process and its children. `None` if the kernel gives no memory file.
pub(crate) fn shared() -> Option<SharedCells> {
    static CELLS: OnceLock<Option<SharedCells>> = OnceLock::new();
    *CELLS.get_or_init(|| Some(SharedCells::on(memory()?)))
}

fn memory() -> Option<&'static [AtomicU64; LEN]> {
    let bytes = LEN * size_of::<AtomicU64>();
    // SAFETY: a C string.
    let file = unsafe { libc::memfd_create(MEMORY_NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let len = libc::off_t::try_from(bytes).ok()?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the descriptor was made above. It stays open, so that readers find it.
    let sized = unsafe { libc::ftruncate(file, len) } == 0;
    // SAFETY: a new mapping of a file that is this long.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0) };
    if !sized || start == libc::MAP_FAILED {
        // SAFETY: made above, and no other code knows it.
        unsafe { libc::close(file) };
        return None;
    }
    // SAFETY: zeroed, aligned to a page, as long as the array, and never unmapped; all accesses are atomic.
    Some(unsafe { &*start.cast() })
}
