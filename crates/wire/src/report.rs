// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What an edge tells a node about itself: how many operations it gave to the pool, how it waited for
//! them, and what it did itself instead and why. Numbers only.
//!
//! A node sees only the jobs that reach it. Whether the application's threads were blocked,
//! and what was never asked of the pool, the edge alone knows.

use millrace_engine::coded_enum;

coded_enum! {
    /// One of the numbers in an [`EdgeReport`].
    pub enum EdgeCounter {
        /// Operations that the pool did.
        Pooled = 0x01 "pooled",
        /// Jobs whose answer the application awaited without holding its thread.
        Paused = 0x02 "paused",
        /// Jobs whose answer a thread of the application waited for.
        Blocking = 0x03 "blocking",
        /// Jobs that were sent to a second node, which answered first.
        HedgeWon = 0x04 "hedge-won",
        /// Jobs that were sent to a second node in vain.
        HedgeLost = 0x05 "hedge-lost",
        /// Operations that ended as an error of the application.
        Failed = 0x06 "failed",
        /// Operations that the application stopped waiting for.
        Abandoned = 0x07 "abandoned",
        /// Jobs that the application took back.
        Cancelled = 0x08 "cancelled",
        /// Results that did not verify.
        WrongResults = 0x09 "wrong-results",
        /// Operations that the edge did itself: no node could be reached.
        FallbackNoNode = 0x10 "fallback-no-node",
        /// … there was no answer in time.
        FallbackTimedOut = 0x11 "fallback-timed-out",
        /// … the pool or the edge had too much to do.
        FallbackBusy = 0x12 "fallback-busy",
        /// … the pool refused the key, or the operation with it.
        FallbackRefused = 0x13 "fallback-refused",
        /// … the operation failed in the pool.
        FallbackFailed = 0x14 "fallback-failed",
        /// … the result did not verify.
        FallbackWrongResult = 0x15 "fallback-wrong-result",
        /// … the pool had not answered lately, so it was not asked.
        FallbackBreaker = 0x16 "fallback-breaker",
        /// … the identity was over its quota.
        FallbackQuota = 0x17 "fallback-quota",
    }
}

/// How many counters there are.
pub const EDGE_COUNTERS: usize = EdgeCounter::ALL.len();

impl EdgeCounter {
    /// Why the edge did an operation itself, if that is what this counts.
    #[must_use]
    pub fn fallback_reason(self) -> Option<&'static str> {
        self.name().strip_prefix("fallback-")
    }
}

/// Numbers by [`EdgeCounter`], in a message those since the connection was opened. All are 0 at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeReport {
    counts: [u64; EDGE_COUNTERS],
}

impl EdgeReport {
    /// One number.
    #[must_use]
    pub fn get(&self, counter: EdgeCounter) -> u64 {
        self.counts[counter.index()]
    }

    /// Sets one number.
    pub fn set(&mut self, counter: EdgeCounter, count: u64) {
        self.counts[counter.index()] = count;
    }

    /// Adds to one number, which stays at its end if it gets there.
    pub fn add(&mut self, counter: EdgeCounter, count: u64) {
        let sum = &mut self.counts[counter.index()];
        *sum = sum.saturating_add(count);
    }

    /// Every counter with its number, in the order of the codes.
    pub fn iter(&self) -> impl Iterator<Item = (EdgeCounter, u64)> + '_ {
        EdgeCounter::ALL.iter().copied().zip(self.counts)
    }

    /// Whether every number is 0.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.counts == [0; EDGE_COUNTERS]
    }

    /// By how much each number is above that of `before`; 0 where it is below.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut difference = *self;
        for (count, before) in difference.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
        difference
    }

    /// Adds every number of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (counter, count) in other.iter() {
            self.add(counter, count);
        }
    }

    /// All operations that the edge did itself because the pool did not.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.iter()
            .filter(|(counter, _)| counter.fallback_reason().is_some())
            .fold(0, |sum: u64, (_, count)| sum.saturating_add(count))
    }
}
