// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A ring as the driver sees it: its descriptors, its requests, and their answers.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;

use rustix::event::EventfdFlags;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Entries of each ring.
pub const QUEUE_SIZE: u16 = 1024;

/// Bytes that one ring takes, with its tables.
pub(crate) const QUEUE_SPAN: u64 = 64 * 1024;

/// A descriptor may be followed by another.
pub const NEXT: u16 = 1;
/// The device writes to a buffer.
pub const WRITE: u16 = 2;
/// A buffer holds descriptors.
pub const INDIRECT: u16 = 4;

/// A ring as the driver sees it.
#[derive(Debug)]
pub(crate) struct GuestQueue {
    pub(crate) base: u64,
    pub(crate) stopped_at: u16,
    pub(crate) next_available: u16,
    pub(crate) last_used: u16,
    pub(crate) free: Vec<u16>,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    /// Watches `call`.
    pub(crate) wake: Epoll,
    /// Answers that arrived, by the head of their request.
    pub(crate) answered: HashMap<u16, u32>,
    pub(crate) waiting: HashMap<u16, Asked>,
}

/// A request that was made available.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) descriptors: Vec<u16>,
    pub(crate) answer: u64,
    pub(crate) room: usize,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) queue: usize,
    pub(crate) head: u16,
}

/// The device's answer to a request.
#[derive(Debug)]
pub struct Response {
    /// The length that the device reported.
    pub len: u32,
    /// All bytes that were left for the answer.
    pub bytes: Vec<u8>,
}

impl Response {
    /// The status of a data request: its last byte.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.bytes.last().copied().unwrap_or(u8::MAX)
    }

    /// The result of a data request, as Linux reads it.
    #[must_use]
    pub fn result(&self) -> &[u8] {
        &self.bytes[..(self.len as usize).saturating_sub(1)]
    }
}

/// One descriptor, as a driver writes it.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Guest-physical address of the buffer.
    pub address: u64,
    /// Length of the buffer.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// The descriptor that follows.
    pub next: u16,
}

impl Descriptor {
    /// Little-endian, as a descriptor table has it (section 2.7.5).
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

pub(crate) fn event() -> io::Result<EventFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    EventFd::new(flags.bits().cast_signed())
}

impl GuestQueue {
    pub(crate) fn new(index: usize) -> io::Result<Self> {
        let call = event()?;
        let wake = Epoll::new()?;
        let interest = EpollEvent::new(EventSet::IN, 0);
        wake.ctl(ControlOperation::Add, call.as_raw_fd(), interest)?;
        Ok(Self {
            base: QUEUE_SPAN * index as u64,
            stopped_at: 0,
            next_available: 0,
            last_used: 0,
            free: (0..QUEUE_SIZE).rev().collect(),
            kick: event()?,
            call,
            wake,
            answered: HashMap::new(),
            waiting: HashMap::new(),
        })
    }

    pub(crate) fn available(&self) -> u64 {
        self.base + u64::from(QUEUE_SIZE) * 16
    }

    pub(crate) fn used_event(&self) -> u64 {
        self.available() + 4 + u64::from(QUEUE_SIZE) * 2
    }

    pub(crate) fn used(&self) -> u64 {
        self.base + QUEUE_SPAN / 2
    }
}
