// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! PCI identities of QAT devices, all generations, physical and virtual functions.
//!
//! Source: the kernel's `adf_accel_devices.h` and `adf_common_drv.h` for drivers in its tree, Intel's packages
//! and the Kubernetes device plugin for the others.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Intel's PCI vendor number.
pub const VENDOR_INTEL: u16 = 0x8086;

/// A device's generation determines its firmware, services and files.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// DH895xCC (8920, 8950), before C62x.
    Gen1,
    /// C62x (8960, 8970), C3xxx (Atom), D15xx, 200xx, C4xxx.
    Gen2,
    /// 4xxx, 401xx, 402xx, 420xx (Xeon from Sapphire Rapids on).
    Gen4,
    /// 6xxx.
    Gen6,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QatModel {
    /// PCI device number.
    pub device: u16,
    /// Whether the device is a virtual function.
    pub virtual_function: bool,
    /// The product line, as Intel names it.
    pub model: &'static str,
    /// The driver's name of the class; part of its debugfs folder.
    pub class: &'static str,
    /// The hardware generation, which decides the counters and telemetry that exist.
    pub generation: Generation,
    /// Whether the kernel's tree has a driver; otherwise only Intel's package does.
    pub in_tree: bool,
    /// The firmware file that its driver loads (`MODULE_FIRMWARE`); empty for virtual functions and for drivers
    /// outside the kernel's tree.
    pub firmware: &'static str,
}

use Generation::{Gen1, Gen2, Gen4, Gen6};

/// All known devices. Device numbers are unique.
pub const IDENTITIES: [QatModel; 21] = [
    physical(0x0435, "DH895xCC", "dh895xcc", Gen1, "qat_895xcc.bin"),
    physical(0x37c8, "C62x", "c6xx", Gen2, "qat_c62x.bin"),
    physical(0x19e2, "C3xxx", "c3xxx", Gen2, "qat_c3xxx.bin"),
    physical(0x6f54, "D15xx", "d15xx", Gen2, ""),
    physical(0x18ee, "200xx", "200xx", Gen2, ""),
    physical(0x18a0, "C4xxx", "c4xxx", Gen2, ""),
    physical(0x4940, "4xxx", "4xxx", Gen4, "qat_4xxx.bin"),
    physical(0x4942, "401xx", "4xxx", Gen4, "qat_4xxx.bin"),
    physical(0x4944, "402xx", "4xxx", Gen4, "qat_402xx.bin"),
    physical(0x4946, "420xx", "420xx", Gen4, "qat_420xx.bin"),
    physical(0x4948, "6xxx", "6xxx", Gen6, "qat_6xxx.bin"),
    function(0x0443, "DH895xCC", "dh895xccvf", Gen1).in_tree(),
    function(0x37c9, "C62x", "c6xxvf", Gen2).in_tree(),
    function(0x19e3, "C3xxx", "c3xxxvf", Gen2).in_tree(),
    function(0x6f55, "D15xx", "d15xxvf", Gen2),
    function(0x18a1, "C4xxx", "c4xxxvf", Gen2),
    // The kernel has no driver for these virtual functions; user space drives them (vfio-pci).
    function(0x4941, "4xxx", "4xxxvf", Gen4),
    function(0x4943, "401xx", "4xxxvf", Gen4),
    function(0x4945, "402xx", "4xxxvf", Gen4),
    function(0x4947, "420xx", "420xxvf", Gen4),
    function(0x4949, "6xxx", "6xxxvf", Gen6),
];

/// A physical function; its driver is in the kernel's tree if it has a `firmware` file.
const fn physical(
    device: u16,
    model: &'static str,
    class: &'static str,
    generation: Generation,
    firmware: &'static str,
) -> QatModel {
    let in_tree = !firmware.is_empty();
    QatModel { device, virtual_function: false, model, class, generation, in_tree, firmware }
}

/// A virtual function without a driver in the kernel's tree.
const fn function(
    device: u16,
    model: &'static str,
    class: &'static str,
    generation: Generation,
) -> QatModel {
    QatModel { virtual_function: true, ..physical(device, model, class, generation, "") }
}

impl QatModel {
    const fn in_tree(self) -> Self {
        Self { in_tree: true, ..self }
    }
}

/// The row of a PCI device.
#[must_use]
pub fn identify(vendor: u16, device: u16) -> Option<&'static QatModel> {
    IDENTITIES.iter().find(|identity| vendor == VENDOR_INTEL && identity.device == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_unique_and_every_function_has_a_parent() {
        for (at, identity) in IDENTITIES.iter().enumerate() {
            let again = IDENTITIES[at + 1..].iter().any(|other| other.device == identity.device);
            assert!(!again, "{:04x}", identity.device);
        }
        for identity in IDENTITIES.iter().filter(|row| row.virtual_function) {
            let parent =
                IDENTITIES.iter().any(|row| !row.virtual_function && row.model == identity.model);
            assert!(parent, "{:04x}", identity.device);
        }
    }

    #[test]
    fn devices_of_other_vendors_are_ignored() {
        assert_eq!(identify(VENDOR_INTEL, 0x4940).map(|row| row.model), Some("4xxx"));
        assert_eq!(identify(0x10de, 0x4940), None);
        assert_eq!(identify(VENDOR_INTEL, 0x1234), None);
    }
}
