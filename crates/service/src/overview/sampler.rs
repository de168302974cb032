// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The overview of a node: rates between two samples of its counters.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use millrace_engine::stats::{EngineSnapshot, HistogramSnapshot};
use millrace_operation::{BackendKind, OperationKind};

use super::{
    BackendLine, BackendState, ClassRate, ClientRow, Figures, KeyLine, NodeRow, NodeState,
    Overview, RowTotals, Scope, TenantLine, Verdict, now_ms,
};
use crate::Service;
use crate::client_reports::{EdgeCounts, ErrorRow};
use crate::status::{BackendRow, Status, TenantRow};

/// Time over which the fallback share is computed: long enough that one failed request is not an alarm.
const SHARE_WINDOW: Duration = Duration::from_secs(300);

/// CPU time that a gateway spends on one pooled operation, in microseconds. Measured 20 to 35
/// (docs/benchmarks); the upper end, so that the page never promises too much.
const GATEWAY_COST_US: f64 = 35.0;

/// Interval at which the keys are listed: a reload holds their lock while it reads the disk.
const KEYS_INTERVAL: Duration = Duration::from_secs(10);

/// Takes overviews of one node. Each call of [`Self::sample`] reports the rates since the one before.
#[derive(Debug)]
pub struct OverviewSampler {
    service: Service,
    capacity: Vec<ClassRate>,
    zone: String,
    before: Option<(Instant, EngineSnapshot)>,
    /// Completed, throttled and refused jobs of the tenants at the sample before.
    tenants: HashMap<String, [u64; 3]>,
    /// Pooled operations and fallbacks at former samples, for the share.
    shares: VecDeque<(Instant, u64, u64)>,
    keys: Vec<KeyLine>,
    keys_at: Option<Instant>,
}

impl OverviewSampler {
    /// A sampler of this service.
    #[must_use]
    pub fn new(service: Service) -> Self {
        Self {
            service,
            capacity: Vec::new(),
            zone: String::new(),
            before: None,
            tenants: HashMap::new(),
            shares: VecDeque::new(),
            keys: Vec::new(),
            keys_at: None,
        }
    }

    /// Names the measured capacity and the zone of the node.
    #[must_use]
    pub fn with_capacity(mut self, capacity: Vec<ClassRate>, zone: &str) -> Self {
        self.capacity = capacity;
        zone.clone_into(&mut self.zone);
        self
    }

    /// The overview at `now`. May block for the time of a reload of the keys.
    pub fn sample(&mut self, now: Instant) -> Overview {
        let status = self.service.status();
        let stats = self.service.engine().stats();
        let (elapsed, earlier) = match &self.before {
            Some((at, stats)) => (now.saturating_duration_since(*at), Some(stats)),
            None => (Duration::ZERO, None),
        };
        let window = Window::between(earlier, &stats, elapsed);
        let fallback_share = self.share(now, &status.edge_totals);
        if self.keys_at.is_none_or(|at| now.saturating_duration_since(at) >= KEYS_INTERVAL) {
            self.keys = key_lines(&self.service);
            self.keys_at = Some(now);
        }
        let node = NodeRow {
            name: status.node.clone(),
            state: if self.service.draining() { NodeState::Draining } else { NodeState::Ready },
            version: status.version.clone(),
            zone: self.zone.clone(),
            ops_per_s: window.ops_per_s,
            waiting: status.waiting.iter().map(|class| class.jobs).sum(),
            connections: status.connections,
            p50_us: window.quantile_us(0.5),
            p99_us: window.quantile_us(0.99),
            capacity: self.capacity.clone(),
            busy: window.busy(&self.capacity),
            backends: window.backends(&status),
            silent: false,
        };
        let mut overview = Overview {
            scope: Scope::Node,
            name: status.node.clone(),
            version: status.version.clone(),
            at_ms: now_ms(),
            verdict: Verdict::default(),
            figures: Figures {
                ops_per_s: window.ops_per_s,
                p50_us: node.p50_us,
                p99_us: node.p99_us,
                fallback_share,
                failed_per_s: window.failed_per_s,
                capacity_left: node.busy.map(|busy| (1.0 - busy).max(0.0)),
                cpu_saved: window.cpu_saved(),
            },
            clients: client_rows(&status),
            tenants: self.tenant_lines(&status, elapsed.as_secs_f64()),
            keys: self.keys.clone(),
            events: Vec::new(),
            totals: RowTotals { clients: status.edge_clients, ..RowTotals::default() },
            nodes: vec![node],
        };
        overview.verdict = overview.judge();
        self.before = Some((now, stats));
        overview
    }

