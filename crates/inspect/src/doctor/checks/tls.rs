// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS servers: versions, ciphers, kernel TLS.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Setting, Severity, quote};
use crate::libcrypto::{Library, Maker};

/// The settings that name ciphers.
const CIPHERS: [(ConfiguredProgram, &str); 3] = [
    (ConfiguredProgram::Nginx, "ssl_ciphers"),
    (ConfiguredProgram::Haproxy, "ssl-default-bind-ciphers"),
    (ConfiguredProgram::Openssl, "CipherString"),
];

pub(super) fn old_versions(facts: &Facts<'_>) -> Option<Finding> {
    const OLD: &[&str] = &["SSLv2", "SSLv3", "TLSv1", "TLSv1.0", "TLSv1.1"];
    let has = |setting: &Setting| setting.words().any(|word| OLD.contains(&word));
    let nginx = facts
        .settings(ConfiguredProgram::Nginx, "ssl_protocols")
        .filter(|(_, setting)| has(setting));
    let openssl = facts
        .settings(ConfiguredProgram::Openssl, "MinProtocol")
        .filter(|(_, setting)| has(setting) || setting.value == "None");
    let haproxy = facts
        .settings_of(&[
            (ConfiguredProgram::Haproxy, "ssl-default-bind-options"),
            (ConfiguredProgram::Haproxy, "bind"),
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

/// A plugin of certbot runs the server's own test, which reads a stub of the pool with the provider alone.
pub(super) fn certbot(facts: &Facts<'_>) -> Option<Finding> {
    let is_ours = |service: &str| {
        let mut services = facts.system.configured_services.iter();
        services.any(|known| known == service)
    };
    let plugins = facts.settings_of(&[
        (ConfiguredProgram::Certbot, "installer"),
        (ConfiguredProgram::Certbot, "authenticator"),
    ]);
    let tested = plugins.filter(|(_, setting)| match setting.value.as_str() {
        "nginx" => is_ours("nginx"),
        "apache" => is_ours("apache2"),
        _ => false,
    });
    Finding::warning()
        .evidence(tested.filter(|_| !is_ours("certbot")).map(quote))
        .impact(
            "certbot's plugin runs the server's own test of its configuration. Without OPENSSL_CONF that test reads no \
             stub of the pool, so each renewal fails, and the certificate expires.",
        )
        .run("millrace gateway nginx --write        # or apache: writes certbot's drop-in, too")
        .run("systemctl daemon-reload")
        .advise("Where cron starts certbot: OPENSSL_CONF=/etc/millrace/openssl.cnf in its table, or a plugin that is no server's (webroot) and no installer.")
        .advise("certbot's installer may write its own key in place of a stub: `millrace gateway check nginx` names such a line.")
        .if_evident()
}

/// Whether OpenSSL refuses these versions regardless of the server's settings: from 3.0 on they need
/// security level 0.
fn refused_anyway(facts: &Facts<'_>) -> bool {
    let lowered =
        facts.settings_of(&CIPHERS).any(|(_, setting)| setting.value.contains("SECLEVEL=0"));
    let libraries = facts.libraries().map_or(&[][..], |found| &found.libraries);
    let mut openssl =
        libraries.iter().filter(|library| library.identity.maker == Maker::OpenSsl).peekable();
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

/// The settings that name key exchange groups.
const GROUPS: [(ConfiguredProgram, &str); 4] = [
    (ConfiguredProgram::Nginx, "ssl_ecdh_curve"),
    (ConfiguredProgram::Haproxy, "ssl-default-bind-curves"),
    (ConfiguredProgram::Openssl, "Groups"),
    (ConfiguredProgram::Openssl, "Curves"),
];

/// The first OpenSSL that offers a post-quantum group without a setting.
const OFFERS_HYBRID: (u32, u32, u32) = (3, 5, 0);

/// The first OpenSSL for which a provider can bring one.
const TAKES_GROUPS: (u32, u32, u32) = (3, 0, 0);

pub(super) fn no_post_quantum(facts: &Facts<'_>) -> Option<Finding> {
    let nginx = tls_listener(facts, ConfiguredProgram::Nginx, "listen");
    let haproxy = tls_listener(facts, ConfiguredProgram::Haproxy, "bind");
    let server = if nginx.is_some() { "nginx" } else { "haproxy" };
    let listener = nginx.or(haproxy)?;
    let openssl: Vec<_> = facts
        .libraries()?
        .libraries
        .iter()
        .filter(|library| library.identity.maker == Maker::OpenSsl && !library.inside_program)
        .collect();
    let all_since = |version| openssl.iter().all(|library| library.identity.since(version));
    if openssl.is_empty() || !all_since(TAKES_GROUPS) {
        return None;
    }
    let evidence = missing_hybrid(facts, &openssl)?;
    let finding = Finding::notice()
        .evidence([quote(listener)])
        .evidence(evidence)
        .impact(
            "An attacker who records the traffic today can read it once there is a large quantum computer. Two thirds of \
             browser connections offer X25519MLKEM768; this server answers them with X25519.",
        );
    Some(hybrid_remedy(finding, facts, server, all_since(OFFERS_HYBRID)))
}

/// The first setting by which a server listens for TLS, with its file.
fn tls_listener<'a>(
    facts: &Facts<'a>,
    program: ConfiguredProgram,
    name: &'static str,
) -> Option<(&'a str, &'a Setting)> {
    facts.settings(program, name).find(|(_, setting)| setting.words().any(|word| word == "ssl"))
}

/// Evidence that the server offers no post-quantum group; `None` if it offers one.
fn missing_hybrid(facts: &Facts<'_>, openssl: &[&Library]) -> Option<Vec<String>> {
    let hybrid = |(_, setting): &(&str, &Setting)| setting.value.contains("MLKEM768");
    let named = || facts.settings_of(&GROUPS);
    let is_named = named().any(|setting| hybrid(&setting));
    if let Some(list) = named().find(|setting| !hybrid(setting)).filter(|_| !is_named) {
        // A list without it takes it away from every OpenSSL.
        return Some(vec![quote(list)]);
    }
    let old: Vec<String> = openssl
        .iter()
        .filter(|library| !library.identity.since(OFFERS_HYBRID))
        .map(|library| {
            let version = library.identity.version.as_deref().unwrap_or("of unknown version");
            format!("{}: OpenSSL {version} has none", library.path)
        })
        .collect();
    (!is_named && !old.is_empty()).then_some(old)
}

/// Adds the ways to a post-quantum group. `offered`: every OpenSSL of the server has one.
fn hybrid_remedy(finding: Finding, facts: &Facts<'_>, server: &str, offered: bool) -> Finding {
    if offered {
        return finding
            .advise("nginx: ssl_ecdh_curve X25519MLKEM768:X25519:prime256v1; or no such line")
            .advise("HAProxy: ssl-default-bind-curves X25519MLKEM768:X25519:prime256v1, or no such line");
    }
    let provided = facts
        .settings(ConfiguredProgram::Openssl, "local")
        .any(|(_, setting)| setting.value == "on" || setting.value.contains("MLKEM768"));
    let finding = if provided {
        finding.advise(
            "the provider brings the group, and the server's list has to name it: ssl_ecdh_curve or \
             ssl-default-bind-curves X25519MLKEM768:X25519:prime256v1",
        )
    } else {
        finding.run(format!(
            "millrace gateway {server} --local --pq --write        # OpenSSL gets the group from a provider"
        ))
    };
    finding.advise(format!(
        "a misconfiguration falls back silently to X25519: check the negotiated group with \
         millrace gateway check {server}. A server that names the group does not start without the provider: \
         nginx -t needs OPENSSL_CONF=/etc/millrace/openssl.cnf, too"
    ))
}

pub(super) fn ktls_unused(facts: &Facts<'_>) -> Option<Finding> {
    let counters = facts.network()?.ktls.as_ref()?;
    let used = counters.values().any(|count| *count > 0);
    let on = facts
        .settings(ConfiguredProgram::Nginx, "ssl_conf_command")
        .any(|(_, setting)| setting.value.contains("KTLS"));
    let listens = facts
        .settings(ConfiguredProgram::Nginx, "listen")
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
