// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! IPsec: proposals, replay windows, dead-peer detection, error counters.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Setting, Severity, quote};

/// Words of a proposal that RFC 8221 (ESP) and RFC 8247 (IKEv2) forbid (MUST NOT).
const BROKEN: &[&str] =
    &["des", "3des", "null", "md5", "modp768", "modp1024", "rc4", "cast128", "blowfish128"];
/// Words of a proposal that they advise against (SHOULD NOT).
const WEAK: &[&str] = &["sha1", "sha", "modp1536", "modp1024s160"];

fn proposals<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
    facts.settings_named(
        ConfiguredProgram::Strongswan,
        &["proposals", "esp_proposals", "ah_proposals", "ike", "esp", "ah"],
    )
}

fn words(setting: &Setting) -> Vec<String> {
    let value = setting.value.to_ascii_lowercase();
    let words = value.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.map(str::to_owned).collect()
}

pub(super) fn weak(facts: &Facts<'_>) -> Option<Finding> {
    let mut worst = Severity::Notice;
    let mut evidence = Vec::new();
    for pair in proposals(facts) {
        for word in words(pair.1) {
            let severity = match word.as_str() {
                word if BROKEN.contains(&word) => Severity::Critical,
                word if WEAK.contains(&word) => Severity::Warning,
                _ => continue,
            };
            worst = worst.min(severity);
            evidence.push(format!("{}: {word}", quote(pair)));
        }
    }
    Finding::new(worst)
        .evidence(evidence)
        .impact("RFC 8221 and RFC 8247 forbid DES, 3DES, MD5, NULL encryption and groups below 2048 bits, and advise against SHA-1. Nation-state attackers can break a group of 1024 bits (Logjam).")
        .advise("proposals = aes256gcm16-prfsha384-ecp384; esp_proposals = aes256gcm16-ecp384")
        .run("millrace advise ipsec        # for this machine")
        .if_evident()
}

pub(super) fn short_tag(facts: &Facts<'_>) -> Option<Finding> {
    let short = |word: &String| {
        let tag = ["gcm", "ccm"].iter().find_map(|mode| word.split_once(mode));
        tag.is_some_and(|(_, tag)| ["8", "12", "64", "96"].contains(&tag))
    };
    Finding::warning()
        .evidence(proposals(facts).filter(|(_, setting)| words(setting).iter().any(short)).map(quote))
        .impact("With a tag of 8 bytes an attacker needs far fewer attempts to forge a packet, and each success helps to find the authentication key (NIST SP 800-38D, appendix C). The short tag saves 8 of 1400 bytes; guides that recommend it for low latency give no measurement.")
        .advise("aes256gcm16 or aes128gcm16 (VyOS: aes256gcm128, aes128gcm128)")
        .if_evident()
}

pub(super) fn no_pfs(facts: &Facts<'_>) -> Option<Finding> {
    let esp = facts.settings_named(ConfiguredProgram::Strongswan, &["esp_proposals", "esp"]);
    let without_group = esp.filter(|(_, setting)| {
        let mut proposals = setting.value.split(',').map(str::trim);
        proposals.any(|proposal| !["", "default"].contains(&proposal) && !has_group(proposal))
    });
    Finding::notice()
        .evidence(without_group.map(quote))
        .impact("Without a group in the ESP proposal, rekeying derives new keys from the old ones: an attacker who once learns the keys of the IKE association can read all later traffic. One exchange an hour has no measurable cost.")
        .advise("esp_proposals = aes256gcm16-ecp384 (VyOS: set vpn ipsec esp-group NAME pfs dh-group20)")
        .if_evident()
}

/// Whether a proposal of ESP names a group of a key exchange.
fn has_group(proposal: &str) -> bool {
    const GROUPS: [&str; 9] =
        ["modp", "ecp", "curve", "x25519", "x448", "mlkem", "ke1_", "bp", "newhope"];
    let proposal = proposal.to_ascii_lowercase();
    let mut words = proposal.split('-');
    words.any(|word| GROUPS.iter().any(|group| word.trim().starts_with(group)))
}

pub(super) fn ikev1(facts: &Facts<'_>) -> Option<Finding> {
    let is_ikev1 = |(_, setting): &(&str, &Setting)| {
        let value = setting.value.trim();
        (setting.name == "version" && value == "1") || value == "ikev1"
    };
    Finding::warning()
        .evidence(facts.settings_named(ConfiguredProgram::Strongswan, &["version", "keyexchange"]).filter(is_ikev1).map(quote))
        .impact("IKEv1 is deprecated (RFC 9395, 2023): weak defaults, aggressive mode exposes hashes of secrets, no protection against floods.")
        .advise("version = 2 (ipsec.conf: keyexchange=ikev2)")
        .if_evident()
}

