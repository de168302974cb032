// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Facts about the system that only checks use: kernel parameters and limits, memory, temperatures, settings
//! of servers.

use std::collections::BTreeMap;

use millrace_hostfs::{KERNEL_PARAMETERS, Root, process};
use schemars::JsonSchema;
use serde::Serialize;

use super::settings::{self, FileSettings};
use crate::kernel::blocked::{self, BlockedModule};
use crate::machine;
use crate::offload_status::program_of;
use crate::qat::library;
use crate::section::{Section, SectionReader};

/// Facts about the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct System {
    /// Kernel parameters, only those that checks judge
    pub boot: Vec<String>,
    /// Numbers of `/proc/meminfo`, in KiB or pages, by its names
    pub memory: BTreeMap<String, u64>,
    /// Numbers below `/proc/sys`, by their paths
    pub sysctls: BTreeMap<String, u64>,
    /// Destination of the kernel's core files
    pub core_pattern: Option<String>,
    /// File handles of the whole system
    pub file_handles: Option<FileHandles>,
    /// The kernel's lockdown: `none`, `integrity`, `confidentiality`
    pub lockdown: Option<String>,
    /// Temperatures
    pub thermal: Vec<Zone>,
    /// NUMA nodes of network cards, by interface
    pub card_nodes: BTreeMap<String, u32>,
    /// Firmware files of QAT; null without a firmware folder
    pub qat_firmware: Option<Vec<String>>,
    /// Intel's manager of virtual functions of QAT; null if it is not installed
    pub qat_manager: Option<QatManager>,
    /// The kernel's release and build, from `/proc/version`: at Debian the build names the patch level
    pub kernel_version: Option<String>,
    /// Running servers and their limits
    pub servers: Vec<RunningServer>,
    /// Settings of servers and libraries
    pub settings: Vec<FileSettings>,
    /// Services that `millrace gateway` has given its configuration by a drop-in
    pub configured_services: Vec<String>,
    /// Kernel modules that this machine keeps from loading
    pub blocked_modules: Vec<BlockedModule>,
}

/// File handles of the whole system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileHandles {
    /// Number in use
    pub used: u64,
    /// Maximum
    pub most: u64,
}

/// Intel's `qatmgr`, which hands virtual functions to processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QatManager {
    /// Path of the program file
    pub file: String,
    /// The release of qatlib that it belongs to; null if the file does not contain it
    pub release: Option<String>,
    /// Process ID; null if it does not run
    pub pid: Option<u32>,
    /// Whether its file was replaced after it was started
    pub replaced: bool,
}

/// A thermal zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Zone {
    /// Type of the zone
    pub name: String,
    /// Temperature, in thousandths of a degree Celsius
    pub temperature_millicelsius: i64,
    /// Temperature at which the machine is throttled or switched off, in thousandths of a degree Celsius
    pub trip_millicelsius: Option<i64>,
}

/// A running TLS server and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RunningServer {
    /// Process ID
    pub pid: u32,
    /// Name of the program
    pub name: String,
    /// Limit of open files and connections; null if unlimited
    pub open_files: Option<u64>,
    /// Whether it writes a core file when it crashes
    pub dumps_core: bool,
    /// Whether a filter of system calls (seccomp) is on it
    pub has_filter: bool,
}

/// Bound on thermal zones, modules and other rows: a kernel with every driver loaded has a few hundred modules.
const MAX_ROWS: usize = 1_024;

