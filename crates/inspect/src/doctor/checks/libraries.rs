// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The crypto libraries, and settings that slow them down or break with the next version.

use super::super::{Facts, Found, Program};
use crate::libcrypto::{Assembly, Library, Maker};

fn used(library: &Library) -> String {
    let users = library.used_by.as_deref().unwrap_or_default();
    if users.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = users.iter().map(|user| user.program.as_str()).collect();
    format!(" (used by {})", names.join(", "))
}

fn named(library: &Library) -> String {
    let version = library.identity.version.as_deref().unwrap_or("");
    format!(
        "{}: {} {version}{}",
        library.path,
        library.identity.maker.name(),
        used(library)
    )
}

pub(super) fn no_assembly(facts: &Facts<'_>) -> Option<Found> {
    let plain: Vec<&Library> = facts
        .libraries()?
        .libraries
        .iter()
        .filter(|library| library.assembly == Assembly::None)
        .collect();
    if plain.is_empty() {
        return None;
    }
    Some(
        Found::warning("a crypto library is built without assembly")
            .seen(plain.iter().map(|library| {
                let line = library.build.compiler.as_deref().unwrap_or_default();
                format!("{}; {line}", named(library))
            }))
            .means(
                "Neither vector nor crypto instructions are used. On a Cortex-A15 a full build made AES-CBC a \
                 third, SHA-512 three times and RSA four times as fast (Andreev, Khlupina 2019); with AES \
                 instructions the factor is far larger.",
            )
            .fix("a firmware or package built with assembly (OpenWrt: OPENSSL_WITH_ASM=y and OPENSSL_OPTIMIZE_SPEED=y)")
            .fix("until then: another libcrypto for the one service (LD_LIBRARY_PATH), or a provider that brings its own assembly")
            .fix("millrace inspect openssl        # module by module"),
    )
}

pub(super) fn slow(facts: &Facts<'_>) -> Option<Found> {
    let slow: Vec<String> = facts
        .libraries()?
        .libraries
        .iter()
        .filter(|library| library.assembly != Assembly::None)
        .flat_map(|library| {
            library
                .slow
                .iter()
                .map(move |slow| format!("{}: {}: {}", library.path, slow.what, slow.evidence))
        })
        .collect();
    (!slow.is_empty()).then(|| {
        Found::warning("a crypto library is slower than this processor")
            .seen(slow)
            .means("Each algorithm that is named runs in a slower form than the processor has.")
            .fix("millrace inspect openssl --timed        # how much it is, measured")
            .fix("take the mask away, or install a newer or fuller build (-O3, no -Os, assembly modules present)")
    })
}

pub(super) fn unsupported(facts: &Facts<'_>) -> Option<Found> {
    let old: Vec<String> = facts
        .libraries()?
        .libraries
        .iter()
        .filter(|library| library.identity.maker == Maker::OpenSsl)
        .filter(|library| library.identity.version.is_some() && !library.identity.since((3, 0, 0)))
        .map(named)
        .collect();
    (!old.is_empty()).then(|| {
        Found::warning("an OpenSSL is installed that gets no public security fixes")
            .seen(old)
            .means("OpenSSL 1.1.1 ended on 11 September 2023, 1.0.2 at the end of 2019. Guides to QAT that build 1.1.1 for its engine are of that time.")
            .fix("OpenSSL 3 of the distribution; for QAT its provider (qatprovider), not its engine")
    })
}

pub(super) fn replaced(facts: &Facts<'_>) -> Option<Found> {
    let libraries = &facts.libraries()?.libraries;
    let old: Vec<String> = libraries
        .iter()
        .flat_map(|library| {
            let users = library.used_by.as_deref().unwrap_or_default();
            let old = users.iter().filter(|user| user.deleted);
            old.map(move |user| {
                let (program, count) = (&user.program, user.processes);
                format!(
                    "{program} ({count} processes): has {} of before",
                    library.path
                )
            })
        })
        .collect();
    (!old.is_empty()).then(|| {
        Found::warning("a server runs with a crypto library that was replaced since")
            .seen(old)
            .means("What the update repaired is not repaired in these processes, and what it sped up is not sped up.")
            .fix("systemctl restart SERVICE        # a reload is not enough")
    })
}

pub(super) fn mask(facts: &Facts<'_>) -> Option<Found> {
    let masks = &facts.libraries()?.masks;
    if masks.is_empty() {
        return None;
    }
    let one_word = masks
        .iter()
        .any(|mask| mask.variable == "OPENSSL_ia32cap" && !mask.value.contains(':'));
    let found = Found::warning("instructions are masked for services")
        .seen(
            masks
                .iter()
                .map(|mask| format!("{}: {}={}", mask.file, mask.variable, mask.value)),
        )
        .means(if one_word {
            "A mask of one word also zeroes the second: AVX2, AVX-512, BMI, ADX and SHA are off as well as \
             what it names. Measured on a Cascade Lake: ChaCha20 1.36 to 0.53 GB/s, SHA-256 0.36 to 0.19, \
             AES-256-GCM 0.17 to 0.10."
        } else {
            "Programs that get this environment compute without these instructions."
        });
    let found = found.fix("remove the line, and restart the services");
    Some(if one_word {
        found.fix("if it is meant as a comparison without AES-NI: OPENSSL_ia32cap=~0x200000200000000:~0x0")
    } else {
        found
    })
}

pub(super) fn engine(facts: &Facts<'_>) -> Option<Found> {
    let lines: Vec<String> = [
        (Program::Openssl, "engines"),
        (Program::Openssl, "engine_id"),
        (Program::Nginx, "ssl_engine"),
        (Program::Nginx, "use_engine"),
        (Program::Haproxy, "ssl-engine"),
        (Program::Openvpn, "engine"),
    ]
    .into_iter()
    .flat_map(|(program, name)| facts.settings(program, name))
    .map(super::super::quote)
    .collect();
    if lines.is_empty() {
        return None;
    }
    let newest: Vec<String> = facts
        .libraries()
        .map_or(&[][..], |libraries| &libraries.libraries)
        .iter()
        .filter(|library| {
            library.identity.maker == Maker::OpenSsl && library.identity.since((4, 0, 0))
        })
        .map(named)
        .collect();
    let gone = !newest.is_empty();
    let found = if gone {
        Found::critical("an ENGINE is configured, and this OpenSSL has none")
    } else {
        Found::notice("an ENGINE is configured, which OpenSSL 4 does not have")
    };
    Some(
        found
            .seen(lines)
            .seen(newest)
            .means(if gone {
                "OpenSSL 4.0 (April 2026) removed ENGINE: the setting is an error or has no effect, and the \
                 accelerator is not used."
            } else {
                "It works until OpenSSL 4.0 comes with the next release of the system; then devcrypto, afalg, \
                 padlock and qatengine are gone."
            })
            .fix("QAT: qatprovider (openssl.cnf, [provider_sect]); AF_ALG and /dev/crypto have no provider: use the processor, or the kernel's own data path (DCO, IPsec, WireGuard)")
            .fix("private keys: a pool (millrace gateway)"),
    )
}
