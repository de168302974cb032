// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Accelerators other than QAT: graphics processors, virtio-crypto, Intel's data-streaming and analytics
//! engines, and the two interfaces through which programs use the kernel's cryptography (`/dev/crypto`,
//! `AF_ALG`). Engines of Arm systems-on-chip have no files; their drivers appear in the kernel's table
//! ([`crate::kernel`]).

use millrace_hostfs::{FileKind, Root};
use schemars::JsonSchema;
use serde::Serialize;

use crate::section::{Section, SectionReader};

/// Bound on devices of one kind: a machine of eight sockets has fewer than 100.
const MAX_DEVICES: usize = 256;

/// NVIDIA's PCI vendor number.
const VENDOR_NVIDIA: &str = "0x10de";

/// The device ID of virtio-crypto (specification 1.2, section 5).
const VIRTIO_CRYPTO: &str = "0x0014";

/// Accelerators other than QAT.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Accelerators {
    /// Graphics processors of NVIDIA
    pub gpus: Vec<Gpu>,
    /// Version of NVIDIA's kernel driver; null if none is loaded
    pub nvidia_driver: Option<String>,
    /// Devices of virtio-crypto
    pub virtio_crypto: Vec<Bound>,
    /// Intel's data-streaming accelerators (copies, checksums; no encryption)
    pub dsa: Vec<AcceleratorUnit>,
    /// Intel's in-memory analytics accelerators (compression; no encryption)
    pub iaa: Vec<AcceleratorUnit>,
    /// Whether `/dev/crypto` exists
    pub dev_crypto: bool,
    /// Whether the kernel offers AF_ALG; null if unknown
    pub af_alg: Option<bool>,
}

/// A graphics processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Gpu {
    /// Bus address
    pub address: String,
    /// PCI device number
    pub device_id: String,
    /// Model, as its driver names it; null without driver
    pub model: Option<String>,
    /// Compute capability, for device numbers in this program's table
    pub compute_capability: Option<String>,
    /// Its driver; null if it has none
    pub driver: Option<String>,
    /// NUMA node; null if the machine has one only
    pub numa_node: Option<u32>,
}

/// A device, with or without driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bound {
    /// Its name on the bus
    pub name: String,
    /// Its driver; null if it has none
    pub driver: Option<String>,
}

/// An engine of Intel's `idxd` driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AcceleratorUnit {
    /// `dsa0`, `iax1`
    pub name: String,
    /// Whether the driver has enabled the engine
    pub enabled: bool,
}

/// PCI device numbers of GPUs that a pool could use, and their compute capability.
///
/// Source: the PCI ID database; compute capabilities from NVIDIA's list of GPUs.
const CAPABILITIES: [(&str, &[&str]); 5] = [
    ("8.0", &["0x20b0", "0x20b1", "0x20b2", "0x20b3", "0x20b5", "0x20f1"]),
    ("8.6", &["0x2235", "0x2236", "0x2237"]),
    ("8.9", &["0x26b5", "0x26b9", "0x27b8"]),
    ("9.0", &["0x2330", "0x2331", "0x2335", "0x2339", "0x233a", "0x2342"]),
    ("10.0", &["0x2901", "0x2941"]),
];

/// Reads the facts about accelerators.
#[must_use]
pub fn section(root: &Root) -> Section<Accelerators> {
    let mut reader = SectionReader::new(root);
    let accelerators = Accelerators {
        gpus: gpus(&mut reader),
        nvidia_driver: reader
            .text_if_there("proc/driver/nvidia/version")
            .and_then(|text| driver_version(&text)),
        virtio_crypto: virtio_crypto(&mut reader),
        dsa: engines(&mut reader, "dsa"),
        iaa: engines(&mut reader, "iax"),
        dev_crypto: reader.kind("dev/crypto") == Some(FileKind::CharacterDevice)
            || is_module(&mut reader, "cryptodev"),
        af_alg: af_alg(&mut reader),
    };
    reader.section(Some(accelerators))
}

