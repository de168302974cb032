// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What `/status` answers: a node at one moment, as names and numbers. Nothing here is secret.

use std::time::Duration;

use millrace_engine::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client_reports::ClientReports;
use crate::metrics::Metrics;

/// What `/status` answers.
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
    /// Number of the change of settings that is in force: 1 at the start.
    #[serde(default)]
    pub settings_revision: u64,
    /// Connections open now.
    pub connections: u64,
    /// Connections refused before they became sessions.
    pub connections_refused: u64,
    /// Connections closed for a fault of the client.
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
    /// The backends chosen by measured cost, where several can serve.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// Jobs that ended without a result, by reason, those that the node refused included.
    pub errors: Vec<Errors>,
    /// The clients that report about themselves and are connected, the busiest first.
    #[serde(default)]
    pub edges: Vec<Edge>,
    /// What all clients have reported since the node was started.
    #[serde(default)]
    pub edge_totals: EdgeCounts,
}

/// A client that reports about itself: all its connections together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
    /// Its identity.
    pub identity: String,
    /// What software it says it is.
    pub agent: String,
    /// Its connections that have reported and are open.
    pub connections: u64,
    /// What it reported since the first of them was opened.
    #[serde(flatten)]
    pub counts: EdgeCounts,
}

/// What edges have counted and reported to this node. An edge with several nodes reports each event to one of
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EdgeCounts {
    /// Operations that the pool did.
    pub pooled: u64,
    /// Jobs whose answer the application awaited without holding its thread.
    pub paused: u64,
    /// Jobs whose answer a thread of the application waited for.
    pub blocking: u64,
    /// Jobs that were sent to a second node, which answered first.
    pub hedges_won: u64,
    /// Jobs that were sent to a second node in vain.
    pub hedges_lost: u64,
    /// Operations that ended as an error of the application.
    pub failed: u64,
    /// Operations whose caller no longer waited.
    pub abandoned: u64,
    /// Jobs that the application took back.
    pub cancelled: u64,
    /// Results that did not verify.
    pub wrong_results: u64,
    /// Operations that the edge did itself, by reason.
    pub fallbacks: Vec<Errors>,
}

impl EdgeCounts {
    /// Jobs given to the pool.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.paused.saturating_add(self.blocking)
    }

    /// Operations that the edge did itself.
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
    /// One row for each, oldest first.
    pub sessions: Vec<SessionRow>,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionRow {
    /// Its number, unique while the node runs.
    pub session: u64,
    /// Identity of the client.
    pub identity: String,
    /// Name of the client's software, as the client gave it; empty before the hello.
    pub agent: String,
    /// When it was opened, in seconds since 1970.
    pub since: u64,
    /// Jobs that have not ended.
    pub in_flight: usize,
}

/// Jobs waiting in a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// The class.
    pub class: String,
    /// How many.
    pub jobs: usize,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Backend {
    /// Its name.
    pub backend: String,
    /// Library or device with its version.
    pub version: String,
    /// Why it cannot be used here, if it cannot.
    pub unusable: Option<String>,
    /// Whether it computed something wrong lately and is passed over.
    pub quarantined: bool,
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
    /// Tasks that the backend did not answer with a result.
    pub failed: u64,
    /// Median of the time before service, in microseconds.
    pub queue_p50_us: f64,
    /// 99th percentile of the same, in microseconds.
    pub queue_p99_us: f64,
    /// Median of the time of service, in microseconds.
    pub service_p50_us: f64,
    /// 99th percentile of the same, in microseconds.
    pub service_p99_us: f64,
}

/// The backend chosen for batches of one kind of job and one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// The jobs: `rsa-2048` (any private operation), `p-256 sign`, ….
    pub jobs: String,
    /// Largest batch of this row; none for batches larger than in the rows before.
    pub together: Option<usize>,
    /// The backend that serves them.
    pub serving: String,
    /// Number of changes of the backend.
    pub switches: u64,
    /// Cost of a job, by backend.
    pub costs: Vec<Cost>,
}

/// Cost of a job on a backend.
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
    /// How many.
    pub jobs: u64,
}

impl Status {
    /// The node as it is now.
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
