// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`PoolState`]: the overview of the pool, from the reports of its nodes and the records of the store.
//!
//! The use of nodes and tenants is that of the records, so that each manager shows the same. A node's backends, clients
//! and keys are in its report alone, which goes to one manager: the page of another one lacks them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_service::overview::{
    ClassRate, Event, MAX_ROWS, NodeRow, NodeState, Overview, TenantLine, VerdictLevel, now_ms,
};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::pool_overview::of_pool;
use crate::Manager;
use crate::model::audit::AuditEntry;
use crate::model::name::{NodeName, TenantName};
use crate::model::node::{Node, Usage};
use crate::model::tenant::Tenant;
use crate::model::view::View;

/// Interval between two overviews: a person sees no difference at a shorter one.
const INTERVAL: Duration = Duration::from_secs(1);

/// Age after which a report is no longer shown: its node reports to another manager, or not at all.
const STALE: Duration = Duration::from_secs(30);

/// The reports of the nodes.
#[derive(Clone)]
pub(super) struct PoolState(Arc<Inner>);

struct Inner {
    manager: Manager,
    name: String,
    reports: Mutex<HashMap<NodeName, (Instant, Arc<Overview>)>>,
}

impl fmt::Debug for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolState").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl PoolState {
    pub(super) fn new(manager: Manager, name: &str) -> Self {
        Self(Arc::new(Inner { manager, name: name.to_owned(), reports: Mutex::default() }))
    }

    /// Takes the report of a node.
    pub(super) fn take(&self, node: NodeName, overview: Overview) {
        let mut reports = lock(&self.0.reports);
        reports.insert(node, (Instant::now(), Arc::new(overview)));
    }

    /// The overview of the pool. Reads the newest events from the store.
    #[must_use]
    pub(super) fn overview(&self) -> Overview {
        let (rows, usage, tenants, reports, head) = self.0.manager.view(|view| {
            let reports = self.fresh(view);
            let nodes = || view.nodes.iter().map(|(name, node)| (name, &node.value));
            let rows: Vec<NodeRow> = nodes()
                .filter(|(_, node)| !node.removed)
                .map(|(name, node)| node_row(name, node, reports.get(name)))
                .collect();
            let usage: Vec<Usage> = nodes()
                .filter(|(_, node)| serves(node))
                .filter_map(|(name, node)| usage(node, reports.get(name)))
                .collect();
            let tenants: Vec<TenantLine> = view
                .tenants
                .values()
                .take(MAX_ROWS)
                .map(|tenant| tenant_row(view, &tenant.value, &usage))
                .collect();
            (rows, usage, tenants, reports, view.audit_head.value.seq)
        });
        let list: Vec<&Overview> = reports.values().map(|report| &**report).collect();
        of_pool(&self.0.name, now_ms(), rows, &usage, &list, tenants, self.events(head))
    }

    /// The reports that are not stale, of nodes with a lease.
    fn fresh(&self, view: &View) -> HashMap<NodeName, Arc<Overview>> {
        let mut reports = lock(&self.0.reports);
        reports.retain(|name, (at, _)| at.elapsed() < STALE && view.nodes.contains_key(name));
        let present = reports.iter().filter(|(name, _)| view.node(name).is_some_and(serves));
        present.map(|(name, (_, overview))| (name.clone(), Arc::clone(overview))).collect()
    }

    /// The newest entries of the audit log.
    fn events(&self, head: u64) -> Vec<Event> {
        let from = head.saturating_sub(MAX_ROWS as u64) + 1;
        // Without its store the manager still shows the nodes.
        let entries = self.0.manager.audit(from, MAX_ROWS).unwrap_or_default();
        entries.iter().rev().map(event).collect()
    }

    /// Publishes the overview each second while there is a receiver.
    pub(super) fn publish(&self) -> watch::Receiver<Arc<str>> {
        let (send, receive) = watch::channel::<Arc<str>>(Arc::from("{}"));
        let state = self.clone();
        tokio::spawn(async move {
            let mut ticks = interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !send.is_closed() {
                ticks.tick().await;
                // One receiver is the API's own: without another, no page is open.
                if send.receiver_count() < 2 && send.borrow().len() > 2 {
                    continue;
                }
                let state = state.clone();
                let text = spawn_blocking(move || serde_json::to_string(&state.overview())).await;
                if let Ok(Ok(text)) = text {
                    send.send_replace(text.into());
                }
            }
        });
        receive
    }
}

/// Whether the node has a lease.
fn serves(node: &Node) -> bool {
    matches!(node.state(), NodeState::Ready | NodeState::Draining)
}

/// The use of a node by its record, or by its report where a node of an earlier version wrote the record.
fn usage(node: &Node, report: Option<&Arc<Overview>>) -> Option<Usage> {
    node.load.usage.clone().or_else(|| Some(Usage::of(report?)))
}

fn tenant_row(view: &View, tenant: &Tenant, usage: &[Usage]) -> TenantLine {
    let used = || usage.iter().filter_map(|node| node.tenants.get(&tenant.name));
    TenantLine {
        name: tenant.name.to_string(),
        weight: tenant.weight,
        priority: tenant.priority,
        quota_ops: number(tenant.quota.ops.per_second),
        used_ops: milli(used().map(|used| used.0).sum()),
        throttled_per_s: milli(used().map(|used| used.1).sum()),
        nodes: nodes_of(view, &tenant.name),
    }
}

fn node_row(name: &NodeName, node: &Node, report: Option<&Arc<Overview>>) -> NodeRow {
    let registration = &node.registration;
    let usage = node.load.usage.as_ref();
    let told = report.and_then(|report| report.nodes.first()).cloned();
    let row = told.unwrap_or_else(|| NodeRow {
        version: registration.version.clone(),
        ops_per_s: number(node.load.ops_per_second),
        waiting: usize::try_from(node.load.waiting).unwrap_or(usize::MAX),
        connections: node.load.connections,
        p50_us: usage.map_or(0.0, |usage| number(usage.p50_us)),
        p99_us: number(node.load.p99_us),
        ..NodeRow::new(name.as_str(), node.state())
    });
    let capacity = registration
        .capacity
        .iter()
        .map(|(class, rate)| ClassRate { class: class.to_string(), ops_per_s: number(*rate) });
    NodeRow {
        name: name.to_string(),
        state: node.state(),
        zone: registration.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
        ops_per_s: usage.map_or(row.ops_per_s, |usage| milli(usage.ops_milli)),
        capacity: capacity.collect(),
        busy: Some(number(u64::from(node.load.busy_ppm)) / 1e6),
        ..row
    }
}

fn nodes_of(view: &View, tenant: &TenantName) -> Vec<String> {
    let ledger = view.ledgers.get(tenant);
    let entries = ledger.into_iter().flat_map(|ledger| &ledger.value.entries);
    let served = entries.filter(|entry| entry.target.is_some());
    let mut names: Vec<String> = served.map(|entry| entry.node.to_string()).collect();
    names.dedup();
    names
}

fn event(entry: &AuditEntry) -> Event {
    Event {
        at_ms: entry.time_ms,
        level: VerdictLevel::Good,
        origin: entry.actor.clone(),
        text: format!("{} {}", entry.action, entry.subject),
    }
}

/// A number of thousandths.
fn milli(value: u64) -> f64 {
    number(value) / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "rates and counts, far below 2^52")]
fn number(value: u64) -> f64 {
    value as f64
}
