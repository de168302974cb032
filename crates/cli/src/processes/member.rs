// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A node's way into a pool with managers: its access, its name there, and its capacity.

use std::fs;

use anyhow::{Error, Result};
use millrace_engine::Engine;
use millrace_manager::client::ManagerClient;
use millrace_manager::managed_node::{
    ManagedNode, ManagedNodeError, NodeFolder, NodeProfile, capacity,
};
use millrace_manager::model::name::{NodeName, Zone};
use millrace_server::config::MembershipConfig;
use millrace_server::config::NodeConfig;

use crate::exit::{ContextCode, Failure, fail};
use crate::manager_access::{self, to_exit_error};
use crate::progress;

/// Checks all that a node needs to join, and asks no manager.
///
/// # Errors
/// The access file, the name or the zone cannot be used.
pub(crate) fn check(node: &NodeConfig, membership: &MembershipConfig) -> Result<()> {
    name(node)?;
    zone(membership)?;
    client(membership).map(drop)
}

/// Reads the access, takes the lock of the state folder and measures the capacity. `engine` makes an engine as the
/// node's, for the measurement.
///
/// # Errors
/// As [`check`]; the state folder cannot be used, or the measurement fails.
pub(super) fn prepare(
    node: &NodeConfig,
    membership: &MembershipConfig,
    engine: impl Fn() -> Result<Engine>,
) -> Result<ManagedNode> {
    let name = name(node)?;
    let zone = zone(membership)?;
    let client = client(membership)?;
    let folder = node.store.directory.with_file_name("node");
    let folder = NodeFolder::lock(&folder).map_err(folder_exit_error)?;
    let workers = node.engine.workers;
    let measure = || -> Result<_, ManagedNodeError> {
        let engine = || engine().map_err(Into::into);
        let measured =
            progress::while_doing("measuring the capacity", || capacity::measure(workers, engine));
        Ok(measured?)
    };
    let capacity = if membership.capacity.is_empty() {
        folder.capacity(&machine(node, workers), measure).map_err(folder_exit_error)?
    } else {
        membership.capacity.clone()
    };
    let addresses = membership.advertise.iter().map(|text| text.replacen("tcp:", "tcp://", 1));
    let profile = NodeProfile { name, addresses: addresses.collect(), zone, capacity };
    Ok(ManagedNode::new(client, folder, profile))
}

fn client(membership: &MembershipConfig) -> Result<ManagerClient> {
    let access = manager_access::read(membership.access.as_deref(), &membership.managers)?;
    ManagerClient::new(&access).map_err(to_exit_error)
}

fn name(node: &NodeConfig) -> Result<NodeName> {
    node.name.parse().or_fail(Failure::Usage, || "--name".to_owned())
}

fn zone(membership: &MembershipConfig) -> Result<Option<Zone>> {
    let zone = membership.zone.as_ref().map(|zone| zone.parse()).transpose();
    zone.or_fail(Failure::Usage, || "manager.zone".to_owned())
}

fn folder_exit_error(error: ManagedNodeError) -> Error {
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
