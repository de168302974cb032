// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What one connection remembers of its device and rings, and how a request goes through the device.

use std::collections::HashMap;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::time::Instant;

use tracing::{error, info, warn};
use vhost_user_backend::{VringRwLock, VringState, VringT};
use virtio_queue::QueueT;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use super::MAX_QUEUE_SIZE;
use super::chain::{self, Chain, MemorySnapshot, Room};
use super::journal::{Journal, MAX_ATTEMPTS};
use super::migration::{MigrationState, Transfer};
use super::scratch::Scratch;
use crate::device::{ControlOutcome, DataAnswer, DataOutcome, DataToken, Device};
use crate::spec::Status;

/// The guest's memory, which the monitor may replace.
pub(super) type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// The device and what its rings have under way. One lock guards all of it.
pub(super) struct ConnectionState {
    pub(super) device: Device,
    pub(super) memory: Option<Memory>,
    pub(super) waiting: HashMap<DataToken, PendingRequest>,
    pub(super) journal: Journal,
    /// Whether the journal of an earlier process was read.
    pub(super) is_taken: bool,
    /// The sessions of a former process are still to be made again.
    pub(super) restore: bool,
    /// Whether requests of a ring were read since it was started.
    pub(super) started: Vec<bool>,
    /// The position of the control ring after the last pass over it.
    pub(super) control_position: u16,
    pub(super) scratch: Scratch,
    /// The features that the driver acknowledged.
    pub(super) features: u64,
    /// A state on its way from or to the monitor.
    pub(super) transfer: Option<Transfer>,
}

/// A data request without an answer.
pub(super) struct PendingRequest {
    pub(super) queue: usize,
    pub(super) head: u16,
    pub(super) room: Room,
}

/// A request whose answer is in the guest's memory: an entry for the used ring (virtio 1.3, section 2.7.8).
pub(super) struct Used {
    pub(super) queue: usize,
    /// Index of the first descriptor.
    pub(super) head: u16,
    /// Bytes written.
    pub(super) len: u32,
}

impl ConnectionState {
    pub(super) fn new(device: Device, data_queues: u16, journal: Journal) -> Self {
        Self {
            device,
            memory: None,
            waiting: HashMap::new(),
            journal,
            is_taken: false,
            restore: false,
            started: vec![false; usize::from(data_queues) + 1],
            control_position: 0,
            scratch: Scratch::default(),
            features: 0,
            transfer: None,
        }
    }

    /// Called before requests of a ring are read. Returns the requests that a former process left without an answer,
    /// if the ring has just been started, each with the number of attempts that were made. They are read again from
    /// the guest's memory, where a request stays until its answer is in the used ring.
    pub(super) fn start(
        &mut self,
        queue: usize,
        ring: &VringRwLock,
        memory: &MemorySnapshot,
    ) -> Vec<(Chain, u64)> {
        // A ring that is stopped has no requests, unless a former process has left some.
        let is_running = ring.get_ref().get_queue().ready() || self.journal.is_running(queue);
        if !is_running || mem::replace(&mut self.started[queue], true) {
            return Vec::new();
        }
        self.restore_sessions();
        let Ok(used) = ring.queue_used_idx() else {
            return Vec::new();
        };
        if !self.journal.started(queue, used) {
            return Vec::new();
        }
        let unfinished = self.journal.unfinished(queue, used);
        let mut guard = ring.get_mut();
        let kept = guard.get_queue_mut();
        let under_way = u16::try_from(unfinished.len()).unwrap_or(MAX_QUEUE_SIZE);
        kept.set_next_avail(used.wrapping_add(under_way));
        kept.set_next_used(used);
        info!(queue, requests = under_way, "a ring of a former process continues");
        let heads: Vec<u16> = unfinished.iter().map(|request| request.head).collect();
        let chains = chain::read_again(kept, memory, &heads).unwrap_or_else(|| {
            error!(queue, "requests of a former process cannot be read again");
            Vec::new()
        });
        let attempts = unfinished.into_iter().map(|request| request.attempts);
        chains.into_iter().zip(attempts).collect()
    }

    /// Looks once what a former process has left of the connection.
    pub(super) fn take_connection(&mut self) {
        if !mem::replace(&mut self.is_taken, true) {
            let rings = u16::try_from(self.started.len()).unwrap_or(u16::MAX);
            self.restore = self.journal.take_connection(rings);
        }
    }

    /// The sessions, for another host.
    pub(super) fn saved(&mut self) -> MigrationState {
        let (next, mut sessions) = self.journal.sessions();
        sessions.sort_unstable_by_key(|(id, _)| *id);
        MigrationState { features: self.features, next, sessions }
    }

