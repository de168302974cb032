// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The processor: what is hidden, its clock, its temperature.

use super::super::{Facts, Found, Severity};
use crate::cpu::{Architecture, State};

pub(super) fn hidden(facts: &Facts<'_>) -> Option<Found> {
    let cpu = facts.cpu()?;
    if cpu.hidden.is_empty() {
        return None;
    }
    let aes = cpu
        .hidden
        .iter()
        .any(|hidden| hidden.feature == "aes-ni" || hidden.feature == "pclmul");
    let severity = if aes {
        Severity::Critical
    } else {
        Severity::Warning
    };
    Some(
        Found::new(severity, "instructions for cryptography are hidden from this system")
            .seen(
                cpu.hidden
                    .iter()
                    .map(|hidden| format!("{}: {}", hidden.feature, hidden.reason)),
            )
            .means(
                "Without AES-NI a tunnel costs 2.2 times the processor time (OpenVPN, AES-256-GCM, measured on \
                 a Cascade Lake), and AES leaks through its timing; VAES and AVX-512 are what bulk \
                 encryption and lanes of private-key work are fast by.",
            )
            .fix("QEMU/KVM: -cpu host (libvirt: <cpu mode='host-passthrough'/>)")
            .fix("VMware: an EVC mode of the processor's own generation, newest virtual hardware; nested virtualisation does not help")
            .fix("clouds: an instance type of the newer generation, or a dedicated processor"),
    )
}

pub(super) fn no_aes(facts: &Facts<'_>) -> Option<Found> {
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
        Found::notice("this processor has no instructions for AES")
            .seen([format!(
                "proc/cpuinfo: {}: no {name}",
                model.unwrap_or("this processor")
            )])
            .means(
                "ChaCha20-Poly1305 is the faster one here: about 4.5 times AES-128-GCM on a Raspberry Pi 4 \
                 (users of openvpn-install). Guides that ask for AES everywhere are written for other \
                 processors.",
            )
            .fix("millrace advise openvpn; millrace advise ipsec")
            .fix("measure: millrace bench sizes"),
    )
}

pub(super) fn governor(facts: &Facts<'_>) -> Option<Found> {
    let frequency = &facts.cpu()?.frequency;
    // With these drivers `powersave` is the ordinary governor, which raises the clock under load.
    let own = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];
    let dynamic = frequency
        .driver
        .as_deref()
        .is_some_and(|driver| own.contains(&driver));
    let slow = frequency
        .governors
        .iter()
        .find(|governor| *governor == "powersave" && !dynamic)?;
    Some(
        Found::warning("the processors are kept at their lowest clock")
            .seen([format!(
                "sys/devices/system/cpu/cpufreq/policy*/scaling_governor: {slow} ({})",
                frequency.driver.as_deref().unwrap_or("no driver named")
            )])
            .means("With this driver `powersave` never raises the clock: everything the processor encrypts takes as much longer.")
            .fix("cpupower frequency-set -g schedutil        # or performance, where latency matters more than power")
            .fix("do not only stop cpupower.service, as some guides do: that leaves whatever governor was set"),
    )
}

/// Within so much of its trip point something is called warm.
const NEAR_MILLICELSIUS: i64 = 10_000;

pub(super) fn temperature(facts: &Facts<'_>) -> Option<Found> {
    let mut over = false;
    let warm: Vec<String> = facts
        .system
        .thermal
        .iter()
        .filter_map(|zone| {
            let trip = zone.trip_millicelsius?;
            let now = zone.temperature_millicelsius;
            over |= now >= trip;
            (now >= trip.saturating_sub(NEAR_MILLICELSIUS)).then(|| {
                format!(
                    "sys/class/thermal: {}: {} °C, throttled or switched off at {} °C",
                    zone.name,
                    now / 1000,
                    trip / 1000
                )
            })
        })
        .collect();
    if warm.is_empty() {
        return None;
    }
    let severity = if over {
        Severity::Critical
    } else {
        Severity::Warning
    };
    Some(
        Found::new(severity, "the machine is about as warm as it may become")
            .seen(warm)
            .means("The clock is lowered at the trip point; above the critical one the machine is switched off.")
            .fix("fans, filters, the room; routers: not on top of each other"),
    )
}
