// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The processor: model, extensions for cryptography, and extensions that are hidden.
//!
//! ```text
//! cpuinfo.rs    /proc/cpuinfo of any architecture
//! features.rs   the extensions that matter, and their names in /proc/cpuinfo
//! models.rs     the extensions that known models must have
//! ```
//!
//! Whether a library uses the extensions is the subject of [`libcrypto`](crate::libcrypto).

mod cpuinfo;
mod features;
mod models;

use millrace_hostfs::{LIBRARY_BYTES, Root, Unavailable};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::cpuinfo::CpuInfo;
pub use self::features::{Feature, State};
use crate::architecture::Architecture;
use crate::elf::Elf;
use crate::section::{Section, SectionReader};

/// Bound on folders of processors and nodes; more would repeat the same facts.
const MAX_FOLDERS: usize = 8_192;
/// Programs and libraries that every system has: their header gives the architecture of a tree without
/// `/proc`, such as an unpacked firmware.
const EVERYWHERE: &[&str] =
    &["bin/busybox", "bin/sh", "usr/bin/env", "sbin/init", "lib/libc.so.6", "lib/libc.so"];

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Cpu {
    /// Instruction set
    pub architecture: Option<Architecture>,
    /// Source of the architecture: `cpuinfo`, or the program whose header gives it
    pub architecture_from: Option<String>,
    /// The maker's model name
    pub model: Option<String>,
    /// The design, from vendor, family and model numbers
    pub design: Option<String>,
    /// Logical processors
    pub processors: Option<usize>,
    /// Physical cores
    pub cores: Option<usize>,
    /// Processor packages
    pub sockets: Option<usize>,
    /// NUMA nodes, with their processors
    pub numa_nodes: Vec<NumaNode>,
    /// Clock frequency and its management
    pub frequency: Frequency,
    /// Extensions that make cryptography fast
    pub features: Vec<Feature>,
    /// The hypervisor, if this is a virtual machine
    pub hypervisor: Option<Hypervisor>,
    /// Extensions that the processor must have but does not show
    pub hidden: Vec<Hidden>,
    /// Revision of the microcode
    pub microcode: Option<String>,
    /// Vulnerabilities, as the kernel reports them
    pub vulnerabilities: Vec<Vulnerability>,
}

impl Cpu {
    /// The state of an extension, by its name in this program's tables.
    #[must_use]
    pub fn state(&self, feature: &str) -> State {
        let found = self.features.iter().find(|row| row.name == feature);
        found.map_or(State::Unknown, |row| row.state)
    }
}

/// Hidden extensions by their reason, in the order of the first of each.
#[must_use]
pub fn by_reason(hidden: &[Hidden]) -> Vec<(&str, Vec<&str>)> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for Hidden { feature, reason } in hidden {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, features)) => features.push(feature),
            None => reasons.push((reason, vec![feature])),
        }
    }
    reasons
}

/// Processors that share memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NumaNode {
    /// Node number
    pub node: u32,
    /// Processors of the node, as the kernel lists them: `0-3,8`
    pub processors: String,
}

/// Clock frequency and its management.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Frequency {
    /// The highest frequency that the kernel may set, of any processor
    pub max_khz: Option<u64>,
    /// The governors in use, each once
    pub governors: Vec<String>,
    /// The cpufreq driver, such as `intel_pstate`
    pub driver: Option<String>,
}

/// The hypervisor below a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Hypervisor {
    /// Name of the hypervisor or cloud service, if known
    pub name: Option<String>,
    /// The file or flag that shows it
    pub evidence: String,
}

/// An extension that the processor must have but does not show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Hidden {
    /// Name of the extension, as in /proc/cpuinfo
    pub feature: String,
    /// Cause that hides it, and the evidence
    pub reason: String,
}

/// One vulnerability, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Vulnerability {
    /// Name of its file in /sys/devices/system/cpu/vulnerabilities
    pub name: String,
    /// The kernel's description of its state
    pub state: String,
}

/// Reads the facts about the processors.
#[must_use]
pub fn section(root: &Root) -> Section<Cpu> {
    let mut reader = SectionReader::new(root);
    let info = reader.table("proc/cpuinfo").map(|text| CpuInfo::parse(&text));
    if info.as_ref().is_some_and(|info| info.architecture.is_none()) {
        reader.note("proc/cpuinfo", Unavailable::malformed("it tells no architecture"));
    }
    let mut cpu = Cpu {
        frequency: frequency(&mut reader),
        numa_nodes: numa_nodes(&mut reader),
        vulnerabilities: vulnerabilities(&mut reader),
        ..Cpu::default()
    };
    if let Some(info) = &info {
        describe(&mut cpu, info, &mut reader);
    }
    if cpu.architecture.is_none()
        && let Some((architecture, path)) = from_programs(root)
    {
        cpu.architecture = Some(architecture);
        cpu.architecture_from = Some(path.to_owned());
    }
    let known = cpu != Cpu::default();
    reader.section(known.then_some(cpu))
}

