// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Compressed responses of nginx.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Setting, quote};

/// Least level at which zlib takes half as long again, or more, for output that is less than 1 % shorter
/// (`docs/benchmarks/compression.md`).
const COSTLY_LEVEL: u64 = 7;

fn is_on((_, setting): &(&str, &Setting)) -> bool {
    setting.value == "on"
}

/// Settings that switch compression on.
fn compresses<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (&'a str, &'a Setting)> + use<'a> {
    facts.settings(ConfiguredProgram::Nginx, "gzip").filter(is_on)
}

/// Whether nginx has a setting of this name.
fn has(facts: &Facts<'_>, name: &'static str) -> bool {
    facts.settings(ConfiguredProgram::Nginx, name).next().is_some()
}

pub(super) fn secrets(facts: &Facts<'_>) -> Option<Finding> {
    let excepts =
        facts.settings(ConfiguredProgram::Nginx, "gzip").any(|(_, setting)| setting.value == "off");
    let tls = facts
        .settings(ConfiguredProgram::Nginx, "listen")
        .find(|(_, setting)| setting.words().any(|word| word == "ssl"))?;
    let switch = compresses(facts).next().filter(|_| !excepts)?;
    Some(
        Finding::notice()
            .evidence([quote(switch), quote(tls)])
            .impact(
                "Where one response holds a secret and text that an attacker chooses (a CSRF token beside a search \
                 word), its length reveals the secret, guess by guess (BREACH), with any compressor. TLS does not hide lengths.",
            )
            .advise("location of such pages { gzip off; }")
            .advise("or let the application mask its tokens again for each response"),
    )
}

pub(super) fn level(facts: &Facts<'_>) -> Option<Finding> {
    let costly = facts
        .settings(ConfiguredProgram::Nginx, "gzip_comp_level")
        .filter(|(_, setting)| setting.number().is_some_and(|level| level >= COSTLY_LEVEL));
    Finding::notice()
        .evidence(costly.map(quote))
        .impact(
            "Level 9 takes 1.5 to 1.9 times as long as level 6 (measured: docs/benchmarks/compression.md) for output \
             that is less than 1 % shorter; level 1 takes a quarter of the time of level 6.",
        )
        .advise("gzip_comp_level 1; for responses, at most 6")
        .run("millrace bench compression        # measures the levels here")
        .if_evident()
}

pub(super) fn vary(facts: &Facts<'_>) -> Option<Finding> {
    let varies =
        facts.settings(ConfiguredProgram::Nginx, "gzip_vary").any(|setting| is_on(&setting));
    let switch = compresses(facts).next().filter(|_| !varies)?;
    Some(
        Finding::notice()
            .evidence([quote(switch), "no `gzip_vary on`".to_owned()])
            .impact(
                "A cache between nginx and its clients may send a compressed response to a client that cannot read \
                 it, or plain ones to all.",
            )
            .advise("http { gzip_vary on; }"),
    )
}

pub(super) fn types(facts: &Facts<'_>) -> Option<Finding> {
    let switch = compresses(facts).next().filter(|_| !has(facts, "gzip_types"))?;
    Some(
        Finding::notice()
            .evidence([quote(switch), "no `gzip_types`".to_owned()])
            .impact(
                "nginx compresses text/html alone: JSON, JavaScript, CSS and SVG are sent uncompressed, three to five \
                 times as long.",
            )
            .advise(
                "http { gzip_types text/css text/javascript text/plain text/xml application/javascript \
                 application/json application/xml image/svg+xml; }",
            ),
    )
}
