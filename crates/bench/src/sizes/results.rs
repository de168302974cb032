// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What `bench sizes` measured: as values that are saved and read back, as tables, as CSV, as plots.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::fit::Fit;
use super::rows;
use crate::error::BenchError;
use crate::plot::{Axis, BarChart, Bars, Line, LineChart, Value};
use crate::report::Table;
use crate::stats::Spread;

/// What the saved form is called; another one is refused.
const FORMAT: &str = "millrace-bench-sizes-1";

/// Bound on a saved run, in bytes: the longest possible has a few megabytes.
const MAX_FILE_LEN: u64 = 64 << 20;

/// The report of `bench sizes`, which is also its saved form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SizesReport {
    pub(crate) format: String,
    /// Machine, kernel, versions, commit, date.
    pub(crate) machine: Json,
    /// The same in two lines.
    pub(crate) described: String,
    pub(crate) rounds: u64,
    pub(crate) slice_ms: u64,
    /// The packet size that gains are given for, in bytes.
    pub(crate) packet: usize,
    /// Those that were there, the first of them being what others are compared with.
    pub(crate) implementations: Vec<Described>,
    /// What is not there, and why.
    pub(crate) absent: Vec<Absent>,
    pub(crate) measured: Vec<Measured>,
}

/// An implementation that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) name: String,
    /// What it says of itself.
    pub(crate) description: String,
}

/// Something that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Absent {
    pub(crate) implementation: String,
    /// None: the implementation as a whole.
    pub(crate) algorithm: Option<String>,
    pub(crate) reason: String,
}

/// One algorithm at one size with one implementation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) algorithm: String,
    /// Bytes; 0 where there is no size.
    pub(crate) size: usize,
    pub(crate) implementation: String,
    /// Microseconds per operation, round by round.
    pub(crate) micros: Vec<f64>,
    /// Microseconds of processor time per operation, round by round.
    pub(crate) cpu_micros: Vec<f64>,
}

impl Measured {
    /// Microseconds over the rounds.
    pub(crate) fn spread(&self) -> Option<Spread> {
        Spread::of(self.micros.iter().copied())
    }
}

impl SizesReport {
    pub(crate) fn new(machine: Json, described: String) -> Self {
        Self {
            format: FORMAT.to_owned(),
            machine,
            described,
            rounds: 0,
            slice_ms: 0,
            packet: 0,
            implementations: Vec::new(),
            absent: Vec::new(),
            measured: Vec::new(),
        }
    }

