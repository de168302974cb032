// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The figures of `bench compression`: rows, their summary over the kinds, tables, goals and a plot.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{CompressionPlan, NginxVariant, PageSet};
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::plot::{Axis, BarChart, Bars};
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::{sharing, table};

#[derive(Debug, Serialize)]
pub(super) struct CompressionFigures {
    pub(super) rows: Vec<CompressionRow>,
    pub(super) summary: Vec<CompressionSummary>,
}

/// Pages of one kind and length at one level, over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct CompressionRow {
    kind: &'static str,
    size: usize,
    level: u8,
    /// Different pages that were sent.
    pages: usize,
    /// Microseconds of the worker for each request, by round.
    stock_us: Vec<f64>,
    millrace_us: Vec<f64>,
    /// Microseconds of the worker for each request of a body that was compressed before.
    pub(super) ready_us: Vec<f64>,
    /// Bytes of the compressed bodies of all pages.
    stock_bytes: usize,
    millrace_bytes: usize,
    /// Results with ISA-L alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    isal: Option<EngineAlone>,
    #[serde(skip_serializing_if = "Option::is_none")]
    libdeflate: Option<EngineAlone>,
}

/// One engine alone.
#[derive(Debug, Default, Serialize)]
struct EngineAlone {
    us: Vec<f64>,
    bytes: usize,
}

impl EngineAlone {
    /// CPU time of stock zlib divided by this engine's, and the change of the length, as text.
    fn show(alone: Option<&Self>, row: &CompressionRow) -> String {
        let gain = alone.and_then(|alone| {
            Spread::of_ratios(row.stock_us.iter().copied(), alone.us.iter().copied())
        });
        let (Some(alone), Some(gain)) = (alone, gain) else {
            return String::new();
        };
        format!("{:.2}, {:+.1} %", gain.median, change(row.stock_bytes, alone.bytes))
    }
}

/// Change of a length, per cent.
fn change(from: usize, to: usize) -> f64 {
    100.0 * (to as f64 / from as f64 - 1.0)
}

impl CompressionRow {
    pub(super) fn new(page: &PageSet, level: u8) -> Self {
        Self {
            kind: page.kind,
            size: page.size,
            level,
            pages: page.bytes.len(),
            stock_us: Vec::new(),
            millrace_us: Vec::new(),
            ready_us: Vec::new(),
            stock_bytes: 0,
            millrace_bytes: 0,
            isal: None,
            libdeflate: None,
        }
    }

    pub(super) fn add<'a>(&'a mut self, variant: NginxVariant, took: f64, bytes: usize) {
        let alone = |place: &'a mut Option<EngineAlone>| {
            let EngineAlone { us, bytes } = place.get_or_insert_default();
            (us, bytes)
        };
        let (times, length) = match variant {
            NginxVariant::Stock => (&mut self.stock_us, &mut self.stock_bytes),
            NginxVariant::Millrace => (&mut self.millrace_us, &mut self.millrace_bytes),
            NginxVariant::Isal => alone(&mut self.isal),
            NginxVariant::Libdeflate => alone(&mut self.libdeflate),
        };
        times.push(took);
        *length = bytes;
    }

    /// CPU time with stock zlib divided by that with Millrace, within each round.
    fn gain(&self) -> Option<Spread> {
        Spread::of_ratios(self.stock_us.iter().copied(), self.millrace_us.iter().copied())
    }

    /// Upper bound of the gain: CPU time with stock zlib divided by that without compression, within each round.
    fn ceiling(&self) -> Option<Spread> {
        Spread::of_ratios(self.stock_us.iter().copied(), self.ready_us.iter().copied())
    }

    /// Change of the body's length, per cent.
    fn change(&self) -> f64 {
        change(self.stock_bytes, self.millrace_bytes)
    }

    fn gain_in(&self, round: usize) -> Option<f64> {
        Some(self.stock_us.get(round)? / self.millrace_us.get(round)?)
    }
}

