// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `millrace inspect cpu`: the processors.

use millrace_inspect::cpu::{self, Cpu, State};
use millrace_inspect::machine::Machine;
use millrace_inspect::section::Section;

use crate::output::{Table, joined, or};
use crate::page::{Page, plain};

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
        let from = cpu.architecture_from.as_deref();
        let from = from.filter(|from| *from != "proc/cpuinfo");
        let from = or(from.map(|from| format!(" (from {from})")), "");
        page.fact("architecture", &format!("{architecture}{from}"));
    }
    page.fact_if("processors", counts(cpu).as_deref());
    if let Some(hypervisor) = &cpu.hypervisor {
        let name = or(hypervisor.name.as_ref(), "an unnamed hypervisor");
        page.fact("virtual", &format!("by {name} ({})", hypervisor.evidence));
    }
    let frequency = &cpu.frequency;
    if !frequency.governors.is_empty() {
        let governors = joined(&frequency.governors, "");
        let driver = frequency.driver.as_ref();
        let driver = or(driver.map(|driver| format!(" ({driver})")), "");
        let max = frequency.max_khz.map(|khz| format!(", up to {} MHz", khz / 1000));
        page.fact("governor", &format!("{governors}{driver}{}", or(max, "")));
    }
    page.fact_if("microcode", cpu.microcode.as_deref());
}

fn counts(cpu: &Cpu) -> Option<String> {
    let nodes = Some(cpu.numa_nodes.len()).filter(|count| *count > 0);
    let parts = [(cpu.cores, "core"), (cpu.sockets, "socket"), (nodes, "NUMA node")];
    let parts = parts.into_iter().filter_map(|(count, what)| Some(plural(count?, what)));
    let more = match joined(parts, "") {
        parts if parts.is_empty() => parts,
        parts => format!(" ({parts})"),
    };
    Some(format!("{}{more}", cpu.processors?))
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn names(cpu: &Cpu, state: State) -> Option<String> {
    let of = cpu.features.iter().filter(|feature| feature.state == state);
    Some(joined(of.map(|feature| feature.name), "")).filter(|names| !names.is_empty())
}

fn features(page: &mut Page, cpu: &Cpu) {
    if cpu.features.is_empty() {
        return;
    }
    page.heading("Extensions");
    let word = |state: State| match state {
        State::Present => "yes",
        State::Some => "on some",
        State::Absent => "no",
        State::Unknown => "not known",
    };
    #[rustfmt::skip]
    page.table(&Table::of(&cpu.features, &[
        ("extension", &|feature| feature.name.to_owned()),
        ("there", &|feature| word(feature.state).to_owned()),
        ("makes fast", &|feature| feature.serves.to_owned()),
    ]));
}

fn vulnerabilities(page: &mut Page, cpu: &Cpu) {
    let affected = cpu.vulnerabilities.iter();
    #[rustfmt::skip]
    let table = Table::of(affected.filter(|found| found.state != "Not affected"), &[
        ("vulnerability", &|found| plain(&found.name)),
        ("state", &|found| plain(&found.state)),
    ]);
    if !table.is_empty() {
        page.heading("Vulnerabilities, as the kernel reports them");
        page.table(&table);
    }
}

fn hidden(page: &mut Page, cpu: &Cpu) {
    for (reason, features) in cpu::by_reason(&cpu.hidden) {
        page.remark(&format!("! hidden: {}: {reason}", features.join(", ")));
    }
}
