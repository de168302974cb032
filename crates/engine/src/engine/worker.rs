// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Workers: take what waits in their class and give it to their [`Runner`], which takes more while it waits for a
//! device.

use std::sync::{MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_operation::{Class, JobError, sync::lock};

use super::config::WorkerThread;
use super::job::Queued;
use super::runner::{Intake, Runner};
use super::shared::{ClassQueue, ClassState, Shared};

/// The body of a worker thread.
///
/// Operations cannot be interrupted, so a job that comes while every worker is busy would wait for the rest of
/// an operation of another owner, which takes as long as its own. The express worker of a class serves owners
/// that have nothing in service and were not given more than the others; the operating system shares the cores
/// between it and the workers. With one owner alone it never runs.
pub(super) fn run(shared: &Shared, class: Class, worker: WorkerThread) {
    let mut runner = Runner::new(&shared.backends);
    let mut line = ClassLine { shared, class };
    let mut batch = Vec::new();
    let mut expired = Vec::new();
    loop {
        let open = match worker {
            WorkerThread::Regular(_) => {
                line.wait_for_work(runner.first_turn(), &mut batch, &mut expired)
            }
            WorkerThread::Express => line.wait_for_unserved(&mut batch, &mut expired),
        };
        if !open {
            return;
        }
        end_expired(shared, &mut expired);
        let batch = std::mem::take(&mut batch);
        match worker {
            WorkerThread::Regular(_) => runner.run(shared, class, batch, &mut line),
            WorkerThread::Express => {
                runner.run(shared, class, batch, &mut Express(&line));
            }
        }
    }
}

fn end_expired(shared: &Shared, expired: &mut Vec<Queued>) {
    shared.end_all(expired.drain(..), JobError::Expired);
}

/// The jobs of one class that wait, as its workers see them.
struct ClassLine<'a> {
    shared: &'a Shared,
    class: Class,
}

/// Turns of the workers by class where all backends compute on the worker's core, in jobs: about a millisecond
/// of P-256, two batches of RSA-2048 in lanes (2 to 5 ms), a few operations of slow keys. The lock of the queue
/// costs nothing beside that, and an owner that came during it has its turn next.
const CPU_TURN: [usize; 3] = [64, 16, 4];

impl ClassLine<'_> {
    /// Sleeps until there is work and takes a fair share of it, at most `device_turn` jobs where a device serves
    /// the class; false when the engine stops.
    fn wait_for_work(
        &self,
        device_turn: usize,
        ready: &mut Vec<Queued>,
        expired: &mut Vec<Queued>,
    ) -> bool {
        let class = &self.shared.classes[self.class.index()];
        let mut state = lock(&class.state);
        while state.queue.is_empty() {
            if state.stopping {
                return false;
            }
            state.idle_workers += 1;
            state = class.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle_workers -= 1;
        }
        let most = if self.only_on_cpu() {
            CPU_TURN[self.class.index()].next_multiple_of(self.shared.batch)
        } else {
            device_turn
        };
        self.take_share(&mut state, most, ready, expired);
        wake_express(class, state);
        true
    }

    /// Takes a share, not everything: the other workers of the class should have something to do as well. But
    /// no less than fills the lanes of a backend, where a few cost what one does.
    fn take_share(
        &self,
        state: &mut ClassState,
        most: usize,
        ready: &mut Vec<Queued>,
        expired: &mut Vec<Queued>,
    ) {
        let share = state.queue.len().div_ceil(self.shared.workers);
        let mut most = share.next_multiple_of(self.shared.batch).min(most);
        if self.only_on_cpu() && state.queue.owners_waiting() > 1 {
            most = most.min(self.shared.batch);
        }
        state.queue.pop(most, Instant::now(), ready, expired);
    }

    /// Sleeps until the class has express work, and takes as many jobs of that owner as a backend computes
    /// together; false when the engine stops.
    fn wait_for_unserved(&self, ready: &mut Vec<Queued>, expired: &mut Vec<Queued>) -> bool {
        let class = &self.shared.classes[self.class.index()];
        let mut state = lock(&class.state);
        while !state.has_express_work() {
            if state.stopping {
                return false;
            }
            state.express_idle = true;
            state = class.express.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.express_idle = false;
        }
        let most = self.shared.batch;
        let now = Instant::now();
        state.queue.pop_unserved(most, now, ready, expired);
        true
    }

    fn only_on_cpu(&self) -> bool {
        self.shared.only_on_cpu[self.class.index()]
    }
}

/// Unlocks a class, and wakes its express worker if that has work.
fn wake_express(class: &ClassQueue, state: MutexGuard<'_, ClassState>) {
    let express = state.needs_express();
    drop(state);
    if express {
        class.express.notify_one();
    }
}

impl Intake for ClassLine<'_> {
    fn behind(&self) -> usize {
        let class = &self.shared.classes[self.class.index()];
        lock(&class.state).queue.len()
    }

    fn take(&mut self, most: usize, ready: &mut Vec<Queued>) {
        let class = &self.shared.classes[self.class.index()];
        let mut expired = Vec::new();
        let mut state = lock(&class.state);
        if state.queue.is_empty() {
            return;
        }
        self.take_share(&mut state, most, ready, &mut expired);
        wake_express(class, state);
        end_expired(self.shared, &mut expired);
    }

    fn sleep(&self, time: Duration, has_room: bool) {
        // A worker without room must not be woken in place of one that could take the job.
        if !has_room {
            thread::sleep(time);
            return;
        }
        let class = &self.shared.classes[self.class.index()];
        let mut state = lock(&class.state);
        if state.queue.is_empty() {
            state.idle_workers += 1;
            let woken = class.work.wait_timeout(state, time);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.idle_workers -= 1;
        }
    }
}

/// The express worker runs the jobs of one owner and takes no others beside them.
struct Express<'a>(&'a ClassLine<'a>);

impl Intake for Express<'_> {
    fn behind(&self) -> usize {
        self.0.behind()
    }
}
