// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The system around the cryptography, as far as checks judge it: the kernel's parameters and limits,
//! memory, temperatures, and settings of servers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::settings::{self, Settings};
use crate::report::{Look, Section};
use millrace_hostfs::{Root, process};

/// The system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct System {
    /// Of what the kernel was started with, the parameters that checks judge
    pub boot: Vec<String>,
    /// Modules that are loaded
    pub modules: Vec<String>,
    /// Numbers of `/proc/meminfo`, in KiB or pages, by its names
    pub memory: BTreeMap<String, u64>,
    /// Numbers below `/proc/sys`, by their paths
    pub sysctls: BTreeMap<String, u64>,
    /// Where the kernel puts the memory of a program that crashed
    pub core_pattern: Option<String>,
    /// File handles in use, and how many there may be
    pub file_handles: Option<FileHandles>,
    /// The kernel's lockdown: `none`, `integrity`, `confidentiality`
    pub lockdown: Option<String>,
    /// Temperatures
    pub thermal: Vec<Zone>,
    /// NUMA nodes of network cards, by interface
    pub card_nodes: BTreeMap<String, u32>,
    /// Firmware files of QAT; null if there is no folder of firmware
    pub qat_firmware: Option<Vec<String>>,
    /// Servers that run, and their limits
    pub servers: Vec<Server>,
    /// Settings of servers and libraries
    pub settings: Vec<Settings>,
}

/// File handles of the whole system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileHandles {
    /// In use
    pub used: u64,
    /// At most
    pub most: u64,
}

/// A place whose temperature is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Zone {
    /// What it is
    pub name: String,
    /// How warm it is, in thousandths of a degree Celsius
    pub temperature_millicelsius: i64,
    /// From where on it is throttled or switched off, in thousandths of a degree Celsius
    pub trip_millicelsius: Option<i64>,
}

/// A server that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Server {
    /// Its process
    pub pid: u32,
    /// Its program
    pub name: String,
    /// Files and connections that it may have open; null for no limit
    pub open_files: Option<u64>,
    /// Whether it leaves its memory in a file when it crashes
    pub dumps_core: bool,
}

/// Processes that are looked at; a gateway has some hundreds.
const MAX_PROCESSES: usize = 4_096;
/// Zones and modules that are kept.
const MAX_ROWS: usize = 1_024;

/// Programs whose limits matter.
const SERVERS: [&str; 9] = [
    "nginx",
    "haproxy",
    "openvpn",
    "apache2",
    "httpd",
    "lighttpd",
    "stunnel4",
    "charon",
    "charon-systemd",
];

/// Numbers below `/proc/sys` that checks judge.
const SYSCTLS: [&str; 3] = [
    "net/core/somaxconn",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
];

/// Looks at the system.
#[must_use]
pub fn section(root: &Root) -> Section<System> {
    let mut look = Look::new(root);
    let system = System {
        boot: boot(&mut look),
        modules: modules(&mut look),
        memory: memory(&mut look),
        sysctls: sysctls(&mut look),
        file_handles: look
            .text_if_there("proc/sys/fs/file-nr")
            .and_then(|text| file_handles(&text)),
        core_pattern: look
            .text_if_there("proc/sys/kernel/core_pattern")
            .map(|text| text.trim().to_owned()),
        lockdown: look
            .text_if_there("sys/kernel/security/lockdown")
            .and_then(|text| chosen(&text)),
        thermal: thermal(&mut look),
        card_nodes: card_nodes(&mut look),
        qat_firmware: firmware(&mut look),
        servers: servers(&look),
        settings: settings::find(&mut look),
    };
    look.section(Some(system))
}

/// The others may be anything, also secrets of a network disk.
fn boot(look: &mut Look<'_>) -> Vec<String> {
    const JUDGED: [&str; 10] = [
        "mitigations",
        "nopti",
        "idle",
        "processor.max_cstate",
        "processor.max_cstates",
        "intel_idle.max_cstate",
        "intel_iommu",
        "amd_iommu",
        "iommu",
        "clearcpuid",
    ];
    let text = look.text_if_there("proc/cmdline").unwrap_or_default();
    let judged = |word: &&str| {
        let name = word.split('=').next().unwrap_or_default();
        JUDGED.contains(&name)
    };
    let words = text.split_whitespace().filter(judged).take(MAX_ROWS);
    words.map(str::to_owned).collect()
}

fn modules(look: &mut Look<'_>) -> Vec<String> {
    let text = match look.root().kind("proc/modules") {
        Ok(_) => look.table("proc/modules").unwrap_or_default(),
        Err(_) => String::new(),
    };
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names.take(MAX_ROWS).map(str::to_owned).collect()
}

