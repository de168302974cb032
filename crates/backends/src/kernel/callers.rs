// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Threads that make the system calls: each blocks until the device has answered, so there is one per request in
//! flight.
//!
//! The kernel decides by thread who may use a key. The keys are in the keyring of the process, which threads inherit
//! from the one that made it, so one thread makes it and starts the callers. No other thread and no other process has
//! it; the kernel destroys it with its keys when the process ends.

use std::collections::VecDeque;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use millrace_engine::backend::Unusable;
use millrace_operation::sync::lock;

use super::sys::Calls;

/// Stack of a caller, in bytes: it makes system calls with buffers on the heap.
const STACK: usize = 128 * 1024;

/// System calls of one request.
type Request = Box<dyn FnOnce(&dyn Calls) + Send>;

/// The threads. They end when this is dropped and all requests are done.
pub(super) struct Callers {
    shared: Arc<Line>,
    pub(super) count: usize,
}

/// The line of requests before the callers.
struct Line {
    state: Mutex<LineState>,
    work: Condvar,
}

struct LineState {
    waiting: VecDeque<(Request, Permit)>,
    /// Permits that are not taken.
    free: usize,
    closed: bool,
}

/// Whether a request has a permit, which it returns at its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Permit {
    Taken,
    None,
}

impl Callers {
    /// Makes the keyring, and starts `count` threads that have it.
    ///
    /// # Errors
    /// The kernel makes no keyring, or no thread starts.
    pub(super) fn start(calls: Arc<dyn Calls>, count: usize) -> Result<Self, Unusable> {
        let shared = Arc::new(Line {
            state: Mutex::new(LineState { waiting: VecDeque::new(), free: count, closed: false }),
            work: Condvar::new(),
        });
        let line = Arc::clone(&shared);
        let callers = Self { shared, count };
        let parent = thread::Builder::new().spawn(move || start_threads(&line, &calls, count));
        let ended = parent.map_err(no_thread)?.join();
        ended.unwrap_or_else(|_| Err(Unusable("starting the threads failed".to_owned())))?;
        Ok(callers)
    }

    /// Takes permits for up to `wanted` requests, and returns their number.
    pub(super) fn reserve(&self, wanted: usize) -> usize {
        let mut state = lock(&self.shared.state);
        let taken = wanted.min(state.free);
        state.free -= taken;
        taken
    }

    /// Returns a permit that no request used.
    pub(super) fn release(&self) {
        lock(&self.shared.state).free += 1;
    }

    /// Requests with a permit that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.count - lock(&self.shared.state).free
    }

    /// Has a request made that owns a permit.
    pub(super) fn start_call(&self, request: Request) {
        self.push(request, Permit::Taken);
    }

    /// Has a request made when a caller is free.
    pub(super) fn call_later(&self, request: impl FnOnce(&dyn Calls) + Send + 'static) {
        self.push(Box::new(request), Permit::None);
    }

    /// Has a request made and waits for its result; `None` if it takes longer than `limit`.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        request: impl FnOnce(&dyn Calls) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = mpsc::sync_channel(1);
        self.call_later(move |calls| {
            // The other end may have given up.
            let _ = sender.send(request(calls));
        });
        result.recv_timeout(limit).ok()
    }

    fn push(&self, request: Request, permit: Permit) {
        lock(&self.shared.state).waiting.push_back((request, permit));
        self.shared.work.notify_one();
    }
}

/// Makes the keyring for the calling thread, and starts threads that inherit it.
fn start_threads(line: &Arc<Line>, calls: &Arc<dyn Calls>, count: usize) -> Result<(), Unusable> {
    calls.join().map_err(|error| Unusable(error.to_string()))?;
    for _ in 0..count {
        let line = Arc::clone(line);
        let calls = Arc::clone(calls);
        let caller = thread::Builder::new().name("kernel-call".to_owned());
        let started = caller.stack_size(STACK).spawn(move || line.serve(&*calls));
        started.map_err(no_thread)?;
    }
    Ok(())
}

/// The error of a thread that the operating system refuses.
pub(super) fn no_thread(error: std::io::Error) -> Unusable {
    Unusable(format!("starting a thread: {error}"))
}

impl Drop for Callers {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.work.notify_all();
    }
}

impl Line {
    /// Makes requests until the line is closed and empty.
    fn serve(&self, calls: &dyn Calls) {
        let mut state = lock(&self.state);
        loop {
            if let Some((request, permit)) = state.waiting.pop_front() {
                drop(state);
                request(calls);
                state = lock(&self.state);
                if permit == Permit::Taken {
                    state.free += 1;
                }
            } else if state.closed {
                return;
            } else {
                let woken = self.work.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
