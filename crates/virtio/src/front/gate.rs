// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The gate between the work of a front process and its hand-over to another program, which must meet no message half
//! way.
//!
//! A hand-over that waits keeps new messages and new monitors back. It does not keep back what a machine needs to go on
//! after the death of its device process, so that a message which does not end delays the hand-over, and no machine.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who may pass now.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    under_way: usize,
    stage: Stage,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Open,
    /// A hand-over waits for what is under way.
    Closing,
    Closed,
}

/// Why something passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// A message or a new monitor.
    Work,
    /// The start of a device process, or a connection to one.
    Repair,
}

/// Something under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Passing<'a>(&'a Gate);

/// The gate stays closed until this is dropped.
#[derive(Debug)]
pub(super) struct Closed<'a>(&'a Gate);

impl Gate {
    /// Waits until this may pass.
    pub(super) fn pass(&self, passage: Passage) -> Passing<'_> {
        let last = match passage {
            Passage::Work => Stage::Open,
            Passage::Repair => Stage::Closing,
        };
        let waits = |state: &mut GateState| state.stage > last;
        let waited = self.changed.wait_while(self.lock(), waits);
        waited.unwrap_or_else(PoisonError::into_inner).under_way += 1;
        Passing(self)
    }

    /// Closes the gate when nothing is under way. `None` if something still is after `at_most`; the gate is open then.
    pub(super) fn close(&self, at_most: Duration) -> Option<Closed<'_>> {
        let end = Instant::now() + at_most;
        let mut state = self.lock();
        if state.stage != Stage::Open {
            return None;
        }
        state.stage = Stage::Closing;
        while state.under_way > 0 {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.stage = Stage::Open;
                self.changed.notify_all();
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.stage = Stage::Closed;
        Some(Closed(self))
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.lock().stage = Stage::Open;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use millrace_testkit::wait::until;

    use super::*;

    #[test]
    fn hand_over_waits_for_a_message_and_keeps_back_new_ones_and_no_repair() {
        let gate = Gate::default();
        let message = gate.pass(Passage::Work);
        thread::scope(|scope| {
            let closing = scope.spawn(|| gate.close(Duration::from_secs(60)).is_some());
            until("the gate closes", || gate.lock().stage == Stage::Closing);
            let next = scope.spawn(|| drop(gate.pass(Passage::Work)));
            drop(gate.pass(Passage::Repair));
            assert!(!closing.is_finished() && !next.is_finished());
            drop(message);
            assert!(closing.join().unwrap());
            next.join().unwrap();
        });
    }

    #[test]
    fn hand_over_gives_up_when_a_message_does_not_end() {
        let gate = Gate::default();
        let message = gate.pass(Passage::Work);
        assert!(gate.close(Duration::from_millis(1)).is_none());
        drop(gate.pass(Passage::Work));
        drop(message);
        assert!(gate.close(Duration::ZERO).is_some());
    }
}
