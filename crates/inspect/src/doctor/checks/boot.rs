// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Kernel parameters that guides to acceleration recommend, and what they cost.

use super::super::{Facts, Found};

/// Parameters that `is` takes, as evidence.
fn given(facts: &Facts<'_>, is: impl Fn(&str) -> bool) -> Vec<String> {
    let words = facts.system.boot.iter().filter(|word| is(word));
    words.map(|word| format!("proc/cmdline: {word}")).collect()
}

/// What undoes a parameter.
const REMOVE: &str = "take it out of GRUB_CMDLINE_LINUX in /etc/default/grub; update-grub; reboot";

pub(super) fn mitigations(facts: &Facts<'_>) -> Option<Found> {
    let seen = given(facts, |word| word == "mitigations=off" || word == "nopti");
    (!seen.is_empty()).then(|| {
        Found::warning("protection against attacks by side channels is off")
            .seen(seen)
            .means("Any program on this machine, also in a sandbox or a guest, may read keys out of other programs' memory. What it gains is calls of the kernel, not cryptography.")
            .fix(REMOVE)
    })
}

pub(super) fn idle_poll(facts: &Facts<'_>) -> Option<Found> {
    let seen = given(facts, |word| word == "idle=poll");
    (!seen.is_empty()).then(|| {
        Found::warning("idle processors spin")
            .seen(seen)
            .means("Full power and heat all the time; a hyperthread that spins takes half of its core from the other one, and cores that never sleep leave no budget for turbo. It saves some microseconds per wake-up.")
            .fix(REMOVE)
            .fix("where wake-ups do matter: a PM QoS request of the one program (/dev/cpu_dma_latency)")
    })
}

pub(super) fn cstates(facts: &Facts<'_>) -> Option<Found> {
    let seen = given(facts, |word| {
        ["processor.max_cstate", "intel_idle.max_cstate"]
            .iter()
            .any(|name| word.starts_with(name))
    });
    let misspelt = seen.iter().any(|line| line.contains("max_cstates="));
    (!seen.is_empty()).then(|| {
        Found::notice("processors may not sleep deeply")
            .seen(seen)
            .means(if misspelt {
                "There is no parameter `max_cstates`: the kernel ignores it. (Spelt right, it would keep \
                 cores awake and take turbo from the busy ones.)"
            } else {
                "Wake-ups are some microseconds faster; power and heat are higher, and cores that do not \
                 sleep leave less turbo to the busy ones."
            })
            .fix(REMOVE)
    })
}

pub(super) fn iommu(facts: &Facts<'_>) -> Option<Found> {
    let seen = given(facts, |word| {
        ["intel_iommu=off", "iommu=off", "amd_iommu=off"].contains(&word)
    });
    (!seen.is_empty()).then(|| {
        Found::warning("the IOMMU is switched off")
            .seen(seen)
            .means("Any device may write to any memory, and virtual functions (QAT, network) cannot be given to guests or programs safely. Guides to older QAT cards ask for it; passing the host's own devices through (iommu=pt) does the same for them.")
            .fix("intel_iommu=on iommu=pt        # in GRUB_CMDLINE_LINUX; update-grub; reboot")
    })
}

pub(super) fn clearcpuid(facts: &Facts<'_>) -> Option<Found> {
    let seen = given(facts, |word| word.starts_with("clearcpuid="));
    (!seen.is_empty()).then(|| {
        Found::warning("instructions are hidden by a kernel parameter")
            .seen(seen)
            .means(
                "The kernel's own cryptography, and programs that ask the kernel, do without them.",
            )
            .fix(REMOVE)
    })
}
