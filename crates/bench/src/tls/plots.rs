// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report as plots: the gateway's CPU time, the requests, and short connections.

use std::fmt::Display;

use super::KeyPlace;
use super::plan::{Cell, Handshake};
use super::results::{Cells, TlsReport};
use super::short::{Short, ShortLoad};
use super::testbed::Measurement;
use crate::error::BenchError;
use crate::plot::{self, Axis, BarChart, Bars, Value};
use crate::stats::Spread;

const MODES: [KeyPlace; 3] = [KeyPlace::Local, KeyPlace::Pooled, KeyPlace::PooledPreload];

/// All plots that have a value, below each other.
pub(super) fn render(report: &TlsReport) -> Result<String, BenchError> {
    let charts = [handshakes(report), requests(report), short(report)];
    let measured = charts.iter().filter(|chart| chart.series.iter().any(has_values));
    let rendered: Result<Vec<String>, _> = measured.map(BarChart::render).collect();
    Ok(plot::stack(&rendered?))
}

fn has_values(bars: &Bars) -> bool {
    bars.values.iter().any(Option::is_some)
}

/// A chart with a row for each group of cells that are compared, and a series for each mode.
fn chart<W: Copy + Ord + Display, R>(
    title: String,
    axis: &str,
    cells: &Cells<W, R>,
    value: impl Fn(&R) -> Option<f64>,
    (limit, limit_of): (&str, impl Fn(Cell<W>) -> Option<f64>),
) -> BarChart {
    let mut groups: Vec<Cell<W>> =
        cells.iter().map(|rounds| rounds.cell.with(KeyPlace::Local)).collect();
    groups.dedup();
    let spread = |cell| Spread::over(cells.of(cell), &value).map(Value::from);
    let bars = |mode: KeyPlace| Bars {
        name: mode.to_string(),
        values: groups.iter().map(|group| spread(group.with(mode))).collect(),
    };
    let limits = Bars {
        name: limit.to_owned(),
        values: groups.iter().map(|group| limit_of(*group).map(Value::from)).collect(),
    };
    BarChart {
        title,
        axis: Axis::linear(axis),
        categories: groups.iter().map(Cell::group).collect(),
        series: MODES.into_iter().map(bars).chain([limits]).filter(has_values).collect(),
    }
}

fn handshakes(report: &TlsReport) -> BarChart {
    let figures = &report.figures;
    let cpu = |round: &Measurement| round.closed.as_ref().map(|load| load.gateway_cpu_us / 1e3);
    let left = |group: Cell<Handshake>| {
        let mut savings = figures.savings.iter();
        let full = &savings.find(|saving| saving.pooled.with(KeyPlace::Local) == group)?.full;
        Some(full.local_us.median * (1.0 - full.offload_ceiling) / 1e3)
    };
    let axis = "CPU time per handshake (ms), median and range of the rounds";
    let title = "Gateway CPU time per full handshake".to_owned();
    chart(title, axis, &figures.cells, cpu, ("remainder at the ceiling", left))
}

fn requests(report: &TlsReport) -> BarChart {
    let rate = |round: &Measurement| round.requests.as_ref().map(|load| load.handshakes_per_s);
    let concurrency = report.plan.request_concurrency;
    let title = format!("Requests over new connections, {concurrency} at a time, on two cores");
    let axis = "requests per second, median and range of the rounds";
    chart(title, axis, &report.figures.cells, rate, ("", |_| None))
}

fn short(report: &TlsReport) -> BarChart {
    let figures = &report.figures;
    let rate = |load: &ShortLoad| Some(1e6 / load.gateway_cpu_us);
    let allowed = |group: Cell<Short>| {
        let mut gains = figures.short_gains.iter();
        let gain = gains.find(|gain| gain.pooled.with(KeyPlace::Local) == group)?;
        let local = Spread::over(figures.short_cells.of(group), rate)?;
        Some(local.median * gain.allowed?)
    };
    let axis = "requests per second of gateway CPU time, median and range";
    let title = "Short connections with AES128-SHA".to_owned();
    chart(title, axis, &figures.short_cells, rate, ("maximum by the ceiling", allowed))
}
