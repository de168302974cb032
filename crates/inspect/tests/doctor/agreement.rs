// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `doctor` and `advise` say the same about one machine.

use millrace_hostfs::Root;
use millrace_inspect::advise::{Advice, AdviseRequest, Subject, Topic, advise, software};
use millrace_inspect::doctor::{Severity, diagnose};
use millrace_inspect::report::Report;

use super::machine::Change::{File, Gone};
use super::machine::{Change, Machine, build};
use super::{examine, found};

/// Algorithms that the kernel registers without its modules for AES instructions, as on a machine that did not load
/// them.
const GENERIC: &str = "\
name : rfc4106(gcm(aes))
driver : rfc4106(gcm_base(ctr(aes-generic),ghash-generic))
priority : 100
selftest : passed
internal : no
";

/// These algorithms without AES-GCM, which the kernel assembles when something requests it.
const FIXED_TIME: &str = "\
name : cbc(aes)
driver : cbc(ecb(aes-fixed-time))
priority : 100
selftest : passed
internal : no
";

fn advice(machine: Machine, subject: Subject) -> Advice {
    let folder = build(machine);
    let root = Root::open(folder.path()).expect("a root");
    advise(&Report::of(&root), &software::section(&root), &AdviseRequest::of(subject))
}

fn value(advice: &Advice, topic: Topic) -> &str {
    let choice = advice.choices.iter().find(|choice| choice.topic == topic);
    &choice.expect("a choice").value
}

#[test]
fn portable_aes_in_the_kernel_decides_for_ipsec_alone() {
    for (crypto, leaks) in [(GENERIC, true), (FIXED_TIME, false)] {
        let changes: &'static [Change] = Box::leak(Box::new([File("proc/crypto", crypto)]));
        let machine: Machine = ("aes-ni-vm", changes);
        let finding = examine(machine);
        let finding = found(&finding, "kernel-portable-aes").expect("a finding");
        let impact = &finding.impact;
        assert_eq!(impact.contains("its time depends on the data"), leaks, "{impact}");
        let ipsec = advice(machine, Subject::Ipsec);
        let cipher = value(&ipsec, Topic::Cipher);
        assert!(cipher.starts_with("ChaCha20-Poly1305"), "{cipher}");
        let first = ipsec.first.join("\n");
        assert!(first.contains("modprobe -a aesni_intel"), "{first}");
        let openvpn = advice(machine, Subject::Openvpn);
        assert!(value(&openvpn, Topic::Cipher).starts_with("AES-128-GCM"));
        assert!(!openvpn.first.join("\n").contains("modprobe"));
    }
}

/// One device is down and the other serves user space only: each has its finding, and neither is passed over.
#[test]
fn qat_that_cannot_serve_the_kernel_is_not_passed_over() {
    let machine: Machine = (
        "qat-4xxx-16vfs",
        &[
            File("sys/bus/pci/devices/0000:6b:00.0/qat/state", "down\n"),
            File("sys/bus/pci/devices/0000:70:00.0/qat/cfg_services", "asym\n"),
            Gone("sys/kernel/debug"),
        ],
    );
    let diagnosis = examine(machine);
    assert!(found(&diagnosis, "qat-down").is_some());
    assert!(found(&diagnosis, "qat-no-kernel-instances").is_some());
    assert_eq!(found(&diagnosis, "qat-passed-over"), None);
    let first = advice(machine, Subject::Ipsec).first.join("\n");
    assert!(first.contains("0000:6b:00.0) is down"), "{first}");
    assert!(first.contains("0000:70:00.0) has no instances for the kernel"), "{first}");
    assert!(!first.contains("priority"), "{first}");
    // With both devices as they were, the kernel does prefer the processor.
    let healthy = examine(("qat-4xxx-16vfs", &[]));
    let finding = found(&healthy, "qat-passed-over").expect("a finding");
    assert!(finding.impact.starts_with("A device that is up is idle"), "{}", finding.impact);
}

