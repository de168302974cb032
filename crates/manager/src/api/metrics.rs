// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Metrics of a manager in the text format of Prometheus: the pool as the manager sees it, and its own requests.
//!
//! Names have a bound: nodes and tenants are those of the store, routes and outcomes those of the table.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_service::overview::{NodeState, Overview, TenantLine, VerdictLevel};

use super::call::Reply;
use super::problem::Problem;
use super::route::Route;
use super::routes::ROUTES;
use super::standing::CountedPlaces;
use crate::model::view::View;

/// Outcome of a request, as the metrics label it.
#[derive(Clone, Copy, Debug)]
enum RequestOutcome {
    /// The request succeeded.
    Done,
    /// The caller caused the failure: a status below 500.
    Refused,
    /// The manager or its store caused the failure: a status of 500 or more.
    Failed,
}

impl RequestOutcome {
    const ALL: [Self; 3] = [Self::Done, Self::Refused, Self::Failed];

    const fn of(reply: &Result<Reply, Problem>) -> Self {
        match reply {
            Ok(_) => Self::Done,
            Err(problem) if problem.status < 500 => Self::Refused,
            Err(_) => Self::Failed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Counters of the API.
#[derive(Debug)]
pub(super) struct ApiMetrics {
    /// Number of requests per outcome, at the route's index in `ROUTES`.
    requests: Vec<[AtomicU64; RequestOutcome::ALL.len()]>,
}

impl Default for ApiMetrics {
    fn default() -> Self {
        Self { requests: ROUTES.iter().map(|_| Default::default()).collect() }
    }
}

impl ApiMetrics {
    pub(super) fn count(&self, route: &'static Route, reply: &Result<Reply, Problem>) {
        let index = ROUTES.iter().position(|row| std::ptr::eq(row, route));
        if let Some(row) = index.and_then(|index| self.requests.get(index)) {
            row[RequestOutcome::of(reply) as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn render(
        &self,
        view: &View,
        overview: &Overview,
        altered: usize,
        connections: &CountedPlaces,
    ) -> String {
        let mut page = Exposition::default();
        page.pool(overview);
        page.nodes(overview);
        page.tenants(view, overview);
        page.one(
            "millrace_manager_store_revision",
            "counter",
            "Revision of the store that this manager has seen",
            view.revision as f64,
        );
        page.one(
            "millrace_manager_altered_records",
            "gauge",
            "Records and places of the audit log that are not what a manager wrote",
            altered as f64,
        );
        page.one(
            "millrace_manager_damaged_records",
            "gauge",
            "Records of the store that cannot be read",
            view.damaged.len() as f64,
        );
        page.connections(connections);
        self.requests(&mut page);
        page.0
    }

    fn requests(&self, page: &mut Exposition) {
        let name = "millrace_manager_requests_total";
        page.family(name, "counter", "Requests of the API by path and outcome");
        for (route, counts) in ROUTES.iter().zip(&self.requests) {
            let method = format!("{:?}", route.method).to_uppercase();
            for (outcome, count) in RequestOutcome::ALL.into_iter().zip(counts) {
                let labels = [
                    ("method", method.as_str()),
                    ("path", route.path),
                    ("outcome", outcome.name()),
                ];
                page.sample(name, &labels, count.load(Ordering::Relaxed) as f64);
            }
        }
    }
}

/// A page in the text format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn pool(&mut self, overview: &Overview) {
        let verdict = match overview.verdict.level {
            VerdictLevel::Good => 0.0,
            VerdictLevel::Warning => 1.0,
            VerdictLevel::Critical => 2.0,
        };
        let figures = &overview.figures;
        #[rustfmt::skip]
        let rows = [
            ("millrace_pool_verdict", "Verdict: 0 good, 1 warning, 2 critical", Some(verdict)),
            ("millrace_pool_operations_per_second",
             "Operations that ended with a result, per second", Some(figures.ops_per_s)),
            ("millrace_pool_failed_per_second",
             "Operations that ended without a result, per second", Some(figures.failed_per_s)),
            ("millrace_pool_fallback_ratio",
             "Share of operations that gateways computed themselves, 5 minutes", Some(figures.fallback_share)),
            ("millrace_pool_p99_seconds",
             "99th percentile of the time in the slowest node", Some(figures.p99_us / 1e6)),
            ("millrace_pool_gateway_cpu_saved_ratio",
             "CPU seconds per second that gateways save, estimated", Some(figures.cpu_saved)),
            ("millrace_pool_capacity_left_ratio",
             "Share of the measured capacity that is free", figures.capacity_left),
        ];
        for (name, help, value) in rows {
            if let Some(value) = value {
                self.one(name, "gauge", help, value);
            }
        }
    }

    fn nodes(&mut self, overview: &Overview) {
        let name = "millrace_pool_nodes";
        self.family(name, "gauge", "Nodes by state");
        for state in NodeState::ALL {
            let nodes = overview.nodes.iter();
            let count = nodes.filter(|node| node.state == state).count();
            self.sample(name, &[("state", state.name())], count as f64);
        }
        let name = "millrace_pool_nodes_silent";
        let silent = overview.nodes.iter().filter(|node| node.silent).count();
        self.one(
            name,
            "gauge",
            "Nodes that have missed a heartbeat, before their lease ends",
            silent as f64,
        );
        let name = "millrace_pool_node_operations_per_second";
        self.family(name, "gauge", "Operations per second of a node");
        for node in &overview.nodes {
            self.sample(name, &[("node", &node.name)], node.ops_per_s);
        }
    }

    fn tenants(&mut self, view: &View, overview: &Overview) {
        type Figure = fn(&TenantLine) -> f64;
        let families: [(&str, &str, Figure); 6] = [
            ("millrace_pool_tenant_nodes", "Nodes that are heard and serve a tenant", |row| {
                row.serving as f64
            }),
            (
                "millrace_pool_tenant_granted_operations_per_second",
                "Operations per second that the nodes which are heard may serve; 0 means no limit",
                |row| row.granted_ops,
            ),
            (
                "millrace_pool_tenant_quota_operations_per_second",
                "Quota of a tenant; 0 means no limit",
                |row| row.quota_ops,
            ),
            (
                "millrace_pool_tenant_operations_per_second",
                "Operations per second of a tenant",
                |row| row.used_ops,
            ),
            (
                "millrace_pool_tenant_throttled_per_second",
                "Operations per second that the quota refused",
                |row| row.throttled_per_s,
            ),
            (
                "millrace_pool_tenant_refused_per_second",
                "Operations per second that were refused for want of capacity",
                |row| row.refused_per_s,
            ),
        ];
        for (name, help, value) in families {
            self.family(name, "gauge", help);
            for row in &overview.tenants {
                self.sample(name, &[("tenant", &row.name)], value(row));
            }
        }
        let name = "millrace_pool_tenant_short";
        let help = "1 for a tenant whose nodes lack capacity for its quota";
        self.family(name, "gauge", help);
        for (tenant, ledger) in &view.ledgers {
            let short = f64::from(u8::from(ledger.value.short));
            self.sample(name, &[("tenant", tenant.as_str())], short);
        }
    }

    fn connections(&mut self, connections: &CountedPlaces) {
        let name = "millrace_manager_connections";
        self.family(name, "gauge", "Connections of the API by class of callers");
        for (class, held, _) in connections.rows() {
            self.sample(name, &[("class", class)], held as f64);
        }
        let name = "millrace_manager_connections_displaced_total";
        self.family(name, "counter", "Connections that gave way to another one of their class");
        for (class, _, displaced) in connections.rows() {
            self.sample(name, &[("class", class)], displaced as f64);
        }
    }

    /// A family with one sample.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let pairs: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        let labels =
            if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

/// A label value as the format wants it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
