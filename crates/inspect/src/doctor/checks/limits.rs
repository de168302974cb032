// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Limits of servers and of the system.

use super::super::{Facts, Found, Program, Severity, quote};

/// Files that a program's configuration may need: nginx counts both sides of a proxied connection,
/// HAProxy one.
fn wanted(facts: &Facts<'_>, name: &str) -> Option<u64> {
    let (program, setting, sides) = match name {
        "nginx" => (Program::Nginx, "worker_connections", 1_u64),
        "haproxy" => (Program::Haproxy, "maxconn", 2),
        _ => return None,
    };
    let own_limit = match program {
        Program::Nginx => "worker_rlimit_nofile",
        _ => "ulimit-n",
    };
    // It raises its limit itself.
    if facts.settings(program, own_limit).next().is_some() {
        return None;
    }
    let largest = facts
        .settings(program, setting)
        .filter_map(|(_, setting)| setting.number())
        .max()?;
    largest.checked_mul(sides)
}

pub(super) fn open_files(facts: &Facts<'_>) -> Option<Found> {
    let short: Vec<String> = facts
        .system
        .servers
        .iter()
        .filter_map(|server| {
            let limit = server.open_files?;
            let wanted = wanted(facts, &server.name)?;
            (limit < wanted).then(|| {
                format!(
                    "proc/{}/limits: {}: {limit} open files, its configuration may need {wanted}",
                    server.pid, server.name
                )
            })
        })
        .collect();
    (!short.is_empty()).then(|| {
        Found::warning("a server may open fewer files than its configuration needs")
            .seen(short)
            .means("Under load it refuses connections with \"too many open files\", although its own limit is not reached.")
            .fix("systemctl edit SERVICE, then: [Service] LimitNOFILE=262144; `ulimit -n` in a shell changes no service")
            .fix("nginx: worker_rlimit_nofile 262144;")
    })
}

pub(super) fn file_handles(facts: &Facts<'_>) -> Option<Found> {
    let handles = facts.system.file_handles?;
    full(handles.used, handles.most).then(|| {
        Found::warning("the system's file handles are almost used up")
            .seen([format!(
                "proc/sys/fs/file-nr: {} of {}",
                handles.used, handles.most
            )])
            .means("When they are used up no program opens anything.")
            .fix("sysctl fs.file-max=2000000; which program leaks them: lsof | awk '{print $1}' | sort | uniq -c | sort -n")
    })
}

/// More than four fifths.
fn full(used: u64, most: u64) -> bool {
    most > 0 && used / 4 >= most / 5
}

pub(super) fn core_dumps(facts: &Facts<'_>) -> Option<Found> {
    // What systemd sets where nothing collects them, whatever the limits say.
    let pattern = facts.system.core_pattern.as_deref();
    if pattern.is_some_and(|pattern| pattern.is_empty() || pattern.starts_with("|/bin/false")) {
        return None;
    }
    let running = facts
        .system
        .servers
        .iter()
        .filter(|server| server.dumps_core)
        .map(|server| {
            format!(
                "proc/{}/limits: {}: core files allowed",
                server.pid, server.name
            )
        });
    let configured = [
        (Program::Systemd, "LimitCORE"),
        (Program::Systemd, "DefaultLimitCORE"),
        (Program::Limits, "core"),
        (Program::Nginx, "worker_rlimit_core"),
    ]
    .into_iter()
    .flat_map(|(program, name)| facts.settings(program, name))
    .filter(|(_, setting)| !setting.value.starts_with('0'))
    .map(quote);
    let seen: Vec<String> = running.chain(configured).collect();
    (!seen.is_empty()).then(|| {
        Found::warning("a crash leaves keys on disk")
            .seen(seen)
            .seen(pattern.map(|pattern| format!("proc/sys/kernel/core_pattern: {pattern}")))
            .means("A core file of a TLS server or VPN holds its private keys and sessions, readable for whoever reads the disk, its backups, or the crash collector. (`ulimit -c unlimited` stands in guides to QAT; it is for those who debug a driver.)")
            .fix("systemctl edit SERVICE, then: [Service] LimitCORE=0")
            .fix("systemd-coredump: Storage=none in /etc/systemd/coredump.conf still logs the stack")
    })
}

pub(super) fn somaxconn(facts: &Facts<'_>) -> Option<Found> {
    let most = *facts.system.sysctls.get("net/core/somaxconn")?;
    let backlog = facts
        .settings(Program::Nginx, "listen")
        .filter_map(|(_, setting)| {
            let word = setting.value.split_whitespace();
            word.filter_map(|word| word.strip_prefix("backlog=")?.parse().ok())
                .max()
        })
        .max()
        // Their default.
        .unwrap_or(511_u64);
    let serves = facts.configured(Program::Nginx) || facts.configured(Program::Haproxy);
    (serves && most < backlog).then(|| {
        Found::notice("the kernel cuts the queue of new connections")
            .seen([format!(
                "proc/sys/net/core/somaxconn: {most}, a server asks for {backlog}"
            )])
            .means("In a rush, connections above it are dropped and come again after a second.")
            .fix(format!("sysctl net.core.somaxconn={}", backlog.max(4_096)))
    })
}

pub(super) fn conntrack(facts: &Facts<'_>) -> Option<Found> {
    let number = |name| facts.system.sysctls.get(name).copied();
    let most = number("net/netfilter/nf_conntrack_max")?;
    let used = number("net/netfilter/nf_conntrack_count")?;
    full(used, most).then(|| {
        Found::warning("the table of tracked connections is almost full")
            .seen([format!(
                "proc/sys/net/netfilter/nf_conntrack_count: {used} of {most}"
            )])
            .means("When it is full, new connections are dropped (\"table full, dropping packet\").")
            .fix(format!("sysctl net.netfilter.nf_conntrack_max={}", most.saturating_mul(4)))
            .fix("nft: notrack for UDP ports of tunnels and for port 443, where no NAT needs it; not the whole firewall off, as some guides say")
    })
}

pub(super) fn memory(facts: &Facts<'_>) -> Option<Found> {
    let number = |name| facts.system.memory.get(name).copied();
    let total = number("MemTotal").filter(|total| *total > 0)?;
    let free = number("MemAvailable")?;
    let severity = match free {
        _ if free < total / 50 => Severity::Critical,
        _ if free < total / 20 => Severity::Warning,
        _ => return None,
    };
    Some(
        Found::new(severity, "memory is almost used up")
            .seen([format!("proc/meminfo: MemAvailable {free} of {total} KiB")])
            .means("Buffers of tunnels and of devices cannot be had (\"failed to allocate memory\"); the kernel may end a server.")
            .fix("which program has it: ps aux --sort=-rss | head")
            .fix("QAT: fewer instances or fewer huge pages (sysctl vm.nr_hugepages): both are taken off for good"),
    )
}
