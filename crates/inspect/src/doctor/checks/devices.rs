// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Accelerators other than QAT.

use crate::doctor::{ConfiguredProgram, Facts, Finding, quote};

pub(super) fn devcrypto(facts: &Facts<'_>) -> Option<Finding> {
    let names = [
        (ConfiguredProgram::Openvpn, "engine"),
        (ConfiguredProgram::Openssl, "engine_id"),
        (ConfiguredProgram::Openssl, "dynamic_path"),
    ];
    let engine: Vec<String> = facts
        .settings_of(&names)
        .filter(|(_, setting)| {
            let names = ["devcrypto", "cryptodev"];
            names.iter().any(|name| setting.value.contains(name))
        })
        .map(quote)
        .collect();
    if !facts.accelerators()?.dev_crypto || engine.is_empty() {
        return None;
    }
    Some(
        Finding::notice()
            .evidence(engine)
            .evidence(["dev/crypto exists".to_owned()])
            .impact(
                "Each request costs a system call and the device's latency. Measured on a Netgear R9000 \
                 (Andreev, Khlupina 2019): 12.2 µs per request, then 558 MB/s, against 59 MB/s of the \
                 processor. The device is slower below 802 bytes and 1.6 times as fast at 1400 bytes; the \
                 factor of 6.5 that is often quoted holds at 8 KiB. The engine never had AES-GCM, and OpenSSL 4 \
                 has no ENGINEs.",
            )
            .run("millrace bench sizes        # measures with the sizes of packets")
            .advise("A larger tun-mtu, where the path allows it, gains more than the device."),
    )
}

pub(super) fn gpu_driver(facts: &Facts<'_>) -> Option<Finding> {
    let gpus = facts.accelerators()?.gpus.iter();
    let without = gpus.filter(|gpu| !matches!(gpu.driver.as_deref(), Some("nvidia" | "vfio-pci")));
    Finding::notice()
        .evidence(without.map(|gpu| {
            let driver = gpu.driver.as_deref().unwrap_or("none");
            let address = &gpu.address;
            let device = &gpu.device_id;
            format!("sys/bus/pci/devices/{address}: device {device}, driver {driver}")
        }))
        .impact("A pool could use it for large batches of private-key operations. It never speeds up single packets of \
            a VPN: starting a GPU kernel alone takes longer.")
        .advise("Install the distribution's NVIDIA driver (Debian: nvidia-open-kernel-dkms); nouveau cannot compute.")
        .if_evident()
}

pub(super) fn virtio_driver(facts: &Facts<'_>) -> Option<Finding> {
    let devices = facts.accelerators()?.virtio_crypto.iter();
    let without = devices.filter(|device| device.driver.is_none());
    let finding = Finding::notice()
        .evidence(
            without.map(|device| format!("sys/bus/virtio/devices/{}: no driver", device.name)),
        )
        .impact("The host gives this machine a crypto device, and nothing uses it.")
        .if_evident()?;
    Some(facts.loading(finding, &["virtio_crypto"], "CONFIG_CRYPTO_DEV_VIRTIO"))
}