/// Numbers below `/proc/sys` that checks judge.
const SYSCTLS: [&str; 3] =
    ["net/core/somaxconn", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_count"];

/// Reads the facts about the system.
#[must_use]
pub fn section(root: &Root) -> Section<System> {
    let mut reader = SectionReader::new(root);
    let system = System {
        boot: boot(&mut reader),
        memory: machine::memory(&mut reader),
        sysctls: sysctls(&mut reader),
        file_handles: reader
            .text_if_there("proc/sys/fs/file-nr")
            .and_then(|text| file_handles(&text)),
        core_pattern: reader.word("proc/sys/kernel/core_pattern"),
        lockdown: reader
            .text_if_there("sys/kernel/security/lockdown")
            .and_then(|text| chosen(&text)),
        thermal: thermal(&mut reader),
        card_nodes: card_nodes(&mut reader),
        qat_firmware: firmware(&mut reader),
        qat_manager: qat_manager(root),
        kernel_version: reader.text_if_there("proc/version").map(|text| kernel_version(&text)),
        servers: servers(&mut reader),
        settings: settings::find(&mut reader),
        configured_services: configured(&mut reader),
        blocked_modules: blocked::read(&mut reader),
    };
    reader.section(Some(system))
}

/// The services with a drop-in of ours, of those that checks judge.
fn configured(reader: &mut SectionReader<'_>) -> Vec<String> {
    let mut has_ours = |service: &&str| {
        reader.exists(&format!("etc/systemd/system/{service}.service.d/millrace.conf"))
    };
    let found = ["nginx", "apache2", "certbot"].into_iter().filter(|service| has_ours(service));
    found.map(str::to_owned).collect()
}

/// Only the parameters that reports name: others may contain secrets, such as those of a network disk.
fn boot(reader: &mut SectionReader<'_>) -> Vec<String> {
    let text = reader.text_if_there("proc/cmdline").unwrap_or_default();
    let judged = |word: &&str| {
        let name = word.split('=').next().unwrap_or_default();
        KERNEL_PARAMETERS.contains(&name)
    };
    let words = text.split_whitespace().filter(judged).map(str::to_owned);
    reader.first("proc/cmdline", words, MAX_ROWS)
}

fn sysctls(reader: &mut SectionReader<'_>) -> BTreeMap<String, u64> {
    let number = |name: &&str| {
        let value = reader.number_if_there(&format!("proc/sys/{name}"))?;
        Some(((*name).to_owned(), value))
    };
    SYSCTLS.iter().filter_map(number).collect()
}

/// `used free most`
fn file_handles(text: &str) -> Option<FileHandles> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let used = numbers.next()?.ok()?;
    let most = numbers.nth(1)?.ok()?;
    Some(FileHandles { used, most })
}

/// The word in brackets of `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

fn thermal(reader: &mut SectionReader<'_>) -> Vec<Zone> {
    const FOLDER: &str = "sys/class/thermal";
    const TRIPS: usize = 16;
    let mut zones = Vec::new();
    let names = reader.names(FOLDER);
    let names = names.into_iter().filter(|name| name.starts_with("thermal_zone"));
    for name in reader.first(FOLDER, names, MAX_ROWS) {
        let folder = format!("{FOLDER}/{name}");
        // A disabled sensor returns an error instead of a temperature.
        let temperature = reader.root().text(&format!("{folder}/temp"), 64);
        let Some(temperature) = temperature.ok().and_then(|text| text.trim().parse().ok()) else {
            continue;
        };
        let kind = reader.word(&format!("{folder}/type"));
        let mut trip: Option<i64> = None;
        for number in 0..TRIPS {
            let Some(kind) = reader.word(&format!("{folder}/trip_point_{number}_type")) else {
                break;
            };
            let at = reader.number_if_there::<i64>(&format!("{folder}/trip_point_{number}_temp"));
            // Passive: the processor is throttled. Points at or below zero are not set.
            if ["passive", "hot", "critical"].contains(&kind.as_str()) {
                let at = at.filter(|at| *at > 0);
                trip = trip.min(at).or(trip).or(at);
            }
        }
        zones.push(Zone {
            name: kind.unwrap_or(name),
            temperature_millicelsius: temperature,
            trip_millicelsius: trip,
        });
    }
    zones
}