/// All kinds of one size and level.
#[derive(Debug, Serialize)]
pub(super) struct CompressionSummary {
    size: usize,
    level: u8,
    /// Gain in CPU time: geometric mean over the kinds, median and range over the rounds.
    gain: Spread,
    /// Gain of compression that costs nothing; geometric mean over the kinds.
    ceiling: f64,
    /// Change of the length: mean over the kinds, per cent.
    change: f64,
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (logarithms / values.len() as f64).exp()
}

pub(super) fn summarize(rows: &[CompressionRow], rounds: u64) -> Vec<CompressionSummary> {
    let mut groups: BTreeMap<(u8, usize), Vec<&CompressionRow>> = BTreeMap::new();
    for row in rows {
        groups.entry((row.level, row.size)).or_default().push(row);
    }
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    for ((level, size), rows) in groups {
        let of_round = |round: usize| {
            let gains: Option<Vec<f64>> = rows.iter().map(|row| row.gain_in(round)).collect();
            gains.map(|gains| geometric_mean(&gains))
        };
        if let Some(gain) = Spread::of((0..rounds).filter_map(of_round)) {
            let change = rows.iter().map(|row| row.change()).sum::<f64>() / rows.len() as f64;
            let ceilings: Vec<f64> =
                rows.iter().filter_map(|row| Some(row.ceiling()?.median)).collect();
            found.push(CompressionSummary {
                size,
                level,
                gain,
                ceiling: geometric_mean(&ceilings),
                change,
            });
        }
    }
    found
}

/// The numbers to reach, where their sizes and levels were measured.
pub(super) fn goals(summary: &[CompressionSummary]) -> Goals {
    let mut goals = Vec::new();
    for row in summary {
        let CompressionSummary { size, level, gain, ceiling: _, change } = row;
        let what = |what: &str| format!("{what}, level {level}, {size} bytes");
        let gain_goal = |must, aim| Goal::at_least(what("times less CPU"), must, aim, *gain);
        let size_goal = |must, aim| {
            let change = Spread { median: *change, min: *change, max: *change };
            Goal::at_most(what("longer output, %"), must, aim, change)
        };
        match (level, size) {
            (1, 100_000 | 1_000_000) => goals.extend([gain_goal(3.3, 4.5), size_goal(0.0, -2.0)]),
            (4..=9, 100_000) => goals.extend([gain_goal(1.5, 2.0), size_goal(1.0, 0.0)]),
            (1, 10_000) => goals.push(gain_goal(1.9, 2.5)),
            (_, 1_000) => goals.push(gain_goal(1.0, 1.4)),
            _ => {}
        }
    }
    Goals(goals.into_iter().flatten().collect())
}

pub(super) fn text(report: &BenchReport<CompressionPlan, CompressionFigures>) -> String {
    let plan = &report.plan;
    let head = format!(
        "{}\nBoth nginx on core {}, the client on core {}{}; {} rounds; {}\n",
        report.machine.describe(),
        plan.server_core,
        plan.load_core,
        sharing(plan.server_core, plan.load_core),
        plan.rounds,
        plan.files,
    );
    let rows = table(
        &report.figures.rows,
        &[
            ("page", &|row: &&CompressionRow| format!("{} {}", row.kind, row.size)),
            ("of", &|row| row.pages.to_string()),
            ("level", &|row| row.level.to_string()),
            ("stock µs", &|row| middle(&row.stock_us)),
            ("millrace µs", &|row| middle(&row.millrace_us)),
            ("ready µs", &|row| middle(&row.ready_us)),
            ("times less (range)", &|row| row.gain().map_or_else(String::new, |gain| gain.show(2))),
            ("stock bytes", &|row| (row.stock_bytes / row.pages).to_string()),
            ("change", &|row| format!("{:+.1} %", row.change())),
        ],
    );
    format!(
        "{head}\n{}\n{}{}{}",
        rows.render(),
        engines_table(&report.figures.rows),
        summary_table(&report.figures.summary),
        report.goals.render()
    )
}

