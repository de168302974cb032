// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The processor: hidden instructions, clock, temperature.

use crate::architecture::Architecture;
use crate::cpu::{State, by_reason};
use crate::doctor::{Facts, Finding, Severity};

pub(super) fn hidden(facts: &Facts<'_>) -> Option<Finding> {
    let hidden = &facts.cpu()?.hidden;
    let aes = hidden.iter().any(|hidden| hidden.feature == "aes-ni" || hidden.feature == "pclmul");
    Finding::new(if aes { Severity::Critical } else { Severity::Warning })
        .evidence(by_reason(hidden).iter().map(|(reason, features)| format!("{}: {reason}", features.join(", "))))
        .impact(
            "Without AES-NI a tunnel costs 2.2 times the processor time (OpenVPN, AES-256-GCM, measured on a \
             Cascade Lake), and AES leaks through its timing. VAES and AVX-512 make bulk encryption and lanes of \
             private-key operations fast.",
        )
        .advise("QEMU/KVM: -cpu host (libvirt: <cpu mode='host-passthrough'/>)")
        .advise("VMware: an EVC mode of the processor's own generation, newest virtual hardware; nested virtualisation does not help.")
        .advise("Clouds: an instance type of a newer generation, or a dedicated processor.")
        .if_evident()
}

pub(super) fn no_aes(facts: &Facts<'_>) -> Option<Finding> {
    let cpu = facts.cpu()?;
    let name = match cpu.architecture? {
        Architecture::X86_64 | Architecture::X86 => "aes-ni",
        Architecture::Aarch64 | Architecture::Arm => "aes",
        _ => return None,
    };
    let hidden = cpu.hidden.iter().any(|hidden| hidden.feature == name);
    if cpu.state(name) != State::Absent || hidden {
        return None;
    }
    let model = cpu.design.as_deref().or(cpu.model.as_deref());
    Some(
        Finding::notice()
            .evidence([format!("proc/cpuinfo: {}: no {name}", model.unwrap_or("this processor"))])
            .impact(
                "ChaCha20-Poly1305 is faster here: about 4.5 times AES-128-GCM on a Raspberry Pi 4 (users of \
                 openvpn-install). Guides that ask for AES everywhere assume other processors.",
            )
            .run("millrace advise openvpn; millrace advise ipsec")
            .run("millrace bench sizes        # measures both here"),
    )
}

pub(super) fn governor(facts: &Facts<'_>) -> Option<Finding> {
    let frequency = &facts.cpu()?.frequency;
    let driver = frequency.driver.as_deref();
    // With these drivers `powersave` is the ordinary governor, which raises the clock under load.
    let dynamic = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];
    let slow = frequency.governors.iter().find(|governor| {
        *governor == "powersave" && !driver.is_some_and(|driver| dynamic.contains(&driver))
    })?;
    Some(
        Finding::warning()
            .evidence([format!(
                "sys/devices/system/cpu/cpufreq/policy*/scaling_governor: {slow} ({})",
                driver.unwrap_or("no driver named")
            )])
            .impact("With this driver `powersave` keeps the lowest clock: at 1.2 instead of 3 GHz all encryption takes 2.5 times as long.")
            .run("cpupower frequency-set -g schedutil        # or performance, where latency matters more than power")
            .advise("Stopping cpupower.service, as some guides say, is not enough: the governor stays as it is."),
    )
}

/// Distance from the trip point at which a temperature is reported.
const NEAR_MILLICELSIUS: i64 = 10_000;

pub(super) fn temperature(facts: &Facts<'_>) -> Option<Finding> {
    let mut over = false;
    let mut warm = Vec::new();
    for zone in &facts.system.thermal {
        let (now, Some(trip)) = (zone.temperature_millicelsius, zone.trip_millicelsius) else {
            continue;
        };
        over |= now >= trip;
        if now >= trip.saturating_sub(NEAR_MILLICELSIUS) {
            warm.push(format!(
                "sys/class/thermal: {}: {} °C, throttled or switched off at {} °C",
                zone.name,
                now / 1000,
                trip / 1000
            ));
        }
    }
    Finding::new(if over { Severity::Critical } else { Severity::Warning })
        .evidence(warm)
        .impact("The clock is lowered at the trip point; above the critical one the machine is switched off.")
        .advise("Check fans, filters and the room; do not stack routers.")
        .if_evident()
}
