// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A machine with a problem and one without it, for each check. A table, hence its length.

use crate::machine::Change::{self, Edit, File, Gone, Link};
use crate::machine::Machine;

/// A check, a machine with its problem, and one without.
pub(crate) struct Case {
    pub(crate) id: &'static str,
    pub(crate) fires: Machine,
    pub(crate) silent: Machine,
}

const fn case(id: &'static str, fires: Machine, silent: Machine) -> Case {
    Case { id, fires, silent }
}

pub(crate) const SWANCTL: &str = "etc/swanctl/swanctl.conf";
pub(crate) const OPENVPN: &str = "etc/openvpn/server.conf";
const NGINX: &str = "etc/nginx/nginx.conf";
const OPENSSL: &str = "etc/ssl/openssl.cnf";
const CMDLINE: &str = "proc/cmdline";
pub(crate) const A9_LIBRARY: &str = "usr/lib/libcrypto.so.3";
pub(crate) const QAT_FOLDER: &str = "sys/bus/pci/devices/0000:6b:00.0/qat";
const GOVERNOR: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor";
const DRIVER: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_driver";

/// A configuration without problems.
const GOOD_SWANCTL: Change = File(
    SWANCTL,
    "connections {\n  a {\n    version = 2\n    proposals = aes256gcm16-prfsha384-ecp384\n    dpd_delay = 30s\n    \
     children {\n      b {\n        esp_proposals = aes256-sha256-ecp256\n        replay_window = 1024\n      }\n    }\n  }\n}\n",
);
const GOOD_OPENVPN: Change = File(
    OPENVPN,
    "dev tun\ndata-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305\ntls-version-min 1.2\nkeepalive 10 60\n\
     allow-compression no\ncompress migrate\n",
);
const GOOD_NGINX: Change = File(
    NGINX,
    "events { worker_connections 1024; }\nhttp { server { listen 443 ssl backlog=1024; ssl_protocols TLSv1.2 TLSv1.3;\n\
     ssl_conf_command Options KTLS;\n ssl_ciphers ECDHE+AESGCM:!3DES:!MD5:-RC4; } }\n",
);

/// Limits of a process, as the kernel prints them.
macro_rules! limits {
    ($core:literal, $files:literal) => {
        concat!(
            "Limit                     Soft Limit           Hard Limit           Units     \n",
            "Max core file size        ",
            $core,
            "            unlimited            bytes     \n",
            "Max open files            ",
            $files,
            "              524288               files     \n"
        )
    };
}

const LIBQAT_24_02: &str = "usr/lib/x86_64-linux-gnu/libqat.so.4.2.0";
const LIBQAT_25_08: &str = "usr/lib/x86_64-linux-gnu/libqat.so.4.4.0";
const QATMGR: Change = File("usr/sbin/qatmgr", "\0QAT_SOFTWARE_VERSION=24.2.0\0");
const QATMGR_RUNS: Change = File("proc/78/comm", "qatmgr\n");
/// The group of a virtual function that user space can have, and a process that has it.
const FUNCTION_GROUP: Change =
    Link("sys/bus/pci/devices/0000:6b:00.1/iommu_group", "../../../../kernel/iommu_groups/100");
const HOLDER: Change = File("proc/79/comm", "gateway\n");
const HOLDER_GROUP: Change = Link("proc/79/fd/3", "/dev/vfio/100");

/// Limits of a process, with its limit of locked memory in bytes.
macro_rules! locked_memory {
    ($bytes:literal) => {
        concat!(
            "Max locked memory         ",
            $bytes,
            "              unlimited            bytes     \n"
        )
    };
}

pub(crate) const KERNEL_BULK: Change =
    File("etc/millrace/openssl.cnf", "[millrace_section]\nkernel_bulk = on\n");
const NO_AF_ALG: Change =
    File("proc/net/protocols", "protocol  size sockets\nTCP       2304      4\n");
