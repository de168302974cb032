// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace vpn`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use millrace_bench::cli::VpnArgs;
use millrace_vpn::link::Side;

use super::{DryRunArg, interval, output_folder, readings, time_within};

/// Bound on `--confirm-within`: a day.
const LONGEST_TRIAL: Duration = Duration::from_secs(86_400);

/// Join two hosts by many encrypted tunnels that work as one link
///
/// One OpenVPN process uses one core. A link runs one process per core, routes
/// over all of them, and takes those out that fail. Both hosts have the same
/// link.toml; `millrace sample link` prints one with every key.
#[derive(Debug, Subcommand)]
pub(crate) enum VpnCommand {
    Keys(VpnKeysArgs),
    Plan(VpnPlanArgs),
    Up(VpnUpArgs),
    Status(VpnStatusArgs),
    Watch(VpnWatchArgs),
    Bench(VpnBenchArgs),
    Confirm(VpnConfirmArgs),
    Restart(VpnRestartArgs),
    Down(VpnDownArgs),
    History(VpnHistoryArgs),
    Rollback(VpnRollbackArgs),
    Import(VpnImportArgs),
    Export(VpnExportArgs),
    #[command(hide = true)]
    Supervise(VpnSuperviseArgs),
}

/// Folders of links; both differ where two ends share a machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct VpnFoldersArgs {
    /// Folder of each link's status, log and locks [default: /run/millrace/vpn]
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    pub(crate) run: Option<PathBuf>,
    /// Folder of configurations and their history [default: /var/lib/millrace/vpn]
    #[arg(hide_short_help = true, long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum EndName {
    /// The end [ends.a] of link.toml
    A,
    /// The end [ends.b] of link.toml
    B,
}

impl From<EndName> for Side {
    fn from(name: EndName) -> Self {
        match name {
            EndName::A => Self::A,
            EndName::B => Self::B,
        }
    }
}

/// The link, and which end this host is.
#[derive(Clone, Debug, Args)]
pub(crate) struct VpnLinkArgs {
    /// The declaration of the link
    pub(crate) link: PathBuf,
    /// End of the link to configure [default: the one whose address this host has]
    #[arg(long, value_name = "END", value_enum)]
    pub(crate) end: Option<EndName>,
    #[command(flatten)]
    pub(crate) folders: VpnFoldersArgs,
}