    /// Reads a saved run.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub(crate) fn load(path: &Path) -> Result<Self, BenchError> {
        let len = fs::metadata(path)
            .map_err(BenchError::file("read", path))?
            .len();
        if len > MAX_FILE_LEN {
            return Err(BenchError::Usage(format!(
                "{}: too large for a saved run",
                path.display()
            )));
        }
        let text = fs::read(path).map_err(BenchError::file("read", path))?;
        let report: Self = serde_json::from_slice(&text).map_err(|error| {
            let path = path.display();
            BenchError::Usage(format!(
                "{path} is no run saved by bench sizes --json: {error}"
            ))
        })?;
        if report.format != FORMAT {
            let (path, format) = (path.display(), &report.format);
            return Err(BenchError::Usage(format!(
                "{path} has format {format}, not {FORMAT}"
            )));
        }
        Ok(report)
    }

    fn find(&self, algorithm: &str, size: usize, implementation: &str) -> Option<&Measured> {
        self.measured.iter().find(|measured| {
            measured.algorithm == algorithm
                && measured.size == size
                && measured.implementation == implementation
        })
    }

    /// How many times as fast as the first implementation, round by round.
    fn ratio(&self, measured: &Measured) -> Option<Spread> {
        let first = &self.implementations.first()?.name;
        let peer = self.find(&measured.algorithm, measured.size, first)?;
        let rounds = peer.micros.iter().zip(&measured.micros);
        Spread::of(rounds.map(|(peer, own)| peer / own))
    }

    /// Algorithms in the order of the rows, those with a size or those without.
    fn algorithms(&self, sized: bool) -> Vec<&'static str> {
        rows::ROWS
            .iter()
            .filter(|row| row.request.sized() == sized)
            .map(|row| row.name)
            .filter(|name| {
                self.measured
                    .iter()
                    .any(|measured| measured.algorithm == *name)
            })
            .collect()
    }

    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self
            .measured
            .iter()
            .map(|measured| measured.size)
            .filter(|size| *size > 0)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// The line through what an implementation took by size.
    fn fit(&self, algorithm: &str, implementation: &str) -> Option<Fit> {
        let points: Vec<(f64, f64)> = self
            .measured
            .iter()
            .filter(|measured| {
                measured.algorithm == algorithm && measured.implementation == implementation
            })
            .filter_map(|measured| Some((measured.size as f64, measured.spread()?.median)))
            .collect();
        Fit::through(&points)
    }

    // ---- tables -------------------------------------------------------------------------------

    /// Everything for people.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\n\n", self.described);
        for implementation in &self.implementations {
            let Described { name, description } = implementation;
            let _ = writeln!(text, "{name}: {description}");
        }
        let _ = write!(
            text,
            "\n{} interleaved rounds of {} ms on one core, median; every output checked\n",
            self.rounds, self.slice_ms
        );
        if !self.algorithms(true).is_empty() {
            let _ = write!(
                text,
                "\nMB/s (10^6 bytes) by bytes per packet or block\n{}",
                self.speeds()
            );
            let _ = write!(
                text,
                "\nWhat size costs: t = set-up + bytes / speed. Gain at packets of {} bytes\n{}",
                self.packet,
                self.lines()
            );
        }
        if !self.algorithms(false).is_empty() {
            let _ = write!(text, "\nOperations per second\n{}", self.keys());
        }
        if !self.absent.is_empty() {
            text.push_str("\nNot measured\n");
            for absent in &self.absent {
                let what = absent.algorithm.as_deref().unwrap_or("everything");
                let _ = writeln!(
                    text,
                    "  {} with {}: {}",
                    what, absent.implementation, absent.reason
                );
            }
        }
        text
    }

    fn speeds(&self) -> String {
        let sizes = self.sizes();
        let names: Vec<String> = sizes.iter().map(|size| size_name(*size as f64)).collect();
        let mut head = vec!["algorithm", "with"];
        head.extend(names.iter().map(String::as_str));
        let mut table = Table::new(&head);
        for algorithm in self.algorithms(true) {
            for Described { name, .. } in &self.implementations {
                let cells = sizes.iter().map(|size| {
                    let micros = self.find(algorithm, *size, name).and_then(Measured::spread);
                    micros.map_or_else(
                        || "-".to_owned(),
                        |micros| number(*size as f64 / micros.median),
                    )
                });
                let names = [algorithm.to_owned(), name.clone()];
                table.row(names.into_iter().chain(cells));
            }
        }
        table.render()
    }

    fn lines(&self) -> String {
        let first = self
            .implementations
            .first()
            .map(|first| first.name.as_str())
            .unwrap_or_default();
        let gain_head = format!("x {first} (range)");
        let crossover_head = format!("faster than {first}");
        let head = [
            "algorithm",
            "with",
            "set-up µs",
            "MB/s",
            "off by",
            &gain_head,
            &crossover_head,
        ];
        let mut table = Table::new(&head);
        for algorithm in self.algorithms(true) {
            let base = self.fit(algorithm, first);
            for Described { name, .. } in &self.implementations {
                let Some(fit) = self.fit(algorithm, name) else {
                    continue;
                };
                let at_packet = self.find(algorithm, self.packet, name);
                let gain = at_packet.and_then(|measured| self.ratio(measured));
                // Where the rounds of both overlap, lines that nearly coincide cross anywhere.
                let differs = gain.is_some_and(|gain| gain.min > 1.0 || gain.max < 1.0);
                let crossover = match base.filter(|_| name != first) {
                    Some(base) if differs => fit.crossover(&base).show(),
                    Some(_) => "no difference".to_owned(),
                    None => String::new(),
                };
                table.row([
                    algorithm.to_owned(),
                    name.clone(),
                    number(fit.setup_us),
                    number(fit.speed_mb_s),
                    format!("{:.0} %", fit.deviation * 100.0),
                    gain.filter(|_| name != first)
                        .map(|gain| gain.show(2))
                        .unwrap_or_default(),
                    crossover,
                ]);
            }
        }
        table.render()
    }

    fn keys(&self) -> String {
        let first = self
            .implementations
            .first()
            .map(|first| first.name.as_str())
            .unwrap_or_default();
        let mut head = vec!["algorithm".to_owned()];
        for Described { name, .. } in &self.implementations {
            head.push(format!("{name}/s"));
            if name != first {
                head.push(format!("x {first} (range)"));
            }
        }
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        let mut table = Table::new(&head);
        for algorithm in self.algorithms(false) {
            let mut cells = vec![algorithm.to_owned()];
            for Described { name, .. } in &self.implementations {
                let measured = self.find(algorithm, 0, name);
                let rate = measured
                    .and_then(Measured::spread)
                    .map(|micros| 1e6 / micros.median);
                cells.push(rate.map_or_else(|| "-".to_owned(), number));
                if name != first {
                    let ratio = measured.and_then(|measured| self.ratio(measured));
                    cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.show(2)));
                }
            }
            table.row(cells);
        }
        table.render()
    }

    // ---- files --------------------------------------------------------------------------------

    /// One line per algorithm, size and implementation.
    pub(crate) fn csv(&self) -> String {
        let mut text = "algorithm,bytes,implementation,operations_per_s,bytes_per_s,us_median,us_min,us_max,cpu_us_median\n".to_owned();
        for measured in &self.measured {
            let Some(micros) = measured.spread() else {
                continue;
            };
            let cpu = Spread::of(measured.cpu_micros.iter().copied()).map_or(0.0, |cpu| cpu.median);
            let rate = 1e6 / micros.median;
            let _ = writeln!(
                text,
                "{},{},{},{rate:.1},{:.0},{:.4},{:.4},{:.4},{cpu:.4}",
                measured.algorithm,
                measured.size,
                csv_field(&measured.implementation),
                rate * measured.size as f64,
                micros.median,
                micros.min,
                micros.max,
            );
        }
        text
    }

    /// Plots: one over the size for each cipher and hash, one of bars for the keys. Name and SVG each.
    ///
    /// # Errors
    /// [`BenchError::Setup`] if there is too much to draw.
    pub(crate) fn plots(&self) -> Result<Vec<(String, String)>, BenchError> {
        let mut plots = Vec::new();
        for algorithm in self.algorithms(true) {
            let series = self
                .implementations
                .iter()
                .map(|Described { name, .. }| Line {
                    name: name.clone(),
                    points: self.points(algorithm, name),
                });
            let chart = LineChart {
                title: format!("{algorithm} by size"),
                x: Axis::logarithmic("bytes per packet or block"),
                y: Axis::logarithmic("MB/s"),
                series: series.filter(|line| !line.points.is_empty()).collect(),
            };
            plots.push((format!("{algorithm}.svg"), chart.render()?));
        }
        let categories = self.algorithms(false);
        if !categories.is_empty() {
            let series = self
                .implementations
                .iter()
                .map(|Described { name, .. }| Bars {
                    name: name.clone(),
                    values: categories
                        .iter()
                        .map(|algorithm| {
                            let micros = self.find(algorithm, 0, name)?.spread()?;
                            Some(Value::from(micros.map(|micros| 1e6 / micros)))
                        })
                        .collect(),
                });
            let chart = BarChart {
                title: "Public-key operations".to_owned(),
                axis: Axis::logarithmic("operations per second, one core"),
                categories: categories.iter().map(|name| (*name).to_owned()).collect(),
                series: series.collect(),
            };
            plots.push(("public-key.svg".to_owned(), chart.render()?));
        }
        Ok(plots)
    }

    fn points(&self, algorithm: &str, implementation: &str) -> Vec<(f64, Value)> {
        let speed = |size: usize| {
            let micros = self.find(algorithm, size, implementation)?.spread()?;
            Some((
                size as f64,
                Value::from(micros.map(|micros| size as f64 / micros)),
            ))
        };
        self.sizes().into_iter().filter_map(speed).collect()
    }
}

