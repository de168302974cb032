// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The status of a link and its history, as tables and JSON.

use std::io;
use std::thread;

use anyhow::Result;
use millrace_vpn::apply::{self, ApplyError};
use millrace_vpn::supervise::{LinkState, LinkStatus, MemberStatus, StateChange, read_status};

use super::folders;
use crate::args::{VpnHistoryArgs, VpnNameArgs, VpnStatusArgs, VpnWatchArgs};
use crate::exit::{Failure, fail};
use crate::output::{self, Table, date, or};
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
/// The link is not up; or no supervisor runs, so that the newest status may be old.
fn read(link: &VpnNameArgs) -> Result<LinkStatus> {
    let folders = folders(&link.folders);
    let name = &link.name;
    let status =
        read_status(&folders.run_of(name)).ok_or_else(|| ApplyError::NotUp(name.clone()))?;
    if !apply::is_supervised(name, &folders) {
        let message = format!(
            "link {name} has no supervisor; its tunnels run on: millrace vpn up LINK.TOML starts one"
        );
        return Err(fail(Failure::Failed, message));
    }
    Ok(status)
}

fn page(status: &LinkStatus) -> String {
    let state = match status.state {
        LinkState::Up => "up",
        LinkState::Degraded => "degraded",
        LinkState::Down => "down",
    };
    let mut text = format!(
        "link {}, end {}: {state}, configuration {}\n",
        status.name,
        status.side.name(),
        status.generation
    );
    if let Some(left) = status.confirm_within_ms {
        text.push_str(&format!(
            "the former configuration comes back in {} s unless the other end is reached\n",
            left / 1000
        ));
    }
    text.push('\n');
    text.push_str(&members(&status.members).render(styled(&io::stdout()), columns()));
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

/// A change as a line of the supervisor's log.
pub(super) fn change(change: &StateChange) -> String {
    let noticed = change.noticed_after_ms.map(|ms| format!(" (noticed after {ms} ms)"));
    format!(
        "member {} is {}: {}{}",
        change.member,
        change.state.name(),
        change.reason,
        noticed.unwrap_or_default()
    )
}

pub(super) fn watch(args: &VpnWatchArgs) -> Result<()> {
    let clear = if styled(&io::stdout()) { "\x1b[H\x1b[2J" } else { "" };
    let mut shown = 0;
    loop {
        output::print(&format!("{clear}{}", page(&read(&args.link)?)))?;
        shown += 1;
        if args.count.is_some_and(|count| shown >= count) {
            return Ok(());
        }
        thread::sleep(args.interval);
    }
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