fn card_nodes(reader: &mut SectionReader<'_>) -> BTreeMap<String, u32> {
    const FOLDER: &str = "sys/class/net";
    let mut nodes = BTreeMap::new();
    let names = reader.names(FOLDER);
    for name in reader.first(FOLDER, names, MAX_ROWS) {
        if let Some(node) = reader.numa_node(&format!("{FOLDER}/{name}/device")) {
            nodes.insert(name, node);
        }
    }
    nodes
}

fn firmware(reader: &mut SectionReader<'_>) -> Option<Vec<String>> {
    let folders = ["lib/firmware", "usr/lib/firmware"];
    let folder = folders.iter().find(|folder| reader.exists(folder))?;
    let mut names = reader.names(folder);
    // Newer firmware packages have a folder for Intel.
    names.extend(reader.names(&format!("{folder}/intel/qat")));
    names.retain(|name| name.starts_with("qat_"));
    Some(reader.first(folder, names, MAX_ROWS))
}

fn qat_manager(root: &Root) -> Option<QatManager> {
    const FILES: [&str; 2] = ["usr/sbin/qatmgr", "usr/local/sbin/qatmgr"];
    // Those of qatlib 24.02 and 26.08 have 51 and 60 KB.
    const MAX_CONFIG_BYTES: usize = 1 << 20;
    let file = FILES.into_iter().find(|file| root.exists(file))?;
    let running = process::named(root, |name| name == "qatmgr");
    let pid = running.first().map(|process| process.pid);
    let program = pid.and_then(|pid| root.link(&format!("proc/{pid}/exe")).ok().flatten());
    let text = root.lossy_text(file, MAX_CONFIG_BYTES).ok();
    Some(QatManager {
        file: file.to_owned(),
        release: text.and_then(|text| library::software_version(&text)),
        pid,
        replaced: program.is_some_and(|program| program.ends_with(" (deleted)")),
    })
}

/// `6.1.0-37-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.140-1 (2025-05-22)` of a line that also names the compiler, its
/// version and the builder's machine.
fn kernel_version(text: &str) -> String {
    let release = text.split_whitespace().nth(2).unwrap_or_default();
    let build = text.find('#').map_or("", |at| text[at..].trim_end());
    format!("{release} {build}").trim_end().to_owned()
}

fn servers(reader: &mut SectionReader<'_>) -> Vec<RunningServer> {
    let root = reader.root();
    let running = process::named(root, |name| program_of(name).is_some()).into_iter();
    let servers = running.filter_map(|server| {
        let limits = root.text(&format!("proc/{}/limits", server.pid), 16 << 10).ok()?;
        let limit = |name| process::soft_limit(&limits, name);
        let status = root.text(&format!("proc/{}/status", server.pid), 16 << 10);
        let filter = status.is_ok_and(|text| text.lines().any(|line| line == "Seccomp:\t2"));
        Some(RunningServer {
            pid: server.pid,
            name: server.name,
            open_files: limit("Max open files").and_then(|word| word.parse().ok()),
            dumps_core: limit("Max core file size").is_some_and(|word| word != "0"),
            has_filter: filter,
        })
    });
    reader.first("servers", servers, MAX_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_parsed() {
        let handles = file_handles("1504\t0\t9223372036854775807\n");
        assert_eq!(handles.map(|handles| handles.used), Some(1504));
        assert_eq!(file_handles("1504"), None);
        assert_eq!(chosen("none [integrity] confidentiality").as_deref(), Some("integrity"));
        assert_eq!(chosen("none"), None);
        assert_eq!(
            kernel_version(
                "Linux version 6.1.0-37-amd64 (builder@host) (gcc-12 (Debian 12.2.0-14)) #1 SMP Debian 6.1.140-1\n"
            ),
            "6.1.0-37-amd64 #1 SMP Debian 6.1.140-1"
        );
        assert_eq!(kernel_version("Linux version 6.1.100"), "6.1.100");
    }
}
