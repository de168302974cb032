// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace status`: queries the node over its status socket. With `--json` it prints the answer unchanged;
//! for the page it queries twice and converts the differences to rates.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use millrace_service::Status;
use millrace_service::status::{Choice, Edge, EdgeCounts, Operation, Sessions};

use crate::args::{SocketArg, StatusArgs};
use crate::commands::pool;
use crate::exit::{ContextCode, Failure, fail};
use crate::output::{self, Table};
use crate::page::facts;
use crate::settings::Settings;

/// A running node answers in milliseconds, also under load.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bound on an answer, in bytes. A node's answer has a few KiB.
const MAX_ANSWER: u64 = 4 << 20;
/// Time over which rates are measured: long enough for a useful average, short enough to wait for.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    if let Some(file) = &args.pool {
        return pool::status(file, args.user.as_deref(), args.json);
    }
    let settings = Settings::for_status(args)?;
    if args.sessions {
        return list_sessions(&settings, args.json);
    }
    let Some(socket) = settings.node.status_socket.as_deref() else {
        return Err(fail(
            Failure::Usage,
            "the configuration turns the status socket off",
        ));
    };
    if args.json {
        let body = ask(socket)?;
        let value: serde_json::Value =
            serde_json::from_slice(&body).context("the node's answer is not JSON")?;
        return output::print_json(&value);
    }
    let before = Sample::take(socket)?;
    thread::sleep(INTERVAL);
    let after = Sample::take(socket)?;
    output::print(&page(&after.status))?;
    if after.status.operations.is_empty() {
        eprintln!("no operations yet");
    } else {
        output::print("\n")?;
        table(&before, &after).print()?;
    }
    if !after.status.choices.is_empty() {
        output::print("\n")?;
        choices(&after.status.choices).print()?;
    }
    if after.status.edges.is_empty() {
        return Ok(());
    }
    output::print("\n")?;
    edges(&after.status.edges).print()
}

/// The status of the node with this socket; none if there is no node, or it may not be asked.
pub(super) fn of(socket: &SocketArg) -> Option<Status> {
    let settings = Settings::for_socket(socket).ok()?;
    let socket = settings.node.status_socket?;
    serde_json::from_slice(&ask(&socket).ok()?).ok()
}

/// Prints the open sessions of the node.
fn list_sessions(settings: &Settings, json: bool) -> Result<()> {
    let Some(admin) = &settings.node.admin else {
        let reason = "the configuration turns the administration socket off";
        return Err(fail(Failure::Usage, reason));
    };
    let body = request(&admin.socket, "/sessions")?;
    let listed: Sessions = serde_json::from_slice(&body)
        .context("the node's answer is not understood: is it of another version?")?;
    if json {
        return output::print_json(&listed);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let mut table = Table::new(&[">session", "client", "agent", ">open for", ">in flight"]);
    for row in &listed.sessions {
        table.row(vec![
            row.session.to_string(),
            row.identity.clone(),
            row.agent.clone(),
            duration(now.saturating_sub(row.since)),
            row.in_flight.to_string(),
        ]);
    }
    table.print()
}

struct Sample {
    at: Instant,
    status: Status,
}

impl Sample {
    fn take(socket: &Path) -> Result<Self> {
        let body = ask(socket)?;
        let status = serde_json::from_slice(&body)
            .context("the node's answer is not understood: is it of another version?")?;
        Ok(Self {
            at: Instant::now(),
            status,
        })
    }

    fn completed(&self, of: &Operation) -> u64 {
        let same = |row: &&Operation| row.backend == of.backend && row.operation == of.operation;
        self.status
            .operations
            .iter()
            .find(same)
            .map_or(0, |row| row.completed)
    }
}

/// One fact per line.
fn page(status: &Status) -> String {
    let backends: Vec<String> = status
        .backends
        .iter()
        .map(|backend| {
            match (
                &backend.unusable,
                backend.quarantined,
                &backend.queue_refused,
            ) {
                (Some(reason), _, _) => format!("{} (not usable: {reason})", backend.backend),
                (None, true, _) => format!("{} (quarantined)", backend.backend),
                (None, false, Some(reason)) => {
                    format!("{} (no queue at present: {reason})", backend.backend)
                }
                (None, false, None) => format!("{} ({})", backend.backend, backend.version),
            }
        })
        .collect();
    let waiting: usize = status.waiting.iter().map(|class| class.jobs).sum();
    let keys = match status.keys_broken {
        0 => status.keys.to_string(),
        broken => format!(
            "{} ({broken} files cannot be used, see the log)",
            status.keys
        ),
    };
    let errors: Vec<String> = status
        .errors
        .iter()
        .map(|error| format!("{} {}", error.jobs, error.reason))
        .collect();
    let rows = [
        (
            "node",
            format!(
                "{} ({}, version {})",
                status.node, status.state, status.version
            ),
        ),
        ("uptime", duration(status.uptime_seconds)),
        ("keys", keys),
        ("connections", status.connections.to_string()),
        (
            "in flight",
            format!("{} ({waiting} waiting)", status.in_flight),
        ),
        ("backends", backends.join(", ")),
        (
            "errors",
            if errors.is_empty() {
                "none".to_owned()
            } else {
                errors.join(", ")
            },
        ),
    ];
    facts(&rows)
}

fn table(before: &Sample, after: &Sample) -> Table {
    let mut table = Table::new(&[
        "operation",
        "backend",
        ">completed",
        ">per second",
        ">failed",
        ">queue p50",
        ">queue p99",
        ">service p50",
        ">service p99",
    ]);
    let elapsed = after.at.duration_since(before.at).as_secs_f64();
    for row in &after.status.operations {
        let done = row.completed.saturating_sub(before.completed(row));
        #[expect(
            clippy::cast_precision_loss,
            reason = "a count of one second, far below 2^52"
        )]
        let rate = done as f64 / elapsed;
        table.row(vec![
            row.operation.clone(),
            row.backend.clone(),
            row.completed.to_string(),
            format!("{rate:.0}"),
            row.failed.to_string(),
            microseconds(row.queue_p50_us),
            microseconds(row.queue_p99_us),
            microseconds(row.service_p50_us),
            microseconds(row.service_p99_us),
        ]);
    }
    table
}

