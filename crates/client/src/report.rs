// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports of an edge to its nodes: when one is due, and its counters. Without I/O: time and counters in, numbers out.
//!
//! The program that uses the client counts ([`ReportSource`]). Each count goes to one node only, the one
//! that has done most jobs since its last report, so that the sum over all nodes is the true total. There
//! is no report before the first job, nor while nothing happens. The last counts of a burst are reported
//! within twice [`INTERVAL`] and cost the process two wake-ups at most.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_wire::{EdgeCounter, EdgeReport};

use crate::stats::Totals;

/// Shortest time between reports of one process, by the protocol.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Source of the counters of an edge: those of the calling process, which only ever grow. It is called with the pool
/// locked: it must be quick, and must not use the pool.
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

/// Decides when a report is due, and what is new in it.
pub(crate) struct Reporter {
    source: ReportSource,
    /// Sum of all reports so far, to all nodes.
    reported: EdgeReport,
    /// Time from which the next report may be made. `None` while nothing happens.
    due: Option<Instant>,
    /// Time of the last activity. `None` if a report was due since.
    last: Option<Instant>,
}

impl Reporter {
    pub(crate) fn new(source: ReportSource) -> Self {
        Self { source, reported: EdgeReport::default(), due: None, last: None }
    }

    /// A job or operation ended at `now`: it was counted, or will be soon.
    pub(crate) fn activity(&mut self, now: Instant) {
        self.last = Some(now);
        self.due.get_or_insert(now + INTERVAL);
    }

    /// Time from which the next report may be made.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether a report is due. The next one is due after further activity, or once more if the last
    /// activity was within [`INTERVAL`]: the owner of a job counts it after its end.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        let is_time = self.due.take_if(|due| *due <= now).is_some();
        if is_time {
            let last = self.last.take();
            let fresh = last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL);
            self.due = fresh.then(|| now + INTERVAL);
        }
        is_time
    }

    /// The counts that are in no report yet. From here on they count as reported.
    pub(crate) fn news(&mut self, totals: &Totals) -> Option<EdgeReport> {
        let mut counts = (self.source.0)();
        counts.add(EdgeCounter::WrongResults, totals.contradictions);
        counts.set(EdgeCounter::Cancelled, totals.cancelled);
        counts.set(EdgeCounter::HedgeWon, totals.hedge_wins);
        counts.set(EdgeCounter::HedgeLost, totals.hedge_losses);
        let news = counts.since(&self.reported);
        self.reported.merge(&news);
        (!news.is_zero()).then_some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_made_after_its_job_goes_into_the_next_report() {
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
