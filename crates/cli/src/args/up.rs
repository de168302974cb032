// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace up`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use millrace_operation::BackendKind;
use millrace_server::config::{LogFormat, MAX_WORKERS, Pin, WorkerPriority};

use super::{SocketArg, StoreArgs, named, number, socket_address, time_within};

const SOCKETS: &str = "Sockets";
const WORKERS: &str = "Workers";
const LOG: &str = "Log";

const UP_EXAMPLE: &str = "\
Examples:
  millrace up
  millrace up --listen-tcp 0.0.0.0:7400 --name node-1.example.net
  millrace up --config /etc/millrace/node.toml
  millrace up --with-manager

SIGTERM drains: the node takes no new work, finishes what it has, tells its
clients to go elsewhere, and exits 0. SIGHUP reads keys, certificates and the
configuration file again; limits, quotas, identities and the log filter hold
at once, also for open connections. `millrace up --check` finds mistakes first.

In a pool with a manager, `millrace node run` runs a node.";

/// Run a node: serve private-key operations to gateways
///
/// Everything is embedded. Without flags the node listens on a unix socket
/// only (/run/millrace/node.sock as root, else
/// $XDG_RUNTIME_DIR/millrace/node.sock) and keeps its keys encrypted in
/// /var/lib/millrace (else $XDG_STATE_HOME/millrace). Flags win over
/// environment variables, these over the configuration file, and the file over
/// the defaults.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = UP_EXAMPLE)]
pub(crate) struct UpCommandArgs {
    #[command(flatten)]
    pub(crate) up: UpArgs,
    #[command(flatten)]
    pub(crate) manager: InsideManagerArgs,
}

/// The options of `up` for a manager in the process of the node.
#[derive(Clone, Debug, Args)]
pub(crate) struct InsideManagerArgs {
    /// Also run a manager in this process: tenants, quotas, the page
    ///
    /// Its records are in manager/pool.db of the state folder. The node then
    /// serves tenants only (`millrace tenant create`). Further nodes may join
    /// (`millrace node run`).
    #[arg(long)]
    pub(crate) with_manager: bool,
    /// Address of the manager's API and page
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:7500",
        value_parser = socket_address,
        requires = "with_manager",
        hide_short_help = true
    )]
    pub(crate) manager_listen: SocketAddr,
    /// Name or address under which nodes and users reach the manager; repeatable
    #[arg(long, value_name = "NAME", requires = "with_manager", hide_short_help = true)]
    pub(crate) manager_host: Vec<String>,
    /// Validity of a grant
    ///
    /// A node that no manager reaches continues with a quarter of its slices
    /// from then on.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        value_parser = grant_lifetime,
        requires = "with_manager",
        hide_short_help = true
    )]
    pub(crate) grant_lifetime: Duration,
}

/// For every command that runs a node.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpArgs {
    /// Check the configuration and exit: 0 if the node would take it, else 2
    ///
    /// Prints every wrong value of the configuration file and of the flags; an unknown
    /// key or a value of the wrong type is reported alone, first. Also reads the
    /// certificates of the TCP listener. Starts and changes nothing.
    #[arg(long)]
    pub(crate) check: bool,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
    /// Group that may connect to the socket, besides this user
    #[arg(hide_short_help = true, long, value_name = "GROUP", help_heading = SOCKETS)]
    pub(crate) socket_group: Option<String>,
    /// Mode of the socket, octal [default: 0660]
    ///
    /// With 0666 every local user may connect; then only the policy of each
    /// key decides on the operations of a user.
    #[arg(hide_short_help = true, long, value_name = "MODE", value_parser = mode, help_heading = SOCKETS)]
    pub(crate) socket_mode: Option<u32>,
    /// Also listen on TCP, with mutual TLS 1.3 [default: no]
    ///
    /// Certificates are generated in the state folder the first time;
    /// `millrace cert client NAME` issues those of the clients.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address, help_heading = SOCKETS)]
    pub(crate) listen_tcp: Option<SocketAddr>,
    /// Serve Prometheus metrics over HTTP at this loopback address [default: no]
    #[arg(long = "listen-metrics", hide_short_help = true, value_name = "ADDRESS:PORT", value_parser = socket_address, help_heading = SOCKETS)]
    pub(crate) metrics: Option<SocketAddr>,
    /// Name of the node, also in its certificate [default: the host's]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Worker threads per class of work, 1 to 1024 [default: one per core]
    #[arg(long, value_name = "N", value_parser = number(1..=MAX_WORKERS), hide_short_help = true, help_heading = WORKERS)]
    pub(crate) workers: Option<usize>,
    /// Processors to which workers are pinned [default: auto]
    ///
    /// The affinity that the node was started with (taskset, cpuset) holds in
    /// any case.
    #[arg(long, value_name = "PLACEMENT", value_enum, hide_short_help = true, help_heading = WORKERS)]
    pub(crate) pin: Option<Pin>,
    /// Scheduling priority of workers [default: auto]
    #[arg(long, value_name = "PRIORITY", value_enum, hide_short_help = true, help_heading = WORKERS)]
    pub(crate) worker_priority: Option<WorkerPriority>,
    /// Backends to use, in order of preference, separated by commas [default: all usable ones but qat, kernel]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(BackendKind::ALL, BackendKind::name), hide_short_help = true, help_heading = WORKERS)]
    pub(crate) backends: Option<Vec<BackendKind>>,
    /// Lock all memory, so that no key is ever swapped to disk
    ///
    /// Needs CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK; without it the
    /// node does not start.
    #[arg(long, hide_short_help = true)]
    pub(crate) lock_memory: bool,
    /// Log level (error, warn, info, debug, trace), or a filter per module [default: info]
    #[arg(long, value_name = "FILTER", env = "MILLRACE_LOG", hide_env_values = true, help_heading = LOG)]
    pub(crate) log: Option<String>,
    /// Form of the log: text or JSON lines [default: text]
    #[arg(long, value_name = "FORMAT", value_enum, hide_short_help = true, help_heading = LOG)]
    pub(crate) log_format: Option<LogFormat>,
}

/// A value parser for the validity of grants.
pub(super) fn grant_lifetime(text: &str) -> Result<Duration, String> {
    time_within(Duration::from_secs(3)..=Duration::from_secs(3600))(text)
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected an octal mode like 0660".to_owned())
}
