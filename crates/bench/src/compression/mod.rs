// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace bench compression`: nginx as it is, and nginx with the library that compresses, on the same pages.
//!
//! Requests alternate between the two in rounds; the figure is the CPU time of the worker for each request, which
//! other work on the machine disturbs less than rates. Requests go round many pages of a kind: with a single one the
//! processor predicts every branch of zlib's search, which halves its time at 10 KB, and no real server sends one page
//! alone. Each page's body is decompressed and compared. In the same rounds stock nginx also sends the compressed
//! bodies from files: no compression can gain more than that.
//!
//! | file | what |
//! |---|---|
//! | `args.rs` | the options |
//! | `corpus.rs` | the texts |
//! | `site.rs` | one nginx, and requests to it |
//! | `results.rs` | the figures, as tables, goals and a plot |

mod args;
pub(crate) mod corpus;
mod results;
mod site;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::args::CompressionArgs;
use self::corpus::KindText;
use self::results::{CompressionFigures, CompressionRow};
use self::site::NginxSite;
use crate::cores;
use crate::error::BenchError;
use crate::plot::write;
use crate::process::temporary_folder;
use crate::progress::Progress;
use crate::report::BenchReport;

/// Longest page: what one request may keep a worker busy with.
pub(crate) const MAX_PAGE: usize = 8 << 20;

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
    let start =
        |variant| NginxSite::start(variant, &library, &args.levels, server_core, dir.path());
    let mut sites = variants
        .into_iter()
        .map(|variant| Ok((variant, start(variant)?)))
        .collect::<Result<Vec<_>, BenchError>>()?;
    let steps = args.rounds * (pages.len() * args.levels.len()) as u64;
    let progress = Progress::start(steps)?;
    cores::pin(load_core)?;
    let rows = rounds(args, &pages, &mut sites, progress)?;
    let plan = CompressionPlan::of(args, &texts, server_core, load_core);
    let summary = results::summarize(&rows, args.rounds);
    let mut report = BenchReport::new("compression", 2, plan, CompressionFigures { rows, summary });
    report.goals = results::goals(&report.figures.summary);
    if let Some(svg) = &args.plot.svg {
        write(&results::plot(&report.figures.summary)?, svg)?;
    }
    let page = if args.demo {
        results::demonstration(&report.figures.summary)
    } else {
        results::text(&report)
    };
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

#[cfg(test)]
mod tests {
    use super::*;

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
