// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Nodes of the pool and their leases: the messages by which a node joins and stays, and its record in the store.
//!
//! Each heartbeat replaces the record as a whole. What the node may serve is not part of it: see [`super::ledger`].
//! [`super::core`] writes the records, and takes only heartbeats with the fence of the open lease.

use std::collections::{BTreeMap, BTreeSet};

use millrace_service::overview::{self, Figures, NodeState, Overview};
use millrace_service::rates::JobClass;
use millrace_service::tenants::MAX_NODE_TENANTS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::{KeyName, NodeName, TenantName, Zone};

/// Bound on [`Registration::addresses`]: a node listens on few addresses.
pub const MAX_ADDRESSES: usize = 8;

/// Bound on an address and on a feature, in bytes: a host name has at most 253, and `tcp:` and a port are added.
pub const MAX_TEXT_LEN: usize = 280;

/// Bound on [`Registration::features`] and on [`Registration::capacity`].
pub const MAX_ROWS: usize = 64;

/// Bound on [`Registration::former`] and on [`Lease::unproven`]: a node that starts more often without a
/// successful registration has another problem.
pub const MAX_FORMER: usize = 16;

/// Bound on [`Registration::seen`]: a pool that changes a thousand times a second reaches it after 8,900 years.
pub const MAX_SEEN: u64 = 1 << 48;

/// Bound on [`Heartbeat::clock_ms`]: the end of the year 9999, the last that an RFC 3339 time can name.
pub const MAX_CLOCK_MS: u64 = 253_402_300_799_999;

/// Operations per second by job class, as the node measured them at its start, each alone on the whole node.
pub type Capacity = BTreeMap<JobClass, u64>;

/// Description that a node gives of itself when it registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Registration {
    /// Name of the node; the manager's API checks it against the certificate.
    pub name: NodeName,
    /// A random number of the node's process.
    pub process: u64,
    /// Processes of this node that have ended for certain: the node's process holds the lock of their state folder.
    /// A registration that proves the end of the former process frees that process's slices at once.
    #[serde(default)]
    pub former: Vec<u64>,
    /// Highest fence or revision that the node has seen: a store that was restored from a backup may be behind it.
    #[serde(default)]
    pub seen: u64,
    /// Addresses for gateways: `tcp://HOST:PORT`.
    pub addresses: BTreeSet<String>,
    /// Place of the node.
    #[serde(default)]
    pub zone: Option<Zone>,
    /// Measured capacity.
    #[schemars(with = "BTreeMap<String, u64>")]
    pub capacity: Capacity,
    /// Features of the node's version, by name.
    #[serde(default)]
    pub features: BTreeSet<String>,
    /// Version of the node's software.
    pub version: String,
    /// Public key to which the manager seals keys: X25519, in hexadecimal digits. Without one the node gets no keys.
    #[serde(default)]
    pub sealing_key: Option<String>,
}

/// Message by which a node shows that it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Heartbeat {
    /// Name of the node.
    pub node: NodeName,
    /// Fence of the lease that the node holds.
    pub fence: u64,
    /// Revision of the grants that are in force at the node; 0 before the first.
    pub applied: u64,
    /// The node's clock, in milliseconds since 1970. Times in the grants of the answer are times of this clock.
    pub clock_ms: u64,
    /// Load since the last heartbeat.
    #[serde(default)]
    pub load: Load,
    /// State of the node, by its own account.
    #[serde(default)]
    pub health: Health,
    /// Names and versions of the keys that the node has from the manager.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub keys: BTreeMap<KeyName, u64>,
}

/// Load of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case")]
pub struct Load {
    /// Operations per second.
    pub ops_per_second: u64,
    /// Busy time of the workers, in parts per million.
    pub busy_ppm: u32,
    /// Jobs that wait.
    pub waiting: u64,
    /// 99th percentile of wait and service together, in microseconds.
    pub p99_us: u64,
    /// Connections of clients.
    pub connections: u64,
    /// Use of the node; `None` from nodes of earlier versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Use of a node, for the pages and metrics of all managers: a node reports to one of them, and its record reaches all.
/// The names are short and the numbers whole, since each heartbeat writes them to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "kebab-case")]
pub struct Usage {
    /// Operations with a result, in thousandths per second.
    pub ops_milli: u64,
    /// Median of wait and service together, in microseconds.
    pub p50_us: u64,
    /// Operations without a result, in thousandths per second.
    pub failed_milli: u64,
    /// Share of the gateways' operations that they computed themselves, in parts per million.
    pub fallback_ppm: u32,
    /// CPU time that the gateways save, in thousandths of a core; negative where pooling costs more.
    pub saved_milli: i64,
    /// Use by tenants, without those that did nothing.
    pub tenants: BTreeMap<TenantName, TenantUsage>,
    /// Operations that were refused for want of capacity, in thousandths per second, of tenants that had any.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<TenantName, u64>,
}

/// Use of a node by a tenant: operations with a result, and operations that the quota refused, each in thousandths per
/// second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantUsage(pub u64, pub u64);

impl Usage {
    /// The use that a node's overview of itself shows.
    #[must_use]
    pub fn of(overview: &Overview) -> Self {
        let Figures { ops_per_s, p50_us, failed_per_s, fallback_share, cpu_saved, .. } =
            overview.figures;
        let row = |row: &overview::TenantLine| {
            let used = TenantUsage(rounded(row.used_ops * 1e3), rounded(row.throttled_per_s * 1e3));
            Some((row.name.parse().ok()?, used))
        };
        let tenants = overview.tenants.iter().filter_map(row);
        let refused = overview.tenants.iter().filter(|row| row.refused_per_s > 0.0);
        // One in a long time is still one.
        let refused = refused.filter_map(|row| {
            Some((row.name.parse().ok()?, rounded(row.refused_per_s * 1e3).max(1)))
        });
        let mut usage = Self {
            ops_milli: rounded(ops_per_s * 1e3),
            p50_us: rounded(p50_us),
            failed_milli: rounded(failed_per_s * 1e3),
            fallback_ppm: u32::try_from(rounded(fallback_share * 1e6)).unwrap_or(u32::MAX),
            saved_milli: whole(cpu_saved * 1e3),
            tenants: tenants.filter(|(_, used)| *used != TenantUsage::default()).collect(),
            refused: refused.collect(),
        };
        usage.bound();
        usage
    }

