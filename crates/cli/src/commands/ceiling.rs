// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect ceiling`: samples processes, and reports the bound on the gain by an accelerator.

use std::io::{IsTerminal, stderr};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use millrace_bench::plot::{self, Axis, BarChart, Bars, Value};
use millrace_hostfs::child::OwnedChild;
use millrace_sampler::{
    Calibrations, Ceiling, ClassShare, Profile, Sampler, Samples, Share, SymbolClass,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::CeilingArgs;
use crate::exit::{Failure, fail};
use crate::output::{self, Table, TableColumn, or};

/// Default sampling time of processes: 10,000 samples of a busy processor.
const DEFAULT_TIME: Duration = Duration::from_secs(10);

/// Longest sampling time of a command, which is killed afterwards.
const LONGEST: Duration = Duration::from_secs(3600);

/// Interval of checks whether a command has ended: the sampling runs on after it for no longer.
const POLL: Duration = Duration::from_millis(20);

/// Number of samples below which shares are unreliable: a share of 50 % is off by up to 7 points (95 % confidence).
const FEW: u64 = 200;

/// Version of the JSON, incremented when a field changes its meaning.
const SCHEMA: u32 = 1;

/// Output of `--json`.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "Ceiling")]
pub(super) struct CeilingReport<'a> {
    /// Version of this form.
    schema: u32,
    /// `ceiling`.
    report: &'static str,
    #[serde(flatten)]
    profile: &'a Profile,
    ceiling: Ceiling,
    /// The value of `--rate`.
    requests_per_s: Option<f64>,
}

pub(crate) fn run(args: &CeilingArgs) -> Result<()> {
    if args.pid.is_empty() && args.command.is_empty() {
        let message =
            "name processes with --pid, or a command: millrace inspect ceiling -- COMMAND";
        return Err(fail(Failure::Usage, message));
    }
    let samples =
        if args.command.is_empty() { sample_processes(args)? } else { sample_command(args)? };
    if samples.total() == 0 {
        bail!("no samples: the processes used no CPU time during sampling; put load on them");
    }
    let profile = samples.profile(&calibrate(args, &samples));
    if let Some(path) = &args.plot.svg {
        plot::write(&chart(&profile).render()?, path)?;
    }
    if args.json {
        return output::print_json(&CeilingReport {
            schema: SCHEMA,
            report: "ceiling",
            ceiling: profile.ceiling(),
            profile: &profile,
            requests_per_s: args.rate,
        });
    }
    print(args, &profile)
}

fn sample_processes(args: &CeilingArgs) -> Result<Samples> {
    let time = args.duration.unwrap_or(DEFAULT_TIME);
    let sampler = Sampler::start(&args.pid, args.frequency)?;
    let bar = bar(time.as_secs(), "sampling");
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        bar.set_position(time.saturating_sub(left).as_secs());
        thread::sleep(left.min(Duration::from_millis(250)));
    }
    bar.finish_and_clear();
    Ok(sampler.stop()?)
}

fn sample_command(args: &CeilingArgs) -> Result<Samples> {
    let Some((program, rest)) = args.command.split_first() else {
        bail!("no command");
    };
    let mut command = Command::new(program);
    // The command must not write to standard output, which is for the report.
    command.args(rest).stdin(Stdio::null()).stdout(stderr());
    let child = OwnedChild::spawn(&mut command);
    let mut child = child.with_context(|| format!("cannot start {}", program.display()))?;
    let sampler = Sampler::start(&[child.id()], args.frequency)?;
    let end = Instant::now() + args.duration.unwrap_or(LONGEST);
    let status = loop {
        let status = child.try_wait().context("waiting for the command")?;
        if status.is_some() || Instant::now() >= end {
            break status;
        }
        thread::sleep(POLL);
    };
    let samples = sampler.stop()?;
    if let Some(status) = status.filter(|status| !status.success()) {
        note!("the command failed ({status})");
    }
    Ok(samples)
}

/// Calibrates the libcryptos that contain samples. Without calibration the profile is coarser and reports
/// that.
fn calibrate(args: &CeilingArgs, samples: &Samples) -> Calibrations {
    let mut calibrations =
        if args.no_cache { Calibrations::without_cache() } else { Calibrations::with_cache() };
    for library in samples.libcryptos() {
        let mut shown: Option<ProgressBar> = None;
        let result = calibrations.ensure(&library, &mut |what, step, steps| {
            let shown = shown.get_or_insert_with(|| bar(steps as u64, "calibrating libcrypto"));
            shown.set_position(step as u64);
            shown.set_message(format!("calibrating libcrypto, once: {what}"));
        });
        if let Some(shown) = shown {
            shown.finish_and_clear();
        }
        if let Err(error) = result {
            note!("{error}");
        }
    }
    calibrations
}

