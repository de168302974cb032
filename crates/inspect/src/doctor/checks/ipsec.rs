// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! IPsec: proposals, replay windows, dead peers, counters of errors.

use super::super::{Facts, Found, Program, Setting, Severity, quote};

/// What a proposal may not have: the word, and why. A word counts as a whole, or with digits behind.
///
/// Source: RFC 8221 (ESP), RFC 8247 (IKEv2): MUST NOT and SHOULD NOT.
const BROKEN: &[&str] = &[
    "des",
    "3des",
    "null",
    "md5",
    "modp768",
    "modp1024",
    "rc4",
    "cast128",
    "blowfish128",
];
const WEAK: &[&str] = &["sha1", "sha", "modp1536", "modp1024s160"];

fn proposals<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
    let names = [
        "proposals",
        "esp_proposals",
        "ah_proposals",
        "ike",
        "esp",
        "ah",
    ];
    let facts = *facts;
    names
        .into_iter()
        .flat_map(move |name| facts.settings(Program::Strongswan, name))
}

fn words(setting: &Setting) -> impl Iterator<Item = String> {
    let value = setting.value.to_ascii_lowercase();
    let words: Vec<String> = value
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map(str::to_owned)
        .collect();
    words.into_iter()
}

pub(super) fn weak(facts: &Facts<'_>) -> Option<Found> {
    let mut worst = Severity::Notice;
    let mut seen = Vec::new();
    for pair in proposals(facts) {
        for word in words(pair.1) {
            let broken = BROKEN.contains(&word.as_str());
            if !broken && !WEAK.contains(&word.as_str()) {
                continue;
            }
            worst = worst.min(if broken {
                Severity::Critical
            } else {
                Severity::Warning
            });
            seen.push(format!("{}: {word}", quote(pair)));
        }
    }
    (!seen.is_empty()).then(|| {
        Found::new(worst, "a proposal of IPsec has a broken or weak algorithm")
            .seen(seen)
            .means("RFC 8221 and RFC 8247 forbid DES, 3DES, MD5, NULL encryption and groups below 2048 bits, and advise against SHA-1. A group of 1024 bits can be broken by states.")
            .fix("proposals = aes256gcm16-prfsha384-ecp384; esp_proposals = aes256gcm16-ecp384")
            .fix("millrace advise ipsec        # for this machine")
    })
}

pub(super) fn short_tag(facts: &Facts<'_>) -> Option<Found> {
    let short = |word: &String| {
        let tag = ["gcm", "ccm"].iter().find_map(|mode| word.split_once(mode));
        tag.is_some_and(|(_, tag)| ["8", "12", "64", "96"].contains(&tag))
    };
    let seen: Vec<String> = proposals(facts)
        .filter(|(_, setting)| words(setting).any(|word| short(&word)))
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::warning("a proposal of IPsec has a short authentication tag")
            .seen(seen)
            .means("With a tag of 8 bytes a forged packet passes once in far fewer attempts, and each success helps to find the key of the check (NIST SP 800-38D, appendix C). It saves 8 of 1400 bytes; guides that recommend it for low latency have no measurement.")
            .fix("aes256gcm16 or aes128gcm16 (VyOS: aes256gcm128, aes128gcm128)")
    })
}

pub(super) fn no_pfs(facts: &Facts<'_>) -> Option<Found> {
    const GROUPS: [&str; 9] = [
        "modp", "ecp", "curve", "x25519", "x448", "mlkem", "ke1_", "bp", "newhope",
    ];
    let without = |setting: &Setting| {
        let mut proposals = setting.value.split(',').map(str::trim);
        let has_group = |proposal: &str| {
            let mut words = proposal.split('-');
            words.any(|word| GROUPS.iter().any(|group| word.trim().starts_with(group)))
        };
        let named = |proposal: &str| proposal != "default" && !proposal.is_empty();
        proposals.any(|proposal| named(proposal) && !has_group(&proposal.to_ascii_lowercase()))
    };
    let seen: Vec<String> = ["esp_proposals", "esp"]
        .into_iter()
        .flat_map(|name| facts.settings(Program::Strongswan, name))
        .filter(|(_, setting)| without(setting))
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::notice("new keys of an IPsec tunnel are made from the old ones")
            .seen(seen)
            .means("Without a group in the ESP proposal a rekeying has no exchange of its own: who learns the keys of the IKE association once can read all that follows. An exchange an hour costs nothing that can be measured.")
            .fix("esp_proposals = aes256gcm16-ecp384        # VyOS: set vpn ipsec esp-group NAME pfs dh-group20")
    })
}

pub(super) fn ikev1(facts: &Facts<'_>) -> Option<Found> {
    let is_one = |(_, setting): &(&str, &Setting)| {
        let value = setting.value.trim();
        (setting.name == "version" && value == "1") || value == "ikev1"
    };
    let seen: Vec<String> = ["version", "keyexchange"]
        .into_iter()
        .flat_map(|name| facts.settings(Program::Strongswan, name))
        .filter(is_one)
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::warning("IPsec uses IKEv1")
            .seen(seen)
            .means("IKEv1 is deprecated (RFC 9395, 2023): weak defaults, aggressive mode gives away hashes of secrets, no protection against floods.")
            .fix("version = 2        # ipsec.conf: keyexchange=ikev2")
    })
}

