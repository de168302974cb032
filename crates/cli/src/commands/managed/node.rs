// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace node`: runs a node of a managed pool ([`millrace_manager::managed_node`]), or looks after the nodes.

use anyhow::Result;
use millrace_manager::api::NodeView;
use millrace_manager::client::{Condition, Write, escaped};
use millrace_manager::model::name::NodeName;

use super::changes::{keys_of, print_losses};
use super::print_list;
use crate::args::{ListArgs, NodeChangeArgs, NodeCommand, NodeNameArgs, NodeRunArgs};
use crate::manager_access::{client, to_exit_error};
use crate::output::{Table, joined, or};
use crate::processes::member;
use crate::processes::node::{self, Managers};
use crate::settings::Settings;

pub(crate) fn run(command: &NodeCommand) -> Result<()> {
    match command {
        NodeCommand::Run(args) => run_node(args),
        NodeCommand::List(args) => list(args),
        NodeCommand::Drain(args) => drain(args),
        NodeCommand::Undrain(args) => act(args, "undrain", "takes tenants again"),
        NodeCommand::Remove(args) => remove(args),
        NodeCommand::Readmit(args) => act(args, "readmit", "may register again"),
    }
}

fn run_node(args: &NodeRunArgs) -> Result<()> {
    if args.up.check {
        let settings = Settings::for_member(args)?;
        member::check(&settings.node, &settings.node.manager)?;
        return node::check(&settings, &args.up);
    }
    let args = args.clone();
    node::serve(move || Settings::for_member(&args), &Managers::Elsewhere)
}

fn list(args: &ListArgs) -> Result<()> {
    let nodes: Vec<NodeView> = client(&args.access)?.list("/v1/nodes").map_err(to_exit_error)?;
    if args.json.json {
        return print_list(nodes);
    }
    #[rustfmt::skip]
    let table = Table::of(&nodes, &[
        ("node", &|row| row.name.to_string()),
        ("state", &|row| row.state.to_string()),
        ("zone", &|row| or(row.node.registration.zone.as_ref(), "")),
        (">ops/s", &|row| row.node.load.ops_per_second.to_string()),
        (">busy", &|row| percent(u64::from(row.node.load.busy_ppm))),
        (">free", &|row| percent(row.free_ppm)),
        (">tenants", &|row| row.tenants.len().to_string()),
        ("addresses", &|row| joined(&row.node.registration.addresses, "")),
        ("version", &|row| row.node.registration.version.clone()),
    ]);
    table.print()
}

/// Parts per million as per cent.
fn percent(ppm: u64) -> String {
    format!("{} %", ppm / 10_000)
}

fn path(name: &NodeName) -> String {
    format!("/v1/nodes/{}", escaped(name.as_str()))
}

fn drain(args: &NodeChangeArgs) -> Result<()> {
    if args.plan.dry_run {
        let view = view(&args.node)?;
        let done = format!("move these tenants from {} to other nodes", view.name);
        return print_losses(&done, view.tenants.iter().map(ToString::to_string));
    }
    act(&args.node, "drain", "moves its tenants to other nodes")
}

fn act(args: &NodeNameArgs, what: &str, meaning: &str) -> Result<()> {
    let client = client(&args.access)?;
    let to = format!("{}/{what}", path(&args.name));
    client.write::<()>(Write::Post, &to, Condition::None, &()).map_err(to_exit_error)?;
    note!("node {} {meaning}", args.name);
    Ok(())
}

fn remove(args: &NodeChangeArgs) -> Result<()> {
    let NodeNameArgs { name, access } = &args.node;
    let client = client(access)?;
    if args.plan.dry_run {
        let view = view(&args.node)?;
        let keys = keys_of(&client, |tenant| view.tenants.contains(tenant))?;
        let slices = view.tenants.iter().map(|tenant| format!("slice of tenant {tenant}"));
        let keys = keys.iter().map(|key| format!("key {}", key.name));
        return print_losses(&format!("remove node {name}"), slices.chain(keys));
    }
    client.write::<()>(Write::Delete, &path(name), Condition::None, &()).map_err(to_exit_error)?;
    note!("node {name} is removed: it loses its slices and keys");
    Ok(())
}

fn view(args: &NodeNameArgs) -> Result<NodeView> {
    client(&args.access)?.get(&path(&args.name)).map_err(to_exit_error)
}
