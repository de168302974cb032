// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The leader/follower pattern as a state machine: it decides which thread waits for the sockets, and which thread must
//! be woken when. It has no socket, thread, lock or clock; [`super::ProcessPool`] keeps it under its lock and does
//! what it says.
//!
//! Three things make up the state:
//!
//! ```text
//! leader      the thread in `epoll_wait`: none, the I/O thread, or a blocked caller. It reads the
//!             sockets and hands out what came. There is one at most.
//! mode        Shared: the I/O thread and blocked callers take turns as leader.
//!             HostLoop: the host's event loop reads the sockets; the I/O thread keeps the clock.
//! I/O thread  Absent (it could not be started), Working (it looks again before it waits), Resolving (a
//!             name, perhaps for long), Parked
//! ```
//!
//! | event | leader | I/O thread |
//! |---|---|---|
//! | a caller blocks, [`may_lead`](IoDriver::may_lead) | becomes the caller | stays parked |
//! | … and may not lead | | looks for its answer, in host mode |
//! | a leader leaves with others blocked | a follower is its successor | |
//! | a callback is pending and no thread leads | becomes the I/O thread | is woken |
//! | an earlier timer, unsent bytes | is notified | in host mode, is woken for an earlier timer |
//! | [`drive_from_host`](IoDriver::drive_from_host) | the I/O thread stops leading | is woken, keeps the clock |

use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Time for which the I/O thread leaves the sockets to callers that come and go. Longer saves wake-ups; shorter notices
/// sooner what a node says while no thread calls.
pub(super) const PARK: Duration = Duration::from_millis(20);

/// Interval at which the I/O thread looks for the answers of blocked callers while the host's loop drives, since that
/// may be busy for long.
const CALLER_POLL: Duration = Duration::from_millis(1);

/// Jobs of the host's thread that are collected before they are sent together. More of them save writes;
/// but a host that handles hundreds of events before it waits again must not leave the node idle.
const MAX_COLLECTED: u32 = 8;

/// Kind of the thread that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaderKind {
    IoThread,
    Caller,
}

/// The thread in `epoll_wait`, and the time at which it looks again by itself. `None` for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leader {
    role: LeaderKind,
    until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverMode {
    Shared,
    /// The loop of this thread drives. `collected` jobs of it wait to be sent together.
    HostLoop {
        thread: ThreadId,
        collected: u32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoThread {
    /// Blocked callers do everything, and there are no callbacks.
    Absent,
    Working,
    Resolving,
    /// The thread waits on its condition variable, until then at most.
    Parked {
        until: Option<Instant>,
    },
}

/// Wake-up that makes the right thread look again.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    None,
    /// Notify the condition variable of the parked I/O thread.
    IoThread,
    /// Write to the eventfd in the epoll instance.
    Leader,
}

/// Bytes to send now that a job was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// None: the host sends before it waits.
    Later,
    Everything,
    /// Bytes for nodes with few jobs in flight.
    Prompt,
}

/// Next action of the I/O thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoStep {
    Lead,
    /// Leave the sockets to blocked callers for [`PARK`].
    Park,
    /// Keep the clock while the host's loop drives.
    StandBy,
}

/// Work that only the I/O thread does: connections, and callbacks outside of a host's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IoThreadWork {
    /// A connection is to be made.
    pub(super) connections: bool,
    /// A callback is to be called, now or when its job ends.
    pub(super) callbacks: bool,
    /// A callback is to be called now.
    pub(super) ended_callbacks: bool,
}

/// Which thread of one process waits for the sockets, and what its I/O thread does.
pub(super) struct IoDriver {
    leader: Option<Leader>,
    mode: DriverMode,
    io_thread: IoThread,
    /// The eventfd was written to and not read since.
    notified: bool,
    closing: bool,
}

impl IoDriver {
    /// No leader and no I/O thread.
    pub(super) fn new() -> Self {
        Self {
            leader: None,
            mode: DriverMode::Shared,
            io_thread: IoThread::Absent,
            notified: false,
            closing: false,
        }
    }

    // ---- the leader ---------------------------------------------------------------------------

