// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A second node for jobs that wait too long at their first.
//!
//! ```text
//!  job ── sent ──► node A ·········· answers after all: the hedge is cancelled
//!            │ unanswered for a while
//!            └─ hedge ──► node B ··· answers first: the job ends, A is asked to forget it
//! ```
//!
//! Every operation of the protocol is free of side effects, so doing one twice changes nothing but the
//! load. That is bounded: by a budget of its own, so that a pool which is slow because it is overloaded is
//! not asked twice as much, and to one hedge per job, which has the job's deadline. A hedge is a task of
//! its own that nobody waits for but the job ([`Owner::Hedge`]); the job ends once, whoever answers.
//!
//! With one node there is nothing to hedge with. Where the key is with the caller as well, doing the work
//! itself after a while is the caller's business.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Dispatcher;
use super::assign::Choice;
use super::retry::{Budget, Retry};
use crate::config::Hedge;
use crate::error::ClientError;
use crate::task::{Owner, Phase, Reply, Task, TaskId, Work};

/// Least time before an adaptive hedge. Below, the scheduler of a busy machine is what makes one wait, and
/// a second node does not help.
const FLOOR: Duration = Duration::from_millis(5);

/// Time before an adaptive hedge until enough is known.
const UNKNOWN: Duration = Duration::from_millis(100);

/// Hedging as configured, and what it goes by.
pub(super) struct Hedging {
    /// None: as the answers so far suggest.
    after: Option<Duration>,
    latencies: Latencies,
    budget: Budget,
    /// Jobs under way in the order in which they were given to a node, and some that have ended. Bound: the
    /// jobs that are given to nodes within the time before a hedge, and twice those that may be in flight.
    waiting: VecDeque<(Instant, TaskId)>,
}

impl Hedging {
    pub(super) fn new(hedge: Hedge) -> Option<Self> {
        let after = match hedge {
            Hedge::Off => return None,
            Hedge::After(after) => Some(after),
            Hedge::Adaptive => None,
        };
        Some(Self {
            after,
            latencies: Latencies::default(),
            budget: Budget::for_hedges(),
            waiting: VecDeque::new(),
        })
    }

    fn after(&self) -> Duration {
        self.after.unwrap_or_else(|| self.latencies.slow())
    }

    /// Notes a job.
    pub(super) fn deposit(&mut self) {
        self.budget.deposit();
    }

    /// Notes how long a node took, or has taken so far.
    pub(super) fn took(&mut self, latency: Duration) {
        self.latencies.add(latency);
    }
}

impl Dispatcher {
    /// A job was given to a node: from here it waits.
    pub(super) fn hedge_from(&mut self, id: TaskId, now: Instant) {
        let bound = 2 * self.max_in_flight;
        let (Some(hedging), Some(task)) = (&mut self.hedging, self.tasks.get(id)) else {
            return;
        };
        let new = task.is_job() && !task.is_hedge() && task.waits_since.is_none();
        if new && self.nodes.len() > 1 && hedging.waiting.len() < bound {
            task.waits_since = Some(now);
            hedging.waiting.push_back((now, id));
        }
    }

    /// When the next job may be hedged.
    pub(super) fn next_hedge(&self) -> Option<Instant> {
        let hedging = self.hedging.as_ref()?;
        let (since, _) = hedging.waiting.front()?;
        Some(*since + hedging.after())
    }

    /// Forgets the jobs at the front that do not wait any more, so that no timer goes off for them.
    pub(super) fn trim_hedges(&mut self) {
        let Some(hedging) = &mut self.hedging else {
            return;
        };
        while let Some((since, id)) = hedging.waiting.front() {
            let waits = |task: &mut Task| {
                let under_way = matches!(task.phase, Phase::OnKey { .. } | Phase::Sent { .. });
                let wanted = !matches!(task.owner, Owner::Nobody);
                under_way && wanted && task.waits_since == Some(*since) && task.hedge.is_none()
            };
            if self.tasks.get(*id).is_some_and(waits) {
                return;
            }
            hedging.waiting.pop_front();
        }
    }

