// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace node`: runs a node of a managed pool ([`millrace_manager::managed_node`]), or looks after the nodes.

use std::fs;

use anyhow::{Error, Result};
use millrace_engine::Engine;
use millrace_manager::api::NodeView;
use millrace_manager::client::{Condition, ManagerClient, Write, escaped};
use millrace_manager::managed_node::{
    ManagedNode, ManagedNodeError, NodeFolder, NodeProfile, capacity,
};
use millrace_manager::model::name::NodeName;
use millrace_server::config::NodeConfig;

use super::{access, client, coded, print_list};
use crate::args::{ListArgs, NodeArgs, NodeCommand, NodeNameArgs, NodeRunArgs};
use crate::commands::up;
use crate::exit::{ContextCode, Failure, fail};
use crate::output::{Table, joined, or};
use crate::progress;
use crate::settings::Settings;

pub(crate) fn run(args: &NodeArgs) -> Result<()> {
    match &args.command {
        None => run_node(&args.run),
        Some(NodeCommand::Run(args)) => run_node(args),
        Some(NodeCommand::List(args)) => list(args),
        Some(NodeCommand::Drain(args)) => act(args, "drain", "moves its tenants to other nodes"),
        Some(NodeCommand::Undrain(args)) => act(args, "undrain", "takes tenants again"),
        Some(NodeCommand::Readmit(args)) => act(args, "readmit", "may register again"),
        Some(NodeCommand::Remove(args)) => remove(args),
    }
}

fn run_node(args: &NodeRunArgs) -> Result<()> {
    if args.up.check {
        access(&args.access)?;
        return up::check(&args.up);
    }
    up::serve_as(&args.up, Some(args), None)
}

/// Reads the access, takes the lock of the state folder and measures the capacity. `engine` makes an engine as the
/// node's, for the measurement.
///
/// # Errors
/// The access file or the state folder cannot be used, or the measurement fails.
pub(crate) fn prepare(
    args: &NodeRunArgs,
    settings: &Settings,
    engine: impl Fn() -> Result<Engine>,
) -> Result<ManagedNode> {
    let node = &settings.node;
    let name: NodeName = node.name.parse().or_fail(Failure::Usage, || "--name".to_owned())?;
    let client = ManagerClient::new(&access(&args.access)?).map_err(coded)?;
    let folder = node.store.directory.with_file_name("node");
    let folder = NodeFolder::lock(&folder).map_err(coded_of_folder)?;
    let workers = node.engine.workers;
    let measure = || -> Result<_, ManagedNodeError> {
        let engine = || engine().map_err(Into::into);
        let measured =
            progress::while_doing("measuring the capacity", || capacity::measure(workers, engine));
        Ok(measured?)
    };
    let capacity = match args.capacity.as_slice() {
        [] => folder.capacity(&machine(node, workers), measure).map_err(coded_of_folder)?,
        given => given.iter().map(|row| (row.class, row.ops)).collect(),
    };
    let profile = NodeProfile {
        name,
        addresses: args.advertise.iter().map(|text| text.replacen("tcp:", "tcp://", 1)).collect(),
        zone: args.zone.clone(),
        capacity,
    };
    Ok(ManagedNode::new(client, folder, profile))
}

fn coded_of_folder(error: ManagedNodeError) -> Error {
    match error {
        ManagedNodeError::Locked(_) => fail(Failure::Usage, error.to_string()),
        other => Error::new(other),
    }
}

/// Facts on which a measurement of the capacity depends, in one line.
fn machine(node: &NodeConfig, workers: usize) -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.unwrap_or_default().trim_start_matches([' ', '\t', ':']);
    format!("{} | {model} | {workers} workers | {:?}", env!("CARGO_PKG_VERSION"), node.backends)
}

fn list(args: &ListArgs) -> Result<()> {
    let nodes: Vec<NodeView> = client(&args.access)?.list("/v1/nodes").map_err(coded)?;
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

fn path(args: &NodeNameArgs) -> String {
    format!("/v1/nodes/{}", escaped(args.name.as_str()))
}

fn act(args: &NodeNameArgs, what: &str, meaning: &str) -> Result<()> {
    let client = client(&args.access)?;
    let to = format!("{}/{what}", path(args));
    client.write::<()>(Write::Post, &to, Condition::None, &()).map_err(coded)?;
    eprintln!("node {} {meaning}", args.name);
    Ok(())
}

fn remove(args: &NodeNameArgs) -> Result<()> {
    let client = client(&args.access)?;
    client.write::<()>(Write::Delete, &path(args), Condition::None, &()).map_err(coded)?;
    eprintln!("node {} is removed: it loses its slices and keys", args.name);
    Ok(())
}
