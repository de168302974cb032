// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reports: text on stdout, JSON for programs.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::error::BenchError;
use crate::goals::{Goals, Reach};
use crate::machine::MachineRecord;

/// Destination of the report of a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct OutputArgs {
    /// Print the report with its raw rounds as JSON instead of the tables
    #[arg(long)]
    json: bool,
    /// Also write the report with its raw rounds to a file, as JSON
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The FILE of `--json FILE`, as version 0.1 had it; `-` is standard output
    #[arg(hide = true, requires = "json", conflicts_with = "output")]
    file_of_json: Option<PathBuf>,
}

impl OutputArgs {
    /// Prints `text`, or the report as JSON, and writes the file.
    pub(crate) fn deliver(&self, report: &impl Serialize, text: &str) -> Result<(), BenchError> {
        let Self { json, output, file_of_json } = self;
        let former = file_of_json.as_deref();
        let file = output.as_deref().or_else(|| former.filter(|file| *file != Path::new("-")));
        if *json && (former.is_none() || file.is_none()) {
            print(&json_of(report)?)?;
        } else {
            print(text)?;
        }
        let Some(file) = file else {
            return Ok(());
        };
        fs::write(file, json_of(report)?).map_err(BenchError::file("write", file))
    }
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
#[derive(Debug, Serialize)]
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

/// Prints to stdout. A reader that went away is no error.
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

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches as _};

    use super::*;

    fn parsed(words: &[&str]) -> Result<OutputArgs, clap::Error> {
        let command = OutputArgs::augment_args(Command::new("bench"));
        let words = ["bench"].iter().chain(words);
        OutputArgs::from_arg_matches(&command.try_get_matches_from(words)?)
    }

    #[test]
    fn file_after_json_is_accepted_as_in_version_0_1() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let new = path("new");
        let old = path("old");
        let deliver = |words: &[&str]| parsed(words).unwrap().deliver(&[1, 2], "table\n").unwrap();
        deliver(&["--output", new.to_str().unwrap()]);
        deliver(&["--json", old.to_str().unwrap()]);
        let report: Vec<u32> = serde_json::from_str(&fs::read_to_string(&new).unwrap()).unwrap();
        assert_eq!(report, [1, 2]);
        assert_eq!(fs::read(&new).unwrap(), fs::read(&old).unwrap());
        deliver(&["--json", "-"]);
        assert!(!Path::new("-").exists(), "- is standard output");
        assert!(parsed(&["stray"]).is_err(), "a file belongs to --json");
    }
}
