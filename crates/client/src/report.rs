// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! When and what an edge tells its nodes about itself. Without I/O: time and counters in, numbers out.
//!
//! Whoever uses the client counts what it did ([`ReportSource`]). Each thing that is counted is told to
//! one node only, the one that has done most since it was last told something, so that the sum over all
//! nodes is what happened. Nothing is told before the first job, nor while nothing happens; what was
//! counted last is told within [`INTERVAL`] and costs the process one wake-up.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_wire::{EdgeCounter, EdgeReport};

use crate::stats::Totals;

/// Least time between reports of one process, as the protocol has it.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Where the counters of an edge are read: those of the calling process, which only ever grow. It is
/// called with the pool locked: it must be quick, and must not use the pool.
#[derive(Clone)]
pub struct ReportSource(Arc<dyn Fn() -> EdgeReport + Send + Sync>);

impl ReportSource {
    /// The counters that `read` gives. What the client counts itself (hedges, cancelled jobs) is added
    /// by the client.
    pub fn new(read: impl Fn() -> EdgeReport + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for ReportSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReportSource")
    }
}

/// See the module.
pub(crate) struct Reporter {
    source: ReportSource,
    /// What all nodes together were told.
    told: EdgeReport,
    /// When the next report may be made; none while nothing happens.
    due: Option<Instant>,
}

impl Reporter {
    pub(crate) fn new(source: ReportSource) -> Self {
        Self {
            source,
            told: EdgeReport::default(),
            due: None,
        }
    }

    /// Something happened that may have been counted, or will be soon.
    pub(crate) fn activity(&mut self, now: Instant) {
        self.due.get_or_insert(now + INTERVAL);
    }

    /// When there may be something to tell.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether it is time. If so, it is not again before the next activity.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    /// What no node was told yet; from here on it counts as told.
    pub(crate) fn news(&mut self, totals: &Totals) -> Option<EdgeReport> {
        let mut counts = (self.source.0)();
        counts.set(EdgeCounter::Cancelled, totals.cancelled);
        counts.set(EdgeCounter::HedgeWon, totals.hedge_wins);
        counts.set(EdgeCounter::HedgeLost, totals.hedge_losses);
        let news = counts.since(&self.told);
        self.told.merge(&news);
        (!news.is_zero()).then_some(news)
    }
}