fn bar(steps: u64, message: &'static str) -> ProgressBar {
    if !stderr().is_terminal() {
        note!("{message} ...");
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {pos}/{len} {msg}");
    ProgressBar::new(steps)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(message)
}

fn print(args: &CeilingArgs, profile: &Profile) -> Result<()> {
    let seen = match profile.cpu_seconds {
        Some(counted) => format!(" (the system counted {counted:.2} s)"),
        None => String::new(),
    };
    output::print(&format!(
        "{} samples in {:.1} s: {:.2} s of CPU time{seen}\n\n",
        profile.samples, profile.seconds, profile.sampled_cpu_seconds
    ))?;
    let per_request = args.rate.filter(|rate| *rate > 0.0).map(|rate| {
        // CPU time of one request, in milliseconds.
        1e3 * profile.sampled_cpu_seconds / (rate * profile.seconds)
    });
    classes(profile, per_request).print()?;
    if args.functions {
        output::print("\n")?;
        functions(profile).print()?;
    }
    output::print(&format!("\n{}\n", words(profile)))
}

fn classes(profile: &Profile, per_request: Option<f64>) -> Table {
    let offloadable = |class: SymbolClass| match class {
        class if class.is_private_key() => "by a pool",
        class if class.is_symmetric() => "inline only",
        _ => "",
    };
    let interval = |share: &Share| format!("{} to {}", percent(share.low), percent(share.high));
    let ms =
        |row: &ClassShare| or(per_request.map(|ms| format!("{:.4}", ms * row.share.share)), "");
    #[rustfmt::skip]
    let columns: [TableColumn<'_, &ClassShare>; 6] = [
        ("class", &|row| row.class.to_string()),
        (">share", &|row| percent(row.share.share)),
        (">95 % interval", &|row| interval(&row.share)),
        (">samples", &|row| format!("{:.0}", row.share.samples)),
        ("offloadable", &|row| offloadable(row.class).to_owned()),
        (">ms per request", &|row| ms(row)),
    ];
    let shown = if per_request.is_some() { 6 } else { 5 };
    Table::of(&profile.classes, &columns[..shown])
}

#[rustfmt::skip]
fn functions(profile: &Profile) -> Table {
    Table::of(&profile.functions, &[
        ("file", &|row| row.object.clone()),
        ("function", &|row| row.function.clone()),
        ("class", &|row| row.class.to_string()),
        (">share", &|row| percent(row.share.share)),
    ])
}

/// The interpretation below the table.
fn words(profile: &Profile) -> String {
    let ceiling = profile.ceiling();
    let mut text = ceiling.words();
    let Share { share, .. } = ceiling.symmetric;
    if share >= 0.01 {
        text.push_str(&format!(
            "\nAnother {} is symmetric encryption, which kernel TLS or an inline accelerator can take over, but not a pool.",
            percent(share)
        ));
    }
    let unclassified = ceiling.unclassified.share;
    if unclassified >= 0.01 {
        let gain = 1.0 / (1.0 - (ceiling.private_key.share + unclassified).min(0.999));
        text.push_str(&format!(
            "\n{} could not be classified; if all of it were private-key operations, the bound would be {gain:.2}x.",
            percent(unclassified)
        ));
    }
    if profile.samples < FEW {
        text.push_str("\nThe number of samples is small: sample for longer, or under load.");
    }
    if !profile.kernel_visible {
        text.push_str(
            "\nThe kernel could not be sampled (that needs CAP_PERFMON): its share is the rest of the CPU time.",
        );
    }
    if profile.lost > 0 {
        text.push_str(&format!("\n{} samples were lost.", profile.lost));
    }
    for note in &profile.notes {
        text.push('\n');
        text.push_str(note);
        text.push('.');
    }
    text
}

fn chart(profile: &Profile) -> BarChart {
    let value = |share: &Share| Value {
        middle: share.share * 100.0,
        range: Some((share.low * 100.0, share.high * 100.0)),
    };
    let bars = |name: &str, fits: &dyn Fn(SymbolClass) -> bool| Bars {
        name: name.to_owned(),
        values: profile
            .classes
            .iter()
            .map(|row| fits(row.class).then(|| value(&row.share)))
            .collect(),
    };
    BarChart {
        title: format!(
            "CPU time: at most {:.2}x as fast without private-key operations",
            profile.ceiling().gain
        ),
        axis: Axis::linear("share of the CPU time (%)"),
        categories: profile.classes.iter().map(|row| row.class.to_string()).collect(),
        series: vec![
            bars("for a pool", &SymbolClass::is_private_key),
            bars("stays", &|class| !class.is_private_key()),
        ],
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
