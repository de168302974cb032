// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The checks, one file per area. A check that cannot know is silent.

mod boot;
mod devices;
mod ipsec;
mod kernel;
mod libraries;
mod limits;
mod network;
mod openvpn;
mod processor;
mod qat;
mod tls;

use super::{Check, Facts, Found};

const fn check(
    id: &'static str,
    about: &'static str,
    run: fn(&Facts<'_>) -> Option<Found>,
) -> Check {
    Check { id, about, run }
}

/// Every check there is, by area.
pub const CHECKS: &[Check] = &[
    // The device itself.
    check("qat-down", "a QAT device is down", qat::down),
    check(
        "qat-driver",
        "a QAT device has no driver, or its driver is blacklisted",
        qat::driver,
    ),
    check(
        "qat-absent",
        "the processor has QAT and no device is seen",
        qat::absent,
    ),
    check(
        "qat-function-driver",
        "a virtual function of QAT was given to this machine and has no driver",
        qat::function_driver,
    ),
    check(
        "qat-firmware",
        "a QAT device is not up and its firmware file is not there",
        qat::firmware,
    ),
    check(
        "qat-heartbeat",
        "the firmware of a QAT device does not answer",
        qat::heartbeat,
    ),
    check(
        "qat-heartbeats-failed",
        "the firmware of a QAT device did not answer at times",
        qat::heartbeats_failed,
    ),
    check(
        "qat-stuck",
        "a QAT device has requests that it does not answer",
        qat::stuck,
    ),
    check(
        "qat-ring-pressure",
        "a QAT device has as many open requests as a ring holds",
        qat::ring_pressure,
    ),
    check(
        "qat-errors-fatal",
        "a QAT device counts fatal (uncorrectable) errors",
        qat::errors_fatal,
    ),
    check(
        "qat-errors-nonfatal",
        "a QAT device counts errors that it could not correct",
        qat::errors_nonfatal,
    ),
    check(
        "qat-errors-correctable",
        "a QAT device counts errors that it corrected",
        qat::errors_correctable,
    ),
    check(
        "qat-auto-reset",
        "a QAT device stays down after a fatal error",
        qat::auto_reset,
    ),
    check(
        "qat-link",
        "the bus of a QAT device is slower or narrower than it could be",
        qat::link,
    ),
    check(
        "qat-numa",
        "no QAT device is on the NUMA node of a network card",
        qat::numa,
    ),
    check(
        "qat-idle",
        "one QAT device works and another that could help does not",
        qat::idle,
    ),
    check(
        "qat-unread",
        "the counters of a QAT device cannot be read",
        qat::unread,
    ),
    // Whether anything reaches it.
    check(
        "qat-no-kernel-instances",
        "a QAT device is up and serves no IPsec as it is set up",
        qat::no_kernel_instances,
    ),
    check(
        "qat-passed-over",
        "the kernel takes another implementation before QAT",
        kernel::qat_passed_over,
    ),
    check(
        "qat-gcm",
        "IPsec is set to AES-GCM, which the kernel's QAT driver does not have",
        kernel::qat_gcm,
    ),
    check(
        "qat-small-packets",
        "QAT's engine leaves packets of a VPN to the processor",
        qat::small_packets,
    ),
    check(
        "qat-hugepages",
        "QAT's user-space memory driver is there and no huge pages are",
        qat::hugepages,
    ),
    check(
        "device-passed-over",
        "the kernel takes another implementation before a crypto engine",
        kernel::device_passed_over,
    ),
    check(
        "devcrypto-small-packets",
        "/dev/crypto is used for packets that are too small to gain",
        devices::devcrypto,
    ),
    check(
        "kernel-portable-aes",
        "the kernel computes AES in portable code although the processor has instructions",
        kernel::portable_aes,
    ),
    check(
        "gpu-driver",
        "a GPU has no driver that computes",
        devices::gpu_driver,
    ),
    check(
        "virtio-crypto-driver",
        "a virtio-crypto device has no driver",
        devices::virtio_driver,
    ),
    // Libraries.
    check(
        "libcrypto-no-assembly",
        "a crypto library is built without assembly",
        libraries::no_assembly,
    ),
    check(
        "libcrypto-slow",
        "a crypto library ignores what the processor can do",
        libraries::slow,
    ),
    check(
        "libcrypto-unsupported",
        "an OpenSSL is installed that gets no security fixes",
        libraries::unsupported,
    ),
    check(
        "libcrypto-replaced",
        "a server runs with a crypto library that was replaced since",
        libraries::replaced,
    ),
    check(
        "openssl-mask",
        "instructions are masked for services",
        libraries::mask,
    ),
    check(
        "openssl-engine",
        "an ENGINE is configured, and OpenSSL 4 has none",
        libraries::engine,
    ),
    // The processor and the machine.
    check(
        "cpu-hidden",
        "the hypervisor, the firmware or the kernel hides crypto instructions",
        processor::hidden,
    ),
    check(
        "cpu-no-aes",
        "the processor has no instructions for AES",
        processor::no_aes,
    ),
    check("cpu-governor", "the clock is kept low", processor::governor),
    check(
        "temperature",
        "something is about as warm as it may become",
        processor::temperature,
    ),
    check("memory-low", "memory is almost used up", limits::memory),
    check(
        "boot-mitigations-off",
        "protection against attacks by side channels is switched off",
        boot::mitigations,
    ),
    check("boot-idle-poll", "idle processors spin", boot::idle_poll),
    check(
        "boot-cstates",
        "processors may not sleep deeply",
        boot::cstates,
    ),
    check("boot-iommu-off", "the IOMMU is switched off", boot::iommu),
    check(
        "boot-clearcpuid",
        "instructions are hidden by a kernel parameter",
        boot::clearcpuid,
    ),
    // Limits.
    check(
        "limit-open-files",
        "a server may open fewer files than its configuration needs",
        limits::open_files,
    ),
    check(
        "limit-file-handles",
        "the system's file handles are almost used up",
        limits::file_handles,
    ),
    check(
        "limit-core-dumps",
        "a server that has keys leaves its memory on disk when it crashes",
        limits::core_dumps,
    ),
    check(
        "limit-somaxconn",
        "the kernel cuts the queue of new connections",
        limits::somaxconn,
    ),
    check(
        "limit-conntrack",
        "the table of tracked connections is almost full",
        limits::conntrack,
    ),
    // IPsec.
    check(
        "ipsec-weak-algorithms",
        "a proposal of IPsec has a broken or weak algorithm",
        ipsec::weak,
    ),
    check(
        "ipsec-short-tag",
        "a proposal of IPsec has a short authentication tag",
        ipsec::short_tag,
    ),
    check(
        "ipsec-no-pfs",
        "new keys of an IPsec tunnel are made from the old ones",
        ipsec::no_pfs,
    ),
    check("ipsec-ikev1", "IPsec uses IKEv1", ipsec::ikev1),
    check(
        "ipsec-replay-window",
        "the replay window is too small for a device that reorders",
        ipsec::replay_window,
    ),
    check(
        "ipsec-replay-errors",
        "packets were dropped as replayed or late",
        ipsec::replay_errors,
    ),
    check(
        "ipsec-errors",
        "packets of IPsec were dropped",
        ipsec::errors,
    ),
    check(
        "ipsec-dpd",
        "dead peers are looked for too often or too seldom",
        ipsec::dpd,
    ),
    // OpenVPN.
    check(
        "openvpn-no-protection",
        "OpenVPN does not encrypt, or not authenticate",
        openvpn::no_protection,
    ),
    check(
        "openvpn-static-key",
        "OpenVPN uses a static key",
        openvpn::static_key,
    ),
    check(
        "openvpn-weak-algorithms",
        "OpenVPN uses a weak cipher, hash or version of TLS",
        openvpn::weak,
    ),
    check(
        "openvpn-compression",
        "OpenVPN compresses",
        openvpn::compression,
    ),
    check(
        "openvpn-tap",
        "OpenVPN uses TAP, which keeps its data channel out of the kernel",
        openvpn::tap,
    ),
    check(
        "openvpn-dco-disabled",
        "OpenVPN's data channel in the kernel is switched off",
        openvpn::dco_disabled,
    ),
    check(
        "openvpn-user-space",
        "OpenVPN works in user space although the kernel could",
        openvpn::user_space,
    ),
    check(
        "openvpn-keepalive",
        "OpenVPN looks for dead peers too often or too seldom",
        openvpn::keepalive,
    ),
    check(
        "tunnel-mtu",
        "packets of a tunnel do not fit below it",
        network::tunnel_mtu,
    ),
    // TLS.
    check(
        "tls-old-versions",
        "a server is set to versions of TLS that are not safe",
        tls::old_versions,
    ),
    check(
        "tls-weak-ciphers",
        "a server offers ciphers that are not safe",
        tls::weak_ciphers,
    ),
    check(
        "tls-ktls-unused",
        "kernel TLS is there and nginx does not use it",
        tls::ktls_unused,
    ),
];
