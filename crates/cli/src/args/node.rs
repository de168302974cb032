// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace node`.

use clap::{Args, Subcommand};
use millrace_manager::model::name::{NodeName, Zone};

use super::manage::{AccessArgs, ClassRateArg, ListArgs, class_rate};
use super::{DryRunArg, UpArgs};

/// Run a node of a managed pool, or look after its nodes
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    Run(Box<NodeRunArgs>),
    /// List the nodes
    #[command(after_long_help = "Example:\n  millrace node list")]
    List(ListArgs),
    /// Move all tenants away from a node
    #[command(after_long_help = "Example:\n  millrace node drain node-1 --dry-run")]
    Drain(NodeChangeArgs),
    /// Let a node take tenants again
    #[command(after_long_help = "Example:\n  millrace node undrain node-1")]
    Undrain(NodeNameArgs),
    /// Remove a node: it loses its slices and keys, and cannot register again
    #[command(after_long_help = "Example:\n  millrace node remove node-1 --dry-run")]
    Remove(NodeChangeArgs),
    /// Let a removed node register again
    #[command(after_long_help = "Example:\n  millrace node readmit node-1")]
    Readmit(NodeNameArgs),
}

const RUN_EXAMPLE: &str = "\
Examples:
  millrace node run --access node-1.access --name node-1
  millrace node run --config /etc/millrace/node.toml
  millrace node run --listen-tcp 0.0.0.0:7400 --advertise tcp:node-1:7400

The node measures its capacity at the first start, registers at a manager, and
serves the tenants for which it gets grants. Without a manager it continues:
with its grants until they expire, and then with a quarter of each.";

const CHECK: &str = "\
Check the configuration and exit: 0 if the node would take it, else 2

Prints every wrong value of the configuration file and of the flags; an unknown key or a value of the wrong type is \
reported alone, first. Also reads the access file and the certificates of the TCP listener. Asks no manager, starts \
and changes nothing.";

/// Run a node of a managed pool
///
/// Section `[manager]` of the configuration file can name the managers, and the
/// addresses, zone and capacity of the node.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = RUN_EXAMPLE, mut_arg("check", |check| check.long_help(CHECK)))]
pub(crate) struct NodeRunArgs {
    #[command(flatten)]
    pub(crate) up: UpArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// Address for gateways, tcp:HOST:PORT; repeatable [default: the TCP listener's]
    #[arg(long, value_name = "ENDPOINT", hide_short_help = true)]
    pub(crate) advertise: Vec<String>,
    /// Label of the node's place: rack, room, region
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<Zone>,
    /// Capacity in operations per second, instead of a measurement
    #[arg(long, value_name = "CLASS=N,…", value_delimiter = ',', value_parser = class_rate, hide_short_help = true)]
    pub(crate) capacity: Vec<ClassRateArg>,
}

/// For every command about one node.
#[derive(Debug, Args)]
pub(crate) struct NodeNameArgs {
    /// Name of the node
    pub(crate) name: NodeName,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
}

/// For the commands that take tenants from a node.
#[derive(Debug, Args)]
pub(crate) struct NodeChangeArgs {
    #[command(flatten)]
    pub(crate) node: NodeNameArgs,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
}