    /// Takes the sessions of another host. They are made when the first ring starts, as those of a former process.
    pub(super) fn load(&mut self, loaded: MigrationState) {
        self.take_connection();
        self.device.clear_sessions();
        self.journal.end_sessions();
        let MigrationState { features: _, next, sessions } = loaded;
        info!(sessions = sessions.len(), "a device of another host continues here");
        for (id, request) in &sessions {
            self.journal.session_created(*id, request);
        }
        self.journal.continue_at(next);
        self.restore = true;
    }

    /// Makes the sessions of a former process again.
    fn restore_sessions(&mut self) {
        if !mem::take(&mut self.restore) {
            return;
        }
        let now = Instant::now();
        let (next, sessions) = self.journal.sessions();
        for (id, request) in sessions {
            let device = &mut self.device;
            let made =
                panic::catch_unwind(AssertUnwindSafe(|| device.restore(id, next, &request, now)));
            if !made.unwrap_or(false) {
                warn!(session = id, "a session of a former process is lost");
                self.journal.session_ended(id);
            }
        }
    }

    /// Puts an answered request into its ring.
    pub(super) fn add_used(&self, queue: usize, ring: &mut VringState, head: u16, len: u32) {
        self.journal.answering(queue, head);
        if let Err(error) = ring.add_used(head, len) {
            warn!(%error, "cannot answer a request");
        }
        let used = ring.get_queue().next_used();
        self.journal.answered(queue, head, used);
    }

    /// Handles one data request; `None` if its answer comes later.
    pub(super) fn data(
        &mut self,
        queue: usize,
        chain: Chain,
        attempts: u64,
        memory: &MemorySnapshot,
        now: Instant,
    ) -> Option<Used> {
        let head = chain.head_index();
        self.journal.began(queue, head, attempts);
        let mut scratch = mem::take(&mut self.scratch);
        let good = scratch.parts.take(chain) && scratch.parts.room.len() > 0;
        let outcome = if attempts >= MAX_ATTEMPTS {
            error!("a request was under way when two processes died; it is answered with an error");
            DataOutcome::failed()
        } else if good {
            let device = &mut self.device;
            device.set_counted(attempts > 0);
            panic::catch_unwind(AssertUnwindSafe(|| scratch.handle(device, memory, now)))
                .unwrap_or_else(|_| {
                    error!("a data request made the device panic; it is answered with an error");
                    DataOutcome::failed()
                })
        } else {
            self.device.count_malformed();
            DataOutcome::failed()
        };
        let room = &mut scratch.parts.room;
        let len = match outcome {
            DataOutcome::Done(answer) => Some(room.data(&**memory, &answer.result, answer.status)),
            DataOutcome::InRequest(place) => {
                Some(room.data(&**memory, &scratch.request[place], Status::Ok))
            }
            DataOutcome::Written(len) => Some(room.status(&**memory, len, Status::Ok)),
            DataOutcome::Pending(token) => {
                self.waiting.insert(token, PendingRequest { queue, head, room: mem::take(room) });
                None
            }
        };
        self.scratch = scratch;
        len.map(|len| Used { queue, head, len })
    }

    /// Handles one control request.
    pub(super) fn control(
        &mut self,
        queue: usize,
        chain: Chain,
        attempts: u64,
        memory: &MemorySnapshot,
        ring: &VringRwLock,
    ) {
        let head = chain.head_index();
        self.journal.began(queue, head, attempts);
        // Keys do not stay in a buffer.
        let mut request = zeroize::Zeroizing::new(Vec::new());
        let parts = &mut self.scratch.parts;
        let len = parts.take(chain).then(|| parts.read(&**memory, &mut request)).flatten();
        let outcome = match len {
            Some(_) if attempts < MAX_ATTEMPTS => {
                let device = &mut self.device;
                let handled = panic::catch_unwind(AssertUnwindSafe(|| {
                    device.control(&request, Instant::now())
                }));
                handled.unwrap_or_else(|_| {
                    error!("a control request made the device panic; it is answered with an error");
                    ControlOutcome::failed(&request)
                })
            }
            Some(_) => ControlOutcome::failed(&request),
            None => {
                self.device.count_malformed();
                ControlOutcome::failed(&[])
            }
        };
        for id in outcome.ended {
            self.journal.session_ended(id);
        }
        if let Some(id) = outcome.created {
            self.journal.session_created(id, &request);
        }
        let used = self.scratch.parts.room.control(&**memory, &outcome.answer);
        self.add_used(queue, &mut ring.get_mut(), head, used);
    }

    /// Writes answers to guest memory, and appends their requests to `done`.
    pub(super) fn note_used(
        &mut self,
        memory: &MemorySnapshot,
        answers: Vec<(DataToken, DataAnswer)>,
        done: &mut Vec<Used>,
    ) {
        for (token, answer) in answers {
            if let Some(PendingRequest { queue, head, room }) = self.waiting.remove(&token) {
                let len = room.data(&**memory, &answer.result, answer.status);
                done.push(Used { queue, head, len });
            }
        }
    }
}
