// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS servers: versions, ciphers, kernel TLS.

use super::super::{Facts, Found, Program, Setting, quote};
use crate::libcrypto::Maker;

pub(super) fn old_versions(facts: &Facts<'_>) -> Option<Found> {
    const OLD: &[&str] = &["SSLv2", "SSLv3", "TLSv1", "TLSv1.0", "TLSv1.1"];
    let has = |setting: &Setting| setting.words().any(|word| OLD.contains(&word));
    let nginx = facts
        .settings(Program::Nginx, "ssl_protocols")
        .filter(|(_, setting)| has(setting));
    let openssl = facts
        .settings(Program::Openssl, "MinProtocol")
        .filter(|(_, setting)| has(setting) || setting.value == "None");
    let haproxy = ["ssl-default-bind-options", "bind"]
        .into_iter()
        .flat_map(|name| facts.settings(Program::Haproxy, name))
        .filter(|(_, setting)| {
            let mut words = setting.value.split_whitespace();
            let least = words.any(|word| word == "ssl-min-ver");
            least && words.next().is_some_and(|word| OLD.contains(&word))
        });
    let seen: Vec<String> = nginx.chain(openssl).chain(haproxy).map(quote).collect();
    if seen.is_empty() {
        return None;
    }
    let refused = refused_anyway(facts);
    let title = "a server is set to versions of TLS that are not safe";
    let found = if refused {
        Found::notice(title)
    } else {
        Found::warning(title)
    };
    Some(
        found
            .seen(seen)
            .means(if refused {
                "TLS 1.0 and 1.1 rest on MD5 and SHA-1 (RFC 8996 forbids them). OpenSSL 3 refuses them at its \
                 default security level, so the line misleads more than it harms; the next one who lowers the \
                 level gets them."
            } else {
                "TLS 1.0 and 1.1 rest on MD5 and SHA-1 (RFC 8996 forbids them), SSL is broken. Browsers refuse \
                 all of them since 2020."
            })
            .fix("nginx: ssl_protocols TLSv1.2 TLSv1.3;")
            .fix("HAProxy: ssl-default-bind-options ssl-min-ver TLSv1.2"),
    )
}

/// Whether OpenSSL refuses these versions whatever the server asks for: from 3.0 on they need security
/// level 0.
fn refused_anyway(facts: &Facts<'_>) -> bool {
    let lowered = [
        (Program::Nginx, "ssl_ciphers"),
        (Program::Haproxy, "ssl-default-bind-ciphers"),
        (Program::Openssl, "CipherString"),
    ]
    .into_iter()
    .flat_map(|(program, name)| facts.settings(program, name))
    .any(|(_, setting)| setting.value.contains("SECLEVEL=0"));
    let libraries = facts.libraries().map_or(&[][..], |found| &found.libraries);
    let mut openssl = libraries
        .iter()
        .filter(|library| library.identity.maker == Maker::OpenSsl)
        .peekable();
    !lowered && openssl.peek().is_some() && openssl.all(|library| library.identity.since((3, 0, 0)))
}

pub(super) fn weak_ciphers(facts: &Facts<'_>) -> Option<Found> {
    const WEAK: &[&str] = &[
        "RC4", "3DES", "DES", "MD5", "NULL", "EXPORT", "EXP", "ANULL", "ENULL", "IDEA", "SEED",
        "ADH", "AECDH", "LOW",
    ];
    let offers = |setting: &Setting| {
        let mut entries = setting.value.split([':', ',', ' ']);
        entries.any(|entry| {
            let excluded = entry.starts_with(['!', '-']);
            let entry = entry.trim_start_matches('+').to_ascii_uppercase();
            !excluded && entry.split(['-', '+']).any(|part| WEAK.contains(&part))
        })
    };
    let seen: Vec<String> = [
        (Program::Nginx, "ssl_ciphers"),
        (Program::Haproxy, "ssl-default-bind-ciphers"),
        (Program::Openssl, "CipherString"),
    ]
    .into_iter()
    .flat_map(|(program, name)| facts.settings(program, name))
    .filter(|(_, setting)| offers(setting))
    .map(quote)
    .collect();
    (!seen.is_empty()).then(|| {
        Found::critical("a server offers ciphers that are not safe")
            .seen(seen)
            .means("RC4 and NULL protect nothing, 3DES and IDEA give away plaintext after some gigabytes (SWEET32), export ciphers and those without authentication fall to anybody on the path.")
            .fix("millrace advise tls        # lines for nginx and HAProxy")
    })
}

pub(super) fn ktls_unused(facts: &Facts<'_>) -> Option<Found> {
    let counters = facts.network()?.ktls.as_ref()?;
    let used = counters.values().any(|count| *count > 0);
    let on = facts
        .settings(Program::Nginx, "ssl_conf_command")
        .any(|(_, setting)| setting.value.contains("KTLS"));
    let listens = facts
        .settings(Program::Nginx, "listen")
        .find(|(_, setting)| setting.words().any(|word| word == "ssl"))?;
    (!used && !on).then(|| {
        Found::notice("kernel TLS is there and nginx does not use it")
            .seen(["proc/net/tls_stat: all counters 0".to_owned()])
            .seen([quote(listens), "no `ssl_conf_command Options KTLS`".to_owned()])
            .means("Files go from the disk through nginx and OpenSSL to the socket; with kernel TLS sendfile() needs neither copy. Small answers gain nothing.")
            .fix("http { ssl_conf_command Options KTLS; sendfile on; }        # nginx 1.21.4, OpenSSL 3 built with enable-ktls")
            .fix("millrace bench tls measures what it gives here")
    })
}
