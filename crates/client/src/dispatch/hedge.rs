// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A second node for a job that waits too long at its first.
//!
//! ```text
//!  job ── first attempt ──► node A ···· answers first: the hedge is cancelled
//!            │ unanswered for a while
//!            └─ hedge ────► node B ···· answers first: the job ends, the attempt at A is cancelled
//! ```
//!
//! Every operation of the protocol is free of side effects, so doing one twice changes nothing but the
//! load. Two bounds limit that load. A budget of its own keeps a pool that is slow because it is
//! overloaded from being asked twice as much. And a job has one hedge at a time, which has the job's
//! deadline. The job ends once, with the answer that comes first.
//!
//! A pool with one node does not hedge. A caller that holds the key as well may do the work itself after a while; that
//! is the caller's decision.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Dispatcher;
use super::assign::Assignment;
use super::retry::Budget;
use crate::config::Hedge;
use crate::job::{Attempt, JobRef, Slot, Stage};
use crate::node::NodeIndex;

/// Shortest time before an adaptive hedge. Shorter waits come from the scheduler of a busy machine, and a
/// second node does not shorten them.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// Time before an adaptive hedge until [`ANSWERS_PER_PERCENTILE`] answers have been measured.
const INITIAL_WAIT: Duration = Duration::from_millis(100);

/// The configured hedging, with the latencies and the budget that it goes by.
pub(super) struct Hedging {
    /// Configured wait. `None` for the 99th percentile of recent latencies.
    after: Option<Duration>,
    budget: Budget,
    /// Jobs in the order in which their first attempts started, and some that have ended. Bound: the jobs
    /// that start within the time before a hedge, and twice `max_in_flight`.
    waiting: VecDeque<(Instant, JobRef)>,
}

impl Hedging {
    pub(super) fn new(hedge: Hedge) -> Option<Self> {
        let after = match hedge {
            Hedge::Off => return None,
            Hedge::After(after) => Some(after),
            Hedge::Adaptive => None,
        };
        Some(Self { after, budget: Budget::for_hedges(), waiting: VecDeque::new() })
    }

    /// Whether no job is queued for a hedge.
    #[cfg(test)]
    pub(super) fn waits_for_none(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Counts a job towards the budget.
    pub(super) fn deposit(&mut self) {
        self.budget.deposit();
    }
}

impl Dispatcher {
    /// A job's first attempt starts: from here the job waits.
    pub(super) fn hedge_from(&mut self, id: JobRef, now: Instant) {
        let bound = 2 * self.max_in_flight;
        let (Some(hedging), Some(job)) = (&mut self.hedging, self.jobs.get(id)) else {
            return;
        };
        if self.nodes.len() > 1 && hedging.waiting.len() < bound {
            job.hedge_from = Some(now);
            hedging.waiting.push_back((now, id));
        }
    }

    /// Time at which the next job may be hedged.
    pub(super) fn next_hedge(&self) -> Option<Instant> {
        let hedging = self.hedging.as_ref()?;
        let (since, _) = hedging.waiting.front()?;
        Some(*since + hedging.after.unwrap_or_else(|| self.latencies.slow()))
    }

    /// Drops the jobs at the front that do not wait any more, so that no timer goes off for them.
    pub(super) fn trim_hedges(&mut self) {
        let Some(hedging) = &mut self.hedging else {
            return;
        };
        while let Some((since, id)) = hedging.waiting.front() {
            if self.jobs.get(*id).is_some_and(|job| job.waits_for_hedge(*since)) {
                return;
            }
            hedging.waiting.pop_front();
        }
    }

    /// Hedges the jobs that have waited for long enough.
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
    fn hedge(&mut self, id: JobRef, now: Instant) {
        let Some(node) = self.second_node(id, now) else {
            return;
        };
        if !self.hedging.as_mut().is_some_and(|h| h.budget.take()) {
            self.totals.hedges_denied += 1;
            return;
        }
        self.totals.hedges += 1;
        self.attempt(id, Slot::Hedge, node, now);
    }

    /// A node that can take a job beside its first attempt.
    pub(super) fn second_node(&mut self, id: JobRef, now: Instant) -> Option<NodeIndex> {
        let job = self.jobs.get(id).filter(|job| now < job.deadline)?;
        let mut demand = job.demand();
        demand.tried.insert(job.attempts[Slot::First].as_ref()?.node);
        match self.choose(&demand, now) {
            Assignment::Node(node) => {
                Some(node).filter(|node| !self.nodes[*node].standing.is_out())
            }
            Assignment::Wait | Assignment::None(_) => None,
        }
    }

    /// The hedge of this job answered before its first attempt: notes how long the first node has taken so
    /// far, so that it counts in later hedge delays and node choices.
    pub(super) fn note_outrun(&mut self, id: JobRef, now: Instant) {
        let first = self.jobs.get(id).and_then(|job| job.attempts[Slot::First].as_ref());
        if let Some(Attempt { node, stage: Stage::Sent { at, .. }, .. }) = first {
            let waited = now.saturating_duration_since(*at);
            self.nodes[*node].record_wait(waited, now);
            self.latencies.add(waited);
        }
    }
}

/// Histogram of recent latencies, with buckets of a quarter of a doubling each.
pub(super) struct Latencies {
    buckets: [u32; BUCKETS],
    count: u32,
    /// The last 99th percentile, at least [`MIN_WAIT`].
    slow: Duration,
}

/// Number of buckets: they span one microsecond to more than any deadline.
const BUCKETS: usize = 4 * 28;

/// Number of answers after which all older ones count half.
const ANSWERS_PER_HALVING: u32 = 4096;

/// Answers needed for a first percentile, and between two computations of it.
const ANSWERS_PER_PERCENTILE: u32 = 64;

impl Default for Latencies {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], count: 0, slow: INITIAL_WAIT }
    }
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        self.buckets[bucket(latency)] += 1;
        self.count += 1;
        if self.count.is_multiple_of(ANSWERS_PER_PERCENTILE) {
            self.slow = self.percentile_99().max(MIN_WAIT);
        }
        if self.count >= ANSWERS_PER_HALVING {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.count = self.buckets.iter().sum();
        }
    }

    /// The latency that 99 of 100 answers stay below, computed once per [`ANSWERS_PER_PERCENTILE`] answers.
    pub(super) fn slow(&self) -> Duration {
        self.slow
    }

    fn percentile_99(&self) -> Duration {
        let mut left = self.count - self.count / 100;
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
    let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(4);
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
    fn latency_is_below_and_near_the_bound_of_its_bucket() {
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
    fn slow_is_the_99th_percentile_of_recent_latencies() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.slow(), INITIAL_WAIT);
        for n in 0..2000 {
            let slow = n % 150 == 149;
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
        assert_eq!(latencies.slow(), MIN_WAIT);
    }
}
