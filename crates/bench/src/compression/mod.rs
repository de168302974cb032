// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace bench compression`: nginx as it is, and nginx with the library that compresses, on the same pages.
//!
//! Requests alternate between the two in rounds; the figure is the CPU time of the worker for each request, which
//! other work on the machine disturbs less than rates. Requests go round many pages of a kind: with a single one the
//! processor predicts every branch of zlib's search, which halves its time at 10 KB, and no real server sends one page
//! alone. Each page's body is decompressed and compared. In the same rounds stock nginx also sends the compressed
//! bodies from files: no compression can gain more than that.

mod args;
pub(crate) mod corpus;
mod site;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::args::CompressionArgs;
use self::corpus::KindText;
use self::site::NginxSite;
use crate::cores;
use crate::error::BenchError;
use crate::goals::{Goal, Goals};
use crate::plot::{Axis, BarChart, Bars, write};
use crate::process::temporary_folder;
use crate::progress::Progress;
use crate::report::BenchReport;
use crate::stats::Spread;
use crate::table::{sharing, table};

/// Longest page: what one request may keep a worker busy with.
pub(crate) const MAX_PAGE: u64 = 8 << 20;

/// Bytes of pages in one measurement: some 20 to 100 ms of the worker.
const BYTES_PER_MEASUREMENT: usize = 12_000_000;

/// Bounds on the requests of one measurement.
const REQUESTS: std::ops::RangeInclusive<usize> = 32..=1000;

/// nginx as it is, with the library, and with the library and one of its engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum NginxVariant {
    Stock,
    Millrace,
    Isal,
    Libdeflate,
}

