// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! State that outlives the process that serves a device: the requests under way, the sessions, the limits, the
//! counters. The journal lies in a memory file that the front process keeps and a device process maps, so that the next
//! device process goes on where a killed one stopped.
//!
//! ```text
//!  0        8         16        24           32           64        192 KiB     256 KiB
//!  │ epoch  │ served  │ next id │ high place │ limits     │ rings   │ counters  │ sessions
//! ```
//!
//! A ring's part is that of VHOST_USER_SET_INFLIGHT_FD, in cells of our own: rust-vmm's handler does not offer that
//! message. Only the thread of the rings writes cells, in an order that makes a kill at any moment harmless: it marks
//! a request before it handles it, and unmarks it after its answer is in the used ring.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use zeroize::Zeroizing;

use super::{MAX_DATA_QUEUES, MAX_QUEUE_SIZE};
use crate::cells::KeptCells;
use crate::device::{DeviceLimits, Limit, LimitsChange};
use crate::request::MAX_KEY_LEN;
use crate::session::MAX_SESSIONS;
use crate::spec::{CONTROL_HEADER_LEN, CONTROL_LEGACY_LEN};

/// Number of the connection that the front process serves.
const EPOCH: u64 = 0;
/// Number of the connection whose state is in the file.
const SERVED: u64 = 8;
const NEXT_SESSION: u64 = 16;
/// One above the highest place of a session that was ever used: reading beyond it would allocate a page.
const HIGH_PLACE: u64 = 24;
/// The limits: 0 is "as the command line says", 1 is none, otherwise the rate and 1.
const OPS_LIMIT: u64 = 32;
const BYTES_LIMIT: u64 = 40;

const RINGS: u64 = 64;
const RING_LEN: u64 = 32 + 8 * MAX_QUEUE_SIZE as u64;
/// Bound on the rings: those of a device with every data queue, and its control queue.
const MAX_RINGS: u64 = MAX_DATA_QUEUES as u64 + 1;

// Cells of a ring.
const RUNNING: u64 = 0;
const USED: u64 = 8;
/// The request that was answered last, and 1.
const LAST: u64 = 16;
const COUNT: u64 = 24;
const REQUESTS: u64 = 32;

/// Bits of a request's cell that count its attempts; those above number the requests in their order.
const ATTEMPT_BITS: u32 = 8;

/// Place of the counters: a number that names them and their order, then each of them. A journal of an earlier version
/// has zeros here.
const COUNTERS: u64 = 192 * 1024;

const SESSIONS: u64 = 256 * 1024;
/// The longest request for a session, with its id and its length, in whole pages: an unused one costs no memory.
const SESSION_LEN: u64 = 12 * 1024;

// Cells of a session, behind its id.
const SESSION_REQUEST_LEN: u64 = 8;
const SESSION_REQUEST: u64 = 16;

const LEN: u64 = SESSIONS + SESSION_LEN * MAX_SESSIONS as u64;

const _: () = assert!(RINGS + RING_LEN * MAX_RINGS <= COUNTERS);
const _: () = assert!(
    SESSION_REQUEST + (CONTROL_HEADER_LEN + CONTROL_LEGACY_LEN + MAX_KEY_LEN) as u64 <= SESSION_LEN
);

/// Times that a request is handled: one that was under way when two device processes died is answered with an error.
pub(super) const MAX_ATTEMPTS: u64 = 2;

/// The state of one device in a memory file. Clones share the file.
pub struct Journal {
    file: OwnedFd,
    cells: GuestMemoryMmap,
    /// The places of live sessions, and free places.
    places: HashMap<u64, u64>,
    free: Vec<u64>,
}

/// The id of a session, and the request that made it.
pub(super) type KeptSession = (u64, Zeroizing<Vec<u8>>);

/// A request that was under way when a device process died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnfinishedRequest {
    pub(super) head: u16,
    /// Number of times that the request was handled.
    pub(super) attempts: u64,
}

impl Journal {
    /// An empty journal.
    pub fn create() -> io::Result<Self> {
        let file = memfd_create("millrace-virtio", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, LEN)?;
        Self::open(file)
    }

