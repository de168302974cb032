// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The overview of a pool, from those of its nodes.

use std::cmp::Reverse;

use millrace_service::overview::{
    ClientRow, Event, Figures, MAX_ROWS, NodeRow, NodeState, Overview, Scope, TenantLine, Verdict,
};

use crate::model::node::Usage;

/// An overview of a pool from the use and the reports of its nodes. `nodes` may also have rows for nodes without
/// either, such as those that are away.
pub(super) fn of_pool(
    name: &str,
    at_ms: u64,
    nodes: Vec<NodeRow>,
    usage: &[Usage],
    reports: &[&Overview],
    tenants: Vec<TenantLine>,
    events: Vec<Event>,
) -> Overview {
    let figures = pool_figures(&nodes, usage);
    let mut clients: Vec<ClientRow> = gather(reports, |report| &report.clients);
    clients.sort_by_key(|client| Reverse(client.pooled));
    let keys = gather(reports, |report| &report.keys);
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
    };
    overview.verdict = overview.judge();
    overview
}

/// The rows of all reports, at most [`MAX_ROWS`].
fn gather<T: Clone>(reports: &[&Overview], rows: impl Fn(&Overview) -> &Vec<T>) -> Vec<T> {
    let all = reports.iter().flat_map(|report| rows(report).iter().cloned());
    all.take(MAX_ROWS).collect()
}

#[expect(clippy::cast_precision_loss, reason = "rates and counts of nodes, below 2^52")]
fn pool_figures(nodes: &[NodeRow], usage: &[Usage]) -> Figures {
    let ops = |node: &Usage| node.ops_milli as f64 / 1e3;
    let sum = |value: &dyn Fn(&Usage) -> f64| usage.iter().fold(0.0, |sum, node| sum + value(node));
    let ops_per_s = sum(&ops);
    let weighted = |value: &dyn Fn(&Usage) -> f64| match ops_per_s {
        0.0 => 0.0,
        all => sum(&|node| value(node) * ops(node)) / all,
    };
    let busy: Vec<f64> = nodes.iter().filter_map(|node| node.busy).collect();
    let capacity_left =
        (!busy.is_empty()).then(|| 1.0 - busy.iter().sum::<f64>() / busy.len() as f64);
    let serving = nodes.iter().filter(|node| node.state != NodeState::Away);
    Figures {
        ops_per_s,
        p50_us: weighted(&|node| node.p50_us as f64),
        p99_us: serving.map(|node| node.p99_us).fold(0.0, f64::max),
        fallback_share: weighted(&|node| f64::from(node.fallback_ppm) / 1e6),
        failed_per_s: sum(&|node| node.failed_milli as f64) / 1e3,
        capacity_left,
        cpu_saved: sum(&|node| node.saved_milli as f64) / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: NodeState) -> NodeRow {
        NodeRow {
            name: "a".to_owned(),
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
        }
    }

    #[test]
    fn figures_of_a_pool_add_rates_and_take_the_worst_tail() {
        let node = |ops: u64, p99: u64| {
            let usage = Usage { ops_milli: ops * 1000, p50_us: p99 / 2, ..Usage::default() };
            (NodeRow { p99_us: p99 as f64, ..row(NodeState::Ready) }, usage)
        };
        let (rows, usage): (Vec<_>, Vec<_>) = [node(300, 100), node(100, 900)].into_iter().unzip();
        let sum = of_pool("p", 0, rows, &usage, &[], Vec::new(), Vec::new());
        assert!((sum.figures.ops_per_s - 400.0).abs() < 1e-9);
        assert!((sum.figures.p99_us - 900.0).abs() < 1e-9);
        assert!((sum.figures.p50_us - 150.0).abs() < 1e-9);
    }

    #[test]
    fn node_that_is_away_has_no_part_in_the_tail() {
        let away = NodeRow { p99_us: 900.0, ..row(NodeState::Away) };
        let sum = of_pool("p", 0, vec![away], &[], &[], Vec::new(), Vec::new());
        assert!(sum.figures.p99_us.abs() < 1e-9);
    }
}