/// Pages of one kind and length at one level, over all rounds.
#[derive(Debug, Serialize)]
struct CompressionRow {
    kind: &'static str,
    size: usize,
    level: u8,
    /// Different pages that were sent.
    pages: usize,
    /// Microseconds of the worker for each request, by round.
    stock_us: Vec<f64>,
    millrace_us: Vec<f64>,
    /// Microseconds of the worker for each request of a body that was compressed before.
    ready_us: Vec<f64>,
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
struct CompressionSummary {
    size: usize,
    level: u8,
    /// Gain in CPU time: geometric mean over the kinds, median and range over the rounds.
    gain: Spread,
    /// Gain of compression that costs nothing; geometric mean over the kinds.
    ceiling: f64,
    /// Change of the length: mean over the kinds, per cent.
    change: f64,
}

#[derive(Debug, Serialize)]
struct CompressionPlan {
    server_core: usize,
    load_core: usize,
    rounds: u64,
    kinds: Vec<&'static str>,
    files: String,
}

impl CompressionPlan {
    fn of(
        args: &CompressionArgs,
        texts: &[KindText],
        server_core: usize,
        load_core: usize,
    ) -> Self {
        let files = args.files.as_ref();
        Self {
            server_core,
            load_core,
            rounds: args.rounds,
            kinds: texts.iter().map(|text| text.kind).collect(),
            files: files.map_or_else(
                || "documents of this machine".to_owned(),
                |dir| dir.display().to_string(),
            ),
        }
    }
}

#[derive(Debug, Serialize)]
struct CompressionFigures {
    rows: Vec<CompressionRow>,
    summary: Vec<CompressionSummary>,
}

/// Measures, prints and writes.
///
/// # Errors
/// [`BenchError`]; a wrong body ends the run.
pub fn run_compression(args: &CompressionArgs) -> Result<(), BenchError> {
    let mut args = args.clone();
    if args.demo {
        (args.sizes, args.levels, args.rounds) = (vec![100_000], vec![1, 6], 2);
    }
    let args = &args;
    let (server_core, load_core) = cores::two(args.server_core, args.load.load_core)?;
    let texts = corpus::read(args.files.as_deref(), &args.kinds)?;
    let library = site::library(args.compression_library.as_deref())?;
    let dir = temporary_folder()?;
    let pages = pages(&texts, &args.sizes, args.pages);
    site::write_pages(dir.path(), &pages)?;
    let mut variants = vec![NginxVariant::Stock, NginxVariant::Millrace];
    if args.engines {
        variants.extend([NginxVariant::Isal, NginxVariant::Libdeflate]);
    }
    let start = |variant| NginxSite::start(variant, &library, &args.levels, server_core, dir.path());
    let mut sites = variants
        .into_iter()
        .map(|variant| Ok((variant, start(variant)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let steps = args.rounds * (pages.len() * args.levels.len()) as u64;
    let progress = Progress::start(steps)?;
    cores::pin(load_core)?;
    let rows = rounds(args, &pages, &mut sites, progress)?;
    let plan = CompressionPlan::of(args, &texts, server_core, load_core);
    let summary = summarize(&rows, args.rounds);
    let mut report = BenchReport::new("compression", 2, plan, CompressionFigures { rows, summary });
    report.goals = goals(&report.figures.summary);
    if let Some(svg) = &args.plot.svg {
        write(&plot(&report.figures.summary)?, svg)?;
    }
    let page = if args.demo { demonstration(&report.figures.summary) } else { text(&report) };
    report.deliver(&args.report, &page)?;
    report.goals.require(args.report.require)
}

/// Measures each page at each level on each site, in every round.
fn rounds(
    args: &CompressionArgs,
    pages: &[PageSet],
    sites: &mut [(NginxVariant, NginxSite)],
    mut progress: Progress,
) -> Result<Vec<CompressionRow>, BenchError> {
    let mut rows: BTreeMap<(usize, usize), CompressionRow> = BTreeMap::new();
    for round in 0..args.rounds {
        for (at, page) in pages.iter().enumerate() {
            for (of, level) in args.levels.iter().enumerate() {
                progress.now(&format!("{} {} bytes, level {level}", page.kind, page.size))?;
                let row = rows.entry((of, at)).or_insert_with(|| CompressionRow::new(page, *level));
                // Who begins alternates, so that neither always finds a warm cache.
                let mut order: Vec<usize> = (0..sites.len()).collect();
                if round % 2 == 1 {
                    order.reverse();
                }
                for at in order {
                    let (variant, site) = &mut sites[at];
                    let (took, bytes) = site.measure(page, *level)?;
                    row.add(*variant, took, bytes);
                }
                let (_, stock) = &mut sites[0];
                row.ready_us.push(stock.measure_ready(page, *level)?);
                progress.step();
            }
        }
    }
    Ok(rows.into_values().collect())
}

/// Pages of one kind and length, from different places of a text.
struct PageSet {
    kind: &'static str,
    size: usize,
    bytes: Vec<Vec<u8>>,
}

impl PageSet {
    fn name(&self, number: usize) -> String {
        format!("{}-{}-{number}.html", self.kind, self.size)
    }

    fn requests(&self) -> usize {
        (BYTES_PER_MEASUREMENT / self.size.max(1)).clamp(*REQUESTS.start(), *REQUESTS.end())
    }
}

fn pages(texts: &[KindText], sizes: &[usize], most: usize) -> Vec<PageSet> {
    let of = |text: &KindText, size: usize| {
        let mut bytes: Vec<Vec<u8>> = text.bytes.chunks_exact(size).map(<[u8]>::to_vec).collect();
        if bytes.is_empty() {
            bytes.push(text.bytes.clone());
        }
        // From all parts of the text.
        let step = bytes.len().div_ceil(most);
        let bytes = bytes.into_iter().step_by(step).collect();
        PageSet { kind: text.kind, size, bytes }
    };
    sizes.iter().flat_map(|size| texts.iter().map(move |text| of(text, *size))).collect()
}

impl CompressionRow {
    fn new(page: &PageSet, level: u8) -> Self {
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

    fn add<'a>(&'a mut self, variant: NginxVariant, took: f64, bytes: usize) {
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
}

fn geometric_mean(values: &[f64]) -> f64 {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (logarithms / values.len() as f64).exp()
}

fn summarize(rows: &[CompressionRow], rounds: u64) -> Vec<CompressionSummary> {
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
fn goals(summary: &[CompressionSummary]) -> Goals {
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

fn text(report: &BenchReport<CompressionPlan, CompressionFigures>) -> String {
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
fn demonstration(summary: &[CompressionSummary]) -> String {
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

fn plot(summary: &[CompressionSummary]) -> Result<String, BenchError> {
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

    #[test]
    fn pages_of_a_kind_are_different_parts_of_its_text() {
        let text = |bytes: Vec<u8>| KindText { kind: "js", bytes };
        let [long, short] = [(0..=99).collect(), vec![7]].map(text);
        let found = pages(&[long, short], &[10], 4);
        let [long, short] = &found[..] else {
            panic!("{}", found.len());
        };
        let first: Vec<u8> = long.bytes.iter().map(|page| page[0]).collect();
        assert_eq!(first, [0, 30, 60, 90]);
        assert_eq!(short.bytes, [[7]]);
        assert_ne!(long.name(0), long.name(1));
    }
}