fn gpus(reader: &mut SectionReader<'_>) -> Vec<Gpu> {
    const PCI: &str = "sys/bus/pci/devices";
    let mut gpus = Vec::new();
    for address in reader.names(PCI) {
        let mut text = |name: &str| reader.word(&format!("{PCI}/{address}/{name}"));
        let is_one = text("vendor").as_deref() == Some(VENDOR_NVIDIA)
            // Display controllers: 0300 with a monitor, 0302 without.
            && text("class").is_some_and(|class| class.starts_with("0x03"));
        let Some(device_id) = text("device").filter(|_| is_one) else {
            continue;
        };
        if reader.is_full("NVIDIA GPUs", &gpus, MAX_DEVICES) {
            break;
        }
        let numa_node = reader.numa_node(&format!("{PCI}/{address}"));
        let information = format!("proc/driver/nvidia/gpus/{address}/information");
        let known = CAPABILITIES.iter().find(|(_, ids)| ids.contains(&device_id.as_str()));
        gpus.push(Gpu {
            model: reader.text_if_there(&information).and_then(|text| model(&text)),
            compute_capability: known.map(|(capability, _)| (*capability).to_owned()),
            driver: reader.link_name(&format!("{PCI}/{address}/driver")),
            numa_node,
            device_id,
            address,
        });
    }
    gpus
}

/// `Model: NVIDIA H100 80GB HBM3`, with tabs in between
fn model(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// The first word of digits and dots in
/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build`.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_version = |word: &&str| {
        word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    };
    line.split_whitespace().find(is_version).map(str::to_owned)
}

fn virtio_crypto(reader: &mut SectionReader<'_>) -> Vec<Bound> {
    const VIRTIO: &str = "sys/bus/virtio/devices";
    let mut found = Vec::new();
    for name in reader.names(VIRTIO) {
        let number = reader.word(&format!("{VIRTIO}/{name}/device"));
        if number.as_deref() == Some(VIRTIO_CRYPTO) && !reader.is_full(VIRTIO, &found, MAX_DEVICES)
        {
            let driver = reader.link_name(&format!("{VIRTIO}/{name}/driver"));
            found.push(Bound { name, driver });
        }
    }
    found
}

fn engines(reader: &mut SectionReader<'_>, stem: &str) -> Vec<AcceleratorUnit> {
    const DSA: &str = "sys/bus/dsa/devices";
    let mut found = Vec::new();
    for name in reader.names(DSA) {
        let number = name.strip_prefix(stem).unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let enabled = reader.word(&format!("{DSA}/{name}/state")).as_deref() == Some("enabled");
        if !reader.is_full(DSA, &found, MAX_DEVICES) {
            found.push(AcceleratorUnit { name, enabled });
        }
    }
    found
}

/// Whether a module is loaded, or built in and listed below `/sys/module`.
pub(crate) fn is_module(reader: &mut SectionReader<'_>, name: &str) -> bool {
    let loaded = reader.modules().iter().any(|module| module == name);
    loaded || reader.exists(&format!("sys/module/{name}"))
}

fn af_alg(reader: &mut SectionReader<'_>) -> Option<bool> {
    if is_module(reader, "af_alg") {
        return Some(true);
    }
    let protocols = reader.text_if_there("proc/net/protocols")?;
    Some(protocols.lines().any(|line| line.split_ascii_whitespace().next() == Some("ALG")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_say_what_they_are() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\nGCC version:  gcc 12.2\n";
        assert_eq!(driver_version(text).as_deref(), Some("580.159.04"));
        assert_eq!(driver_version("GCC version: 12.2"), None);
        assert_eq!(
            model("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n").as_deref(),
            Some("NVIDIA H100 80GB HBM3")
        );
        assert_eq!(model("Model:\n"), None);
    }
}
