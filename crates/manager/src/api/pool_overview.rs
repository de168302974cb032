// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The overview of a pool, from those of its nodes.

use std::cmp::Reverse;

use millrace_service::overview::{
    ClientRow, Event, Figures, MAX_ROWS, NodeRow, Overview, Scope, TenantLine, Verdict,
};

/// An overview of a pool from those of its nodes. `nodes` may also have rows for nodes without a report, such
/// as those that are away.
pub(super) fn of_pool(
    name: &str,
    at_ms: u64,
    nodes: Vec<NodeRow>,
    reports: &[&Overview],
    tenants: Vec<TenantLine>,
    events: Vec<Event>,
) -> Overview {
    let figures = pool_figures(&nodes, reports);
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

fn pool_figures(nodes: &[NodeRow], reports: &[&Overview]) -> Figures {
    let sum = |value: &dyn Fn(&Figures) -> f64| -> f64 {
        reports.iter().map(|report| value(&report.figures)).sum()
    };
    let ops_per_s = sum(&|figures| figures.ops_per_s);
    let weighted = |value: &dyn Fn(&Figures) -> f64| match ops_per_s {
        0.0 => 0.0,
        all => sum(&|figures| value(figures) * figures.ops_per_s) / all,
    };
    let busy: Vec<f64> = nodes.iter().filter_map(|node| node.busy).collect();
    #[expect(clippy::cast_precision_loss, reason = "a count of nodes, below 2^52")]
    let capacity_left =
        (!busy.is_empty()).then(|| 1.0 - busy.iter().sum::<f64>() / busy.len() as f64);
    Figures {
        ops_per_s,
        p50_us: weighted(&|figures| figures.p50_us),
        p99_us: reports.iter().map(|report| report.figures.p99_us).fold(0.0, f64::max),
        fallback_share: weighted(&|figures| figures.fallback_share),
        failed_per_s: sum(&|figures| figures.failed_per_s),
        capacity_left,
        cpu_saved: sum(&|figures| figures.cpu_saved),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_pool_add_rates_and_take_the_worst_tail() {
        let report = |ops: f64, p99: f64| {
            let mut one = of_pool("p", 0, Vec::new(), &[], Vec::new(), Vec::new());
            one.figures.ops_per_s = ops;
            one.figures.p50_us = p99 / 2.0;
            one.figures.p99_us = p99;
            one
        };
        let (a, b) = (report(300.0, 100.0), report(100.0, 900.0));
        let sum = of_pool("p", 0, Vec::new(), &[&a, &b], Vec::new(), Vec::new());
        assert!((sum.figures.ops_per_s - 400.0).abs() < 1e-9);
        assert!((sum.figures.p99_us - 900.0).abs() < 1e-9);
        assert!((sum.figures.p50_us - 150.0).abs() < 1e-9);
    }
}
