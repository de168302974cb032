// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Whole trees, with what they say of the processor.

use std::fs;

use super::*;

fn look_at(files: &[(&str, &str)]) -> Section<Cpu> {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    section(&Root::open(folder.path()).unwrap())
}

const ICE_LAKE: &str = "processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: 106\n\
    flags: lm hypervisor aes pclmulqdq avx avx2 bmi2 adx sha_ni\n";

#[test]
fn feature_that_a_hypervisor_hides_is_reported() {
    let section = look_at(&[("proc/cpuinfo", ICE_LAKE), ("sys/class/dmi/id/sys_vendor", "QEMU\n")]);
    let cpu = section.known.unwrap();
    let hidden: Vec<&str> = cpu.hidden.iter().map(|hidden| hidden.feature.as_str()).collect();
    assert_eq!(
        hidden,
        ["vaes", "vpclmul", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512ifma"]
    );
    assert!(cpu.hidden[0].reason.contains("hypervisor"));
    assert_eq!(cpu.hypervisor.unwrap().name.as_deref(), Some("QEMU"));
}

#[test]
fn hidden_feature_without_hypervisor_is_blamed_on_the_firmware() {
    let text = ICE_LAKE.replace("hypervisor ", "");
    let cpu = look_at(&[("proc/cpuinfo", &text)]).known.unwrap();
    assert!(cpu.hypervisor.is_none());
    assert!(cpu.hidden[0].reason.contains("firmware"));
}

#[test]
fn generic_model_tells_nothing_of_the_real_one() {
    let text = "processor: 0\nvendor_id: GenuineIntel\ncpu family: 15\nmodel: 6\n\
        model name: Common KVM processor\nflags: lm hypervisor\n";
    let cpu = look_at(&[("proc/cpuinfo", text)]).known.unwrap();
    assert_eq!(cpu.hidden[0].feature, "the model");
}

#[test]
fn nodes_governors_and_topology_come_from_sysfs() {
    let base = "sys/devices/system";
    let files = [
        (
            "proc/cpuinfo".to_owned(),
            "processor: 0\nCPU implementer: 0x41\nCPU part: 0xd0c\nFeatures: asimd aes\n",
        ),
        (format!("{base}/node/node0/cpulist"), "0\n"),
        (format!("{base}/node/node10/cpulist"), "2\n"),
        (format!("{base}/node/node2/cpulist"), "1\n"),
        (format!("{base}/cpu/cpufreq/policy0/scaling_governor"), "powersave\n"),
        (format!("{base}/cpu/cpufreq/policy0/cpuinfo_max_freq"), "3000000\n"),
        (format!("{base}/cpu/cpufreq/policy1/scaling_governor"), "powersave\n"),
        (format!("{base}/cpu/cpufreq/policy1/cpuinfo_max_freq"), "not a number\n"),
        (format!("{base}/cpu/cpu0/topology/thread_siblings_list"), "0\n"),
        (format!("{base}/cpu/cpu1/topology/thread_siblings_list"), "1\n"),
        (format!("{base}/cpu/vulnerabilities/mds"), "Not affected\n"),
    ];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let section = look_at(&files);
    let cpu = section.known.unwrap();
    let nodes: Vec<u32> = cpu.numa_nodes.iter().map(|node| node.node).collect();
    assert_eq!(nodes, [0, 2, 10]);
    assert_eq!(cpu.frequency.governors, ["powersave"]);
    assert_eq!(cpu.frequency.max_khz, Some(3_000_000));
    assert_eq!((cpu.cores, cpu.sockets), (Some(2), None));
    assert_eq!(cpu.design.as_deref(), Some("Neoverse N1"));
    assert_eq!(section.unread.len(), 1, "{:?}", section.unread);
}

#[test]
fn missing_cpuinfo_is_no_processor() {
    let section = look_at(&[("etc/hostname", "x")]);
    assert_eq!(section.known, None);
    assert_eq!(section.unread[0].what, "proc/cpuinfo");
}
