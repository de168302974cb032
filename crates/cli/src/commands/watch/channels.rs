// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Destinations of alerts: the system log, or a program.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use millrace_hostfs::child::{self, ChildLimits};
use millrace_inspect::doctor::Severity;
use millrace_inspect::doctor::watch::Alert;

use crate::args::Channel;
use crate::page::plain;

/// Socket of the system log.
const LOG: &str = "/dev/log";
/// Bound on the time of a program for one alert: sending a page takes seconds, and the watch must continue.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);

/// Sends an alert.
///
/// # Errors
/// The log or the program did not accept it.
pub(super) fn send(alert: &Alert, channel: &Channel) -> Result<()> {
    match channel {
        Channel::Stdout => Ok(()),
        Channel::Syslog => log(alert, Path::new(LOG)),
        Channel::Command(program) => command(alert, program, COMMAND_LIMIT),
    }
}

/// An alert in one line.
pub(super) fn sentence(alert: &Alert) -> String {
    let finding = &alert.finding;
    format!(
        "{} {} {}: {}",
        finding.severity.name().to_uppercase(),
        finding.id,
        alert.change.name(),
        plain(&finding.title)
    )
}

/// RFC 3164 without a timestamp; the receiver adds one.
fn log(alert: &Alert, socket: &Path) -> Result<()> {
    const DAEMON: u8 = 3;
    let severity = match alert.finding.severity {
        Severity::Critical => 2,
        Severity::Warning => 4,
        Severity::Notice => 5,
    };
    let text =
        format!("<{}>millrace[{}]: {}", DAEMON * 8 + severity, std::process::id(), sentence(alert));
    let sender = UnixDatagram::unbound().context("opening a socket")?;
    // A full log must not block the watch.
    sender.set_nonblocking(true).context("opening a socket")?;
    sender
        .send_to(text.as_bytes(), socket)
        .with_context(|| format!("writing to {}", socket.display()))?;
    Ok(())
}

/// Runs a program without a shell. It gets the alert as JSON on its standard input and in its environment.
fn command(alert: &Alert, program: &Path, limit: Duration) -> Result<()> {
    let name = program.display();
    let mut text = serde_json::to_vec(alert).context("composing the JSON")?;
    text.push(b'\n');
    let mut command = Command::new(program);
    command
        .env("MILLRACE_ALERT_CHANGE", alert.change.name())
        .env("MILLRACE_ALERT_ID", &alert.finding.id)
        .env("MILLRACE_ALERT_SEVERITY", alert.finding.severity.name())
        .env("MILLRACE_ALERT_TITLE", plain(&alert.finding.title))
        .stdout(Stdio::null());
    let limits = ChildLimits { time: limit, output_bytes: 0 };
    let output =
        child::run(&mut command, &text, limits).map_err(|error| anyhow!("{name} {error}"))?;
    if output.status.success() { Ok(()) } else { Err(anyhow!("{name} failed: {}", output.status)) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millrace_inspect::doctor::Finding;
    use millrace_inspect::doctor::watch::FindingChange;

    use super::*;

    fn alert() -> Alert {
        Alert {
            change: FindingChange::Appears,
            finding: Finding {
                id: "qat-down".to_owned(),
                severity: Severity::Critical,
                title: "down $(touch x); \x1b".to_owned(),
                evidence: Vec::new(),
                impact: String::new(),
                remedy: Vec::new(),
            },
        }
    }

    #[test]
    fn system_log_gets_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let receiver = UnixDatagram::bind(&path).unwrap();
        log(&alert(), &path).unwrap();
        let mut buffer = [0; 1024];
        let len = receiver.recv(&mut buffer).unwrap();
        let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
        assert!(text.starts_with("<26>millrace["), "{text}");
        assert!(text.ends_with("]: CRITICAL qat-down appears: down $(touch x); ?"));
        assert!(log(&alert(), &folder.path().join("none")).is_err());
    }

    #[test]
    fn program_gets_json_and_fields_within_a_time_limit() {
        let folder = tempfile::tempdir().unwrap();
        // A separate process creates it: if this process had opened the file for writing, a fork of another
        // test might have inherited the descriptor, and starting the file would fail with ETXTBSY.
        let script = |name: &str, text: &str| {
            let source = folder.path().join("source");
            let path = folder.path().join(name);
            fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
            let installed =
                Command::new("install").args(["-m", "700"]).args([&source, &path]).status();
            assert!(installed.unwrap().success());
            path
        };
        let out = folder.path().join("out");
        let keep = script(
            "keep",
            &format!("{{ cat; echo \"$MILLRACE_ALERT_TITLE\"; }} > {}", out.display()),
        );
        command(&alert(), &keep, COMMAND_LIMIT).unwrap();
        let said = fs::read_to_string(&out).unwrap();
        let (json, title) = said.split_once('\n').unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["finding"]["id"], "qat-down");
        assert_eq!(title.trim_end(), "down $(touch x); ?");
        let slow = script("slow", "exec sleep 600");
        let error = command(&alert(), &slow, Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("did not end within 50ms"), "{error}");
        assert!(command(&alert(), &script("bad", "exit 3"), COMMAND_LIMIT).is_err());
        assert!(command(&alert(), Path::new("/no/such/program"), COMMAND_LIMIT).is_err());
    }
}