    /// The journal in a file that [`Self::create`] made.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(LEN).map_err(io::Error::other)?;
        let mapped = FileOffset::new(File::from(file.try_clone()?), 0);
        let cells = GuestMemoryMmap::from_ranges_with_files([(GuestAddress(0), len, Some(mapped))])
            .map_err(io::Error::other)?;
        Ok(Self {
            file,
            cells,
            places: HashMap::new(),
            free: (0..MAX_SESSIONS as u64).rev().collect(),
        })
    }

    /// A journal on the same file, for another connection.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Self::open(self.file.try_clone()?)
    }

    /// The file, to hand it to another process.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn get(&self, cell: u64) -> u64 {
        // The cells are inside the file by the assertions above.
        self.cells.load(GuestAddress(cell), Ordering::Acquire).unwrap_or(0)
    }

    fn set(&self, cell: u64, value: u64) {
        // Inside the file, as above.
        let _ = self.cells.store(value, GuestAddress(cell), Ordering::Release);
    }

    /// A virtual machine monitor connects: what is in the file belongs to a former one. For the front process.
    pub fn new_connection(&self) {
        self.set(EPOCH, self.get(EPOCH) + 1);
    }

    /// Connections so far.
    pub(super) fn connections(&self) -> u64 {
        self.get(EPOCH)
    }

    /// The cells of `count` counters, of which `fingerprint` tells what they are. They begin at 0 if the process that
    /// kept them before had others.
    pub(crate) fn counters(&self, count: usize, fingerprint: u64) -> KeptCells {
        if self.get(COUNTERS) != fingerprint {
            for index in 0..count as u64 {
                self.set(COUNTERS + 8 + 8 * index, 0);
            }
            self.set(COUNTERS, fingerprint);
        }
        KeptCells::Kept { memory: self.cells.clone(), start: COUNTERS + 8 }
    }

    /// A device process takes the connection. Returns whether it continues the work of a former one.
    pub(super) fn take_connection(&mut self, rings: u16) -> bool {
        let epoch = self.get(EPOCH);
        if self.get(SERVED) == epoch && epoch != 0 {
            return true;
        }
        for ring in 0..usize::from(rings) {
            self.stopped(ring);
        }
        self.end_sessions();
        self.set(SERVED, epoch);
        false
    }

    /// The limits that were set at run time, over those of the command line.
    pub(super) fn limits(&self, configured: DeviceLimits) -> DeviceLimits {
        let read = |cell| match self.get(cell) {
            0 => None,
            1 => Some(Limit::None),
            rate => Some(Limit::PerSecond(rate - 1)),
        };
        let mut limits = configured;
        let change = LimitsChange { ops: read(OPS_LIMIT), bps: read(BYTES_LIMIT) };
        change.apply(&mut limits);
        limits
    }

    /// Records limits that were set at run time.
    pub(super) fn set_limits(&self, limits: DeviceLimits) {
        let DeviceLimits { ops, bps } = limits;
        self.set(OPS_LIMIT, ops.unwrap_or(0).saturating_add(1));
        self.set(BYTES_LIMIT, bps.unwrap_or(0).saturating_add(1));
    }

    fn ring(index: usize) -> u64 {
        RINGS + RING_LEN * (index as u64).min(MAX_RINGS - 1)
    }

    fn request(ring: usize, head: u16) -> u64 {
        Self::ring(ring) + REQUESTS + 8 * u64::from(head % MAX_QUEUE_SIZE)
    }

    /// The device process reads the first request of a ring since it was started. Returns whether a former process
    /// served this ring.
    pub(super) fn started(&self, ring: usize, used: u16) -> bool {
        let cells = Self::ring(ring);
        let was_running = self.get(cells + RUNNING) == 1;
        if !was_running {
            self.set(cells + USED, u64::from(used));
            self.set(cells + RUNNING, 1);
        }
        was_running
    }

    /// Whether a process serves this ring, or did when it died.
    pub(super) fn is_running(&self, ring: usize) -> bool {
        self.get(Self::ring(ring) + RUNNING) == 1
    }

    /// A ring stopped with every request answered.
    pub(super) fn stopped(&self, ring: usize) {
        let cells = Self::ring(ring);
        self.set(cells + RUNNING, 0);
        self.set(cells + LAST, 0);
        for head in 0..MAX_QUEUE_SIZE {
            if self.get(Self::request(ring, head)) != 0 {
                self.set(Self::request(ring, head), 0);
            }
        }
    }

    /// A request was read. `attempts` of it were made before.
    pub(super) fn began(&self, ring: usize, head: u16, attempts: u64) {
        let count = self.get(Self::ring(ring) + COUNT) + 1;
        self.set(Self::ring(ring) + COUNT, count);
        self.set(Self::request(ring, head), count << ATTEMPT_BITS | (attempts + 1));
    }

    /// The answer to a request goes into the used ring next.
    pub(super) fn answering(&self, ring: usize, head: u16) {
        self.set(Self::ring(ring) + LAST, u64::from(head) + 1);
    }

    /// The answer is in the used ring, whose index is `used` now.
    pub(super) fn answered(&self, ring: usize, head: u16, used: u16) {
        self.set(Self::request(ring, head), 0);
        self.set(Self::ring(ring) + USED, u64::from(used));
    }

    /// The requests that were under way in a ring whose used index is `used`, in the order in which they were read.
    pub(super) fn unfinished(&self, ring: usize, used: u16) -> Vec<UnfinishedRequest> {
        let cells = Self::ring(ring);
        // The process died between the used ring and the journal: this answer is there.
        if self.get(cells + USED) != u64::from(used) {
            let last = self.get(cells + LAST).checked_sub(1);
            if let Some(head) = last.and_then(|head| u16::try_from(head).ok()) {
                self.answered(ring, head, used);
            }
        }
        let mut found: Vec<(u64, u16)> = (0..MAX_QUEUE_SIZE)
            .map(|head| (self.get(Self::request(ring, head)), head))
            .filter(|(value, _)| *value != 0)
            .collect();
        found.sort_unstable();
        let request = |(value, head): (u64, u16)| UnfinishedRequest {
            head,
            attempts: value & ((1 << ATTEMPT_BITS) - 1),
        };
        found.into_iter().map(request).collect()
    }

    /// Keeps the request that made a session.
    pub(super) fn session_created(&mut self, id: u64, request: &[u8]) {
        let Some(place) = self.free.pop() else {
            return;
        };
        let cell = SESSIONS + SESSION_LEN * place;
        self.set(NEXT_SESSION, id + 1);
        self.set(HIGH_PLACE, self.high_place().max(place + 1));
        self.set(cell + SESSION_REQUEST_LEN, request.len() as u64);
        let bytes = GuestAddress(cell + SESSION_REQUEST);
        if self.cells.write_slice(request, bytes).is_ok() {
            self.set(cell, id);
            self.places.insert(id, place);
        }
    }

    /// Ids below `next` were given out.
    pub(super) fn continue_at(&self, next: u64) {
        self.set(NEXT_SESSION, next);
    }

    /// Forgets a session. Its key does not stay in the file.
    pub(super) fn session_ended(&mut self, id: u64) {
        if let Some(place) = self.places.remove(&id) {
            self.wipe(place);
            self.free.push(place);
        }
    }

    /// The monitor reset the device: no session outlives that.
    pub(super) fn end_sessions(&mut self) {
        for place in 0..self.high_place() {
            if self.get(SESSIONS + SESSION_LEN * place) != 0 {
                self.wipe(place);
            }
        }
        self.places.clear();
        self.free = (0..MAX_SESSIONS as u64).rev().collect();
    }

    fn high_place(&self) -> u64 {
        self.get(HIGH_PLACE).min(MAX_SESSIONS as u64)
    }

    fn wipe(&self, place: u64) {
        let cell = SESSIONS + SESSION_LEN * place;
        self.set(cell, 0);
        let len = self.get(cell + SESSION_REQUEST_LEN).min(SESSION_LEN - SESSION_REQUEST);
        let zeros = vec![0; usize::try_from(len).unwrap_or(0)];
        // Inside the file, as above.
        let _ = self.cells.write_slice(&zeros, GuestAddress(cell + SESSION_REQUEST));
    }

    /// The id of the next session, and the ids and requests of all sessions.
    pub(super) fn sessions(&mut self) -> (u64, Vec<KeptSession>) {
        let mut found = Vec::new();
        let high = self.high_place();
        self.places.clear();
        self.free = (high..MAX_SESSIONS as u64).rev().collect();
        for place in (0..high).rev() {
            let cell = SESSIONS + SESSION_LEN * place;
            let id = self.get(cell);
            if id == 0 {
                self.free.push(place);
                continue;
            }
            let len = self.get(cell + SESSION_REQUEST_LEN).min(SESSION_LEN - SESSION_REQUEST);
            let mut request = Zeroizing::new(vec![0; usize::try_from(len).unwrap_or(0)]);
            let bytes = GuestAddress(cell + SESSION_REQUEST);
            if self.cells.read_slice(&mut request, bytes).is_ok() {
                self.places.insert(id, place);
                found.push((id, request));
            }
        }
        (self.get(NEXT_SESSION), found)
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({} sessions)", self.places.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(journal: &Journal, used: u16) -> Vec<(u16, u64)> {
        let found = journal.unfinished(1, used);
        found.iter().map(|it| (it.head, it.attempts)).collect()
    }

    #[test]
    fn journal_of_a_killed_process_names_the_requests_without_an_answer() {
        let journal = Journal::create().unwrap();
        journal.new_connection();
        assert!(!journal.started(1, 10));
        for head in [7, 3, 1023] {
            journal.began(1, head, 0);
        }
        journal.answering(1, 3);
        journal.answered(1, 3, 11);
        assert_eq!(heads(&journal, 11), [(7, 1), (1023, 1)]);
        // Killed before the answer to 7 reached the used ring.
        journal.answering(1, 7);
        assert_eq!(heads(&journal, 11), [(7, 1), (1023, 1)]);
        // Killed after it.
        assert_eq!(heads(&journal, 12), [(1023, 1)]);
        journal.began(1, 1023, 1);
        let next = Journal::open(journal.file.try_clone().unwrap()).unwrap();
        assert!(next.started(1, 12));
        assert_eq!(heads(&next, 12), [(1023, 2)]);
        next.stopped(1);
        assert!(!next.started(1, 12));
        assert_eq!(heads(&next, 12), []);
    }

    #[test]
    fn journal_keeps_sessions_of_one_connection_and_wipes_their_keys() {
        let mut journal = Journal::create().unwrap();
        journal.new_connection();
        assert!(!journal.take_connection(2));
        for id in 1..=3 {
            journal.session_created(id, &[9; 100]);
        }
        journal.session_ended(2);
        let mut next = Journal::open(journal.file.try_clone().unwrap()).unwrap();
        assert!(next.take_connection(2));
        let (next_id, sessions) = next.sessions();
        let mut ids: Vec<u64> = sessions.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        assert_eq!((next_id, ids), (4, vec![1, 3]));
        assert!(sessions.iter().all(|(_, request)| **request == [9; 100]));
        next.new_connection();
        assert!(!next.take_connection(2));
        assert_eq!(next.sessions().1.len(), 0);
        let mut bytes = vec![0; 64 * 1024];
        next.cells.read_slice(&mut bytes, GuestAddress(SESSIONS)).unwrap();
        assert!(!bytes.contains(&9), "a key is left");
    }

    #[test]
    fn counters_go_on_in_the_next_process_unless_they_are_others() {
        let journal = Journal::create().unwrap();
        let first = journal.counters(3, 7);
        first.add(2, 5);
        let next = Journal::open(journal.file.try_clone().unwrap()).unwrap();
        let second = next.counters(3, 7);
        second.add(2, 1);
        assert_eq!([0, 1, 2].map(|index| second.get(index)), [0, 0, 6]);
        let other = next.counters(4, 8);
        assert_eq!([0, 1, 2, 3].map(|index| other.get(index)), [0; 4]);
        // They lie apart from what else is there.
        let room = usize::try_from((SESSIONS - COUNTERS) / 8 - 1).unwrap();
        let all = next.counters(room, 9);
        all.add(room - 1, 1);
        assert_eq!((all.get(room - 1), next.get(SESSIONS)), (1, 0));
    }

    #[test]
    fn limits_set_at_run_time_outlive_the_process() {
        let journal = Journal::create().unwrap();
        let configured = DeviceLimits { ops: Some(5), bps: Some(6) };
        assert_eq!(journal.limits(configured), configured);
        let set = DeviceLimits { ops: None, bps: Some(70) };
        journal.set_limits(set);
        assert_eq!(journal.limits(configured), set);
    }
}
