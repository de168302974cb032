// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The AppArmor profile of `millrace-virtio@.service` allows the paths that the process opens, as the kernel names
//! them: `/proc/self` is `/proc/PID` there, and a folder ends in `/`.

const PROFILE: &str = include_str!("../../../deploy/apparmor-millrace-virtio");

/// Rights with a path of the kernel, of processes and folders alike.
const ALLOWED: [(&str, char); 20] = [
    ("/usr/bin/millrace", 'i'),
    ("/run/millrace-virtio/", 'r'),
    ("/run/millrace-virtio/vm1.sock", 'w'),
    ("/run/millrace/node.sock", 'w'),
    ("/etc/millrace/client.toml", 'r'),
    ("/etc/millrace/certs/ca.pem", 'r'),
    ("/etc/resolv.conf", 'r'),
    ("/proc/4711/status", 'r'),
    ("/proc/4711/fd/", 'r'),
    ("/proc/4711/task/4712/comm", 'r'),
    ("/proc/cpuinfo", 'r'),
    ("/proc/meminfo", 'r'),
    ("/proc/sys/kernel/random/boot_id", 'r'),
    ("/proc/sys/kernel/sched_autogroup_enabled", 'r'),
    ("/sys/devices/system/cpu/", 'r'),
    ("/sys/devices/system/cpu/online", 'r'),
    ("/sys/devices/system/cpu/cpu0/topology/core_id", 'r'),
    ("/sys/devices/system/node/node0/cpulist", 'r'),
    ("/sys/fs/cgroup/system.slice/cpu.max", 'r'),
    ("/dev/nvidia0", 'w'),
];

const DENIED: [(&str, char); 8] = [
    ("/etc/shadow", 'r'),
    ("/etc/millrace/client.toml", 'w'),
    ("/var/lib/millrace/keys/www.key", 'r'),
    ("/proc/4711/mem", 'w'),
    ("/proc/sys/kernel/core_pattern", 'r'),
    ("/usr/bin/sh", 'i'),
    ("/run/systemd/private", 'w'),
    ("/sys/devices/system/cpu/online", 'w'),
];

/// Whether a rule of the profile gives this right.
fn allows(path: &str, right: char) -> bool {
    PROFILE.lines().any(|line| {
        let rule = line.trim().trim_start_matches("owner ").trim_end_matches(',');
        let rule = rule.replace("@{PROC}", "/proc").replace("@{pid}", "@");
        let Some((pattern, rights)) = rule.split_once(' ').filter(|_| rule.starts_with('/')) else {
            return false;
        };
        rights.contains(right) && matches(pattern, path)
    })
}

/// A pattern of AppArmor: `*` within a folder, `**` below it, `{a,b}` one of them, here `@` the number of a process.
fn matches(pattern: &str, path: &str) -> bool {
    if let Some((before, rest)) = pattern.split_once('{') {
        let (choices, after) = rest.split_once('}').expect("a closed brace");
        return choices.split(',').any(|choice| matches(&format!("{before}{choice}{after}"), path));
    }
    let starts = |len: usize| path.is_char_boundary(len);
    if let Some(rest) = pattern.strip_prefix("**") {
        return (1..=path.len()).any(|len| starts(len) && matches(rest, &path[len..]));
    }
    if let Some(rest) = pattern.strip_prefix('*') {
        let within = path.find('/').unwrap_or(path.len());
        return (0..=within).any(|len| starts(len) && matches(rest, &path[len..]));
    }
    if let Some(rest) = pattern.strip_prefix('@') {
        let digits = path.len() - path.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        return digits > 0 && matches(rest, &path[digits..]);
    }
    match (pattern.chars().next(), path.chars().next()) {
        (None, None) => true,
        (Some(one), Some(other)) if one == other => {
            matches(&pattern[one.len_utf8()..], &path[other.len_utf8()..])
        }
        _ => false,
    }
}

#[test]
fn profile_allows_the_paths_of_the_process_and_no_others() {
    for (path, right) in ALLOWED {
        assert!(allows(path, right), "{path} {right}");
    }
    for (path, right) in DENIED {
        assert!(!allows(path, right), "{path} {right}");
    }
}

/// The rules that the profile had once match nothing.
#[test]
fn rules_that_match_nothing_are_told_from_those_that_do() {
    assert!(!matches("/proc/self/**", "/proc/4711/status"));
    assert!(!matches("/sys/devices/system/cpu/**", "/sys/devices/system/cpu/"));
    assert!(matches("/sys/devices/system/{cpu,node}/{,**}", "/sys/devices/system/cpu/"));
}
