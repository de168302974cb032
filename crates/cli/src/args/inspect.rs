// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What was typed for `millrace inspect` and its parts.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ceiling::CeilingArgs;

const INSPECT_EXAMPLE: &str = "\
Examples:
  millrace inspect
  millrace inspect openssl
  millrace inspect --json | jq .cpu.known.hidden
  millrace inspect --bundle gateway-7.tar.gz
  millrace inspect --root gateway-7.tar.gz
  millrace inspect --root /mnt/firmware openssl

Nothing is changed, and no device is opened. Without root some files cannot be
read: what is not known is listed with the reason, and is never taken for
absent. It exits 0 whatever it finds.";

/// Say what this machine has for cryptography, and whether it is used
///
/// Reads files of this machine, or of another one below --root: a mounted
/// firmware or disk, or a bundle that `inspect --bundle` wrote there.
#[derive(Debug, Args)]
#[command(
    after_long_help = INSPECT_EXAMPLE,
    args_conflicts_with_subcommands = true,
    subcommand_value_name = "PART",
    subcommand_help_heading = "Parts"
)]
pub(crate) struct InspectArgs {
    /// One part, in more detail.
    #[command(subcommand)]
    pub(crate) part: Option<InspectCommand>,
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// Write a support bundle: exactly the files that are read, and no others
    ///
    /// They are listed. Of files that may also hold secrets only the lines
    /// that matter are taken; private keys, environments and command lines
    /// never are.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) bundle: Option<PathBuf>,
}

/// Which tree to look at, and how to say it.
#[derive(Clone, Debug, Args)]
pub(crate) struct TreeArgs {
    /// Look at this folder or bundle instead of this machine
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub(crate) root: PathBuf,
    /// Print JSON (schema: docs/reference/inspect.schema.json)
    #[arg(long)]
    pub(crate) json: bool,
}

/// The parts of an inspection.
#[derive(Debug, Subcommand)]
pub(crate) enum InspectCommand {
    Cpu(InspectCpuArgs),
    Openssl(InspectOpensslArgs),
    Qat(InspectQatArgs),
    Gpu(InspectGpuArgs),
    Kernel(InspectKernelArgs),
    Used(InspectUsedArgs),
    Ceiling(CeilingArgs),
}

/// The processors: extensions for cryptography, and who hides some
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace inspect cpu --json | jq '.cpu.known.features'")]
pub(crate) struct InspectCpuArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
}

const OPENSSL_EXAMPLE: &str = "\
Examples:
  millrace inspect openssl
  millrace inspect openssl --timed
  millrace inspect openssl --root squashfs-root";

/// The crypto libraries: how each was built, and what of the processor it ignores
///
/// Works on libraries for other processors, too: assembly modules and the
/// compiler's line are read from the file.
#[derive(Debug, Args)]
#[command(after_long_help = OPENSSL_EXAMPLE)]
pub(crate) struct InspectOpensslArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// Also measure with `openssl speed`, with and without the instructions (12 s)
    #[arg(long)]
    pub(crate) timed: bool,
}

const QAT_EXAMPLE: &str = "\
Examples:
  millrace inspect qat
  millrace inspect qat --seconds 5
  millrace inspect qat --json | jq '.qat.known.devices[] | {address, up}'

Counters, heartbeat and telemetry are for root.";

/// Intel QAT: devices, virtual functions, services, firmware counters, heartbeat, errors
///
/// All generations, with the kernel's own drivers and with Intel's.
#[derive(Debug, Args)]
#[command(after_long_help = QAT_EXAMPLE)]
pub(crate) struct InspectQatArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// Also watch the counters for so long, and give their rates
    #[arg(long, value_name = "SECONDS", conflicts_with = "json", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: Option<u64>,
}

/// GPUs, virtio-crypto, DSA and IAA, /dev/crypto, AF_ALG
#[derive(Debug, Args)]
#[command(
    after_long_help = "Example:\n  millrace inspect gpu --json | jq .accelerators.known.gpus"
)]
pub(crate) struct InspectGpuArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
}

/// Which implementation the kernel takes for what gateways ask, kernel TLS, offloading cards, tunnels
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace inspect kernel")]
pub(crate) struct InspectKernelArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
}

const USED_EXAMPLE: &str = "\
Examples:
  millrace inspect used
  millrace inspect used --seconds 10 --json

Yes is said only where a device's counters moved meanwhile: run it under load,
and as root.";

/// Of each tunnel and server that runs: whether a device does its cryptography
///
/// Algorithm, implementation, driver, and counters that move.
#[derive(Debug, Args)]
#[command(after_long_help = USED_EXAMPLE)]
pub(crate) struct InspectUsedArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// How long counters are watched
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) seconds: u64,
}
