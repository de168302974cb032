// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Lists that stop at a bound say so: one more than fits is noted as unread, and what fits is not.

use millrace_hostfs::Root;
use millrace_inspect::section::{Section, Unread};
use millrace_inspect::{accelerators, doctor, kernel, network, offload_status, qat};
use millrace_testkit::is_long;
use millrace_testkit::machine::MachineFolder;

const CARD: &str = "sys/bus/pci/devices/0000:6b:00.0";

/// A list with its bound.
struct Bounded {
    /// Name under which the others are noted.
    what: &'static str,
    bound: usize,
    /// Whether the last call of `add` makes all entries.
    in_one_file: bool,
    /// Makes the rest of the machine.
    beside: fn(&MachineFolder),
    /// Adds one entry.
    add: fn(&MachineFolder, usize),
    /// The notes of the section that has the list.
    unread: fn(&Root) -> Vec<Unread>,
}

fn notes<T>(section: Section<T>) -> Vec<Unread> {
    section.unread
}

fn nothing(_: &MachineFolder) {}

/// The file with as many lines as its number says; the numbers come in order.
fn lines(machine: &MachineFolder, path: &str, line: &str, number: usize) {
    machine.put(path, &line.repeat(number + 1));
}

const LISTS: &[Bounded] = &[
    Bounded {
        what: "sys/class/net",
        bound: 4096,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| machine.put(&format!("sys/class/net/eth{n}/mtu"), "1500"),
        unread: |root| notes(network::section(root)),
    },
    Bounded {
        what: "ethtool -k of each card",
        bound: 16,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| machine.link(&format!("sys/class/net/eth{n}/device/driver"), "../../ice"),
        unread: |root| notes(network::section(root)),
    },
    Bounded {
        what: "sys/bus/dsa/devices",
        bound: 256,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| machine.put(&format!("sys/bus/dsa/devices/dsa{n}/state"), "enabled"),
        unread: |root| notes(accelerators::section(root)),
    },
    Bounded {
        what: "sys/bus/virtio/devices",
        bound: 256,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| {
            machine.put(&format!("sys/bus/virtio/devices/virtio{n}/device"), "0x0014")
        },
        unread: |root| notes(accelerators::section(root)),
    },
    Bounded {
        what: "NVIDIA GPUs",
        bound: 256,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| {
            let folder = format!("sys/bus/pci/devices/{n:04x}:01:00.0");
            for (file, text) in [("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2330")]
            {
                machine.put(&format!("{folder}/{file}"), text);
            }
        },
        unread: |root| notes(accelerators::section(root)),
    },
    Bounded {
        what: "QAT devices",
        bound: 1024,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| machine.qat_card(&format!("{n:04x}:6b:00.0")),
        unread: |root| notes(qat::section(root)),
    },
    Bounded {
        what: "QAT libraries",
        bound: 1024,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| machine.put(&format!("usr/lib64/libqat.so.{n}"), ""),
        unread: |root| notes(qat::section(root)),
    },
    Bounded {
        what: "sys/kernel/debug/qat_4xxx_0000:6b:00.0/transport",
        bound: 1024,
        in_one_file: false,
        beside: |machine| machine.qat_card("0000:6b:00.0"),
        add: |machine, n| {
            let bank = "sys/kernel/debug/qat_4xxx_0000:6b:00.0/transport/bank_00";
            let text = "head 10, tail 20, empty: 0\nring size 1024, msg size 64";
            machine.put(&format!("{bank}/ring_{n}"), text);
        },
        unread: |root| notes(qat::section(root)),
    },
    Bounded {
        what: "proc/7/fd",
        bound: 65_536,
        in_one_file: false,
        beside: |machine| {
            machine.qat_card("0000:6b:00.0");
            machine.link(&format!("{CARD}/iommu_group"), "../../../../kernel/iommu_groups/1");
        },
        add: |machine, n| machine.link(&format!("proc/7/fd/{n}"), "/dev/vfio/1"),
        unread: |root| notes(qat::section(root)),
    },
    Bounded {
        what: "tunnels and servers",
        bound: 1024,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| {
            machine.put(&format!("proc/{}/comm", n + 1), "nginx");
            let maps = format!("7f00-7f01 r-xp 00000000 08:01 1 /opt/{n}/libcrypto.so.3");
            machine.put(&format!("proc/{}/maps", n + 1), &maps);
        },
        unread: |root| notes(offload_status::section(root, None, None)),
    },
    Bounded {
        what: "var/lib/millrace/kernel-bulk.tsv",
        bound: 16,
        in_one_file: true,
        beside: |machine| machine.put("proc/crypto", "name : a\ndriver : b"),
        add: |machine, n| {
            let all = (0..=n).map(|n| format!("system {n}\taf-alg\taes-gcm\t4096\t1\n"));
            machine.put("var/lib/millrace/kernel-bulk.tsv", &all.collect::<String>());
        },
        unread: |root| notes(kernel::section(root)),
    },
    Bounded {
        what: "proc/cmdline",
        bound: 1024,
        in_one_file: true,
        beside: nothing,
        add: |machine, n| lines(machine, "proc/cmdline", "mitigations=off ", n),
        unread: |root| notes(doctor::system::section(root)),
    },
    Bounded {
        what: "servers",
        bound: 1024,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| {
            machine.put(&format!("proc/{}/comm", n + 1), "nginx");
            machine.put(&format!("proc/{}/limits", n + 1), "");
        },
        unread: |root| notes(doctor::system::section(root)),
    },
    Bounded {
        what: "etc/nginx/nginx.conf",
        bound: 512,
        in_one_file: true,
        beside: nothing,
        add: |machine, n| lines(machine, "etc/nginx/nginx.conf", "gzip on;\n", n),
        unread: |root| notes(doctor::system::section(root)),
    },
    Bounded {
        what: "etc/security/limits.conf etc/security/limits.d/",
        // The first place has a file of its own.
        bound: 511,
        in_one_file: false,
        beside: nothing,
        add: |machine, n| machine.put(&format!("etc/security/limits.d/{n}.conf"), "* hard core 0"),
        unread: |root| notes(doctor::system::section(root)),
    },
];

#[test]
fn entries_past_the_bound_of_a_list_are_noted_and_those_up_to_it_are_not() {
    let folder = tempfile::tempdir().unwrap();
    // Of files in large numbers: seconds each.
    let runs = |list: &&Bounded| list.in_one_file || list.bound <= 256 || is_long();
    for (at, list) in LISTS.iter().filter(runs).enumerate() {
        let machine = MachineFolder::new(folder.path().join(at.to_string()));
        machine.put("proc/version", "Linux version 6.1.0");
        (list.beside)(&machine);
        for n in if list.in_one_file { list.bound - 1 } else { 0 }..list.bound {
            (list.add)(&machine, n);
        }
        let noted = || {
            let root = Root::open(machine.path()).unwrap();
            let unread = (list.unread)(&root);
            unread.iter().any(|one| {
                one.what == list.what && one.why.to_string().contains("the others are left out")
            })
        };
        assert!(!noted(), "{}: at its bound", list.what);
        (list.add)(&machine, list.bound);
        assert!(noted(), "{}: past its bound", list.what);
    }
}
