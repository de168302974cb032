// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report as one picture: operations per second, and latency by load.

use super::load::Loaded;
use super::rates::{MeasuredRates, RateSeries};
use super::results::{CryptoFigures, CryptoReport, at_load, contender};
use crate::error::BenchError;
use crate::plot::{Axis, BarChart, Bars, LineChart, PlotLine, Value, stack};
use crate::stats::Spread;
use crate::workload::MeasuredBackend;

/// Name of the contender that is drawn last.
const OPENSSL: &str = "OpenSSL";

/// All charts that have a value, below each other.
pub(super) fn render(report: &CryptoReport) -> Result<String, BenchError> {
    let CryptoFigures { rates, loads, .. } = &report.figures;
    let mut charts = Vec::new();
    if !rates.is_empty() {
        charts.push(rates_chart(rates).render()?);
    }
    // Neighbours of one operation.
    let groups = loads.chunk_by(|a, b| (&a.operation, a.key) == (&b.operation, b.key));
    for loaded in groups {
        charts.push(latency(loaded).render()?);
    }
    if charts.is_empty() {
        let problem = "--svg: there is nothing to draw of these parts";
        return Err(BenchError::Usage(problem.to_owned()));
    }
    Ok(stack(&charts))
}

/// Operations per second at full batches.
fn rates_chart(measured: &[MeasuredRates]) -> BarChart {
    let cases: Vec<ContenderRates> = measured.iter().map(full_rates).collect();
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in cases.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort_by_key(|name| *name == OPENSSL);
    let bars = |name: &String| Bars {
        name: name.clone(),
        values: cases
            .iter()
            .map(|case| case.iter().find(|(contender, _)| contender == name)?.1)
            .collect(),
    };
    BarChart {
        title: "Operations per second on one core, full batches".to_owned(),
        axis: Axis::logarithmic("operations per second of processor time"),
        categories: measured
            .iter()
            .map(|case| format!("{} {}", case.operation, case.key))
            .collect(),
        series: names.into_iter().map(bars).collect(),
    }
}

/// The contenders of one case, with their rates.
type ContenderRates = Vec<(String, Option<Value>)>;

/// Each contender at its largest batch; that lanes are worse for a single task is in the table.
fn full_rates(case: &MeasuredRates) -> ContenderRates {
    let mut rates = ContenderRates::new();
    for series in case.series.iter().filter(|series| is_full(case, series)) {
        let rate = Spread::of(series.rates.iter().copied());
        rates.push((contender(series.subject, "AWS-LC"), rate.map(Value::from)));
    }
    let openssl = Spread::of(case.openssl.iter().copied());
    rates.push((OPENSSL.to_owned(), openssl.map(Value::from)));
    rates
}

fn is_full(case: &MeasuredRates, series: &RateSeries) -> bool {
    match series.subject {
        None => true,
        Some(MeasuredBackend::SimdAlways(_)) => false,
        Some(subject) => case.full(subject).is_some_and(|full| full.at_once == series.at_once),
    }
}

/// The p99 by the offered rate, in absolute terms: the chart shows where each engine ends.
fn latency(loaded: &[Loaded]) -> LineChart {
    let line = |loaded: &Loaded| {
        let percents = loaded.rounds.first().map(|round| &round.loads);
        let points = percents.into_iter().flatten().filter_map(|load| {
            let x = at_load(&loaded.rounds, load.percent, |load| load.offered_per_s)?;
            let y = at_load(&loaded.rounds, load.percent, |load| load.p99_us / 1e3)?;
            Some((x.median, Value::from(y)))
        });
        PlotLine { name: loaded.serving.to_string(), points: points.collect() }
    };
    let title = loaded.first().map(|Loaded { operation, key, .. }| {
        format!("{operation} {key}: p99 by offered load, one core")
    });
    LineChart {
        title: title.unwrap_or_default(),
        x: Axis::linear("jobs per second"),
        y: Axis::logarithmic("p99 (ms)"),
        series: loaded.iter().map(line).collect(),
    }
}