fn describe(cpu: &mut Cpu, info: &CpuInfo, reader: &mut SectionReader<'_>) {
    cpu.architecture = info.architecture;
    cpu.architecture_from = info.architecture.map(|_| "proc/cpuinfo".to_owned());
    cpu.processors = Some(info.processors).filter(|count| *count > 0);
    (cpu.cores, cpu.sockets) = match (info.cores, info.sockets) {
        (None, None) => topology(reader),
        told => told,
    };
    let names = ["model name", "cpu model", "cpu", "uarch", "Processor", "Model Name"];
    let model = names.iter().find_map(|name| info.field(name));
    cpu.model = model.map(str::to_owned);
    let design = models::known(info).map(|(name, _)| name);
    cpu.design = design.or_else(|| models::arm_core(info)).map(str::to_owned);
    cpu.microcode = info.field("microcode").map(str::to_owned);
    cpu.features =
        info.architecture.map(|known| features::features(known, info)).unwrap_or_default();
    cpu.hypervisor = hypervisor(info, reader);
    cpu.hidden = hidden(cpu, info, reader);
}

/// Cores and sockets, for a `/proc/cpuinfo` that does not number them.
fn topology(reader: &mut SectionReader<'_>) -> (Option<usize>, Option<usize>) {
    let folder = "sys/devices/system/cpu";
    let mut cores = Vec::new();
    let mut packages = Vec::new();
    let processors =
        reader.names(folder).into_iter().filter(|name| numbered(name, "cpu").is_some());
    for name in reader.first(folder, processors, MAX_FOLDERS) {
        let threads =
            reader.text_if_there(&format!("{folder}/{name}/topology/thread_siblings_list"));
        let package = reader.text_if_there(&format!("{folder}/{name}/topology/core_siblings_list"));
        cores.extend(threads);
        packages.extend(package);
    }
    let distinct = |mut lists: Vec<String>| {
        lists.sort_unstable();
        lists.dedup();
        Some(lists.len()).filter(|count| *count > 0)
    };
    (distinct(cores), distinct(packages))
}

