// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect openssl`: the crypto libraries.

use millrace_hostfs::Root;
use millrace_inspect::cpu;
use millrace_inspect::libcrypto::{self, Assembly, CLEAR_RATIO, Libraries, Library, Timed};
use millrace_inspect::report::ReportParts;
use millrace_inspect::section::Section;

use crate::args::InspectOpensslArgs;
use crate::output::{Table, or};
use crate::page::{Page, plain};
use crate::progress::while_doing;

/// The libraries, and how fast they are, if that is asked for.
pub(super) fn parts(root: &Root, args: &InspectOpensslArgs) -> ReportParts {
    let cpu = cpu::section(root).known;
    let found = while_doing("examining libraries", || libcrypto::section(root, cpu.as_ref()));
    let architecture = cpu.and_then(|cpu| cpu.architecture);
    let timed = architecture.filter(|_| args.timed).map(|architecture| {
        while_doing("measuring with openssl speed, about 12 seconds", || {
            libcrypto::timed(root, architecture)
        })
    });
    ReportParts { libcrypto: Some(found), timed, ..ReportParts::none(root) }
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
            page.remark(&format!("! {} sets {}={}", mask.file, mask.variable, mask.value));
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

#[rustfmt::skip]
fn overview(libraries: &[Library]) -> Table {
    let used = |library: &Library| {
        let users = library.used_by.as_ref()?;
        let processes: usize = users.iter().map(|user| user.processes).sum();
        Some(match processes {
            0 => "no process".to_owned(),
            1 => "1 process".to_owned(),
            _ => format!("{processes} processes"),
        })
    };
    let assembly = |assembly| match assembly {
        Assembly::Full => "full",
        Assembly::Partial => "partial",
        Assembly::None => "none",
        Assembly::Unknown => "?",
    };
    let abi = |library: &Library| or(library.elf.abi.map(|abi| format!(" {abi}")), "");
    let inside = |library: &Library| if library.inside_program { " (inside)" } else { "" };
    Table::of(libraries, &[
        ("library", &|library| library.identity.maker.name().to_owned()),
        ("version", &|library| or(library.identity.version.as_deref().map(plain), "?")),
        ("for", &|library| format!("{}{}", library.elf.architecture, abi(library))),
        ("assembly", &|library| assembly(library.assembly).to_owned()),
        ("optimised", &|library| or(library.build.optimisation.as_deref().map(plain), "?")),
        ("used by", &|library| or(used(library), "-")),
        ("file", &|library| format!("{}{}", plain(&library.path), inside(library))),
    ])
}

fn one(page: &mut Page, library: &Library) {
    page.heading(&plain(&library.path));
    page.fact_if("built for", library.build.platform.as_deref());
    let target = library.build.target.join(" ");
    page.fact_if("compiled with", Some(target.as_str()).filter(|target| !target.is_empty()));
    if let Some(report) = &library.own_report {
        page.fact("reports", &report.processor);
        page.fact_if("masked by", report.masked_by.as_deref());
    }
    for user in library.used_by.iter().flatten() {
        let gone = if user.deleted { ", the file was deleted: restart it" } else { "" };
        page.fact("used by", &format!("{} ({}{gone})", user.program, user.processes));
    }
    #[rustfmt::skip]
    let table = Table::of(&library.algorithms, &[
        ("algorithm", &|used| used.algorithm.to_owned()),
        ("runs as", &|used| used.level.words().to_owned()),
        ("could run as", &|used| used.possible.words().to_owned()),
    ]);
    if !table.is_empty() {
        page.table(&table);
    }
    slow(page, library);
}

fn slow(page: &mut Page, library: &Library) {
    for slow in &library.slow {
        page.remark(&format!("! slow: {}: {}", slow.what, slow.evidence));
    }
}

pub(super) fn clock(page: &mut Page, section: &Section<Vec<Timed>>) {
    page.heading("Measured, 8 KiB at a time");
    if let Some(measured) = &section.known {
        let used = |timed: &Timed| {
            if timed.ratio >= CLEAR_RATIO { "yes" } else { "no" }
        };
        #[rustfmt::skip]
        page.table(&Table::of(measured, &[
            ("algorithm", &|timed| timed.algorithm.to_owned()),
            ("instructions", &|timed| timed.instructions.to_owned()),
            (">with", &|timed| format!("{:.0} MB/s", timed.with_mb_per_s)),
            (">without", &|timed| format!("{:.0} MB/s", timed.without_mb_per_s)),
            (">ratio", &|timed| format!("{:.1}", timed.ratio)),
            ("used", &|timed| used(timed).to_owned()),
        ]));
    }
    page.unread(section);
}
