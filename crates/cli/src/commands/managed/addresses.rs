// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace tenant addresses`: the nodes that serve a tenant. With `--watch` it keeps a file with the addresses up to
//! date, which a gateway's configuration names.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use millrace_manager::api::TenantGrants;
use millrace_manager::client::ManagerClient;
use millrace_service::overview::NodeState;

use super::{limits, tenant_path};
use crate::args::TenantAddressesArgs;
use crate::manager_access::{client, to_exit_error};
use crate::output::{self, Table, joined};

/// Interval between two questions of `--watch`. A gateway that lost a node continues with the others in that time.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &TenantAddressesArgs) -> Result<()> {
    let client = client(&args.access)?;
    let source = match &args.name {
        Some(name) => format!("{}/grants", tenant_path(name)),
        None => "/v1/grants/self".to_owned(),
    };
    if let Some(file) = &args.watch {
        return watch(&client, &source, file);
    }
    let grants: TenantGrants = client.get(&source).map_err(to_exit_error)?;
    if args.json.json {
        return output::print_json(&grants);
    }
    table(&grants).print()?;
    if grants.short {
        note!("the nodes lack capacity for the full quota");
    }
    Ok(())
}

/// The nodes of a tenant.
#[rustfmt::skip]
pub(super) fn table(grants: &TenantGrants) -> Table {
    Table::of(&grants.nodes, &[
        ("node", &|row| row.node.to_string()),
        ("state", &|row| row.state.to_string()),
        ("addresses", &|row| joined(&row.addresses, "")),
        ("slice", &|row| limits(&row.slice)),
    ])
}

/// The pool of a gateway, as the file that `millrace_config` of its openssl.cnf names; empty without a node. Nodes that
/// are away stay in it while there is no other: a gateway that tries them costs nothing, and one with an empty pool
/// serves nothing.
fn pool_file(grants: &TenantGrants) -> String {
    let nodes = grants.nodes.iter();
    let mut addresses: BTreeSet<&String> = nodes
        .filter(|node| node.state == NodeState::Ready)
        .flat_map(|node| &node.addresses)
        .collect();
    if addresses.is_empty() {
        addresses = grants.nodes.iter().flat_map(|node| &node.addresses).collect();
    }
    if addresses.is_empty() {
        return String::new();
    }
    let endpoints = addresses.iter().map(|address| address.replacen("tcp://", "tcp:", 1));
    let endpoints: Vec<String> = endpoints.collect();
    format!("# Written by millrace tenant addresses --watch.\npool = {endpoints:?}\n")
}

/// Keeps `file` up to date. Returns only with an error of the first question: later ones are printed, and retried.
fn watch(client: &ManagerClient, source: &str, file: &Path) -> Result<()> {
    let first: TenantGrants = client.get(source).map_err(to_exit_error)?;
    let mut written = String::new();
    let mut grants = Some(first);
    loop {
        let text = grants.take().map(|grants| pool_file(&grants));
        // An empty answer would take the last node from a gateway that still works.
        if let Some(text) = text.filter(|text| !text.is_empty() && *text != written) {
            output::replace(file, &text)?;
            note!("{} is written", file.display());
            written = text;
        }
        thread::sleep(WATCH_INTERVAL);
        match client.get(source) {
            Ok(answer) => grants = Some(answer),
            Err(error) => note!("{error}; {} stays as it is", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_manager::api::GrantedNode;
    use millrace_manager::model::tenant::Quota;

    use super::*;

    #[test]
    fn pool_file_has_the_ready_nodes_or_all_where_none_is_ready() {
        let node = |name: &str, state| GrantedNode {
            node: name.parse().unwrap(),
            state,
            addresses: BTreeSet::from([format!("tcp://{name}:7400")]),
            slice: Quota::default(),
        };
        let mut grants = TenantGrants {
            tenant: "acme".parse().unwrap(),
            nodes: vec![
                node("b", NodeState::Ready),
                node("a", NodeState::Ready),
                node("c", NodeState::Away),
            ],
            short: false,
        };
        let ready = "pool = [\"tcp:a:7400\", \"tcp:b:7400\"]";
        assert_eq!(pool_file(&grants).lines().last(), Some(ready));
        for node in &mut grants.nodes {
            node.state = NodeState::Away;
        }
        assert_eq!(pool_file(&grants).matches("tcp:").count(), 3);
        grants.nodes.clear();
        assert_eq!(pool_file(&grants), "");
    }
}
