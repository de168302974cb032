// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench manager`.

use clap::Args;

use crate::options::number;
use crate::report::ReportArgs;

/// Bound on the nodes of the simulated pool: what a manager takes.
const MAX_NODES: usize = 10_000;

/// Bound on the grants: two for each tenant that a manager takes.
const MAX_GRANTS: usize = 200_000;

const MANAGER_EXAMPLE: &str = include_str!("../../texts/help-manager.txt");

/// Measure placement in a large pool, and the traffic of its etcd
///
/// Simulated nodes in this process: how long a manager takes to place a
/// tenant, to move the tenants of a node that has left, and to answer a
/// heartbeat. With --store also heartbeats over a real etcd, with the bytes
/// that etcd counts. Every division is verified.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = MANAGER_EXAMPLE)]
pub struct ManagerBenchArgs {
    /// Nodes of the simulated pool
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = number(1..=MAX_NODES))]
    pub(crate) nodes: usize,
    /// Grants of the simulated pool, two for each tenant
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = number(1..=MAX_GRANTS))]
    pub(crate) grants: usize,
    /// Tenants whose placement is measured, the last ones
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = number(1..=MAX_GRANTS))]
    pub(crate) placements: usize,
    /// An empty etcd for the traffic, etcd://HOST:PORT
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,
    /// Numbers of nodes for the traffic, separated by commas [default: 50,100,200,400]
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [50, 100, 200, 400], hide_default_value = true, value_parser = number(1..=MAX_NODES), requires = "store")]
    pub(crate) traffic_nodes: Vec<usize>,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
