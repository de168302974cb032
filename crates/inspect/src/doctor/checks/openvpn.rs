// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! OpenVPN: settings that cost safety or speed.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Setting, Severity, quote};
use crate::network::InterfaceKind;

pub(super) fn no_protection(facts: &Facts<'_>) -> Option<Finding> {
    let none = |(_, setting): &(&str, &Setting)| {
        setting.words().any(|word| word.eq_ignore_ascii_case("none"))
    };
    let names = &["cipher", "data-ciphers", "data-ciphers-fallback", "auth"];
    Finding::critical()
        .evidence(facts.settings_named(ConfiguredProgram::Openvpn, names).filter(none).map(quote))
        .impact("Anyone on the path can read or change the traffic. It saves only about a tenth of the processor time \
            (measured: 15.9 to 14.3 CPU seconds per GB, with AES-NI), because OpenVPN's cost is not the cipher.")
        .advise("data-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305, without lines `auth` and `cipher`")
        .if_evident()
}

pub(super) fn static_key(facts: &Facts<'_>) -> Option<Finding> {
    let secrets = facts.settings_named(ConfiguredProgram::Openvpn, &["secret", "<secret>"]);
    Finding::critical()
        .evidence(secrets.map(|(file, setting)| format!("{file}: {}", setting.name)))
        .impact("An attacker who gets the key can read all traffic, also recorded traffic: no forward secrecy, no \
            renewal. OpenVPN 2.7 refuses static keys by default, and the kernel data channel does not support them.")
        .advise("TLS between two ends needs no certificate authority: tls-server (tls-client), --peer-fingerprint with \
            the SHA256 of the other end's certificate, dh none.")
        .run("millrace advise openvpn")
        .if_evident()
}

/// Families of ciphers with blocks of 64 bits, and RC4.
const WEAK: &[&str] = &["BF", "DES", "CAST5", "RC2", "IDEA", "SEED", "RC4", "DESX"];

/// The severity of one setting, if it is weak.
fn weakness(setting: &Setting) -> Option<Severity> {
    match setting.name.as_str() {
        "auth" => match setting.value.to_ascii_uppercase().trim() {
            "MD4" | "MD5" | "RSA-MD5" => Some(Severity::Critical),
            "SHA1" | "SHA" | "RSA-SHA1" => Some(Severity::Notice),
            _ => None,
        },
        "tls-version-min" => {
            let first = setting.words().next();
            matches!(first, Some("1.0" | "1.1")).then_some(Severity::Warning)
        }
        "ncp-disable" => Some(Severity::Warning),
        _ => {
            let is_weak = |word: &str| {
                let cipher = word.trim_start_matches('?').to_ascii_uppercase();
                WEAK.contains(&cipher.split('-').next().unwrap_or_default())
            };
            setting.words().any(is_weak).then_some(Severity::Critical)
        }
    }
}

pub(super) fn weak(facts: &Facts<'_>) -> Option<Finding> {
    let names = &[
        "cipher",
        "data-ciphers",
        "data-ciphers-fallback",
        "auth",
        "tls-version-min",
        "ncp-disable",
    ];
    let weak: Vec<_> = facts
        .settings_named(ConfiguredProgram::Openvpn, names)
        .filter_map(|pair| Some((weakness(pair.1)?, pair)))
        .collect();
    let worst = weak.iter().map(|(severity, _)| *severity).min()?;
    Finding::new(worst)
        .evidence(weak.iter().map(|(_, pair)| quote(*pair)))
        .impact("Ciphers with blocks of 64 bits leak plaintext after a few gigabytes under one key (SWEET32). HMAC \
            with SHA-1 is not broken, but unnecessary: AEAD ciphers need no `auth`, cost less, and are the only \
            ciphers of the kernel data channel.")
        .advise("data-ciphers AES-256-GCM:AES-128-GCM:CHACHA20-POLY1305")
        .advise("tls-version-min 1.2")
        .if_evident()
}

pub(super) fn compression(facts: &Facts<'_>) -> Option<Finding> {
    // `compress migrate`, `compress stub-v2` and `comp-lzo no` compress nothing.
    let compresses = |(_, setting): &(&str, &Setting)| {
        let value = setting.value.trim();
        let harmless = ["no", "migrate", "stub", "stub-v2"].contains(&value)
            || (setting.name == "allow-compression" && value != "yes");
        !harmless
    };
    let names = &["comp-lzo", "compress", "allow-compression"];
    Finding::warning()
        .evidence(facts.settings_named(ConfiguredProgram::Openvpn, names).filter(compresses).map(quote))
        .impact("The sizes of compressed packets reveal their content (VORACLE), most traffic is compressed or \
            encrypted already, and the data channel cannot run in the kernel. OpenVPN 2.7 never sends compressed \
            packets.")
        .advise("On the server: `compress migrate` and no comp-lzo; it switches clients that still ask for \
            compression.")
        .advise("allow-compression no")
        .if_evident()
}

