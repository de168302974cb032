// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Memory of ours for one data request at a time, and the way of such a request through the device.

use std::time::Instant;

use super::chain::{MemorySnapshot, RequestParts, Stretch};
use crate::device::{DataOutcome, Device};
use crate::primitives::CipherContext;

/// Memory for one data request.
#[derive(Default)]
pub(super) struct Scratch {
    /// The bytes of a request at the start. What follows them is left of former ones.
    pub(super) request: Vec<u8>,
    pub(super) parts: RequestParts,
}

impl Scratch {
    /// Handles the data request whose descriptors are in `parts`, which have room for a status.
    pub(super) fn handle(
        &mut self,
        device: &mut Device,
        memory: &MemorySnapshot,
        now: Instant,
    ) -> DataOutcome {
        let Self { request, parts } = self;
        let writable = parts.room.len().saturating_sub(1);
        let len = if let Some(stretch) = parts.stretch(memory)
            && let Some(head) = parts.read_head(&**memory, request)
        {
            let Stretch { source, target } = &stretch;
            let run =
                |cipher: &mut CipherContext, iv: &[u8]| cipher.run_volatile(iv, source, target);
            let done = device.data_apart(&request[..head], source.len(), writable, now, run);
            if let Some(outcome) = done {
                return outcome;
            }
            parts.read_rest(&**memory, request, head)
        } else {
            parts.read(&**memory, request)
        };
        match len {
            Some(len) => device.data(&mut request[..len], writable, now),
            None => {
                device.count_malformed();
                DataOutcome::failed()
            }
        }
    }
}
