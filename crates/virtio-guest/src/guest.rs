// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The monitor and the driver: connects to a device, shares its memory, writes requests and reads answers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_virtio::spec::{CONFIG_LEN, Status};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags,
    VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
};
use vmm_sys_util::epoll::EpollEvent;

use crate::queue::{
    Asked, Descriptor, GuestQueue, INDIRECT, NEXT, QUEUE_SIZE, QUEUE_SPAN, Response, Ticket, WRITE,
    event,
};
use crate::requests::{control_request, words};

/// Memory of the guest, in bytes: the rings, then buffers of requests.
pub const MEMORY_LEN: usize = 32 << 20;

/// First address of the buffers.
const BUFFERS: u64 = 8 << 20;

/// Feature bits of every driver here: version 1 and the protocol features of vhost-user.
const BASE_FEATURES: u64 = 1 << 32 | 1 << 30;
/// `VIRTIO_F_INDIRECT_DESC` (section 6): a descriptor may name a table of descriptors.
pub const INDIRECT_FEATURE: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX` (section 6): each side names the index at which it wants to be notified.
pub const EVENT_INDEX_FEATURE: u64 = 1 << 29;

/// A guest, connected to a device.
pub struct Guest {
    /// The monitor's end of the socket.
    pub frontend: Frontend,
    /// The guest's memory.
    pub memory: GuestMemoryMmap,
    queues: Vec<GuestQueue>,
    buffers: u64,
    features: u64,
    /// The device tells here of changes of its configuration space.
    changes: Option<UnixStream>,
}

const STOPPED: VhostTransferStatePhase = VhostTransferStatePhase::STOPPED;

fn other(error: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("{error:?}"))
}

impl Guest {
    /// Connects to a device, negotiates, and starts its rings. `features` come on top of those that every driver
    /// here has.
    pub fn connect(socket: &Path, data_queues: u16, features: u64) -> io::Result<Self> {
        let count = usize::from(data_queues) + 1;
        let memfd = memfd_create("guest", MemfdFlags::CLOEXEC)?;
        ftruncate(&memfd, MEMORY_LEN as u64)?;
        let file = File::from(memfd);
        let ranges = [(GuestAddress(0), MEMORY_LEN, Some(FileOffset::new(file, 0)))];
        let memory = GuestMemoryMmap::from_ranges_with_files(ranges).map_err(other)?;
        let (frontend, changes, features) = Self::negotiate(socket, count, features)?;
        let mut guest =
            Self { frontend, memory, queues: Vec::new(), buffers: BUFFERS, features, changes };
        guest.share()?;
        for _ in 0..count {
            guest.queues.push(GuestQueue::new(guest.queues.len())?);
        }
        guest.start()?;
        Ok(guest)
    }

    /// Connects to a device and agrees on features. Returns also the channel of changes and the features.
    fn negotiate(
        socket: &Path,
        count: usize,
        features: u64,
    ) -> io::Result<(Frontend, Option<UnixStream>, u64)> {
        let mut frontend = Frontend::connect(socket, count as u64).map_err(other)?;
        frontend.set_owner().map_err(other)?;
        let offered = frontend.get_features().map_err(other)?;
        let features = features | BASE_FEATURES;
        if features & !offered != 0 {
            return Err(other(("features that the device does not offer", features & !offered)));
        }
        let protocol = frontend.get_protocol_features().map_err(other)?;
        let wanted = VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::DEVICE_STATE;
        frontend.set_protocol_features(protocol & wanted).map_err(other)?;
        let mut changes = None;
        if (protocol & wanted).contains(VhostUserProtocolFeatures::BACKEND_REQ) {
            let (here, there) = UnixStream::pair()?;
            frontend.set_backend_request_fd(&there).map_err(other)?;
            here.set_nonblocking(true)?;
            changes = Some(here);
        }
        Ok((frontend, changes, features))
    }

    /// Leaves the device, and connects to another one with its memory and rings as they are: what the front process
    /// does for a guest whose device process has died.
    pub fn reconnect(&mut self, socket: &Path) -> io::Result<()> {
        let count = self.queues.len();
        (self.frontend, self.changes, self.features) =
            Self::negotiate(socket, count, self.features)?;
        // A former device that a test keeps alive is registered with these events for a moment. The thread of a
        // device's rings ends if another one takes its kick.
        for queue in &mut self.queues {
            queue.kick = event()?;
        }
        self.share()?;
        self.start()?;
        (0..count).try_for_each(|queue| self.kick(queue))
    }

    /// The state of the stopped device, as a monitor asks for it.
    pub fn save_state(&self) -> io::Result<Vec<u8>> {
        let (mut here, there) = UnixStream::pair()?;
        let file = self
            .frontend
            .set_device_state_fd(VhostTransferStateDirection::SAVE, STOPPED, there.into())
            .map_err(other)?;
        let mut state = Vec::new();
        match file {
            Some(mut file) => file.read_to_end(&mut state)?,
            None => here.read_to_end(&mut state)?,
        };
        self.frontend.check_device_state().map_err(other)?;
        Ok(state)
    }

    /// Goes on with a device of another host, which gets this state before the rings start where they stood.
    pub fn move_to(&mut self, socket: &Path, state: &[u8]) -> io::Result<()> {
        let count = self.queues.len();
        (self.frontend, self.changes, self.features) =
            Self::negotiate(socket, count, self.features)?;
        let (mut here, there) = UnixStream::pair()?;
        self.frontend
            .set_device_state_fd(VhostTransferStateDirection::LOAD, STOPPED, there.into())
            .map_err(other)?;
        // A device that refuses the first bytes may close its end before the last.
        let written = here.write_all(state);
        drop(here);
        self.frontend.check_device_state().map_err(other)?;
        written?;
        self.share()?;
        self.start()?;
        (0..count).try_for_each(|queue| self.kick(queue))
    }

    fn share(&self) -> io::Result<()> {
        let region = self.memory.find_region(GuestAddress(0));
        let file = region.and_then(|region| region.file_offset());
        let file = file.ok_or_else(|| other("the memory of a guest has a file"))?.file();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_LEN as u64,
            userspace_addr: self.host_address(0)?,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region]).map_err(other)?;
        Ok(())
    }

    fn host_address(&self, address: u64) -> io::Result<u64> {
        let pointer = self.memory.get_host_address(GuestAddress(address)).map_err(other)?;
        Ok(pointer.addr() as u64)
    }

    /// Negotiates the features and starts every ring where it stands.
    pub fn start(&mut self) -> io::Result<()> {
        self.frontend.set_features(self.features).map_err(other)?;
        for index in 0..self.queues.len() {
            let queue = &self.queues[index];
            let config = VringConfigData {
                queue_max_size: QUEUE_SIZE,
                queue_size: QUEUE_SIZE,
                flags: 0,
                desc_table_addr: self.host_address(queue.base)?,
                used_ring_addr: self.host_address(queue.used())?,
                avail_ring_addr: self.host_address(queue.available())?,
                log_addr: None,
            };
            let frontend = &mut self.frontend;
            frontend.set_vring_num(index, QUEUE_SIZE).map_err(other)?;
            frontend.set_vring_addr(index, &config).map_err(other)?;
            frontend.set_vring_base(index, queue.stopped_at).map_err(other)?;
            frontend.set_vring_call(index, &queue.call).map_err(other)?;
            frontend.set_vring_kick(index, &queue.kick).map_err(other)?;
            frontend.set_vring_enable(index, true).map_err(other)?;
        }
        Ok(())
    }

    /// Stops every ring, as a monitor does at a pause or a reset, and returns their positions.
    pub fn stop(&mut self) -> io::Result<Vec<u32>> {
        let stop = |(index, queue): (usize, &mut GuestQueue)| {
            let position = self.frontend.get_vring_base(index).map_err(other)?;
            queue.stopped_at = u16::try_from(position).map_err(other)?;
            Ok(position)
        };
        self.queues.iter_mut().enumerate().map(stop).collect()
    }

    /// Forgets all rings, as a driver that starts over does.
    pub fn forget_rings(&mut self) -> io::Result<()> {
        let zeros = vec![0; usize::try_from(QUEUE_SPAN).unwrap_or(0)];
        for queue in &mut self.queues {
            self.memory.write_slice(&zeros, GuestAddress(queue.base)).map_err(other)?;
            (queue.stopped_at, queue.next_available, queue.last_used) = (0, 0, 0);
            queue.free = (0..QUEUE_SIZE).rev().collect();
            queue.answered.clear();
            queue.waiting.clear();
        }
        Ok(())
    }

    /// The configuration space.
    pub fn config(&mut self) -> io::Result<Vec<u8>> {
        let flags = VhostUserConfigFlags::WRITABLE;
        let (_, bytes) = self
            .frontend
            .get_config(0, u32::try_from(CONFIG_LEN).unwrap_or(0), flags, &[0; CONFIG_LEN])
            .map_err(other)?;
        Ok(bytes)
    }

    /// Whether the device has told of a change of its configuration space since the last call.
    ///
    /// # Errors
    /// If it has told anything else.
    pub fn config_has_changed(&mut self) -> io::Result<bool> {
        let Some(changes) = &mut self.changes else {
            return Ok(false);
        };
        let mut message = [0; 12];
        match changes.read_exact(&mut message) {
            // VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, version 1, without a body.
            Ok(()) if message[..] == words(&[2, 1, 0]) => Ok(true),
            Ok(()) => Err(other(message)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The control queue comes after all data queues.
    #[must_use]
    pub fn control_queue(&self) -> usize {
        self.queues.len() - 1
    }

    /// Reserves a buffer and fills it.
    pub fn buffer(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let address = self.reserve(bytes.len());
        self.memory.write_slice(bytes, GuestAddress(address)).map_err(other)?;
        Ok(address)
    }

    /// Reserves a buffer. Buffers are reused after a while, so requests must not be under way for long.
    pub fn reserve(&mut self, len: usize) -> u64 {
        if self.buffers + len as u64 > MEMORY_LEN as u64 {
            self.buffers = BUFFERS;
        }
        let address = self.buffers;
        self.buffers += (len as u64).next_multiple_of(64);
        address
    }

    /// Makes a request available: the parts that the device reads, each in a buffer of its own, and `room` bytes for
    /// its answer. Does not kick.
    ///
    /// # Errors
    /// If the ring is full.
    pub fn ask(&mut self, queue: usize, parts: &[&[u8]], room: usize) -> io::Result<Ticket> {
        let mut chain = Vec::new();
        for part in parts {
            let address = self.buffer(part)?;
            chain.push(Descriptor {
                address,
                len: u32::try_from(part.len()).map_err(other)?,
                flags: 0,
                next: 0,
            });
        }
        let answer = self.buffer(&vec![0xee; room])?;
        // The status in a buffer of its own, as Linux has it.
        for (address, len) in [
            (answer, room.saturating_sub(1)),
            (answer + room.saturating_sub(1) as u64, room.min(1)),
        ] {
            if len > 0 {
                chain.push(Descriptor {
                    address,
                    len: u32::try_from(len).map_err(other)?,
                    flags: WRITE,
                    next: 0,
                });
            }
        }
        if self.features & INDIRECT_FEATURE != 0 {
            let table = self.table(&chain)?;
            chain = vec![Descriptor {
                address: table,
                len: u32::try_from(chain.len() * 16).map_err(other)?,
                flags: INDIRECT,
                next: 0,
            }];
        }
        self.offer(queue, chain, answer, room)
    }

    /// Writes a table of descriptors that follow each other.
    pub fn table(&mut self, chain: &[Descriptor]) -> io::Result<u64> {
        let mut bytes = Vec::new();
        for (index, descriptor) in chain.iter().enumerate() {
            let mut descriptor = *descriptor;
            if index + 1 < chain.len() {
                descriptor.flags |= NEXT;
                descriptor.next = u16::try_from(index + 1).map_err(other)?;
            }
            bytes.extend(descriptor.bytes());
        }
        self.buffer(&bytes)
    }

    /// Makes a chain of descriptors available.
    ///
    /// # Errors
    /// If the ring is full.
    pub fn offer(
        &mut self,
        queue: usize,
        chain: Vec<Descriptor>,
        answer: u64,
        room: usize,
    ) -> io::Result<Ticket> {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let ring = &mut self.queues[queue];
        if ring.free.len() < chain.len() {
            return Err(full());
        }
        let descriptors = ring.free.split_off(ring.free.len() - chain.len());
        for (index, mut descriptor) in chain.into_iter().enumerate() {
            if let Some(next) = descriptors.get(index + 1) {
                descriptor.flags |= NEXT;
                descriptor.next = *next;
            }
            let place = ring.base + u64::from(descriptors[index]) * 16;
            self.memory.write_slice(&descriptor.bytes(), GuestAddress(place)).map_err(other)?;
        }
        let head = *descriptors.first().ok_or_else(full)?;
        ring.waiting.insert(head, Asked { descriptors, answer, room });
        self.publish(queue, head)?;
        Ok(Ticket { queue, head })
    }

    /// Writes a head into the ring of available requests, and the index of that ring.
    pub fn publish(&mut self, queue: usize, head: u16) -> io::Result<()> {
        let ring = &mut self.queues[queue];
        let slot = ring.available() + 4 + u64::from(ring.next_available % QUEUE_SIZE) * 2;
        self.memory.write_obj(head, GuestAddress(slot)).map_err(other)?;
        ring.next_available = ring.next_available.wrapping_add(1);
        let index = GuestAddress(ring.available() + 2);
        self.memory.store(ring.next_available, index, Ordering::Release).map_err(other)
    }

    /// Writes any index of available requests.
    pub fn set_available_index(&mut self, queue: usize, index: u16) -> io::Result<()> {
        let address = GuestAddress(self.queues[queue].available() + 2);
        self.memory.store(index, address, Ordering::Release).map_err(other)
    }

    /// Rewrites a descriptor in the table of a ring.
    pub fn set_descriptor(
        &self,
        queue: usize,
        index: u16,
        descriptor: Descriptor,
    ) -> io::Result<()> {
        let place = self.queues[queue].base + u64::from(index) * 16;
        self.memory.write_slice(&descriptor.bytes(), GuestAddress(place)).map_err(other)
    }

    /// Tells the device of new requests.
    pub fn kick(&self, queue: usize) -> io::Result<()> {
        self.queues[queue].kick.write(1)
    }

    /// Interrupts of a ring since the last call.
    #[must_use]
    pub fn interrupts(&self, queue: usize) -> u64 {
        self.queues[queue].call.read().unwrap_or(0)
    }

    /// Asks the device to interrupt only after `requests` more answers of this ring.
    pub fn interrupt_after(&mut self, queue: usize, requests: u16) -> io::Result<()> {
        let ring = &self.queues[queue];
        let event = ring.last_used.wrapping_add(requests.saturating_sub(1));
        self.memory.store(event, GuestAddress(ring.used_event()), Ordering::SeqCst).map_err(other)
    }

    /// Takes the answers that are there.
    pub fn collect(&mut self, queue: usize) -> io::Result<usize> {
        let ring = &mut self.queues[queue];
        let used: u16 =
            self.memory.load(GuestAddress(ring.used() + 2), Ordering::Acquire).map_err(other)?;
        let mut count = 0;
        while ring.last_used != used {
            let slot = ring.used() + 4 + u64::from(ring.last_used % QUEUE_SIZE) * 8;
            let head: u32 = self.memory.read_obj(GuestAddress(slot)).map_err(other)?;
            let len: u32 = self.memory.read_obj(GuestAddress(slot + 4)).map_err(other)?;
            ring.answered.insert(u16::try_from(head).map_err(other)?, len);
            ring.last_used = ring.last_used.wrapping_add(1);
            count += 1;
        }
        Ok(count)
    }

    /// The answer to a request, if it is there.
    pub fn take(&mut self, ticket: Ticket) -> io::Result<Option<Response>> {
        let ring = &mut self.queues[ticket.queue];
        let Some(len) = ring.answered.remove(&ticket.head) else {
            return Ok(None);
        };
        let Some(asked) = ring.waiting.remove(&ticket.head) else {
            return Err(other("an answer to no request"));
        };
        ring.free.extend(asked.descriptors);
        let mut bytes = vec![0; asked.room];
        self.memory.read_slice(&mut bytes, GuestAddress(asked.answer)).map_err(other)?;
        Ok(Some(Response { len, bytes }))
    }

    /// Waits for the answer to a request.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after 60 s.
    pub fn wait(&mut self, ticket: Ticket) -> io::Result<Response> {
        self.wait_with(ticket, |_| 1)
    }

    /// Waits for the answer to a request, with one interrupt for half of the requests without an answer, as drivers do
    /// by Linux's `virtqueue_enable_cb_delayed`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after 60 s.
    pub fn wait_batched(&mut self, ticket: Ticket) -> io::Result<Response> {
        self.wait_with(ticket, |unanswered| (unanswered / 2).max(1))
    }

    fn wait_with(
        &mut self,
        ticket: Ticket,
        answers_per_interrupt: impl Fn(usize) -> usize,
    ) -> io::Result<Response> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            self.collect(ticket.queue)?;
            if let Some(response) = self.take(ticket)? {
                return Ok(response);
            }
            let ring = &self.queues[ticket.queue];
            let unanswered = ring.waiting.len().saturating_sub(ring.answered.len());
            let answers = u16::try_from(answers_per_interrupt(unanswered)).map_err(other)?;
            self.interrupt_after(ticket.queue, answers)?;
            if self.collect(ticket.queue)? == 0 {
                self.sleep(ticket.queue)?;
            }
            if Instant::now() > end {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Sleeps until the next interrupt of a ring, or a second.
    pub fn sleep(&self, queue: usize) -> io::Result<()> {
        let ring = &self.queues[queue];
        let mut events = [EpollEvent::default()];
        if ring.wake.wait(1000, &mut events)? > 0 {
            ring.call.read()?;
        }
        Ok(())
    }

    /// One request, from the kick to the answer.
    pub fn request(&mut self, queue: usize, parts: &[&[u8]], room: usize) -> io::Result<Response> {
        let ticket = self.ask(queue, parts, room)?;
        self.kick(queue)?;
        self.wait(ticket)
    }

    /// Makes a session; the error is the status.
    pub fn create(&mut self, request: &[&[u8]]) -> io::Result<Result<u64, u32>> {
        let response = self.request(self.control_queue(), request, 16)?;
        let id = response.bytes[..8].try_into().map_err(other)?;
        let status = response.bytes[8..12].try_into().map_err(other)?;
        let id = u64::from_le_bytes(id);
        let status = u32::from_le_bytes(status);
        Ok(if status == Status::Ok as u32 { Ok(id) } else { Err(status) })
    }

    /// Destroys a session of the service with this number; returns the status.
    pub fn destroy(&mut self, service: u32, session: u64) -> io::Result<u8> {
        let operation = if service == 4 { 5 } else { 3 };
        let request = control_request(
            service << 8 | operation,
            &words(&[
                u32::try_from(session & 0xffff_ffff).map_err(other)?,
                u32::try_from(session >> 32).map_err(other)?,
            ]),
        );
        let response = self.request(self.control_queue(), &[&request], 1)?;
        Ok(response.status())
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}
