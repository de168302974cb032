// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report as plots: the gateway's CPU time, the requests, and short connections.

use super::plan::Cell;
use super::results::{Rounds, ShortRounds, TlsReport};
use super::testbed::Measurement;
use super::{Mode, Server};
use crate::error::BenchError;
use crate::plot::{self, Axis, BarChart, Bars, Value};
use crate::stats::Spread;

const MODES: [Mode; 3] = [Mode::Local, Mode::Pooled, Mode::PooledPreload];

/// All plots that there is something for, below each other.
pub(super) fn render(results: &TlsReport) -> Result<String, BenchError> {
    let mut charts = Vec::new();
    for chart in [handshakes(results), requests(results), short(results)] {
        if chart
            .series
            .iter()
            .any(|bars| bars.values.iter().any(Option::is_some))
        {
            charts.push(chart.render()?);
        }
    }
    Ok(plot::stack(&charts))
}

/// What is compared with each other.
fn groups(results: &TlsReport) -> Vec<Cell> {
    let local = |cell: Cell| Cell {
        mode: Mode::Local,
        ..cell
    };
    let mut groups: Vec<Cell> = results.cells.iter().map(|one| local(one.cell)).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn name(cell: &Cell) -> String {
    format!("{}, {}, TLS {}", cell.server, cell.key, cell.tls)
}

fn spread(
    results: &TlsReport,
    cell: Cell,
    value: &dyn Fn(&Measurement) -> Option<f64>,
) -> Option<Value> {
    let Rounds { rounds, .. } = results.cells.iter().find(|one| one.cell == cell)?;
    Spread::of(rounds.iter().filter_map(value)).map(Value::from)
}

/// One series per mode over these groups.
fn by_mode(
    results: &TlsReport,
    groups: &[Cell],
    value: &dyn Fn(&Measurement) -> Option<f64>,
) -> Vec<Bars> {
    let bars = |mode: Mode| Bars {
        name: mode.name().to_owned(),
        values: groups
            .iter()
            .map(|group| spread(results, Cell { mode, ..*group }, value))
            .collect(),
    };
    let measured = |bars: &Bars| bars.values.iter().any(Option::is_some);
    MODES.into_iter().map(bars).filter(measured).collect()
}

fn handshakes(results: &TlsReport) -> BarChart {
    let groups = groups(results);
    let cpu = |round: &Measurement| round.closed.as_ref().map(|load| load.gateway_cpu_us / 1e3);
    let mut series = by_mode(results, &groups, &cpu);
    let ceiling = |group: &Cell| {
        let saving = results.savings.iter().find(|saving| {
            let pooled = saving.pooled;
            (pooled.server, pooled.key, pooled.tls) == (group.server, group.key, group.tls)
        })?;
        let left = 1.0 - saving.full.offload_ceiling;
        Some(Value::from(saving.full.local_us.median * left / 1e3))
    };
    series.push(Bars {
        name: "what the ceiling leaves".to_owned(),
        values: groups.iter().map(ceiling).collect(),
    });
    BarChart {
        title: "Gateway CPU time per full handshake".to_owned(),
        axis: Axis::linear("CPU time per handshake (ms), median and range of the rounds"),
        categories: groups.iter().map(name).collect(),
        series,
    }
}

fn requests(results: &TlsReport) -> BarChart {
    let groups = groups(results);
    let rate = |round: &Measurement| round.requests.as_ref().map(|load| load.handshakes_per_s);
    BarChart {
        title: format!(
            "Requests over new connections, {} at a time, on two cores",
            results.plan.request_concurrency
        ),
        axis: Axis::linear("requests per second, median and range of the rounds"),
        categories: groups.iter().map(name).collect(),
        series: by_mode(results, &groups, &rate),
    }
}

fn short(results: &TlsReport) -> BarChart {
    let mut groups: Vec<_> = results
        .short_cells
        .iter()
        .map(|one| (one.cell.server, one.cell.path))
        .collect();
    groups.sort_unstable();
    groups.dedup();
    let bars = |mode: Mode| Bars {
        name: mode.name().to_owned(),
        values: groups
            .iter()
            .map(|&group| {
                let fits = |one: &&ShortRounds| {
                    (one.cell.server, one.cell.path) == group && one.cell.mode == mode
                };
                let ShortRounds { rounds, .. } = results.short_cells.iter().find(fits)?;
                let rates = rounds.iter().map(|load| 1e6 / load.gateway_cpu_us);
                Spread::of(rates).map(Value::from)
            })
            .collect(),
    };
    let allowed = |&(server, path): &(Server, super::short::Path)| {
        let fits = |one: &&ShortRounds| {
            (one.cell.server, one.cell.path, one.cell.mode) == (server, path, Mode::Local)
        };
        let ShortRounds { rounds, .. } = results.short_cells.iter().find(fits)?;
        let gain = results
            .short_gains
            .iter()
            .find(|gain| (gain.pooled.server, gain.pooled.path) == (server, path))?;
        let local = Spread::of(rounds.iter().map(|load| 1e6 / load.gateway_cpu_us))?;
        Some(Value::from(local.median * gain.allowed?))
    };
    let mut series: Vec<Bars> = MODES.into_iter().map(bars).collect();
    series.push(Bars {
        name: "what the ceiling allows".to_owned(),
        values: groups.iter().map(allowed).collect(),
    });
    BarChart {
        title: "Short connections with AES128-SHA".to_owned(),
        axis: Axis::linear("requests per second of gateway CPU time, median and range"),
        categories: groups
            .iter()
            .map(|(server, path)| format!("{server}, {path}"))
            .collect(),
        series,
    }
}