/// A tunnel as advised is not a problem for the doctor, in the kernel (DCO) or in the process.
#[test]
fn advised_packet_size_of_openvpn_fits_the_card() {
    for (mtu, dco) in [("1400\n", false), ("1400\n", true), ("1500\n", true), ("9000\n", true)] {
        let mut changes = vec![
            File("sys/class/net/eth0/mtu", mtu),
            Change::Link("sys/class/net/eth0/device/driver", "../../../../bus/pci/drivers/ixgbe"),
            File("proc/sys/kernel/osrelease", "6.17.1\n"),
        ];
        if dco {
            let packages = "Package: openvpn\nVersion: 2.7.0-1\n";
            changes.push(File("var/lib/dpkg/status", packages));
        }
        let machine: Machine = ("no-accelerator", Box::leak(changes.clone().into_boxed_slice()));
        let advice = advice(machine, Subject::Openvpn);
        let inside = value(&advice, Topic::Mtu).split(' ').next().expect("a number");
        let inside: u32 = inside.parse().expect("a number");
        let link: u32 = mtu.trim().parse().expect("a number");
        assert!(inside + 72 <= link, "{inside} inside {link}");
        assert!(advice.configuration.contains(&format!("tun-mtu {inside}\n")));
        let text = Box::leak(format!("{inside}\n").into_boxed_str());
        changes.push(File("sys/class/net/ovpn0/mtu", text));
        changes.push(File("sys/class/net/ovpn0/uevent", "DEVTYPE=ovpn\n"));
        let machine: Machine = ("no-accelerator", Box::leak(changes.into_boxed_slice()));
        assert_eq!(found(&examine(machine), "tunnel-mtu"), None);
    }
}

#[test]
fn hidden_instructions_are_grouped_by_their_reason() {
    let diagnosis = examine(("aes-ni-vm", &[]));
    let finding = found(&diagnosis, "cpu-hidden").expect("a finding");
    let mut reasons: Vec<&str> =
        finding.evidence.iter().filter_map(|line| line.split(": ").nth(1)).collect();
    let all = reasons.len();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), all, "{:#?}", finding.evidence);
    assert!(finding.evidence[0].contains(", "), "{:#?}", finding.evidence);
}

#[test]
fn empty_tree_is_unknown_and_not_healthy() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Root::open(folder.path()).expect("a root");
    let diagnosis = diagnose(&root, |_| true);
    assert!(diagnosis.undecided().is_some_and(|reason| reason.contains("mounted")));
    // A finding stands also where the rest is unknown.
    std::fs::create_dir_all(folder.path().join("etc/openvpn")).expect("a folder");
    std::fs::write(folder.path().join("etc/openvpn/a.conf"), "secret a.key\n").expect("a file");
    let diagnosis = diagnose(&root, |_| true);
    assert_eq!((diagnosis.worst(), diagnosis.undecided()), (Some(Severity::Critical), None));
    // An unpacked firmware has no /proc, but programs.
    assert_eq!(examine(("arm-a15-router", &[Gone("proc")])).undecided(), None);
}

/// A zombie has limits, but serves nothing.
#[test]
fn zombie_is_not_a_server() {
    let machine = |state: &'static str| -> Machine {
        let changes = vec![
            File("proc/77/comm", "nginx\n"),
            File("proc/77/limits", "Max core file size   unlimited   unlimited   bytes\n"),
            File("proc/77/status", state),
        ];
        ("no-accelerator", Box::leak(changes.into_boxed_slice()))
    };
    let alive = examine(machine("Name:\tnginx\nState:\tS (sleeping)\n"));
    assert!(found(&alive, "limit-core-dumps").is_some());
    let ended = examine(machine("Name:\tnginx\nState:\tZ (zombie)\n"));
    assert_eq!(found(&ended, "limit-core-dumps"), None);
}

#[test]
fn kvm_guest_without_dmi_names_its_hypervisor_by_its_clock() {
    let clocks = "sys/devices/system/clocksource/clocksource0/available_clocksource";
    let folder = build((
        "no-accelerator",
        &[File(
            "proc/cpuinfo",
            "processor : 0\nvendor_id : AuthenticAMD\nflags : lm aes hypervisor\n",
        )],
    ));
    let place = folder.path().join(clocks);
    std::fs::create_dir_all(place.parent().expect("a folder")).expect("a folder");
    std::fs::write(&place, "tsc kvm-clock\n").expect("a file");
    let _ = std::fs::remove_dir_all(folder.path().join("sys/class/dmi"));
    let cpu =
        Report::of(&Root::open(folder.path()).expect("a root")).cpu.known.expect("a processor");
    assert_eq!(cpu.hypervisor.and_then(|hypervisor| hypervisor.name).as_deref(), Some("KVM"));
    // PadLock is VIA's: no EPYC lacks it.
    assert!(cpu.features.iter().all(|feature| feature.name != "padlock"));
}
