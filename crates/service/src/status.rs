// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The answer of `/status`: a snapshot of a node, as names and numbers. It contains no secrets.

use std::time::Duration;

use millrace_engine::Engine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::account::AccountSnapshot;
use crate::client_reports::{ClientReports, EdgeCounts, EdgeRow, ErrorRow};
use crate::enforcement::GrantRow;
use crate::metrics::Metrics;
use crate::quota::Exceeded;
use crate::rates::Rates;
use crate::tenants::Priority;

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
    pub waiting: Vec<WaitingRow>,
    /// Backends in order of preference.
    pub backends: Vec<BackendRow>,
    /// Jobs served, by backend and operation.
    pub operations: Vec<OperationRow>,
    /// The backends chosen by measured cost, for jobs that several backends can serve.
    #[serde(default)]
    pub choices: Vec<ChoiceRow>,
    /// Jobs that ended without a result, by reason, including those that the node refused.
    pub errors: Vec<ErrorRow>,
    /// The connected clients that report their counters, the busiest first.
    #[serde(default)]
    pub edges: Vec<EdgeRow>,
    /// Number of clients that report, with those that are not in the list.
    #[serde(default)]
    pub edge_clients: usize,
    /// The sum of all clients' reports since the node started.
    #[serde(default)]
    pub edge_totals: EdgeCounts,
    /// The tenants, by name.
    #[serde(default)]
    pub tenants: Vec<TenantRow>,
    /// The grants in force, by tenant; absent for a node without a manager.
    #[serde(default)]
    pub grants: Option<Vec<GrantRow>>,
}

/// A tenant's share of the node, and its use since its account was opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantRow {
    /// Name of the tenant.
    pub tenant: String,
    /// Share of a busy node within its priority.
    pub weight: u32,
    /// Order in which a busy node serves tenants.
    pub priority: Priority,
    /// Limits on rates.
    pub rates: Rates,
    /// Open connections.
    pub connections: usize,
    /// Jobs that have not ended.
    pub in_flight: usize,
    /// Bytes of their inputs.
    pub bytes_in_flight: u64,
    /// Imported keys that are open.
    pub imported_keys: usize,
    /// Jobs that the policy of their key allows.
    pub offered: u64,
    /// Offered jobs that were handed to the engine.
    pub admitted: u64,
    /// Bytes of their inputs.
    pub bytes: u64,
    /// Jobs refused for a rate, by rate: `ops`, `class`, `bytes`.
    pub throttled: Vec<ErrorRow>,
    /// Jobs refused because the tenant holds as much memory as it may.
    pub over_bounds: u64,
    /// Jobs that the engine ended because it was busy.
    pub shed: u64,
    /// Jobs that ended with a result.
    pub completed: u64,
    /// Jobs that ended in another way.
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
pub struct WaitingRow {
    /// Class of cost: `fast`, `medium` or `slow`.
    pub class: String,
    /// Jobs in its queue, without those in service.
    pub jobs: usize,
}

/// State and counters of a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackendRow {
    /// Name, as `--backends` has it.
    pub backend: String,
    /// Library or device with its version.
    pub version: String,
    /// The reason for which this machine cannot use it, if there is one.
    pub unusable: Option<String>,
    /// Whether a recent wrong result has excluded it from service.
    pub quarantined: bool,
    /// The reason for which its devices are away now, after a fatal error for example; other backends serve its jobs.
    #[serde(default)]
    pub away: Option<String>,
    /// The reason for which its last queue could not be opened, if that is so now; other backends serve its jobs.
    #[serde(default)]
    pub queue_refused: Option<String>,
    /// Its devices or instances, where it tells them apart.
    #[serde(default)]
    pub devices: Vec<DeviceRow>,
}

/// One device of a backend, or one instance of it. Counters are since the node started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceRow {
    /// Its name: for a QAT instance, bus address of the virtual function and number.
    pub device: String,
    /// Whether it takes requests now.
    pub serving: bool,
    /// Requests that it holds.
    pub in_flight: usize,
    /// Requests that it can hold.
    pub capacity: usize,
    /// Places of requests that were given up, and that it may still answer.
    pub slots_lost: usize,
    /// Requests handed to it.
    pub submitted: u64,
    /// Requests that it refused because it was full.
    pub full: u64,
    /// Requests that ended with a verified result.
    pub served: u64,
    /// Results that failed verification.
    pub faults: u64,
    /// Requests that were not answered in time.
    pub lost: u64,
    /// Starts of it after the first.
    pub restarts: u64,
}

/// Jobs of one operation on one backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationRow {
    /// Backend that ran them.
    pub backend: String,
    /// Name of the operation, such as `rsa-pss-sign`.
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
pub struct ChoiceRow {
    /// The jobs: `rsa-2048` (any private operation), `p-256 sign`, ….
    pub jobs: String,
    /// Largest batch of this row; `None` in the last row, which has no bound.
    #[serde(rename = "together")]
    pub max_batch: Option<usize>,
    /// Backend that serves them.
    pub serving: String,
    /// Changes of that backend since the node started.
    pub switches: u64,
    /// Cost of a job, by backend.
    pub costs: Vec<CostRow>,
}

