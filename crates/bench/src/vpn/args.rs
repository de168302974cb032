// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace vpn bench`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{CASES, LinkCase, MAX_FLOWS};
use crate::error::BenchError;
use crate::options::{MAX_ROUNDS, count, named, whole_seconds};
use crate::report::ReportArgs;

/// The options of a measurement of links.
#[derive(Clone, Debug, Args)]
pub struct VpnArgs {
    /// Cases, separated by commas [default: those without the kernel, the pool or a bond]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(&CASES, |case: &'static LinkCase| case.name))]
    pub(crate) case: Vec<&'static LinkCase>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time of load per measurement, whole seconds
    #[arg(long = "duration", alias = "seconds", value_name = "TIME", default_value = "4s", value_parser = whole_seconds(1..=60))]
    pub(crate) seconds: u64,
    /// Parallel TCP connections: several for each member
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = count(MAX_FLOWS))]
    pub(crate) flows: usize,
    /// Do not kill a member of four under load
    #[arg(long)]
    pub(crate) no_loss: bool,
    /// Write plots
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

impl VpnArgs {
    /// Prints a report as text or JSON, and writes it, as the options say.
    ///
    /// # Errors
    /// The report cannot be written.
    pub fn deliver(&self, report: &impl Serialize, text: &str) -> Result<(), BenchError> {
        self.report.output.deliver(report, text)
    }
}
