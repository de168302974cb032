// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace status`: queries the node over its status socket. With `--json` it prints the answer unchanged;
//! for the page it queries twice and converts the differences to rates.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use millrace_service::client_reports::{EdgeCounts, EdgeRow};
use millrace_service::status::{ChoiceRow, DeviceRow, OperationRow, Sessions, Status, TenantRow};

use crate::args::{SocketArg, StatusArgs};
use crate::commands::{ask_nodes, compression};
use crate::exit::{Failure, fail};
use crate::node_socket::get;
use crate::output::{self, Table, joined, or};
use crate::page::facts;
use crate::settings::Settings;

/// Time over which rates are measured: long enough for a useful average, short enough to wait for.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    if let Some(file) = &args.gateway {
        return ask_nodes::status(file, args.user.as_deref(), args.json);
    }
    let settings = Settings::for_status(args)?;
    if args.sessions {
        return list_sessions(&settings, args.json);
    }
    let Some(socket) = settings.node.status_socket.as_deref() else {
        return Err(fail(Failure::Usage, "the configuration turns the status socket off"));
    };
    if args.json {
        let body = get(socket, "/status")?;
        let value: serde_json::Value =
            serde_json::from_slice(&body).context("the node's answer is not JSON")?;
        return output::print_json(&value);
    }
    let before = Sample::take(socket)?;
    thread::sleep(INTERVAL);
    let after = Sample::take(socket)?;
    output::print(&page(&after.status))?;
    if after.status.operations.is_empty() {
        note!("no operations yet");
    }
    let Status { choices: chosen, edges: clients, edge_clients, .. } = &after.status;
    if clients.len() < *edge_clients {
        let shown = clients.len();
        note!("{shown} of {edge_clients} clients that report are shown, the busiest");
    }
    let tables = [
        table(&before, &after),
        devices(&before, &after),
        choices(chosen),
        tenants(&before, &after),
        edges(clients),
        machines(clients),
    ];
    let compressed = compression::section();
    let all = tables.iter().chain(&compressed);
    for table in all.filter(|table| !table.is_empty()) {
        output::print("\n")?;
        table.print()?;
    }
    Ok(())
}

/// The status of the node with this socket; `None` if there is no node, or this user may not ask it.
pub(super) fn status_of(socket: &SocketArg) -> Option<Status> {
    let settings = Settings::for_socket(socket).ok()?;
    let socket = settings.node.status_socket?;
    serde_json::from_slice(&get(&socket, "/status").ok()?).ok()
}