/// Cost of one job on a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostRow {
    /// Backend that was measured.
    pub backend: String,
    /// Time per job, in microseconds, near the median.
    pub us: f64,
}

/// Parts from which a status is composed.
pub(crate) struct StatusSource<'a> {
    /// Name of the node.
    pub(crate) node: &'a str,
    pub(crate) engine: &'a Engine,
    pub(crate) metrics: &'a Metrics,
    pub(crate) reports: &'a ClientReports,
    pub(crate) draining: bool,
    /// Time since the start.
    pub(crate) uptime: Duration,
    /// Revision of the settings in force.
    pub(crate) settings_revision: u64,
    /// The accounts of all parties, of which only tenants have a row.
    pub(crate) tenants: &'a [AccountSnapshot],
    /// The grants in force; `None` without a manager.
    pub(crate) grants: Option<Vec<GrantRow>>,
}

impl Status {
    /// The current state of the node.
    pub(crate) fn of(source: StatusSource<'_>) -> Self {
        let StatusSource {
            node,
            engine,
            metrics,
            reports,
            draining,
            uptime,
            settings_revision,
            tenants,
            grants,
        } = source;
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
                .map(|(class, jobs)| WaitingRow { class: class.name().to_owned(), jobs: *jobs })
                .collect(),
            backends: engine.backends().into_iter().map(BackendRow::of).collect(),
            operations: stats.series.iter().map(OperationRow::of).collect(),
            choices: engine.choices().into_iter().map(ChoiceRow::of).collect(),
            errors: stats
                .errors
                .iter()
                .zip(refused)
                .map(|((error, jobs), refused)| ErrorRow {
                    reason: error.name().to_owned(),
                    jobs: jobs + refused,
                })
                .filter(|errors| errors.jobs > 0)
                .collect(),
            edges: reports.rows(),
            edge_clients: reports.clients(),
            edge_totals: reports.totals(),
            tenants: tenants.iter().filter_map(TenantRow::of).collect(),
            grants,
        }
    }
}

impl TenantRow {
    /// The row of an account, if its party is a tenant.
    fn of(account: &AccountSnapshot) -> Option<Self> {
        let terms = &account.terms;
        let throttled = Exceeded::ALL.iter().zip(account.throttled);
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Some(Self {
            tenant: terms.tenant()?.to_owned(),
            weight: terms.weight,
            priority: terms.priority,
            rates: terms.rates.clone(),
            connections: account.connections,
            in_flight: account.jobs_in_flight,
            bytes_in_flight: account.bytes_in_flight,
            imported_keys: account.imported_keys,
            offered: account.offered,
            admitted: account.admitted,
            bytes: account.bytes,
            throttled: throttled
                .map(|(exceeded, jobs)| ErrorRow { reason: exceeded.name().to_owned(), jobs })
                .collect(),
            over_bounds: account.over_bounds,
            shed: account.shed,
            completed: account.completed,
            failed: account.failed,
            queue_p50_us: us(account.wait.quantile(0.5)),
            queue_p99_us: us(account.wait.quantile(0.99)),
            service_p50_us: us(account.service.quantile(0.5)),
            service_p99_us: us(account.service.quantile(0.99)),
        })
    }
}

impl BackendRow {
    fn of(status: millrace_engine::BackendStatus) -> Self {
        Self {
            backend: status.description.kind.name().to_owned(),
            version: status.description.version,
            unusable: status.unusable,
            quarantined: status.quarantined,
            away: status.away,
            queue_refused: status.queue_refused,
            devices: status.devices.into_iter().map(DeviceRow::of).collect(),
        }
    }
}

impl DeviceRow {
    fn of(status: millrace_engine::backend::BackendDeviceStatus) -> Self {
        let millrace_engine::backend::BackendDeviceStatus {
            name,
            serving,
            in_flight,
            capacity,
            slots_lost,
            submitted,
            full,
            served,
            faults,
            lost,
            restarts,
        } = status;
        Self {
            device: name,
            serving,
            in_flight,
            capacity,
            slots_lost,
            submitted,
            full,
            served,
            faults,
            lost,
            restarts,
        }
    }
}

impl ChoiceRow {
    fn of(choice: millrace_engine::BackendChoice) -> Self {
        let costs = choice.costs.into_iter().map(|(kind, time)| CostRow {
            backend: kind.name().to_owned(),
            us: time.as_secs_f64() * 1e6,
        });
        Self {
            jobs: choice.jobs,
            max_batch: choice.max_batch,
            serving: choice.serving.name().to_owned(),
            switches: choice.switches,
            costs: costs.collect(),
        }
    }
}

impl OperationRow {
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
