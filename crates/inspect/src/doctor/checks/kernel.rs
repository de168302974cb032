// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The implementation that the kernel prefers for an algorithm.

use crate::cpu::State;
use crate::doctor::{ConfiguredProgram, Facts, Finding, Severity, quote};
use crate::kernel::crypto::is_fixed_time_aes;
use crate::kernel::{AlgorithmCandidate, DeviceDriver, PassedOver, aes_modules};
use crate::qat::QatDevice;

/// The kernel section's name for QAT's implementations.
const QAT: &str = "Intel QAT";

fn lines(device: &DeviceDriver) -> impl Iterator<Item = String> + '_ {
    device.passed_over_for.iter().map(|passed| {
        let PassedOver { algorithm, priority, instead, instead_priority } = passed;
        let device = &device.device;
        format!("proc/crypto: {algorithm}: {instead} (priority {instead_priority}) before {device} ({priority})")
    })
}

pub(super) fn qat_passed_over(facts: &Facts<'_>) -> Option<Finding> {
    let mut devices = facts.kernel()?.devices.iter();
    let device =
        devices.find(|device| device.device == QAT && !device.passed_over_for.is_empty())?;
    // A device that is down, or that has no instances for the kernel, has a check of its own.
    let can_serve =
        |device: &QatDevice| device.up != Some(false) && device.serves_the_kernel() != Some(false);
    if facts.devices().next().is_some() && !facts.devices().any(can_serve) {
        return None;
    }
    let state = if facts.devices().any(|device| can_serve(device) && device.up == Some(true)) {
        "A device that is up is idle for these algorithms."
    } else {
        "QAT is idle for these algorithms."
    };
    let passed_over = &device.passed_over_for;
    let ipsec = passed_over.iter().any(|passed| passed.algorithm.starts_with("authenc"));
    let vaes = facts.cpu().is_some_and(|cpu| cpu.state("vaes") == State::Present);
    let finding = Finding::new(if ipsec && !vaes { Severity::Warning } else { Severity::Notice })
        .evidence(lines(device))
        .impact(format!(
            "{state} Kernels since August 2025 (and 6.12, 6.16 stable) \
             lowered QAT's priority from 4001 to 100: one thread gets about 0.5 Gbit/s through the device at \
             4 KiB, VAES 18 to 35 GB/s (maintainers, linux-crypto, June 2025). {}",
            if vaes {
                "This processor has VAES: leave the priority, unless the CPU is saturated."
            } else {
                "Only a measurement shows which is faster here with many tunnels at once."
            }
        ))
        .run("millrace inspect used --interval 10s        # measure CPU seconds per GB through a tunnel, before and after");
    let commands = passed_over.iter().filter_map(|passed| raise_priority(&passed.algorithm));
    Some(commands.fold(finding, Finding::run).advise(
        "The change holds until the module is loaded again. To undo it, repeat the command with priority 100. crconf needs CONFIG_CRYPTO_USER and root; it sends CRYPTO_MSG_UPDATEALG.",
    ))
}

/// The command that raises an implementation's priority. Its netlink message needs the driver's name and
/// type (3: AEAD, 5: cipher; `include/linux/crypto.h`).
fn raise_priority(algorithm: &str) -> Option<String> {
    let (driver, kind) = match algorithm {
        "authenc(hmac(sha1),cbc(aes))" => ("qat_aes_cbc_hmac_sha1", 3),
        "authenc(hmac(sha256),cbc(aes))" => ("qat_aes_cbc_hmac_sha256", 3),
        "authenc(hmac(sha512),cbc(aes))" => ("qat_aes_cbc_hmac_sha512", 3),
        "cbc(aes)" => ("qat_aes_cbc", 5),
        "ctr(aes)" => ("qat_aes_ctr", 5),
        "xts(aes)" => ("qat_aes_xts", 5),
        _ => return None,
    };
    Some(format!("crconf update driver \"{driver}\" type {kind} priority 4001"))
}

pub(super) fn qat_gcm(facts: &Facts<'_>) -> Option<Finding> {
    // Intel's package for the kernel has no AES-GCM of its own either: what is registered counts.
    facts.devices().next()?;
    let has_gcm = facts.kernel()?.choices.iter().any(|choice| {
        let of_qat = |candidate: &AlgorithmCandidate| candidate.device.as_deref() == Some(QAT);
        choice.algorithm.contains("gcm") && choice.candidates.iter().any(of_qat)
    });
    let proposals: Vec<String> = facts
        .settings_of(&[
            (ConfiguredProgram::Strongswan, "esp_proposals"),
            (ConfiguredProgram::Strongswan, "esp"),
        ])
        .filter(|(_, setting)| setting.value.to_ascii_lowercase().contains("gcm"))
        .map(quote)
        .collect();
    if has_gcm || proposals.is_empty() {
        return None;
    }
    Some(
        Finding::warning()
            .evidence(proposals)
            .evidence(["proc/crypto: no QAT driver has gcm".to_owned()])
            .impact(
                "The kernel's driver has AES-CBC with HMAC, CTR and XTS only. With AES-GCM the processor \
                 encrypts every packet, and the device is idle. Guides that name AES-GCM first for QAT are wrong \
                 about the kernel.",
            )
            .advise("With AES instructions (VAES above all): keep AES-GCM and do without the device for IPsec.")
            .advise("Without them: esp_proposals = aes256-sha256-ecp256 (CBC needs the HMAC).")
            .run("millrace advise ipsec        # chooses for this machine"),
    )
}

pub(super) fn device_passed_over(facts: &Facts<'_>) -> Option<Finding> {
    let devices = &facts.kernel()?.devices;
    let passed_over =
        |driver: &&DeviceDriver| driver.device != QAT && !driver.passed_over_for.is_empty();
    let first = devices.iter().find(passed_over)?;
    Some(
        Finding::notice()
            .title(format!("the kernel prefers the processor to {}", first.device))
            .evidence(devices.iter().filter(passed_over).flat_map(lines))
            .impact("The engine is idle for these algorithms. For packets of 1400 bytes the processor is often faster.")
            .run("millrace inspect used --interval 10s        # measure under load")
            .advise("crconf update driver \"NAME\" type 5 priority 500 (NAME from /proc/crypto) prefers the engine; it can be undone."),
    )
}

pub(super) fn portable_aes(facts: &Facts<'_>) -> Option<Finding> {
    let cpu = facts.cpu()?;
    if cpu.state("aes-ni") != State::Present && cpu.state("aes") != State::Present {
        return None;
    }
    let portable: Vec<(&str, &AlgorithmCandidate)> = facts.kernel()?.portable_aes().collect();
    let leaks = !portable.iter().all(|(_, taken)| is_fixed_time_aes(&taken.driver));
    let finding = Finding::warning()
        .evidence(portable.iter().map(|(mode, taken)| format!("proc/crypto: {mode}: {}", taken.driver)))
        .impact(if leaks {
            "AES is many times slower than with the processor's instructions, and its time depends on the data."
        } else {
            "AES is many times slower than with the processor's instructions: aes-fixed-time trades speed for a \
             time that does not depend on the data, which the instructions have anyway."
        })
        .if_evident()?;
    let finding = facts
        .loading(finding, &aes_modules(cpu.architecture), "")
        .advise("New associations use the module. If it does not exist, the kernel lacks CONFIG_CRYPTO_AES_NI_INTEL (or CRYPTO_AES_ARM64_CE_BLK).");
    Some(finding)
}