/// Prints the open sessions of the node.
fn list_sessions(settings: &Settings, json: bool) -> Result<()> {
    let Some(admin) = &settings.node.admin else {
        let reason = "the configuration turns the administration socket off";
        return Err(fail(Failure::Usage, reason));
    };
    let body = get(&admin.socket, "/sessions")?;
    let listed: Sessions = serde_json::from_slice(&body)
        .context("the node's answer is not understood: is it of another version?")?;
    if json {
        return output::print_json(&listed);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    #[rustfmt::skip]
    let table = Table::of(&listed.sessions, &[
        (">session", &|row| row.session.to_string()),
        ("client", &|row| row.identity.clone()),
        ("agent", &|row| row.agent.clone()),
        (">open for", &|row| duration(now.saturating_sub(row.since))),
        (">in flight", &|row| row.in_flight.to_string()),
    ]);
    table.print()
}

struct Sample {
    at: Instant,
    status: Status,
}

impl Sample {
    fn take(socket: &Path) -> Result<Self> {
        let body = get(socket, "/status")?;
        let status = serde_json::from_slice(&body)
            .context("the node's answer is not understood: is it of another version?")?;
        Ok(Self { at: Instant::now(), status })
    }

    /// Per second, from what was counted at this sample to what is counted at `later`.
    fn rate(&self, later: &Self, counted: impl Fn(&Status) -> Option<u64>) -> String {
        let [before, after] = [self, later].map(|sample| counted(&sample.status).unwrap_or(0));
        let elapsed = later.at.duration_since(self.at).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a count of one second, far below 2^52")]
        let rate = after.saturating_sub(before) as f64 / elapsed;
        format!("{rate:.0}")
    }
}

/// One fact per line.
#[rustfmt::skip]
fn page(status: &Status) -> String {
    let backends = status.backends.iter().map(|row| {
        let state = match (&row.unusable, row.quarantined, &row.away, &row.queue_refused) {
            (Some(reason), ..) => format!("not usable: {reason}"),
            (None, true, ..) => "quarantined".to_owned(),
            (None, false, Some(reason), _) => format!("away: {reason}"),
            (None, false, None, Some(reason)) => format!("no queue at present: {reason}"),
            (None, false, None, None) => row.version.clone(),
        };
        format!("{} ({state})", row.backend)
    });
    let waiting: usize = status.waiting.iter().map(|class| class.jobs).sum();
    let broken = match status.keys_broken {
        0 => String::new(),
        broken => format!(" ({broken} files cannot be used, see the log)"),
    };
    let errors = status.errors.iter().map(|error| format!("{} {}", error.jobs, error.reason));
    facts(&[
        ("node", format!("{} ({}, version {})", status.node, status.state, status.version)),
        ("uptime", duration(status.uptime_seconds)),
        ("keys", format!("{}{broken}", status.keys)),
        ("connections", status.connections.to_string()),
        ("in flight", format!("{} ({waiting} waiting)", status.in_flight)),
        ("backends", joined(backends, "")),
        ("errors", joined(errors, "none")),
    ])
}

#[rustfmt::skip]
fn table(before: &Sample, after: &Sample) -> Table {
    let completed = |status: &Status, of: &OperationRow| {
        let same = |row: &&OperationRow| row.backend == of.backend && row.operation == of.operation;
        status.operations.iter().find(same).map(|row| row.completed)
    };
    Table::of(&after.status.operations, &[
        ("operation", &|row| row.operation.clone()),
        ("backend", &|row| row.backend.clone()),
        (">completed", &|row| row.completed.to_string()),
        (">per second", &|row| before.rate(after, |status| completed(status, row))),
        (">failed", &|row| row.failed.to_string()),
        (">queue p50", &|row| microseconds(row.queue_p50_us)),
        (">queue p99", &|row| microseconds(row.queue_p99_us)),
        (">service p50", &|row| microseconds(row.service_p50_us)),
        (">service p99", &|row| microseconds(row.service_p99_us)),
    ])
}

/// The devices of backends that tell them apart, such as the instances of QAT cards.
#[rustfmt::skip]
fn devices(before: &Sample, after: &Sample) -> Table {
    let all = |status: &Status| -> Vec<(String, DeviceRow)> {
        let backends = status.backends.iter();
        let devices = backends.flat_map(|row| row.devices.iter().map(|device| (row.backend.clone(), device.clone())));
        devices.collect()
    };
    let served = |status: &Status, of: &DeviceRow| {
        all(status).iter().find(|(_, device)| device.device == of.device).map(|(_, device)| device.served)
    };
    Table::of(&all(&after.status), &[
        ("device", &|(_, row)| row.device.clone()),
        ("backend", &|(backend, _)| backend.clone()),
        ("serving", &|(_, row)| if row.serving { "yes" } else { "no" }.to_owned()),
        (">in flight", &|(_, row)| format!("{} of {}", row.in_flight, row.capacity)),
        (">served", &|(_, row)| row.served.to_string()),
        (">per second", &|(_, row)| before.rate(after, |status| served(status, row))),
        (">full", &|(_, row)| row.full.to_string()),
        (">wrong", &|(_, row)| row.faults.to_string()),
        (">lost", &|(_, row)| row.lost.to_string()),
        (">restarts", &|(_, row)| row.restarts.to_string()),
    ])
}

/// Chosen backend and measured costs, for each kind of job that several backends can serve.
#[rustfmt::skip]
fn choices(choices: &[ChoiceRow]) -> Table {
    let costs = |row: &ChoiceRow| {
        let costs = row.costs.iter();
        joined(costs.map(|cost| format!("{} {}", cost.backend, microseconds(cost.us))), "")
    };
    Table::of(choices, &[
        ("jobs", &|row| row.jobs.clone()),
        (">together", &|row| or(row.max_batch.map(|most| format!("≤ {most}")), "more")),
        ("served by", &|row| row.serving.clone()),
        ("cost of one, by backend", &|row| costs(row)),
        (">changes", &|row| row.switches.to_string()),
    ])
}

/// Limits and usage of each tenant.
#[rustfmt::skip]
fn tenants(before: &Sample, after: &Sample) -> Table {
    let admitted = |status: &Status, of: &TenantRow| {
        let mut rows = status.tenants.iter();
        rows.find(|row| row.tenant == of.tenant).map(|row| row.admitted)
    };
    let quota = |ops: u64| Some(ops).filter(|ops| *ops > 0);
    let grant = |row: &TenantRow| {
        let mut grants = after.status.grants.iter().flatten();
        let grant = grants.rfind(|grant| grant.tenant == row.tenant)?;
        let state = if grant.expired { "expired, safe share" } else { "in force" };
        Some(format!("{state}, revision {}", grant.revision))
    };
    Table::of(&after.status.tenants, &[
        ("tenant", &|row| row.tenant.clone()),
        (">weight", &|row| row.weight.to_string()),
        ("priority", &|row| row.priority.name().to_owned()),
        (">ops/s", &|row| before.rate(after, |status| admitted(status, row))),
        (">of", &|row| or(quota(row.rates.ops.per_second), "no limit")),
        (">in flight", &|row| row.in_flight.to_string()),
        (">completed", &|row| row.completed.to_string()),
        (">throttled", &|row| row.throttled.iter().map(|rate| rate.jobs).sum::<u64>().to_string()),
        (">busy", &|row| row.shed.saturating_add(row.over_bounds).to_string()),
        (">queue p99", &|row| microseconds(row.queue_p99_us)),
        ("grant", &|row| or(grant(row), "-")),
    ])
}

/// The counters that the clients report.
#[rustfmt::skip]
fn edges(edges: &[EdgeRow]) -> Table {
    let hedged = |counts: &EdgeCounts| counts.hedges_won.saturating_add(counts.hedges_lost);
    Table::of(edges, &[
        ("client", &|row| row.identity.clone()),
        ("agent", &|row| row.agent.clone()),
        (">conns", &|row| row.connections.to_string()),
        (">jobs", &|row| row.counts.jobs().to_string()),
        (">async", &|row| percentage(row.counts.paused, row.counts.jobs())),
        (">hedged", &|row| hedged(&row.counts).to_string()),
        (">wrong", &|row| row.counts.wrong_results.to_string()),
        ("fallbacks", &|row| fallbacks(&row.counts)),
    ])
}

/// Operations that virtio-crypto devices among the clients did for their machines.
#[rustfmt::skip]
fn machines(edges: &[EdgeRow]) -> Table {
    let sum = |row: &EdgeRow, is_in: &dyn Fn(&str) -> bool| {
        let counters = row.counts.device.iter().filter(|(name, _)| is_in(name));
        counters.fold(0, |sum: u64, (_, count)| sum.saturating_add(*count)).to_string()
    };
    let devices = edges.iter().filter(|row| !row.counts.device.is_empty());
    Table::of(devices, &[
        ("client", &|row| row.identity.clone()),
        ("device", &|row| row.agent.clone()),
        (">sign", &|row| sum(row, &|name| name == "asym-sign-ops")),
        (">decrypt", &|row| sum(row, &|name| name == "asym-decrypt-ops")),
        (">public", &|row| sum(row, &|name| ["asym-encrypt-ops", "asym-verify-ops"].contains(&name))),
        (">symmetric", &|row| sum(row, &|name| !name.starts_with("asym") && name.ends_with("-ops"))),
        (">bytes", &|row| sum(row, &|name| name.ends_with("-bytes"))),
    ])
}

/// Number of fallbacks, with the reasons, the most frequent first.
fn fallbacks(counts: &EdgeCounts) -> String {
    let mut reasons: Vec<_> = counts.fallbacks.iter().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.jobs));
    let reasons = reasons.iter();
    joined(reasons.map(|reason| format!("{} {}", reason.jobs, reason.reason)), "none")
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