    /// Hedges what has waited for long enough.
    pub(super) fn hedge_due(&mut self, now: Instant) {
        self.trim_hedges();
        while self.next_hedge().is_some_and(|at| at <= now) {
            let due = self.hedging.as_mut().and_then(|h| h.waiting.pop_front());
            if let Some((_, id)) = due {
                self.hedge(id, now);
            }
            self.trim_hedges();
        }
    }

    /// Sends a job to a second node, if there is one that can take it and the budget allows it.
    fn hedge(&mut self, id: TaskId, now: Instant) {
        let full = self.tasks.len() >= self.max_in_flight;
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let (Phase::OnKey { node } | Phase::Sent { node, .. }) = task.phase else {
            return;
        };
        let Work::Job { operation, input } = &task.work else {
            return;
        };
        if full || task.deadline <= now {
            return;
        }
        let work = Work::Job {
            operation: operation.clone(),
            input: input.clone(),
        };
        let (key, deadline) = (Arc::clone(&task.key), task.deadline);
        let elsewhere = task.tried | 1 << node;
        let Choice::Node(at) = self.choose(key.id, elsewhere, now) else {
            return;
        };
        if !self.hedging.as_mut().is_some_and(|h| h.budget.take()) {
            self.totals.hedges_denied += 1;
            return;
        }
        if self.use_key(&key).is_err() {
            return;
        }
        let owner = Owner::Hedge { of: id };
        let hedge = Task::new(Arc::clone(&key), work, owner, deadline, now);
        let hedge = self.tasks.insert(hedge);
        if let Some(task) = self.tasks.get(id) {
            task.hedge = Some(hedge);
        }
        self.totals.hedges += 1;
        self.hand_to(hedge, &key, at, now);
    }

    /// The second node answered first: the job ends, and what its first node owes is given up.
    pub(super) fn hedge_won(&mut self, hedge: TaskId, reply: Reply, now: Instant) {
        let Some(of) = self.remove_hedge(hedge) else {
            return;
        };
        self.totals.hedge_wins += 1;
        self.leave_key(of);
        let Some(task) = self.tasks.get(of) else {
            return;
        };
        let Phase::Sent { node, .. } = task.phase else {
            return self.end(of, Ok(Some(reply)));
        };
        // It takes at least so long, which is what its next jobs should go by.
        let waited = now.saturating_duration_since(task.sent_at);
        self.nodes[node].waited(waited, now);
        if let Some(hedging) = &mut self.hedging {
            hedging.took(waited);
        }
        self.end_owed(of, reply);
    }

    /// The second node will not answer. The job goes on at the first one, or, if that failed before,
    /// is tried again as if this had been its only try.
    pub(super) fn hedge_failed(
        &mut self,
        hedge: TaskId,
        at: usize,
        reason: Option<Retry>,
        error: ClientError,
        now: Instant,
    ) {
        self.leave_key(hedge);
        let Some(of) = self.remove_hedge(hedge) else {
            return;
        };
        self.totals.hedge_losses += 1;
        let alone = self
            .tasks
            .get(of)
            .is_some_and(|task| matches!(task.phase, Phase::OnHedge));
        match reason {
            _ if !alone => {}
            Some(reason) => self.retry(of, at, reason, error, now),
            None => self.end(of, Err(error)),
        }
    }
}

impl Dispatcher {
    /// A job does not need its hedge any more.
    pub(super) fn drop_hedge(&mut self, of: TaskId) {
        let hedge = self.tasks.get(of).and_then(|task| task.hedge.take());
        if let Some(hedge) = hedge {
            self.totals.hedge_losses += 1;
            self.abandon(hedge);
        }
    }

