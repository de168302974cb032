// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::fs;

use super::*;
use crate::link::{SAMPLE, SAMPLE_BRIDGED};

fn ready() -> Host {
    Host {
        is_root: true,
        programs: PROGRAMS.iter().map(|(name, _)| (*name, PathBuf::from("/x"))).collect(),
        openvpn: Some((2, 6)),
        has_tun: true,
        has_multipath: true,
        devices: vec!["lo".to_owned(), "eth0".to_owned()],
        addresses: Some(vec!["198.51.100.1".parse().expect("an address")]),
        processors: (0..8).collect(),
        cores: (0..4).collect(),
        ..Host::default()
    }
}

#[test]
fn host_with_everything_has_no_problem() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    let host = ready();
    assert_eq!(host.side(&link), Some(Side::A));
    assert_eq!(host.problems(&link, Side::A, &[]), []);
}

#[test]
fn link_that_carries_ipv6_or_encrypts_in_the_kernel_needs_a_kernel_that_does() {
    let text = SAMPLE
        .replace("#: inner6", "inner6")
        .replace("#: data-path = \"user\"", "data-path = \"kernel\"");
    let link = VpnLink::parse(&text).expect("a link");
    let mut host = ready();
    let text = |host: &Host| {
        let problems = host.problems(&link, Side::A, &[]);
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let missing = text(&host);
    for expected in ["the kernel has no IPv6", "the kernel has no ovpn-dco", "Linux 6.16"] {
        assert!(missing.contains(expected), "{missing}");
    }
    host.has_multipath6 = true;
    host.dco_kinds = vec!["ovpn"];
    assert!(text(&host).contains("no ovpn-dco"), "OpenVPN 2.6 cannot use Linux's own");
    host.openvpn = Some((2, 7));
    assert_eq!(text(&host), "");
    let plan = crate::plan::LinkPlan::new(&link, Side::A, &host, &crate::plan::Folders::default());
    let text = plan.text();
    for expected in [
        "ip link delete dev branch.0\n",
        "ip address replace fd00:97::1/128 dev lo",
        "ip route replace fd00:97::2/128 proto 190 src fd00:97::1 nexthop via fe80::1 dev branch.0",
        "echo 1 > /proc/sys/net/ipv6/fib_multipath_hash_policy",
        "unreachable fd00:97::2/128",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    // OpenVPN does not find a device that was there before it.
    for absent in ["disable-dco", "tuntap", "ip link add"] {
        assert!(!text.contains(absent), "{absent} in\n{text}");
    }
}

#[test]
fn each_missing_thing_is_a_problem_with_a_remedy() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    let host =
        Host { openvpn: Some((2, 5)), devices: vec!["branch-1".to_owned()], ..Host::default() };
    let problems = host.problems(&link, Side::B, &[]);
    let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for expected in [
        "network devices need root",
        "openvpn is not installed: apt-get install openvpn",
        "ip is not installed: apt-get install iproute2",
        "taskset is not installed",
        "OpenVPN 2.5 is too old: install OpenVPN 2.6",
        "no /dev/net/tun: modprobe tun",
        "no multipath routes: use a kernel with CONFIG_IP_ROUTE_MULTIPATH",
        "branch-1 exists, and this link did not create it",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    let ours = host.problems(&link, Side::B, &["branch-1".to_owned()]);
    assert_eq!(ours.len(), problems.len() - 1);
}

#[test]
fn bridged_link_needs_a_kernel_with_bonds_and_a_bridge_of_its_mtu() {
    let text = SAMPLE_BRIDGED.replace("#: bridge =", "bridge =");
    let link = VpnLink::parse(&text).expect("a link");
    // Multipath routes are nothing to it.
    let mut host = Host { has_multipath: false, ..ready() };
    let found = |link: &VpnLink, host: &Host| {
        let problems = host.problems(link, Side::A, &[]);
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let missing = found(&link, &host);
    for expected in [
        "the kernel has no bonding: modprobe bonding",
        "there is no bridge br0: ip link add dev br0 type bridge",
    ] {
        assert!(missing.contains(expected), "{missing}");
    }
    host.has_bonding = true;
    host.bridges = vec![("br0".to_owned(), 1500)];
    let long = found(&link, &host);
    assert!(
        long.contains("packets of 1500 bytes, and the bond carries 1426: write mtu = 1500"),
        "{long}"
    );
    let link = VpnLink::parse(&text.replace("#: mtu", "mtu")).expect("a link");
    assert_eq!(found(&link, &host), "");
    host.devices.push("branch".to_owned());
    assert!(found(&link, &host).contains("the device branch exists"));
    let notes = host.notes(&link, Side::A).join("\n");
    assert!(notes.contains("one flow stays on one member"), "{notes}");
}

#[test]
fn expired_and_future_certificates_are_problems() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    let mut host = ready();
    let path = PathBuf::from("/c/cert.pem");
    for (from, until, name, expected) in [
        (0, 86_400, "millrace node", "expired"),
        (i64::MAX - 7200, i64::MAX, "millrace node", "clock of this host"),
        (0, i64::MAX, "other", "is for \"other\""),
    ] {
        let name = name.to_owned();
        host.certificates = vec![(path.clone(), Certificate::Certificate { from, until, name })];
        let problems = host.problems(&link, Side::A, &[]);
        assert!(problems[0].what.contains(expected), "{problems:?}");
        assert!(problems[0].line.is_some());
    }
}

#[test]
fn openssl_configuration_is_checked_and_a_stub_without_one_is_noted() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("key.pem");
    let mut host = ready();
    for (text, expected) in [
        ("-----BEGIN PRIVATE KEY-----\n", Certificate::Key),
        ("# note\n-----BEGIN MILLRACE KEY-----\n", Certificate::Stub),
    ] {
        fs::write(&path, text).expect("a file");
        assert_eq!(certificate(&path), expected);
        host.certificates = vec![(path.clone(), expected)];
    }
    let noted = |link: &VpnLink, host: &Host| {
        let notes = host.notes(link, Side::A);
        notes.iter().any(|note| note.contains("openssl-config"))
    };
    assert!(noted(&VpnLink::parse(SAMPLE).expect("the sample"), &host));
    let named = SAMPLE.replacen("#: openssl-config", "openssl-config", 1);
    let link = VpnLink::parse(&named).expect("a link");
    assert!(!noted(&link, &host));
    assert_eq!(host.problems(&link, Side::A, &[]), []);
    host.openssl_config_error = Some("No such file".to_owned());
    let problems = host.problems(&link, Side::A, &[]);
    assert!(problems[0].what.contains("openssl.cnf: No such file"), "{problems:?}");
    assert!(problems[0].line.is_some());
}

#[test]
fn revocation_list_that_ended_or_is_no_list_is_a_problem() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    let mut host = ready();
    for (revocations, expected) in [
        (Revocations::List { until: Some(86_400) }, "its time is over"),
        (Revocations::Unreadable("is not a PEM file".to_owned()), "is not a PEM file"),
    ] {
        host.revocations = Some(revocations);
        let problems = host.problems(&link, Side::A, &[]);
        assert!(problems[0].what.contains(expected), "{problems:?}");
    }
    host.revocations = Some(Revocations::List { until: None });
    assert_eq!(host.problems(&link, Side::A, &[]), []);
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join(REVOCATIONS);
    assert_eq!(revocations(&path), None);
    fs::write(&path, "no list").expect("a file");
    assert!(matches!(revocations(&path), Some(Revocations::Unreadable(_))));
}

