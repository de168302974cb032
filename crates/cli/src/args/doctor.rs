// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was typed for `millrace doctor` and `millrace watch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use millrace_inspect::doctor::Severity;

const DOCTOR_EXAMPLE: &str = "\
Examples:
  millrace doctor
  millrace doctor --severity warning --json | jq -r '.findings[].id'
  millrace doctor --only qat-down,qat-heartbeat --nagios
  millrace doctor --root gateway-7.tar.gz
  millrace doctor --watch --alert syslog

Nothing is changed: a remedy is for you to read, and then to use. Without root
some files cannot be read, and the checks that need them are silent.

Exit codes, beside those of every command:
  0   nothing worse than a notice
  10  warnings
  11  something critical
With --nagios, as monitoring plugins do: 0 fine, 1 warnings, 2 something
critical, 3 it could not be found out.";

/// Say what is wrong with this machine's cryptography, what it costs, and what to do
///
/// Drivers, firmware, errors and services of QAT; which implementation the
/// kernel takes; libraries that ignore the processor; hypervisors, kernel
/// parameters, limits, temperatures; settings of IPsec, OpenVPN and TLS
/// servers.
#[derive(Debug, Args)]
#[command(after_long_help = DOCTOR_EXAMPLE)]
pub(crate) struct DoctorArgs {
    /// Look at this folder or bundle instead of this machine
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub(crate) root: PathBuf,
    /// Print JSON (schema: docs/reference/doctor.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    /// Make these checks only, separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Tell of findings that are at least so bad
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Level::Notice)]
    pub(crate) severity: Level,
    /// List the checks
    #[arg(long, conflicts_with_all = ["only", "severity", "nagios", "watch"])]
    pub(crate) list: bool,
    /// One line, and the exit codes of monitoring plugins
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(crate) nagios: bool,
    /// Look again and again, and alert: the same as `millrace watch`
    #[arg(long)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) again: AgainArgs,
}

const WATCH_EXAMPLE: &str = "\
Examples:
  millrace watch
  millrace watch --interval 5s --count 12
  millrace watch --alert syslog --alert command:/usr/local/bin/page-me
  millrace watch --json | jq 'select(.alert)'

A finding alerts when it appears, changes its severity, or goes away. Only what
is critical alerts at once; anything else must be there twice in a row, and gone
three times in a row. At most 20 alerts a minute are sent; the others wait.

A command gets the alert as JSON on standard input, and MILLRACE_ALERT_CHANGE,
_ID, _SEVERITY and _TITLE in its environment; it has 10 seconds. SIGTERM ends
the watch, with exit code 0.";

/// Watch the counters as rates, and alert when something becomes wrong
///
/// Requests per second of each QAT device, open requests, heartbeat, traffic
/// of interfaces, kernel TLS; and the checks of `millrace doctor`, over and
/// over. Libraries and the processor are looked at once, when it starts.
#[derive(Debug, Args)]
#[command(after_long_help = WATCH_EXAMPLE)]
pub(crate) struct WatchArgs {
    /// Look at this folder instead of this machine
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub(crate) root: PathBuf,
    /// Print one JSON object per line (schema: docs/reference/watch.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    /// Make these checks only, separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Alert of findings that are at least so bad
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Level::Notice)]
    pub(crate) severity: Level,
    #[command(flatten)]
    pub(crate) again: AgainArgs,
}

/// How often to look, and whom to tell.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgainArgs {
    /// Time between two looks: 500ms, 30s, 5m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) interval: Option<Duration>,
    /// End after so many looks [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Whom to tell: stdout, syslog, command:PROGRAM; repeatable [default: stdout]
    #[arg(long, value_name = "WHERE", value_parser = channel)]
    pub(crate) alert: Vec<Channel>,
}

/// Where alerts go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Standard output.
    Stdout,
    /// The system's log.
    Syslog,
    /// A program, which is started without a shell.
    Command(PathBuf),
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Something broken, or data in danger
    Critical,
    /// Capacity or safety that is lost
    Warning,
    /// Worth knowing
    Notice,
}

impl From<Level> for Severity {
    fn from(level: Level) -> Self {
        match level {
            Level::Critical => Self::Critical,
            Level::Warning => Self::Warning,
            Level::Notice => Self::Notice,
        }
    }
}

fn channel(text: &str) -> Result<Channel, String> {
    match text {
        "stdout" => Ok(Channel::Stdout),
        "syslog" => Ok(Channel::Syslog),
        _ => match text.strip_prefix("command:") {
            Some(program) if !program.is_empty() => Ok(Channel::Command(program.into())),
            _ => Err("stdout, syslog, or command:PROGRAM is wanted".to_owned()),
        },
    }
}

/// Shortest and longest time between two looks: a look takes some milliseconds and asks firmware for
/// its heartbeat, and after a day somebody wants a timer.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

fn time(text: &str) -> Result<Duration, String> {
    let wanted = || "a time like 500ms, 30s or 5m is wanted".to_owned();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().map_err(|_| wanted())?;
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wanted()),
    };
    let time = Duration::from_millis(number.saturating_mul(milliseconds));
    if (SHORTEST..=LONGEST).contains(&time) {
        Ok(time)
    } else {
        Err("between 100ms and 24h, please".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_channels_are_read() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
        for bad in ["", "0s", "s", "5d", "99999999999999999999s", "25h", "-1s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!(
            channel("command:/bin/true"),
            Ok(Channel::Command("/bin/true".into()))
        );
        assert!(channel("command:").is_err() && channel("mail").is_err());
    }
}
