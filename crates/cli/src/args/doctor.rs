// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace doctor` and `millrace watch`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use millrace_inspect::doctor::Severity;

use super::{ExaminedRootArg, interval, readings};

const DOCTOR_EXAMPLE: &str = "\
Examples:
  millrace doctor
  millrace doctor --severity warning --json | jq -r '.findings[].id'
  millrace doctor --only qat-down,qat-heartbeat --nagios
  millrace doctor --root gateway-7.tar.gz

Nothing is changed: read a remedy before you use it. Without root some files
cannot be read, and the checks that need them report nothing.

Exit codes of an examination (others as of every command):
  0   nothing worse than a notice
  10  warnings
  11  critical findings
  12  the machine cannot be examined (/proc and /sys must be mounted)
With --nagios, the codes of monitoring plugins: 0 fine, 1 warnings, 2 critical
findings, 3 unknown: the machine could not be examined.";

/// Find problems of this machine's cryptography, and their remedies
///
/// Drivers, firmware, errors and services of QAT; the kernel's choice of
/// implementations; libraries that do not use the processor; hypervisors,
/// kernel parameters, limits, temperatures; settings of IPsec, OpenVPN and TLS
/// servers.
#[derive(Debug, Args)]
#[command(after_long_help = DOCTOR_EXAMPLE)]
pub(crate) struct DoctorArgs {
    /// Print JSON (schema: share/doc/millrace/doctor.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// List the checks, and run none
    #[arg(long, conflicts_with_all = ["only", "severity", "nagios"])]
    pub(crate) list: bool,
    /// Print one line, with the exit codes of monitoring plugins
    #[arg(long, conflicts_with = "json")]
    pub(crate) nagios: bool,
}

const WATCH_EXAMPLE: &str = "\
Examples:
  millrace watch
  millrace watch --interval 5s --count 12
  millrace watch --alert syslog --alert command:/usr/local/bin/page-me
  millrace watch --json | jq 'select(.alert)'

A finding alerts when it appears, changes its severity, or disappears. A
critical one alerts at once; any other must be present in two readings in a
row. Every finding must be absent three times before it counts as gone. At
most 20 alerts a minute are sent; the others wait.

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
    /// Print one JSON object per line (schema: share/doc/millrace/watch.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Time between two readings [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
    /// End after this number of readings [default: never]
    ///
    /// Rates, and alerts that are not critical, need two.
    #[arg(long, value_name = "N", value_parser = readings)]
    pub(crate) count: Option<u64>,
    /// Destination of alerts: stdout, syslog, command:PROGRAM; repeatable [default: stdout]
    #[arg(long, value_name = "CHANNEL", value_parser = channel)]
    pub(crate) alert: Vec<Channel>,
}

/// The machine, the checks, and the findings to report.
#[derive(Clone, Debug, Args)]
pub(crate) struct SelectionArgs {
    #[command(flatten)]
    pub(crate) tree: ExaminedRootArg,
    /// Run only these checks, separated by commas (`millrace doctor --list`)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Report only findings of at least this severity
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = Severity::Notice)]
    pub(crate) severity: Severity,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_parsed() {
        assert_eq!(channel("command:/bin/true"), Ok(Channel::Command("/bin/true".into())));
        assert!(channel("command:").is_err() && channel("mail").is_err());
    }
}
