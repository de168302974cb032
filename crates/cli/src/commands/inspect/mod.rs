// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect`: prints the inspect crate's report as pages and JSON, one file per part.

mod bundle;
mod cpu;
mod gpu;
mod kernel;
mod openssl;
mod qat;
mod used;

use anyhow::Result;
use millrace_hostfs::{OpenError, Root};
use millrace_inspect::report::Report;

use crate::args::{InspectArgs, InspectCommand, TreeArgs};
use crate::commands::ceiling;
use crate::exit::{Failure, fail};
use crate::output;
use crate::page::Page;
use crate::progress::while_doing;

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    match &args.part {
        Some(InspectCommand::Cpu(args)) => cpu::run(args),
        Some(InspectCommand::Openssl(args)) => openssl::run(args),
        Some(InspectCommand::Qat(args)) => qat::run(args),
        Some(InspectCommand::Gpu(args)) => gpu::run(args),
        Some(InspectCommand::Kernel(args)) => kernel::run(args),
        Some(InspectCommand::Used(args)) => used::run(args),
        Some(InspectCommand::Ceiling(args)) => ceiling::run(args),
        None => match &args.bundle {
            Some(bundle) => bundle::run(&args.tree, bundle),
            None => whole(&args.tree),
        },
    }
}

fn whole(args: &TreeArgs) -> Result<()> {
    let root = open(args)?;
    let report = while_doing("examining", || Report::of(&root));
    if args.json {
        return output::print_json(&report);
    }
    let mut page = Page::new();
    cpu::machine(&mut page, &report.machine);
    cpu::section(&mut page, &report.cpu, false);
    openssl::section(&mut page, &report.libcrypto, false);
    kernel::section(&mut page, &report.kernel);
    kernel::in_network(&mut page, &report.network);
    qat::section(&mut page, &report.qat, false);
    gpu::section(&mut page, &report.accelerators);
    page.print()
}

/// Opens the tree to examine.
pub(in crate::commands) fn open(args: &TreeArgs) -> Result<Root> {
    Root::open(&args.root).map_err(|error: OpenError| fail(Failure::Usage, error.to_string()))
}
