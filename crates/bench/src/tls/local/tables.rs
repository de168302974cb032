// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report as text and as a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::plan::{LocalCell, LocalMode, USUAL_TICKETS};
use super::results::{CellRounds, LocalComparison, LocalReport};
use crate::error::BenchError;
use crate::plot::{Axis, BarChart, Bars, Value};
use crate::stats::Spread;
use crate::table::{dash, sharing, table};

pub(super) fn render(report: &LocalReport) -> String {
    format!(
        "{}{}\n{}{}{}\n",
        head(report),
        comparisons_table(&report.figures.comparisons),
        servers_table(&report.figures.servers),
        report.goals.render_as("geometric mean (range that holds it with 95 %)"),
        closing(report),
    )
}

/// The screen of `make demo`.
pub(super) fn demonstration(report: &LocalReport) -> String {
    let plan = &report.plan;
    let mut text = format!(
        "\nThe quickest gain: full TLS 1.3 handshakes of one nginx worker that computes key exchange and key schedule\n\
         with Millrace's libraries, against the same nginx without ({}). No node, no key moved.\n{}",
        plan.openssl.split(" (").next().unwrap_or_default(),
        comparisons_table(&report.figures.comparisons)
    );
    let completed: u64 = report.figures.servers.iter().map(CellRounds::completed).sum();
    let _ = writeln!(
        text,
        "{completed} handshakes, each verified with its group; the provider's counters prove who computed them.\n\
         Put it under your nginx: millrace gateway nginx --local --pq --write"
    );
    text
}

fn head(report: &LocalReport) -> String {
    let plan = &report.plan;
    let under = match &*plan.under {
        [] => String::new(),
        words => format!(" (under {})", words.join(" ")),
    };
    format!(
        "{}\nServers{under}: {}; {}\nOn core {}, the client on core {}{}; {} rounds of {:.2} s for each server; {}, {} handshakes at a time\n\n",
        report.machine.describe(),
        plan.versions.join("; "),
        plan.openssl,
        plan.gateway_core,
        plan.load_core,
        sharing(plan.gateway_core, plan.load_core),
        plan.rounds,
        plan.duration.as_secs_f64(),
        plan.cipher,
        plan.concurrency,
    )
}

fn closing(report: &LocalReport) -> String {
    let servers = &report.figures.servers;
    let completed: u64 = servers.iter().map(CellRounds::completed).sum();
    format!(
        "\n{completed} full handshakes, each verified: certificate, signature, version, group, number of tickets."
    )
}

#[rustfmt::skip]
fn comparisons_table(comparisons: &[LocalComparison]) -> String {
    let us = |spread: Spread| format!("{:.0}", spread.median);
    table(comparisons, &[
        ("CPU of the server per full handshake", &|comparison: &&LocalComparison| comparison.what()),
        ("µs, peer", &|comparison| us(comparison.peer_us)),
        ("µs, ours", &|comparison| us(comparison.ours_us)),
        ("ratio (95 %)", &|comparison| comparison.ratio.show(2)),
        ("change", &|comparison| format!("{:+.0} %", comparison.ratio.percent())),
    ])
    .render()
}

#[rustfmt::skip]
fn servers_table(servers: &[CellRounds]) -> String {
    let cpu = |server: &CellRounds| Spread::over(&server.rounds, |round| round.server_cpu_us);
    let rate = |server: &CellRounds| Spread::over(&server.rounds, |round| round.completed as f64 / round.elapsed_s);
    table(servers, &[
        ("server", &|server: &&CellRounds| server.cell.to_string()),
        ("handshakes", &|server| server.completed().to_string()),
        ("per s", &|server| dash(rate(server).map(|rate| format!("{:.0}", rate.median)))),
        ("CPU, µs each (range)", &|server| dash(cpu(server).map(|cpu| cpu.show(0)))),
        ("fetches cached", &|server| dash(server.cached().map(|share| format!("{:.1} %", share * 100.0)))),
        ("computed here, each", &|server| each(&server.computed_each())),
    ])
    .render()
}

fn each(computed: &BTreeMap<String, f64>) -> String {
    let words: Vec<String> =
        computed.iter().map(|(name, each)| format!("{name} {each:.1}")).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

/// CPU time per handshake: a row for each server, and a bar for each of its modes.
pub(super) fn plot(report: &LocalReport) -> Result<String, BenchError> {
    let servers = &report.figures.servers;
    let mut groups: Vec<String> = servers.iter().map(|server| server.cell.group_name()).collect();
    groups.dedup();
    let series = [
        ("as it is", LocalMode::Stock, USUAL_TICKETS),
        ("local", LocalMode::Local, USUAL_TICKETS),
        ("local, one ticket", LocalMode::Local, 1),
        ("local, key in a pool", LocalMode::LocalAndPool, USUAL_TICKETS),
    ];
    let value = |group: &String, mode, tickets| {
        let is_it = |cell: &LocalCell| {
            (cell.mode, cell.tickets) == (mode, tickets) && cell.group_name() == *group
        };
        let server = servers.iter().find(|server| is_it(&server.cell))?;
        Spread::over(&server.rounds, |round| round.server_cpu_us).map(Value::from)
    };
    let series = series.into_iter().map(|(name, mode, tickets)| Bars {
        name: name.to_owned(),
        values: groups.iter().map(|group| value(group, mode, tickets)).collect(),
    });
    let series: Vec<Bars> = series.filter(|bars| bars.values.iter().any(Option::is_some)).collect();
    let chart = BarChart {
        title: format!("CPU of a server per full TLS 1.3 handshake, {}", report.plan.openssl),
        axis: Axis::linear("µs, median and range of the rounds"),
        categories: groups,
        series,
    };
    chart.render()
}
