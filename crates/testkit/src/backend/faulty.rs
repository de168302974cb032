// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A backend that fails on command. It wraps another backend and changes its results.
//!
//! The test keeps the [`FaultControls`] of a [`FaultyBackend`] and can change them while the backend is in use:
//!
//! ```
//! use std::sync::Arc;
//! use millrace_testkit::fake::FakeBackend;
//! use millrace_testkit::faulty::{FaultyBackend, InjectedFault};
//!
//! let faulty = FaultyBackend::new(Arc::new(FakeBackend::default()));
//! let controls = faulty.controls();
//! controls.inject(InjectedFault::BitFlip);   // every task ends as a fault from here on
//! controls.every(10);                // ... or every tenth
//! controls.close_gate();             // nothing completes
//! controls.open_gate();              // until now
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use millrace_engine::BackendError;
use millrace_engine::backend::{
    Backend, BackendKey, Capability, Description, Done, Health, OpenedKey, Pace, Queue, Task,
    Unusable,
};
use millrace_operation::sync::lock;
use millrace_operation::{BackendKind, KeyError, PrivateKey};

/// The fault that hits a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// One bit of the result is wrong. The backend notices it, as every backend must, and answers
    /// [`BackendError::Fault`].
    BitFlip,
    /// One bit of the result is wrong, and the backend returns the result. For tests of the code around a
    /// backend.
    Lie,
    /// The task ends with this error.
    Error(BackendError),
    /// The backend panics in `poll`.
    Panic,
    /// The task disappears. It counts as in flight for ever.
    Lose,
}

/// The handle by which a test makes a [`FaultyBackend`] fail. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct FaultControls {
    shared: Arc<FaultShared>,
}

#[derive(Debug, Default)]
struct FaultShared {
    state: Mutex<FaultState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct FaultState {
    fault: Option<InjectedFault>,
    /// Interval, in tasks, at which the fault hits; 0 is every task.
    every: u64,
    /// Number of further tasks that the fault hits; `None` is all.
    remaining: Option<u64>,
    seen: u64,
    injected: u64,
    gate_closed: bool,
    at_gate: usize,
    refuse_queues: bool,
    refuse_keys: Option<KeyError>,
    unusable: bool,
}

impl FaultControls {
    fn lock(&self) -> MutexGuard<'_, FaultState> {
        lock(&self.shared.state)
    }

    fn change(&self, change: impl FnOnce(&mut FaultState)) {
        change(&mut self.lock());
        self.shared.changed.notify_all();
    }

    /// Injects this fault into all further tasks; [`Self::every`] and [`Self::times`] limit it.
    pub fn inject(&self, fault: InjectedFault) {
        self.change(|state| state.fault = Some(fault));
    }

    /// Limits the fault to every `n`th task.
    pub fn every(&self, n: u64) {
        self.change(|state| state.every = n);
    }

    /// Limits the fault to its next `n` hits.
    pub fn times(&self, n: u64) {
        self.change(|state| state.remaining = Some(n));
    }

    /// Stops injecting faults.
    pub fn heal(&self) {
        self.change(|state| {
            state.fault = None;
            state.every = 0;
            state.remaining = None;
        });
    }

    /// Blocks every `poll` with tasks, on its calling thread, until the gate opens. It simulates a slow
    /// backend without a clock.
    pub fn close_gate(&self) {
        self.change(|state| state.gate_closed = true);
    }

    /// Opens the gate: waiting polls continue.
    pub fn open_gate(&self) {
        self.change(|state| state.gate_closed = false);
    }

