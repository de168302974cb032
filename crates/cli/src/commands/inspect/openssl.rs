// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect openssl`: the crypto libraries.

use anyhow::Result;
use millrace_inspect::cpu;
use millrace_inspect::libcrypto::{self, Assembly, CLEAR_RATIO, Libraries, Library, Timed};
use millrace_inspect::report::{ReportParts, Section};

use super::open;
use crate::args::InspectOpensslArgs;
use crate::output::{self, Table};
use crate::page::{Page, plain};
use crate::progress::while_doing;

pub(super) fn run(args: &InspectOpensslArgs) -> Result<()> {
    let root = open(&args.tree)?;
    let cpu = cpu::section(&root);
    let found = while_doing("examining libraries", || {
        libcrypto::section(&root, cpu.known.as_ref())
    });
    let architecture = cpu.known.as_ref().and_then(|cpu| cpu.architecture);
    let timed = args
        .timed
        .then_some(architecture)
        .flatten()
        .map(|architecture| {
            while_doing("measuring with openssl speed, about 12 seconds", || {
                libcrypto::timed(&root, architecture)
            })
        });
    if args.tree.json {
        return output::print_json(&ReportParts {
            libcrypto: Some(found),
            timed,
            ..ReportParts::none(&root)
        });
    }
    let mut page = Page::new();
    section(&mut page, &found, true);
    if let Some(timed) = timed {
        clock(&mut page, &timed);
    }
    page.print()
}

/// The libraries; in `detail` with each algorithm.
pub(super) fn section(page: &mut Page, section: &Section<Libraries>, detail: bool) {
    page.heading("Crypto libraries");
    if let Some(found) = &section.known {
        if found.libraries.is_empty() {
            page.remark("none");
        } else {
            page.table(&overview(&found.libraries));
        }
        for library in &found.libraries {
            if detail {
                one(page, library);
            } else if !library.slow.is_empty() {
                page.remark(&format!("! {} is slower than necessary:", library.path));
                slow(page, library);
            }
        }
        for mask in &found.masks {
            page.remark(&format!(
                "! {} sets {}={}",
                mask.file, mask.variable, mask.value
            ));
        }
        if let Some(count) = found.container_processes.filter(|count| *count > 0) {
            page.remark(&format!(
                "{count} processes in containers have libraries of their own: \
                 `millrace inspect openssl --root /proc/PID/root` looks there"
            ));
        }
    }
    page.unread(section);
}

fn overview(libraries: &[Library]) -> Table {
    let mut table = Table::new(&[
        "library",
        "version",
        "for",
        "assembly",
        "optimised",
        "used by",
        "file",
    ]);
    for library in libraries {
        let elf = &library.elf;
        let abi = elf.abi.map_or_else(String::new, |abi| format!(" {abi}"));
        let used = match &library.used_by {
            None => "-".to_owned(),
            Some(users) if users.is_empty() => "no process".to_owned(),
            Some(users) => {
                let processes: usize = users.iter().map(|user| user.processes).sum();
                let plural = if processes == 1 { "" } else { "es" };
                format!("{processes} process{plural}")
            }
        };
        let inside = if library.inside_program {
            " (inside)"
        } else {
            ""
        };
        table.row(vec![
            library.identity.maker.name().to_owned(),
            library
                .identity
                .version
                .as_deref()
                .map_or_else(|| "?".to_owned(), plain),
            format!("{}{abi}", elf.architecture),
            match library.assembly {
                Assembly::Full => "full",
                Assembly::Partial => "partial",
                Assembly::None => "none",
                Assembly::Unknown => "?",
            }
            .to_owned(),
            library
                .build
                .optimisation
                .as_deref()
                .map_or_else(|| "?".to_owned(), plain),
            used,
            format!("{}{inside}", plain(&library.path)),
        ]);
    }
    table
}

fn one(page: &mut Page, library: &Library) {
    page.heading(&plain(&library.path));
    page.fact_if("built for", library.build.platform.as_deref());
    let target = library.build.target.join(" ");
    page.fact_if(
        "compiled with",
        Some(target.as_str()).filter(|target| !target.is_empty()),
    );
    if let Some(report) = &library.own_report {
        page.fact("reports", &report.processor);
        page.fact_if("masked by", report.masked_by.as_deref());
    }
    for user in library.used_by.iter().flatten() {
        let gone = if user.deleted {
            ", the file was deleted: restart it"
        } else {
            ""
        };
        page.fact(
            "used by",
            &format!("{} ({}{gone})", user.program, user.processes),
        );
    }
    if !library.algorithms.is_empty() {
        let mut table = Table::new(&["algorithm", "runs as", "could run as"]);
        for used in &library.algorithms {
            let words = [used.level.words(), used.possible.words()].map(str::to_owned);
            let [level, possible] = words;
            table.row(vec![used.algorithm.to_owned(), level, possible]);
        }
        page.table(&table);
    }
    slow(page, library);
}

fn slow(page: &mut Page, library: &Library) {
    for slow in &library.slow {
        page.remark(&format!("! slow: {}: {}", slow.what, slow.evidence));
    }
}

fn clock(page: &mut Page, section: &Section<Vec<Timed>>) {
    page.heading("Measured, 8 KiB at a time");
    if let Some(measured) = &section.known {
        let mut table = Table::new(&[
            "algorithm",
            "instructions",
            ">with",
            ">without",
            ">ratio",
            "used",
        ]);
        for timed in measured {
            table.row(vec![
                timed.algorithm.to_owned(),
                timed.instructions.to_owned(),
                format!("{:.0} MB/s", timed.with_mb_per_s),
                format!("{:.0} MB/s", timed.without_mb_per_s),
                format!("{:.1}", timed.ratio),
                if timed.ratio >= CLEAR_RATIO {
                    "yes"
                } else {
                    "no"
                }
                .to_owned(),
            ]);
        }
        page.table(&table);
    }
    page.unread(section);
}
