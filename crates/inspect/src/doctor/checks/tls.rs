// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS servers: versions, ciphers, kernel TLS.

use super::super::{Facts, Finding, Program, Setting, Severity, quote};
use crate::libcrypto::Maker;

/// The settings that name ciphers.
const CIPHERS: [(Program, &str); 3] = [
    (Program::Nginx, "ssl_ciphers"),
    (Program::Haproxy, "ssl-default-bind-ciphers"),
    (Program::Openssl, "CipherString"),
];

pub(super) fn old_versions(facts: &Facts<'_>) -> Option<Finding> {
    const OLD: &[&str] = &["SSLv2", "SSLv3", "TLSv1", "TLSv1.0", "TLSv1.1"];
    let has = |setting: &Setting| setting.words().any(|word| OLD.contains(&word));
    let nginx = facts
        .settings(Program::Nginx, "ssl_protocols")
        .filter(|(_, setting)| has(setting));
    let openssl = facts
        .settings(Program::Openssl, "MinProtocol")
        .filter(|(_, setting)| has(setting) || setting.value == "None");
    let haproxy = facts
        .settings_of(&[
            (Program::Haproxy, "ssl-default-bind-options"),
            (Program::Haproxy, "bind"),
        ])
        .filter(|(_, setting)| {
            let mut words = setting.value.split_whitespace();
            let least = words.any(|word| word == "ssl-min-ver");
            least && words.next().is_some_and(|word| OLD.contains(&word))
        });
    let refused = refused_anyway(facts);
    Finding::new(if refused { Severity::Notice } else { Severity::Warning })
        .evidence(nginx.chain(openssl).chain(haproxy).map(quote))
        .impact(if refused {
            "TLS 1.0 and 1.1 rest on MD5 and SHA-1 (RFC 8996 forbids them). OpenSSL 3 refuses them at its default \
             security level, so the line misleads more than it harms, until that level is lowered."
        } else {
            "TLS 1.0 and 1.1 rest on MD5 and SHA-1 (RFC 8996 forbids them); SSL is broken. Browsers have refused all \
             of them since 2020."
        })
        .advise("nginx: ssl_protocols TLSv1.2 TLSv1.3;")
        .advise("HAProxy: ssl-default-bind-options ssl-min-ver TLSv1.2")
        .if_evident()
}

/// Whether OpenSSL refuses these versions regardless of the server's settings: from 3.0 on they need
/// security level 0.
fn refused_anyway(facts: &Facts<'_>) -> bool {
    let lowered = facts
        .settings_of(&CIPHERS)
        .any(|(_, setting)| setting.value.contains("SECLEVEL=0"));
    let libraries = facts.libraries().map_or(&[][..], |found| &found.libraries);
    let mut openssl = libraries
        .iter()
        .filter(|library| library.identity.maker == Maker::OpenSsl)
        .peekable();
    !lowered && openssl.peek().is_some() && openssl.all(|library| library.identity.since((3, 0, 0)))
}

pub(super) fn weak_ciphers(facts: &Facts<'_>) -> Option<Finding> {
    const WEAK: &[&str] = &[
        "RC4", "3DES", "DES", "MD5", "NULL", "EXPORT", "EXP", "ANULL", "ENULL", "IDEA", "SEED",
        "ADH", "AECDH", "LOW",
    ];
    let offers = |(_, setting): &(&str, &Setting)| {
        let mut entries = setting.value.split([':', ',', ' ']);
        entries.any(|entry| {
            let excluded = entry.starts_with(['!', '-']);
            let entry = entry.trim_start_matches('+').to_ascii_uppercase();
            !excluded && entry.split(['-', '+']).any(|part| WEAK.contains(&part))
        })
    };
    Finding::critical()
        .evidence(facts.settings_of(&CIPHERS).filter(offers).map(quote))
        .impact("RC4 and NULL protect nothing, 3DES and IDEA leak plaintext after a few gigabytes (SWEET32), and anyone on the path can break export ciphers and ciphers without authentication.")
        .run("millrace advise tls        # prints lines for nginx and HAProxy")
        .if_evident()
}

pub(super) fn ktls_unused(facts: &Facts<'_>) -> Option<Finding> {
    let counters = facts.network()?.ktls.as_ref()?;
    let used = counters.values().any(|count| *count > 0);
    let on = facts
        .settings(Program::Nginx, "ssl_conf_command")
        .any(|(_, setting)| setting.value.contains("KTLS"));
    let listens = facts
        .settings(Program::Nginx, "listen")
        .find(|(_, setting)| setting.words().any(|word| word == "ssl"))?;
    (!used && !on).then(|| {
        Finding::notice()
            .evidence(["proc/net/tls_stat: all counters 0".to_owned()])
            .evidence([quote(listens), "no `ssl_conf_command Options KTLS`".to_owned()])
            .impact("Files are copied from the disk through nginx and OpenSSL to the socket; with kernel TLS, sendfile() needs neither copy. Small answers gain nothing.")
            .advise("http { ssl_conf_command Options KTLS; sendfile on; } (nginx 1.21.4, OpenSSL 3 built with enable-ktls)")
            .run("millrace bench tls        # measures the gain here")
    })
}
