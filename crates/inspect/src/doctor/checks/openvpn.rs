// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! OpenVPN: what its configuration gives away, in safety and in speed.

use super::super::{Facts, Found, Program, Setting, Severity, quote};
use crate::network::InterfaceKind;

fn all<'a>(facts: &Facts<'a>, names: &[&'static str]) -> Vec<(&'a str, &'a Setting)> {
    let pairs = names
        .iter()
        .flat_map(|name| facts.settings(Program::Openvpn, name));
    pairs.collect()
}

pub(super) fn no_protection(facts: &Facts<'_>) -> Option<Found> {
    let none = |setting: &Setting| {
        setting
            .words()
            .any(|word| word.eq_ignore_ascii_case("none"))
    };
    let pairs = all(
        facts,
        &["cipher", "data-ciphers", "data-ciphers-fallback", "auth"],
    );
    let seen: Vec<String> = pairs
        .into_iter()
        .filter(|(_, setting)| none(setting))
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::critical("OpenVPN does not encrypt, or not authenticate")
            .seen(seen)
            .means("Anybody on the path reads or changes what is in the tunnel. It gains about a tenth of the processor time only (measured: 15.9 to 14.3 CPU seconds per GB, with AES-NI): the cost of OpenVPN is not the cipher.")
            .fix("data-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305        # and no line `auth`, `cipher`")
    })
}

pub(super) fn static_key(facts: &Facts<'_>) -> Option<Found> {
    let seen: Vec<String> = all(facts, &["secret", "<secret>"])
        .into_iter()
        .map(|(file, setting)| format!("{file}: {}", setting.name))
        .collect();
    (!seen.is_empty()).then(|| {
        Found::critical("OpenVPN uses a static key")
            .seen(seen)
            .means("Who gets the key once reads everything that was ever sent: no forward secrecy, no renewal. OpenVPN 2.7 refuses it by default, and the data channel in the kernel does not have it.")
            .fix("TLS between two ends needs no authority: tls-server (tls-client), --peer-fingerprint SHA256 of the other's certificate, dh none")
            .fix("millrace advise openvpn")
    })
}

/// Ciphers with blocks of 64 bits, and broken hashes.
const WEAK: &[&str] = &["BF", "DES", "CAST5", "RC2", "IDEA", "SEED", "RC4", "DESX"];

pub(super) fn weak(facts: &Facts<'_>) -> Option<Found> {
    let mut worst = Severity::Notice;
    let mut seen = Vec::new();
    for pair in all(facts, &["cipher", "data-ciphers", "data-ciphers-fallback"]) {
        let is_weak = |word: &str| {
            let family = word.trim_start_matches('?').to_ascii_uppercase();
            let family = family.split('-').next().unwrap_or_default().to_owned();
            WEAK.contains(&family.as_str())
        };
        if pair.1.words().any(is_weak) {
            worst = worst.min(Severity::Critical);
            seen.push(quote(pair));
        }
    }
    for pair in all(facts, &["auth"]) {
        let hash = pair.1.value.to_ascii_uppercase();
        if ["MD4", "MD5", "RSA-MD5"].contains(&hash.trim()) {
            worst = worst.min(Severity::Critical);
            seen.push(quote(pair));
        } else if ["SHA1", "SHA", "RSA-SHA1"].contains(&hash.trim()) {
            seen.push(quote(pair));
        }
    }
    for pair in all(facts, &["tls-version-min"]) {
        if pair
            .1
            .words()
            .next()
            .is_some_and(|word| word == "1.0" || word == "1.1")
        {
            worst = worst.min(Severity::Warning);
            seen.push(quote(pair));
        }
    }
    for pair in all(facts, &["ncp-disable"]) {
        worst = worst.min(Severity::Warning);
        seen.push(quote(pair));
    }
    (!seen.is_empty()).then(|| {
        Found::new(worst, "OpenVPN uses a weak cipher, hash or version of TLS")
            .seen(seen)
            .means("Blocks of 64 bits give away plaintext after some gigabytes under one key (SWEET32). HMAC with SHA-1 is not broken, but needless: AEAD ciphers need no `auth`, cost less and are the only ones in the kernel's data channel.")
            .fix("data-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305")
            .fix("tls-version-min 1.2")
    })
}

pub(super) fn compression(facts: &Facts<'_>) -> Option<Found> {
    // `compress migrate`, `compress stub-v2` and `comp-lzo no` compress nothing.
    let harmless = |setting: &Setting| {
        let value = setting.value.trim();
        ["no", "migrate", "stub", "stub-v2"].contains(&value)
            || (setting.name == "allow-compression" && value != "yes")
    };
    let seen: Vec<String> = all(facts, &["comp-lzo", "compress", "allow-compression"])
        .into_iter()
        .filter(|(_, setting)| !harmless(setting))
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::warning("OpenVPN compresses")
            .seen(seen)
            .means("Sizes of compressed packets give away what is in them (VORACLE); what goes over a tunnel is compressed or encrypted already; the data channel cannot go into the kernel. OpenVPN 2.7 never sends compressed packets.")
            .fix("server: compress migrate        # and no comp-lzo; clients that still send it are told")
            .fix("allow-compression no")
    })
}