/// Three significant digits, no exponent.
pub(crate) fn number(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ if value >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A size as a column's head.
pub(crate) fn size_name(size: f64) -> String {
    format!("{size:.0}")
}

fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report of two implementations, of which the second takes `factor` of the first's time.
    pub(crate) fn report(factor: f64) -> SizesReport {
        let mut report = SizesReport::new(Json::Null, "a machine".to_owned());
        report.rounds = 2;
        report.packet = 1420;
        for (name, factor) in [("openssl", 1.0), ("aws-lc", factor)] {
            report.implementations.push(Described {
                name: name.to_owned(),
                description: String::new(),
            });
            for size in [0, 16, 1420, 8192] {
                let (algorithm, micros) = match size {
                    0 => ("rsa-2048-sign", 200.0),
                    size => ("aes-256-gcm", 0.5 + size as f64 / 5000.0),
                };
                report.measured.push(Measured {
                    algorithm: algorithm.to_owned(),
                    size,
                    implementation: name.to_owned(),
                    micros: vec![micros * factor, micros * factor * 1.1],
                    cpu_micros: vec![micros * factor, micros * factor],
                });
            }
        }
        report
    }

    #[test]
    fn tables_files_and_plots_hold_what_was_measured() {
        let report = report(0.5);
        let text = report.render();
        assert!(text.contains("2.00 (2.00 to 2.00)"), "{text}");
        assert!(text.contains("at every size"), "{text}");
        assert!(text.contains("rsa-2048-sign"), "{text}");
        let csv = report.csv();
        assert_eq!(csv.lines().count(), 9, "{csv}");
        assert!(
            csv.lines().all(|line| line.split(',').count() == 9),
            "{csv}"
        );
        let plots = report.plots().expect("plots");
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aes-256-gcm.svg", "public-key.svg"]);
        assert!(plots.iter().all(|(_, svg)| svg.starts_with("<svg")));
    }

    #[test]
    fn runs_are_saved_and_read_back_and_other_files_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.json");
        crate::report::write_json(&report(0.5), &path).expect("written");
        assert_eq!(SizesReport::load(&path).expect("read").measured.len(), 8);
        for wrong in ["", "{}", "[1]", "\0"] {
            fs::write(&path, wrong).expect("written");
            assert!(
                matches!(SizesReport::load(&path), Err(BenchError::Usage(_))),
                "{wrong:?}"
            );
        }
        let mut other = report(1.0);
        other.format = "another".to_owned();
        crate::report::write_json(&other, &path).expect("written");
        assert!(matches!(
            SizesReport::load(&path),
            Err(BenchError::Usage(_))
        ));
    }
}