/// The number in `cpu12`, `node3`, `policy0`.
fn numbered(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

fn numa_nodes(reader: &mut SectionReader<'_>) -> Vec<NumaNode> {
    let folder = "sys/devices/system/node";
    let names = reader.names(folder);
    let mut nodes = Vec::new();
    for name in reader.first(folder, names, MAX_FOLDERS) {
        if let Some(node) = numbered(&name, "node")
            && let Some(processors) = reader.word(&format!("{folder}/{name}/cpulist"))
        {
            nodes.push(NumaNode { node, processors });
        }
    }
    nodes.sort_unstable_by_key(|node| node.node);
    nodes
}

fn frequency(reader: &mut SectionReader<'_>) -> Frequency {
    let folder = "sys/devices/system/cpu/cpufreq";
    let mut frequency = Frequency::default();
    let policies =
        reader.names(folder).into_iter().filter(|name| numbered(name, "policy").is_some());
    for policy in reader.first(folder, policies, MAX_FOLDERS) {
        let max = reader.number_if_there::<u64>(&format!("{folder}/{policy}/cpuinfo_max_freq"));
        frequency.max_khz = frequency.max_khz.max(max);
        let governor = reader.word(&format!("{folder}/{policy}/scaling_governor"));
        frequency.governors.extend(governor);
        let driver = reader.word(&format!("{folder}/{policy}/scaling_driver"));
        frequency.driver = frequency.driver.or(driver);
    }
    frequency.governors.sort_unstable();
    frequency.governors.dedup();
    frequency
}

fn vulnerabilities(reader: &mut SectionReader<'_>) -> Vec<Vulnerability> {
    let folder = "sys/devices/system/cpu/vulnerabilities";
    let mut found = Vec::new();
    let names = reader.names(folder);
    for name in reader.first(folder, names, MAX_FOLDERS) {
        if let Some(state) = reader.word(&format!("{folder}/{name}")) {
            found.push(Vulnerability { name, state });
        }
    }
    found
}

/// Words in DMI tables, and the hypervisor or service that they stand for.
const DMI: &[(&str, &str)] = &[
    ("QEMU", "QEMU"),
    ("KVM", "KVM"),
    ("Amazon EC2", "Amazon EC2"),
    ("Google Compute Engine", "Google Compute Engine"),
    ("VMware", "VMware"),
    ("Microsoft Corporation", "Hyper-V or Azure"),
    ("innotek", "VirtualBox"),
    ("VirtualBox", "VirtualBox"),
    ("Xen", "Xen"),
    ("OpenStack", "OpenStack"),
    ("Alibaba", "Alibaba Cloud"),
    ("Tencent", "Tencent Cloud"),
    ("DigitalOcean", "DigitalOcean"),
    ("Hetzner", "Hetzner"),
    ("Parallels", "Parallels"),
    ("BHYVE", "bhyve"),
];

/// Clocks that only guests of one hypervisor have, in `available_clocksource`.
const CLOCKS: &[(&str, &str)] =
    &[("kvm-clock", "KVM"), ("hyperv_clocksource", "Hyper-V or Azure"), ("xen", "Xen")];

const CLOCK_SOURCES: &str = "sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Files in which hypervisors without DMI tables name themselves.
const SELF_NAMED: &[&str] = &["sys/hypervisor/type", "proc/device-tree/hypervisor/compatible"];

fn hypervisor(info: &CpuInfo, reader: &mut SectionReader<'_>) -> Option<Hypervisor> {
    for path in SELF_NAMED {
        if let Some(name) = reader.word(path) {
            return Some(Hypervisor { name: Some(name), evidence: (*path).to_owned() });
        }
    }
    let platform = info.field("platform").unwrap_or_default();
    if platform.contains("pSeries") && info.field("machine").is_some_and(|m| m.contains("qemu")) {
        return Some(Hypervisor {
            name: Some("QEMU".to_owned()),
            evidence: "the machine line of /proc/cpuinfo".to_owned(),
        });
    }
    // Some makers also sell laptops: without the flag their name proves no hypervisor.
    if !info.flags.contains("hypervisor") {
        return None;
    }
    let dmi = ["sys_vendor", "product_name", "board_vendor"]
        .map(|field| format!("sys/class/dmi/id/{field}"));
    let mut named =
        dmi.into_iter().map(|path| (path, DMI)).chain([(CLOCK_SOURCES.to_owned(), CLOCKS)]);
    let found = named.find_map(|(evidence, words)| {
        let text = reader.text_if_there(&evidence)?;
        let (_, name) = words.iter().find(|(word, _)| text.contains(word))?;
        let name = Some((*name).to_owned());
        Some(Hypervisor { name, evidence })
    });
    found.or_else(|| {
        let evidence = "the hypervisor flag of /proc/cpuinfo".to_owned();
        Some(Hypervisor { name: None, evidence })
    })
}

/// Extensions that the processor must have but does not show.
fn hidden(cpu: &mut Cpu, info: &CpuInfo, reader: &SectionReader<'_>) -> Vec<Hidden> {
    let mut hidden = Vec::new();
    if let Ok(asked) = reader.root().ask_builtin("cpuid", features::asked) {
        for feature in features::settle(&mut cpu.features, &asked) {
            hidden.push(Hidden {
                feature: feature.to_owned(),
                reason:
                    "the processor reports it and the kernel does not show it: it was started with \
                         clearcpuid=, or an older microcode or kernel switched it off"
                        .to_owned(),
            });
        }
    }
    let virtual_machine = cpu.hypervisor.is_some();
    if models::generic(info) {
        hidden.push(Hidden {
            feature: "the model".to_owned(),
            reason: "the hypervisor presents a processor of no particular model, with the extensions that \
                     it chose; ask for the host's own model (QEMU: -cpu host)"
                .to_owned(),
        });
    }
    let Some((model, must)) = models::known(info) else {
        return hidden;
    };
    for feature in must {
        let told = hidden.iter().any(|hidden: &Hidden| hidden.feature == feature);
        if cpu.state(feature) != State::Absent || told {
            continue;
        }
        let who = if virtual_machine {
            "the hypervisor hides it from this machine (QEMU: -cpu host; others: the masks of the \
             virtual machine's settings)"
        } else {
            "it is switched off in the firmware setup, or by the kernel's command line (clearcpuid=)"
        };
        hidden.push(Hidden {
            feature: feature.to_owned(),
            reason: format!("every {model} has it: {who}"),
        });
    }
    hidden
}

/// The architecture of the programs below the root.
fn from_programs(root: &Root) -> Option<(Architecture, &'static str)> {
    EVERYWHERE.iter().find_map(|path| {
        let bytes = root.read(path, LIBRARY_BYTES).ok()?.into_bytes();
        Some((Elf::parse(&bytes).ok()?.architecture, *path))
    })
}

#[cfg(test)]
mod tests;
