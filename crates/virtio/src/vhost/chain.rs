// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Requests in guest memory. Every descriptor and every byte of a request is read once, into memory of our own, so
//! that a guest that changes them afterwards changes nothing (CVE-2020-14375).

use std::ops::Deref;
use std::sync::Arc;

use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestAddressSpace, GuestMemory, GuestMemoryAtomic,
    GuestMemoryBackend, GuestMemoryLoadGuard, GuestMemoryMmap, GuestRegionMmap,
};

use crate::request::MAX_REQUEST_LEN;
use crate::spec::Status;

/// Descriptors of one request: as many as the largest ring has. The specification allows no more, also for an
/// indirect table.
const MAX_DESCRIPTORS: usize = super::MAX_QUEUE_SIZE as usize;

/// The part of a request that the guest left for the answer.
#[derive(Debug, Default)]
pub(crate) struct Room {
    parts: Vec<(GuestAddress, usize)>,
    len: usize,
}

/// A request whose descriptors do not parse. The answer goes where it can.
#[derive(Debug)]
pub(crate) struct MalformedChain(pub(crate) Room);

/// The chains with these heads, once more. The ring of available requests may no longer have them: a slow request is
/// overtaken by faster ones. So they stand in a ring of our own, beside the guest's memory.
pub(crate) fn read_again(
    queue: &Queue,
    memory: &GuestMemoryMmap,
    heads: &[u16],
) -> Option<Vec<DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>>> {
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

/// Reads the request of a chain into `request`, which is emptied before, and returns the room for its answer.
pub(crate) fn read<M>(
    memory: &M::Target,
    chain: DescriptorChain<M>,
    request: &mut Vec<u8>,
) -> Result<Room, MalformedChain>
where
    M: Deref,
    M::Target: GuestMemory + Sized,
{
    request.clear();
    let mut room = Room::default();
    let mut read = 0;
    let mut good = true;
    for (count, descriptor) in chain.enumerate() {
        if count >= MAX_DESCRIPTORS {
            good = false;
            break;
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
        if !good {
            continue;
        }
        request.resize(read + len, 0);
        good = memory.read_slice(&mut request[read..], descriptor.addr()).is_ok();
        read += len;
    }
    if good {
        Ok(room)
    } else {
        request.clear();
        Err(MalformedChain(room))
    }
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
