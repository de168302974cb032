// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench pool`.

use clap::Args;
use millrace_operation::OperationKind;

use crate::options::{
    LoadCoreArg, MAX_CONNECTIONS, MAX_IN_FLIGHT, MAX_ROUNDS, duration, number, operation,
};
use crate::report::{ReportArgs, SvgArg};

/// The operations that `bench pool` measures by default.
pub(crate) const POOL_OPERATIONS: [OperationKind; 5] = [
    OperationKind::RsaPkcs1Sign,
    OperationKind::RsaPssSign,
    OperationKind::EcdsaSign,
    OperationKind::Ed25519Sign,
    OperationKind::X25519,
];

const POOL_EXAMPLE: &str = include_str!("../../texts/help-pool.txt");

/// Measure operations through a node, against the library called directly
///
/// Interleaved rounds on pinned cores: the library called directly, and the
/// same operations through a node over its unix socket, pipelined and one at
/// a time. Outputs are checked in every round; a wrong one ends the run.
/// With --fairness, --tenants or --overload: latencies beside a flood, quotas,
/// and more load than the node can take.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = POOL_EXAMPLE,
    mut_arg("svg", |svg| svg.requires("overload").hide_short_help(true))
)]
pub struct PoolArgs {
    /// Operations to measure, separated by commas [default: five common ones]
    ///
    /// Default: rsa-pkcs1-sign,rsa-pss-sign,ecdsa-sign,ed25519-sign,x25519
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = operation(), hide_possible_values = true, default_values_t = POOL_OPERATIONS, hide_default_value = true)]
    pub(crate) operations: Vec<OperationKind>,
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time per measurement
    #[arg(long = "duration", value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) seconds: f64,
    /// Jobs in flight
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = number(1..=MAX_IN_FLIGHT))]
    pub(crate) window: usize,
    /// Jobs in flight for the table of latencies, separated by commas [default: 1,4,16,64,256]
    #[arg(hide_short_help = true, long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256], hide_default_value = true, value_parser = number(1..=MAX_IN_FLIGHT))]
    pub(crate) depths: Vec<usize>,
    /// Worker threads of the node, separated by commas [default: 1 and one for each core]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = number(1..=MAX_CONNECTIONS))]
    pub(crate) workers: Vec<usize>,
    /// Node to use, unix:PATH [default: a private one]
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) pool: Option<String>,
    /// Connect to the private node over TCP with mutual TLS 1.3 on loopback, not over its unix socket
    #[arg(long, conflicts_with = "pool")]
    pub(crate) tcp: bool,
    /// Measure the latency of one identity while another floods the node, instead of throughput
    #[arg(long, conflicts_with_all = ["tenants", "overload"])]
    pub(crate) fairness: bool,
    /// Measure a tenant that offers ten times its quota, beside another tenant's single jobs
    #[arg(long, conflicts_with_all = ["pool", "overload"])]
    pub(crate) tenants: bool,
    /// Measure goodput and latency from a tenth of the peak load to five times as much
    #[arg(long, conflicts_with = "pool")]
    pub(crate) overload: bool,
    #[command(flatten)]
    pub(crate) plot: SvgArg,
    /// Connections of the identity that floods
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 40, requires = "fairness", value_parser = number(1..=MAX_CONNECTIONS))]
    pub(crate) flood_connections: usize,
    /// Jobs in flight on each connection of the flood
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 250, requires = "fairness", value_parser = number(1..=MAX_IN_FLIGHT))]
    pub(crate) flood_jobs: usize,
    /// Core of the node and of the direct calls [default: the first usable one]
    #[arg(hide_short_help = true, long, value_name = "CORE")]
    pub(crate) node_core: Option<usize>,
    #[command(flatten)]
    pub(crate) load: LoadCoreArg,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
