// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The options of `millrace bench`, the functions that run it, and the value parsers that every command shares.

pub use crate::compression::{CompressionArgs, run_compression};
pub use crate::crypto::{CryptoArgs, run_crypto};
pub use crate::manager::{ManagerBenchArgs, run_manager};
pub use crate::options::{TIMES, named, number, output_file, output_folder, time_within};
pub use crate::pool::{PoolArgs, run_pool};
pub use crate::report::{SvgArg, report_schema};
pub use crate::sizes::{SizesArgs, SizesWorkerArgs, run_sizes, run_sizes_worker, sizes_schema};
pub use crate::tls::{TlsArgs, last_local_run, run_tls};
pub use crate::virtio::{VirtioArgs, run_virtio};
pub use crate::vpn::{CaseEngine, LinkRound, LinkToMeasure, VpnArgs, measure_links, run_vpn};
