// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace pool`: the page of the pool, as text.

use anyhow::Result;
use millrace_manager::client::ManagerClient;
use millrace_service::overview::{BackendState, NodeRow, Overview, RowTotals, TenantLine};
use serde::de::DeserializeOwned;

use super::pool_key;
use crate::args::{ListArgs, PoolCommand};
use crate::manager_access::{client, to_exit_error};
use crate::output::{self, Table, joined, or};
use crate::page::facts;

pub(crate) fn run(command: &PoolCommand) -> Result<()> {
    match command {
        PoolCommand::Status(args) => status(args),
        PoolCommand::Key(command) => pool_key::run(command),
    }
}

fn status(args: &ListArgs) -> Result<()> {
    let client = client(&args.access)?;
    let mut overview: Overview = client.get("/v1/state").map_err(to_exit_error)?;
    complete(&client, &mut overview)?;
    if args.json.json {
        return output::print_json(&overview);
    }
    let figures = &overview.figures;
    let level = overview.verdict.level.name();
    #[rustfmt::skip]
    let rows = [
        ("verdict", format!("{level}: {}", overview.verdict.text)),
        ("operations", format!("{:.0} per second, {:.1} fail", figures.ops_per_s, figures.failed_per_s)),
        ("time in node", format!("p50 {:.0} µs, p99 {:.0} µs", figures.p50_us, figures.p99_us)),
        ("fallbacks", format!("{} in 5 minutes", share(figures.fallback_share))),
        ("capacity left", or(figures.capacity_left.map(share), "-")),
        ("cpu saved", format!("{} s per second (estimate)", hundredths(figures.cpu_saved))),
    ];
    output::print(&facts(&rows))?;
    output::print("\n")?;
    nodes(&overview).print()?;
    if overview.tenants.is_empty() {
        note!("no tenants: millrace tenant create NAME");
        return Ok(());
    }
    output::print("\n")?;
    tenants(&overview).print()
}

/// Fills the lists that the manager shortens, and says which rows it has not: a node reports its first keys and
/// clients.
fn complete(client: &ManagerClient, overview: &mut Overview) -> Result<()> {
    let RowTotals { tenants, clients, keys, .. } = overview.counted();
    fill(client, "tenants", tenants, &mut overview.tenants)?;
    fill(client, "clients", clients, &mut overview.clients)?;
    fill(client, "keys", keys, &mut overview.keys)?;
    let rest = [
        ("tenants", overview.tenants.len(), tenants, "millrace tenant list"),
        ("clients", overview.clients.len(), clients, "millrace status, at the nodes,"),
        ("keys", overview.keys.len(), keys, "millrace key list, at the nodes,"),
    ];
    for (what, shown, all, where_all) in rest.into_iter().filter(|(_, shown, all, _)| shown < all) {
        note!("{shown} of {all} {what} shown: {where_all} has all");
    }
    Ok(())
}

/// Reads all rows of a list, if the overview lacks some.
fn fill<T: DeserializeOwned>(
    client: &ManagerClient,
    list: &str,
    total: usize,
    rows: &mut Vec<T>,
) -> Result<()> {
    if rows.len() < total {
        *rows = client.list(&format!("/v1/state/{list}?limit=1000")).map_err(to_exit_error)?;
    }
    Ok(())
}

/// The backends of a node that compute.
fn ready(node: &NodeRow) -> String {
    let ready = node.backends.iter().filter(|row| row.state == BackendState::Ready);
    joined(ready.map(|row| &row.backend), "")
}

fn state(node: &NodeRow) -> String {
    if node.silent { format!("{}, silent", node.state) } else { node.state.to_string() }
}

#[rustfmt::skip]
fn nodes(overview: &Overview) -> Table {
    Table::of(&overview.nodes, &[
        ("node", &|node| node.name.clone()),
        ("state", &|node| state(node)),
        ("zone", &|node| node.zone.clone()),
        (">ops/s", &|node| format!("{:.0}", node.ops_per_s)),
        (">p99", &|node| format!("{:.0} µs", node.p99_us)),
        (">waiting", &|node| node.waiting.to_string()),
        (">conns", &|node| node.connections.to_string()),
        ("backends", &|node| ready(node)),
    ])
}

#[rustfmt::skip]
fn tenants(overview: &Overview) -> Table {
    Table::of(&overview.tenants, &[
        ("tenant", &|tenant| tenant.name.clone()),
        (">weight", &|tenant| tenant.weight.to_string()),
        ("priority", &|tenant| tenant.priority.name().to_owned()),
        (">quota", &|tenant| quota(tenant.quota_ops)),
        (">granted", &|tenant| granted(tenant)),
        (">used", &|tenant| format!("{:.0}", tenant.used_ops)),
        (">throttled", &|tenant| format!("{:.0}", tenant.throttled_per_s)),
        (">refused", &|tenant| format!("{:.0}", tenant.refused_per_s.ceil())),
        ("nodes", &|tenant| served(tenant)),
    ])
}

/// The part of a quota that the nodes may serve.
fn granted(tenant: &TenantLine) -> String {
    if tenant.quota_ops == 0.0 { "-".to_owned() } else { format!("{:.0}", tenant.granted_ops) }
}

/// The nodes of a tenant, and whether they are heard.
fn served(tenant: &TenantLine) -> String {
    let names = joined(&tenant.nodes, "");
    match (tenant.serving, tenant.nodes.is_empty()) {
        (0, true) => "no node".to_owned(),
        (0, false) => format!("{names} (not heard)"),
        _ => names,
    }
}

/// Operations per second, or the word for no limit.
fn quota(ops: f64) -> String {
    if ops == 0.0 { "no limit".to_owned() } else { format!("{ops:.0}") }
}

fn share(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Two decimals, without the sign of a value that rounds to zero.
fn hundredths(value: f64) -> String {
    format!("{:.2}", (value * 100.0).round() / 100.0 + 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_that_rounds_to_zero_has_no_sign() {
        assert_eq!(hundredths(-0.001), "0.00");
        assert_eq!(hundredths(-0.0), "0.00");
        assert_eq!(hundredths(-0.126), "-0.13");
        assert_eq!(hundredths(1.5), "1.50");
    }
}