    /// Ends a job by its hedge's answer, while its own node owes one, too.
    fn end_owed(&mut self, id: TaskId, reply: Reply) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let (key, attempt) = (task.key.id, task.retries);
        let Phase::Sent { node, handle } = task.phase else {
            return;
        };
        self.totals.succeeded += 1;
        let answer = Ok(Some(reply));
        if let Owner::Caller { waiter } = &mut task.owner {
            self.outbox.wakes.extend(waiter.take());
            let owed = Some((node, handle));
            task.phase = Phase::Done { answer, owed };
            self.abandoned[node] += 1;
            if let Some(connection) = self.connection(node) {
                connection.cancel(id.job_id(attempt));
            }
            self.release_key(key);
        } else {
            let owner = mem::replace(&mut task.owner, Owner::Nobody);
            self.call_back(owner, answer);
            self.abandon(id);
        }
        self.trim_hedges();
    }

    /// No node owes this job an answer any more.
    pub(super) fn forgive(&mut self, id: TaskId) {
        if let Some(task) = self.tasks.get(id)
            && let Phase::Done { owed, .. } = &mut task.phase
        {
            *owed = None;
        }
    }

    /// Takes a hedge that no node owes out of the table. Gives the job that it was for.
    pub(super) fn remove_hedge(&mut self, hedge: TaskId) -> Option<TaskId> {
        let task = self.tasks.remove(hedge)?;
        self.release_key(task.key.id);
        let Owner::Hedge { of } = task.owner else {
            return None;
        };
        self.tasks.get(of)?.hedge = None;
        Some(of)
    }
}

/// How long recent answers took: a histogram with buckets of a quarter of a doubling each.
struct Latencies {
    buckets: [u32; BUCKETS],
    count: u32,
    /// See [`Self::slow`].
    slow: Duration,
}

/// From one microsecond to beyond any deadline.
const BUCKETS: usize = 4 * 28;

/// Answers after which the older ones count half.
const MEMORY: u32 = 4096;

/// Answers without which nothing is known, and after which what is known is looked at again.
const FRESH: u32 = 64;

impl Default for Latencies {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            count: 0,
            slow: UNKNOWN,
        }
    }
}

impl Latencies {
    fn add(&mut self, latency: Duration) {
        self.buckets[bucket(latency)] += 1;
        self.count += 1;
        if self.count.is_multiple_of(FRESH) {
            self.slow = self.percentile_95().max(FLOOR);
        }
        if self.count >= MEMORY {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.count = self.buckets.iter().sum();
        }
    }

    /// What 19 of 20 answers stay below, as of the last [`FRESH`] ones.
    fn slow(&self) -> Duration {
        self.slow
    }

    fn percentile_95(&self) -> Duration {
        let mut left = self.count - self.count / 20;
        for (index, count) in self.buckets.iter().enumerate() {
            if left <= *count {
                return upper_bound(index);
            }
            left -= count;
        }
        upper_bound(BUCKETS - 1)
    }
}

/// The index is four times the binary logarithm, linear in between.
fn bucket(latency: Duration) -> usize {
    let micros = u64::try_from(latency.as_micros())
        .unwrap_or(u64::MAX)
        .max(4);
    let doublings = micros.ilog2();
    let quarter = (micros >> (doublings - 2)) & 3;
    let index = 4 * (doublings as usize - 2) + usize::from(quarter.to_le_bytes()[0]);
    index.min(BUCKETS - 1)
}

/// The least latency that is above the bucket.
fn upper_bound(index: usize) -> Duration {
    let next = index + 1;
    Duration::from_micros(((4 + next as u64 % 4) << (next / 4 + 2)) >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_below_the_bound_of_its_bucket_and_not_far() {
        let mut micros = 4;
        while micros < 200_000_000 {
            let latency = Duration::from_micros(micros);
            let bound = upper_bound(bucket(latency));
            assert!(latency < bound, "{latency:?} {bound:?}");
            assert!(bound <= latency + latency / 3, "{latency:?} {bound:?}");
            micros += 1 + micros / 7;
        }
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn one_in_twenty_is_slow() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.slow(), UNKNOWN);
        for n in 0..2000 {
            let slow = n % 30 == 0;
            latencies.add(Duration::from_millis(if slow { 500 } else { 10 }));
        }
        let slow = latencies.slow();
        assert!(slow > Duration::from_millis(10) && slow < Duration::from_millis(14));
        for _ in 0..20_000 {
            latencies.add(Duration::from_millis(40));
        }
        let slow = latencies.slow();
        assert!(slow > Duration::from_millis(40) && slow < Duration::from_millis(54));
        for _ in 0..20_000 {
            latencies.add(Duration::from_micros(40));
        }
        assert_eq!(latencies.slow(), FLOOR);
    }
}