#[test]
fn members_run_near_the_device_and_away_from_its_interrupts() {
    let mut host = ready();
    assert_eq!(host.place(5), [0, 1, 2, 3, 4], "first one per core");
    host.near = vec![2, 3, 6, 7];
    host.interrupted = vec![2];
    assert_eq!(host.place(4), [3, 6, 7, 2]);
    host.processors = vec![0];
    assert_eq!(host.place(3), [0, 0, 0]);
}

#[test]
fn placement_is_read_from_sysfs_and_proc() {
    let dir = tempfile::tempdir().expect("a folder");
    for (path, text) in [
        ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-3\n"),
        ("proc/interrupts", "   CPU0 CPU1\n 30: 1 2 PCI-MSI eth0-TxRx-0\n 31: 1 2 PCI-MSI eth01\n"),
        ("proc/irq/30/effective_affinity_list", "1\n"),
        ("proc/irq/31/effective_affinity_list", "2\n"),
        ("sys/class/net/eth0/device/local_cpulist", "0-1\n"),
        ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "0,2\n"),
        ("sys/devices/system/node/has_memory", "0,2\n"),
        ("sys/devices/system/node/node0/cpulist", "0,2\n"),
        ("sys/devices/system/node/node1/cpulist", "3\n"),
        ("sys/devices/system/node/node2/cpulist", "1\n"),
    ] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let root = Root::open(dir.path()).expect("a root");
    assert_eq!(allowed_processors(&root), [0, 1, 2, 3]);
    assert_eq!(interrupted_processors(&root, "eth0"), [1]);
    assert_eq!(device_processors(&root, "eth0"), [0, 1]);
    let nodes = memory_nodes(&root);
    let host = Host { processors: vec![0, 1, 2, 3], nodes, ..Host::default() };
    assert_eq!(host.first_of_cores(&root), [0, 1, 3]);
    // Node 1 has processors and no memory.
    assert_eq!(
        [0, 1, 2, 3].map(|processor| host.node_of(processor)),
        [Some(0), Some(2), Some(0), None]
    );
    fs::write(dir.path().join("sys/devices/system/node/has_memory"), "0\n").expect("a file");
    assert_eq!(memory_nodes(&root), [], "one node needs no policy");
}