pub(super) fn tap(facts: &Facts<'_>) -> Option<Finding> {
    let devices = facts.settings_named(ConfiguredProgram::Openvpn, &["dev", "dev-type"]);
    Finding::notice()
        .evidence(devices.filter(|(_, setting)| setting.value.starts_with("tap")).map(quote))
        .impact("The kernel data channel supports TUN only. With TAP one process forwards everything: about 1.9 Gbit/s \
            where the kernel reaches 7.8 (datazone.de 2026, Xeon E-2488). Every frame also carries 14 bytes more, and \
            every broadcast is sent.")
        .advise("Use `dev tun` and routes. For several paths: equal-cost routes over tun devices instead of a bond of \
            tap devices.")
        .if_evident()
}

pub(super) fn dco_disabled(facts: &Facts<'_>) -> Option<Finding> {
    Finding::notice()
        .evidence(facts.settings_named(ConfiguredProgram::Openvpn, &["disable-dco"]).map(quote))
        .impact("All packets go through one process: about a fourth of the kernel's throughput (1.91 against 7.84 \
            Gbit/s, datazone.de 2026).")
        .advise("Remove disable-dco. OpenVPN logs other reasons against DCO: fragment, compression, TAP, ciphers \
            without AEAD, topology net30.")
        .if_evident()
}

pub(super) fn user_space(facts: &Facts<'_>) -> Option<Finding> {
    let network = facts.network()?;
    let (module, remedy) = match (network.openvpn.in_tree, network.openvpn.out_of_tree) {
        (true, _) => (
            "ovpn",
            "The kernel's own `ovpn` (Linux 6.16 and later) needs OpenVPN 2.7 or later; 2.6 needs ovpn-dco-v2.",
        ),
        (_, true) => (
            "ovpn-dco-v2",
            "ovpn-dco-v2 needs OpenVPN 2.6; 2.7 and later need the kernel's own `ovpn` (Linux 6.16).",
        ),
        _ => return None,
    };
    let of = |kind| network.interfaces.iter().filter(move |interface| interface.kind == kind);
    if of(InterfaceKind::Ovpn).next().is_some() {
        return None;
    }
    let tunnels: Vec<String> = of(InterfaceKind::Tun)
        .filter(|interface| interface.name.starts_with("tun") || interface.name.starts_with("vtun"))
        .map(|interface| format!("sys/class/net/{}: served by a process", interface.name))
        .collect();
    (!tunnels.is_empty()).then(|| {
        Finding::warning()
            .evidence([format!("the module {module} is loaded")])
            .evidence(tunnels)
            .impact("One process on one core forwards all packets: measured elsewhere 374 Mbit/s against 1230 on the \
                same machine (ovpn-dco #31), 1.91 against 7.84 Gbit/s (datazone.de 2026).")
            .advise(remedy)
            .run("journalctl -u 'openvpn*' | grep -i dco        # shows the reason: disable-dco, compression, \
                fragment, TAP, a cipher without AEAD")
    })
}

/// Sensible seconds between keepalive packets, and until a peer counts as dead.
const PING: std::ops::RangeInclusive<u64> = 5..=60;
const GIVE_UP: std::ops::RangeInclusive<u64> = 20..=300;

pub(super) fn keepalive(facts: &Facts<'_>) -> Option<Finding> {
    let out_of_range = |(_, setting): &(&str, &Setting)| {
        let mut numbers = setting.words().filter_map(|word| word.parse::<u64>().ok());
        let Some(first) = numbers.next() else {
            return false;
        };
        if setting.name == "ping-restart" {
            return !GIVE_UP.contains(&first);
        }
        // The second number is the time until a peer counts as dead: at least three keepalive packets.
        let too_soon = |seconds| !GIVE_UP.contains(&seconds) || seconds < first.saturating_mul(3);
        !PING.contains(&first) || numbers.next().is_some_and(too_soon)
    };
    let names = &["keepalive", "ping", "ping-restart"];
    Finding::notice()
        .evidence(facts.settings_named(ConfiguredProgram::Openvpn, names).filter(out_of_range).map(quote))
        .impact("Too long: a dead peer stays unnoticed for minutes, and NAT forgets the path. Too short: every client \
            wakes the one process. Less than three keepalive packets until a peer counts as dead: one lost packet \
            restarts the tunnel.")
        .advise("keepalive 10 60 on the server, which pushes it to the clients")
        .if_evident()
}