fn memory(look: &mut Look<'_>) -> BTreeMap<String, u64> {
    let text = look.text_if_there("proc/meminfo").unwrap_or_default();
    let row = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let value = value.split_whitespace().next()?.parse().ok()?;
        Some((name.to_owned(), value))
    };
    let wanted = [
        "MemTotal",
        "MemAvailable",
        "HugePages_Total",
        "HugePages_Free",
    ];
    text.lines()
        .filter_map(row)
        .filter(|(name, _)| wanted.contains(&name.as_str()))
        .collect()
}

fn sysctls(look: &mut Look<'_>) -> BTreeMap<String, u64> {
    let number = |name: &&str| {
        let value = look.number_if_there(&format!("proc/sys/{name}"))?;
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

/// `none [integrity] confidentiality`: the one in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

fn thermal(look: &mut Look<'_>) -> Vec<Zone> {
    const FOLDER: &str = "sys/class/thermal";
    const TRIPS: usize = 16;
    let mut zones = Vec::new();
    let names = look.names(FOLDER);
    let names = names.iter().filter(|name| name.starts_with("thermal_zone"));
    for name in names.take(MAX_ROWS) {
        let folder = format!("{FOLDER}/{name}");
        // A sensor that is switched off gives an error: no temperature.
        let temperature = look.root().text(&format!("{folder}/temp"), 64);
        let Some(temperature) = temperature.ok().and_then(|text| text.trim().parse().ok()) else {
            continue;
        };
        let kind = look.text_if_there(&format!("{folder}/type"));
        let mut trip: Option<i64> = None;
        for number in 0..TRIPS {
            let Some(kind) = look.text_if_there(&format!("{folder}/trip_point_{number}_type"))
            else {
                break;
            };
            let at = look.number_if_there::<i64>(&format!("{folder}/trip_point_{number}_temp"));
            // Passive: the processor is throttled. Points at or below zero are not set.
            if ["passive", "hot", "critical"].contains(&kind.trim()) {
                let at = at.filter(|at| *at > 0);
                trip = trip.min(at).or(trip).or(at);
            }
        }
        zones.push(Zone {
            name: kind.map_or_else(|| name.clone(), |kind| kind.trim().to_owned()),
            temperature_millicelsius: temperature,
            trip_millicelsius: trip,
        });
    }
    zones
}

fn card_nodes(look: &mut Look<'_>) -> BTreeMap<String, u32> {
    const FOLDER: &str = "sys/class/net";
    let mut nodes = BTreeMap::new();
    for name in look.names(FOLDER).into_iter().take(MAX_ROWS) {
        let node = look.number_if_there::<i64>(&format!("{FOLDER}/{name}/device/numa_node"));
        if let Some(node) = node.and_then(|node| u32::try_from(node).ok()) {
            nodes.insert(name, node);
        }
    }
    nodes
}

fn firmware(look: &mut Look<'_>) -> Option<Vec<String>> {
    let folders = ["lib/firmware", "usr/lib/firmware"];
    let folder = folders.iter().find(|folder| look.root().exists(folder))?;
    let mut names = look.names(folder);
    // Newer packages of firmware have a folder of Intel's.
    names.extend(look.names(&format!("{folder}/intel/qat")));
    names.retain(|name| name.starts_with("qat_"));
    names.truncate(MAX_ROWS);
    Some(names)
}

fn servers(look: &Look<'_>) -> Vec<Server> {
    let mut found = Vec::new();
    for pid in process::pids(look.root()).into_iter().take(MAX_PROCESSES) {
        // A process may end at any time: what is gone is no finding.
        let Ok(comm) = look.root().text(&format!("proc/{pid}/comm"), 64) else {
            continue;
        };
        let name = comm.trim();
        if !SERVERS.contains(&name) {
            continue;
        }
        let Ok(limits) = look.root().text(&format!("proc/{pid}/limits"), 16 << 10) else {
            continue;
        };
        found.push(Server {
            pid,
            name: name.to_owned(),
            open_files: process::soft_limit(&limits, "Max open files")
                .and_then(|word| word.parse().ok()),
            dumps_core: process::soft_limit(&limits, "Max core file size")
                .is_some_and(|word| word != "0"),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let handles = file_handles("1504\t0\t9223372036854775807\n");
        assert_eq!(handles.map(|handles| handles.used), Some(1504));
        assert_eq!(file_handles("1504"), None);
        assert_eq!(
            chosen("none [integrity] confidentiality").as_deref(),
            Some("integrity")
        );
        assert_eq!(chosen("none"), None);
    }
}