#[test]
fn ipsec_link_needs_strongswan_and_a_data_path() {
    let text = include_str!("../../fixtures/ipsec/link.toml");
    let link = VpnLink::parse(text).expect("a link");
    let host = Host { is_root: true, processors: vec![0], has_esp: Some(false), ..Host::default() };
    let problems = host.problems(&link, Side::B, &[]);
    let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let text = text.join("\n");
    for expected in [
        "the kernel has no ESP: with the fix of CVE-2026-43284",
        "charon-systemd is not installed: apt-get install charon-systemd",
        "swanctl is not installed: apt-get install strongswan-swanctl",
    ] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    assert!(!text.contains("openvpn is not") && !text.contains("/dev/net/tun"), "{text}");
    assert_eq!(parse_strongswan("strongSwan 5.9.8 swanctl\n"), Some((5, 9, 8)));
    assert_eq!(parse_strongswan("Linux strongSwan U6.0/K6.1"), None);
}

#[test]
fn kernel_without_esp_is_told_from_one_with_a_module() {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    let root = Root::open(dir.path()).expect("a root");
    let has_esp = || has_esp(&root);
    assert_eq!(has_esp(), None);
    write("proc/sys/kernel/osrelease", "6.1.0\n");
    write("boot/config-6.1.0", "# CONFIG_INET_ESP is not set\n");
    assert_eq!(has_esp(), Some(false));
    write("lib/modules/6.1.0/modules.dep", "kernel/net/ipv4/esp4.ko:\n");
    assert_eq!(has_esp(), Some(true));
    // A published mitigation, until the module is loaded or where it is built in.
    write("etc/modprobe.d/mitigation.conf", "install esp4 /bin/false\n");
    assert_eq!(has_esp(), Some(false));
    write("lib/modules/6.1.0/modules.builtin", "kernel/net/ipv4/esp4.ko\n");
    assert_eq!(has_esp(), Some(true));
    fs::remove_file(dir.path().join("lib/modules/6.1.0/modules.builtin")).expect("removed");
    write("sys/module/esp4/refcnt", "0\n");
    assert_eq!(has_esp(), Some(true));
}

#[test]
fn line_that_keeps_a_module_out_is_named_in_place_of_the_command_that_loads_it() {
    let text = include_str!("../../fixtures/ipsec/link.toml");
    let link = VpnLink::parse(text).expect("a link");
    let line = "install esp4 /bin/false";
    let blocked = blocked::of_line("etc/modprobe.d/mitigation.conf", line).into_iter().collect();
    let host = Host { has_esp: Some(false), blocked, ..Host::default() };
    let problems = host.unable(&link);
    let esp = problems.iter().find(|problem| problem.what.contains("ESP")).expect("a problem");
    let remedy = &esp.remedy;
    assert!(
        remedy.contains("(etc/modprobe.d/mitigation.conf: install esp4 /bin/false)"),
        "{remedy}"
    );
    assert!(remedy.contains("read why before you remove it"), "{remedy}");
}

#[test]
fn versions_of_openvpn_are_read() {
    assert_eq!(parse_version("OpenVPN 2.6.14 x86_64-pc\n"), Some((2, 6)));
    assert_eq!(parse_version("OpenVPN 2.8_git x86"), Some((2, 8)));
    assert_eq!(parse_version("bash: openvpn"), None);
}

#[test]
fn device_that_is_left_is_taken_over_and_one_that_is_held_is_a_problem_with_a_remedy() {
    let link = VpnLink::parse(SAMPLE).expect("the sample");
    // Those of `ip -json -details link show type tun`: one that is free, one that is open, a TAP device, and one that
    // goes with its process.
    let show = |name: &str, flags: &str, kind: &str, persist: bool| {
        format!(
            r#"{{"ifindex":2,"ifname":"{name}","flags":[{flags}],"operstate":"DOWN","linkinfo":{{"info_kind":"tun",
            "info_data":{{"type":"{kind}","pi":false,"multi_queue":false,"persist":{persist}}}}}}}"#
        )
    };
    let shown = [
        show("branch-0", r#""NO-CARRIER","UP""#, "tun", true),
        show("branch-1", r#""UP","LOWER_UP""#, "tun", true),
        show("branch-2", r#""POINTOPOINT""#, "tun", false),
        show("branch-3", r#""NO-CARRIER","UP""#, "tap", true),
    ];
    let tuns = parse_tuns(&format!("[{}]", shown.join(",")));
    let devices = tuns.iter().map(|tun| tun.name.clone()).collect();
    let host = Host { devices, tuns, ..ready() };
    let problems = |ours: &[String]| -> Vec<String> {
        host.problems(&link, Side::A, ours).iter().map(ToString::to_string).collect()
    };
    let found = problems(&[]);
    assert_eq!(found.len(), 3, "{found:?}");
    for (problem, device) in found.iter().zip(["branch-1", "branch-2"]) {
        let expected = format!(
            "the device {device} exists, and a process that is not of this link holds it: choose another name, or end \
             that process: `grep -ls 'iff:.*{device}$' /proc/[0-9]*/fdinfo/*` names it"
        );
        assert!(problem.contains(&expected), "{problem}");
    }
    assert!(found[2].contains("or remove it: ip link delete branch-3"), "{found:?}");
    assert_eq!(problems(&["branch-1".to_owned(), "branch-2".to_owned()]).len(), 1);
    assert_eq!(parse_tuns("[]"), []);
    assert_eq!(parse_tuns(""), []);
}