pub(crate) const BULK_SIZES: &str = "var/lib/millrace/kernel-bulk.tsv";
const MEASURED: &str = "Linux 5.15.167; OpenSSL 3.0.20 7 Apr 2026; ARMv7 Processor rev 1 (v7l)\taf-alg\taes-cbc\t1500\t1764000000\n";

const NGINX_RUNS: Change = File("proc/77/comm", "nginx\n");

#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    case("qat-down", ("qat-down", &[]), ("qat-heartbeat", &[])),
    case(
        "qat-driver",
        (
            "qat-8970",
            &[
                Gone("sys/bus/pci/devices/0000:3d:00.0/driver"),
                File("etc/modprobe.d/qat.conf", "blacklist qat_c6xx\nblacklist intel_qat\n"),
            ],
        ),
        ("qat-8970", &[]),
    ),
    case(
        "qat-absent",
        (
            "no-accelerator",
            &[File(
                "proc/cpuinfo",
                "processor : 0\nvendor_id : GenuineIntel\nmodel name : Intel(R) Atom(TM) CPU C3758 @ 2.20GHz\nflags : lm aes\n",
            )],
        ),
        ("atom-c3000", &[]),
    ),
    case(
        "qat-function-driver",
        (
            "no-accelerator",
            &[
                File("sys/bus/pci/devices/0000:00:05.0/vendor", "0x8086\n"),
                File("sys/bus/pci/devices/0000:00:05.0/device", "0x37c9\n"),
            ],
        ),
        ("qat-4xxx-16vfs", &[]),
    ),
    case(
        "qat-firmware",
        ("qat-down", &[File("lib/firmware/other.bin", "x")]),
        ("qat-down", &[File("lib/firmware/qat_402xx.bin.zst", "x")]),
    ),
    case("qat-heartbeat", ("qat-heartbeat", &[]), ("qat-8970", &[])),
    case(
        "qat-heartbeats-failed",
        ("qat-8970", &[File("sys/kernel/debug/qat_c6xx_0000:3d:00.0/heartbeat/queries_failed", "3\n\0")]),
        ("qat-8970", &[]),
    ),
    case("qat-stuck", ("qat-heartbeat", &[]), ("qat-8970", &[])),
    case("qat-ring-pressure", ("qat-heartbeat", &[]), ("atom-c3000", &[])),
    case("qat-errors-fatal", ("qat-heartbeat", &[]), ("qat-4xxx-16vfs", &[])),
    case("qat-errors-nonfatal", ("qat-heartbeat", &[]), ("qat-4xxx-16vfs", &[])),
    case("qat-errors-correctable", ("qat-heartbeat", &[]), ("qat-4xxx-16vfs", &[])),
    case(
        "qat-auto-reset",
        ("qat-heartbeat", &[]),
        ("qat-heartbeat", &[File("sys/bus/pci/devices/0000:6b:00.0/qat/auto_reset", "on\n")]),
    ),
    case("qat-link", ("qat-8970", &[]), ("qat-heartbeat", &[])),
    case(
        "qat-numa",
        ("qat-8970", &[File("sys/class/net/eno1/device/numa_node", "7\n")]),
        ("qat-8970", &[File("sys/class/net/eno1/device/numa_node", "0\n")]),
    ),
    case("qat-idle", ("atom-c3000", &[]), ("qat-heartbeat", &[])),
    case(
        "qat-unread",
        (
            "qat-8970",
            &[Gone("sys/kernel/debug"), File("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")],
        ),
        ("qat-8970", &[]),
    ),
    case("qat-no-kernel-instances", ("qat-down", &[]), ("atom-c3000", &[])),
    case("qat-passed-over", ("qat-8970", &[]), ("atom-c3000", &[])),
    case(
        "qat-gcm",
        (
            "atom-c3000",
            &[File(SWANCTL, "connections { a { children { b { esp_proposals = aes256gcm16-ecp384 } } } }\n")],
        ),
        ("atom-c3000", &[GOOD_SWANCTL]),
    ),
    case(
        "qat-small-packets",
        ("atom-c3000", &[GOOD_OPENVPN, File("usr/lib/x86_64-linux-gnu/engines-3/qatengine.so", "x")]),
        (
            "atom-c3000",
            &[
                GOOD_OPENVPN,
                File("usr/lib/x86_64-linux-gnu/engines-3/qatengine.so", "x"),
                File(OPENSSL, "SET_CRYPTO_SMALL_PACKET_OFFLOAD_THRESHOLD = AES-256-CBC-HMAC-SHA1:1024\n"),
            ],
        ),
    ),
    case(
        "qat-hugepages",
        ("atom-c3000", &[File("proc/meminfo", "MemTotal: 16384 kB\nHugePages_Total:       0\n")]),
        ("atom-c3000", &[File("proc/meminfo", "MemTotal: 16384 kB\nHugePages_Total:    1024\n")]),
    ),
    case(
        "qatlib-kernel",
        (
            "qat-4xxx-16vfs",
            &[
                File(LIBQAT_25_08, "x"),
                File(
                    "proc/version",
                    "Linux version 6.1.0-37-amd64 (x) (gcc-12) #1 SMP Debian 6.1.140-1 (2025-05-22)\n",
                ),
            ],
        ),
        (
            "qat-4xxx-16vfs",
            &[
                File(LIBQAT_25_08, "x"),
                File(
                    "proc/version",
                    "Linux version 6.1.0-40-amd64 (x) (gcc-12) #1 SMP Debian 6.1.153-1 (2025-09-20)\n",
                ),
            ],
        ),
    ),
    case(
        "qatlib-crashes",
        ("qat-4xxx-16vfs", &[File(LIBQAT_24_02, "x")]),
        ("qat-4xxx-16vfs", &[File(LIBQAT_25_08, "x")]),
    ),
    case("qatlib-manager", ("qat-4xxx-16vfs", &[QATMGR]), ("qat-4xxx-16vfs", &[QATMGR, QATMGR_RUNS])),
    case(
        "qatlib-manager-version",
        ("qat-4xxx-16vfs", &[QATMGR, QATMGR_RUNS, File(LIBQAT_25_08, "x")]),
        ("qat-4xxx-16vfs", &[QATMGR, QATMGR_RUNS, Link("proc/78/exe", "/usr/sbin/qatmgr"), File(LIBQAT_24_02, "x")]),
    ),
    case(
        "qatlib-locked-memory",
        (
            "qat-4xxx-16vfs",
            &[FUNCTION_GROUP, HOLDER, HOLDER_GROUP, File("proc/79/limits", locked_memory!("8388608"))],
        ),
        (
            "qat-4xxx-16vfs",
            &[FUNCTION_GROUP, HOLDER, HOLDER_GROUP, File("proc/79/limits", locked_memory!("16777216"))],
        ),
    ),
    case(
        "qatlib-functions-taken",
        (
            "no-accelerator",
            &[
                File("sys/bus/pci/devices/0000:00:05.0/vendor", "0x8086\n"),
                File("sys/bus/pci/devices/0000:00:05.0/device", "0x4941\n"),
                Link("sys/bus/pci/devices/0000:00:05.0/driver", "../../../../bus/pci/drivers/vfio-pci"),
                Link("sys/bus/pci/devices/0000:00:05.0/iommu_group", "../../../../kernel/iommu_groups/100"),
                HOLDER,
                HOLDER_GROUP,
            ],
        ),
        // Three functions are free.
        ("qat-4xxx-16vfs", &[FUNCTION_GROUP, HOLDER, HOLDER_GROUP]),
    ),
    case(
        "device-passed-over",
        (
            "devcrypto-router",
            &[File(
                "proc/crypto",
                "name : cbc(aes)\ndriver : mv-cbc-aes\nmodule : marvell_cesa\npriority : 100\nselftest : passed\ninternal : no\n\n\
                 name : cbc(aes)\ndriver : cbc-aes-neonbs\nmodule : aes_arm_bs\npriority : 250\nselftest : passed\ninternal : no\n",
            )],
        ),
        ("qat-8970", &[]),
    ),
    case(
        "devcrypto-small-packets",
        ("devcrypto-router", &[File(OPENVPN, "engine devcrypto\n")]),
        ("devcrypto-router", &[GOOD_OPENVPN]),
    ),
    case(
        "kernel-bulk-interface",
        ("no-accelerator", &[KERNEL_BULK, NO_AF_ALG]),
        (
            "no-accelerator",
            &[
                KERNEL_BULK,
                NO_AF_ALG,
                File(
                    "lib/modules/6.1.0-28-amd64/modules.dep",
                    "kernel/crypto/algif_skcipher.ko.xz: kernel/crypto/af_alg.ko.xz\n",
                ),
            ],
        ),
    ),
    case(
        "kernel-bulk-filter",
        (
            "no-accelerator",
            &[
                KERNEL_BULK,
                File("etc/systemd/system/nginx.service.d/x.conf", "RestrictAddressFamilies=AF_UNIX AF_INET\n"),
            ],
        ),
        (
            "no-accelerator",
            &[
                KERNEL_BULK,
                File("etc/systemd/system/nginx.service.d/x.conf", "RestrictAddressFamilies=AF_INET AF_ALG\n"),
                File("etc/systemd/system/millrace.service", "RestrictAddressFamilies=AF_UNIX\n"),
            ],
        ),
    ),
    case(
        "kernel-bulk-sizes",
        ("arm-a9-router", &[KERNEL_BULK]),
        ("arm-a9-router", &[KERNEL_BULK, File(BULK_SIZES, MEASURED)]),
    ),
    case("kernel-bulk-processor", ("aes-ni-vm", &[KERNEL_BULK]), ("devcrypto-router", &[KERNEL_BULK])),
    case(
        "kernel-portable-aes",
        (
            "aes-ni-vm",
            &[File(
                "proc/crypto",
                "name : cbc(aes)\ndriver : cbc(aes-generic)\nmodule : kernel\npriority : 100\nselftest : passed\ninternal : no\n",
            )],
        ),
        ("qat-8970", &[]),
    ),
    case("gpu-driver", ("h100-host", &[Gone("sys/bus/pci/devices/0000:07:00.0/driver")]), ("h100-host", &[])),
    case(
        "virtio-crypto-driver",
        ("aes-ni-vm", &[File("sys/bus/virtio/devices/virtio5/device", "0x0014\n")]),
        (
            "aes-ni-vm",
            &[
                File("sys/bus/virtio/devices/virtio5/device", "0x0014\n"),
                Link("sys/bus/virtio/devices/virtio5/driver", "../../drivers/virtio_crypto"),
            ],
        ),
    ),
    case("libcrypto-no-assembly", ("arm-a15-router", &[]), ("arm-a9-router", &[])),
    case("libcrypto-slow", ("arm-a9-router", &[Edit(A9_LIBRARY, "-O3 ", "-Os ")]), ("arm-a9-router", &[])),
    case(
        "libcrypto-unsupported",
        ("arm-a9-router", &[Edit(A9_LIBRARY, "OpenSSL 3.0.20", "OpenSSL 1.1.1w")]),
        ("arm-a9-router", &[]),
    ),
    case("libcrypto-replaced", ("aes-ni-vm", &[]), ("aes-ni-vm", &[Gone("proc/813")])),
    case(
        "openssl-mask",
        (
            "aes-ni-vm",
            &[File(
                "etc/systemd/system/nginx.service.d/x.conf",
                "[Service]\nEnvironment=OPENSSL_ia32cap=~0x200000200000000\n",
            )],
        ),
        ("aes-ni-vm", &[]),
    ),
    case(
        "openssl-engine",
        ("arm-a9-router", &[File(OPENSSL, "[openssl_init]\nengines = engine_section\n")]),
        ("arm-a9-router", &[File(OPENSSL, "[openssl_init]\nproviders = provider_section\n")]),
    ),
    case("cpu-hidden", ("aes-ni-vm", &[]), ("qat-8970", &[])),
    case("cpu-no-aes", ("no-accelerator", &[]), ("qat-8970", &[])),
    case(
        "cpu-governor",
        ("no-accelerator", &[File(GOVERNOR, "powersave\n"), File(DRIVER, "acpi-cpufreq\n")]),
        ("no-accelerator", &[File(GOVERNOR, "powersave\n"), File(DRIVER, "intel_pstate\n")]),
    ),
    case(
        "temperature",
        (
            "atom-c3000",
            &[
                File("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n"),
                File("sys/class/thermal/thermal_zone0/temp", "96000\n"),
                File("sys/class/thermal/thermal_zone0/trip_point_0_type", "passive\n"),
                File("sys/class/thermal/thermal_zone0/trip_point_0_temp", "100000\n"),
            ],
        ),
        (
            "atom-c3000",
            &[
                File("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n"),
                File("sys/class/thermal/thermal_zone0/temp", "56000\n"),
                File("sys/class/thermal/thermal_zone0/trip_point_0_type", "passive\n"),
                File("sys/class/thermal/thermal_zone0/trip_point_0_temp", "100000\n"),
            ],
        ),
    ),
    case(
        "memory-low",
        ("aes-ni-vm", &[File("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 30000 kB\n")]),
        ("aes-ni-vm", &[File("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 300000 kB\n")]),
    ),
    case("boot-mitigations-off", ("qat-8970", &[File(CMDLINE, "ro mitigations=off quiet\n")]), ("qat-8970", &[])),
    case("boot-idle-poll", ("qat-8970", &[File(CMDLINE, "ro idle=poll quiet\n")]), ("qat-8970", &[])),
    case("boot-cstates", ("qat-8970", &[File(CMDLINE, "ro processor.max_cstates=1\n")]), ("qat-8970", &[])),
    case(
        "boot-iommu-off",
        ("qat-8970", &[File(CMDLINE, "ro intel_iommu=off\n")]),
        ("qat-8970", &[File(CMDLINE, "ro intel_iommu=on iommu=pt\n")]),
    ),
    case("boot-clearcpuid", ("qat-8970", &[File(CMDLINE, "ro clearcpuid=aes\n")]), ("qat-8970", &[])),
    case(
        "limit-open-files",
        ("qat-8970", &[NGINX_RUNS, GOOD_NGINX, File("proc/77/limits", limits!("0", "1000"))]),
        ("qat-8970", &[NGINX_RUNS, GOOD_NGINX, File("proc/77/limits", limits!("0", "65536"))]),
    ),
    case(
        "limit-file-handles",
        ("qat-8970", &[File("proc/sys/fs/file-nr", "95000\t0\t100000\n")]),
        ("qat-8970", &[File("proc/sys/fs/file-nr", "1500\t0\t9223372036854775807\n")]),
    ),
    case(
        "limit-core-dumps",
        ("qat-8970", &[NGINX_RUNS, File("proc/77/limits", limits!("unlimited", "65536"))]),
        (
            "qat-8970",
            &[
                NGINX_RUNS,
                File("proc/77/limits", limits!("unlimited", "65536")),
                File("proc/sys/kernel/core_pattern", "|/bin/false\n"),
                File("etc/systemd/system/nginx.service", "[Service]\nLimitCORE=0\n"),
            ],
        ),
    ),
    case(
        "limit-somaxconn",
        ("qat-8970", &[GOOD_NGINX, File("proc/sys/net/core/somaxconn", "128\n")]),
        ("qat-8970", &[GOOD_NGINX, File("proc/sys/net/core/somaxconn", "4096\n")]),
    ),
    case(
        "limit-conntrack",
        (
            "qat-8970",
            &[
                File("proc/sys/net/netfilter/nf_conntrack_max", "65536\n"),
                File("proc/sys/net/netfilter/nf_conntrack_count", "64000\n"),
            ],
        ),
        (
            "qat-8970",
            &[
                File("proc/sys/net/netfilter/nf_conntrack_max", "65536\n"),
                File("proc/sys/net/netfilter/nf_conntrack_count", "640\n"),
            ],
        ),
    ),
    case(
        "ipsec-weak-algorithms",
        ("qat-8970", &[File("etc/ipsec.conf", "conn a\n  ike=3des-sha1-modp1024!\n  esp=aes128-md5\n")]),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-short-tag",
        (
            "qat-8970",
            &[File(SWANCTL, "connections { a { children { b { esp_proposals = aes128gcm64-ecp256 } } } }\n")],
        ),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-no-pfs",
        ("qat-8970", &[File("etc/ipsec.conf", "conn a\n  esp=aes256gcm16-ecp384,aes256gcm16\n")]),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-ikev1",
        ("qat-8970", &[File("etc/ipsec.conf", "conn a\n  keyexchange=ikev1\n")]),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-replay-window",
        ("atom-c3000", &[File(SWANCTL, "connections { a { children { b { esp_proposals = aes256-sha256 } } } }\n")]),
        ("atom-c3000", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-replay-errors",
        ("atom-c3000", &[]),
        ("atom-c3000", &[File("proc/net/xfrm_stat", "XfrmInStateSeqError \t0\n")]),
    ),
    case(
        "ipsec-errors",
        ("atom-c3000", &[File("proc/net/xfrm_stat", "XfrmInStateProtoError \t4\n")]),
        ("atom-c3000", &[]),
    ),
    case(
        "ipsec-dpd",
        ("qat-8970", &[File(SWANCTL, "connections { a {\n dpd_delay = 2s\n } }\n")]),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "openvpn-no-protection",
        ("qat-8970", &[File(OPENVPN, "cipher none\nauth none\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-static-key",
        ("qat-8970", &[File(OPENVPN, "dev tap0\nsecret /etc/openvpn/static.key\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-weak-algorithms",
        ("qat-8970", &[File(OPENVPN, "cipher BF-CBC\nauth MD5\ntls-version-min 1.0\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case("openvpn-compression", ("qat-8970", &[File(OPENVPN, "comp-lzo\n")]), ("qat-8970", &[GOOD_OPENVPN])),
    case("openvpn-tap", ("qat-8970", &[File(OPENVPN, "dev tap0\n")]), ("qat-8970", &[GOOD_OPENVPN])),
    case(
        "openvpn-dco-disabled",
        ("qat-8970", &[File(OPENVPN, "dev tun\ndisable-dco\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-user-space",
        ("devcrypto-router", &[File("proc/modules", "ovpn 65536 0 - Live 0x0\n")]),
        ("devcrypto-router", &[]),
    ),
    case("openvpn-keepalive", ("qat-8970", &[File(OPENVPN, "keepalive 1 2\n")]), ("qat-8970", &[GOOD_OPENVPN])),
    case(
        "tunnel-mtu",
        ("qat-4xxx-16vfs", &[File("sys/class/net/wg0/mtu", "1500\n"), File("sys/class/net/ens1f0/mtu", "1500\n")]),
        ("qat-4xxx-16vfs", &[File("sys/class/net/wg0/mtu", "1420\n"), File("sys/class/net/ens1f0/mtu", "1500\n")]),
    ),
    case(
        "tls-old-versions",
        ("qat-8970", &[File(NGINX, "http { ssl_protocols TLSv1 TLSv1.2; }\n")]),
        ("qat-8970", &[GOOD_NGINX]),
    ),
    case(
        "tls-weak-ciphers",
        (
            "qat-8970",
            &[File("etc/haproxy/haproxy.cfg", "global\n  ssl-default-bind-ciphers HIGH:DES-CBC3-SHA:RC4-SHA\n")],
        ),
        ("qat-8970", &[GOOD_NGINX]),
    ),
    case(
        "tls-no-post-quantum",
        ("aes-ni-vm", &[File(NGINX, "http { server { listen 443 ssl; } }\n")]),
        ("aes-ni-vm", &[File(NGINX, "http { ssl_ecdh_curve X25519MLKEM768:X25519; server { listen 443 ssl; } }\n")]),
    ),
    case(
        "tls-no-post-quantum",
        (
            "aes-ni-vm",
            &[
                File("etc/millrace/openssl.cnf", "[m]\nlocal = on\n"),
                File(
                    "etc/haproxy/haproxy.cfg",
                    "global\n  ssl-default-bind-curves X25519:P-256\nfrontend a\n  bind :443 ssl crt /a.pem\n",
                ),
            ],
        ),
        // A list for every program of the machine.
        (
            "aes-ni-vm",
            &[
                File("etc/millrace/openssl.cnf", "[m]\nlocal = on\n[g]\nGroups = X25519MLKEM768:X25519\n"),
                File("etc/haproxy/haproxy.cfg", "frontend a\n  bind :443 ssl crt /a.pem\n"),
            ],
        ),
    ),
    case(
        "certbot-installer",
        (
            "no-accelerator",
            &[
                File("etc/letsencrypt/renewal/www.conf", "[renewalparams]\nauthenticator = webroot\ninstaller = nginx\n"),
                File("etc/systemd/system/nginx.service.d/millrace.conf", "[Service]\n"),
            ],
        ),
        (
            "no-accelerator",
            &[
                File("etc/letsencrypt/renewal/www.conf", "[renewalparams]\nauthenticator = webroot\ninstaller = nginx\n"),
                File("etc/letsencrypt/renewal/mail.conf", "[renewalparams]\ninstaller = apache\n"),
                File("etc/systemd/system/nginx.service.d/millrace.conf", "[Service]\n"),
                File("etc/systemd/system/certbot.service.d/millrace.conf", "[Service]\n"),
            ],
        ),
    ),
    case(
        "tls-ktls-unused",
        (
            "qat-8970",
            &[File("proc/net/tls_stat", "TlsTxSw \t0\n"), File(NGINX, "http { server { listen 443 ssl; } }\n")],
        ),
        ("qat-8970", &[File("proc/net/tls_stat", "TlsTxSw \t0\n"), GOOD_NGINX]),
    ),
    case(
        "http-compression-secrets",
        ("qat-8970", &[File(NGINX, "http { gzip on; server { listen 443 ssl; } }\n")]),
        ("qat-8970", &[File(NGINX, "http { gzip on; server { listen 443 ssl;\nlocation /login { gzip off; } } }\n")]),
    ),
    case(
        "http-compression-level",
        ("qat-8970", &[File(NGINX, "http { gzip on; gzip_comp_level 9; }\n")]),
        ("qat-8970", &[File(NGINX, "http { gzip on; gzip_comp_level 6; }\n")]),
    ),
    case(
        "http-compression-vary",
        ("qat-8970", &[File(NGINX, "http { gzip on; # gzip_vary on;\n}\n")]),
        ("qat-8970", &[File(NGINX, "http { gzip on; gzip_vary on; }\n")]),
    ),
    case(
        "http-compression-types",
        ("qat-8970", &[File(NGINX, "http { gzip on; }\n")]),
        ("qat-8970", &[File(NGINX, "http { gzip on; gzip_types application/json; }\n")]),
    ),
];
