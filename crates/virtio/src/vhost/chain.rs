// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests in guest memory. Every descriptor and every byte of a request is read once, so that a guest that changes
//! them afterwards changes nothing (CVE-2020-14375). Both are copied first, except the source of a cipher. No decision
//! depends on that source, so the cipher may read it in the guest's memory and write its result there.

use std::ops::Deref;
use std::sync::Arc;

use vhost_user_backend::{VringRwLock, VringT};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryAtomic,
    GuestMemoryBackend, GuestMemoryLoadGuard, GuestMemoryMmap, GuestRegionMmap, VolatileSlice,
};

use crate::request::MAX_REQUEST_LEN;
use crate::spec::Status;

/// Descriptors of one request: as many as the largest ring has. The specification allows no more, also for an
/// indirect table.
const MAX_DESCRIPTORS: usize = super::MAX_QUEUE_SIZE as usize;

/// The guest's memory as it is now.
pub(super) type MemorySnapshot = GuestMemoryLoadGuard<GuestMemoryMmap>;

/// A request as the guest's rings have it.
pub(super) type Chain = DescriptorChain<MemorySnapshot>;

/// The part of a request that the guest left for the answer.
#[derive(Debug, Default)]
pub(crate) struct Room {
    parts: Vec<(GuestAddress, usize)>,
    len: usize,
}

/// The descriptors of one request, each read once.
#[derive(Debug, Default)]
pub(crate) struct RequestParts {
    /// Buffers that the guest wrote.
    readable: Vec<(GuestAddress, usize)>,
    pub(crate) room: Room,
}

/// A cipher's source and target of the same length, each in one piece, where the guest has them.
pub(crate) struct Stretch<'m> {
    pub(crate) source: VolatileSlice<'m>,
    pub(crate) target: VolatileSlice<'m>,
}

/// Shortest source that a cipher reads where it is, in bytes. Below, the copy costs less than a second look at the
/// head of the request.
const SHORTEST_STRETCH: usize = 512;

/// The chains with these heads, once more. The ring of available requests may no longer have them: a slow request is
/// overtaken by faster ones. So they stand in a ring of our own, beside the guest's memory.
pub(crate) fn read_again(
    queue: &Queue,
    memory: &GuestMemoryMmap,
    heads: &[u16],
) -> Option<Vec<Chain>> {
    let place = memory.last_addr().checked_align_up(1 << 21)?;
    let len = (2 * heads.len() + 8).next_multiple_of(4096);
    let region = GuestRegionMmap::from_range(place, len, None).ok()?;
    let memory = memory.insert_region(Arc::new(region)).ok()?;
    memory.write_obj(u16::try_from(heads.len()).ok()?, place.unchecked_add(2)).ok()?;
    for (index, head) in (0_u64..).zip(heads) {
        memory.write_obj(*head, place.unchecked_add(4 + 2 * index)).ok()?;
    }
    let memory = GuestMemoryAtomic::new(memory);
    let mut again = Queue::new(queue.max_size()).ok()?;
    again.set_size(queue.size());
    again.try_set_desc_table_address(GuestAddress(queue.desc_table())).ok()?;
    again.try_set_avail_ring_address(place).ok()?;
    again.set_ready(true);
    let pop = |_| again.pop_descriptor_chain(memory.memory());
    heads.iter().map(pop).collect()
}

/// Up to `most` next requests of a ring; none also of a ring that is stopped or whose indices are wrong.
pub(super) fn pop(ring: &VringRwLock, memory: &MemorySnapshot, most: usize) -> Vec<Chain> {
    let mut ring = ring.get_mut();
    let chains = ring.get_queue_mut().iter(memory.clone());
    chains.map(|chains| chains.take(most).collect()).unwrap_or_default()
}

impl RequestParts {
    /// Reads the descriptors of a chain in place of those that were here. `false` if they do not parse: then the answer
    /// goes where it can.
    pub(crate) fn take<M>(&mut self, chain: DescriptorChain<M>) -> bool
    where
        M: Deref,
        M::Target: GuestMemory,
    {
        let Self { readable, room } = self;
        readable.clear();
        room.parts.clear();
        room.len = 0;
        let mut read = 0;
        let mut good = true;
        for (count, descriptor) in chain.enumerate() {
            if count >= MAX_DESCRIPTORS {
                return false;
            }
            let len = descriptor.len() as usize;
            if descriptor.is_write_only() {
                // A chain has at most 4 GiB, so the sum fits.
                room.len += len;
                room.parts.push((descriptor.addr(), len));
                continue;
            }
            // The specification has all readable descriptors before the writable ones.
            good = good && room.parts.is_empty() && read + len <= MAX_REQUEST_LEN;
            if good {
                readable.push((descriptor.addr(), len));
                read += len;
            }
        }
        good
    }

