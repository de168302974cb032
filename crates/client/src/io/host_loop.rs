// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What changes when the host's event loop looks after the sockets: see [`super`].

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::{Driver, EVENTS, Guard, Inner, Instance, PARK, current};

/// How often the I/O thread looks for the answers of blocked callers while the host attends.
const GLANCE: Duration = Duration::from_millis(1);

impl Instance {
    /// The calling thread's event loop takes the sockets over: see [`crate::HostLoop`].
    pub(crate) fn drive_from_host(&self) {
        let mut inner = self.lock();
        inner.host = Some(current());
        // The I/O thread goes from the sockets to the clock.
        self.kick();
        self.unpark.notify_one();
    }

    /// What an attending host waits for.
    pub(crate) fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The host is about to wait: sends what was collected, and calls back for what ended meanwhile.
    pub(crate) fn before_wait(&self) {
        let mut inner = self.lock();
        if inner.together > 0 {
            self.flush_all(&mut inner);
        }
        if inner.dispatcher.has_ended_callbacks() {
            drop(self.run_callbacks(inner));
        }
    }

    /// Handles what came, without waiting, and runs callbacks on this thread.
    pub(crate) fn on_readable(&self) {
        let mut inner = self.lock();
        // Somebody may be in `epoll_wait` since before this thread attended; he has been called off.
        let alone = inner.driver == Driver::None;
        // A caller must read itself: its answer would wake it nowhere else.
        if inner.driver != Driver::Caller {
            self.look(&mut inner);
        }
        self.wake_for_chores(&inner);
        drop(self.run_callbacks(inner));
        if !alone {
            thread::yield_now();
        }
    }

    /// Handles what the sockets have now.
    fn look(&self, inner: &mut Inner) {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let events = match epoll::wait(&self.epoll, &mut space, Some(&Timespec::default())) {
            Ok((events, _)) => &*events,
            Err(_) => &[],
        };
        self.handle(inner, events);
    }

    /// Keeps the clock while the host attends to the sockets.
    pub(super) fn stand_by<'a>(&self, mut inner: Guard<'a>) -> Guard<'a> {
        let now = Instant::now();
        let until = if inner.driver != Driver::None {
            // The host is blocked in a call, and has the clock, too.
            Some(now + PARK)
        } else {
            inner.driver_wakes = inner.dispatcher.next_timer();
            // The host may be busy for long, but somebody is blocked until his answer is read.
            let blocked = (!inner.followers.is_empty()).then(|| now + GLANCE);
            inner.driver_wakes.into_iter().chain(blocked).min()
        };
        inner.parked = true;
        let mut inner = match until {
            None => self
                .unpark
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let patience = at.saturating_duration_since(now);
                let waited = self.unpark.wait_timeout(inner, patience);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        inner.parked = false;
        if inner.driver == Driver::None {
            // What the node said comes before what the clock says of its silence.
            self.look(&mut inner);
        }
        inner
    }
}
