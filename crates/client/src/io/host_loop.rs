// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The host's event loop as the driver of the sockets: see [`super`] and [`crate::HostLoop`].

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Instant;

use rustix::event::{Timespec, epoll};

use super::{EVENTS, Guard, ProcessPool, ProcessPoolState, current};

impl ProcessPool {
    /// The calling thread's event loop drives the sockets from now on.
    pub(crate) fn drive_from_host(&self) {
        let mut inner = self.lock();
        for wake in inner.driver.drive_from_host(current()) {
            self.wake(wake);
        }
    }

    /// The descriptor that the host's loop waits for.
    pub(crate) fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The host is about to wait: sends what was collected, and runs callbacks of jobs that have ended.
    pub(crate) fn before_wait(&self) {
        let mut inner = self.lock();
        if inner.driver.has_collected() {
            self.flush_all(&mut inner);
        }
        if inner.dispatcher.has_ended_callbacks() {
            drop(self.run_callbacks(inner));
        }
    }

    /// Handles what came, without waiting, and runs callbacks on this thread.
    pub(crate) fn on_readable(&self) {
        let mut inner = self.lock();
        // A thread may be in `epoll_wait` since before this one's loop drove; it has been notified.
        let had_leader = inner.driver.has_leader();
        // A caller must read by itself: nothing else would wake it when its answer is there.
        if !inner.driver.caller_leads() {
            self.read_ready(&mut inner);
        }
        // A connection that has ended sets a timer, which the I/O thread keeps.
        self.wake_all(&mut inner);
        drop(self.run_callbacks(inner));
        if had_leader {
            thread::yield_now();
        }
    }

    /// Handles what the sockets have now.
    fn read_ready(&self, inner: &mut ProcessPoolState) {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let events = match epoll::wait(&self.epoll, &mut space, Some(&Timespec::default())) {
            Ok((events, _)) => &*events,
            Err(_) => &[],
        };
        self.handle(inner, events);
    }

    /// The I/O thread keeps the clock while the host's loop drives the sockets.
    pub(super) fn stand_by<'a>(&self, mut inner: Guard<'a>) -> Guard<'a> {
        let now = Instant::now();
        let timer = inner.dispatcher.poll_timeout();
        let followers = !inner.followers.is_empty();
        let until = inner.driver.stand_by(now, timer, followers);
        let mut inner = self.wait_parked(inner, now, until);
        if !inner.driver.has_leader() {
            // What the node said comes before what the clock says of its silence.
            self.read_ready(&mut inner);
        }
        inner
    }
}
