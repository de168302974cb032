// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which failures are worth another try, and how many tries there are.

use millrace_engine::error::JobError;

/// How often one job is sent again. A job that kills nodes kills three.
pub(super) const MAX_RETRIES: u8 = 2;

/// Why a job is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Lost,
    Busy,
    Draining,
    Failed,
    NoSuchKey,
    NotOffered,
    KeyRefused,
}

impl Retry {
    pub(super) fn of(error: JobError) -> Option<Self> {
        match error {
            JobError::Busy => Some(Self::Busy),
            JobError::Draining => Some(Self::Draining),
            JobError::NoSuchKey => Some(Self::NoSuchKey),
            JobError::NotOffered => Some(Self::NotOffered),
            other => other.retry_elsewhere().then_some(Self::Failed),
        }
    }

    /// Whether it adds to the load of nodes that work. A lost connection's jobs burden nobody twice.
    pub(super) fn costs(self) -> bool {
        matches!(self, Self::Busy | Self::Failed | Self::NotOffered)
    }
}

/// Retries allowed: one for each ten jobs, and a few.
pub(super) struct Budget(u32);

impl Budget {
    /// What a retry costs, in the unit that a job brings [`Self::PER_JOB`] of.
    const PRICE: u32 = 10;
    const PER_JOB: u32 = 1;
    /// A process that has just started may retry ten times.
    const START: u32 = 10 * Self::PRICE;
    /// Nobody saves up more than a hundred.
    const MOST: u32 = 100 * Self::PRICE;

    pub(super) fn new() -> Self {
        Self(Self::START)
    }

    /// Notes a job.
    pub(super) fn deposit(&mut self) {
        self.0 = (self.0 + Self::PER_JOB).min(Self::MOST);
    }

    /// Pays for a retry, if there is enough.
    pub(super) fn take(&mut self) -> bool {
        let enough = self.0 >= Self::PRICE;
        if enough {
            self.0 -= Self::PRICE;
        }
        enough
    }

    /// Takes back what was paid for a retry that did not come about.
    pub(super) fn give_back(&mut self) {
        self.0 = (self.0 + Self::PRICE).min(Self::MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_for_retries_is_a_tenth_and_a_few() {
        let mut budget = Budget::new();
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
