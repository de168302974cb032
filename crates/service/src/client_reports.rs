// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports of the clients about their own operations, per client and in total.
//!
//! A session computes the increase since a client's last report ([`crate::session`]). This module adds the
//! increase to the client's row and to the totals, which are also metrics. A row exists while its client has
//! a connection on which it has reported; the totals keep the counts of clients that are gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use millrace_operation::sync::lock;
use millrace_wire::{EdgeCounter, EdgeReport};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metrics::{
    DeviceBytes, DeviceOps, EdgeFallback, EdgeHedge, EdgeResult, EdgeWait, Metrics,
};

/// Bound on the rows shown, the clients with the most jobs: a few tens of KiB of text. The number of rows
/// itself is that of clients with different names or agents.
const MAX_SHOWN: usize = 256;

/// Bound on the increase of a counter by one report: more than any client counts in a second. A client that
/// lies changes its own row, and needs decades to overflow a total.
const MAX_NEWS: u64 = 1 << 32;

/// A client that reports its counters, over all its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EdgeRow {
    /// The client's identity.
    pub identity: String,
    /// The client's software, as named by the client.
    pub agent: String,
    /// The client's open connections that have reported.
    pub connections: u64,
    /// Counts since the client opened the first of them.
    #[serde(flatten)]
    pub counts: EdgeCounts,
}

/// Counters that clients report to this node. A client with several nodes reports each event to one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EdgeCounts {
    /// Operations done by the pool.
    pub pooled: u64,
    /// Jobs for which the application waited without blocking a thread.
    pub paused: u64,
    /// Jobs for which a thread of the application waited, blocked.
    pub blocking: u64,
    /// Jobs also sent to a second node, which answered first.
    pub hedges_won: u64,
    /// Jobs also sent to a second node, which did not answer first.
    pub hedges_lost: u64,
    /// Operations that ended as an error in the application.
    pub failed: u64,
    /// Operations whose caller stopped waiting.
    pub abandoned: u64,
    /// Jobs cancelled by the application.
    pub cancelled: u64,
    /// Results that failed verification, and answers that broke the protocol.
    pub wrong_results: u64,
    /// Operations computed by the client itself, by reason.
    pub fallbacks: Vec<ErrorRow>,
    /// The work of a virtio-crypto device, under the names of QEMU's `query-stats`; counters that are 0 are left out.
    #[serde(default)]
    pub device: BTreeMap<String, u64>,
}

impl EdgeCounts {
    /// Jobs submitted to the pool.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.paused.saturating_add(self.blocking)
    }

    /// Operations computed by the client itself.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks.iter().fold(0, |sum: u64, reason| sum.saturating_add(reason.jobs))
    }
}

/// Jobs that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorRow {
    /// Reason, as metrics and clients name it: `busy`, `over-quota`, `denied`, ….
    pub reason: String,
    /// Jobs that ended with it since the node started.
    pub jobs: u64,
}

/// A client: its identity, and the agent name that it sent.
type Client = (Arc<str>, Arc<str>);

/// The counters of the clients that report, and their totals.
#[derive(Debug, Default)]
pub(crate) struct ClientReports(Mutex<ReportTable>);

/// Bound: at most one row per connection.
#[derive(Debug, Default)]
struct ReportTable {
    rows: HashMap<Client, ReportRow>,
    totals: EdgeReport,
}

#[derive(Debug, Default)]
struct ReportRow {
    connections: u64,
    counts: EdgeReport,
}

impl ClientReports {
    /// Registers a connection that reports for the first time.
    pub(crate) fn enter(&self, identity: &Arc<str>, agent: &Arc<str>) {
        let client = (Arc::clone(identity), Arc::clone(agent));
        self.lock().rows.entry(client).or_default().connections += 1;
    }

    /// Unregisters a connection that has reported.
    pub(crate) fn leave(&self, identity: &Arc<str>, agent: &Arc<str>) {
        let client = (Arc::clone(identity), Arc::clone(agent));
        let mut book = self.lock();
        if let Some(row) = book.rows.get_mut(&client) {
            row.connections -= 1;
            if row.connections == 0 {
                book.rows.remove(&client);
            }
        }
    }

    /// Adds the increase since the previous report.
    pub(crate) fn add(
        &self,
        identity: &Arc<str>,
        agent: &Arc<str>,
        news: &EdgeReport,
        metrics: &Metrics,
    ) {
        let mut bounded = *news;
        for (counter, count) in news.iter() {
            bounded.set(counter, count.min(MAX_NEWS));
            count_metric(metrics, counter, count.min(MAX_NEWS));
        }
        metrics.edge_reports.add(1);
        let mut book = self.lock();
        book.totals.merge(&bounded);
        let client = (Arc::clone(identity), Arc::clone(agent));
        if let Some(row) = book.rows.get_mut(&client) {
            row.counts.merge(&bounded);
        }
    }

    /// The sum of the rows of one identity.
    pub(crate) fn of(&self, identity: &str) -> EdgeReport {
        let mut sum = EdgeReport::default();
        for ((owner, _), row) in &self.lock().rows {
            if &**owner == identity {
                sum.merge(&row.counts);
            }
        }
        sum
    }

    /// The sum of all reports since the node started.
    pub(crate) fn totals(&self) -> EdgeCounts {
        counts(&self.lock().totals)
    }

    /// Number of clients, with those that [`Self::rows`] leaves out.
    pub(crate) fn clients(&self) -> usize {
        self.lock().rows.len()
    }

