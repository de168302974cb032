// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Accelerators beside QAT.

use super::super::{Facts, Found, Program};

pub(super) fn devcrypto(facts: &Facts<'_>) -> Option<Found> {
    let there = facts.accelerators()?.dev_crypto;
    let engine: Vec<String> = [
        (Program::Openvpn, "engine"),
        (Program::Openssl, "engine_id"),
        (Program::Openssl, "dynamic_path"),
    ]
    .into_iter()
    .flat_map(|(program, name)| facts.settings(program, name))
    .filter(|(_, setting)| {
        ["devcrypto", "cryptodev"]
            .iter()
            .any(|name| setting.value.contains(name))
    })
    .map(super::super::quote)
    .collect();
    if !there || engine.is_empty() {
        return None;
    }
    Some(
        Found::notice("/dev/crypto is used for packets near the size from which it gains")
            .seen(engine)
            .seen(["dev/crypto is there".to_owned()])
            .means(
                "Each request costs a call of the kernel and the device's latency. Measured on a Netgear R9000 \
                 (Andreev, Khlupina 2019): 12.2 µs per request, then 558 MB/s, against 59 MB/s of the \
                 processor: below 802 bytes it is slower, at 1400 bytes 1.6 times as fast; the 6.5 times that \
                 is quoted is at 8 KiB. The engine never had AES-GCM, and OpenSSL 4 has no engines.",
            )
            .fix("measure with the tunnel's packets: millrace bench sizes")
            .fix("a larger tun-mtu, where the path has it, gains more than the device"),
    )
}

pub(super) fn gpu_driver(facts: &Facts<'_>) -> Option<Found> {
    let accelerators = facts.accelerators()?;
    let bare: Vec<String> = accelerators
        .gpus
        .iter()
        .filter(|gpu| {
            !gpu.driver
                .as_deref()
                .is_some_and(|driver| driver == "nvidia" || driver == "vfio-pci")
        })
        .map(|gpu| {
            format!(
                "sys/bus/pci/devices/{}: device {}, driver {}",
                gpu.address,
                gpu.device_id,
                gpu.driver.as_deref().unwrap_or("none")
            )
        })
        .collect();
    (!bare.is_empty()).then(|| {
        Found::notice("a GPU has no driver that computes")
            .seen(bare)
            .means("A pool could use it for large batches of private-key operations; single packets of a VPN it never speeds up (the start of a kernel alone takes longer).")
            .fix("install NVIDIA's driver of the distribution (Debian: nvidia-open-kernel-dkms); nouveau cannot compute")
    })
}

pub(super) fn virtio_driver(facts: &Facts<'_>) -> Option<Found> {
    let accelerators = facts.accelerators()?;
    let bare: Vec<String> = accelerators
        .virtio_crypto
        .iter()
        .filter(|device| device.driver.is_none())
        .map(|device| format!("sys/bus/virtio/devices/{}: no driver", device.name))
        .collect();
    (!bare.is_empty()).then(|| {
        Found::notice("a virtio-crypto device has no driver")
            .seen(bare)
            .means("The host gives this machine a crypto device that nothing uses.")
            .fix("modprobe virtio_crypto        # CONFIG_CRYPTO_DEV_VIRTIO")
    })
}