    fn tenant_lines(&mut self, status: &Status, seconds: f64) -> Vec<TenantLine> {
        let counts = |row: &TenantRow| {
            [row.completed, throttled(&row.throttled), row.shed.saturating_add(row.over_bounds)]
        };
        let line = |row: &TenantRow| {
            let now = counts(row);
            // An account that is new since then has no rate yet, and one that was opened again counts from 0.
            let before = self.tenants.get(&row.tenant).unwrap_or(&now);
            let per_s = |count: usize| rate(now[count].saturating_sub(before[count]), seconds);
            TenantLine {
                name: row.tenant.clone(),
                weight: row.weight,
                priority: row.priority,
                quota_ops: quota(row),
                used_ops: per_s(0),
                throttled_per_s: per_s(1),
                refused_per_s: per_s(2),
                nodes: vec![status.node.clone()],
                granted_ops: quota(row),
                serving: 1,
                short: false,
            }
        };
        let lines = status.tenants.iter().map(line).collect();
        self.tenants = status.tenants.iter().map(|row| (row.tenant.clone(), counts(row))).collect();
        lines
    }

    fn share(&mut self, now: Instant, totals: &EdgeCounts) -> f64 {
        self.shares.push_back((now, totals.pooled, totals.fallbacks()));
        while let Some((at, _, _)) = self.shares.front()
            && now.saturating_duration_since(*at) > SHARE_WINDOW
        {
            self.shares.pop_front();
        }
        let Some((_, pooled, fallbacks)) = self.shares.front() else {
            return 0.0;
        };
        let pooled = totals.pooled.saturating_sub(*pooled);
        let fallbacks = totals.fallbacks().saturating_sub(*fallbacks);
        ratio(fallbacks, pooled.saturating_add(fallbacks))
    }
}

/// The counters of a time between two samples.
struct Window {
    ops_per_s: f64,
    failed_per_s: f64,
    seconds: f64,
    rows: Vec<Row>,
}

/// Work of one backend for one operation.
struct Row {
    backend: BackendKind,
    operation: OperationKind,
    completed: u64,
    queue: HistogramSnapshot,
    service: HistogramSnapshot,
    /// Mean service time since the node started, in microseconds.
    mean_us: f64,
}

impl Window {
    /// A first sample, without an earlier one, has no rates.
    fn between(earlier: Option<&EngineSnapshot>, now: &EngineSnapshot, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        let rows: Vec<Row> = now
            .series
            .iter()
            .map(|series| {
                let mut before = earlier.into_iter().flat_map(|earlier| &earlier.series);
                let before = before.find(|before| {
                    (before.backend, before.operation) == (series.backend, series.operation)
                });
                let none = HistogramSnapshot::default();
                let (queue, service) = before
                    .map_or((&none, &none), |before| (&before.queue_time, &before.service_time));
                Row {
                    backend: series.backend,
                    operation: series.operation,
                    completed: series.completed - before.map_or(0, |before| before.completed),
                    queue: series.queue_time.since(queue),
                    service: series.service_time.since(service),
                    mean_us: mean_us(&series.service_time),
                }
            })
            .collect();
        let errors = |snapshot: &EngineSnapshot| -> u64 {
            let counts = snapshot.errors.iter().map(|(_, jobs)| *jobs);
            counts.fold(0, u64::saturating_add)
        };
        let failed = errors(now).saturating_sub(earlier.map_or(0, errors));
        let completed: u64 = rows.iter().map(|row| row.completed).sum();
        Self {
            ops_per_s: rate(completed, seconds),
            failed_per_s: rate(failed, seconds),
            seconds,
            rows,
        }
    }

    /// Queue time and service time have separate histograms; their quantiles add up to an upper bound.
    fn quantile_us(&self, quantile: f64) -> f64 {
        let merged = |of: &dyn Fn(&Row) -> &HistogramSnapshot| {
            let mut sum = HistogramSnapshot::default();
            for row in &self.rows {
                sum.merge(of(row));
            }
            sum.quantile(quantile).as_secs_f64() * 1e6
        };
        merged(&|row| &row.queue) + merged(&|row| &row.service)
    }

    /// The share of the measured capacity that the operations took: by the class that is closest to its limit,
    /// where the node's classes have names of operations.
    fn busy(&self, capacity: &[ClassRate]) -> Option<f64> {
        let most = capacity.iter().map(|class| class.ops_per_s).fold(0.0, f64::max);
        (most > 0.0 && self.seconds > 0.0).then(|| {
            let spent: f64 = self.rows.iter().map(|row| spent(row, capacity)).sum();
            (spent / self.seconds).clamp(0.0, 1.0)
        })
    }