    /// Reads the bytes of the request to the start of `request`, which grows as needed and keeps its memory. Returns
    /// their number; `None` if the guest's addresses are not in its memory.
    pub(crate) fn read<M: GuestMemory>(&self, memory: &M, request: &mut Vec<u8>) -> Option<usize> {
        copy(memory, &self.readable, request, 0)
    }

    /// As [`Self::read`], without the last of the guest's buffers.
    pub(crate) fn read_head<M: GuestMemory>(
        &self,
        memory: &M,
        request: &mut Vec<u8>,
    ) -> Option<usize> {
        copy(memory, self.readable.split_last()?.1, request, 0)
    }

    /// Reads the last of the guest's buffers behind a head of this length.
    pub(crate) fn read_rest<M: GuestMemory>(
        &self,
        memory: &M,
        request: &mut Vec<u8>,
        head: usize,
    ) -> Option<usize> {
        copy(memory, self.readable.get(self.readable.len().checked_sub(1)?..)?, request, head)
    }

    /// The last buffer that the guest wrote, and as much of the first one for the answer: source and target of a
    /// cipher, if this is one. `None` if they are short, not in one piece of memory, or overlap in part.
    pub(crate) fn stretch<'m>(&self, memory: &'m GuestMemoryMmap) -> Option<Stretch<'m>> {
        let (from, len) = *self.readable.last()?;
        let (to, room) = *self.room.parts.first()?;
        if len < SHORTEST_STRETCH
            || room < len
            || (from != to && from.0.abs_diff(to.0) < len as u64)
        {
            return None;
        }
        Some(Stretch {
            source: memory.get_slice(from, len).ok()?,
            target: memory.get_slice(to, len).ok()?,
        })
    }
}

/// Copies buffers to `request` from `start` on, and returns the end.
fn copy<M: GuestMemory>(
    memory: &M,
    buffers: &[(GuestAddress, usize)],
    request: &mut Vec<u8>,
    start: usize,
) -> Option<usize> {
    let end = start + buffers.iter().map(|(_, len)| len).sum::<usize>();
    if request.len() < end {
        // At once, so that no part of a key stays in memory that a later growth gives back.
        request.resize(end, 0);
    }
    let mut rest = &mut request[start..end];
    for (address, len) in buffers {
        let (part, later) = rest.split_at_mut(*len);
        memory.read_slice(part, *address).ok()?;
        rest = later;
    }
    Some(end)
}

impl Room {
    /// Bytes for the answer, including the status.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes the answer to a control request: bytes at the start. Returns the length to report.
    pub(crate) fn control<M: GuestMemory>(&self, memory: &M, answer: &[u8]) -> u32 {
        self.write(memory, 0, answer)
    }

    /// Writes the answer to a data request: the result at the start, the status as the last byte of the room.
    /// Returns the length to report, which is that of the result and the status (Linux computes the length of the
    /// result from it).
    pub(crate) fn data<M: GuestMemory>(&self, memory: &M, result: &[u8], status: Status) -> u32 {
        let Some(last) = self.len.checked_sub(1) else {
            return 0;
        };
        let result = &result[..result.len().min(last)];
        let written = self.write(memory, 0, result);
        written + self.write(memory, last, &[status as u8])
    }

    /// Writes the status alone: the result, of `len` bytes, is there. Returns the length to report.
    pub(crate) fn status<M: GuestMemory>(&self, memory: &M, len: usize, status: Status) -> u32 {
        let Some(last) = self.len.checked_sub(1) else {
            return 0;
        };
        u32::try_from(len).unwrap_or(0) + self.write(memory, last, &[status as u8])
    }

    /// Writes `bytes` from `offset` up to the end of the room, and returns their number; 0 if the guest's addresses
    /// are not in its memory.
    fn write<M: GuestMemory>(&self, memory: &M, mut offset: usize, bytes: &[u8]) -> u32 {
        let mut rest = bytes;
        for (address, len) in &self.parts {
            if offset >= *len {
                offset -= len;
                continue;
            }
            let (part, later) = rest.split_at(rest.len().min(len - offset));
            let place = address.0.checked_add(offset as u64).map(GuestAddress);
            let written = place.is_some_and(|place| memory.write_slice(part, place).is_ok());
            if !written {
                return 0;
            }
            (rest, offset) = (later, 0);
            if rest.is_empty() {
                break;
            }
        }
        u32::try_from(bytes.len() - rest.len()).unwrap_or(0)
    }
}
