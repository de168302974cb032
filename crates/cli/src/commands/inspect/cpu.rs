// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect cpu`: the processors.

use anyhow::Result;
use millrace_inspect::cpu::{self, Cpu, Feature, State};
use millrace_inspect::machine::Machine;
use millrace_inspect::report::{ReportParts, Section};

use super::open;
use crate::args::InspectCpuArgs;
use crate::output::{self, Table};
use crate::page::{Page, plain};

pub(super) fn run(args: &InspectCpuArgs) -> Result<()> {
    let root = open(&args.tree)?;
    let found = cpu::section(&root);
    if args.tree.json {
        return output::print_json(&ReportParts {
            cpu: Some(found),
            ..ReportParts::none(&root)
        });
    }
    let mut page = Page::new();
    section(&mut page, &found, true);
    page.print()
}

/// The machine as a whole.
pub(super) fn machine(page: &mut Page, section: &Section<Machine>) {
    page.heading("Machine");
    if let Some(machine) = &section.known {
        page.fact_if("product", machine.product.as_deref());
        page.fact_if("system", machine.system.as_deref());
        page.fact_if("kernel", machine.kernel.as_deref());
        let memory = machine.memory_kib.map(|kib| format!("{} MiB", kib / 1024));
        page.fact_if("memory", memory.as_deref());
    }
    page.unread(section);
}

/// The processors; in `detail` with every extension and vulnerability.
pub(super) fn section(page: &mut Page, section: &Section<Cpu>, detail: bool) {
    page.heading("Processors");
    if let Some(cpu) = &section.known {
        facts(page, cpu);
        if detail {
            features(page, cpu);
            vulnerabilities(page, cpu);
        } else {
            page.fact_if("has", names(cpu, State::Present).as_deref());
            page.fact_if("has not", names(cpu, State::Absent).as_deref());
            page.fact_if("some have", names(cpu, State::Some).as_deref());
        }
        hidden(page, cpu);
    }
    page.unread(section);
}

fn facts(page: &mut Page, cpu: &Cpu) {
    page.fact_if("model", cpu.model.as_deref());
    page.fact_if("design", cpu.design.as_deref());
    if let Some(architecture) = cpu.architecture {
        let from = cpu
            .architecture_from
            .as_deref()
            .filter(|from| *from != "proc/cpuinfo");
        let from = from.map_or_else(String::new, |from| format!(" (from {from})"));
        page.fact("architecture", &format!("{architecture}{from}"));
    }
    page.fact_if("processors", counts(cpu).as_deref());
    if let Some(hypervisor) = &cpu.hypervisor {
        let name = hypervisor
            .name
            .as_deref()
            .unwrap_or("an unnamed hypervisor");
        page.fact("virtual", &format!("by {name} ({})", hypervisor.evidence));
    }
    let frequency = &cpu.frequency;
    if !frequency.governors.is_empty() {
        let max = frequency
            .max_khz
            .map_or_else(String::new, |khz| format!(", up to {} MHz", khz / 1000));
        let driver = frequency
            .driver
            .as_deref()
            .map_or_else(String::new, |driver| format!(" ({driver})"));
        page.fact(
            "governor",
            &format!("{}{driver}{max}", frequency.governors.join(", ")),
        );
    }
    page.fact_if("microcode", cpu.microcode.as_deref());
}

fn counts(cpu: &Cpu) -> Option<String> {
    let processors = cpu.processors?;
    let parts = [
        cpu.cores.map(|count| plural(count, "core")),
        cpu.sockets.map(|count| plural(count, "socket")),
        Some(cpu.numa_nodes.len())
            .filter(|count| *count > 0)
            .map(|count| plural(count, "NUMA node")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let more = if parts.is_empty() {
        String::new()
    } else {
        format!(" ({})", parts.join(", "))
    };
    Some(format!("{processors}{more}"))
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn names(cpu: &Cpu, state: State) -> Option<String> {
    let of = |feature: &&Feature| feature.state == state;
    let names: Vec<&str> = cpu
        .features
        .iter()
        .filter(of)
        .map(|feature| feature.name)
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn features(page: &mut Page, cpu: &Cpu) {
    if cpu.features.is_empty() {
        return;
    }
    page.heading("Extensions");
    let mut table = Table::new(&["extension", "there", "makes fast"]);
    for feature in &cpu.features {
        let there = match feature.state {
            State::Present => "yes",
            State::Some => "on some",
            State::Absent => "no",
            State::Unknown => "not known",
        };
        table.row(vec![
            feature.name.to_owned(),
            there.to_owned(),
            feature.serves.to_owned(),
        ]);
    }
    page.table(&table);
}

fn vulnerabilities(page: &mut Page, cpu: &Cpu) {
    let affected: Vec<_> = cpu
        .vulnerabilities
        .iter()
        .filter(|found| found.state != "Not affected")
        .collect();
    if affected.is_empty() {
        return;
    }
    page.heading("Vulnerabilities, as the kernel reports them");
    let mut table = Table::new(&["vulnerability", "state"]);
    for found in affected {
        table.row(vec![plain(&found.name), plain(&found.state)]);
    }
    page.table(&table);
}

fn hidden(page: &mut Page, cpu: &Cpu) {
    for (reason, features) in cpu::by_reason(&cpu.hidden) {
        page.remark(&format!("! hidden: {}: {reason}", features.join(", ")));
    }
}
