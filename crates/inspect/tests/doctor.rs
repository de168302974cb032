// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Every check of the doctor, on a machine where it fires and on one where it does not: a fixture, and
//! what is changed in it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use millrace_inspect::doctor::{CHECKS, Diagnosis, Finding, Severity, diagnose, judge, system};
use millrace_inspect::report::Report;
use millrace_inspect::root::Root;
use tempfile::TempDir;

/// A change in a tree.
#[derive(Clone, Copy)]
enum Change {
    /// This file says this.
    File(&'static str, &'static str),
    /// This file or folder is not there.
    Gone(&'static str),
    /// A symbolic link to there.
    Link(&'static str, &'static str),
    /// This file of the fixture with one text put for another of the same length, wherever it is.
    Edit(&'static str, &'static str, &'static str),
}
use Change::{Edit, File, Gone, Link};

/// A fixture and what is changed in it.
type Machine = (&'static str, &'static [Change]);

/// A check, a machine on which it fires, and one on which it does not.
struct Case {
    id: &'static str,
    fires: Machine,
    silent: Machine,
}

const fn case(id: &'static str, fires: Machine, silent: Machine) -> Case {
    Case { id, fires, silent }
}

const SWANCTL: &str = "etc/swanctl/swanctl.conf";
const OPENVPN: &str = "etc/openvpn/server.conf";
const NGINX: &str = "etc/nginx/nginx.conf";
const OPENSSL: &str = "etc/ssl/openssl.cnf";
const CMDLINE: &str = "proc/cmdline";
const A9_LIBRARY: &str = "usr/lib/libcrypto.so.3";
const QAT_FOLDER: &str = "sys/bus/pci/devices/0000:6b:00.0/qat";
const GOVERNOR: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_governor";
const DRIVER: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_driver";

/// A configuration with nothing to say against it.
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

const NGINX_RUNS: Change = File("proc/77/comm", "nginx\n");

const CASES: &[Case] = &[
    case("qat-down", ("qat-down", &[]), ("qat-heartbeat", &[])),
    case(
        "qat-driver",
        (
            "qat-8970",
            &[
                Gone("sys/bus/pci/devices/0000:3d:00.0/driver"),
                File(
                    "etc/modprobe.d/qat.conf",
                    "blacklist qat_c6xx\nblacklist intel_qat\n",
                ),
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
        (
            "qat-8970",
            &[File(
                "sys/kernel/debug/qat_c6xx_0000:3d:00.0/heartbeat/queries_failed",
                "3\n\0",
            )],
        ),
        ("qat-8970", &[]),
    ),
    case("qat-stuck", ("qat-heartbeat", &[]), ("qat-8970", &[])),
    case(
        "qat-ring-pressure",
        ("qat-heartbeat", &[]),
        ("atom-c3000", &[]),
    ),
    case(
        "qat-errors-fatal",
        ("qat-heartbeat", &[]),
        ("qat-4xxx-16vfs", &[]),
    ),
    case(
        "qat-errors-nonfatal",
        ("qat-heartbeat", &[]),
        ("qat-4xxx-16vfs", &[]),
    ),
    case(
        "qat-errors-correctable",
        ("qat-heartbeat", &[]),
        ("qat-4xxx-16vfs", &[]),
    ),
    case(
        "qat-auto-reset",
        ("qat-heartbeat", &[]),
        (
            "qat-heartbeat",
            &[File(
                "sys/bus/pci/devices/0000:6b:00.0/qat/auto_reset",
                "on\n",
            )],
        ),
    ),
    case("qat-link", ("qat-8970", &[]), ("qat-heartbeat", &[])),
    case(
        "qat-numa",
        (
            "qat-8970",
            &[File("sys/class/net/eno1/device/numa_node", "7\n")],
        ),
        (
            "qat-8970",
            &[File("sys/class/net/eno1/device/numa_node", "0\n")],
        ),
    ),
    case("qat-idle", ("atom-c3000", &[]), ("qat-heartbeat", &[])),
    case(
        "qat-unread",
        (
            "qat-8970",
            &[
                Gone("sys/kernel/debug"),
                File(
                    "sys/kernel/security/lockdown",
                    "none [integrity] confidentiality\n",
                ),
            ],
        ),
        ("qat-8970", &[]),
    ),
    case(
        "qat-no-kernel-instances",
        ("qat-down", &[]),
        ("atom-c3000", &[]),
    ),
    case("qat-passed-over", ("qat-8970", &[]), ("atom-c3000", &[])),
    case(
        "qat-gcm",
        (
            "atom-c3000",
            &[File(
                SWANCTL,
                "connections { a { children { b { esp_proposals = aes256gcm16-ecp384 } } } }\n",
            )],
        ),
        ("atom-c3000", &[GOOD_SWANCTL]),
    ),
    case(
        "qat-small-packets",
        (
            "atom-c3000",
            &[
                GOOD_OPENVPN,
                File("usr/lib/x86_64-linux-gnu/engines-3/qatengine.so", "x"),
            ],
        ),
        (
            "atom-c3000",
            &[
                GOOD_OPENVPN,
                File("usr/lib/x86_64-linux-gnu/engines-3/qatengine.so", "x"),
                File(
                    OPENSSL,
                    "SET_CRYPTO_SMALL_PACKET_OFFLOAD_THRESHOLD = AES-256-CBC-HMAC-SHA1:1024\n",
                ),
            ],
        ),
    ),
    case(
        "qat-hugepages",
        (
            "atom-c3000",
            &[File(
                "proc/meminfo",
                "MemTotal: 16384 kB\nHugePages_Total:       0\n",
            )],
        ),
        (
            "atom-c3000",
            &[File(
                "proc/meminfo",
                "MemTotal: 16384 kB\nHugePages_Total:    1024\n",
            )],
        ),
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
    case(
        "gpu-driver",
        (
            "h100-host",
            &[Gone("sys/bus/pci/devices/0000:07:00.0/driver")],
        ),
        ("h100-host", &[]),
    ),
    case(
        "virtio-crypto-driver",
        (
            "aes-ni-vm",
            &[File("sys/bus/virtio/devices/virtio5/device", "0x0014\n")],
        ),
        (
            "aes-ni-vm",
            &[
                File("sys/bus/virtio/devices/virtio5/device", "0x0014\n"),
                Link(
                    "sys/bus/virtio/devices/virtio5/driver",
                    "../../drivers/virtio_crypto",
                ),
            ],
        ),
    ),
    case(
        "libcrypto-no-assembly",
        ("arm-a15-router", &[]),
        ("arm-a9-router", &[]),
    ),
    case(
        "libcrypto-slow",
        ("arm-a9-router", &[Edit(A9_LIBRARY, "-O3 ", "-Os ")]),
        ("arm-a9-router", &[]),
    ),
    case(
        "libcrypto-unsupported",
        (
            "arm-a9-router",
            &[Edit(A9_LIBRARY, "OpenSSL 3.0.20", "OpenSSL 1.1.1w")],
        ),
        ("arm-a9-router", &[]),
    ),
    case(
        "libcrypto-replaced",
        ("aes-ni-vm", &[]),
        ("aes-ni-vm", &[Gone("proc/813")]),
    ),
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
        (
            "arm-a9-router",
            &[File(OPENSSL, "[openssl_init]\nengines = engine_section\n")],
        ),
        (
            "arm-a9-router",
            &[File(
                OPENSSL,
                "[openssl_init]\nproviders = provider_section\n",
            )],
        ),
    ),
    case("cpu-hidden", ("aes-ni-vm", &[]), ("qat-8970", &[])),
    case("cpu-no-aes", ("no-accelerator", &[]), ("qat-8970", &[])),
    case(
        "cpu-governor",
        (
            "no-accelerator",
            &[
                File(GOVERNOR, "powersave\n"),
                File(DRIVER, "acpi-cpufreq\n"),
            ],
        ),
        (
            "no-accelerator",
            &[
                File(GOVERNOR, "powersave\n"),
                File(DRIVER, "intel_pstate\n"),
            ],
        ),
    ),
    case(
        "temperature",
        (
            "atom-c3000",
            &[
                File("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n"),
                File("sys/class/thermal/thermal_zone0/temp", "96000\n"),
                File(
                    "sys/class/thermal/thermal_zone0/trip_point_0_type",
                    "passive\n",
                ),
                File(
                    "sys/class/thermal/thermal_zone0/trip_point_0_temp",
                    "100000\n",
                ),
            ],
        ),
        (
            "atom-c3000",
            &[
                File("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp\n"),
                File("sys/class/thermal/thermal_zone0/temp", "56000\n"),
                File(
                    "sys/class/thermal/thermal_zone0/trip_point_0_type",
                    "passive\n",
                ),
                File(
                    "sys/class/thermal/thermal_zone0/trip_point_0_temp",
                    "100000\n",
                ),
            ],
        ),
    ),
    case(
        "memory-low",
        (
            "aes-ni-vm",
            &[File(
                "proc/meminfo",
                "MemTotal: 1000000 kB\nMemAvailable: 30000 kB\n",
            )],
        ),
        (
            "aes-ni-vm",
            &[File(
                "proc/meminfo",
                "MemTotal: 1000000 kB\nMemAvailable: 300000 kB\n",
            )],
        ),
    ),
    case(
        "boot-mitigations-off",
        ("qat-8970", &[File(CMDLINE, "ro mitigations=off quiet\n")]),
        ("qat-8970", &[]),
    ),
    case(
        "boot-idle-poll",
        ("qat-8970", &[File(CMDLINE, "ro idle=poll quiet\n")]),
        ("qat-8970", &[]),
    ),
    case(
        "boot-cstates",
        ("qat-8970", &[File(CMDLINE, "ro processor.max_cstates=1\n")]),
        ("qat-8970", &[]),
    ),
    case(
        "boot-iommu-off",
        ("qat-8970", &[File(CMDLINE, "ro intel_iommu=off\n")]),
        ("qat-8970", &[File(CMDLINE, "ro intel_iommu=on iommu=pt\n")]),
    ),
    case(
        "boot-clearcpuid",
        ("qat-8970", &[File(CMDLINE, "ro clearcpuid=aes\n")]),
        ("qat-8970", &[]),
    ),
    case(
        "limit-open-files",
        (
            "qat-8970",
            &[
                NGINX_RUNS,
                GOOD_NGINX,
                File("proc/77/limits", limits!("0", "1000")),
            ],
        ),
        (
            "qat-8970",
            &[
                NGINX_RUNS,
                GOOD_NGINX,
                File("proc/77/limits", limits!("0", "65536")),
            ],
        ),
    ),
    case(
        "limit-file-handles",
        (
            "qat-8970",
            &[File("proc/sys/fs/file-nr", "95000\t0\t100000\n")],
        ),
        (
            "qat-8970",
            &[File(
                "proc/sys/fs/file-nr",
                "1500\t0\t9223372036854775807\n",
            )],
        ),
    ),
    case(
        "limit-core-dumps",
        (
            "qat-8970",
            &[
                NGINX_RUNS,
                File("proc/77/limits", limits!("unlimited", "65536")),
            ],
        ),
        (
            "qat-8970",
            &[
                NGINX_RUNS,
                File("proc/77/limits", limits!("unlimited", "65536")),
                File("proc/sys/kernel/core_pattern", "|/bin/false\n"),
                File(
                    "etc/systemd/system/nginx.service",
                    "[Service]\nLimitCORE=0\n",
                ),
            ],
        ),
    ),
    case(
        "limit-somaxconn",
        (
            "qat-8970",
            &[GOOD_NGINX, File("proc/sys/net/core/somaxconn", "128\n")],
        ),
        (
            "qat-8970",
            &[GOOD_NGINX, File("proc/sys/net/core/somaxconn", "4096\n")],
        ),
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
        (
            "qat-8970",
            &[File(
                "etc/ipsec.conf",
                "conn a\n  ike=3des-sha1-modp1024!\n  esp=aes128-md5\n",
            )],
        ),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-short-tag",
        (
            "qat-8970",
            &[File(
                SWANCTL,
                "connections { a { children { b { esp_proposals = aes128gcm64-ecp256 } } } }\n",
            )],
        ),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-no-pfs",
        (
            "qat-8970",
            &[File(
                "etc/ipsec.conf",
                "conn a\n  esp=aes256gcm16-ecp384,aes256gcm16\n",
            )],
        ),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-ikev1",
        (
            "qat-8970",
            &[File("etc/ipsec.conf", "conn a\n  keyexchange=ikev1\n")],
        ),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-replay-window",
        (
            "atom-c3000",
            &[File(
                SWANCTL,
                "connections { a { children { b { esp_proposals = aes256-sha256 } } } }\n",
            )],
        ),
        ("atom-c3000", &[GOOD_SWANCTL]),
    ),
    case(
        "ipsec-replay-errors",
        ("atom-c3000", &[]),
        (
            "atom-c3000",
            &[File("proc/net/xfrm_stat", "XfrmInStateSeqError \t0\n")],
        ),
    ),
    case(
        "ipsec-errors",
        (
            "atom-c3000",
            &[File("proc/net/xfrm_stat", "XfrmInStateProtoError \t4\n")],
        ),
        ("atom-c3000", &[]),
    ),
    case(
        "ipsec-dpd",
        (
            "qat-8970",
            &[File(SWANCTL, "connections { a {\n dpd_delay = 2s\n } }\n")],
        ),
        ("qat-8970", &[GOOD_SWANCTL]),
    ),
    case(
        "openvpn-no-protection",
        ("qat-8970", &[File(OPENVPN, "cipher none\nauth none\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-static-key",
        (
            "qat-8970",
            &[File(OPENVPN, "dev tap0\nsecret /etc/openvpn/static.key\n")],
        ),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-weak-algorithms",
        (
            "qat-8970",
            &[File(
                OPENVPN,
                "cipher BF-CBC\nauth MD5\ntls-version-min 1.0\n",
            )],
        ),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-compression",
        ("qat-8970", &[File(OPENVPN, "comp-lzo\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-tap",
        ("qat-8970", &[File(OPENVPN, "dev tap0\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-dco-disabled",
        ("qat-8970", &[File(OPENVPN, "dev tun\ndisable-dco\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "openvpn-user-space",
        (
            "devcrypto-router",
            &[File("proc/modules", "ovpn 65536 0 - Live 0x0\n")],
        ),
        ("devcrypto-router", &[]),
    ),
    case(
        "openvpn-keepalive",
        ("qat-8970", &[File(OPENVPN, "keepalive 1 2\n")]),
        ("qat-8970", &[GOOD_OPENVPN]),
    ),
    case(
        "tunnel-mtu",
        (
            "qat-4xxx-16vfs",
            &[
                File("sys/class/net/wg0/mtu", "1500\n"),
                File("sys/class/net/ens1f0/mtu", "1500\n"),
            ],
        ),
        (
            "qat-4xxx-16vfs",
            &[
                File("sys/class/net/wg0/mtu", "1420\n"),
                File("sys/class/net/ens1f0/mtu", "1500\n"),
            ],
        ),
    ),
    case(
        "tls-old-versions",
        (
            "qat-8970",
            &[File(NGINX, "http { ssl_protocols TLSv1 TLSv1.2; }\n")],
        ),
        ("qat-8970", &[GOOD_NGINX]),
    ),
    case(
        "tls-weak-ciphers",
        (
            "qat-8970",
            &[File(
                "etc/haproxy/haproxy.cfg",
                "global\n  ssl-default-bind-ciphers HIGH:DES-CBC3-SHA:RC4-SHA\n",
            )],
        ),
        ("qat-8970", &[GOOD_NGINX]),
    ),
    case(
        "tls-ktls-unused",
        (
            "qat-8970",
            &[
                File("proc/net/tls_stat", "TlsTxSw \t0\n"),
                File(NGINX, "http { server { listen 443 ssl; } }\n"),
            ],
        ),
        (
            "qat-8970",
            &[File("proc/net/tls_stat", "TlsTxSw \t0\n"), GOOD_NGINX],
        ),
    ),
];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in from.read_dir().expect("a fixture") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        let kind = entry.file_type().expect("a kind");
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path()).expect("a link"), &target).expect("a link");
        } else {
            fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

fn build((name, changes): Machine) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    copy(&fixture(name), folder.path());
    let place = |path: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        path
    };
    for change in changes {
        match change {
            File(path, text) => fs::write(place(path), text).expect("a file"),
            Link(path, target) => symlink(target, place(path)).expect("a link"),
            Gone(path) => {
                let path = folder.path().join(path);
                let removed = match path.is_dir() && !path.is_symlink() {
                    true => fs::remove_dir_all(&path),
                    false => fs::remove_file(&path),
                };
                removed.expect("it was there");
            }
            Edit(path, old, new) => {
                assert_eq!(old.len(), new.len());
                let path = place(path);
                let mut bytes = fs::read(&path).expect("a file of the fixture");
                let mut edited = 0;
                for at in 0..bytes.len().saturating_sub(old.len()) {
                    if bytes[at..].starts_with(old.as_bytes()) {
                        bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
                        edited += 1;
                    }
                }
                assert!(edited > 0, "{old} is not in {}", path.display());
                fs::write(&path, bytes).expect("a file");
            }
        }
    }
    folder
}

fn examine(machine: Machine) -> Diagnosis {
    let folder = build(machine);
    let root = Root::open(folder.path()).expect("a root");
    diagnose(&root, |_| true)
}

fn found<'a>(diagnosis: &'a Diagnosis, id: &str) -> Option<&'a Finding> {
    diagnosis.findings.iter().find(|finding| finding.id == id)
}

#[test]
fn every_check_fires_where_it_should_and_only_there() {
    let mut wrong = Vec::new();
    for Case { id, fires, silent } in CASES {
        match found(&examine(*fires), id) {
            None => wrong.push(format!("{id} is silent where it should fire")),
            Some(finding) => {
                let full = !finding.title.is_empty()
                    && !finding.evidence.is_empty()
                    && !finding.consequence.is_empty()
                    && !finding.remedy.is_empty();
                if !full {
                    wrong.push(format!("{id} does not say everything: {finding:?}"));
                }
            }
        }
        if let Some(finding) = found(&examine(*silent), id) {
            wrong.push(format!(
                "{id} fires where it should be silent: {:?}",
                finding.evidence
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_check_has_a_case_and_an_id_of_its_own() {
    let cases: BTreeSet<&str> = CASES.iter().map(|case| case.id).collect();
    let checks: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(cases, checks);
    assert_eq!(checks.len(), CHECKS.len(), "an id is there twice");
}

#[test]
fn the_guide_names_every_check() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/doctor.md");
    let guide = fs::read_to_string(guide).expect("docs/guide/doctor.md");
    let row =
        |check: &millrace_inspect::doctor::Check| format!("| `{}` | {} |", check.id, check.about);
    let missing: Vec<String> = CHECKS
        .iter()
        .map(row)
        .filter(|row| !guide.contains(row))
        .collect();
    assert!(
        missing.is_empty(),
        "not in the guide:\n{}",
        missing.join("\n")
    );
}

#[test]
fn the_worst_is_first_and_some_may_be_left_out() {
    let folder = build(("qat-heartbeat", &[]));
    let root = Root::open(folder.path()).expect("a root");
    let all = diagnose(&root, |_| true);
    assert_eq!(all.worst(), Some(Severity::Critical));
    assert!(all.findings.is_sorted_by_key(|finding| finding.severity));
    let one = diagnose(&root, |check| check.id == "qat-link");
    assert_eq!((one.checks, one.findings.len()), (1, 0));
}

/// Two looks tell what hangs from what is on its way.
#[test]
fn requests_that_are_answered_meanwhile_are_not_stuck() {
    const COUNTERS: &str = "sys/kernel/debug/qat_4xxx_0000:6b:00.0/fw_counters";
    let folder = build(("qat-heartbeat", &[]));
    let look = || Report::of(&Root::open(folder.path()).expect("a root"));
    let system = system::section(&Root::open(folder.path()).expect("a root"));
    let before = look();
    let earlier = before.qat.known.as_ref();
    let stuck = |report: &Report| {
        let diagnosis = judge(report, &system, earlier, |check| check.id == "qat-stuck");
        diagnosis.findings.first().map(|finding| finding.severity)
    };
    assert_eq!(stuck(&before), Some(Severity::Critical));
    let text = fs::read_to_string(folder.path().join(COUNTERS)).expect("counters");
    let moved = text.replace("69488", "69999");
    assert_ne!(moved, text);
    fs::write(folder.path().join(COUNTERS), moved).expect("counters");
    assert_eq!(stuck(&look()), None);
}

/// An engine that OpenSSL does not have any more is an error, not a remark.
#[test]
fn an_engine_with_openssl_4_is_critical() {
    let diagnosis = examine((
        "arm-a9-router",
        &[
            Edit(A9_LIBRARY, "OpenSSL 3.0.20", "OpenSSL 4.0.10"),
            File(OPENVPN, "engine devcrypto\n"),
        ],
    ));
    let finding = found(&diagnosis, "openssl-engine").expect("a finding");
    assert_eq!(
        finding.severity,
        Severity::Critical,
        "{:?}",
        finding.evidence
    );
}

/// What systemd itself says of the units.
#[test]
fn units_are_well_formed() {
    let program = Path::new("/usr/bin/systemd-analyze");
    if !program.exists() {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["millrace-doctor.service", "millrace-doctor.timer"] {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy")
            .join(name);
        let text = fs::read_to_string(unit).expect("a unit");
        // A program that is there, and no manual page.
        let text = text
            .replace("/usr/bin/millrace ", "/bin/true ")
            .replace("Documentation=man:millrace-doctor(1)\n", "");
        fs::write(folder.path().join(name), text).expect("a unit");
    }
    let output = std::process::Command::new(program)
        .args(["verify", "--recursive-errors=no"])
        .arg(folder.path().join("millrace-doctor.service"))
        .arg(folder.path().join("millrace-doctor.timer"))
        .output()
        .expect("systemd-analyze");
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("millrace-doctor"))
        .collect();
    assert!(ours.is_empty(), "{ours:#?}");
}

/// Services without instances for the kernel, of either kind.
#[test]
fn services_decide_whether_the_kernel_is_served() {
    for services in ["sym\n", "dc\n", "asym\n"] {
        let folder = build(("qat-heartbeat", &[Gone("sys/kernel/debug")]));
        fs::write(
            folder.path().join(QAT_FOLDER).join("cfg_services"),
            services,
        )
        .expect("services");
        let diagnosis = diagnose(&Root::open(folder.path()).expect("a root"), |_| true);
        assert!(
            found(&diagnosis, "qat-no-kernel-instances").is_some(),
            "{services}"
        );
    }
}

/// No secret of a configuration is in a diagnosis or in a bundle.
#[test]
fn secrets_stay_where_they_are() {
    let folder = build((
        "qat-8970",
        &[
            File(
                SWANCTL,
                "connections { a { dpd_delay = 1s } }\nsecrets {\n  ike-a {\n    secret = hunter2hunter2\n  }\n}\n",
            ),
            File(
                OPENVPN,
                "comp-lzo\n<key>\n-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n</key>\n",
            ),
            File(
                "etc/haproxy/haproxy.cfg",
                "listen s\n  stats auth admin:hunter2hunter2\n",
            ),
        ],
    ));
    let root = Root::open(folder.path()).expect("a root").recording();
    let system = system::section(&root);
    let text = serde_json::to_string(&system).expect("JSON");
    assert!(text.contains("dpd_delay") && text.contains("comp-lzo"));
    let mut bundle = Vec::new();
    root.into_record()
        .write_bundle(&mut bundle)
        .expect("a bundle");
    let replay = Root::from_bundle(bundle.as_slice()).expect("a bundle");
    let mut kept = String::new();
    for path in [SWANCTL, OPENVPN, "etc/haproxy/haproxy.cfg"] {
        kept.push_str(&replay.read(path, 1 << 20).text().unwrap_or_default());
    }
    assert!(
        kept.contains("dpd_delay") && kept.contains("comp-lzo"),
        "{kept}"
    );
    for secret in ["hunter2", "MIGHAgEA"] {
        assert!(
            !text.contains(secret) && !kept.contains(secret),
            "{secret}: {kept}"
        );
    }
    assert_eq!(system::section(&replay).known, system.known);
    // The kernel's command line is kept in no bundle, and of it only what is judged in a section.
    assert!(system.known.is_some_and(|system| system.boot.is_empty()));
}