/// Times less CPU and change of the length with the library, and with each of its engines alone; nothing if they were
/// not measured.
fn engines_table(rows: &[CompressionRow]) -> String {
    if rows.iter().all(|row| row.isal.is_none()) {
        return String::new();
    }
    let table = table(
        rows,
        &[
            ("page", &|row: &&CompressionRow| format!("{} {}", row.kind, row.size)),
            ("level", &|row| row.level.to_string()),
            ("millrace", &|row| {
                let gain = row.gain().map_or(0.0, |gain| gain.median);
                format!("{gain:.2}, {:+.1} %", row.change())
            }),
            ("isal alone", &|row| EngineAlone::show(row.isal.as_ref(), row)),
            ("libdeflate alone", &|row| EngineAlone::show(row.libdeflate.as_ref(), row)),
        ],
    );
    format!("{}\n", table.render())
}

fn summary_table(summary: &[CompressionSummary]) -> String {
    let table = table(
        summary,
        &[
            ("all kinds", &|row: &&CompressionSummary| format!("{} bytes", row.size)),
            ("level", &|row| row.level.to_string()),
            ("times less CPU (range)", &|row| row.gain.show(2)),
            ("at most", &|row| format!("{:.2}", row.ceiling)),
            ("change", &|row| format!("{:+.1} %", row.change)),
        ],
    );
    table.render()
}

/// The table of `make demo`.
pub(super) fn demonstration(summary: &[CompressionSummary]) -> String {
    format!(
        "\nCompressed responses of stock nginx: CPU of a worker with Millrace's library against zlib, and the\n\
         change of their length; at most: if compression cost nothing. Each body was decompressed and compared.\n{}",
        summary_table(summary)
    )
}

fn middle(values: &[f64]) -> String {
    Spread::of(values.iter().copied())
        .map_or_else(String::new, |spread| format!("{:.0}", spread.median))
}

pub(super) fn plot(summary: &[CompressionSummary]) -> Result<String, BenchError> {
    let mut levels: Vec<u8> = summary.iter().map(|row| row.level).collect();
    let mut sizes: Vec<usize> = summary.iter().map(|row| row.size).collect();
    levels.sort_unstable();
    levels.dedup();
    sizes.sort_unstable();
    sizes.dedup();
    let gain = |size, level| {
        let found = summary.iter().find(|row| (row.size, row.level) == (size, level));
        found.map(|row| row.gain.into())
    };
    let chart = BarChart {
        title: "CPU of nginx for a compressed response".to_owned(),
        axis: Axis::linear("times less than stock zlib"),
        categories: sizes.iter().map(|size| format!("{size} bytes")).collect(),
        series: levels
            .iter()
            .map(|level| Bars {
                name: format!("level {level}"),
                values: sizes.iter().map(|size| gain(*size, *level)).collect(),
            })
            .collect(),
    };
    chart.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &'static str, stock: [f64; 2], millrace: [f64; 2]) -> CompressionRow {
        CompressionRow {
            kind,
            size: 100_000,
            level: 1,
            stock_us: stock.to_vec(),
            millrace_us: millrace.to_vec(),
            ready_us: stock.map(|us| us / 4.0).to_vec(),
            stock_bytes: 100,
            millrace_bytes: 98,
            pages: 1,
            isal: None,
            libdeflate: Some(EngineAlone { us: stock.map(|us| us / 2.0).to_vec(), bytes: 90 }),
        }
    }

    #[test]
    fn summary_is_the_geometric_mean_of_each_round() {
        let rows = [row("html", [8.0, 8.0], [2.0, 4.0]), row("js", [9.0, 9.0], [9.0, 4.5])];
        let found = summarize(&rows, 2);
        assert_eq!(found.len(), 1);
        assert!((found[0].gain.median - 2.0).abs() < 1e-9, "{found:?}");
        assert!((found[0].change + 2.0).abs() < 1e-9);
        assert!((found[0].ceiling - 4.0).abs() < 1e-9);
        let demo = demonstration(&found);
        assert!(demo.contains("100000 bytes") && demo.contains("2.00"), "{demo}");
        let text = goals(&found).render();
        assert!(text.contains("times less CPU, level 1, 100000 bytes"), "{text}");
        assert!(plot(&found).expect("a plot").contains("level 1"));
        let alone = EngineAlone::show(rows[0].libdeflate.as_ref(), &rows[0]);
        assert_eq!(alone, "2.00, -10.0 %");
    }
}
