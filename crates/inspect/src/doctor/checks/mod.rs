// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The checks, one file per area. A check without the facts that it needs reports nothing.

mod boot;
mod bulk;
mod devices;
mod http;
mod ipsec;
mod kernel;
mod libraries;
mod limits;
mod network;
mod openvpn;
mod processor;
mod qat;
mod qatlib;
mod tls;

use super::{Check, Facts, Finding};

const fn check(
    id: &'static str,
    title: &'static str,
    run: fn(&Facts<'_>) -> Option<Finding>,
) -> Check {
    Check { id, title, run }
}

/// All checks, by area.
#[rustfmt::skip]
pub const CHECKS: &[Check] = &[
    // QAT devices.
    check("qat-down", "a QAT device is down", qat::down),
    check("qat-driver", "a QAT device has no driver, or its driver is blacklisted", qat::driver),
    check("qat-absent", "the processor has QAT, but no QAT device is visible", qat::absent),
    check("qat-function-driver", "a virtual function of QAT has no driver in this guest", qat::function_driver),
    check("qat-firmware", "the firmware file of a QAT device is missing", qat::firmware),
    check("qat-heartbeat", "the firmware of a QAT device does not answer its heartbeat", qat::heartbeat),
    check("qat-heartbeats-failed", "the firmware of a QAT device missed heartbeats earlier", qat::heartbeats_failed),
    check("qat-stuck", "a QAT device has unanswered requests", qat::stuck),
    check("qat-ring-pressure", "a QAT device has as many open requests as a ring holds", qat::ring_pressure),
    check("qat-errors-fatal", "a QAT device counts fatal (uncorrectable) errors", qat::errors_fatal),
    check("qat-errors-nonfatal", "a QAT device counts uncorrectable errors that were not fatal", qat::errors_nonfatal),
    check("qat-errors-correctable", "a QAT device counts corrected errors", qat::errors_correctable),
    check("qat-auto-reset", "a QAT device stays down after a fatal error", qat::auto_reset),
    check("qat-link", "the PCIe link of a QAT device is slower or narrower than possible", qat::link),
    check("qat-numa", "no QAT device is on the NUMA node of a network card", qat::numa),
    check("qat-idle", "one QAT device works while a second one is idle", qat::idle),
    check("qat-unread", "the counters of a QAT device cannot be read", qat::unread),
    // The way to a device.
    check("qat-no-kernel-instances", "a QAT device has no instances for the kernel (IPsec)", qat::no_kernel_instances),
    check("qat-passed-over", "the kernel prefers the processor to QAT", kernel::qat_passed_over),
    check("qat-gcm", "IPsec uses AES-GCM, which the kernel's QAT driver lacks", kernel::qat_gcm),
    check("qat-small-packets", "QAT's engine leaves all packets of OpenVPN to the processor", qat::small_packets),
    check("qat-hugepages", "QAT's user-space memory driver has no huge pages", qat::hugepages),
    check("qatlib-kernel", "this release of qatlib does not work with this kernel", qatlib::kernel),
    check("qatlib-crashes", "this release of qatlib crashes programs after a device has failed", qatlib::crashes),
    check("qatlib-manager", "virtual functions of QAT are handed out without their manager (qatmgr)", qatlib::manager_missing),
    check("qatlib-manager-version", "the manager of virtual functions (qatmgr) has another release than qatlib", qatlib::manager_version),
    check("qatlib-locked-memory", "a program may lock too little memory for its virtual functions of QAT", qatlib::locked_memory),
    check("qatlib-functions-taken", "programs hold every virtual function of QAT", qatlib::functions_taken),
    check("device-passed-over", "the kernel prefers the processor to a crypto engine", kernel::device_passed_over),
    check("devcrypto-small-packets", "/dev/crypto is used for packets too small to gain from it", devices::devcrypto),
    check("kernel-bulk-interface", "kernel_bulk is on, and the kernel offers programs no ciphers", bulk::interface),
    check("kernel-bulk-filter", "kernel_bulk is on, and a service may not open AF_ALG", bulk::filter),
    check("kernel-bulk-sizes", "kernel_bulk is on, and no sizes were measured for this kernel, libcrypto and processor", bulk::sizes),
    check("kernel-bulk-processor", "kernel_bulk is on, and the processor encrypts faster itself", bulk::processor),
    check("kernel-portable-aes", "the kernel computes AES in portable code although the processor has instructions", kernel::portable_aes),
    check("gpu-driver", "a GPU has no driver for computing", devices::gpu_driver),
    check("virtio-crypto-driver", "a virtio-crypto device has no driver", devices::virtio_driver),
    // Libraries.
    check("libcrypto-no-assembly", "a crypto library is built without assembly", libraries::no_assembly),
    check("libcrypto-slow", "a crypto library does not use all of this processor's instructions", libraries::slow),
    check("libcrypto-unsupported", "an installed OpenSSL is end-of-life", libraries::unsupported),
    check("libcrypto-replaced", "a server still runs a crypto library that was replaced on disk", libraries::replaced),
    check("openssl-mask", "an environment variable masks processor instructions for services", libraries::mask),
    check("openssl-engine", "an ENGINE is configured; OpenSSL 4 has no ENGINEs", libraries::engine),
    // The processor and the machine.
    check("cpu-hidden", "the hypervisor, the firmware or the kernel hides crypto instructions", processor::hidden),
    check("cpu-no-aes", "the processor has no AES instructions", processor::no_aes),
    check("cpu-governor", "the processors stay at their lowest clock", processor::governor),
    check("temperature", "a temperature is near its limit", processor::temperature),
    check("memory-low", "memory is almost used up", limits::memory),
    check("boot-mitigations-off", "mitigations of side-channel attacks are switched off", boot::mitigations),
    check("boot-idle-poll", "idle processors spin", boot::idle_poll),
    check("boot-cstates", "a kernel parameter restricts deep sleep states", boot::cstates),
    check("boot-iommu-off", "the IOMMU is switched off", boot::iommu),
    check("boot-clearcpuid", "a kernel parameter hides processor instructions", boot::clearcpuid),
    // Limits.
    check("limit-open-files", "a server's limit of open files is below what its configuration needs", limits::open_files),
    check("limit-file-handles", "the system's file handles are almost used up", limits::file_handles),
    check("limit-core-dumps", "a crashing server writes its private keys to disk", limits::core_dumps),
    check("limit-somaxconn", "the kernel shortens a server's queue of new connections", limits::somaxconn),
    check("limit-conntrack", "the connection tracking table is almost full", limits::conntrack),
    // IPsec.
    check("ipsec-weak-algorithms", "an IPsec proposal contains a broken or weak algorithm", ipsec::weak),
    check("ipsec-short-tag", "an IPsec proposal has a short authentication tag", ipsec::short_tag),
    check("ipsec-no-pfs", "an IPsec tunnel rekeys without a new key exchange", ipsec::no_pfs),
    check("ipsec-ikev1", "IPsec uses IKEv1", ipsec::ikev1),
    check("ipsec-replay-window", "the IPsec replay window is too small for a device that reorders packets", ipsec::replay_window),
    check("ipsec-replay-errors", "IPsec dropped packets as replayed or late", ipsec::replay_errors),
    check("ipsec-errors", "IPsec dropped packets", ipsec::errors),
    check("ipsec-dpd", "the dead-peer-detection interval is out of range", ipsec::dpd),
    // OpenVPN.
    check("openvpn-no-protection", "OpenVPN runs without encryption or authentication", openvpn::no_protection),
    check("openvpn-static-key", "OpenVPN uses a static key", openvpn::static_key),
    check("openvpn-weak-algorithms", "OpenVPN uses a weak cipher, hash or TLS version", openvpn::weak),
    check("openvpn-compression", "OpenVPN compresses traffic", openvpn::compression),
    check("openvpn-tap", "OpenVPN uses TAP, which keeps its data channel out of the kernel", openvpn::tap),
    check("openvpn-dco-disabled", "OpenVPN's kernel data channel (DCO) is switched off", openvpn::dco_disabled),
    check("openvpn-user-space", "OpenVPN runs in user space although the kernel has a data channel", openvpn::user_space),
    check("openvpn-keepalive", "OpenVPN's keepalive interval is out of range", openvpn::keepalive),
    check("tunnel-mtu", "full packets of a tunnel do not fit into the MTU of the card below", network::tunnel_mtu),
    // TLS.
    check("tls-old-versions", "a server is configured for insecure TLS versions", tls::old_versions),
    check("tls-weak-ciphers", "a server offers insecure ciphers", tls::weak_ciphers),
    check("tls-no-post-quantum", "a TLS server offers no post-quantum group", tls::no_post_quantum),
    check("certbot-installer", "certbot tests a server's files without Millrace's provider", tls::certbot),
    check("tls-ktls-unused", "nginx does not use kernel TLS although the kernel has it", tls::ktls_unused),
    // Compressed responses.
    check("http-compression-secrets", "nginx compresses every response, also those with secrets", http::secrets),
    check("http-compression-level", "nginx compresses at a level that costs more than it saves", http::level),
    check("http-compression-vary", "caches do not learn that nginx compresses for some clients only", http::vary),
    check("http-compression-types", "nginx compresses HTML alone", http::types),
];
