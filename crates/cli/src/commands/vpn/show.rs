// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The status of a link and its history, as tables and JSON.

use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use millrace_hostfs::ordinary::{self, Links};
use millrace_vpn::apply::{self, ApplyError};
use millrace_vpn::supervise::{LinkState, LinkStatus, MemberStatus, read_status};

use super::folders;
use crate::args::{VpnHistoryArgs, VpnNameArgs, VpnStatusArgs, VpnWatchArgs};
use crate::exit::{Failure, fail};
use crate::output::{self, Table, date, or};
use crate::screen::{Pages, Pauses};
use crate::terminal::{columns, styled};

pub(super) fn status(args: &VpnStatusArgs) -> Result<()> {
    let status = read(&args.link)?;
    if args.json {
        return output::print_json(&status);
    }
    output::print(&page(&status))
}

/// The newest status.
///
/// # Errors
/// The link is not up; or the supervisor that wrote the newest status does not run any more.
fn read(link: &VpnNameArgs) -> Result<LinkStatus> {
    let folders = folders(&link.folders);
    let name = &link.name;
    let status =
        read_status(&folders.run_of(name)).ok_or_else(|| ApplyError::NotUp(name.clone()))?;
    let message = match apply::supervisor(name, &folders) {
        Some(supervisor) if supervisor == status.supervisor => return Ok(status),
        Some(_) => format!("the new supervisor of link {name} has no status yet: ask again"),
        None => format!(
            "link {name} has no supervisor; its tunnels run on: `millrace vpn up LINK` starts one"
        ),
    };
    Err(fail(Failure::Failed, message))
}

fn page(status: &LinkStatus) -> String {
    let (state, colour) = match status.state {
        LinkState::Up => ("up", 32),
        LinkState::Degraded => ("degraded", 33),
        LinkState::Down => ("down", 31),
    };
    let styled = styled(&io::stdout());
    let state = if styled { format!("\x1b[{colour}m{state}\x1b[0m") } else { state.to_owned() };
    let mut text = format!(
        "link {}, end {}: {state}, configuration {}\n",
        status.name,
        status.side.name(),
        status.generation
    );
    if let Some(left) = status.confirm_within_ms {
        text.push_str(&format!(
            "the configuration confirmed last comes back in {} s unless this one reaches the other end, or you confirm it: \
             millrace vpn confirm {}\n",
            left / 1000,
            status.name
        ));
    }
    text.push('\n');
    text.push_str(&members(&status.members).render(styled, columns()));
    if status.members.iter().any(|member| member.loses_long_packets) {
        text.push_str("\nthe path loses long packets: lower path-mtu in link.toml, on both ends\n");
    }
    text
}

#[rustfmt::skip]
fn members(members: &[MemberStatus]) -> Table {
    let rtt = |us| format!("{}.{:02}", us / 1000, us % 1000 / 10);
    let megabytes = |bytes: u64| (bytes / 1_000_000).to_string();
    Table::of(members, &[
        ("member", &|member| member.number.to_string()),
        ("state", &|member| member.state.name().to_owned()),
        (">rtt ms", &|member| or(member.rtt_us.map(rtt), "-")),
        (">lost %", &|member| member.lost_percent.to_string()),
        (">received MB", &|member| megabytes(member.received_bytes)),
        (">sent MB", &|member| megabytes(member.sent_bytes)),
        (">restarts", &|member| member.restarts.to_string()),
        ("why", &|member| member.reason.clone()),
    ])
}

/// Lines of the supervisor's log below the table.
const LAST_CHANGES: usize = 5;

/// Bound on the part of that log that is read, in bytes: the lines are short.
const LOG_END: u32 = 4096;

pub(super) fn watch(args: &VpnWatchArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("starting the runtime")?.block_on(watch_until_asked(args))
}

async fn watch_until_asked(args: &VpnWatchArgs) -> Result<()> {
    let log = folders(&args.link.folders).run_of(&args.link.name).join("supervisor.log");
    // Without a link there is nothing to take the terminal over for.
    let mut before = read(&args.link)?;
    if args.json {
        return watch_as_json(args).await;
    }
    let mut pages = Pages::start()?;
    let mut rate = None;
    let mut shown = 0;
    loop {
        let status = read(&args.link)?;
        let mut text = page(&status);
        rate = rates(&before, &status).or(rate);
        if let Some((received, sent)) = rate {
            text.push_str(&format!("\nnow {received:.1} Mbit/s in, {sent:.1} Mbit/s out\n"));
        }
        let changes = last_lines(&log);
        if !changes.is_empty() {
            text.push_str(&format!("\nlast changes:\n{changes}"));
        }
        pages.show(&text)?;
        shown += 1;
        let enough = args.count.is_some_and(|count| shown >= count);
        if enough || !pages.wait(args.interval).await {
            return Ok(());
        }
        if status.at_ms > before.at_ms {
            before = status;
        }
    }
}

