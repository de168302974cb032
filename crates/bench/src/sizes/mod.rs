// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench sizes`: what each crypto library of this machine gives, by the size of what it works on.
//!
//! ```text
//!  round 1..n ─► for each algorithm and size ─► each implementation in turn, a slice of milliseconds
//!                                               (a child each: `worker.rs`)
//!           ─► results.rs: tables, CSV, JSON, plots ─► fit.rs: t = a + n/b, crossover, gain at a packet
//! ```
//!
//! | file | what |
//! |---|---|
//! | `rows.rs` | the algorithms |
//! | `implementation.rs` | the libraries, and one operation of each kind, checked |
//! | `worker.rs` | one library in a process of its own |
//! | `fit.rs` | the line through the points |
//! | `compare.rs` | two saved runs |
//! | `reference.rs` | figures of others, labelled |

mod compare;
mod fit;
mod implementation;
mod reference;
mod results;
mod rows;
mod worker;

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use self::implementation::{Implementation, KNOWN, Source};
use self::results::{Absent, Described, Measured, SizesReport};
use self::rows::{ROWS, Row};
use self::worker::{MAX_SIZE, Worker};
use crate::cli::{SizesArgs, SizesWorkerArgs};
use crate::cores;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::process::Stop;
use crate::progress::Progress;
use crate::report;
use crate::stats::order;

/// Names of all algorithms, for the help text.
pub(crate) fn algorithm_names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.name)
}

/// Names of all implementations that need no path.
pub(crate) fn implementation_names() -> [&'static str; 3] {
    KNOWN
}

/// Runs `bench sizes`: measures, compares two saved runs, or prints published figures.
pub(crate) fn run(args: &SizesArgs) -> Result<(), BenchError> {
    if args.reference {
        return report::print(&reference::render(args.packet as f64));
    }
    if let [before, after] = args.compare.as_slice() {
        let (before, after) = (SizesReport::load(before)?, SizesReport::load(after)?);
        let rows = compare::compare(&before, &after);
        if rows.is_empty() {
            return Err(BenchError::Usage(
                "the two runs have nothing in common".to_owned(),
            ));
        }
        return match &args.json {
            Some(path) => report::write_json(&rows, path),
            None => report::print(&compare::render(&before, &after, &rows)),
        };
    }
    let report = SizesPlan::new(args)?.run()?;
    if let Some(path) = &args.csv {
        fs::write(path, report.csv()).map_err(BenchError::file("write", path))?;
    }
    if let Some(folder) = &args.svg {
        fs::create_dir_all(folder).map_err(BenchError::file("make", folder))?;
        for (name, svg) in report.plots()? {
            let path = folder.join(name);
            fs::write(&path, svg).map_err(BenchError::file("write", path))?;
        }
    }
    match &args.json {
        Some(path) => report::write_json(&report, path),
        None => report::print(&report.render()),
    }
}

/// Runs the hidden command that a child is.
pub(crate) fn run_worker(args: &SizesWorkerArgs) -> Result<(), BenchError> {
    let source = match &args.library {
        Some(path) => Source::Libcrypto(path.clone()),
        None => Source::AwsLc,
    };
    worker::serve(&source)
}

/// What is measured how often with what.
struct SizesPlan {
    rows: Vec<&'static Row>,
    sizes: Vec<usize>,
    implementations: Vec<Implementation>,
    rounds: u64,
    slice: Duration,
    packet: usize,
    core: usize,
}

impl SizesPlan {
    fn new(args: &SizesArgs) -> Result<Self, BenchError> {
        let rows = match args.algorithm.as_slice() {
            [] => ROWS.iter().collect(),
            names => names
                .iter()
                .map(|name| find_row(name))
                .collect::<Result<_, _>>()?,
        };
        let mut sizes = args.size.clone();
        sizes.push(args.packet);
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.iter().any(|size| !(1..=MAX_SIZE).contains(size)) {
            return Err(BenchError::Usage(format!(
                "sizes are 1 to {MAX_SIZE} bytes"
            )));
        }
        let known = args
            .implementation
            .iter()
            .map(|name| find_implementation(name));
        let mut implementations = known.collect::<Result<Vec<_>, _>>()?;
        implementations.extend(
            args.library
                .iter()
                .map(|path| Implementation::library(path)),
        );
        let (core, _) = cores::two(args.core, None)?;
        Ok(Self {
            rows,
            sizes,
            implementations,
            rounds: args.rounds,
            slice: Duration::from_millis(args.slice_ms),
            packet: args.packet,
            core,
        })
    }

