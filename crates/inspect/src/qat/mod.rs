// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Intel QAT: all devices and virtual functions of all generations, with the kernel's drivers or Intel's, and
//! whether requests can reach them.
//!
//! ```text
//!  sys/bus/pci/devices/<address>     device, driver, errors, services
//!  sys/kernel/debug/qat_<class>_…    firmware counters, heartbeat, telemetry, configuration   (root)
//!  etc/<class>_dev<n>.conf           configuration by Intel's service
//! ```
//!
//! The files do not show three facts:
//!
//! - A device that is *up* may have no instances for the kernel (`sym` alone, or `dc`).
//! - Counters count requests, not bytes.
//! - An algorithm without a registration in `/proc/crypto` (AES-GCM, with the kernel's own driver) never reaches the
//!   device.

pub mod formats;
mod holders;
pub mod ids;
pub mod library;

use std::collections::BTreeMap;

use millrace_hostfs::{ATTRIBUTE_BYTES, Root, Unavailable};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::holders::FunctionHolder;

use self::formats::{FirmwareHeartbeat, QatEngineCounters, Ring};
use self::ids::{Generation, identify};
use crate::section::{Section, SectionReader};

const PCI: &str = "sys/bus/pci/devices";

/// Files of drivers for root only.
const DEBUG: &str = "sys/kernel/debug";

/// Bound on devices: twice the number of a machine whose sockets have four devices of 16 functions each.
const MAX_DEVICES: usize = 1024;

/// QAT in this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Qat {
    /// Devices and their virtual functions, by bus address
    pub devices: Vec<QatDevice>,
    /// Loaded kernel modules of QAT
    pub modules: Vec<String>,
    /// Whether Intel's service for its own drivers is installed
    pub service: bool,
    /// Configuration files of Intel's drivers
    pub configurations: Vec<Configuration>,
    /// Interrupts of all devices since boot; null if the table could not be read
    pub interrupts: Option<u64>,
    /// Installed user-space libraries and OpenSSL modules of QAT
    pub user_space: Vec<String>,
}

/// A configuration file of Intel's drivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Configuration {
    /// Path
    pub file: String,
    /// Its services and instances
    pub instances: Instances,
}

/// Services and instances in a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Instances {
    /// Enabled services: `cy`, `dc`, `sym`, `asym`
    pub services: Vec<String>,
    /// Crypto instances of the kernel; null if not configured
    pub kernel_crypto: Option<u64>,
    /// Compression instances of the kernel; null if not configured
    pub kernel_compression: Option<u64>,
}

/// One device or virtual function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct QatDevice {
    /// Bus address
    pub address: String,
    /// PCI device number
    pub device_id: u16,
    /// Product line
    pub model: String,
    /// Generation of the hardware, which decides on services and counters
    pub generation: Generation,
    /// Whether this is a virtual function of a card
    pub virtual_function: bool,
    /// The physical device of a virtual function; null in a guest, which cannot see it
    pub parent: Option<String>,
    /// Its driver; null if it has none
    pub driver: Option<String>,
    /// Whether the kernel's tree has a driver for it; otherwise only Intel's package does
    pub driver_in_tree: bool,
    /// Number of its IOMMU group, which is its file in /dev/vfio; null without an IOMMU
    pub group: Option<String>,
    /// The processes that have a virtual function open; root sees all
    pub holders: Vec<FunctionHolder>,
    /// NUMA node; null if the machine has only one
    pub numa_node: Option<u32>,
    /// Speed and width of its PCIe link, current and possible
    pub link: Option<PcieLink>,
    /// Number of virtual functions, current and possible
    pub functions: Option<Functions>,
    /// Whether it is up; null if unknown
    pub up: Option<bool>,
    /// Configured services; empty if unknown
    pub services: Vec<String>,
    /// Request and response rings, in pairs, that it can offer
    pub ring_pairs: Option<u64>,
    /// Whether it resets itself after a fatal error; null if it has no such setting
    pub resets_itself: Option<bool>,
    /// Counters of each engine's firmware; empty if they could not be read
    pub engines: Vec<QatEngineCounters>,
    /// Answer of the firmware; null if it was not asked
    pub heartbeat: Option<FirmwareHeartbeat>,
    /// Heartbeats that the firmware missed since the driver was loaded
    pub heartbeats_failed: Option<u64>,
    /// Errors since the counters were reset
    pub errors: Option<Errors>,
    /// Its configuration; null if it could not be read
    pub instances: Option<Instances>,
    /// Rings with unread requests or responses, the fullest first
    pub rings: Vec<Ring>,
    /// Utilisation and latencies, where telemetry is on
    pub telemetry: BTreeMap<String, u64>,
}

