// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The measurements of `bench sizes`: values that are saved and read back, tables, CSV, plots.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::fit::Fit;
use super::repeat::TimeSlice;
use super::rows::{ROWS, SizeRow};
use crate::error::BenchError;
use crate::machine::MachineRecord;
use crate::plot::{Axis, BarChart, Bars, LineChart, PlotLine, Value};
use crate::stats::Spread;
use crate::table::{Column, ReportTable, dash, range, table_by};

/// The name of the saved form; another one is refused.
const FORMAT: &str = "millrace-bench-sizes-1";

/// Bound on a saved run, in bytes: the longest possible has a few megabytes.
const MAX_FILE_LEN: u64 = 64 << 20;

/// The report of `bench sizes`, which is also its saved form.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SizesReport {
    pub(crate) format: String,
    /// Machine, kernel, versions, commit, date.
    #[schemars(with = "MachineRecord")]
    pub(crate) machine: Json,
    /// Machine, kernel, versions, commit and date in two lines.
    pub(crate) described: String,
    pub(crate) rounds: u64,
    pub(crate) slice_ms: u64,
    /// The packet size that gains are given for, in bytes.
    pub(crate) packet: usize,
    /// The implementations that were found; the others are compared with the first.
    pub(crate) implementations: Vec<Described>,
    /// Missing implementations and algorithms, with the reason.
    pub(crate) absent: Vec<Absent>,
    pub(crate) measured: Vec<MeasuredPoint>,
}

/// An implementation that was measured.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Described {
    pub(crate) name: String,
    /// Version and view of the processor.
    pub(crate) description: String,
}

/// Something that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Absent {
    pub(crate) implementation: String,
    /// Algorithm; `None` for the implementation as a whole.
    pub(crate) algorithm: Option<String>,
    pub(crate) reason: String,
}

/// One algorithm at one size with one implementation.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MeasuredPoint {
    pub(crate) algorithm: String,
    /// Bytes; 0 where there is no size.
    pub(crate) size: usize,
    pub(crate) implementation: String,
    /// Microseconds per operation, round by round.
    pub(crate) micros: Vec<f64>,
    /// Microseconds of processor time per operation, round by round.
    pub(crate) cpu_micros: Vec<f64>,
}

impl MeasuredPoint {
    fn is(&self, algorithm: &str, size: usize, with: &str) -> bool {
        (&*self.algorithm, self.size, &*self.implementation) == (algorithm, size, with)
    }

    /// Microseconds over the rounds.
    pub(crate) fn spread(&self) -> Option<Spread> {
        Spread::of(self.micros.iter().copied())
    }
}

impl Default for SizesReport {
    fn default() -> Self {
        Self {
            format: FORMAT.to_owned(),
            machine: Json::Null,
            described: String::new(),
            rounds: 0,
            slice_ms: 0,
            packet: 0,
            implementations: Vec::new(),
            absent: Vec::new(),
            measured: Vec::new(),
        }
    }
}