    /// Every algorithm at every size it has.
    fn points(&self) -> Vec<(&'static Row, usize)> {
        let sizes = |row: &'static Row| match row.request.sized() {
            true => self.sizes.clone(),
            false => vec![0],
        };
        self.rows
            .iter()
            .flat_map(|row| sizes(row).into_iter().map(move |size| (*row, size)))
            .collect()
    }

    fn run(&self) -> Result<SizesReport, BenchError> {
        let stop = Stop::on_signals()?;
        let machine = Machine::here();
        let json = serde_json::to_value(&machine)
            .map_err(|error| BenchError::Setup(format!("cannot encode the machine: {error}")))?;
        let mut report = SizesReport::new(json, machine.describe());
        report.rounds = self.rounds;
        report.slice_ms = u64::try_from(self.slice.as_millis()).unwrap_or(u64::MAX);
        report.packet = self.packet;
        let mut workers = self.start(&mut report)?;
        if workers.is_empty() {
            return Err(BenchError::Setup(
                "none of the implementations is here".to_owned(),
            ));
        }
        let points = self.points();
        let steps = u64::try_from(points.len())
            .unwrap_or(u64::MAX)
            .saturating_mul(self.rounds);
        let mut progress = Progress::new(steps);
        for round in 0..self.rounds {
            for (row, size) in &points {
                stop.check()?;
                progress.now(&format!("round {}: {} {size}", round + 1, row.name));
                self.point(row, *size, round, &mut workers, &mut report)?;
                progress.step();
            }
        }
        Ok(report)
    }

    fn start(&self, report: &mut SizesReport) -> Result<Vec<Worker>, BenchError> {
        let mut workers = Vec::new();
        for implementation in &self.implementations {
            match Worker::start(implementation, self.core)? {
                Ok(worker) => {
                    report.implementations.push(Described {
                        name: worker.name.clone(),
                        description: worker.description.clone(),
                    });
                    workers.push(worker);
                }
                Err(reason) => report.absent.push(Absent {
                    implementation: implementation.name.clone(),
                    algorithm: None,
                    reason: reason.to_string(),
                }),
            }
        }
        Ok(workers)
    }

    /// One algorithm at one size in one round: all implementations in turn, in an order that is permuted
    /// from round to round.
    fn point(
        &self,
        row: &Row,
        size: usize,
        round: u64,
        workers: &mut [Worker],
        report: &mut SizesReport,
    ) -> Result<(), BenchError> {
        let mut checks: HashMap<String, String> = HashMap::new();
        for worker in order(workers.len(), round) {
            let worker = &mut workers[worker];
            match worker.measure(row.name, size, self.slice)? {
                Err(reason) => {
                    let absent = Absent {
                        implementation: worker.name.clone(),
                        algorithm: Some(row.name.to_owned()),
                        reason: reason.to_string(),
                    };
                    if !report.absent.contains(&absent) {
                        report.absent.push(absent);
                    }
                }
                Ok(slice) => {
                    let operations = slice.operations as f64;
                    let micros = slice.elapsed.as_secs_f64() * 1e6 / operations;
                    let cpu = slice.cpu.as_secs_f64() * 1e6 / operations;
                    record(report, row.name, size, &worker.name, micros, cpu);
                    if let Some(check) = slice.check {
                        checks.insert(check, worker.name.clone());
                    }
                }
            }
        }
        if checks.len() > 1 {
            let names: Vec<&str> = checks.values().map(String::as_str).collect();
            let names = names.join(" and ");
            return Err(BenchError::Wrong(format!(
                "{} of {size} bytes differs: {names}",
                row.name
            )));
        }
        Ok(())
    }
}

fn record(
    report: &mut SizesReport,
    algorithm: &str,
    size: usize,
    with: &str,
    micros: f64,
    cpu: f64,
) {
    let known = report.measured.iter_mut().find(|measured| {
        measured.algorithm == algorithm && measured.size == size && measured.implementation == with
    });
    if let Some(measured) = known {
        measured.micros.push(micros);
        measured.cpu_micros.push(cpu);
        return;
    }
    report.measured.push(Measured {
        algorithm: algorithm.to_owned(),
        size,
        implementation: with.to_owned(),
        micros: vec![micros],
        cpu_micros: vec![cpu],
    });
}

fn find_row(name: &str) -> Result<&'static Row, BenchError> {
    let unknown = || {
        let names: Vec<&str> = algorithm_names().collect();
        BenchError::Usage(format!(
            "no algorithm {name}; there are {}",
            names.join(", ")
        ))
    };
    rows::find(name).ok_or_else(unknown)
}

fn find_implementation(name: &str) -> Result<Implementation, BenchError> {
    Implementation::named(name).ok_or_else(|| {
        let names = KNOWN.join(", ");
        BenchError::Usage(format!(
            "no implementation {name}; there are {names}, and --library PATH"
        ))
    })
}