/// Packets that may be under way between a device and the socket: what four processors can have open.
const WIDE_WINDOW: u64 = 1_024;

pub(super) fn replay_window(facts: &Facts<'_>) -> Option<Found> {
    if !facts.configured(Program::Strongswan) {
        return None;
    }
    let asynchronous: Vec<String> = facts
        .kernel()?
        .devices
        .iter()
        .filter(|device| device.taken_for.iter().any(|name| name.contains("aes")))
        .map(|device| {
            format!(
                "proc/crypto: {} is taken for {}",
                device.device,
                device.taken_for.join(", ")
            )
        })
        .collect();
    let per_cpu: Vec<String> = facts
        .settings(Program::Strongswan, "per_cpu_sas")
        .filter(|(_, setting)| setting.value.trim() != "no")
        .map(quote)
        .collect();
    if asynchronous.is_empty() && per_cpu.is_empty() {
        return None;
    }
    let set: Vec<(&str, &Setting)> = facts
        .settings(Program::Strongswan, "replay_window")
        .collect();
    let small: Vec<String> = set
        .iter()
        .filter(|(_, setting)| setting.number().is_some_and(|window| window < WIDE_WINDOW))
        .map(|pair| quote(*pair))
        .collect();
    if !set.is_empty() && small.is_empty() {
        return None;
    }
    Some(
        Found::warning("the replay window is too small for what reorders packets here")
            .seen(small)
            .seen(set.is_empty().then(|| "no replay_window is set: the default is 32 packets".to_owned()))
            .seen(asynchronous)
            .seen(per_cpu)
            .means("Packets that a device or several processors finish out of order fall out of the window and are dropped as replays: loss that grows with the load (XfrmInStateSeqError in /proc/net/xfrm_stat).")
            .fix(format!("replay_window = {WIDE_WINDOW}        # in each child; then swanctl --load-conns and rekey")),
    )
}

pub(super) fn replay_errors(facts: &Facts<'_>) -> Option<Found> {
    let errors = facts.network()?.ipsec_errors.as_ref()?;
    let count = errors.get("XfrmInStateSeqError").copied()?;
    (count > 0).then(|| {
        Found::warning("packets of IPsec were dropped as replayed or late")
            .seen([format!("proc/net/xfrm_stat: XfrmInStateSeqError {count}")])
            .means("An attacker who replays is rare; a device or several processors that reorder more than the replay window are common.")
            .fix("replay_window = 1024        # swanctl.conf, in each child")
            .fix("millrace watch        # does it grow under load?")
    })
}

pub(super) fn errors(facts: &Facts<'_>) -> Option<Found> {
    let errors = facts.network()?.ipsec_errors.as_ref()?;
    let seen: Vec<String> = errors
        .iter()
        .filter(|(name, count)| {
            // The acquiring of a first key drops some packets: that is how it works.
            let ordinary = [
                "XfrmInStateSeqError",
                "XfrmOutNoStates",
                "XfrmInNoStates",
                "XfrmAcquireError",
            ];
            **count > 0 && !ordinary.contains(&name.as_str())
        })
        .map(|(name, count)| format!("proc/net/xfrm_stat: {name} {count}"))
        .collect();
    (!seen.is_empty()).then(|| {
        Found::notice("packets of IPsec were dropped")
            .seen(seen)
            .means("Since boot. XfrmInStateProtoError: a wrong key or a damaged packet; …PolBlock: a policy; XfrmInBufferError, XfrmInError: memory; XfrmInStateInvalid: keys that were changed under way.")
            .fix("millrace watch        # which of them grow")
    })
}

/// Bounds on looking for dead peers, in seconds: below, it is noise on a lossy path; above, a failed
/// gateway stays unnoticed for minutes.
const DPD: std::ops::RangeInclusive<u64> = 10..=120;

pub(super) fn dpd(facts: &Facts<'_>) -> Option<Found> {
    let odd: Vec<String> = ["dpd_delay", "dpddelay"]
        .into_iter()
        .flat_map(|name| facts.settings(Program::Strongswan, name))
        .filter(|(_, setting)| {
            setting
                .seconds()
                .is_some_and(|seconds| !DPD.contains(&seconds))
        })
        .map(quote)
        .collect();
    (!odd.is_empty()).then(|| {
        Found::notice("dead peers are looked for too often, too seldom, or not at all")
            .seen(odd)
            .means("Seldom or never: traffic goes into a dead tunnel until the keys run out. Every few seconds: with thousands of peers a load of its own, and a short loss tears tunnels down. (It has nothing to do with throughput, as is claimed; only an idle tunnel is asked at all.)")
            .fix("dpd_delay = 30s        # IKEv2 gives up by its retransmissions, after 165 s by default; dpd_timeout is for IKEv1")
    })
}
