// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench manager`: how long a manager takes to place a tenant in a large pool, and what a pool costs its etcd.
//!
//! ```text
//!  placement   tenant ─► Core ─► transaction ─► memory ─► Core …     the rules alone: no network, no disk
//!  traffic     heartbeats of N nodes ─► Manager ─► etcd              bytes, by etcd's own counters
//! ```
//!
//! Placement runs on simulated nodes in this process. What it decides is verified: the slices of each tenant are its
//! quota, and no node holds more than its capacity.

mod args;
mod placement;
mod traffic;

use serde::Serialize;

pub use self::args::ManagerBenchArgs;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::table;
use placement::Placements;
use traffic::Traffic;

/// Version of the JSON report: raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// Runs `millrace bench manager`.
///
/// # Errors
/// Why there are no figures; a division that breaks a rule of the pool is one reason.
pub fn run_manager(args: &ManagerBenchArgs) -> Result<(), BenchError> {
    let plan = ManagerPlan {
        nodes: args.nodes,
        grants: args.grants,
        placements: args.placements,
        store: args.store.clone(),
        traffic: args.traffic_nodes.clone(),
    };
    let mut progress = Progress::start(1 + plan.traffic.len() as u64)?;
    progress.now("placement in a simulated pool")?;
    let placements = placement::measure(&plan, &progress)?;
    progress.step();
    let traffic = match &plan.store {
        Some(store) => traffic::measure(store, &plan.traffic, &mut progress)?,
        None => Vec::new(),
    };
    drop(progress);
    let figures = ManagerFigures { placements, traffic };
    let mut report = BenchReport::new("manager", SCHEMA, plan, figures);
    report.goals = goals(&report.figures);
    report.deliver(&args.report, &render(&report))?;
    report.goals.require(args.report.require)
}

/// The meaning of the options.
#[derive(Clone, Debug, Serialize)]
struct ManagerPlan {
    nodes: usize,
    grants: usize,
    placements: usize,
    store: Option<String>,
    traffic: Vec<usize>,
}

#[derive(Debug, Serialize)]
struct ManagerFigures {
    placements: Vec<Placements>,
    traffic: Vec<Traffic>,
}

fn goals(figures: &ManagerFigures) -> Goals {
    let once = |value: f64| Spread::of([value]);
    let mut goals = Vec::new();
    for row in &figures.placements {
        let what = format!("{}, p99 in ms", row.what);
        goals.extend(Goal::at_most(what, 10.0, 5.0, once(row.p99_us / 1000.0)));
    }
    if let (Some(least), Some(most)) = (figures.traffic.first(), figures.traffic.last())
        && figures.traffic.len() > 1
    {
        let what = format!("etcd bytes per heartbeat, {} nodes beside {}", most.nodes, least.nodes);
        let growth = most.bytes_per_heartbeat / least.bytes_per_heartbeat;
        goals.extend(Goal::at_most(what, 1.10, 1.05, once(growth)));
    }
    Goals(goals)
}

fn render(report: &BenchReport<ManagerPlan, ManagerFigures>) -> String {
    let BenchReport { plan, figures, .. } = report;
    #[rustfmt::skip]
    let placements = table(&figures.placements, &[
        ("what", &|row| row.what.clone()),
        ("count", &|row| row.count.to_string()),
        ("p50 ms", &|row| format!("{:.2}", row.p50_us / 1000.0)),
        ("p99 ms", &|row| format!("{:.2}", row.p99_us / 1000.0)),
        ("max ms", &|row| format!("{:.2}", row.max_us / 1000.0)),
    ]);
    #[rustfmt::skip]
    let traffic = table(&figures.traffic, &[
        ("nodes", &|row| row.nodes.to_string()),
        ("heartbeats", &|row| row.heartbeats.to_string()),
        ("etcd bytes/heartbeat", &|row| format!("{:.0}", row.bytes_per_heartbeat)),
        ("etcd KB/s at ttl 30 s", &|row| format!("{:.1}", row.kilobytes_per_s())),
        ("heartbeat p50 ms", &|row| format!("{:.2}", row.p50_us / 1000.0)),
        ("p99 ms", &|row| format!("{:.2}", row.p99_us / 1000.0)),
    ]);
    let mut text = format!(
        "{}\n\nPlacement: {} simulated nodes, {} grants, store in memory; divisions verified\n\n{}",
        report.machine.describe(),
        plan.nodes,
        plan.grants,
        placements.render(),
    );
    if let Some(store) = &plan.store {
        text.push_str(&format!(
            "\nTraffic: one manager on {store}, bytes by etcd's counters, both directions\n\n{}",
            traffic.render()
        ));
    }
    text + &report.goals.render()
}
