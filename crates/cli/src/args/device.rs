// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace device`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use millrace_device::settings::{FunctionDriver, Services};

use super::{ChangedRootArg, DryRunArg, OnOff, time_within};

/// Configure accelerator cards: services, state, virtual functions
///
/// Intel QAT cards of generation 4 and later, with the kernel's own drivers.
/// Each change is planned, applied and verified; a card that does not come up
/// goes back to what it was. `enable`, `disable`, `services` and
/// `virtual-functions` last until the next start of the machine, unless --save
/// writes them to the policy, which `apply` and millrace-devices.service use.
#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    List(DeviceListArgs),
    Show(DeviceShowArgs),
    Enable(DeviceStateArgs),
    Disable(DeviceDisableArgs),
    Services(DeviceServicesArgs),
    VirtualFunctions(DeviceFunctionsArgs),
    Apply(DeviceApplyArgs),
    Rollback(DeviceRollbackArgs),
    Vyos(DeviceVyosArgs),
}

/// The machine, and the output of what only reads it.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceReadArgs {
    #[command(flatten)]
    pub(crate) tree: ChangedRootArg,
    /// Print JSON (schema: share/doc/millrace/devices.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

/// Manner of a change.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceChangeArgs {
    #[command(flatten)]
    pub(crate) plan: DryRunArg,
    /// Also end the programs that use virtual functions of the card
    ///
    /// Without, a change that takes virtual functions from running programs is
    /// refused, and the programs are named.
    #[arg(long)]
    pub(crate) force: bool,
    /// Time to wait for a card after each step (1s to 10m)
    #[arg(hide_short_help = true, long, value_name = "TIME", default_value = "10s", value_parser = time_within(Duration::from_secs(1)..=Duration::from_secs(600)))]
    pub(crate) wait: Duration,
    /// The policy [default: /etc/millrace/devices.toml]
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tree: ChangedRootArg,
    /// Print JSON (schema: share/doc/millrace/device-change.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

const LIST_EXAMPLE: &str = "\
Examples:
  millrace device list
  millrace device list --json | jq '.[].functions[].holders'

Only root sees the programs of other users, and the heartbeat.";

/// List the cards: state, services, virtual functions and who holds them
#[derive(Debug, Args)]
#[command(after_long_help = LIST_EXAMPLE)]
pub(crate) struct DeviceListArgs {
    #[command(flatten)]
    pub(crate) read: DeviceReadArgs,
}

const SHOW_EXAMPLE: &str = "\
Examples:
  millrace device show 0000:6b:00.0
  millrace device show all

Names: a bus address, qat_dev0 (the first card), or all.";

/// Show one card: each virtual function, and what the kernel uses it for
#[derive(Debug, Args)]
#[command(after_long_help = SHOW_EXAMPLE)]
pub(crate) struct DeviceShowArgs {
    /// The card
    #[arg(value_name = "DEVICE", default_value = "all")]
    pub(crate) device: String,
    #[command(flatten)]
    pub(crate) read: DeviceReadArgs,
}

/// Start a card
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace device enable 0000:6b:00.0\n  millrace device enable all --auto-reset on --save"
)]
pub(crate) struct DeviceStateArgs {
    /// The card
    #[arg(value_name = "DEVICE")]
    pub(crate) device: String,
    /// Whether the kernel resets it after a fatal error
    #[arg(long, value_enum, value_name = "ON|OFF", hide_possible_values = true)]
    pub(crate) auto_reset: Option<OnOff>,
    /// Also write it to the policy
    #[arg(long)]
    pub(crate) save: bool,
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}

/// Stop a card; its virtual functions go with it
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace device disable 0000:6b:00.0 --dry-run")]
pub(crate) struct DeviceDisableArgs {
    /// The card
    #[arg(value_name = "DEVICE")]
    pub(crate) device: String,
    /// Also write it to the policy
    #[arg(long)]
    pub(crate) save: bool,
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}

const SERVICES_EXAMPLE: &str = "\
Examples:
  millrace device services all asym
  millrace device services 0000:6b:00.0 'sym;asym' --save

asym serves the backend qat with twice as many instances; sym;asym also serves
the kernel's IPsec; dc compresses. The card is stopped and started again.";

/// Set what a card computes
#[derive(Debug, Args)]
#[command(after_long_help = SERVICES_EXAMPLE)]
pub(crate) struct DeviceServicesArgs {
    /// The card
    #[arg(value_name = "DEVICE")]
    pub(crate) device: String,
    /// asym, sym;asym, sym, dc, asym;dc, sym;dc, ... (a wrong name prints all)
    #[arg(value_name = "SERVICES")]
    pub(crate) services: Services,
    /// Also write it to the policy
    #[arg(long)]
    pub(crate) save: bool,
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}

/// The driver of virtual functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FunctionDriverName {
    /// For programs: qatlib, and the backend qat
    VfioPci,
    /// For virtual machines
    None,
}

impl From<FunctionDriverName> for FunctionDriver {
    fn from(name: FunctionDriverName) -> Self {
        match name {
            FunctionDriverName::VfioPci => Self::VfioPci,
            FunctionDriverName::None => Self::None,
        }
    }
}

const FUNCTIONS_EXAMPLE: &str = "\
Examples:
  millrace device virtual-functions all 16 --driver vfio-pci --save
  millrace device virtual-functions 0000:6b:00.0 0

A change of the number takes all virtual functions of the card away first.";

/// Set the number of a card's virtual functions, and their driver
#[derive(Debug, Args)]
#[command(after_long_help = FUNCTIONS_EXAMPLE)]
pub(crate) struct DeviceFunctionsArgs {
    /// The card
    #[arg(value_name = "DEVICE")]
    pub(crate) device: String,
    /// Their number; 0 removes them
    #[arg(value_name = "N")]
    pub(crate) count: u32,
    /// Their driver [default: the one that they have]
    #[arg(long, value_name = "DRIVER", value_enum)]
    pub(crate) driver: Option<FunctionDriverName>,
    /// Also write it to the policy
    #[arg(long)]
    pub(crate) save: bool,
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}

const APPLY_EXAMPLE: &str = "\
Examples:
  millrace device apply --dry-run
  millrace device apply
  systemctl enable millrace-devices.service

A second run changes nothing. The exit code is 1 if a card went back to what it
was, or is neither.";

/// Make all cards what the policy says
#[derive(Debug, Args)]
#[command(after_long_help = APPLY_EXAMPLE)]
pub(crate) struct DeviceApplyArgs {
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}

/// Make the cards what they were before the last change
#[derive(Debug, Args)]
#[command(
    after_long_help = "Examples:\n  millrace device rollback --dry-run\n  millrace device rollback"
)]
pub(crate) struct DeviceRollbackArgs {
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}

const VYOS_EXAMPLE: &str = "\
Examples:
  millrace device vyos show system acceleration qat status
  millrace device vyos set system acceleration qat
  millrace device vyos --file config.commands
  millrace device vyos

`set` means: every card up, with services sym;asym. `delete`: every card down.
Without words it prints the commands that make a VyOS machine what this one is.";

/// Apply or print VyOS commands for QAT
#[derive(Debug, Args)]
#[command(after_long_help = VYOS_EXAMPLE)]
pub(crate) struct DeviceVyosArgs {
    /// A command: set, delete or show system acceleration qat ...
    #[arg(value_name = "WORD", conflicts_with = "file")]
    pub(crate) words: Vec<String>,
    /// A file with commands, one a line; - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) change: DeviceChangeArgs,
}
