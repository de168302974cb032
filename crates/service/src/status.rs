// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The answer of `/status`: a snapshot of a node, as names and numbers. It contains no secrets.

use std::time::Duration;

use millrace_engine::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client_reports::ClientReports;
use crate::metrics::Metrics;

/// The answer of `/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Name of the node.
    pub node: String,
    /// Version of Millrace.
    pub version: String,
    /// `ready` or `draining`.
    pub state: String,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Revision of the settings in force: 1 at the start.
    #[serde(default)]
    pub settings_revision: u64,
    /// Open connections.
    pub connections: u64,
    /// Connections refused before they became sessions.
    pub connections_refused: u64,
    /// Connections closed because of a fault of the client.
    pub faults: u64,
    /// Keys of the store that are loaded.
    pub keys: u64,
    /// Files of the store that cannot be used.
    pub keys_broken: u64,
    /// Jobs submitted and not yet completed.
    pub in_flight: usize,
    /// Jobs waiting, by class.
    pub waiting: Vec<Waiting>,
    /// Backends in order of preference.
    pub backends: Vec<Backend>,
    /// Jobs served, by backend and operation.
    pub operations: Vec<Operation>,
    /// The backends chosen by measured cost, for jobs that several backends can serve.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// Jobs that ended without a result, by reason, including those that the node refused.
    pub errors: Vec<Errors>,
    /// The connected clients that report their counters, the busiest first.
    #[serde(default)]
    pub edges: Vec<Edge>,
    /// The sum of all clients' reports since the node started.
    #[serde(default)]
    pub edge_totals: EdgeCounts,
}

/// A client that reports its counters, over all its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
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
    /// Results that failed verification.
    pub wrong_results: u64,
    /// Operations computed by the client itself, by reason.
    pub fallbacks: Vec<Errors>,
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
        self.fallbacks
            .iter()
            .fold(0, |sum: u64, reason| sum.saturating_add(reason.jobs))
    }
}

/// The open sessions of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sessions {
    /// One row per session, oldest first.
    pub sessions: Vec<SessionRow>,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionRow {
    /// Number of the session, unique while the node runs.
    pub session: u64,
    /// Identity of the client.
    pub identity: String,
    /// The client's software, as named by the client; empty before the hello.
    pub agent: String,
    /// Time of opening, in seconds since 1970.
    pub since: u64,
    /// Jobs that have not ended.
    pub in_flight: usize,
}

/// Jobs waiting in a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// The class.
    pub class: String,
    /// Number of jobs.
    pub jobs: usize,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backend {
    /// Its name.
    pub backend: String,
    /// Library or device with its version.
    pub version: String,
    /// The reason for which this machine cannot use it, if there is one.
    pub unusable: Option<String>,
    /// Whether a recent wrong result has excluded it from service.
    pub quarantined: bool,
    /// The reason for which its last queue could not be opened, if that is so now; other backends serve its jobs.
    #[serde(default)]
    pub queue_refused: Option<String>,
}

/// Jobs of one operation on one backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// The backend.
    pub backend: String,
    /// The operation.
    pub operation: String,
    /// Jobs that ended with a result.
    pub completed: u64,
    /// Tasks that ended without a result on the backend.
    pub failed: u64,
    /// Median of the time in the queue, in microseconds.
    pub queue_p50_us: f64,
    /// 99th percentile of the time in the queue, in microseconds.
    pub queue_p99_us: f64,
    /// Median of the service time, in microseconds.
    pub service_p50_us: f64,
    /// 99th percentile of the service time, in microseconds.
    pub service_p99_us: f64,
}

/// The backend chosen for batches of one kind of job and one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// The jobs: `rsa-2048` (any private operation), `p-256 sign`, ….
    pub jobs: String,
    /// Largest batch of this row; `None` in the last row, which has no bound.
    pub together: Option<usize>,
    /// The chosen backend.
    pub serving: String,
    /// Number of changes of the backend.
    pub switches: u64,
    /// Cost of a job, by backend.
    pub costs: Vec<Cost>,
}

/// Cost of one job on a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// The backend.
    pub backend: String,
    /// Time per job, in microseconds, near the median.
    pub us: f64,
}

/// Jobs that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Errors {
    /// The reason.
    pub reason: String,
    /// Number of jobs.
    pub jobs: u64,
}

impl Status {
    /// The current state of the node.
    pub(crate) fn of(
        node: &str,
        engine: &Engine,
        metrics: &Metrics,
        reports: &ClientReports,
        draining: bool,
        uptime: Duration,
        settings_revision: u64,
    ) -> Self {
        let stats = engine.stats();
        let refused = metrics.jobs_refused.values();
        Self {
            node: node.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: if draining { "draining" } else { "ready" }.to_owned(),
            uptime_seconds: uptime.as_secs(),
            settings_revision,
            connections: metrics.connections_open.value(),
            connections_refused: metrics.connections_refused.sum(),
            faults: metrics.faults.sum(),
            keys: metrics.keys_loaded.value(),
            keys_broken: metrics.keys_broken.value(),
            in_flight: stats.in_flight,
            waiting: stats
                .waiting
                .iter()
                .map(|(class, jobs)| Waiting {
                    class: class.name().to_owned(),
                    jobs: *jobs,
                })
                .collect(),
            backends: engine.backends().into_iter().map(Backend::of).collect(),
            operations: stats.series.iter().map(Operation::of).collect(),
            choices: engine.choices().into_iter().map(Choice::of).collect(),
            errors: stats
                .errors
                .iter()
                .zip(refused)
                .map(|((error, jobs), refused)| Errors {
                    reason: error.name().to_owned(),
                    jobs: jobs + refused,
                })
                .filter(|errors| errors.jobs > 0)
                .collect(),
            edges: reports.rows(),
            edge_totals: reports.totals(),
        }
    }
}

impl Backend {
    fn of(status: millrace_engine::engine::BackendStatus) -> Self {
        Self {
            backend: status.description.kind.name().to_owned(),
            version: status.description.version,
            unusable: status.unusable,
            quarantined: status.quarantined,
            queue_refused: status.queue_refused,
        }
    }
}

impl Choice {
    fn of(choice: millrace_engine::engine::Choice) -> Self {
        let cost = |(kind, time): (millrace_engine::BackendKind, Duration)| Cost {
            backend: kind.name().to_owned(),
            us: time.as_secs_f64() * 1e6,
        };
        Self {
            jobs: choice.jobs,
            together: choice.together,
            serving: choice.serving.name().to_owned(),
            switches: choice.switches,
            costs: choice.costs.into_iter().map(cost).collect(),
        }
    }
}

impl Operation {
    fn of(series: &millrace_engine::stats::SeriesSnapshot) -> Self {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Self {
            backend: series.backend.name().to_owned(),
            operation: series.operation.name().to_owned(),
            completed: series.completed,
            failed: series.failed,
            queue_p50_us: us(series.queue_time.quantile(0.5)),
            queue_p99_us: us(series.queue_time.quantile(0.99)),
            service_p50_us: us(series.service_time.quantile(0.5)),
            service_p99_us: us(series.service_time.quantile(0.99)),
        }
    }
}
