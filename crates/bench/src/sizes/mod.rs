// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `bench sizes`: the speed of each crypto library of this machine, by the size of the input.
//!
//! ```text
//!  round 1..n ─► for each algorithm and size ─► each implementation in turn, a slice of milliseconds
//!                                               (a child each: `worker.rs`)
//!           ─► results.rs: tables, CSV, JSON, plots ─► fit.rs: t = a + n/b, crossover, gain at a packet
//! ```
//!
//! | file | what |
//! |---|---|
//! | `args.rs` | the options |
//! | `rows.rs` | the algorithms |
//! | `repeat.rs` | one operation, made ready and repeated for a slice |
//! | `implementation.rs` | the libraries, and one operation of each kind, checked |
//! | `kernel.rs` | the kernel's ciphers and hashes |
//! | `worker.rs` | one library in a separate process |
//! | `results.rs` | the measurements, as tables, CSV and plots |
//! | `fit.rs` | the line through the points |
//! | `crossovers.rs` | the sizes from which the kernel's ciphers pay |
//! | `compare.rs` | two saved runs |
//! | `reference.rs` | published figures, labelled |

mod args;
mod compare;
mod crossovers;
mod fit;
mod implementation;
mod kernel;
mod reference;
mod repeat;
mod results;
mod rows;
mod worker;

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use millrace_inspect::report::schema_of;

pub use self::args::{SizesArgs, SizesWorkerArgs};
use self::implementation::Implementation;
pub(crate) use self::implementation::Known;
use self::results::{Absent, Described, SizesReport};
pub(crate) use self::rows::{ROWS, SizeRow, find};
pub(crate) use self::worker::MAX_SIZE;
use self::worker::WorkerProcess;
use crate::cores;
use crate::error::BenchError;
use crate::machine::MachineRecord;
use crate::progress::Progress;
use crate::stats::order;

/// Runs `millrace bench sizes`: measures, compares two saved runs, or prints published figures.
pub fn run_sizes(args: &SizesArgs) -> Result<(), BenchError> {
    if args.reference {
        let text = reference::render(args.packet as f64);
        return args.output.deliver(&reference::speeds(), &text);
    }
    if let [before, after] = args.compare.as_slice() {
        let before = SizesReport::load(before)?;
        let after = SizesReport::load(after)?;
        let rows = compare::compare(&before, &after);
        if rows.is_empty() {
            return Err(BenchError::Usage("the two runs have nothing in common".into()));
        }
        let text = compare::render(&before, &after, &rows);
        return args.output.deliver(&rows, &text);
    }
    let report = measure(args)?;
    if let Some(path) = &args.csv {
        fs::write(path, report.csv()).map_err(BenchError::file("write", path))?;
    }
    if let Some(folder) = &args.svg_dir {
        fs::create_dir_all(folder).map_err(BenchError::file("make", folder))?;
        for (name, svg) in report.plots()? {
            let path = folder.join(name);
            fs::write(&path, svg).map_err(BenchError::file("write", path))?;
        }
    }
    if let Some(path) = &args.save_crossovers {
        report.save_crossovers(path)?;
    }
    args.output.deliver(&report, &report.render())
}

/// The JSON schema of what `bench sizes` measures.
#[must_use]
pub fn sizes_schema() -> String {
    schema_of::<SizesReport>()
}

/// Runs the child of `millrace bench sizes`.
pub fn run_sizes_worker(args: &SizesWorkerArgs) -> Result<(), BenchError> {
    worker::serve(args.libcrypto.as_deref(), args.kernel.as_deref())
}

fn measure(args: &SizesArgs) -> Result<SizesReport, BenchError> {
    let mut rows = args.algorithms.clone();
    if rows.is_empty() {
        rows.extend(&ROWS);
    }
    let mut sizes = args.sizes.clone();
    sizes.push(args.packet);
    sizes.sort_unstable();
    sizes.dedup();
    // Every algorithm at every size it has.
    let points: Vec<(&SizeRow, usize)> = rows
        .iter()
        .flat_map(|row| {
            if row.request.sized() {
                sizes.iter().map(|size| (*row, *size)).collect()
            } else {
                vec![(*row, 0)]
            }
        })
        .collect();
    let machine = MachineRecord::here();
    let json = serde_json::to_value(&machine)
        .map_err(|error| BenchError::Setup(format!("cannot encode the machine: {error}")))?;
    let mut report = SizesReport {
        machine: json,
        described: machine.describe(),
        rounds: args.rounds,
        slice_ms: u64::try_from(args.slice.as_millis()).unwrap_or(u64::MAX),
        packet: args.packet,
        ..SizesReport::default()
    };
    let mut workers = start(args, &mut report)?;
    let mut progress = Progress::start(points.len() as u64 * args.rounds)?;
    for round in 0..args.rounds {
        for &(row, size) in &points {
            progress.now(&format!("round {}: {} {size}", round + 1, row.name))?;
            let turns = order(workers.len(), round);
            point(row, size, args.slice, &turns, &mut workers, &mut report)?;
            progress.step();
        }
    }
    Ok(report)
}

/// Starts the implementations; those that are missing are noted in the report.
fn start(args: &SizesArgs, report: &mut SizesReport) -> Result<Vec<WorkerProcess>, BenchError> {
    let (core, _) = cores::two(args.core, None)?;
    let known = args.implementations.iter().copied().map(Implementation::from);
    let named = args.libcrypto.iter().map(Implementation::from);
    let mut workers = Vec::new();
    for implementation in known.chain(named) {
        match WorkerProcess::start(&implementation, core)? {
            Ok(worker) => {
                report.implementations.push(Described {
                    name: worker.name.clone(),
                    description: worker.description.clone(),
                });
                workers.push(worker);
            }
            Err(reason) => report.absent.push(Absent {
                implementation: implementation.name,
                algorithm: None,
                reason: reason.to_string(),
            }),
        }
    }
    if workers.is_empty() {
        Err(BenchError::Setup("none of the implementations is here".into()))
    } else {
        Ok(workers)
    }
}

/// One algorithm at one size in one round: all implementations in turn.
fn point(
    row: &SizeRow,
    size: usize,
    slice: Duration,
    turns: &[usize],
    workers: &mut [WorkerProcess],
    report: &mut SizesReport,
) -> Result<(), BenchError> {
    let mut checks: HashMap<String, String> = HashMap::new();
    for turn in turns {
        let worker = &mut workers[*turn];
        match worker.measure(row.name, size, slice)? {
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
                report.record(row.name, size, &worker.name, &slice);
                checks.extend(slice.check.map(|check| (check, worker.name.clone())));
            }
        }
    }
    if checks.len() > 1 {
        let names: Vec<&str> = checks.values().map(String::as_str).collect();
        let name = row.name;
        let names = names.join(" and ");
        return Err(BenchError::Wrong(format!("{name} of {size} bytes differs: {names}")));
    }
    Ok(())
}
