// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Limits of servers and of the system.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Severity, quote};

/// Open files that a server's configuration may need: nginx counts both sides of a proxied connection,
/// HAProxy one.
fn files_needed(facts: &Facts<'_>, name: &str) -> Option<u64> {
    let (program, setting, sides, own_limit) = match name {
        "nginx" => (ConfiguredProgram::Nginx, "worker_connections", 1_u64, "worker_rlimit_nofile"),
        "haproxy" => (ConfiguredProgram::Haproxy, "maxconn", 2, "ulimit-n"),
        _ => return None,
    };
    // The server raises its limit itself.
    if facts.settings(program, own_limit).next().is_some() {
        return None;
    }
    let numbers = facts.settings(program, setting).filter_map(|(_, setting)| setting.number());
    numbers.max()?.checked_mul(sides)
}

pub(super) fn open_files(facts: &Facts<'_>) -> Option<Finding> {
    let short = facts.system.servers.iter().filter_map(|server| {
        let limit = server.open_files?;
        let needed = files_needed(facts, &server.name)?;
        let pid = server.pid;
        let name = &server.name;
        (limit < needed).then(|| {
            format!(
                "proc/{pid}/limits: {name}: {limit} open files, its configuration may need {needed}"
            )
        })
    });
    Finding::warning()
        .evidence(short)
        .impact("Under load the server refuses connections with \"too many open files\" before it reaches the limit in its own configuration.")
        .advise("`systemctl edit SERVICE`, then: [Service] LimitNOFILE=262144. `ulimit -n` in a shell does not change a service.")
        .advise("nginx: worker_rlimit_nofile 262144;")
        .if_evident()
}

pub(super) fn file_handles(facts: &Facts<'_>) -> Option<Finding> {
    let handles = facts.system.file_handles?;
    almost_full(handles.used, handles.most).then(|| {
        Finding::warning()
            .evidence([format!("proc/sys/fs/file-nr: {} of {}", handles.used, handles.most)])
            .impact("Once they are used up, no program can open a file or a connection.")
            .run("sysctl fs.file-max=2000000")
            .run("lsof | awk '{print $1}' | sort | uniq -c | sort -n        # shows which program leaks them")
    })
}

/// Whether four fifths or more are used.
fn almost_full(used: u64, most: u64) -> bool {
    most > 0 && used / 4 >= most / 5
}

pub(super) fn core_dumps(facts: &Facts<'_>) -> Option<Finding> {
    // systemd sets `|/bin/false` where nothing collects core files, whatever the limits allow.
    let pattern = facts.system.core_pattern.as_deref();
    if pattern.is_some_and(|pattern| pattern.is_empty() || pattern.starts_with("|/bin/false")) {
        return None;
    }
    let servers = facts.system.servers.iter().filter(|server| server.dumps_core);
    let running = servers
        .map(|server| format!("proc/{}/limits: {}: core files allowed", server.pid, server.name));
    let names = [
        (ConfiguredProgram::Systemd, "LimitCORE"),
        (ConfiguredProgram::Systemd, "DefaultLimitCORE"),
        (ConfiguredProgram::Limits, "core"),
        (ConfiguredProgram::Nginx, "worker_rlimit_core"),
    ];
    let configured =
        facts.settings_of(&names).filter(|(_, setting)| !setting.value.starts_with('0')).map(quote);
    let finding = Finding::warning().evidence(running.chain(configured)).if_evident()?;
    Some(
        finding
            .evidence(pattern.map(|pattern| format!("proc/sys/kernel/core_pattern: {pattern}")))
            .impact("A core file of a TLS server or VPN contains its private keys and sessions, readable to everyone with access to the disk, its backups or the crash collector. (Guides to QAT recommend `ulimit -c unlimited`; that is for debugging a driver.)")
            .advise("`systemctl edit SERVICE`, then: [Service] LimitCORE=0")
            .advise("systemd-coredump: Storage=none in /etc/systemd/coredump.conf still logs the stack."),
    )
}

pub(super) fn somaxconn(facts: &Facts<'_>) -> Option<Finding> {
    let most = *facts.system.sysctls.get("net/core/somaxconn")?;
    let backlogs = facts.settings(ConfiguredProgram::Nginx, "listen").flat_map(|(_, setting)| {
        let words = setting.value.split_whitespace();
        words.filter_map(|word| word.strip_prefix("backlog=")?.parse().ok())
    });
    // The default of nginx.
    let backlog = backlogs.max().unwrap_or(511_u64);
    let serves =
        facts.configured(ConfiguredProgram::Nginx) || facts.configured(ConfiguredProgram::Haproxy);
    (serves && most < backlog).then(|| {
        Finding::notice()
            .evidence([format!(
                "proc/sys/net/core/somaxconn: {most}, a server asks for {backlog}"
            )])
            .impact(
                "Under a connection burst, connections above the limit are dropped; their clients retry after 1 s.",
            )
            .run(format!("sysctl net.core.somaxconn={}", backlog.max(4_096)))
    })
}

pub(super) fn conntrack(facts: &Facts<'_>) -> Option<Finding> {
    let number = |name| facts.system.sysctls.get(name).copied();
    let most = number("net/netfilter/nf_conntrack_max")?;
    let used = number("net/netfilter/nf_conntrack_count")?;
    almost_full(used, most).then(|| {
        Finding::warning()
            .evidence([format!("proc/sys/net/netfilter/nf_conntrack_count: {used} of {most}")])
            .impact("Once it is full, new connections are dropped (\"table full, dropping packet\").")
            .run(format!("sysctl net.netfilter.nf_conntrack_max={}", most.saturating_mul(4)))
            .advise("nftables: `notrack` for UDP ports of tunnels and for port 443, where no NAT needs it. Do not switch off the whole firewall, as some guides say.")
    })
}

pub(super) fn memory(facts: &Facts<'_>) -> Option<Finding> {
    let number = |name| facts.system.memory.get(name).copied();
    let total = number("MemTotal").filter(|total| *total > 0)?;
    let free = number("MemAvailable")?;
    let severity = match free {
        _ if free < total / 50 => Severity::Critical,
        _ if free < total / 20 => Severity::Warning,
        _ => return None,
    };
    Some(
        Finding::new(severity)
            .evidence([format!("proc/meminfo: MemAvailable {free} of {total} KiB")])
            .impact("Tunnels and devices cannot allocate buffers (\"failed to allocate memory\"); the kernel may kill a server.")
            .run("ps aux --sort=-rss | head        # shows which programs use it")
            .advise("QAT: configure fewer instances or fewer huge pages (vm.nr_hugepages); both reserve memory permanently."),
    )
}