const KEYS_EXAMPLE: &str = "\
Examples:
  millrace vpn keys link.toml -o keys
  install -d /etc/millrace/vpn/branch
  install -m 0600 keys/a/*.pem /etc/millrace/vpn/branch/

Make the keys once, on either host or elsewhere, and copy the folder of each
end to its host. The authority in keys/authority issues for this link only;
keep it offline, or remove it: renewal then means a new one.";

/// Make the certificates and private keys of both ends
#[derive(Debug, Args)]
#[command(after_long_help = KEYS_EXAMPLE)]
pub(crate) struct VpnKeysArgs {
    /// The declaration of the link
    pub(crate) link: PathBuf,
    /// New folder for the authority and the folders a and b
    #[arg(short, long, value_name = "DIR", value_parser = output_folder())]
    pub(crate) output: PathBuf,
}

/// Show every file and command of one end, or every problem; changes nothing
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace vpn plan link.toml\n  millrace vpn plan link.toml --end b --json"
)]
pub(crate) struct VpnPlanArgs {
    #[command(flatten)]
    pub(crate) link: VpnLinkArgs,
    /// Print JSON (schema: share/doc/millrace/vpn-plan.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

const UP_EXAMPLE: &str = "\
Examples:
  millrace vpn up link.toml --dry-run
  millrace vpn up link.toml --confirm-within 60s

A second run changes nothing. A changed link.toml changes what differs: members
restart one by one, and packets take the others. A supervisor in the background
keeps the members running; where it ends, tunnels stay, and `up` starts
another.";

/// Bring one end of a link up, or to a changed link.toml
#[derive(Debug, Args)]
#[command(after_long_help = UP_EXAMPLE)]
pub(crate) struct VpnUpArgs {
    #[command(flatten)]
    pub(crate) link: VpnLinkArgs,
    /// Go back to the configuration confirmed last unless this one reaches the other end in time
    ///
    /// A tunnel that the new configuration itself brings up confirms it, or
    /// `millrace vpn confirm`. The way back outlives this command, the
    /// supervisor and a restart of the host, which ends the time at once.
    #[arg(long, value_name = "TIME", value_parser = time_within(Duration::from_secs(1)..=LONGEST_TRIAL))]
    pub(crate) confirm_within: Option<Duration>,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    /// Also replace files that were edited or are not generated; a copy is kept
    #[arg(hide_short_help = true, long)]
    pub(crate) force: bool,
    /// Return at once, without waiting for the members
    #[arg(hide_short_help = true, long)]
    pub(crate) no_wait: bool,
    /// Bring up the configuration confirmed last if this one was tried and not confirmed
    ///
    /// For services: millrace-vpn@.service starts a link so.
    #[arg(hide_short_help = true, long, conflicts_with = "confirm_within")]
    pub(crate) resume: bool,
}

const BENCH_EXAMPLE: &str = "\
Examples:
  millrace vpn bench
  millrace vpn bench --cases one,two-pinned,one-tuned --rounds 5
  millrace vpn bench --json > vpn.json
  millrace vpn bench --cases one --libcrypto /opt/openssl/lib
  millrace vpn bench --choose link.toml
  millrace vpn bench --choose link.toml --other choice-of-a.json

It needs root, /dev/net/tun, openvpn and iperf3. Both ends run on this
machine, so that rates are a lower bound; CPU seconds per gigabyte of one end
say what a core of a gateway carries.

With --choose, --json prints the record (schema:
share/doc/millrace/vpn-choice.schema.json). With the other end's record, too,
the slower end decides about each candidate. Copy the new record to the other
end: both need the same choice.";

/// Measure links between two network namespaces on this machine
///
/// Real tunnels under iperf3, in interleaved runs: no tunnel, one process with
/// each cipher, several processes, pinned and not, jumbo frames, IPsec. For
/// each: throughput, latency under load, CPU seconds per gigabyte of each end,
/// and the bound on the gain by an accelerator. Then a member of four is killed
/// under load. Bytes are compared at the other end before each load.
#[derive(Debug, Args)]
#[command(after_long_help = BENCH_EXAMPLE)]
pub(crate) struct VpnBenchArgs {
    /// Choose the engine of a link, and save the choice
    ///
    /// The link has engine = "auto". Each candidate that this host can run is
    /// measured; `millrace vpn plan` shows the choice, and `up` follows it.
    #[arg(long, value_name = "LINK", conflicts_with_all = ["list", "cases", "svg", "no_loss", "config", "libcrypto", "require"])]
    pub(crate) choose: Option<PathBuf>,
    /// The other end's choice.json
    #[arg(long, value_name = "FILE", requires = "choose")]
    pub(crate) other: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) folders: VpnFoldersArgs,
    #[command(flatten)]
    pub(crate) bench: VpnArgs,
}

/// Show the members of a link
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace vpn status branch\n  millrace vpn status branch --json"
)]
pub(crate) struct VpnStatusArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    /// Print JSON (schema: share/doc/millrace/vpn-status.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the members of a link again and again
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace vpn watch branch\n  millrace vpn watch branch --json | jq .state"
)]
pub(crate) struct VpnWatchArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    /// Print one JSON object per line (schema: share/doc/millrace/vpn-status.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
    /// Time between two readings
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(crate) interval: Duration,
    /// End after this number of readings [default: never]
    #[arg(long, value_name = "N", value_parser = readings)]
    pub(crate) count: Option<u64>,
}

/// Keep a configuration that waits for its confirmation
///
/// For a change with `up --confirm-within` that does not reach the other end by
/// itself, such as one that the other end has still to follow.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace vpn confirm branch")]
pub(crate) struct VpnConfirmArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
}

/// Restart the members of a link one after another, without an interruption
///
/// Traffic leaves a member before its process ends, and the next one waits
/// until it is back. For a new OpenVPN or strongSwan, new certificates or keys.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace vpn restart branch --members 1")]
pub(crate) struct VpnRestartArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    /// Members, separated by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) members: Vec<u16>,
    /// Return at once, without waiting for the members
    #[arg(hide_short_help = true, long)]
    pub(crate) no_wait: bool,
}

/// Take a link down; its configurations stay
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace vpn down branch --dry-run\n  millrace vpn down branch"
)]
pub(crate) struct VpnDownArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
}

/// Supervise a link that is up
#[derive(Debug, Args)]
pub(crate) struct VpnSuperviseArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    /// Wait for the end of another supervisor, as long as a change is not confirmed
    #[arg(long)]
    pub(crate) standby: bool,
}

/// The name of a link on this host.
#[derive(Clone, Debug, Args)]
pub(crate) struct VpnNameArgs {
    /// Name of the link
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) folders: VpnFoldersArgs,
}

/// List the configurations of a link
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace vpn history branch")]
pub(crate) struct VpnHistoryArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    /// Print JSON (schema: share/doc/millrace/vpn-history.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Apply a former configuration
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace vpn rollback branch\n  millrace vpn rollback branch --to 3 --dry-run"
)]
pub(crate) struct VpnRollbackArgs {
    #[command(flatten)]
    pub(crate) link: VpnNameArgs,
    /// Number of the configuration [default: the one before]
    #[arg(long, value_name = "N")]
    pub(crate) to: Option<u64>,
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
}

const IMPORT_EXAMPLE: &str = "\
Examples:
  millrace vpn import commands.txt --peer BRANCH --name branch > link.toml
  millrace vpn import - --peer BRANCH --name branch < commands.txt

On the router, `show configuration commands` prints the commands.

What is left out comes on standard error, and what a link cannot be is an error
with its line. Shared secrets are neither taken over nor shown.";

/// Make a link.toml of a VyOS router's `set vpn ipsec ...` commands
#[derive(Debug, Args)]
#[command(after_long_help = IMPORT_EXAMPLE)]
pub(crate) struct VpnImportArgs {
    /// Output of `show configuration commands`; - is standard input
    pub(crate) commands: PathBuf,
    /// The site-to-site peer [default: the only one]
    #[arg(long, value_name = "PEER")]
    pub(crate) peer: Option<String>,
    /// Name of the link
    #[arg(long, value_name = "NAME", default_value = "imported")]
    pub(crate) name: String,
    /// Print JSON (schema: share/doc/millrace/vpn-import.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Form of an export.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum VpnFormat {
    /// Commands of VyOS
    Vyos,
    /// strongSwan's swanctl.conf
    Swanctl,
}

const EXPORT_EXAMPLE: &str = "\
Examples:
  millrace vpn export link.toml --end b --format vyos
  millrace vpn export link.toml --end b --format swanctl > branch.conf";

/// Print one end of an IPsec link for a router without Millrace
#[derive(Debug, Args)]
#[command(after_long_help = EXPORT_EXAMPLE)]
pub(crate) struct VpnExportArgs {
    /// The declaration of the link
    pub(crate) link: PathBuf,
    /// End of the link to configure
    #[arg(long, value_name = "END", value_enum)]
    pub(crate) end: EndName,
    /// Format of the configuration
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(crate) format: VpnFormat,
}