/// Speed and width of a PCIe link, now and at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PcieLink {
    /// Current speed, in the kernel's words
    pub speed: String,
    /// Possible speed of the device
    pub possible_speed: String,
    /// Current number of lanes
    pub width: u32,
    /// Possible number of lanes
    pub possible_width: u32,
}

impl PcieLink {
    /// Whether the link is slower or narrower than the device allows.
    #[must_use]
    pub fn below_its_possibilities(&self) -> bool {
        self.width < self.possible_width || self.speed != self.possible_speed
    }
}

/// Virtual functions of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Functions {
    /// Current number
    pub enabled: u32,
    /// Possible number
    pub possible: u32,
}

/// Error counters of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Errors {
    /// Corrected by the device
    pub correctable: u64,
    /// Uncorrected, but the device continued
    pub nonfatal: u64,
    /// Took the device down
    pub fatal: u64,
}

impl Errors {
    /// Whether any counter is above zero.
    #[must_use]
    pub fn any(self) -> bool {
        self.correctable > 0 || self.nonfatal > 0 || self.fatal > 0
    }
}

impl QatDevice {
    /// Requests accepted by all engines.
    #[must_use]
    pub fn requests(&self) -> u64 {
        let requests = self.engines.iter().map(|engine| engine.requests);
        requests.fold(0, u64::saturating_add)
    }

    /// Unanswered requests: in flight, or lost in an engine that hangs.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        let gaps =
            self.engines.iter().map(|engine| engine.requests.saturating_sub(engine.responses));
        gaps.fold(0, u64::saturating_add)
    }

    /// Name of the kernel module that drives the device.
    #[must_use]
    pub fn module(&self) -> String {
        let row = ids::IDENTITIES.iter().find(|row| row.device == self.device_id);
        row.map_or_else(|| "intel_qat".to_owned(), |row| format!("qat_{}", row.class))
    }

    /// Whether the kernel's crypto (IPsec, dm-crypt) can use it in its configuration; none if unknown. `sym`
    /// alone has no instances for the kernel, and `dc` is compression.
    ///
    /// Source: `adf_gen4_config.c`, `adf_gen2_config.c`.
    #[must_use]
    pub fn serves_the_kernel(&self) -> Option<bool> {
        if let Some(instances) = self.instances.as_ref().and_then(|given| given.kernel_crypto) {
            return Some(instances > 0);
        }
        if self.services.is_empty() {
            return None;
        }
        let has = |service: &str| self.services.iter().any(|own| own == service);
        Some(has("cy") || has("sym") && has("asym"))
    }
}

/// Reads the facts about devices, drivers and libraries.
#[must_use]
pub fn section(root: &Root) -> Section<Qat> {
    let mut reader = SectionReader::new(root);
    let qat = Qat {
        devices: devices(&mut reader),
        modules: modules(&mut reader),
        service: reader.exists("etc/init.d/qat_service")
            || reader.exists("usr/sbin/adf_ctl")
            || reader.exists("usr/local/bin/adf_ctl"),
        configurations: configurations(&mut reader),
        interrupts: reader.table("proc/interrupts").map(|text| {
            let ours = formats::interrupts(&text, |line| line.contains("qat"));
            ours.fold(0_u64, |sum, (_, count)| sum.saturating_add(count))
        }),
        user_space: user_space(&mut reader),
    };
    reader.section(Some(qat))
}

