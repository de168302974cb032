// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports: text on stdout, JSON for programs.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use millrace_inspect::report::schema_of;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::BenchError;
use crate::goals::{Goals, Reach};
use crate::machine::MachineRecord;
use crate::options::output_file;

/// Destination of the report of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct OutputArgs {
    /// Print JSON (schema: share/doc/millrace/bench.schema.json)
    ///
    /// Includes the raw rounds.
    #[arg(long)]
    json: bool,
    /// Also write the report to a file, as JSON
    #[arg(short, long, value_name = "FILE", value_parser = output_file())]
    output: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints `text`, or the report as JSON, and writes the file.
    pub(crate) fn deliver(&self, report: &impl Serialize, text: &str) -> Result<(), BenchError> {
        if self.json {
            print(&json_of(report)?)?;
        } else {
            print(text)?;
        }
        let Some(file) = &self.output else {
            return Ok(());
        };
        fs::write(file, json_of(report)?).map_err(BenchError::file("write", file))
    }
}

/// For every command that draws one plot, or several beside each other.
#[derive(Clone, Debug, Default, Args)]
pub struct SvgArg {
    /// Also draw the result into an SVG file
    #[arg(long, value_name = "FILE", value_parser = output_file())]
    pub svg: Option<PathBuf>,
}

/// Options of every benchmark with goals.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Fail if a goal of this level is missed
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) require: Option<Reach>,
}

/// A report: where and how the figures were measured, and the goals.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(title = "BenchReport")]
pub(crate) struct BenchReport<P, F> {
    /// Raised when a field changes its meaning.
    schema: u32,
    benchmark: &'static str,
    pub(crate) machine: MachineRecord,
    pub(crate) plan: P,
    #[serde(flatten)]
    pub(crate) figures: F,
    pub(crate) goals: Goals,
}

impl<P: Serialize, F: Serialize> BenchReport<P, F> {
    /// A report on this machine, without goals.
    pub(crate) fn new(benchmark: &'static str, schema: u32, plan: P, figures: F) -> Self {
        Self {
            schema,
            benchmark,
            machine: MachineRecord::here(),
            plan,
            figures,
            goals: Goals::default(),
        }
    }

    /// Prints and writes the report, as the options say.
    pub(crate) fn deliver(&self, args: &ReportArgs, text: &str) -> Result<(), BenchError> {
        args.output.deliver(self, text)
    }
}

/// The JSON schema of a report: its plan and its figures differ from benchmark to benchmark.
#[must_use]
pub fn report_schema() -> String {
    schema_of::<BenchReport<Value, Map<String, Value>>>()
}

/// Prints to stdout. A reader that went away is not an error.
pub(crate) fn print(text: &str) -> Result<(), BenchError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(BenchError::System { action: "write to stdout", source: error })
        }
        _ => Ok(()),
    }
}

fn json_of(report: &impl Serialize) -> Result<String, BenchError> {
    let mut text = serde_json::to_string_pretty(report)
        .map_err(|error| BenchError::Setup(format!("cannot encode the report: {error}")))?;
    text.push('\n');
    Ok(text)
}
