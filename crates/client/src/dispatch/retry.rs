// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Failures that are retried, and the bounds on retries.

use millrace_operation::JobError;

use crate::error::ClientError;
use crate::job::Job;
use crate::node::NodeIndex;

/// Bound on the retries of one job. So a job that crashes its nodes crashes three at most.
pub(super) const MAX_RETRIES: u8 = 2;

/// Why a job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Lost,
    /// The connection was lost before the job was sent over it.
    Unsent,
    Busy,
    OverQuota,
    Draining,
    Failed,
    NoSuchKey,
    NotOffered,
    /// The node refuses the operation: by the key's policy there, or by a quota without a pause. The policy and the
    /// quota of another node may allow it.
    Denied,
    KeyRefused,
}

impl Retry {
    /// The reason for asking another node after this answer. No answer is final while another node may give a result:
    /// one node's policy, clock or fault decides nothing for the others.
    pub(super) fn of(error: JobError) -> Self {
        match error {
            // There is time left, or the job would have ended here.
            JobError::Busy | JobError::Expired => Self::Busy,
            JobError::Draining => Self::Draining,
            JobError::NoSuchKey => Self::NoSuchKey,
            JobError::NotOffered => Self::NotOffered,
            // The client has cancelled no job that waits.
            JobError::Failed | JobError::BadInput | JobError::Cancelled => Self::Failed,
            // Without a pause after which the node would do it.
            JobError::Denied | JobError::OverQuota => Self::Denied,
        }
    }

    /// Whether the failure is the connection's: the job may go to the same node over the next one.
    pub(super) fn leaves_with_the_connection(self) -> bool {
        matches!(self, Self::Lost | Self::Unsent | Self::Draining)
    }

    /// Whether it counts towards [`MAX_RETRIES`]: the node had the job.
    pub(super) fn counts(self) -> bool {
        !matches!(self, Self::KeyRefused | Self::Unsent)
    }

    /// Whether the node refused the job, and did no work for it.
    pub(super) fn declines(self) -> bool {
        matches!(self, Self::Busy | Self::NotOffered | Self::Denied)
    }

    /// Whether the retry adds load to nodes that work. A lost connection's jobs load no node twice.
    pub(super) fn costs(self) -> bool {
        matches!(self, Self::Busy | Self::OverQuota | Self::Failed | Self::NotOffered)
    }
}

/// An attempt that failed and is no longer in its job.
pub(super) struct FailedAttempt {
    pub(super) node: NodeIndex,
    pub(super) reason: Retry,
    /// Error with which the job ends if it is not retried.
    pub(super) error: ClientError,
}

impl Job {
    /// Records the failure of an attempt at a node. The node gets the job again only `same_node_again`, or if the
    /// failure was the connection's.
    pub(super) fn note_failure(&mut self, node: NodeIndex, reason: Retry, same_node_again: bool) {
        if !same_node_again && !reason.leaves_with_the_connection() {
            self.tried.insert(node);
        }
        if reason == Retry::Failed {
            self.failed.insert(node);
        }
        if reason.declines() {
            self.declined.insert(node);
        }
    }
}

/// A bound on what is sent beyond the jobs themselves: a share of their number, and a few more.
pub(super) struct Budget {
    level: u32,
    /// Price of one retry or hedge; each job pays in 1.
    price: u32,
    max: u32,
}

impl Budget {
    /// Retries: one per ten jobs. A process that has just started may retry ten times; at most a hundred
    /// retries are saved up.
    pub(super) fn for_retries() -> Self {
        Self::new(10, 10, 100)
    }

    /// Hedges: one per twenty jobs; the share that waits longer than the 99th percentile is smaller. At the start, and
    /// at once, no more than five: when a node hangs, pings detect it sooner than hedges help.
    pub(super) fn for_hedges() -> Self {
        Self::new(20, 5, 5)
    }

    fn new(price: u32, start: u32, max: u32) -> Self {
        Self { level: start * price, price, max: max * price }
    }

    /// Counts a job.
    pub(super) fn deposit(&mut self) {
        self.level = (self.level + 1).min(self.max);
    }

    /// Pays for one retry or hedge, if the level suffices.
    pub(super) fn take(&mut self) -> bool {
        let enough = self.level >= self.price;
        if enough {
            self.level -= self.price;
        }
        enough
    }

    /// Refunds one that was paid for and not sent.
    pub(super) fn give_back(&mut self) {
        self.level = (self.level + self.price).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_for_hedges_is_a_twentieth_and_five() {
        let mut budget = Budget::for_hedges();
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 5);
        let taken = (0..2000).filter(|_| {
            budget.deposit();
            budget.take()
        });
        assert_eq!(taken.count(), 100);
    }

    #[test]
    fn budget_for_retries_is_a_tenth_and_ten() {
        let mut budget = Budget::for_retries();
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 10);
        for _ in 0..100 {
            budget.deposit();
        }
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 10);
        for _ in 0..1_000_000 {
            budget.deposit();
        }
        assert_eq!((0..1000).filter(|_| budget.take()).count(), 100);
    }
}