    /// Leaves out tenants above the bound of a node: it may be defective. With all of them, a record has 90 KiB.
    pub fn bound(&mut self) {
        while self.tenants.len() > MAX_NODE_TENANTS {
            self.tenants.pop_last();
        }
        while self.refused.len() > MAX_NODE_TENANTS {
            self.refused.pop_last();
        }
    }
}

/// A rate as a whole number.
#[must_use]
pub fn rounded(value: f64) -> u64 {
    u64::try_from(whole(value)).unwrap_or(0)
}

#[expect(clippy::cast_possible_truncation, reason = "rates, far below 2^52")]
fn whole(value: f64) -> i64 {
    value.round() as i64
}

/// State of a node by its own judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Serves.
    #[default]
    Good,
    /// Serves, with a problem that an operator should look at.
    Degraded(String),
}

/// The right of a node to serve in the pool, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Lease {
    /// Grows with each registration of this name. A message with another fence is refused.
    pub fence: u64,
    /// Process that holds the lease.
    pub process: u64,
    /// Whether messages with this fence are still taken. A lease that was closed stays closed.
    pub open: bool,
    /// Earlier fences with their processes, which are not known to have ended.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, u64>")]
    pub unproven: BTreeMap<u64, u64>,
    /// Whether the holder said that it stopped serving, before the lease was closed.
    #[serde(default)]
    pub left: bool,
}

/// A node in the store: one record, which every heartbeat replaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Node {
    /// Facts that the node gave when it joined.
    pub registration: Registration,
    /// Lease that its last heartbeat renewed.
    pub lease: Lease,
    /// Whether an operator asked it to serve no tenant any more.
    #[serde(default)]
    pub drain: bool,
    /// Whether an operator removed it. The record stays, so that the node learns it and drops its keys.
    #[serde(default)]
    pub removed: bool,
    /// Revision of the grants that are in force at the node.
    #[serde(default)]
    pub applied: u64,
    /// Time of the last heartbeat by the clock of the manager that took it, in milliseconds since 1970. For people;
    /// no decision depends on it.
    #[serde(default)]
    pub seen_ms: u64,
    /// Load at the last heartbeat.
    #[serde(default)]
    pub load: Load,
    /// Health at the last heartbeat.
    #[serde(default)]
    pub health: Health,
}

impl Node {
    /// State of the node.
    #[must_use]
    pub fn state(&self) -> NodeState {
        match (self.removed, self.lease.open, self.drain) {
            (true, ..) => NodeState::Removed,
            (false, false, _) => NodeState::Away,
            (false, true, true) => NodeState::Draining,
            (false, true, false) => NodeState::Ready,
        }
    }

    /// Whether the node has a lease.
    #[must_use]
    pub fn serves(&self) -> bool {
        matches!(self.state(), NodeState::Ready | NodeState::Draining)
    }
}

impl Heartbeat {
    /// Every field that is out of its bounds.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let is_late = self.clock_ms > MAX_CLOCK_MS;
        is_late.then(|| format!("clock-ms: at most {MAX_CLOCK_MS}")).into_iter().collect()
    }
}

impl Registration {
    /// Every field that is out of its bounds.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |bad: bool, problem: String| {
            if bad {
                problems.push(problem);
            }
        };
        let printable = |text: &String| {
            (1..=MAX_TEXT_LEN).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        };
        check(
            self.addresses.is_empty() || self.addresses.len() > MAX_ADDRESSES,
            format!("addresses: 1 to {MAX_ADDRESSES}"),
        );
        check(
            !self.addresses.iter().chain(&self.features).chain([&self.version]).all(printable),
            format!(
                "addresses, features, version: 1 to {MAX_TEXT_LEN} printable ASCII characters without space"
            ),
        );
        check(self.features.len() > MAX_ROWS, format!("features: at most {MAX_ROWS}"));
        check(self.capacity.len() > MAX_ROWS, format!("capacity: at most {MAX_ROWS} job classes"));
        check(
            self.capacity.values().any(|rate| *rate == 0),
            "capacity: a job class that the node cannot do is left out".to_owned(),
        );
        check(self.former.len() > MAX_FORMER, format!("former: at most {MAX_FORMER}"));
        check(self.seen > MAX_SEEN, format!("seen: at most {MAX_SEEN}"));
        check(
            self.sealing_key
                .as_ref()
                .is_some_and(|key| key.len() != 64 || hex::decode(key).is_err()),
            "sealing-key: 64 hexadecimal digits".to_owned(),
        );
        problems
    }
}
