// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench virtio`.

use clap::Args;

use crate::options::{LoadCoreArg, MAX_ROUNDS, duration, number};
use crate::report::ReportArgs;

/// Bound on requests in flight: those of one ring of the driver.
const MAX_REQUESTS: usize = 512;

const VIRTIO_EXAMPLE: &str = "\
Examples:
  millrace bench virtio
  millrace bench virtio --rounds 9 --duration 2s --output virtio.json

No virtual machine is needed: the driver is in this process, and speaks to
`millrace virtio run` over rings in shared memory.";

/// Measure requests to a virtio-crypto device, against the library called directly
///
/// RSA-2048 against the software backend alone, sessions of a known key,
/// AES-256-CBC against the library, and the latency of one machine while
/// another floods the device process. Every answer is checked.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = VIRTIO_EXAMPLE)]
pub struct VirtioArgs {
    /// Interleaved rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number(1..=MAX_ROUNDS))]
    pub(crate) rounds: u64,
    /// Time per measurement
    #[arg(long = "duration", value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) seconds: f64,
    /// Jobs in flight
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = number(1..=MAX_REQUESTS))]
    pub(crate) window: usize,
    /// Core of the device and of the direct calls [default: the first usable one]
    #[arg(long, value_name = "CORE")]
    pub(crate) device_core: Option<usize>,
    #[command(flatten)]
    pub(crate) load: LoadCoreArg,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}