    /// Whether a blocked caller may lead. A pending callback keeps the role for the I/O thread, unless
    /// that resolves a name. Without an I/O thread any caller may. In host mode only the host's own thread may lead
    /// while it is blocked, since its loop does not look then; another thread would read in `epoll_wait` what the loop
    /// waits for.
    pub(super) fn may_lead(&self, thread: ThreadId, has_callbacks: bool) -> bool {
        let role_is_free = match self.mode {
            _ if self.lacks_io_thread() => true,
            DriverMode::HostLoop { thread: host, .. } => host == thread,
            DriverMode::Shared => !has_callbacks || self.io_thread == IoThread::Resolving,
        };
        self.leader.is_none() && role_is_free
    }

    /// Whether a sleeping caller should be woken to lead. In host mode none is: see [`Self::may_lead`].
    pub(super) fn needs_successor(&self, has_callbacks: bool) -> bool {
        let role_is_free = match self.mode {
            _ if self.lacks_io_thread() => true,
            DriverMode::HostLoop { .. } => false,
            DriverMode::Shared => !has_callbacks || self.io_thread == IoThread::Resolving,
        };
        self.leader.is_none() && role_is_free
    }

    /// A thread is about to wait in `epoll_wait`, until then at most.
    pub(super) fn lead(&mut self, role: LeaderKind, until: Option<Instant>) {
        debug_assert!(self.leader.is_none(), "there is one leader");
        self.leader = Some(Leader { role, until });
    }

    /// The leader is back from `epoll_wait`.
    pub(super) fn stop_leading(&mut self) {
        self.leader = None;
    }

    pub(super) fn has_leader(&self) -> bool {
        self.leader.is_some()
    }

    pub(super) fn caller_leads(&self) -> bool {
        self.leads(LeaderKind::Caller)
    }

    fn leads(&self, role: LeaderKind) -> bool {
        self.leader.is_some_and(|leader| leader.role == role)
    }

    /// The eventfd is readable. Returns whether the calling thread should read it: only the leader that
    /// was notified may, and it has stopped leading by then.
    pub(super) fn take_notification(&mut self) -> bool {
        let is_ours = self.leader.is_none();
        if is_ours {
            self.notified = false;
        }
        is_ours
    }

    // ---- the host's loop ----------------------------------------------------------------------

    /// The loop of this thread drives from now on. The I/O thread goes from the sockets to the clock.
    pub(super) fn drive_from_host(&mut self, thread: ThreadId) -> [Wake; 2] {
        let collected = match self.mode {
            DriverMode::HostLoop { collected, .. } => collected,
            DriverMode::Shared => 0,
        };
        self.mode = DriverMode::HostLoop { thread, collected };
        [self.notify(), Wake::IoThread]
    }

    /// Whether a host's loop drives.
    pub(super) fn is_host_driven(&self) -> bool {
        matches!(self.mode, DriverMode::HostLoop { .. })
    }

    /// Whether this thread's loop drives.
    pub(super) fn is_host(&self, thread: ThreadId) -> bool {
        matches!(self.mode, DriverMode::HostLoop { thread: host, .. } if host == thread)
    }

    /// Records that this thread has submitted a job. Returns the bytes to send now.
    pub(super) fn submitted(&mut self, by: ThreadId) -> Flush {
        match &mut self.mode {
            DriverMode::HostLoop { thread, collected }
                if *thread == by && *collected < MAX_COLLECTED =>
            {
                *collected += 1;
                Flush::Later
            }
            DriverMode::HostLoop { .. } => Flush::Everything,
            DriverMode::Shared => Flush::Prompt,
        }
    }

    /// Everything that could be sent was sent.
    pub(super) fn flushed(&mut self) {
        if let DriverMode::HostLoop { collected, .. } = &mut self.mode {
            *collected = 0;
        }
    }

    /// Whether jobs of the host's thread wait to be sent together.
    pub(super) fn has_collected(&self) -> bool {
        matches!(self.mode, DriverMode::HostLoop { collected, .. } if collected > 0)
    }

    // ---- the I/O thread -----------------------------------------------------------------------

    /// Next action of the I/O thread. `callers_active`: calls were made since it last asked.
    pub(super) fn next_step(&self, callers_active: bool, has_callbacks: bool) -> IoStep {
        match self.mode {
            DriverMode::HostLoop { .. } => IoStep::StandBy,
            DriverMode::Shared if self.leader.is_some() => IoStep::Park,
            DriverMode::Shared if callers_active && !has_callbacks => IoStep::Park,
            DriverMode::Shared => IoStep::Lead,
        }
    }

