// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The crypto libraries, and settings that slow them down or break with the next version.

use crate::doctor::{ConfiguredProgram, Facts, Finding, Severity, quote};
use crate::libcrypto::{Assembly, Library, Maker};

/// The library with its version and its users, as evidence.
fn named(library: &Library) -> String {
    let version = library.identity.version.as_deref().unwrap_or("");
    let users: Vec<&str> = library
        .used_by
        .as_deref()
        .unwrap_or_default()
        .iter()
        .map(|user| user.program.as_str())
        .collect();
    let users = match users[..] {
        [] => String::new(),
        _ => format!(" (used by {})", users.join(", ")),
    };
    format!("{}: {} {version}{users}", library.path, library.identity.maker.name())
}

/// The libraries for which `is` holds.
fn libraries<'a>(
    facts: &Facts<'a>,
    is: impl Fn(&Library) -> bool,
) -> impl Iterator<Item = &'a Library> {
    let all = facts.libraries().map_or(&[][..], |found| &found.libraries);
    all.iter().filter(move |library| is(library))
}

pub(super) fn no_assembly(facts: &Facts<'_>) -> Option<Finding> {
    let plain = libraries(facts, |library| library.assembly == Assembly::None);
    Finding::warning()
        .evidence(plain.map(|library| {
            let line = library.build.compiler.as_deref().unwrap_or_default();
            format!("{}; {line}", named(library))
        }))
        .impact(
            "The library uses neither vector nor crypto instructions. On a Cortex-A15 a full build made AES-CBC a \
             third, SHA-512 three times and RSA four times as fast (Andreev, Khlupina 2019); with AES \
             instructions the factor is far larger.",
        )
        .advise("Install a firmware or package built with assembly (OpenWrt: OPENSSL_WITH_ASM=y and OPENSSL_OPTIMIZE_SPEED=y).")
        .advise("Until then: another libcrypto for the one service (LD_LIBRARY_PATH), or a provider with its own assembly.")
        .run("millrace inspect openssl        # module by module")
        .if_evident()
}

pub(super) fn slow(facts: &Facts<'_>) -> Option<Finding> {
    let assembled = libraries(facts, |library| library.assembly != Assembly::None);
    Finding::warning()
        .evidence(assembled.flat_map(|library| {
            let path = &library.path;
            let slow = library.slow.iter();
            slow.map(move |slow| format!("{path}: {}: {}", slow.what, slow.evidence))
        }))
        .impact("Each algorithm named above runs slower than this processor allows.")
        .run("millrace inspect openssl --timed        # measures the difference")
        .advise("Remove the mask, or install a newer or fuller build (-O3 instead of -Os, with the assembly modules).")
        .if_evident()
}

pub(super) fn unsupported(facts: &Facts<'_>) -> Option<Finding> {
    let old = libraries(facts, |library| {
        let identity = &library.identity;
        identity.maker == Maker::OpenSsl && identity.version.is_some() && !identity.since((3, 0, 0))
    });
    Finding::warning()
        .evidence(old.map(named))
        .impact("It gets no public security fixes: OpenSSL 1.1.1 ended on 11 September 2023, 1.0.2 at the end of 2019. Guides to QAT that build 1.1.1 for its engine date from that time.")
        .advise("Use the distribution's OpenSSL 3; for QAT its provider (qatprovider), not its engine.")
        .if_evident()
}

pub(super) fn replaced(facts: &Facts<'_>) -> Option<Finding> {
    let old = libraries(facts, |_| true).flat_map(|library| {
        let users = library.used_by.as_deref().unwrap_or_default();
        users.iter().filter(|user| user.deleted).map(|user| {
            let program = &user.program;
            let count = user.processes;
            let path = &library.path;
            format!("{program} ({count} processes): still maps the earlier {path}")
        })
    });
    Finding::warning()
        .evidence(old)
        .impact("These processes run without the update's fixes and speed-ups.")
        .advise("Restart each service (`systemctl restart SERVICE`); a reload is not enough.")
        .if_evident()
}

pub(super) fn mask(facts: &Facts<'_>) -> Option<Finding> {
    let masks = &facts.libraries()?.masks;
    let one_word =
        masks.iter().any(|mask| mask.variable == "OPENSSL_ia32cap" && !mask.value.contains(':'));
    let finding = Finding::warning()
        .evidence(masks.iter().map(|mask| format!("{}: {}={}", mask.file, mask.variable, mask.value)))
        .impact(if one_word {
            "A mask of one word also zeroes the second: AVX2, AVX-512, BMI, ADX and SHA are off, besides the \
             instructions that it names. Measured on a Cascade Lake: ChaCha20 drops from 1.36 to 0.53 GB/s, \
             SHA-256 from 0.36 to 0.19, AES-256-GCM from 0.17 to 0.10."
        } else {
            "Programs with this environment compute without these instructions."
        })
        .advise("Remove the line and restart the services.")
        .if_evident()?;
    Some(if one_word {
        finding.advise(
            "To compare with a processor without AES-NI: OPENSSL_ia32cap=~0x200000200000000:~0x0",
        )
    } else {
        finding
    })
}

pub(super) fn engine(facts: &Facts<'_>) -> Option<Finding> {
    let names = [
        (ConfiguredProgram::Openssl, "engines"),
        (ConfiguredProgram::Openssl, "engine_id"),
        (ConfiguredProgram::Nginx, "ssl_engine"),
        (ConfiguredProgram::Nginx, "use_engine"),
        (ConfiguredProgram::Haproxy, "ssl-engine"),
        (ConfiguredProgram::Openvpn, "engine"),
    ];
    let without_engines = libraries(facts, |library| {
        library.identity.maker == Maker::OpenSsl && library.identity.since((4, 0, 0))
    });
    let newest: Vec<String> = without_engines.map(named).collect();
    let gone = !newest.is_empty();
    let finding = Finding::new(if gone { Severity::Critical } else { Severity::Notice })
        .title(if gone {
            "an ENGINE is configured, but this OpenSSL has no ENGINEs"
        } else {
            "an ENGINE is configured; OpenSSL 4 has no ENGINEs"
        })
        .evidence(facts.settings_of(&names).map(quote))
        .if_evident()?;
    Some(
        finding
            .evidence(newest)
            .impact(if gone {
                "OpenSSL 4.0 (April 2026) removed ENGINEs: the setting is an error or has no effect, and the \
                 accelerator is not used."
            } else {
                "It works until the system's next release brings OpenSSL 4.0, which has no devcrypto, afalg, padlock \
                 and qatengine."
            })
            .advise("QAT: qatprovider (openssl.cnf, [provider_sect]). AF_ALG and /dev/crypto: kernel_bulk of Millrace's provider, where `millrace bench sizes` shows a gain; else the processor, or the kernel's own data path (DCO, IPsec, WireGuard).")
            .advise("Private keys: a pool (millrace gateway)."),
    )
}
