// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace virtio`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use millrace_client::Endpoint;
use millrace_operation::BackendKind;
use millrace_server::config::WorkerPriority;
use millrace_virtio::device::Limit;

use super::{MetricsArg, named, number};

/// Bound on a throttle, per second: far above what a device does, so that a slip of the keyboard is found.
const MAX_RATE: u64 = 1_000_000_000_000;

const MACHINES: &str = "Machines";
const LIMITS: &str = "Limits of each device";
const POOL: &str = "Pool";
const ENGINE: &str = "Engine";
const LOG: &str = "Log";

/// Offer virtio-crypto devices to virtual machines
///
/// RSA of a machine with such a device runs on this host's accelerators; ECDSA
/// runs in software. Stock Linux guests find the device as virtio_crypto. QEMU
/// 10.2 and Cloud Hypervisor 52 or newer connect to the socket.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum VirtioCommand {
    Run(VirtioRunArgs),
    #[command(hide = true)]
    Device(VirtioRunArgs),
    Drain(VirtioDrainArgs),
    Status(VirtioStatusArgs),
    Throttle(VirtioThrottleArgs),
    Recipe(VirtioRecipeArgs),
}

/// The socket that names a process with devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = MACHINES)]
pub(crate) struct VirtioSocketArg {
    /// Socket that the monitor connects to; the first of several
    #[arg(long, value_name = "PATH", default_value = "/run/millrace/vm.sock")]
    pub(crate) socket_path: PathBuf,
}

/// The number of data queues that a device offers.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = MACHINES)]
pub(crate) struct DataQueuesArg {
    /// Data queues of each device; Linux uses one
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1, value_parser = number::<u16>(1..=16))]
    pub(crate) data_queues: u16,
}

/// The limits of each device of a process.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = LIMITS)]
pub(crate) struct VirtioLimitArgs {
    /// Requests per second, or none; more wait
    #[arg(long, value_name = "PER_SECOND", value_parser = limit)]
    pub(crate) ops: Option<Limit>,
    /// Bytes (not bits) per second, or none; more wait
    #[arg(long, value_name = "PER_SECOND", value_parser = limit)]
    pub(crate) bps: Option<Limit>,
}

/// The sockets of a process with devices.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = MACHINES)]
pub(crate) struct VirtioSocketArgs {
    #[command(flatten)]
    pub(crate) first: VirtioSocketArg,
    /// Number of sockets, one per machine; from 2 on their paths end in 0, 1, …
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u16>(1..=256))]
    pub(crate) socket_count: u16,
}

const RUN_EXAMPLE: &str = "\
Examples:
  millrace virtio run --socket-path /run/millrace/vm1.sock --identity acme
  millrace virtio run --socket-path /run/millrace/vm.sock --socket-count 8
  millrace virtio run --pool unix:/run/millrace/node.sock

The process holds the sockets and starts another one with the devices, which
may die: the next one continues its work. SIGHUP runs the installed program
in its place; machines notice nothing. SIGTERM makes the devices announce that
they are not ready, and ends the process when the last machine has
disconnected: QEMU aborts if a device goes away and comes back. A second
SIGTERM ends it at once.";

