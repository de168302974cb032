// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Overview`]: what the page and `millrace pool status` show. A node answers with an overview of itself, the manager
//! with one of its pool; both have the same form, so one page shows either.
//!
//! ```text
//!  counters of a node ──► OverviewSampler (once a second) ──► Overview of the node
//!                                                                  │ in its heartbeat
//!                                               manager: pool_overview::of_pool ──► Overview of the pool
//! ```
//!
//! - `sampler`: the overview of a node, from its counters.
//! - `verdict`: the rules for the sentence at the top, the same for a node and a pool.
//!
//! Rates are differences of counters between two samples. An overview holds names and numbers, no secrets. Every list
//! has a bound, since the manager keeps one overview per node.

mod sampler;
mod verdict;

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::tenants::Priority;
pub use sampler::OverviewSampler;
pub use verdict::OverviewFinding;

/// Bound on each list of a [shortened](Overview::shortened) overview: what fits a screen, and 1,000 nodes take 20 MiB
/// of the manager.
pub const MAX_ROWS: usize = 50;

/// The state of a node or of a pool, as the page shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// `node` or `pool`.
    pub scope: Scope,
    /// Name of the node or of the pool.
    pub name: String,
    /// Version of Millrace.
    pub version: String,
    /// Time of the sample, in milliseconds since 1970.
    pub at_ms: u64,
    /// The summary in one sentence.
    pub verdict: Verdict,
    /// The six numbers at the top of the page.
    pub figures: Figures,
    /// One row per node.
    pub nodes: Vec<NodeRow>,
    /// Clients that report their counters, the busiest first.
    #[serde(default)]
    pub clients: Vec<ClientRow>,
    /// Tenants against their quota.
    #[serde(default)]
    pub tenants: Vec<TenantLine>,
    /// Keys and certificates.
    #[serde(default)]
    pub keys: Vec<KeyLine>,
    /// The latest events, newest first.
    #[serde(default)]
    pub events: Vec<Event>,
    /// Numbers of rows that there are, where the lists have only the first.
    #[serde(default)]
    pub totals: RowTotals,
}

/// Numbers of rows of an overview, with those that its lists leave out; 0 from versions that do not count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct RowTotals {
    /// Clients that report.
    pub clients: usize,
    /// Tenants.
    pub tenants: usize,
    /// Keys and certificates.
    pub keys: usize,
    /// Keys that cannot be used.
    pub broken_keys: usize,
    /// Events, of an unlimited past.
    pub events: usize,
}

impl Overview {
    /// The overview with lists of at most [`MAX_ROWS`] rows, and their [totals](RowTotals): those with a finding come
    /// first. The verdict stays that of all rows. The list of nodes is whole.
    #[must_use]
    pub fn shortened(mut self) -> Self {
        self.totals = self.counted();
        if self.tenants.len() > MAX_ROWS {
            self.tenants.sort_by_key(|row| row.condition().is_none());
        }
        if self.keys.len() > MAX_ROWS {
            self.keys.sort_by_key(|row| (row.problem.is_empty(), row.expires.unwrap_or(i64::MAX)));
        }
        self.clients.truncate(MAX_ROWS);
        self.tenants.truncate(MAX_ROWS);
        self.keys.truncate(MAX_ROWS);
        self.events.truncate(MAX_ROWS);
        self
    }

    /// Numbers of rows, at least those of the lists.
    #[must_use]
    pub fn counted(&self) -> RowTotals {
        let broken = self.keys.iter().filter(|key| !key.problem.is_empty()).count();
        let RowTotals { clients, tenants, keys, broken_keys, events } = self.totals;
        RowTotals {
            clients: clients.max(self.clients.len()),
            tenants: tenants.max(self.tenants.len()),
            keys: keys.max(self.keys.len()),
            broken_keys: broken_keys.max(broken),
            events: events.max(self.events.len()),
        }
    }
}

/// The extent of an overview.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// This node alone.
    Node,
    /// All nodes that the manager knows.
    Pool,
}

/// One sentence about the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The worst of the reasons.
    pub level: VerdictLevel,
    /// The sentence.
    pub text: String,
}

/// Severity of a finding.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictLevel {
    /// Nothing to do.
    #[default]
    Good,
    /// Works, and needs attention.
    Warning,
    /// Does not work for some clients.
    Critical,
}

impl VerdictLevel {
    /// Name of the level.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// State of a node in its pool. A lone node is ready or draining.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Serves, and takes tenants.
    Ready,
    /// Serves, and takes no new tenants; those that it serves move to others.
    Draining,
    /// Its lease has expired.
    Away,
    /// Removed by an operator.
    Removed,
}

impl NodeState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Draining, Self::Away, Self::Removed];

    /// The word for it, in tables and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Away => "away",
            Self::Removed => "removed",
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a backend serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackendState {
    /// Serves.
    Ready,
    /// Returned a wrong result, and is tried again later.
    Quarantined,
    /// Cannot be used on this machine.
    Unusable,
}

/// The numbers at the top of the page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figures {
    /// Operations that ended with a result, per second.
    pub ops_per_s: f64,
    /// Median time of an operation in the node, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same; of a pool: of its slowest node.
    pub p99_us: f64,
    /// Share of the gateways' operations that they computed themselves in the last five minutes, 0 to 1.
    pub fallback_share: f64,
    /// Operations that ended without a result, per second.
    pub failed_per_s: f64,
    /// Share of the measured capacity that is free, 0 to 1; `None` without a measurement.
    pub capacity_left: Option<f64>,
    /// CPU seconds per second that the gateways save, estimated: operations by their cost in the software backend,
    /// without the gateway's own cost of a pooled operation. Negative where pooling costs more.
    pub cpu_saved: f64,
}

