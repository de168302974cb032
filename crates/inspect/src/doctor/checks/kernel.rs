// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which implementation the kernel takes, and whether that is the one that people think.

use super::super::{Facts, Found, Program};
use crate::cpu::State;
use crate::kernel::crypto::Engine;
use crate::kernel::{DeviceDriver, PassedOver};

/// The name that the kernel section gives QAT's implementations.
const QAT: &str = "Intel QAT";

fn lines(device: &DeviceDriver) -> impl Iterator<Item = String> + '_ {
    device.passed_over_for.iter().map(|passed| {
        let PassedOver {
            algorithm,
            priority,
            instead,
            instead_priority,
        } = passed;
        format!(
            "proc/crypto: {algorithm}: {instead} (priority {instead_priority}) before {} ({priority})",
            device.device
        )
    })
}

pub(super) fn qat_passed_over(facts: &Facts<'_>) -> Option<Found> {
    let kernel = facts.kernel()?;
    let device = kernel
        .devices
        .iter()
        .find(|device| device.device == QAT && !device.passed_over_for.is_empty())?;
    let ipsec = device
        .passed_over_for
        .iter()
        .any(|passed| passed.algorithm.starts_with("authenc"));
    let vaes = facts
        .cpu()
        .is_some_and(|cpu| cpu.state("vaes") == State::Present);
    let title = "the kernel takes the processor before QAT";
    let found = if ipsec && !vaes {
        Found::warning(title)
    } else {
        Found::notice(title)
    };
    let found = found.seen(lines(device)).means(format!(
        "The device gets nothing to do for these, although it is up. Kernels since August 2025 (and 6.12, \
         6.16 stable) lowered QAT from 4001 to 100: one thread gets about 0.5 Gbit/s through the device at \
         4 KiB, VAES 18 to 35 GB/s (maintainers, linux-crypto, June 2025). {}",
        if vaes {
            "This processor has VAES: leave it, unless it has nothing to spare."
        } else {
            "Which is faster here, with many tunnels at once, only a measurement tells."
        }
    ));
    let names: Vec<String> = device
        .passed_over_for
        .iter()
        .filter_map(|passed| driver_name(&passed.algorithm))
        .collect();
    let found = found.fix(
        "measure: CPU seconds per GB through a tunnel, before and after (millrace inspect used --seconds 10)",
    );
    Some(names.iter().fold(found, |found, name| found.fix(name)).fix(
        "the change holds until the module is loaded again; back: the same with priority 100 (crconf needs CONFIG_CRYPTO_USER and root; it sends CRYPTO_MSG_UPDATEALG)",
    ))
}

/// The command that raises an implementation: its netlink message wants the driver's name and its type
/// (3: AEAD, 5: cipher; `include/linux/crypto.h`).
fn driver_name(algorithm: &str) -> Option<String> {
    let (driver, kind) = match algorithm {
        "authenc(hmac(sha1),cbc(aes))" => ("qat_aes_cbc_hmac_sha1", 3),
        "authenc(hmac(sha256),cbc(aes))" => ("qat_aes_cbc_hmac_sha256", 3),
        "authenc(hmac(sha512),cbc(aes))" => ("qat_aes_cbc_hmac_sha512", 3),
        "cbc(aes)" => ("qat_aes_cbc", 5),
        "ctr(aes)" => ("qat_aes_ctr", 5),
        "xts(aes)" => ("qat_aes_xts", 5),
        _ => return None,
    };
    Some(format!(
        "crconf update driver \"{driver}\" type {kind} priority 4001"
    ))
}

pub(super) fn qat_gcm(facts: &Facts<'_>) -> Option<Found> {
    // Intel's package for the kernel has no AES-GCM of its own either: what is registered counts.
    facts.devices().next()?;
    let kernel = facts.kernel()?;
    let has_gcm = kernel.choices.iter().any(|choice| {
        let of_qat =
            |candidate: &crate::kernel::Candidate| candidate.device.as_deref() == Some(QAT);
        choice.algorithm.contains("gcm") && choice.candidates.iter().any(of_qat)
    });
    let proposals: Vec<String> = ["esp_proposals", "esp"]
        .into_iter()
        .flat_map(|name| facts.settings(Program::Strongswan, name))
        .filter(|(_, setting)| setting.value.to_ascii_lowercase().contains("gcm"))
        .map(super::super::quote)
        .collect();
    if has_gcm || proposals.is_empty() {
        return None;
    }
    Some(
        Found::warning("IPsec is set to AES-GCM, which never reaches QAT here")
            .seen(proposals)
            .seen(["proc/crypto: no driver of QAT has gcm".to_owned()])
            .means(
                "The kernel's driver has AES-CBC with HMAC, CTR and XTS only. With AES-GCM every packet is \
                 encrypted by the processor, and the device idles. Guides that name AES-GCM first for QAT \
                 are wrong for the kernel.",
            )
            .fix("with AES instructions (VAES above all): keep AES-GCM, and do without the device for IPsec")
            .fix("without: esp_proposals = aes256-sha256-ecp256        # HMAC is mandatory with CBC")
            .fix("millrace advise ipsec        # chooses by what is here"),
    )
}

pub(super) fn device_passed_over(facts: &Facts<'_>) -> Option<Found> {
    let kernel = facts.kernel()?;
    let devices: Vec<&DeviceDriver> = kernel
        .devices
        .iter()
        .filter(|device| device.device != QAT && !device.passed_over_for.is_empty())
        .collect();
    let first = devices.first()?;
    Some(
        Found::notice(format!("the kernel takes the processor before {}", first.device))
            .seen(devices.iter().flat_map(|device| lines(device)))
            .means("The engine gets nothing to do for these. For packets of 1400 bytes the processor is often the faster one.")
            .fix("measure: millrace inspect used --seconds 10, under load")
            .fix("crconf update driver \"NAME\" type 5 priority 500        # NAME from /proc/crypto; reversible"),
    )
}

pub(super) fn portable_aes(facts: &Facts<'_>) -> Option<Found> {
    let has = |name| {
        facts
            .cpu()
            .is_some_and(|cpu| cpu.state(name) == State::Present)
    };
    if !has("aes-ni") && !has("aes") {
        return None;
    }
    let portable: Vec<String> = facts
        .kernel()?
        .choices
        .iter()
        .filter(|choice| choice.algorithm.contains("aes"))
        .filter_map(|choice| {
            let first = choice.candidates.first()?;
            (first.engine == Engine::Generic)
                .then(|| format!("proc/crypto: {}: {}", choice.algorithm, first.driver))
        })
        .collect();
    (!portable.is_empty()).then(|| {
        Found::warning("the kernel computes AES in portable code")
            .seen(portable)
            .means("The processor has instructions for it: without them AES takes many times as long, and its time depends on the data.")
            .fix("x86: modprobe aesni_intel ghash_clmulni_intel; Arm: modprobe aes_ce_blk ghash_ce")
            .fix("new associations take it; if the module is missing, the kernel lacks CONFIG_CRYPTO_AES_NI_INTEL (or CRYPTO_AES_ARM64_CE_BLK)")
    })
}
