// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Jobs that are computed on the thread that submits them: waking a worker would cost as much as the operation.
//!
//! A batch of fast jobs of one owner runs there if all of these hold; otherwise it goes to the queue of the class.
//!
//! | of | condition |
//! |---|---|
//! | the batch | at most 2 jobs; 64 with one worker per class, unless several owners used the class within 0.1 s |
//! | its keys | none of them can go to a device |
//! | the class | no job waits, and the engine does not stop |

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use millrace_operation::{Class, sync::lock};

use super::job::Queued;
use super::runner::{NoIntake, Runner};
use super::shared::Shared;
use crate::queue::Waiting;

/// Jobs of a batch that may run on the thread that brought it: at 10 to 25 µs each they hold up that thread's other
/// work for no longer than a wake-up under load would.
const MAX_JOBS: usize = 2;

/// [`MAX_JOBS`] with one worker per class, that is on one core: a worker would run on the same core, so handing a batch
/// over costs two switches and a wake-up for nothing (a tenth of P-256's rate, docs/benchmarks). Bounded to about a
/// millisecond, because other connections wait for that thread.
const MAX_JOBS_ON_ONE_CORE: usize = 64;

/// Runners for such jobs, one for each thread that submitted at the same time as others.
#[derive(Default)]
pub(super) struct InlineRunners(Mutex<Vec<Runner>>);

impl InlineRunners {
    /// Runs a batch on this thread, or returns it.
    pub(super) fn run(
        &self,
        shared: &Shared,
        class: Class,
        batch: Vec<Queued>,
        now: Instant,
    ) -> Option<Vec<Queued>> {
        let (Class::Fast, Some(first)) = (class, batch.first()) else {
            return Some(batch);
        };
        let owner = first.owner();
        // The jobs of one call are of one session in practice; several owners would need one charge each.
        let one_owner = batch.iter().all(|queued| queued.owner() == owner);
        let on_cpu = shared.backends.on_cpu();
        let needs_device = batch.iter().any(|queued| !queued.job.able().minus(on_cpu).is_empty());
        {
            let mut state = lock(&shared.classes[class.index()].state);
            let contended = state.contention.note(owner.id(), now);
            let one_core = shared.workers == 1 && !contended;
            let limit = if one_core { MAX_JOBS_ON_ONE_CORE } else { MAX_JOBS };
            let may_run_here = one_owner
                && !needs_device
                && batch.len() <= limit
                && state.queue.is_empty()
                && !state.stopping;
            if !may_run_here {
                return Some(batch);
            }
            state.queue.pass(owner, batch.len(), batch.iter().map(Queued::cost).sum());
        }
        shared.statistics.ran_inline.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let idle = lock(&self.0).pop();
        let mut runner = idle.unwrap_or_else(|| Runner::new(&shared.backends));
        runner.run(shared, class, batch, &mut NoIntake);
        lock(&self.0).push(runner);
        None
    }
}