    /// Blocks until `n` threads wait at the gate.
    pub fn wait_at_gate(&self, n: usize) {
        let mut state = self.lock();
        while state.at_gate < n {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Refuses `open_queue` from now on.
    pub fn refuse_queues(&self) {
        self.change(|state| state.refuse_queues = true);
    }

    /// Sets the error with which `open_key` is refused; `None` accepts keys.
    pub fn refuse_keys(&self, error: Option<KeyError>) {
        self.change(|state| state.refuse_keys = error);
    }

    /// Makes `probe` report the backend as unusable.
    pub fn make_unusable(&self) {
        self.change(|state| state.unusable = true);
    }

    /// Number of injected faults.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.lock().injected
    }

    fn pass_gate(&self) {
        let mut state = self.lock();
        if !state.gate_closed {
            return;
        }
        state.at_gate += 1;
        self.shared.changed.notify_all();
        while state.gate_closed {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.at_gate -= 1;
    }

    /// Decides the fault for the next task.
    fn draw(&self) -> Option<InjectedFault> {
        let mut state = self.lock();
        let fault = state.fault?;
        state.seen += 1;
        let due = state.every == 0 || state.seen.is_multiple_of(state.every);
        if !due || state.remaining == Some(0) {
            return None;
        }
        state.remaining = state.remaining.map(|left| left - 1);
        state.injected += 1;
        Some(fault)
    }
}

/// A backend that forwards to another one and injects the faults of its [`FaultControls`].
#[derive(Debug)]
pub struct FaultyBackend {
    inner: Arc<dyn Backend>,
    kind: BackendKind,
    controls: FaultControls,
}

impl FaultyBackend {
    /// Wraps a backend and has the same kind.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        let kind = inner.describe().kind;
        Self::posing_as(kind, inner)
    }

    /// Wraps a backend and claims another kind, to simulate a device in software.
    #[must_use]
    pub fn posing_as(kind: BackendKind, inner: Arc<dyn Backend>) -> Self {
        Self { inner, kind, controls: FaultControls::default() }
    }

    /// The controls of this backend.
    #[must_use]
    pub fn controls(&self) -> FaultControls {
        self.controls.clone()
    }
}

impl Backend for FaultyBackend {
    fn describe(&self) -> Description {
        Description { kind: self.kind, ..self.inner.describe() }
    }

    fn capabilities(&self) -> &[Capability] {
        self.inner.capabilities()
    }

    fn probe(&self) -> Result<(), Unusable> {
        if self.controls.lock().unusable {
            return Err(Unusable("told to be unusable".to_owned()));
        }
        self.inner.probe()
    }

    fn open_key(&self, key: &PrivateKey) -> Result<OpenedKey, KeyError> {
        let refusal = self.controls.lock().refuse_keys;
        refusal.map_or_else(|| self.inner.open_key(key), Err)
    }

    fn close_key(&self, key: BackendKey) {
        self.inner.close_key(key);
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn max_queues(&self) -> Option<usize> {
        self.inner.max_queues()
    }

    fn open_queue(&self) -> Result<Box<dyn Queue>, Unusable> {
        if self.controls.lock().refuse_queues {
            return Err(Unusable("told to refuse queues".to_owned()));
        }
        let inner = self.inner.open_queue()?;
        Ok(Box::new(FaultyQueue { inner, controls: self.controls.clone(), lost: 0 }))
    }
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    controls: FaultControls,
    /// Number of tasks that never come back; each takes up capacity for ever.
    lost: usize,
}

impl Queue for FaultyQueue {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn submit(&mut self, tasks: &mut VecDeque<Task>) -> usize {
        if self.lost >= self.inner.capacity() {
            return 0;
        }
        self.inner.submit(tasks)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        self.controls.pass_gate();
        let before = done.len();
        let in_flight = self.inner.poll(done);
        let fresh = done.split_off(before);
        for task in fresh {
            done.extend(self.spoil(task));
        }
        in_flight + self.lost
    }

    fn pace(&self) -> Pace {
        self.inner.pace()
    }
}

impl FaultyQueue {
    fn spoil(&mut self, mut done: Done) -> Option<Done> {
        match self.controls.draw() {
            None => {}
            Some(InjectedFault::BitFlip) => done.result = Err(BackendError::Fault),
            Some(InjectedFault::Lie) => {
                if let Some(byte) = done.result.iter_mut().flat_map(|out| out.first_mut()).next() {
                    *byte ^= 1;
                }
            }
            Some(InjectedFault::Error(error)) => done.result = Err(error),
            Some(InjectedFault::Panic) => panic!("told to panic"),
            Some(InjectedFault::Lose) => {
                self.lost += 1;
                return None;
            }
        }
        Some(done)
    }
}
