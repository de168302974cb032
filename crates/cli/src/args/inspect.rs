// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Arguments of `millrace inspect` and its parts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::ceiling::CeilingArgs;
use super::{ExaminedRootArg, SocketArg, interval, output_file};

const INSPECT_EXAMPLE: &str = "\
Examples:
  millrace inspect
  millrace inspect openssl
  millrace inspect --json | jq .cpu.known.hidden
  millrace inspect --bundle gateway-7.tar.gz
  millrace inspect --root gateway-7.tar.gz
  millrace inspect --root /mnt/firmware openssl

Nothing is changed, and no device is opened. Without root some files cannot be
read: unknown facts are listed with the reason, and never count as absent. The
exit code is 0 regardless of the findings.";

/// Show this machine's hardware and software for cryptography
///
/// Reads files of this machine, or of another one below --root: a mounted
/// firmware or disk, or a bundle from `inspect --bundle`.
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
    /// Write a support bundle: exactly the files that an inspection reads
    ///
    /// The files are listed. From files that may contain secrets the bundle
    /// takes only the lines that matter; it never contains private keys,
    /// environments or command lines.
    #[arg(short = 'o', long, value_name = "FILE", conflicts_with = "json", value_parser = output_file())]
    pub(crate) bundle: Option<PathBuf>,
}

/// The tree to examine, and the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct TreeArgs {
    #[command(flatten)]
    pub(crate) examined: ExaminedRootArg,
    /// Print JSON (schema: share/doc/millrace/inspect.schema.json)
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

/// The processors: extensions for cryptography, and those that are hidden
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

/// The crypto libraries: how each was built, and the instructions that it ignores
///
/// Works on libraries for other processors, too: assembly modules and compiler
/// options are read from the file.
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
  millrace inspect qat --interval 5s
  millrace inspect qat --json | jq '.qat.known.devices[] | {address, up}'

Only root can read counters, heartbeat and telemetry.";

/// Intel QAT: devices, virtual functions, services, firmware counters, heartbeat, errors
///
/// All generations, with the kernel's own drivers and with Intel's.
#[derive(Debug, Args)]
#[command(after_long_help = QAT_EXAMPLE)]
pub(crate) struct InspectQatArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    /// Time between two readings [default: one reading, without rates]
    #[arg(long, value_name = "TIME", conflicts_with = "json", value_parser = interval)]
    pub(crate) interval: Option<Duration>,
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

/// The implementations that the kernel prefers, kernel TLS, offloading cards, tunnels
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  millrace inspect kernel")]
pub(crate) struct InspectKernelArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
}

const USED_EXAMPLE: &str = "\
Examples:
  millrace inspect used
  millrace inspect used --interval 10s --json

The answer is yes only if a device's counters moved between the readings: run
it under load, and as root.";

/// Whether a device serves each running tunnel and server
///
/// Algorithm, implementation, driver, and counters that move. For servers that
/// use a pool it asks the node of this machine.
#[derive(Debug, Args)]
#[command(after_long_help = USED_EXAMPLE)]
pub(crate) struct InspectUsedArgs {
    #[command(flatten)]
    pub(crate) tree: TreeArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArg,
    /// Time between two readings
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub(crate) interval: Duration,
}
