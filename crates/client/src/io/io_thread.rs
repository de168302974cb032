// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The I/O thread: its start, and what it does while it does not lead.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use super::driver::{IoStep, LeaderKind};
use super::{Guard, ProcessPool, ProcessPoolState};
use crate::refused::describe_start;

/// Longest wait of the I/O thread as leader while there is activity: setting a timer that is further off
/// then needs no wake-up.
const TICK: Duration = Duration::from_millis(100);

/// Nice value of the I/O thread, so that it does not interrupt the host's threads for every answer. Answers
/// that arrive while the host works are then handed over together when the host next waits; an idle core
/// runs the thread at once either way. At 5 the thread still gets a quarter of a core that is never idle.
const NICENESS: i32 = 5;

/// Time between two attempts to start the I/O thread. Where a process may start none, each attempt costs a system
/// call, and blocked callers do the I/O until one succeeds.
const THREAD_RETRY: Duration = Duration::from_secs(1);

/// Signals that a fault of the thread itself raises: the host's crash handler should get them.
const FAULTS: [Signal; 5] =
    [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGABRT];

impl ProcessPool {
    /// Starts the I/O thread, if there is none and the last attempt was not just now.
    pub(super) fn start_thread(self: &Arc<Self>, inner: &mut ProcessPoolState) {
        let failed_lately =
            inner.no_thread.as_ref().is_some_and(|(at, _)| at.elapsed() < THREAD_RETRY);
        if !inner.driver.lacks_io_thread() || failed_lately {
            return;
        }
        match spawn(self) {
            Ok(thread) => {
                inner.driver.io_thread_started();
                let mut place = lock(&self.thread);
                *place = Some(thread);
            }
            Err(error) => inner.no_thread = Some((Instant::now(), describe_start(&error))),
        }
    }

    fn thread_main(&self) {
        // On Linux "this process" means this thread. It fails only where the host forbids even that.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        // A panic in there ends the pool in this process: every job ends as `Closed`.
        let _ = catch_unwind(AssertUnwindSafe(|| self.thread_loop()));
        self.end(self.lock());
    }

    fn thread_loop(&self) {
        let mut calls = 0;
        let mut jobs = 0;
        let mut inner = self.lock();
        while !inner.driver.is_closing() {
            inner = self.run_callbacks(inner);
            inner = self.make_connections(inner);
            if inner.driver.is_closing() {
                return;
            }
            let callers_active = mem::replace(&mut calls, inner.calls) != inner.calls;
            let has_callbacks = inner.dispatcher.has_callbacks();
            inner = match inner.driver.next_step(callers_active, has_callbacks) {
                IoStep::StandBy => self.stand_by(inner),
                IoStep::Park => self.park(inner),
                IoStep::Lead => {
                    let accepted = inner.dispatcher.jobs_accepted();
                    let active = mem::replace(&mut jobs, accepted) != accepted;
                    let tick = active.then(|| Instant::now() + TICK);
                    self.lead(inner, LeaderKind::IoThread, tick)
                }
            };
        }
    }

    /// Lets callers lead for a while.
    fn park<'a>(&self, mut inner: Guard<'a>) -> Guard<'a> {
        let successor = inner.successor();
        let wakes = mem::take(&mut inner.dispatcher.deliveries().wakes);
        for waiter in wakes.iter().chain(&successor) {
            waiter.notify_one();
        }
        let now = Instant::now();
        let until = inner.driver.park(now);
        let mut inner = self.wait_parked(inner, now, until);
        if !inner.driver.has_leader() {
            // No other thread keeps the clock now, however many callers come and go.
            inner.dispatcher.handle_timeout(Instant::now());
            self.flush_all(&mut inner);
        }
        inner
    }

    pub(super) fn wait_parked<'a>(
        &self,
        inner: Guard<'a>,
        now: Instant,
        until: Option<Instant>,
    ) -> Guard<'a> {
        let mut inner = match until {
            None => self.unpark.wait(inner).unwrap_or_else(PoisonError::into_inner),
            Some(until) => {
                let patience = until.saturating_duration_since(now);
                let waited = self.unpark.wait_timeout(inner, patience);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        inner.driver.io_thread_works();
        inner
    }
}

/// Starts the thread with every other signal blocked: the host's handlers run on the host's threads.
fn spawn(pool: &Arc<ProcessPool>) -> std::io::Result<JoinHandle<()>> {
    let own = Arc::clone(pool);
    let mut signals = SigSet::all();
    for fault in FAULTS {
        signals.remove(fault);
    }
    let before = signals.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let thread =
        thread::Builder::new().name("millrace-io".to_owned()).spawn(move || own.thread_main());
    before.thread_set_mask()?;
    thread
}