impl SizesReport {
    /// Reads a saved run.
    ///
    /// # Errors
    /// The file cannot be read, or is not a saved run.
    pub(crate) fn load(path: &Path) -> Result<Self, BenchError> {
        let name = path.display();
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_FILE_LEN).read_to_end(&mut text));
        read.map_err(|error| BenchError::Usage(format!("cannot read {name}: {error}")))?;
        let report: Self = serde_json::from_slice(&text).map_err(|error| {
            BenchError::Usage(format!("{name} is not a run saved by bench sizes --output: {error}"))
        })?;
        let format = &report.format;
        if format == FORMAT {
            Ok(report)
        } else {
            Err(BenchError::Usage(format!("{name} has format {format}, not {FORMAT}")))
        }
    }

    /// Adds one slice.
    pub(super) fn record(&mut self, algorithm: &str, size: usize, with: &str, slice: &TimeSlice) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / slice.operations as f64;
        let micros = each(slice.elapsed);
        let cpu = each(slice.cpu);
        let known = self.measured.iter_mut().find(|measured| measured.is(algorithm, size, with));
        if let Some(known) = known {
            known.micros.push(micros);
            known.cpu_micros.push(cpu);
            return;
        }
        self.measured.push(MeasuredPoint {
            algorithm: algorithm.to_owned(),
            size,
            implementation: with.to_owned(),
            micros: vec![micros],
            cpu_micros: vec![cpu],
        });
    }

    pub(super) fn find(&self, algorithm: &str, size: usize, with: &str) -> Option<&MeasuredPoint> {
        self.measured.iter().find(|measured| measured.is(algorithm, size, with))
    }

    /// The implementation that the others are compared with.
    fn first(&self) -> &str {
        self.implementations.first().map_or("", |first| &first.name)
    }

    /// Speed divided by that of the first implementation, round by round.
    fn ratio(&self, measured: &MeasuredPoint) -> Option<Spread> {
        let peer = self.find(&measured.algorithm, measured.size, self.first())?;
        Spread::of_ratios(peer.micros.iter().copied(), measured.micros.iter().copied())
    }

    /// Ciphers and hashes that were measured, in the order of the rows.
    fn sized_algorithms(&self) -> Vec<&'static str> {
        self.algorithms(|row| row.request.sized())
    }

    /// Public-key operations that were measured, in the order of the rows.
    fn key_algorithms(&self) -> Vec<&'static str> {
        self.algorithms(|row| !row.request.sized())
    }

    fn algorithms(&self, is_wanted: impl Fn(&SizeRow) -> bool) -> Vec<&'static str> {
        let names = ROWS.iter().filter(|row| is_wanted(row)).map(|row| row.name);
        names
            .filter(|name| self.measured.iter().any(|measured| measured.algorithm == *name))
            .collect()
    }

    /// Each cipher and hash with each implementation.
    fn sized_pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.sized_algorithms().into_iter().flat_map(|algorithm| {
            self.implementations
                .iter()
                .map(move |implementation| (algorithm, &*implementation.name))
        })
    }

    pub(super) fn sizes(&self) -> Vec<usize> {
        let sizes: BTreeSet<usize> = self.measured.iter().map(|measured| measured.size).collect();
        sizes.into_iter().filter(|size| *size > 0).collect()
    }

    /// The line through the points of an algorithm with an implementation.
    fn fit(&self, algorithm: &str, with: &str) -> Option<Fit> {
        let points = self.measured.iter().filter_map(|measured| {
            let is_point = measured.is(algorithm, measured.size, with);
            Some((measured.size as f64, measured.spread().filter(|_| is_point)?.median))
        });
        Fit::through(&points.collect::<Vec<_>>())
    }

    // ---- tables -------------------------------------------------------------------------------

    /// All tables.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("{}\n\n", self.described);
        for Described { name, description } in &self.implementations {
            let _ = writeln!(text, "{name}: {description}");
        }
        let _ = writeln!(
            text,
            "\n{} interleaved rounds of {} ms on one core, median; every output checked",
            self.rounds, self.slice_ms
        );
        if !self.sized_algorithms().is_empty() {
            let _ = write!(
                text,
                "\nMB/s (10^6 bytes) by bytes per packet or block\n{}\n\
                 The cost of size: t = set-up + bytes / speed. Gain at packets of {} bytes\n{}",
                self.speeds().render(),
                self.packet,
                self.lines().render()
            );
        }
        if !self.key_algorithms().is_empty() {
            let _ = write!(text, "\nOperations per second\n{}", self.keys().render());
        }
        if !self.absent.is_empty() {
            text.push_str("\nNot measured\n");
        }
        for Absent { implementation, algorithm, reason } in &self.absent {
            let what = algorithm.as_deref().unwrap_or("everything");
            let _ = writeln!(text, "  {what} with {implementation}: {reason}");
        }
        text
    }

    fn speeds(&self) -> ReportTable {
        let speed = |(algorithm, with): &(&str, &str), size: &usize| {
            let micros = self.find(algorithm, *size, with)?.spread()?;
            Some(number(*size as f64 / micros.median))
        };
        let columns: [Column<'_, (&str, &str)>; 2] = [
            ("algorithm", &|(algorithm, _)| (*algorithm).to_owned()),
            ("with", &|(_, with)| (*with).to_owned()),
        ];
        let cell = |row: &_, size: &_| dash(speed(row, size));
        table_by(self.sized_pairs(), &columns, &self.sizes(), usize::to_string, cell)
    }

    fn lines(&self) -> ReportTable {
        let first = self.first();
        let gain = format!("x {first} (range)");
        let crossover = format!("faster than {first}");
        let heads = ["algorithm", "with", "set-up µs", "MB/s", "off by", &gain, &crossover];
        let mut table = ReportTable::new(heads);
        for (algorithm, with) in self.sized_pairs() {
            let Some(fit) = self.fit(algorithm, with) else {
                continue;
            };
            let base = self.fit(algorithm, first).filter(|_| with != first);
            let at_packet = self.find(algorithm, self.packet, with);
            let gain =
                at_packet.and_then(|measured| self.ratio(measured)).filter(|_| with != first);
            // Where the rounds of both overlap, lines that nearly coincide cross anywhere.
            let differs = gain.is_some_and(|gain| gain.min > 1.0 || gain.max < 1.0);
            let crossover = base.map(|base| {
                if differs { fit.crossover(&base).show() } else { "no difference".to_owned() }
            });
            table.row([
                algorithm.to_owned(),
                with.to_owned(),
                number(fit.setup_us),
                number(fit.speed_mb_s),
                format!("{:.0} %", fit.deviation * 100.0),
                gain.map_or_else(String::new, |gain| gain.show(2)),
                crossover.unwrap_or_default(),
            ]);
        }
        table
    }

    fn keys(&self) -> ReportTable {
        let first = self.first();
        let mut heads = vec!["algorithm".to_owned()];
        for Described { name, .. } in &self.implementations {
            heads.push(format!("{name}/s"));
            heads.extend((name != first).then(|| format!("x {first} (range)")));
        }
        let mut table = ReportTable::new(heads);
        for algorithm in self.key_algorithms() {
            let mut cells = vec![algorithm.to_owned()];
            for Described { name, .. } in &self.implementations {
                let measured = self.find(algorithm, 0, name);
                let micros = measured.and_then(MeasuredPoint::spread);
                cells.push(dash(micros.map(|micros| number(1e6 / micros.median))));
                let ratio = || range(measured.and_then(|measured| self.ratio(measured)), 2);
                cells.extend((name != first).then(ratio));
            }
            table.row(cells);
        }
        table
    }

    // ---- files --------------------------------------------------------------------------------

    /// One line per algorithm, size and implementation.
    pub(crate) fn csv(&self) -> String {
        let mut text = "algorithm,bytes,implementation,operations_per_s,bytes_per_s,us_median,us_min,us_max,cpu_us_median\n".to_owned();
        for measured in &self.measured {
            let Some(Spread { median, min, max }) = measured.spread() else {
                continue;
            };
            let cpu = Spread::of(measured.cpu_micros.iter().copied()).map_or(0.0, |cpu| cpu.median);
            let MeasuredPoint { algorithm, size, implementation, .. } = measured;
            let with = csv_field(implementation);
            let rate = 1e6 / median;
            let bytes = rate * *size as f64;
            let _ = writeln!(
                text,
                "{algorithm},{size},{with},{rate:.1},{bytes:.0},{median:.4},{min:.4},{max:.4},{cpu:.4}",
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
        for algorithm in self.sized_algorithms() {
            let line = |implementation: &Described| PlotLine {
                name: implementation.name.clone(),
                points: self.points(algorithm, &implementation.name),
            };
            let lines = self.implementations.iter().map(line);
            let chart = LineChart {
                title: format!("{algorithm} by size"),
                x: Axis::logarithmic("bytes per packet or block"),
                y: Axis::logarithmic("MB/s"),
                series: lines.filter(|line| !line.points.is_empty()).collect(),
            };
            plots.push((format!("{algorithm}.svg"), chart.render()?));
        }
        let categories = self.key_algorithms();
        if !categories.is_empty() {
            let rate = |algorithm: &str, with: &str| {
                let micros = self.find(algorithm, 0, with)?.spread()?;
                Some(Value::from(micros.map(|micros| 1e6 / micros)))
            };
            let bars = |Described { name, .. }: &Described| Bars {
                name: name.clone(),
                values: categories.iter().map(|algorithm| rate(algorithm, name)).collect(),
            };
            let chart = BarChart {
                title: "Public-key operations".to_owned(),
                axis: Axis::logarithmic("operations per second, one core"),
                categories: categories.iter().map(|name| (*name).to_owned()).collect(),
                series: self.implementations.iter().map(bars).collect(),
            };
            plots.push(("public-key.svg".to_owned(), chart.render()?));
        }
        Ok(plots)
    }

    fn points(&self, algorithm: &str, with: &str) -> Vec<(f64, Value)> {
        let speed = |size: usize| {
            let micros = self.find(algorithm, size, with)?.spread()?;
            let bytes = size as f64;
            Some((bytes, Value::from(micros.map(|micros| bytes / micros))))
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

fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// A report of two implementations, of which the second takes `factor` of the first's time.
    pub(crate) fn report(factor: f64) -> SizesReport {
        let mut report = SizesReport { rounds: 2, packet: 1420, ..SizesReport::default() };
        for (name, factor) in [("openssl", 1.0), ("aws-lc", factor)] {
            report
                .implementations
                .push(Described { name: name.to_owned(), description: String::new() });
            for size in [0, 16, 1420, 8192] {
                let (algorithm, micros) = match size {
                    0 => ("rsa-2048-sign", 200.0),
                    size => ("aes-256-gcm", 0.5 + size as f64 / 5000.0),
                };
                report.measured.push(MeasuredPoint {
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
        assert!(csv.lines().all(|line| line.split(',').count() == 9), "{csv}");
        let plots = report.plots().expect("plots");
        let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["aes-256-gcm.svg", "public-key.svg"]);
        assert!(plots.iter().all(|(_, svg)| svg.starts_with("<svg")));
    }

    fn save(report: &SizesReport, path: &Path) {
        let text = serde_json::to_string(report).expect("JSON");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn runs_are_saved_and_read_back_and_other_files_refused() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("run.json");
        save(&report(0.5), &path);
        assert_eq!(SizesReport::load(&path).expect("read").measured.len(), 8);
        for wrong in ["", "{}", "[1]", "\0"] {
            fs::write(&path, wrong).expect("written");
            assert!(matches!(SizesReport::load(&path), Err(BenchError::Usage(_))), "{wrong:?}");
        }
        let mut other = report(1.0);
        other.format = "another".to_owned();
        save(&other, &path);
        assert!(matches!(SizesReport::load(&path), Err(BenchError::Usage(_))));
    }
}