    fn backends(&self, status: &Status) -> Vec<BackendLine> {
        let all: u64 = self.rows.iter().map(|row| row.completed).sum();
        let row = |backend: &BackendRow| {
            let ours = || {
                let name = backend.backend.as_str();
                self.rows.iter().filter(move |row| row.backend.name() == name)
            };
            let completed: u64 = ours().map(|row| row.completed).sum();
            let mut service = HistogramSnapshot::default();
            ours().for_each(|row| service.merge(&row.service));
            BackendLine {
                backend: backend.backend.clone(),
                state: match (&backend.unusable, backend.quarantined) {
                    (Some(_), _) => BackendState::Unusable,
                    (None, true) => BackendState::Quarantined,
                    (None, false) => BackendState::Ready,
                },
                reason: backend.unusable.clone().unwrap_or_default(),
                ops_per_s: rate(completed, self.seconds),
                share: ratio(completed, all),
                service_us: (service.count() > 0).then(|| mean_us(&service)),
            }
        };
        status.backends.iter().map(row).collect()
    }

    /// CPU seconds per second that gateways save: the software backend's time per operation, less `GATEWAY_COST_US`.
    fn cpu_saved(&self) -> f64 {
        let saved = self.rows.iter().filter_map(|row| {
            let software = self.rows.iter().find(|other| {
                other.backend == BackendKind::Software && other.operation == row.operation
            })?;
            let saved_us = software.mean_us - GATEWAY_COST_US;
            Some(rate(row.completed, self.seconds) * saved_us / 1e6)
        });
        saved.sum()
    }
}

/// Seconds of the node's capacity that the completed operations of this row took.
fn spent(row: &Row, capacity: &[ClassRate]) -> f64 {
    // The counters do not tell key sizes apart: an RSA operation counts as the common size.
    let class = match row.operation.name() {
        name if name.starts_with("rsa") => "rsa-2048",
        name if name.starts_with("ecdsa") || name.starts_with("ecdh") => "p-256",
        name if name.starts_with("ml-dsa") => "ml-dsa-65",
        name => name,
    };
    let found = capacity.iter().find(|rate| rate.class == class);
    match found {
        Some(class) if class.ops_per_s > 0.0 => rate(row.completed, class.ops_per_s),
        _ => 0.0,
    }
}

fn key_lines(service: &Service) -> Vec<KeyLine> {
    /// Digits that tell keys apart on a screen.
    const DIGITS: usize = 16;
    let report = service.keys();
    let keys = report.keys.into_iter().map(|key| KeyLine {
        name: key.name,
        node: report.node.clone(),
        fingerprint: key.spki_sha256.unwrap_or_default().chars().take(DIGITS).collect(),
        former: key.former,
        last_used: key.last_used,
        expires: None,
        problem: key.problem.unwrap_or_default(),
    });
    let certificate = service.certificate().map(|own| KeyLine {
        name: format!("certificate {}", own.name),
        node: report.node.clone(),
        fingerprint: hex::encode(digest(&SHA256, &own.spki)).chars().take(DIGITS).collect(),
        former: false,
        last_used: None,
        expires: Some(own.expires),
        problem: String::new(),
    });
    certificate.into_iter().chain(keys).collect()
}

fn client_rows(status: &Status) -> Vec<ClientRow> {
    let rows = status.edges.iter().map(|edge| {
        let counts = &edge.counts;
        let most = counts.fallbacks.iter().max_by_key(|reason| reason.jobs);
        ClientRow {
            identity: edge.identity.clone(),
            node: status.node.clone(),
            agent: edge.agent.clone(),
            connections: edge.connections,
            pooled: counts.pooled,
            fallbacks: counts.fallbacks(),
            fallback_reason: most.map(|most| most.reason.clone()).unwrap_or_default(),
            async_share: (counts.jobs() > 0).then(|| ratio(counts.paused, counts.jobs())),
        }
    });
    rows.collect()
}

fn throttled(rows: &[ErrorRow]) -> u64 {
    rows.iter().map(|row| row.jobs).fold(0, u64::saturating_add)
}

/// The quota of a tenant at this node, in operations per second; 0 for no limit.
#[expect(clippy::cast_precision_loss, reason = "a rate of operations, far below 2^52")]
fn quota(row: &TenantRow) -> f64 {
    row.rates.ops.per_second as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts of seconds, far below 2^52")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "a share of two counts")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[expect(clippy::cast_precision_loss, reason = "a mean of durations")]
fn mean_us(histogram: &HistogramSnapshot) -> f64 {
    match histogram.count() {
        0 => 0.0,
        count => histogram.sum.as_secs_f64() * 1e6 / count as f64,
    }
}
