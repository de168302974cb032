// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Kernel parameters that acceleration guides recommend, and their cost.

use crate::doctor::{Facts, Finding};

/// Parameters for which `is` holds, as evidence.
fn given(facts: &Facts<'_>, is: impl Fn(&str) -> bool) -> Vec<String> {
    let words = facts.system.boot.iter().filter(|word| is(word));
    words.map(|word| format!("proc/cmdline: {word}")).collect()
}

const REMOVE: &str =
    "Remove it from GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, reboot.";

pub(super) fn mitigations(facts: &Facts<'_>) -> Option<Finding> {
    Finding::warning()
        .evidence(given(facts, |word| {
            ["mitigations=off", "nopti"].contains(&word)
        }))
        .impact("Any program on this machine, also in a sandbox or a guest, may read keys from other programs' memory. \
            The parameter speeds up system calls, not cryptography.")
        .advise(REMOVE)
        .if_evident()
}

pub(super) fn idle_poll(facts: &Facts<'_>) -> Option<Finding> {
    Finding::warning()
        .evidence(given(facts, |word| word == "idle=poll"))
        .impact("Power and heat are always at their maximum; a spinning hyperthread takes half of its core from the \
            other one, and cores that never sleep leave no budget for turbo. The gain is a few microseconds per \
            wake-up.")
        .advise(REMOVE)
        .advise("Where wake-ups matter: a PM QoS request by the one program (/dev/cpu_dma_latency).")
        .if_evident()
}

pub(super) fn cstates(facts: &Facts<'_>) -> Option<Finding> {
    let evidence = given(facts, |word| {
        let names = ["processor.max_cstate", "intel_idle.max_cstate"];
        names.iter().any(|name| word.starts_with(name))
    });
    let misspelt = evidence.iter().any(|line| line.contains("max_cstates="));
    Finding::notice()
        .evidence(evidence)
        .impact(if misspelt {
            "The kernel has no parameter `max_cstates` and ignores it. (Spelt correctly, it would keep cores awake \
             and take turbo from the busy ones.)"
        } else {
            "Wake-ups are a few microseconds faster; power and heat are higher, and cores that do not sleep leave \
             less turbo to the busy ones."
        })
        .advise(REMOVE)
        .if_evident()
}

pub(super) fn iommu(facts: &Facts<'_>) -> Option<Finding> {
    Finding::warning()
        .evidence(given(facts, |word| {
            ["intel_iommu=off", "iommu=off", "amd_iommu=off"].contains(&word)
        }))
        .impact("Any device may write to any memory, and virtual functions (QAT, network) cannot be given to guests or \
            programs safely. Guides to older QAT cards ask for it; iommu=pt serves the host's own devices equally \
            well.")
        .advise("Set `intel_iommu=on iommu=pt` in GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub, reboot.")
        .if_evident()
}

pub(super) fn clearcpuid(facts: &Facts<'_>) -> Option<Finding> {
    Finding::warning()
        .evidence(given(facts, |word| word.starts_with("clearcpuid=")))
        .impact("The kernel's own cryptography, and programs that ask the kernel, do not use these instructions.")
        .advise(REMOVE)
        .if_evident()
}