    /// One row per client, the busiest first, at most [`MAX_SHOWN`].
    pub(crate) fn rows(&self) -> Vec<EdgeRow> {
        let row = |((identity, agent), row): (&Client, &ReportRow)| EdgeRow {
            identity: identity.to_string(),
            agent: agent.to_string(),
            connections: row.connections,
            counts: counts(&row.counts),
        };
        let mut rows: Vec<EdgeRow> = self.lock().rows.iter().map(row).collect();
        rows.sort_by_cached_key(|edge| {
            let name = (edge.identity.clone(), edge.agent.clone());
            (std::cmp::Reverse(edge.counts.jobs()), name)
        });
        rows.truncate(MAX_SHOWN);
        rows
    }

    fn lock(&self) -> MutexGuard<'_, ReportTable> {
        lock(&self.0)
    }
}

fn count_metric(metrics: &Metrics, counter: EdgeCounter, count: u64) {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if let Some(wait) = EdgeWait::of(counter) {
        metrics.edge_jobs.add(wait, count);
    } else if let Some(hedge) = EdgeHedge::of(counter) {
        metrics.edge_hedges.add(hedge, count);
    } else if let Some(reason) = EdgeFallback::of(counter) {
        metrics.edge_fallbacks.add(reason, count);
    } else if let Some(result) = EdgeResult::of(counter) {
        metrics.edge_operations.add(result, count);
    } else if let Some(operation) = DeviceOps::of(counter) {
        metrics.virtio_ops.add(operation, count);
    } else if let Some(operation) = DeviceBytes::of(counter) {
        metrics.virtio_bytes.add(operation, count);
    }
}

fn counts(report: &EdgeReport) -> EdgeCounts {
    let fallbacks = report.iter().filter_map(|(counter, jobs)| {
        let reason = counter.fallback_reason()?.to_owned();
        (jobs > 0).then_some(ErrorRow { reason, jobs })
    });
    EdgeCounts {
        pooled: report.get(EdgeCounter::Pooled),
        paused: report.get(EdgeCounter::Paused),
        blocking: report.get(EdgeCounter::Blocking),
        hedges_won: report.get(EdgeCounter::HedgeWon),
        hedges_lost: report.get(EdgeCounter::HedgeLost),
        failed: report.get(EdgeCounter::Failed),
        abandoned: report.get(EdgeCounter::Abandoned),
        cancelled: report.get(EdgeCounter::Cancelled),
        wrong_results: report.get(EdgeCounter::WrongResults),
        fallbacks: fallbacks.collect(),
        device: report
            .iter()
            .filter(|(counter, count)| counter.is_of_device() && *count > 0)
            .map(|(counter, count)| (counter.name().to_owned(), count))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counts: &[(EdgeCounter, u64)]) -> EdgeReport {
        let mut report = EdgeReport::default();
        for (counter, count) in counts {
            report.set(*counter, *count);
        }
        report
    }

    #[test]
    fn row_ends_with_its_last_connection_and_totals_stay() {
        let edges = ClientReports::default();
        let metrics = Metrics::default();
        let identity = Arc::from("uid:1");
        let agent = Arc::from("millrace-provider/1");
        let news = report(&[(EdgeCounter::Paused, 3), (EdgeCounter::FallbackBusy, 2)]);
        for _ in 0..2 {
            edges.enter(&identity, &agent);
            edges.add(&identity, &agent, &news, &metrics);
        }
        let rows = edges.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].connections, rows[0].counts.paused), (2, 6));
        assert_eq!(rows[0].counts.fallbacks[0].jobs, 4);
        assert_eq!(edges.of("uid:1").get(EdgeCounter::Paused), 6);
        assert!(edges.of("uid:2").is_zero(), "another identity");
        edges.leave(&identity, &agent);
        assert_eq!(edges.rows()[0].connections, 1);
        edges.leave(&identity, &agent);
        assert!(edges.rows().is_empty());
        assert_eq!(edges.totals().paused, 6);
        assert_eq!(metrics.edge_jobs.sum(), 6);
        assert_eq!(metrics.edge_fallbacks.sum(), 4);
    }

    #[test]
    fn every_counter_is_shown_and_is_a_metric() {
        let edges = ClientReports::default();
        let metrics = Metrics::default();
        for (place, counter) in (1..).zip(EdgeCounter::ALL) {
            edges.add(&"i".into(), &"a".into(), &report(&[(*counter, 1)]), &metrics);
            let counted = metrics.edge_jobs.sum()
                + metrics.edge_hedges.sum()
                + metrics.edge_fallbacks.sum()
                + metrics.edge_operations.sum()
                + metrics.virtio_ops.sum()
                + metrics.virtio_bytes.sum();
            assert_eq!(counted, place, "{counter:?} is not a metric");
        }
        let shown = serde_json::to_string(&edges.totals()).unwrap();
        assert_eq!(shown.matches(":1").count(), EdgeCounter::ALL.len());
    }

    #[test]
    fn false_reports_and_rows_are_bounded() {
        let edges = ClientReports::default();
        let metrics = Metrics::default();
        for n in 0..2 * MAX_SHOWN as u64 {
            let identity = Arc::from(format!("uid:{n}"));
            edges.enter(&identity, &"a".into());
            let lie = report(&[(EdgeCounter::Blocking, u64::MAX - n)]);
            edges.add(&identity, &"a".into(), &lie, &metrics);
        }
        assert_eq!(edges.totals().blocking, 2 * MAX_SHOWN as u64 * MAX_NEWS);
        assert_eq!((edges.rows().len(), edges.clients()), (MAX_SHOWN, 2 * MAX_SHOWN));
    }
}