fn devices(reader: &mut SectionReader<'_>) -> Vec<QatDevice> {
    let mut devices = Vec::new();
    let folders = reader.names(DEBUG);
    for address in reader.names(PCI) {
        // The address becomes part of commands that people copy, so a hostile tree must not choose it.
        if !formats::is_bus_address(&address) {
            continue;
        }
        let folder = format!("{PCI}/{address}");
        let mut hex = |name: &str| {
            let text = reader.text_if_there(&format!("{folder}/{name}"))?;
            u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        let Some((vendor, device_id)) = hex("vendor").zip(hex("device")) else {
            continue;
        };
        let Some(identity) = identify(vendor, device_id) else {
            continue;
        };
        if reader.is_full("QAT devices", &devices, MAX_DEVICES) {
            break;
        }
        let mut device = QatDevice {
            address: address.clone(),
            device_id,
            model: identity.model.to_owned(),
            generation: identity.generation,
            virtual_function: identity.virtual_function,
            parent: reader.link_name(&format!("{folder}/physfn")),
            driver: reader.link_name(&format!("{folder}/driver")),
            driver_in_tree: identity.in_tree,
            group: reader.link_name(&format!("{folder}/iommu_group")),
            holders: Vec::new(),
            numa_node: reader.numa_node(&folder),
            link: link(reader, &folder),
            functions: functions(reader, &folder),
            up: None,
            services: Vec::new(),
            ring_pairs: None,
            resets_itself: None,
            engines: Vec::new(),
            heartbeat: None,
            heartbeats_failed: None,
            errors: errors(reader, &folder),
            instances: None,
            rings: Vec::new(),
            telemetry: BTreeMap::new(),
        };
        sysfs(reader, &folder, &mut device);
        let debug = folders.iter().find(|name| is_folder_of(name, identity.class, &address));
        if let Some(name) = debug {
            debugfs(reader, &format!("{DEBUG}/{name}"), &mut device);
        }
        devices.push(device);
    }
    holders::note(reader, &mut devices);
    devices
}

/// Whether this is the debugfs folder of the device. Old drivers omit the PCI domain.
fn is_folder_of(name: &str, class: &str, address: &str) -> bool {
    let rest = name.strip_prefix("qat_").and_then(|rest| rest.strip_prefix(class));
    let found = rest.and_then(|rest| rest.strip_prefix('_'));
    found.is_some_and(|found| formats::full_address(found) == address)
}

fn link(reader: &mut SectionReader<'_>, folder: &str) -> Option<PcieLink> {
    let mut text = |name: &str| reader.word(&format!("{folder}/{name}"));
    Some(PcieLink {
        speed: text("current_link_speed")?,
        possible_speed: text("max_link_speed")?,
        width: text("current_link_width")?.parse().ok()?,
        possible_width: text("max_link_width")?.parse().ok()?,
    })
}

fn functions(reader: &mut SectionReader<'_>, folder: &str) -> Option<Functions> {
    Some(Functions {
        enabled: reader.number_if_there(&format!("{folder}/sriov_numvfs"))?,
        possible: reader.number_if_there(&format!("{folder}/sriov_totalvfs"))?,
    })
}

fn errors(reader: &mut SectionReader<'_>, folder: &str) -> Option<Errors> {
    let mut count = |name: &str| reader.number_if_there(&format!("{folder}/qat_ras/{name}"));
    Some(Errors {
        correctable: count("errors_correctable")?,
        nonfatal: count("errors_nonfatal")?,
        fatal: count("errors_fatal")?,
    })
}

/// Facts from sysfs, shown by newer drivers of the kernel's tree.
fn sysfs(reader: &mut SectionReader<'_>, folder: &str, device: &mut QatDevice) {
    let mut word = |name: &str| reader.word(&format!("{folder}/qat/{name}"));
    let either = |word: Option<String>, yes: &str, no: &str| match word? {
        word if word == yes => Some(true),
        word if word == no => Some(false),
        _ => None,
    };
    device.up = either(word("state"), "up", "down");
    device.services = word("cfg_services").map_or_else(Vec::new, |text| formats::services(&text));
    device.ring_pairs = word("num_rps").and_then(|text| formats::number(&text));
    device.resets_itself = either(word("auto_reset"), "on", "off");
}

/// Facts from debugfs, which drivers show only to root.
fn debugfs(reader: &mut SectionReader<'_>, folder: &str, device: &mut QatDevice) {
    let path = format!("{folder}/fw_counters");
    let is_denied = reader.root().read(&path, ATTRIBUTE_BYTES) == Err(Unavailable::Denied);
    let counters = reader.text_if_there(&path);
    device.engines = counters.map(|text| formats::fw_counters(&text)).unwrap_or_default();
    // The counters exist only while the device is up. Without the right to read them its state is unknown.
    if device.up.is_none() && !device.virtual_function && !is_denied {
        device.up = Some(!device.engines.is_empty());
    }
    let heartbeat = reader.text_if_there(&format!("{folder}/heartbeat/status"));
    device.heartbeat = heartbeat.and_then(|text| formats::heartbeat(&text));
    device.heartbeats_failed =
        reader.number_if_there(&format!("{folder}/heartbeat/queries_failed"));
    let configuration = reader.text_if_there(&format!("{folder}/dev_cfg"));
    device.instances = configuration.map(|text| instances(&formats::dev_cfg(&text)));
    if device.services.is_empty()
        && let Some(instances) = &device.instances
    {
        device.services.clone_from(&instances.services);
    }
    device.rings = rings(reader, folder);
    // While telemetry is off the driver refuses to give data, and logs the attempt.
    let control = reader.number_if_there::<u64>(&format!("{folder}/telemetry/control"));
    if control.is_some_and(|control| control > 0) {
        let data = reader.text_if_there(&format!("{folder}/telemetry/device_data"));
        device.telemetry = data.map(|text| formats::telemetry(&text)).unwrap_or_default();
    }
}

/// The non-empty rings of all banks, the fullest first.
fn rings(reader: &mut SectionReader<'_>, folder: &str) -> Vec<Ring> {
    let mut found = Vec::new();
    for bank in reader.names(&format!("{folder}/transport")) {
        if !bank.starts_with("bank_") {
            continue;
        }
        for name in reader.names(&format!("{folder}/transport/{bank}")) {
            if !name.starts_with("ring_") {
                continue;
            }
            let text = reader.text_if_there(&format!("{folder}/transport/{bank}/{name}"));
            let ring = text.and_then(|text| formats::ring(&format!("{bank}/{name}"), &text));
            found.extend(ring.filter(|ring| ring.used_bytes > 0));
        }
    }
    let mut found = reader.first(&format!("{folder}/transport"), found, formats::MAX_ROWS);
    // By fill ratio: sizes differ.
    found.sort_by_key(|ring| {
        std::cmp::Reverse(ring.used_bytes.saturating_mul(1000) / ring.size_bytes)
    });
    found
}

fn instances(sections: &formats::Sections) -> Instances {
    let value = |section: &str, key: &str| sections.get(section).and_then(|keys| keys.get(key));
    let number = |key| value("KERNEL", key).and_then(|value| value.parse().ok());
    Instances {
        services: value("GENERAL", "ServicesEnabled")
            .map(|value| formats::services(value))
            .unwrap_or_default(),
        kernel_crypto: number("NumberCyInstances"),
        kernel_compression: number("NumberDcInstances"),
    }
}

fn modules(reader: &mut SectionReader<'_>) -> Vec<String> {
    let mut modules = reader.modules();
    modules.retain(|name| name.starts_with("qat_") || name == "intel_qat" || name == "usdm_drv");
    reader.first("QAT modules", modules, MAX_DEVICES)
}

fn configurations(reader: &mut SectionReader<'_>) -> Vec<Configuration> {
    let is_one = |name: &str| {
        let class = name.strip_suffix(".conf").and_then(|stem| stem.split_once("_dev"));
        class.is_some_and(|(class, number)| {
            let known = ids::IDENTITIES.iter().any(|identity| identity.class == class);
            known && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let names: Vec<String> = reader.names("etc").into_iter().filter(|name| is_one(name)).collect();
    let mut found = Vec::new();
    for name in reader.first("etc", names, MAX_DEVICES) {
        let file = format!("etc/{name}");
        if let Some(text) = reader.text(&file) {
            let instances = instances(&formats::dev_cfg(&text));
            found.push(Configuration { file, instances });
        }
    }
    found
}

/// Folders of OpenSSL's modules and engines, and of libraries.
const LIBRARY_FOLDERS: [&str; 10] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/ossl-modules",
    "usr/lib/x86_64-linux-gnu/engines-3",
    "usr/lib64",
    "usr/lib64/ossl-modules",
    "usr/lib64/engines-3",
    "usr/local/lib",
    "usr/local/lib/ossl-modules",
    "usr/local/lib/engines-3",
    "usr/local/ssl/lib",
];

fn user_space(reader: &mut SectionReader<'_>) -> Vec<String> {
    const STEMS: [&str; 6] =
        ["qatengine", "qatprovider", "libqat.so", "libqat_s.so", "libusdm", "libcrypto_mb.so"];
    let mut found = Vec::new();
    for folder in LIBRARY_FOLDERS {
        for name in reader.root().names(folder) {
            let is_one = STEMS.iter().any(|stem| name.starts_with(stem));
            if is_one
                && name.contains(".so")
                && !reader.is_full("QAT libraries", &found, MAX_DEVICES)
            {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_found_by_class_and_address() {
        assert!(is_folder_of("qat_4xxx_0000:6b:00.0", "4xxx", "0000:6b:00.0"));
        assert!(is_folder_of("qat_dh895xcc_09:00.0", "dh895xcc", "0000:09:00.0"));
        assert!(!is_folder_of("qat_4xxx_0000:6b:00.0", "4xxx", "0000:6b:00.1"));
        assert!(!is_folder_of("qat_4xxxvf_0000:6b:00.0", "4xxx", "0000:6b:00.0"));
        assert!(!is_folder_of("dri", "4xxx", "0000:6b:00.0"));
    }
}