/// For each kind of job that several backends can serve: the chosen backend, and the measured costs.
fn choices(choices: &[Choice]) -> Table {
    let mut table = Table::new(&[
        "jobs",
        ">together",
        "served by",
        "cost of one, by backend",
        ">changes",
    ]);
    for choice in choices {
        let costs: Vec<String> = choice
            .costs
            .iter()
            .map(|cost| format!("{} {}", cost.backend, microseconds(cost.us)))
            .collect();
        table.row(vec![
            choice.jobs.clone(),
            choice
                .together
                .map_or_else(|| "more".to_owned(), |most| format!("≤ {most}")),
            choice.serving.clone(),
            costs.join(", "),
            choice.switches.to_string(),
        ]);
    }
    table
}

/// The counters that the clients report.
fn edges(edges: &[Edge]) -> Table {
    let mut table = Table::new(&[
        "client",
        "agent",
        ">conns",
        ">jobs",
        ">async",
        ">hedged",
        "fallbacks",
    ]);
    for edge in edges {
        let counts = &edge.counts;
        table.row(vec![
            edge.identity.clone(),
            edge.agent.clone(),
            edge.connections.to_string(),
            counts.jobs().to_string(),
            percentage(counts.paused, counts.jobs()),
            counts
                .hedges_won
                .saturating_add(counts.hedges_lost)
                .to_string(),
            fallbacks(counts),
        ]);
    }
    table
}

/// Their number, with the reasons, the most frequent first.
fn fallbacks(counts: &EdgeCounts) -> String {
    let mut reasons: Vec<_> = counts.fallbacks.iter().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.jobs));
    let reasons: Vec<String> = reasons
        .iter()
        .map(|reason| format!("{} {}", reason.jobs, reason.reason))
        .collect();
    if reasons.is_empty() {
        "none".to_owned()
    } else {
        reasons.join(", ")
    }
}

/// Rounded down, so that 100 % means all.
fn percentage(part: u64, whole: u64) -> String {
    match u128::from(part) * 100 / u128::from(whole.max(1)) {
        _ if whole == 0 => "-".to_owned(),
        percent => format!("{percent} %"),
    }
}

/// Formats three digits and a unit.
fn microseconds(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.1} µs"),
        v if v < 1_000.0 => format!("{v:.0} µs"),
        v if v < 10_000.0 => format!("{:.1} ms", v / 1e3),
        v if v < 1_000_000.0 => format!("{:.0} ms", v / 1e3),
        v => format!("{:.1} s", v / 1e6),
    }
}

fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {seconds} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// Requests `/status` and returns the body of the answer.
pub(super) fn ask(socket: &Path) -> Result<Vec<u8>> {
    request(socket, "/status")
}

/// The body of the answer to `GET path`.
pub(crate) fn request(socket: &Path, path: &str) -> Result<Vec<u8>> {
    let silent = || {
        format!(
            "no node answers on {}: start one with `millrace up`, or name another with --socket",
            socket.display()
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        // The usual case, no socket or no listener, needs no further explanation.
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => fail(Failure::NoNode, silent()),
        _ => anyhow!(error).context(format!("cannot connect to {}", socket.display())),
    })?;
    let answer = converse(&mut stream, path).or_fail(Failure::NoNode, silent)?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let (head, body) = head
        .map(|at| answer.split_at(at + 4))
        .context("the answer has no header")?;
    if !head.starts_with(b"HTTP/1.1 200 ") {
        let first = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        bail!("the node answered {}", String::from_utf8_lossy(first));
    }
    Ok(body.to_vec())
}

fn converse(stream: &mut UnixStream, path: &str) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_is_rounded_down() {
        assert_eq!(percentage(0, 0), "-");
        assert_eq!(percentage(999, 1000), "99 %");
        assert_eq!(percentage(1000, 1000), "100 %");
        assert_eq!(percentage(u64::MAX, u64::MAX), "100 %");
    }

    #[test]
    fn times_are_readable() {
        assert_eq!(microseconds(7.04), "7.0 µs");
        assert_eq!(microseconds(512.3), "512 µs");
        assert_eq!(microseconds(1_530.0), "1.5 ms");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(3_600), "1 h 0 min");
        assert_eq!(duration(200_000), "2 d 7 h");
    }
}