/// Packets that may be in flight between a device and the socket: four processors' open requests.
const WIDE_WINDOW: u64 = 1_024;

pub(super) fn replay_window(facts: &Facts<'_>) -> Option<Finding> {
    if !facts.configured(ConfiguredProgram::Strongswan) {
        return None;
    }
    let devices = facts.kernel()?.devices.iter();
    let mut reorders: Vec<String> = devices
        .filter(|device| device.taken_for.iter().any(|name| name.contains("aes")))
        .map(|device| {
            format!("proc/crypto: {} serves {}", device.device, device.taken_for.join(", "))
        })
        .collect();
    let per_cpu = facts.settings_named(ConfiguredProgram::Strongswan, &["per_cpu_sas"]);
    reorders.extend(per_cpu.filter(|(_, setting)| setting.value.trim() != "no").map(quote));
    let windows: Vec<_> =
        facts.settings_named(ConfiguredProgram::Strongswan, &["replay_window"]).collect();
    let mut small: Vec<String> = windows
        .iter()
        .filter(|(_, setting)| setting.number().is_some_and(|window| window < WIDE_WINDOW))
        .map(|pair| quote(*pair))
        .collect();
    if windows.is_empty() {
        small.push("no replay_window is set: the default is 32 packets".to_owned());
    }
    if reorders.is_empty() || small.is_empty() {
        return None;
    }
    Some(
        Finding::warning()
            .evidence(small)
            .evidence(reorders)
            .impact("A device or several processors may finish packets out of order. Packets outside the window are dropped as replays: loss that grows with the load (XfrmInStateSeqError in /proc/net/xfrm_stat).")
            .advise(format!("replay_window = {WIDE_WINDOW} in each child; then `swanctl --load-conns` and rekey.")),
    )
}

pub(super) fn replay_errors(facts: &Facts<'_>) -> Option<Finding> {
    let errors = facts.network()?.ipsec_errors.as_ref()?;
    let count = errors.get("XfrmInStateSeqError").filter(|count| **count > 0);
    Finding::warning()
        .evidence(count.map(|count| format!("proc/net/xfrm_stat: XfrmInStateSeqError {count}")))
        .impact("An attacker who replays packets is rare; a device or several processors that reorder more than the replay window are common.")
        .advise(format!("replay_window = {WIDE_WINDOW} in each child of swanctl.conf"))
        .run("millrace watch        # does it grow under load?")
        .if_evident()
}

pub(super) fn errors(facts: &Facts<'_>) -> Option<Finding> {
    // `ipsec-replay-errors` reports the first. The others drop packets while a first key is negotiated, as
    // designed.
    const IGNORED: [&str; 4] =
        ["XfrmInStateSeqError", "XfrmOutNoStates", "XfrmInNoStates", "XfrmAcquireError"];
    let errors = facts.network()?.ipsec_errors.as_ref()?.iter();
    Finding::notice()
        .evidence(
            errors
                .filter(|(name, count)| **count > 0 && !IGNORED.contains(&name.as_str()))
                .map(|(name, count)| format!("proc/net/xfrm_stat: {name} {count}")),
        )
        .impact("Counted since boot. XfrmInStateProtoError: a wrong key or a damaged packet; …PolBlock: a policy; XfrmInBufferError, XfrmInError: memory; XfrmInStateInvalid: keys that changed while a packet was on its way.")
        .run("millrace watch        # which of them grow?")
        .if_evident()
}

/// Sensible intervals of dead-peer detection, in seconds. Below, a lossy path causes false alarms; above, a
/// failed gateway stays unnoticed for minutes.
const DPD: std::ops::RangeInclusive<u64> = 10..=120;

pub(super) fn dpd(facts: &Facts<'_>) -> Option<Finding> {
    let out_of_range = |(_, setting): &(&str, &Setting)| {
        setting.seconds().is_some_and(|seconds| !DPD.contains(&seconds))
    };
    Finding::notice()
        .evidence(facts.settings_named(ConfiguredProgram::Strongswan, &["dpd_delay", "dpddelay"]).filter(out_of_range).map(quote))
        .impact("Too long or off: traffic goes into a dead tunnel until its keys expire. Too short: thousands of peers cause noticeable load, and a short loss of packets closes tunnels. (It does not affect throughput, as some claim: only idle tunnels are probed.)")
        .advise("dpd_delay = 30s. IKEv2 gives up by its retransmissions, after 165 s by default; dpd_timeout is for IKEv1.")
        .if_evident()
}
