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
use millrace_inspect::report::{Report, ReportParts};
use millrace_inspect::{accelerators, network};

use crate::args::{ExaminedRootArg, InspectArgs, InspectCommand, InspectQatArgs};
use crate::commands::ceiling;
use crate::exit::{Failure, fail};
use crate::output;
use crate::page::Page;
use crate::progress::while_doing;

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    let part = args.part.as_ref();
    if let (None, Some(bundle)) = (part, &args.bundle) {
        return bundle::run(&args.tree, bundle);
    }
    let tree = match part {
        Some(InspectCommand::Ceiling(args)) => return ceiling::run(args),
        Some(InspectCommand::Cpu(args)) => &args.tree,
        Some(InspectCommand::Openssl(args)) => &args.tree,
        Some(InspectCommand::Qat(args)) => &args.tree,
        Some(InspectCommand::Gpu(args)) => &args.tree,
        Some(InspectCommand::Kernel(args)) => &args.tree,
        Some(InspectCommand::Used(args)) => &args.tree,
        None => &args.tree,
    };
    let root = open(&tree.examined)?;
    let parts = parts(&root, part);
    if tree.json {
        return output::print_json(&parts);
    }
    let mut page = page(&parts, part.is_some());
    if let Some(InspectCommand::Qat(InspectQatArgs { interval: Some(interval), .. })) = part
        && let Some(before) = parts.qat.and_then(|section| section.known)
    {
        qat::watch(&mut page, &root, &before, *interval);
    }
    page.print()
}

/// The sections of one part, or all.
fn parts(root: &Root, part: Option<&InspectCommand>) -> ReportParts {
    let mut parts = ReportParts::none(root);
    match part {
        Some(InspectCommand::Cpu(_)) => parts.cpu = Some(millrace_inspect::cpu::section(root)),
        Some(InspectCommand::Openssl(args)) => parts = openssl::parts(root, args),
        Some(InspectCommand::Qat(_)) => parts.qat = Some(millrace_inspect::qat::section(root)),
        Some(InspectCommand::Gpu(_)) => parts.accelerators = Some(accelerators::section(root)),
        Some(InspectCommand::Kernel(_)) => {
            parts.kernel = Some(millrace_inspect::kernel::section(root));
            parts.network = Some(network::section(root));
        }
        Some(InspectCommand::Used(args)) => parts.used = Some(used::part(root, args)),
        Some(InspectCommand::Ceiling(_)) => {}
        None => parts = while_doing("examining", || Report::of(root)).into(),
    }
    parts
}

/// The sections that are there, below each other; the whole report without `detail`.
fn page(parts: &ReportParts, detail: bool) -> Page {
    let mut page = Page::new();
    parts.machine.iter().for_each(|known| cpu::machine(&mut page, known));
    parts.cpu.iter().for_each(|known| cpu::section(&mut page, known, detail));
    parts.libcrypto.iter().for_each(|known| openssl::section(&mut page, known, detail));
    parts.timed.iter().for_each(|known| openssl::clock(&mut page, known));
    parts.kernel.iter().for_each(|known| kernel::section(&mut page, known));
    parts.network.iter().for_each(|known| kernel::in_network(&mut page, known));
    parts.qat.iter().for_each(|known| qat::section(&mut page, known, detail));
    parts.accelerators.iter().for_each(|known| gpu::section(&mut page, known));
    parts.used.iter().for_each(|known| used::section(&mut page, known));
    page
}

/// Opens the tree to examine.
pub(in crate::commands) fn open(args: &ExaminedRootArg) -> Result<Root> {
    Root::open(&args.root).map_err(|error: OpenError| fail(Failure::Usage, error.to_string()))
}
