// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace bench`: calls the bench crate, which measures and verifies.

use anyhow::Result;
use millrace_bench::BenchError;
use millrace_bench::cli::{
    run_compression, run_crypto, run_manager, run_pool, run_sizes, run_sizes_worker, run_tls,
    run_virtio,
};

use crate::args::BenchCommand;
use crate::exit::{Failure, fail};

pub(crate) fn run(command: BenchCommand) -> Result<()> {
    let measured = match command {
        BenchCommand::Compression(args) => run_compression(&args),
        BenchCommand::Crypto(args) => run_crypto(&args),
        BenchCommand::Manager(args) => run_manager(&args),
        BenchCommand::Pool(args) => run_pool(&args),
        BenchCommand::Sizes(args) => run_sizes(&args),
        BenchCommand::Tls(args) => run_tls(&args),
        BenchCommand::Virtio(args) => run_virtio(&args),
        BenchCommand::SizesWorker(args) => run_sizes_worker(&args),
    };
    measured.map_err(to_exit_error)
}

/// Wrong options and wrong files are usage errors.
pub(super) fn to_exit_error(error: BenchError) -> anyhow::Error {
    match error {
        BenchError::Usage(why) => fail(Failure::Usage, why),
        other => other.into(),
    }
}
