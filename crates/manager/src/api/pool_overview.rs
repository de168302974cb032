// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The overview of a pool, from those of its nodes.

use std::cmp::Reverse;

use millrace_service::overview::{
    ClientRow, Event, Figures, NodeRow, NodeState, Overview, OverviewFinding, RowTotals, Scope,
    TenantLine, Verdict,
};

use crate::model::node::Usage;

/// The parts of an overview of a pool. `nodes` may also have rows for nodes without use or report, such as those
/// that are away.
#[derive(Default)]
pub(super) struct PoolParts<'a> {
    pub(super) nodes: Vec<NodeRow>,
    pub(super) usage: &'a [Usage],
    pub(super) reports: &'a [&'a Overview],
    pub(super) tenants: Vec<TenantLine>,
    pub(super) events: Vec<Event>,
    /// Number of events, with those that are not in the list.
    pub(super) all_events: usize,
    /// Findings that no row shows.
    pub(super) findings: Vec<OverviewFinding>,
}

/// An overview of a pool with all rows.
pub(super) fn of_pool(name: &str, at_ms: u64, parts: PoolParts<'_>) -> Overview {
    let PoolParts { nodes, usage, reports, tenants, events, all_events, findings } = parts;
    let figures = pool_figures(&nodes, usage);
    let mut clients: Vec<ClientRow> = gather(reports, |report| &report.clients);
    clients.sort_by_key(|client| Reverse(client.pooled));
    let keys = gather(reports, |report| &report.keys);
    let of_nodes = reports.iter().map(|report| report.counted());
    let totals = of_nodes.fold(RowTotals::default(), |sum, node| RowTotals {
        clients: sum.clients + node.clients,
        keys: sum.keys + node.keys,
        broken_keys: sum.broken_keys + node.broken_keys,
        ..sum
    });
    let mut overview = Overview {
        scope: Scope::Pool,
        name: name.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at_ms,
        verdict: Verdict::default(),
        figures,
        nodes,
        clients,
        tenants,
        keys,
        events,
        totals: RowTotals { events: all_events, ..totals },
    };
    overview.verdict = overview.judge_with(findings);
    overview
}

/// The rows of all reports.
fn gather<T: Clone>(reports: &[&Overview], rows: impl Fn(&Overview) -> &Vec<T>) -> Vec<T> {
    reports.iter().flat_map(|report| rows(report).iter().cloned()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "rates and counts of nodes, below 2^52")]
fn pool_figures(nodes: &[NodeRow], usage: &[Usage]) -> Figures {
    let mut figures = Figures::default();
    for node in usage {
        let ops = node.ops_milli as f64 / 1e3;
        figures.ops_per_s += ops;
        figures.p50_us += node.p50_us as f64 * ops;
        figures.fallback_share += f64::from(node.fallback_ppm) / 1e6 * ops;
        figures.failed_per_s += node.failed_milli as f64 / 1e3;
        figures.cpu_saved += node.saved_milli as f64 / 1e3;
    }
    if figures.ops_per_s > 0.0 {
        // Means over the operations.
        figures.p50_us /= figures.ops_per_s;
        figures.fallback_share /= figures.ops_per_s;
    }
    let serving = nodes.iter().filter(|node| node.state != NodeState::Away);
    figures.p99_us = serving.map(|node| node.p99_us).fold(0.0, f64::max);
    let busy: Vec<f64> = nodes.iter().filter_map(|node| node.busy).collect();
    if !busy.is_empty() {
        figures.capacity_left = Some(1.0 - busy.iter().sum::<f64>() / busy.len() as f64);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_pool_add_rates_and_take_the_worst_tail() {
        let node = |ops: u64, p99: u64| {
            let usage = Usage { ops_milli: ops * 1000, p50_us: p99 / 2, ..Usage::default() };
            (NodeRow { p99_us: p99 as f64, ..NodeRow::new("a", NodeState::Ready) }, usage)
        };
        let (rows, usage): (Vec<_>, Vec<_>) = [node(300, 100), node(100, 900)].into_iter().unzip();
        let sum = of_pool("p", 0, PoolParts { nodes: rows, usage: &usage, ..PoolParts::default() });
        assert!((sum.figures.ops_per_s - 400.0).abs() < 1e-9);
        assert!((sum.figures.p99_us - 900.0).abs() < 1e-9);
        assert!((sum.figures.p50_us - 150.0).abs() < 1e-9);
    }

    #[test]
    fn node_that_is_away_has_no_part_in_the_tail() {
        let away = NodeRow { p99_us: 900.0, ..NodeRow::new("a", NodeState::Away) };
        let sum = of_pool("p", 0, PoolParts { nodes: vec![away], ..PoolParts::default() });
        assert!(sum.figures.p99_us.abs() < 1e-9);
    }
}