    /// Makes the I/O thread wait on its condition variable. Returns until when at most.
    pub(super) fn park(&mut self, now: Instant) -> Option<Instant> {
        self.park_until(Some(now + PARK))
    }

    /// Makes the I/O thread wait while the host's loop drives. `timer` is the dispatcher's; with `followers` some
    /// callers sleep until their answers are read.
    pub(super) fn stand_by(
        &mut self,
        now: Instant,
        timer: Option<Instant>,
        followers: bool,
    ) -> Option<Instant> {
        if self.leader.is_some() {
            // The host is blocked in a call, and keeps the clock, too.
            return self.park(now);
        }
        let poll = followers.then(|| now + CALLER_POLL);
        self.park_until(timer.into_iter().chain(poll).min())
    }

    fn park_until(&mut self, until: Option<Instant>) -> Option<Instant> {
        self.io_thread = IoThread::Parked { until };
        until
    }

    /// The I/O thread was started.
    pub(super) fn io_thread_started(&mut self) {
        self.io_thread = IoThread::Working;
    }

    /// Whether blocked callers have to make connections, too.
    pub(super) fn lacks_io_thread(&self) -> bool {
        self.io_thread == IoThread::Absent
    }

    /// The I/O thread is back from its condition variable.
    pub(super) fn io_thread_works(&mut self) {
        self.io_thread = IoThread::Working;
    }

    /// A name is about to be resolved. If the I/O thread does it, callers may lead even if callbacks are
    /// pending.
    pub(super) fn resolve(&mut self) {
        if !self.lacks_io_thread() {
            self.io_thread = IoThread::Resolving;
        }
    }

    /// The name was resolved: the I/O thread, if it did that, works again.
    pub(super) fn resolved(&mut self) {
        if self.io_thread == IoThread::Resolving {
            self.io_thread = IoThread::Working;
        }
    }

    /// The I/O thread ends, perhaps by a panic. A caller that leads finds its job ended.
    pub(super) fn io_thread_ended(&mut self) -> Wake {
        self.closing = true;
        if self.leads(LeaderKind::IoThread) {
            self.leader = None;
        }
        self.notify()
    }

    /// Every job is to end.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    // ---- waking -------------------------------------------------------------------------------

    /// After anything that may leave `work` for the I/O thread, on the thread that did it.
    pub(super) fn wake_io_thread(&mut self, work: IoThreadWork, thread: ThreadId) -> Wake {
        let callbacks_need_a_leader =
            work.callbacks && self.leader.is_none() && self.mode == DriverMode::Shared;
        let callbacks_to_call = work.ended_callbacks && !self.is_host(thread);
        if !(self.closing || work.connections || callbacks_need_a_leader || callbacks_to_call) {
            return Wake::None;
        }
        if matches!(self.io_thread, IoThread::Parked { .. }) {
            Wake::IoThread
        } else if self.leads(LeaderKind::IoThread) {
            self.notify()
        } else {
            Wake::None
        }
    }

    /// After anything that sets timers or leaves bytes unsent: the leader must send them and wake up in
    /// time. `timer` is the dispatcher's next one.
    pub(super) fn wake_leader(&mut self, timer: Option<Instant>, unsent: bool) -> Wake {
        let is_late = |until: Option<Instant>| match (timer, until) {
            (Some(timer), Some(until)) => timer < until,
            (timer, None) => timer.is_some(),
            (None, _) => false,
        };
        let collected = self.has_collected();
        match (&self.leader, self.mode, &mut self.io_thread) {
            (Some(leader), ..) if is_late(leader.until) || (unsent && !collected) => self.notify(),
            // The I/O thread keeps the clock.
            (None, DriverMode::HostLoop { .. }, IoThread::Parked { until }) if is_late(*until) => {
                *until = timer;
                Wake::IoThread
            }
            _ => Wake::None,
        }
    }

    /// A caller is about to sleep: in host mode the I/O thread must look for its answer.
    pub(super) fn wake_for_follower(&self) -> Wake {
        match (self.mode, self.io_thread) {
            (DriverMode::HostLoop { .. }, IoThread::Parked { .. }) => Wake::IoThread,
            _ => Wake::None,
        }
    }

    /// Wakes what waits in `epoll_wait`, unless that will happen anyway.
    fn notify(&mut self) -> Wake {
        if std::mem::replace(&mut self.notified, true) { Wake::None } else { Wake::Leader }
    }
}

#[cfg(test)]
mod tests;
