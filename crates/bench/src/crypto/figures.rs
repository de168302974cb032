// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The report as one picture: operations per second, and latency by load.

use super::load::Loaded;
use super::rates::{MeasuredRates, Series};
use super::results::{CryptoReport, at_load, contender};
use crate::error::BenchError;
use crate::plot::{Axis, BarChart, Bars, Line, LineChart, Value, stack};
use crate::stats::Spread;
use crate::workload::Subject;

/// All charts that there is something for, below each other.
pub(super) fn render(results: &CryptoReport) -> Result<String, BenchError> {
    let mut charts = Vec::new();
    if !results.parts.rates.is_empty() {
        charts.push(rates(&results.parts.rates).render()?);
    }
    for loaded in groups(&results.parts.loads) {
        charts.push(latency(loaded).render()?);
    }
    if charts.is_empty() {
        return Err(BenchError::Usage(
            "--svg: there is nothing to draw of these parts".to_owned(),
        ));
    }
    Ok(stack(&charts))
}

/// Operations per second at full batches.
fn rates(measured: &[MeasuredRates]) -> BarChart {
    // At its largest batch; that lanes are worse for a task alone is in the table.
    let best = |series: &&Series, all: &[Series]| {
        let larger =
            |other: &Series| other.subject == series.subject && other.at_once > series.at_once;
        let always = matches!(series.subject, Some(Subject::SimdAlways(_)));
        !always && !all.iter().any(larger)
    };
    let mut names: Vec<String> = Vec::new();
    let name = |series: &Series| contender(series.subject, "AWS-LC");
    for one in measured {
        for series in one.series.iter().filter(|series| best(series, &one.series)) {
            if !names.contains(&name(series)) {
                names.push(name(series));
            }
        }
    }
    let value = |one: &MeasuredRates, wanted: &str| -> Option<Value> {
        let found = one
            .series
            .iter()
            .filter(|series| best(series, &one.series))
            .find(|series| name(series) == wanted)?;
        Spread::of(found.rates.iter().copied()).map(Value::from)
    };
    let mut series: Vec<Bars> = names
        .into_iter()
        .map(|name| Bars {
            values: measured.iter().map(|one| value(one, &name)).collect(),
            name,
        })
        .collect();
    let openssl = |one: &MeasuredRates| Spread::of(one.openssl.iter().copied()).map(Value::from);
    series.push(Bars {
        name: "OpenSSL".to_owned(),
        values: measured.iter().map(openssl).collect(),
    });
    BarChart {
        title: "Operations per second on one core, full batches".to_owned(),
        axis: Axis::logarithmic("operations per second of processor time"),
        categories: measured
            .iter()
            .map(|one| format!("{} {}", one.operation, one.key))
            .collect(),
        series,
    }
}

/// Neighbours of one operation.
fn groups(loads: &[Loaded]) -> impl Iterator<Item = &[Loaded]> {
    loads.chunk_by(|a, b| a.operation == b.operation && a.key == b.key)
}

/// The p99 over what is served, in absolute terms: so one sees where each engine ends.
fn latency(loaded: &[Loaded]) -> LineChart {
    let line = |one: &Loaded| {
        let percents = one.rounds.first().map(|round| &round.loads);
        let points = percents.into_iter().flatten().filter_map(|load| {
            let x = at_load(&one.rounds, load.percent, |load| load.offered_per_s)?;
            let y = at_load(&one.rounds, load.percent, |load| load.p99_us / 1e3)?;
            Some((x.median, Value::from(y)))
        });
        Line {
            name: one.serving.to_string(),
            points: points.collect(),
        }
    };
    let title = loaded.first().map(|one| {
        format!(
            "{} {}: p99 by offered load, one core",
            one.operation, one.key
        )
    });
    LineChart {
        title: title.unwrap_or_default(),
        x: Axis::linear("jobs per second"),
        y: Axis::logarithmic("p99 (ms)"),
        series: loaded.iter().map(line).collect(),
    }
}
