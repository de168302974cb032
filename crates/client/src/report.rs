// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! When and what an edge tells its nodes about itself. Without I/O: time and counters in, numbers out.
//!
//! Whoever uses the client counts what it did ([`ReportSource`]). Each thing that is counted is told to
//! one node only, the one that has done most since it was last told something, so that the sum over all
//! nodes is what happened. Nothing is told before the first job, nor while nothing happens; what was
//! counted last is told within twice [`INTERVAL`] and costs the process two wake-ups at most.

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
    /// When something happened last, if no report was due since.
    last: Option<Instant>,
}

impl Reporter {
    pub(crate) fn new(source: ReportSource) -> Self {
        Self {
            source,
            told: EdgeReport::default(),
            due: None,
            last: None,
        }
    }

    /// Something happened that may have been counted, or will be soon.
    pub(crate) fn activity(&mut self, now: Instant) {
        self.last = Some(now);
        self.due.get_or_insert(now + INTERVAL);
    }

    /// When there may be something to tell.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether it is time. If so, it is not again before the next activity, or once more if the last one
    /// was just now: who ends a job counts it after that.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        let is_time = self.due.take_if(|due| *due <= now).is_some();
        if is_time {
            let last = self.last.take();
            let fresh = last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL);
            self.due = fresh.then(|| now + INTERVAL);
        }
        is_time
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_after_its_job_is_told_with_the_next_report() {
        let mut reporter = Reporter::new(ReportSource::new(EdgeReport::default));
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        reporter.activity(at(0));
        reporter.activity(at(900));
        assert!(!reporter.take_due(at(999)));
        assert!(reporter.take_due(at(1000)));
        assert_eq!(reporter.due(), Some(at(2000)), "the last one was just now");
        assert!(reporter.take_due(at(2000)));
        assert_eq!(reporter.due(), None);
        reporter.activity(at(5000));
        assert!(reporter.take_due(at(6000)));
        assert_eq!(reporter.due(), None, "a second is enough to count");
    }
}
