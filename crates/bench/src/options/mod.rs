// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Bounds and parsers of options that several benchmarks have; `named`, `number`, the times and
//! the paths of results serve every command of `millrace`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use millrace_hostfs::output_path;
use millrace_operation::OperationKind;

mod time;

pub use self::time::{TIMES, time_within};
pub(crate) use self::time::{duration, whole_seconds};
use crate::bench_key::BenchKey;
use crate::error::BenchError;

/// Bound on rounds: a longer run takes hours and adds no knowledge.
pub(crate) const MAX_ROUNDS: u64 = 100;

/// Bound on handshakes at a time: the gateways' generated configurations allow this number.
pub(crate) const MAX_CONCURRENCY: usize = 2048;

/// Bounds of a measurement, in seconds: shorter ones are noise, longer ones a typing error.
pub(crate) const MEASUREMENT: RangeInclusive<f64> = 0.1..=600.0;

/// Bound on jobs in flight: the bound of one connection to a node, with room.
pub(crate) const MAX_IN_FLIGHT: usize = 4096;

/// Bound on connections and worker threads: what a node allows one identity.
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// The core that loads what another core computes.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LoadCoreArg {
    /// Core of the load generator [default: the second usable one]
    #[arg(hide_short_help = true, long, value_name = "CORE")]
    pub(crate) load_core: Option<usize>,
}

/// A value parser for numbers within a range.
pub fn number<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("expected a number from {least} to {most}"))
    }
}

/// Accepts the name of a type of key.
pub(crate) fn key(names: &'static [&'static str]) -> impl TypedValueParser<Value = BenchKey> {
    PossibleValuesParser::new(names).try_map(|name| name.parse::<BenchKey>())
}

/// A value parser for names. It lists them in the help, in errors and in completions.
pub fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(all.iter().map(|value| name(*value)));
    names.try_map(move |typed| {
        let found = all.iter().copied().find(|value| name(*value) == typed);
        found.ok_or("expected one of the listed values")
    })
}

/// A value parser for a file that the command makes or replaces. One that cannot be written is refused before the
/// command does anything.
pub fn output_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(output_path::output_file)
}

/// [`output_file`] for a folder that the command fills, and makes if it is missing.
pub fn output_folder() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(output_path::output_folder)
}

/// Accepts the name of an operation.
pub(crate) fn operation() -> impl TypedValueParser<Value = OperationKind> {
    named(OperationKind::ALL, OperationKind::name)
}

/// # Errors
/// [`BenchError::Usage`] for a `--duration` outside of what the measurement allows.
pub(crate) fn check_seconds(seconds: f64, allowed: &RangeInclusive<f64>) -> Result<(), BenchError> {
    if allowed.contains(&seconds) {
        return Ok(());
    }
    let least = allowed.start();
    let most = allowed.end();
    let problem = format!("--duration: expected a time from {least}s to {most}s");
    Err(BenchError::Usage(problem))
}
