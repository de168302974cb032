// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Tasks of a queue with their keys.

use std::sync::Arc;

use millrace_engine::backend::Task;

use super::keys::{CudaKey, Resident};
use super::variants::SIZES;

/// A task with its key, looked up when the task was submitted. Closing the key later does not affect the
/// task.
pub(super) struct QueuedJob {
    pub(super) task: Task,
    pub(super) key: Option<Arc<CudaKey>>,
}

impl QueuedJob {
    pub(super) fn resident(&self) -> Option<&Resident> {
        self.key.as_ref()?.resident.as_ref()
    }

    /// The launches that the task may be in; `None` if its key is not on the device.
    pub(super) fn group(&self) -> Option<LaunchGroup> {
        let resident = self.resident()?;
        let half_bits = resident.size.variant.half_bits;
        let size = SIZES.iter().position(|bits| *bits == half_bits)?;
        Some(LaunchGroup { size, exponent: resident.exponent })
    }
}

/// Keys whose tasks may be in one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaunchGroup {
    /// Index of the size of key in [`SIZES`].
    pub(super) size: usize,
    /// The public exponent.
    pub(super) exponent: u64,
}
