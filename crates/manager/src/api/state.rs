// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`PoolState`]: the overview of the pool, from the reports of its nodes and the records of the store.
//!
//! The use of nodes and tenants is that of the records, so that each manager shows the same. A node's backends, clients
//! and keys are in its report alone, which goes to one manager: the page of another one lacks them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;
use millrace_service::overview::{
    ClassRate, Event, MAX_ROWS, NodeRow, NodeState, Overview, OverviewFinding, RowTotals,
    TenantLine, VerdictLevel, now_ms,
};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use super::pool_events::Seen;
use super::pool_overview::{PoolParts, of_pool};
use crate::Manager;
use crate::model::audit::AuditEntry;
use crate::model::name::{NodeName, TenantName};
use crate::model::node::{Node, TenantUsage, Usage};
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
    seen: Mutex<Seen>,
}

/// Rows of the pool at one revision.
struct Rows {
    nodes: Vec<NodeRow>,
    usage: Vec<Usage>,
    tenants: Vec<TenantLine>,
    reports: HashMap<NodeName, Arc<Overview>>,
    /// Number of the newest audit entry.
    head: u64,
}

impl fmt::Debug for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolState").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl PoolState {
    pub(super) fn new(manager: Manager, name: &str) -> Self {
        Self(Arc::new(Inner {
            manager,
            name: name.to_owned(),
            reports: Mutex::default(),
            seen: Mutex::default(),
        }))
    }

    /// Takes the report of a node.
    pub(super) fn take(&self, node: NodeName, overview: Overview) {
        let mut reports = lock(&self.0.reports);
        reports.insert(node, (Instant::now(), Arc::new(overview)));
    }

    /// The overview of the pool, shortened.
    #[must_use]
    pub(super) fn overview(&self) -> Overview {
        self.whole().shortened()
    }

    /// The overview of the pool with all rows. Reads the newest events from the store.
    #[must_use]
    pub(super) fn whole(&self) -> Overview {
        let Rows { nodes, usage, tenants, reports, head } = self.rows();
        let list: Vec<&Overview> = reports.values().map(|report| &**report).collect();
        let (events, all_events) = self.events(head);
        let parts = PoolParts {
            nodes,
            usage: &usage,
            reports: &list,
            tenants,
            events,
            all_events,
            findings: self.findings(),
        };
        of_pool(&self.0.name, now_ms(), parts)
    }

    fn rows(&self) -> Rows {
        self.0.manager.view_with_silent(|view, silent| {
            let mut reports = self.fresh(view);
            let nodes = || view.nodes.iter().map(|(name, node)| (name, &node.value));
            let rows = nodes().filter(|(_, node)| !node.removed);
            let heard = |name: &NodeName, node: &Node| node.serves() && !silent.contains(name);
            let rows = rows.map(|(name, node)| {
                let row = node_row(name, node, reports.get(name));
                let row = NodeRow { silent: node.serves() && silent.contains(name), ..row };
                if heard(name, node) { row } else { row.unheard() }
            });
            let rows: Vec<NodeRow> = rows.collect();
            let heard = nodes().filter(|(name, node)| heard(name, node));
            let usage: Vec<Usage> =
                heard.filter_map(|(name, node)| usage(node, reports.get(name))).collect();
            let used = used_by(&usage);
            let tenants = view.tenants.values();
            let tenants =
                tenants.map(|tenant| tenant_row(view, &tenant.value, &used, silent)).collect();
            for (_, report) in reports.iter_mut().filter(|(name, _)| silent.contains(*name)) {
                *report = Arc::new(without_clients(report));
            }
            let head = view.audit_head.value.seq;
            Rows { nodes: rows, usage, tenants, reports, head }
        })
    }

    /// Findings about the store.
    fn findings(&self) -> Vec<OverviewFinding> {
        let found = self.0.manager.findings();
        let first = found.texts.first().map(|text| match found.count {
            1 => text.clone(),
            all => format!("{text}, and {} more findings about the records", all - 1),
        });
        let damaged = self.0.manager.view(|view| view.damaged.keys().next().cloned());
        let damaged = damaged.map(|key| format!("the record {key} of the store is damaged"));
        let texts = first.into_iter().chain(damaged);
        texts.map(|text| (VerdictLevel::Critical, text)).collect()
    }

    /// The reports that are not stale, of nodes with a lease.
    fn fresh(&self, view: &View) -> HashMap<NodeName, Arc<Overview>> {
        let mut reports = lock(&self.0.reports);
        reports.retain(|name, (at, _)| at.elapsed() < STALE && view.nodes.contains_key(name));
        let present = reports.iter().filter(|(name, _)| view.node(name).is_some_and(Node::serves));
        present.map(|(name, (_, overview))| (name.clone(), Arc::clone(overview))).collect()
    }

    /// The newest entries of the audit log and changes of the pool's state, and the number of all.
    fn events(&self, head: u64) -> (Vec<Event>, usize) {
        let from = head.saturating_sub(MAX_ROWS as u64) + 1;
        // Without its store the manager still shows the nodes.
        let entries = self.0.manager.audit(from, MAX_ROWS).unwrap_or_default();
        let mut events: Vec<Event> = entries.iter().map(event).collect();
        let seen = lock(&self.0.seen);
        events.extend(seen.events.iter().cloned());
        events.sort_by_key(|event| Reverse(event.at_ms));
        (events, usize::try_from(head).unwrap_or(usize::MAX).saturating_add(seen.count))
    }

    /// Compares the state of the pool with that of the call before, and notes what has changed as events.
    pub(super) fn observe(&self) {
        let Rows { nodes, tenants, .. } = self.rows();
        let ready = nodes.iter().any(|node| node.state == NodeState::Ready);
        let of_nodes = nodes.iter().filter_map(|row| Some((row.name.clone(), row.condition()?)));
        // Without a node no tenant has one: the nodes say so.
        let of_tenants = tenants.iter().filter(|_| ready);
        let of_tenants =
            of_tenants.filter_map(|row| Some((format!("tenant {}", row.name), row.condition()?)));
        let records = self.0.manager.findings().texts.into_iter();
        let records = records.map(|text| (text.clone(), (VerdictLevel::Critical, text)));
        let now: BTreeMap<String, OverviewFinding> =
            of_nodes.chain(of_tenants).chain(records).collect();
        lock(&self.0.seen).take(now, now_ms());
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
                let observer = state.clone();
                let _ = spawn_blocking(move || observer.observe()).await;
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

/// The report of a node that is silent: its keys are there, its clients may have gone.
fn without_clients(report: &Overview) -> Overview {
    let totals = RowTotals { clients: 0, ..report.totals };
    Overview { clients: Vec::new(), totals, ..report.clone() }
}

/// The use of a node by its record, or by its report where a node of an earlier version wrote the record.
fn usage(node: &Node, report: Option<&Arc<Overview>>) -> Option<Usage> {
    node.load.usage.clone().or_else(|| Some(Usage::of(report?)))
}

/// Operations of a tenant at all nodes together, in thousandths per second.
#[derive(Clone, Copy, Default)]
struct TenantRates {
    ops: u64,
    throttled: u64,
    refused: u64,
}

fn used_by(usage: &[Usage]) -> HashMap<&TenantName, TenantRates> {
    let mut used: HashMap<&TenantName, TenantRates> = HashMap::new();
    for (tenant, TenantUsage(ops, throttled)) in usage.iter().flat_map(|node| &node.tenants) {
        let sum = used.entry(tenant).or_default();
        sum.ops = sum.ops.saturating_add(*ops);
        sum.throttled = sum.throttled.saturating_add(*throttled);
    }
    for (tenant, refused) in usage.iter().flat_map(|node| &node.refused) {
        let sum = used.entry(tenant).or_default();
        sum.refused = sum.refused.saturating_add(*refused);
    }
    used
}

fn tenant_row(
    view: &View,
    tenant: &Tenant,
    used: &HashMap<&TenantName, TenantRates>,
    silent: &BTreeSet<NodeName>,
) -> TenantLine {
    let rates = used.get(&tenant.name).copied().unwrap_or_default();
    let ledger = view.ledgers.get(&tenant.name).map(|ledger| &ledger.value);
    let entries = ledger.into_iter().flat_map(|ledger| &ledger.entries);
    let live: Vec<_> = entries
        .filter(|entry| {
            let node = view.node(&entry.node);
            node.is_some_and(|node| node.serves() && node.lease.fence == entry.fence)
        })
        .collect();
    let heard = || live.iter().filter(|entry| !silent.contains(&entry.node));
    let placed = live.iter().filter(|entry| entry.target.is_some());
    let granted: u128 = heard().map(|entry| u128::from(entry.held.ops.per_second)).sum();
    TenantLine {
        name: tenant.name.to_string(),
        weight: tenant.weight,
        priority: tenant.priority,
        quota_ops: number(tenant.quota.ops.per_second),
        used_ops: milli(rates.ops),
        throttled_per_s: milli(rates.throttled),
        refused_per_s: milli(rates.refused),
        nodes: placed.map(|entry| entry.node.to_string()).collect(),
        granted_ops: number(u64::try_from(granted).unwrap_or(u64::MAX)),
        serving: heard().count(),
        short: ledger.is_some_and(|ledger| ledger.short),
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

fn event(entry: &AuditEntry) -> Event {
    Event {
        at_ms: entry.time_ms,
        level: if entry.is_damaged() { VerdictLevel::Critical } else { VerdictLevel::Good },
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
