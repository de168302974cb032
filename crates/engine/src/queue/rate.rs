// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Measurements of a queue: the rate at which its jobs are taken, whether several owners use it, and which of them send
//! several jobs at once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Time for which the service rate is measured before the estimate changes: dozens of turns of a worker.
const RATE_INTERVAL: Duration = Duration::from_millis(50);

/// Time for which a class counts as shared after jobs of two owners met: long beside the gaps between the requests of a
/// gateway in use, so that a single operation of an otherwise idle owner finds the class ready for it.
pub(super) const CONTENTION_LASTS: Duration = Duration::from_millis(100);

/// Rate at which jobs are taken while others wait, in cost per time.
#[derive(Debug, Default)]
pub(super) struct ServiceRate {
    /// The beginning of the interval that is being measured, if jobs have waited ever since.
    since: Option<Instant>,
    /// Cost of the jobs taken in the interval.
    taken: u64,
    /// Time for one unit of cost, ns; a running mean.
    ns_per_unit: Option<f64>,
}

/// Part of the running mean that a new measurement has.
const RATE_NEW_SHARE: f64 = 0.3;

/// A measurement counts as at most this many times the mean: a process that was stopped for seconds must not refuse
/// the jobs that come next.
const RATE_MAX_RATIO: f64 = 4.0;

impl ServiceRate {
    /// Records that jobs of this cost were taken, and whether others are left.
    #[expect(clippy::cast_precision_loss, reason = "a mean of costs and times")]
    pub(super) fn note(&mut self, cost: u64, left: bool, now: Instant) {
        if let Some(since) = self.since {
            let elapsed = now.saturating_duration_since(since);
            if elapsed >= RATE_INTERVAL && self.taken > 0 {
                let measured = elapsed.as_nanos() as f64 / self.taken as f64;
                let mean = self.ns_per_unit.unwrap_or(measured);
                let counted = measured.min(RATE_MAX_RATIO * mean);
                self.ns_per_unit = Some(mean + RATE_NEW_SHARE * (counted - mean));
                self.since = None;
            }
        }
        if !left {
            self.since = None;
        } else if self.since.is_none() {
            self.since = Some(now);
            self.taken = cost;
        } else {
            self.taken += cost;
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn time_of(&self, cost: u128) -> Option<Duration> {
        let ns = self.ns_per_unit? * cost as f64;
        Duration::try_from_secs_f64(ns / 1e9).ok()
    }
}

/// Whether several owners use a class at present. Pure: time is an argument.
#[derive(Debug, Default)]
pub(crate) struct Contention {
    last_owner: Option<u64>,
    /// Until when the class counts as shared, though one owner alone submits.
    until: Option<Instant>,
}

impl Contention {
    /// Records a submission; returns whether two owners submitted within [`CONTENTION_LASTS`].
    pub(crate) fn note(&mut self, owner: u64, now: Instant) -> bool {
        if self.last_owner.replace(owner).is_some_and(|last| last != owner) {
            self.until = Some(now + CONTENTION_LASTS);
        }
        self.until.is_some_and(|until| now < until)
    }
}

/// Time for which an owner counts as bursty after it had several jobs: at least this, at most twice as long. Long
/// beside the pause of a client after a refusal (10 ms and more), after which its next burst begins with a single job.
const BURST_LASTS: Duration = Duration::from_millis(100);

/// Bursty owners that are remembered per [`BURST_LASTS`]. One above the bound is served like an owner with a single
/// job: another owner then waits for at most one of its jobs.
pub(super) const MOST_BURSTS: usize = 1024;

/// Owners that had several jobs waiting or in service lately.
#[derive(Debug, Default)]
pub(super) struct Bursts {
    since: Option<Instant>,
    current: HashSet<u64>,
    former: HashSet<u64>,
}

impl Bursts {
    /// Records that an owner has several jobs.
    pub(super) fn note(&mut self, owner: u64, now: Instant) {
        self.pass(now);
        if self.current.len() < MOST_BURSTS {
            self.current.insert(owner);
        }
        self.since.get_or_insert(now);
    }

    /// Forgets what is too long ago.
    pub(super) fn pass(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let elapsed = now.saturating_duration_since(since);
        if elapsed < BURST_LASTS {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.former);
        self.current.clear();
        if elapsed >= 2 * BURST_LASTS {
            self.former.clear();
        }
        self.since = (!self.former.is_empty()).then_some(now);
    }

    /// Whether the owner had several jobs lately.
    pub(super) fn has(&self, owner: u64) -> bool {
        self.current.contains(&owner) || self.former.contains(&owner)
    }
}