/// Serve devices until a signal ends the process
#[derive(Clone, Debug, Args)]
#[command(after_long_help = RUN_EXAMPLE)]
pub(crate) struct VirtioRunArgs {
    #[command(flatten)]
    pub(crate) sockets: VirtioSocketArgs,
    /// Identity that the machines of this process share, with its turns [default: one for each socket]
    #[arg(long, value_name = "NAME", help_heading = MACHINES)]
    pub(crate) identity: Option<String>,
    #[command(flatten)]
    pub(crate) queues: DataQueuesArg,
    #[command(flatten)]
    pub(crate) limits: VirtioLimitArgs,
    /// Node to use, unix:PATH or tcp:HOST:PORT; repeatable [default: none, this host computes]
    ///
    /// Private-key work goes there, with the keys of the guests. The device
    /// works as the identity that the node sees: the user of this process, or
    /// the certificate. Without an answer of a node this host computes.
    #[arg(long, value_name = "ENDPOINT", help_heading = POOL)]
    pub(crate) pool: Vec<Endpoint>,
    /// Folder with ca.pem, cert.pem and key.pem, for tcp: endpoints
    #[arg(
        hide_short_help = true,
        long,
        value_name = "DIR",
        default_value = "/etc/millrace/client",
        help_heading = POOL
    )]
    pub(crate) certs: PathBuf,
    /// File of 32 random bytes, the same on every host that a machine moves to
    ///
    /// The sessions of a guest then move only between hosts with this key, and
    /// a state that anybody changed on the way is refused. Without it, damage
    /// is noticed and a forgery is not.
    #[arg(hide_short_help = true, long, value_name = "FILE", help_heading = MACHINES)]
    pub(crate) state_key: Option<PathBuf>,
    /// Worker threads per class of work, 1 to 1024 [default: one per core]
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = number::<u16>(1..=1024), help_heading = ENGINE)]
    pub(crate) workers: Option<u16>,
    /// Scheduling priority of workers [default: auto]
    #[arg(long, value_name = "PRIORITY", value_enum, hide_short_help = true, help_heading = ENGINE)]
    pub(crate) worker_priority: Option<WorkerPriority>,
    /// Backends to use, in order of preference, separated by commas [default: all usable ones but qat, kernel]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named(BackendKind::ALL, BackendKind::name), hide_short_help = true, help_heading = ENGINE)]
    pub(crate) backends: Option<Vec<BackendKind>>,
    /// Print the vhost-user capabilities as JSON and end, for management programs
    #[arg(long, hide_short_help = true)]
    pub(crate) print_capabilities: bool,
    /// Log level (error, warn, info, debug, trace), or a filter per module [default: info]
    #[arg(
        long,
        value_name = "FILTER",
        env = "MILLRACE_LOG",
        hide_env_values = true,
        default_value = "info",
        hide_default_value = true,
        help_heading = LOG
    )]
    pub(crate) log: String,
}

/// Let the guests compute themselves, before maintenance
///
/// Clears HW_READY: Linux guests finish what is under way and then compute in
/// software. Their devices stay connected.
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace virtio drain --socket-path /run/millrace/vm1.sock\n  millrace virtio drain --socket-path /run/millrace/vm1.sock --undo"
)]
pub(crate) struct VirtioDrainArgs {
    #[command(flatten)]
    pub(crate) socket: VirtioSocketArg,
    /// Let the guests use their devices again
    #[arg(long)]
    pub(crate) undo: bool,
}

const STATUS_EXAMPLE: &str = "\
Examples:
  millrace virtio status --socket-path /run/millrace/vm1.sock
  millrace virtio status --socket-path /run/millrace/vm1.sock --metrics

The counters have the names of QEMU's query-stats; the guide
docs/guide/virtual-machines.md explains the others. --metrics fits the
textfile collector of node_exporter.";

/// Show the devices of a running process and their counters
#[derive(Clone, Debug, Args)]
#[command(after_long_help = STATUS_EXAMPLE)]
pub(crate) struct VirtioStatusArgs {
    #[command(flatten)]
    pub(crate) socket: VirtioSocketArg,
    /// Print JSON (schema: share/doc/millrace/virtio-status.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) format: MetricsArg,
}

const THROTTLE_EXAMPLE: &str = "\
Examples:
  millrace virtio throttle --socket-path /run/millrace/vm1.sock --ops 500
  millrace virtio throttle --socket-path /run/millrace/vm1.sock --bps none

Requests above a limit wait in the ring of the machine; none is dropped.";

/// Change the limits of a running device; a limit that is not named stays
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = THROTTLE_EXAMPLE,
    mut_arg("ops", |ops| ops.required_unless_present("bps"))
)]
pub(crate) struct VirtioThrottleArgs {
    #[command(flatten)]
    pub(crate) sockets: VirtioSocketArgs,
    #[command(flatten)]
    pub(crate) limits: VirtioLimitArgs,
}

fn limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit::None);
    }
    let rate = text.parse().ok().filter(|rate| (1..=MAX_RATE).contains(rate));
    rate.map(Limit::PerSecond)
        .ok_or_else(|| format!("expected a number from 1 to {MAX_RATE}, or none"))
}

/// A virtual machine monitor, or what manages it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Monitor {
    /// Options of QEMU from 10.2 on
    Qemu,
    /// XML of a libvirt domain
    Libvirt,
    /// Options of Cloud Hypervisor from 52 on
    CloudHypervisor,
}

/// Print the device line of a virtual machine monitor
#[derive(Clone, Debug, Args)]
#[command(
    after_long_help = "Example:\n  millrace virtio recipe qemu --socket-path /run/millrace/vm1.sock"
)]
pub(crate) struct VirtioRecipeArgs {
    /// The monitor
    #[arg(value_enum)]
    pub(crate) monitor: Monitor,
    #[command(flatten)]
    pub(crate) socket: VirtioSocketArg,
    #[command(flatten)]
    pub(crate) queues: DataQueuesArg,
}