async fn watch_as_json(args: &VpnWatchArgs) -> Result<()> {
    let mut pauses = Pauses::new()?;
    let mut shown = 0;
    loop {
        let line = serde_json::to_string(&read(&args.link)?).context("composing the JSON")?;
        output::print(&format!("{line}\n"))?;
        shown += 1;
        let enough = args.count.is_some_and(|count| shown >= count);
        if enough || !pauses.wait(args.interval).await {
            return Ok(());
        }
    }
}

/// Mbit/s that the tunnels received and sent between two statuses. `None` if the second is not newer, or a tunnel has
/// restarted its counts.
fn rates(before: &LinkStatus, after: &LinkStatus) -> Option<(f64, f64)> {
    let ms = after.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)?;
    let sum = |status: &LinkStatus, bytes: fn(&MemberStatus) -> u64| -> u64 {
        status.members.iter().map(bytes).sum()
    };
    let rate = |bytes: fn(&MemberStatus) -> u64| {
        let moved = sum(after, bytes).checked_sub(sum(before, bytes))?;
        Some(moved as f64 * 8.0 / 1000.0 / ms as f64)
    };
    Some((rate(|member| member.received_bytes)?, rate(|member| member.sent_bytes)?))
}

/// The last lines of a log; empty where there is none.
fn last_lines(path: &Path) -> String {
    let end = ordinary::read_end(path, Links::Refuse, LOG_END).unwrap_or_default();
    let text = String::from_utf8_lossy(&end);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(LAST_CHANGES)..];
    last.iter().map(|line| format!("  {line}\n")).collect()
}

pub(super) fn history(args: &VpnHistoryArgs) -> Result<()> {
    let history = apply::history(&args.link.name, &folders(&args.link.folders))?;
    if args.json {
        return output::print_json(&history);
    }
    let now = |applied| if applied { "applied" } else { "" };
    #[rustfmt::skip]
    let table = Table::of(&history, &[
        (">configuration", &|entry| entry.generation.to_string()),
        ("applied on", &|entry| date(entry.at)),
        ("now", &|entry| now(entry.applied).to_owned()),
    ]);
    table.print()
}

#[cfg(test)]
mod tests {
    use millrace_vpn::link::Side;
    use millrace_vpn::supervise::MemberState;

    use super::*;

    fn status(at_ms: u64, bytes: [u64; 2]) -> LinkStatus {
        let member = |(number, bytes): (u16, u64)| MemberStatus {
            number,
            state: MemberState::Up,
            reason: String::new(),
            pid: None,
            rtt_us: None,
            lost_percent: 0,
            loses_long_packets: false,
            received_bytes: bytes,
            sent_bytes: bytes / 2,
            cpu_ms: None,
            restarts: 0,
        };
        LinkStatus {
            name: "mr".to_owned(),
            side: Side::A,
            state: LinkState::Up,
            generation: 1,
            at_ms,
            supervisor: 1,
            routed: Vec::new(),
            members: (0..).zip(bytes).map(member).collect(),
            certificate_until: None,
            confirm_within_ms: None,
        }
    }

    #[test]
    fn rates_are_those_of_all_members_between_two_statuses() {
        let before = status(1000, [0, 1_000_000]);
        let (received, sent) =
            rates(&before, &status(3000, [1_000_000, 2_000_000])).expect("rates");
        assert!((received - 8.0).abs() < 1e-9 && (sent - 4.0).abs() < 1e-9, "{received} {sent}");
        // The same status again, and a process that has restarted.
        assert_eq!(rates(&before, &before), None);
        assert_eq!(rates(&before, &status(3000, [0, 0])), None);
    }

    #[test]
    fn last_lines_of_a_log_are_the_newest_and_a_missing_one_has_none() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let text: String = (0..2000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(file.path(), text).expect("a file");
        let last = last_lines(file.path());
        assert_eq!(last.lines().count(), LAST_CHANGES);
        assert!(last.ends_with("  line 1999\n"), "{last}");
        assert_eq!(last_lines(Path::new("/nonexistent/supervisor.log")), "");
    }
}