pub(super) fn tap(facts: &Facts<'_>) -> Option<Found> {
    let seen: Vec<String> = all(facts, &["dev", "dev-type"])
        .into_iter()
        .filter(|(_, setting)| setting.value.starts_with("tap"))
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::notice("OpenVPN uses TAP")
            .seen(seen)
            .means("The data channel in the kernel has TUN only: one process does everything, about 1.9 Gbit/s where the kernel does 7.8 (datazone.de 2026, Xeon E-2488). Every frame also carries 14 bytes and every broadcast.")
            .fix("dev tun, and routes. For several paths: equal-cost routes over tun devices instead of a bond of tap devices")
    })
}

pub(super) fn dco_disabled(facts: &Facts<'_>) -> Option<Found> {
    let seen: Vec<String> = all(facts, &["disable-dco"])
        .into_iter()
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::notice("OpenVPN's data channel in the kernel is switched off")
            .seen(seen)
            .means("All packets go through one process: about a fourth of what the kernel does (1.91 against 7.84 Gbit/s, datazone.de 2026).")
            .fix("remove disable-dco; OpenVPN says in its log what else keeps it off: fragment, compression, TAP, ciphers without AEAD, topology net30")
    })
}

pub(super) fn user_space(facts: &Facts<'_>) -> Option<Found> {
    let network = facts.network()?;
    let module = match (network.openvpn.in_tree, network.openvpn.out_of_tree) {
        (true, _) => "ovpn",
        (_, true) => "ovpn-dco-v2",
        _ => return None,
    };
    let of = |kind| {
        network
            .interfaces
            .iter()
            .filter(move |interface| interface.kind == kind)
    };
    if of(InterfaceKind::Ovpn).next().is_some() {
        return None;
    }
    let tunnels: Vec<String> = of(InterfaceKind::Tun)
        .filter(|interface| interface.name.starts_with("tun") || interface.name.starts_with("vtun"))
        .map(|interface| format!("sys/class/net/{}: a program serves it", interface.name))
        .collect();
    (!tunnels.is_empty()).then(|| {
        Found::warning("OpenVPN works in user space although the kernel could")
            .seen([format!("the module {module} is loaded")])
            .seen(tunnels)
            .means("One process on one core: measured elsewhere 374 Mbit/s against 1230 on the same machine (ovpn-dco #31), 1.91 against 7.84 Gbit/s (datazone.de 2026).")
            .fix(if module == "ovpn" {
                "the kernel's own `ovpn` (Linux 6.16 and later) wants OpenVPN 2.7 or later; 2.6 wants ovpn-dco-v2"
            } else {
                "ovpn-dco-v2 wants OpenVPN 2.6; 2.7 and later want the kernel's own `ovpn` (Linux 6.16)"
            })
            .fix("journalctl -u 'openvpn*' | grep -i dco        # it says why: disable-dco, compression, fragment, TAP, a cipher without AEAD")
    })
}

/// Sensible seconds between signs of life, and until a peer is given up.
const PING: std::ops::RangeInclusive<u64> = 5..=60;
const GIVE_UP: std::ops::RangeInclusive<u64> = 20..=300;

pub(super) fn keepalive(facts: &Facts<'_>) -> Option<Found> {
    let odd = |(_, setting): &(&str, &Setting)| {
        let mut numbers = setting.words().filter_map(|word| word.parse::<u64>().ok());
        let Some(first) = numbers.next() else {
            return false;
        };
        match setting.name.as_str() {
            "ping-restart" => !GIVE_UP.contains(&first),
            // The second number is the time until a peer is given up: three signs of life at least.
            _ => {
                let give_up = numbers.next();
                !PING.contains(&first)
                    || give_up.is_some_and(|seconds| {
                        !GIVE_UP.contains(&seconds) || seconds < first.saturating_mul(3)
                    })
            }
        }
    };
    let seen: Vec<String> = all(facts, &["keepalive", "ping", "ping-restart"])
        .into_iter()
        .filter(odd)
        .map(quote)
        .collect();
    (!seen.is_empty()).then(|| {
        Found::notice("OpenVPN looks for dead peers too often, too seldom, or gives up too soon")
            .seen(seen)
            .means("Seldom: a dead end goes unnoticed for minutes, and NAT forgets the path. Often: every client wakes the one process. Fewer than three signs of life until a peer is given up: one lost packet restarts the tunnel.")
            .fix("keepalive 10 60        # on the server; it tells the clients")
    })
}