/// Load and state of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRow {
    /// Name of the node.
    pub name: String,
    /// State in the pool.
    pub state: NodeState,
    /// Version of Millrace.
    pub version: String,
    /// Zone label; empty without one.
    #[serde(default)]
    pub zone: String,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Jobs that wait.
    pub waiting: usize,
    /// Open connections.
    pub connections: u64,
    /// Median time of an operation, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// Operations per second by class, as measured at the start; empty without a measurement.
    #[serde(default)]
    pub capacity: Vec<ClassRate>,
    /// Share of the workers' time that was busy, 0 to 1.
    #[serde(default)]
    pub busy: Option<f64>,
    /// Backends of the node, in order of preference.
    pub backends: Vec<BackendLine>,
    /// Whether it has missed its heartbeat, and its lease has not ended yet.
    #[serde(default)]
    pub silent: bool,
}

impl NodeRow {
    /// A node that nothing is known of but its name and state: all figures are 0.
    #[must_use]
    pub fn new(name: impl Into<String>, state: NodeState) -> Self {
        Self {
            name: name.into(),
            state,
            version: String::new(),
            zone: String::new(),
            ops_per_s: 0.0,
            waiting: 0,
            connections: 0,
            p50_us: 0.0,
            p99_us: 0.0,
            capacity: Vec::new(),
            busy: None,
            backends: Vec::new(),
            silent: false,
        }
    }

    /// The row of a node of which nothing is heard: what it did last is not what it does.
    #[must_use]
    pub fn unheard(self) -> Self {
        let Self { name, state, version, zone, capacity, backends, silent, .. } = self;
        let backends = backends.into_iter().map(|row| BackendLine {
            ops_per_s: 0.0,
            share: 0.0,
            service_us: None,
            ..row
        });
        Self {
            version,
            zone,
            capacity,
            backends: backends.collect(),
            silent,
            ..Self::new(name, state)
        }
    }
}

/// A rate of one class of operation, `rsa-2048` for example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClassRate {
    /// Job class.
    pub class: String,
    /// Operations per second.
    pub ops_per_s: f64,
}

/// A backend of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackendLine {
    /// Name of the backend.
    pub backend: String,
    /// Whether it serves.
    pub state: BackendState,
    /// Why it is not usable; empty in the other states.
    #[serde(default)]
    pub reason: String,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Its share of the node's operations, 0 to 1.
    pub share: f64,
    /// Mean service time of an operation, in microseconds; `None` without operations.
    pub service_us: Option<f64>,
}

/// A client that reports its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClientRow {
    /// Identity, as policies name it: `uid:33`, `cert:gateway-1`.
    pub identity: String,
    /// The node that it reports to.
    pub node: String,
    /// Software and version, as the client states them.
    pub agent: String,
    /// Open connections.
    pub connections: u64,
    /// Operations done by the pool, since it connected.
    pub pooled: u64,
    /// Operations that it computed itself, since it connected.
    pub fallbacks: u64,
    /// The most frequent reason of a fallback; empty without one.
    pub fallback_reason: String,
    /// Share of the jobs for which no thread was blocked, 0 to 1; `None` without jobs.
    pub async_share: Option<f64>,
}

/// A tenant against its quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantLine {
    /// Name of the tenant.
    pub name: String,
    /// Share of a busy pool relative to others.
    pub weight: u32,
    /// Order in which a busy node serves tenants.
    pub priority: Priority,
    /// Operations per second that the quota allows; 0 for no limit.
    pub quota_ops: f64,
    /// Operations per second at present.
    pub used_ops: f64,
    /// Operations per second that the quota refused.
    pub throttled_per_s: f64,
    /// Operations per second that were refused for want of capacity.
    #[serde(default)]
    pub refused_per_s: f64,
    /// The nodes that it is placed on.
    pub nodes: Vec<String>,
    /// Operations per second that the nodes which are heard may serve of the quota; 0 without a limit.
    #[serde(default)]
    pub granted_ops: f64,
    /// Number of nodes that are heard and serve it.
    #[serde(default)]
    pub serving: usize,
    /// Whether its nodes have not the capacity for its quota.
    #[serde(default)]
    pub short: bool,
}

/// A key or a certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyLine {
    /// Name of the key, or of the certificate.
    pub name: String,
    /// The node that holds it.
    pub node: String,
    /// First digits of the SHA-256 of its public half, in hex.
    pub fingerprint: String,
    /// Whether another key has taken its place.
    pub former: bool,
    /// Time of its last use since the node started, in seconds since 1970.
    pub last_used: Option<u64>,
    /// End of its certificate's validity, in seconds since 1970, where the node knows it.
    pub expires: Option<i64>,
    /// Why it cannot be used; empty if it can.
    pub problem: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Time, in milliseconds since 1970.
    pub at_ms: u64,
    /// Severity.
    pub level: VerdictLevel,
    /// The principal that did it, or the node where it happened.
    pub origin: String,
    /// Description of the event.
    pub text: String,
}

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}
