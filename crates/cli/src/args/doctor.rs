// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace doctor` and `millrace watch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace_inspect::doctor::Severity;

const DOCTOR_EXAMPLE: &str = "\
Examples:
  millrace doctor
  millrace doctor --severity warning --json | jq -r '.findings[].id'
  millrace doctor --only qat-down,qat-heartbeat --nagios
  millrace doctor --root gateway-7.tar.gz
  millrace doctor --watch --alert syslog

Nothing is changed: read a remedy before you use it. Without root some files
cannot be read, and the checks that need them report nothing.

Exit codes of an examination (others as of every command):
  0   nothing worse than a notice
  3   this is not a machine that can be examined: a mount is missing?
  10  warnings
  11  critical findings
With --nagios, the codes of monitoring plugins: 0 fine, 1 warnings, 2 critical
findings, 3 unknown: the machine could not be examined.";

/// Find problems with this machine's cryptography, their cost and their remedy
///
/// Drivers, firmware, errors and services of QAT; the kernel's choice of
/// implementations; libraries that do not use the processor; hypervisors,
/// kernel parameters, limits, temperatures; settings of IPsec, OpenVPN and TLS
/// servers.
#[derive(Debug, Args)]
#[command(after_long_help = DOCTOR_EXAMPLE)]
pub(crate) struct DoctorArgs {
    /// Print JSON (schema: docs/reference/doctor.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// List the checks
    #[arg(long, conflicts_with_all = ["only", "severity", "nagios", "watch"])]
    pub(crate) list: bool,
    /// Print one line, with the exit codes of monitoring plugins
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(crate) nagios: bool,
    /// Repeat the checks and alert, like `millrace watch`
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

A finding alerts when it appears, changes its severity, or disappears. A
critical one alerts at once; any other must be present in two readings in a row.
Every finding must be absent three times before it counts as gone. At most 20
alerts a minute are sent; the others wait.

A command gets the alert as JSON on standard input, and MILLRACE_ALERT_CHANGE,
_ID, _SEVERITY and _TITLE in its environment; it has 10 seconds. SIGTERM ends
the watch, with exit code 0.";

/// Print counters as rates, and alert when a problem appears
///
/// Requests per second of each QAT device, open requests, heartbeat, traffic
/// of interfaces, kernel TLS; and the checks of `millrace doctor` at every
/// reading. Libraries and the processor are read once, at the start.
#[derive(Debug, Args)]
#[command(after_long_help = WATCH_EXAMPLE)]
pub(crate) struct WatchArgs {
    /// Print one JSON object per line (schema: docs/reference/watch.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    #[command(flatten)]
    pub(crate) again: AgainArgs,
}

/// The machine, the checks, and the findings to report.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelectionArgs {
    /// Examine this folder or bundle instead of this machine
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub(crate) root: PathBuf,
    /// Run only these checks, separated by commas
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Report only findings of at least this severity
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Severity::Notice)]
    pub(crate) severity: Severity,
}

/// Interval, end and destinations of a watch.
#[derive(Clone, Debug, Args)]
pub(crate) struct AgainArgs {
    /// Time between two readings: 500ms, 30s, 5m [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) interval: Option<Duration>,
    /// End after this number of readings [default: never]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Where to send alerts: stdout, syslog, command:PROGRAM; repeatable [default: stdout]
    #[arg(long, value_name = "WHERE", value_parser = channel)]
    pub(crate) alert: Vec<Channel>,
}

/// Destination of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Stdout,
    Syslog,
    /// A program, started without a shell
    Command(PathBuf),
}

fn channel(text: &str) -> Result<Channel, String> {
    match text {
        "stdout" => Ok(Channel::Stdout),
        "syslog" => Ok(Channel::Syslog),
        _ => match text.strip_prefix("command:") {
            Some(program) if !program.is_empty() => Ok(Channel::Command(program.into())),
            _ => Err("expected stdout, syslog or command:PROGRAM".to_owned()),
        },
    }
}

/// Shortest and longest time between two readings. A reading takes a few milliseconds and requests the
/// firmware's heartbeat; for intervals above a day a systemd timer is the better tool.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

fn time(text: &str) -> Result<Duration, String> {
    let wanted = || "expected a time like 500ms, 30s or 5m".to_owned();
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
        Err("expected a time from 100ms to 24h".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_channels_are_parsed() {
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
