// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The assembly inside a library. Each assembly module of OpenSSL leaves its title in the file
//! (`AES for Intel AES-NI, CRYPTOGAMS by <appro@openssl.org>`), so the file alone shows which modules are
//! missing, on any architecture.
//!
//! The titles and their versions are those of OpenSSL's `crypto/*/asm/*.pl`, from 1.0.2 to 3.5. A
//! module without title (AES instructions of Arm, P-256 of x86-64, all of MIPS and RISC-V) is judged by a
//! module that is always built with it, or not at all.

use memchr::memmem;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Library, Maker, Slow};
use crate::architecture::Architecture;
use crate::cpu::{Cpu, State};

/// Share of its assembly that a library has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Assembly {
    /// All modules of a full build of this version
    Full,
    /// Some modules are missing
    Partial,
    /// A build without assembly
    None,
    /// Unknown
    Unknown,
}

/// Kind of an algorithm's implementation, the slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModuleLevel {
    /// Compiled from portable C
    Portable,
    /// Assembly, one value at a time
    Assembly,
    /// Vector instructions
    Vectors,
    /// The processor's instructions for this algorithm
    Instructions,
}

impl ModuleLevel {
    /// The displayed name.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Portable => "portable C",
            Self::Assembly => "assembly",
            Self::Vectors => "vectors",
            Self::Instructions => "instructions",
        }
    }
}

/// Implementation of one algorithm in one library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AlgorithmUse {
    /// Name of the algorithm
    pub algorithm: &'static str,
    /// Implementation that runs on these processors; if they are unknown, on the best ones
    pub level: ModuleLevel,
    /// Implementation that would run in a full build
    pub possible: ModuleLevel,
}

/// A module: architecture, algorithm, beginning of its title, level, required feature of the processor (empty for
/// none), first version.
type Row = (Architecture, &'static str, &'static str, ModuleLevel, &'static str, (u32, u32, u32));

const V102: (u32, u32, u32) = (1, 0, 2);
const V110: (u32, u32, u32) = (1, 1, 0);
const V111: (u32, u32, u32) = (1, 1, 1);
const V300: (u32, u32, u32) = (3, 0, 0);

use Architecture::{Aarch64, Arm, Power, S390x, X86, X86_64};
use ModuleLevel::{Assembly as Scalar, Instructions, Vectors};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (X86_64, "AES", "AES for Intel AES-NI", Instructions, "aes-ni", V102),
    (X86_64, "AES", "Vector Permutation AES for x86_64/SSSE3", Vectors, "ssse3", V102),
    (X86_64, "AES-GCM", "GHASH for x86_64", Instructions, "pclmul", V102),
    (X86_64, "AES-GCM", "GHASH for x86_64", Scalar, "", V102),
    (X86_64, "AES-GCM", "AES-NI GCM module for x86_64", Instructions, "aes-ni", V102),
    (X86_64, "ChaCha20", "ChaCha20 for x86_64", Vectors, "", V110),
    (X86_64, "Poly1305", "Poly1305 for x86_64", Vectors, "", V110),
    (X86_64, "SHA-1", "SHA1 block transform for x86_64", Instructions, "sha", V102),
    (X86_64, "SHA-1", "SHA1 block transform for x86_64", Vectors, "", V102),
    (X86_64, "SHA-256", "SHA256 block transform for x86_64", Instructions, "sha", V102),
    (X86_64, "SHA-256", "SHA256 block transform for x86_64", Vectors, "", V102),
    (X86_64, "SHA-512", "SHA512 block transform for x86_64", Vectors, "", V102),
    (X86_64, "SHA-3", "Keccak-1600 absorb and squeeze for x86_64", Scalar, "", V111),
    (X86_64, "RSA, DH", "Montgomery Multiplication for x86_64", Scalar, "", V102),
    (X86_64, "RSA, DH", "Montgomery Multiplication with scatter/gather for x86_64", Scalar, "", V102),
    (X86_64, "X25519", "X25519 primitives for x86_64", Scalar, "", V111),
    (X86, "AES", "AES for Intel AES-NI", Instructions, "aes-ni", V102),
    (X86, "AES", "AES for x86", Scalar, "", V102),
    (X86, "AES-GCM", "GHASH for x86", Instructions, "pclmul", V102),
    (X86, "ChaCha20", "ChaCha20 for x86", Vectors, "", V110),
    (X86, "Poly1305", "Poly1305 for x86", Vectors, "", V110),
    (X86, "SHA-1", "SHA1 block transform for x86", Vectors, "", V102),
    (X86, "SHA-256", "SHA256 block transform for x86", Vectors, "", V102),
    (X86, "SHA-512", "SHA512 block transform for x86", Vectors, "", V102),
    (X86, "RSA, DH", "Montgomery Multiplication for x86", Scalar, "", V102),
    // The module with AES instructions has no title; it is built wherever this one is.
    (Arm, "AES", "GHASH for ARMv8", Instructions, "aes", V102),
    (Arm, "AES", "Bit-sliced AES for NEON", Vectors, "neon", V102),
    (Arm, "AES", "AES for ARMv4", Scalar, "", V102),
    (Arm, "AES-GCM", "GHASH for ARMv8", Instructions, "pmull", V102),
    (Arm, "AES-GCM", "GHASH for ARMv4/NEON", Vectors, "neon", V102),
    (Arm, "Poly1305", "Poly1305 for ARMv4/NEON", Vectors, "neon", V110),
    (Arm, "SHA-1", "SHA1 block transform for ARMv4/NEON/ARMv8", Instructions, "sha1", V102),
    (Arm, "SHA-1", "SHA1 block transform for ARMv4/NEON/ARMv8", Vectors, "neon", V102),
    (Arm, "SHA-1", "SHA1 block transform for ARMv4", Scalar, "", V102),
    (Arm, "SHA-256", "SHA256 block transform for ARMv4/NEON/ARMv8", Instructions, "sha2", V102),
    (Arm, "SHA-256", "SHA256 block transform for ARMv4/NEON/ARMv8", Vectors, "neon", V102),
    (Arm, "SHA-256", "SHA256 block transform for ARMv4", Scalar, "", V102),
    (Arm, "SHA-512", "SHA512 block transform for ARMv4/NEON", Vectors, "neon", V102),
    (Arm, "SHA-3", "Keccak-1600 absorb and squeeze for ARMv4/NEON", Vectors, "neon", V111),
    (Arm, "RSA, DH", "Montgomery multiplication for ARMv4/NEON", Vectors, "neon", V102),
    (Arm, "P-256", "ECP_NISTZ256 for ARMv4", Scalar, "", V110),
    (Aarch64, "AES", "GHASH for ARMv8", Instructions, "aes", V102),
    (Aarch64, "AES", "Vector Permutation AES for ARMv8", Vectors, "asimd", V110),
    (Aarch64, "AES-GCM", "GHASH for ARMv8", Instructions, "pmull", V102),
    (Aarch64, "ChaCha20", "ChaCha20 for ARMv8", Vectors, "asimd", V110),
    (Aarch64, "Poly1305", "Poly1305 for ARMv8", Vectors, "asimd", V110),
    (Aarch64, "SHA-1", "SHA1 block transform for ARMv8", Instructions, "sha1", V102),
    (Aarch64, "SHA-1", "SHA1 block transform for ARMv8", Scalar, "", V102),
    (Aarch64, "SHA-256", "SHA256 block transform for ARMv8", Instructions, "sha2", V102),
    (Aarch64, "SHA-256", "SHA256 block transform for ARMv8", Scalar, "", V102),
    (Aarch64, "SHA-512", "SHA512 block transform for ARMv8", Instructions, "sha512", V111),
    (Aarch64, "SHA-512", "SHA512 block transform for ARMv8", Scalar, "", V102),
    (Aarch64, "SHA-3", "Keccak-1600 absorb and squeeze for ARMv8", Scalar, "", V111),
    (Aarch64, "RSA, DH", "Montgomery Multiplication for ARMv8", Scalar, "", V110),
    (Aarch64, "P-256", "ECP_NISTZ256 for ARMv8", Scalar, "", V110),
    (Power, "AES", "AES for PowerISA 2.07", Instructions, "vcipher", V102),
    (Power, "AES", "AES for PPC", Scalar, "", V102),
    (Power, "AES-GCM", "GHASH for PowerISA 2.07", Instructions, "vcipher", V102),
    (Power, "ChaCha20", "ChaCha20 for PowerPC/AltiVec", Vectors, "", V110),
    (Power, "Poly1305", "Poly1305 for PPC", Scalar, "", V110),
    (Power, "SHA-1", "SHA1 block transform for PPC", Scalar, "", V102),
    (Power, "SHA-256", "SHA256 for PowerISA 2.07", Instructions, "vcipher", V102),
    (Power, "SHA-512", "SHA512 for PowerISA 2.07", Instructions, "vcipher", V102),
    (Power, "RSA, DH", "Montgomery Multiplication for PPC", Scalar, "", V102),
    (S390x, "AES", "AES for s390x", Instructions, "cpacf", V102),
    (S390x, "AES-GCM", "GHASH for s390x", Instructions, "cpacf", V102),
    (S390x, "SHA-1", "SHA1 block transform for s390x", Instructions, "cpacf", V102),
    (S390x, "SHA-256", "SHA256 block transform for s390x", Instructions, "cpacf", V102),
    (S390x, "SHA-512", "SHA512 block transform for s390x", Instructions, "cpacf", V102),
    (S390x, "SHA-3", "Keccak-1600 absorb and squeeze for s390x", Instructions, "cpacf", V111),
    (S390x, "RSA, DH", "Montgomery Multiplication for s390x", Scalar, "", V102),
];

/// Ends of all titles.
const AUTHORS: &[&str] = &[", CRYPTOGAMS by", ", Mike Hamburg"];
/// Bound on titles; the largest build has about fifty.
const MAX_MODULES: usize = 256;
/// Longest title, in bytes: those of OpenSSL 3.0 have at most 56.
const MAX_TITLE: usize = 100;

/// The titles in a file, sorted, each once.
///
/// If titles lie between instructions, the bytes before a title may look like letters of it; known titles are cut free.
pub(super) fn named(bytes: &[u8]) -> Vec<String> {
    let mut titles = Vec::new();
    for author in AUTHORS {
        for at in memmem::find_iter(bytes, author.as_bytes()) {
            let start = at.saturating_sub(MAX_TITLE);
            let printable = |byte: &&u8| byte.is_ascii_graphic() || **byte == b' ';
            let length = bytes[start..at].iter().rev().take_while(printable).count();
            let Ok(title) = std::str::from_utf8(&bytes[at - length..at]) else {
                continue;
            };
            let known = ROWS.iter().find(|row| title.ends_with(row.2));
            titles.push(known.map_or(title, |row| row.2).trim().to_owned());
            if titles.len() >= MAX_MODULES {
                break;
            }
        }
    }
    titles.sort_unstable();
    titles.dedup();
    titles
}

/// The modules that a library of this architecture and version should have.
fn rows(library: &Library) -> impl Iterator<Item = &'static Row> {
    let architecture = library.elf.architecture;
    let identity = library.identity.clone();
    ROWS.iter().filter(move |row| row.0 == architecture && identity.since(row.5))
}

fn has(library: &Library, title: &str) -> bool {
    library.modules.iter().any(|module| module.starts_with(title))
}

/// Share of its assembly that a library has. Only the modules of OpenSSL itself are known well enough.
pub(super) fn assembly(library: &Library) -> Assembly {
    let mut wanted = rows(library).peekable();
    let openssl = library.identity.maker == Maker::OpenSsl;
    if wanted.peek().is_some() && openssl {
        let missing = wanted.any(|(_, _, title, ..)| !has(library, title));
        return match (library.modules.is_empty(), missing) {
            (true, _) => Assembly::None,
            (false, true) => Assembly::Partial,
            (false, false) => Assembly::Full,
        };
    }
    // Since 3.0 every build with assembly can report the processor.
    let silent = library.modules.is_empty() && !library.build.reports_processor;
    if openssl && library.identity.since(V300) && silent {
        return Assembly::None;
    }
    Assembly::Unknown
}

/// Implementation of each algorithm, in the order of the table.
///
/// `ignored` are features of the processor that the library does not use regardless of its modules.
pub(super) fn algorithms(
    library: &Library,
    cpu: Option<&Cpu>,
    ignored: &[&str],
) -> Vec<AlgorithmUse> {
    if library.identity.maker != Maker::OpenSsl {
        return Vec::new();
    }
    let usable = |(.., needs, _): &&Row| {
        let state = cpu.map_or(State::Unknown, |cpu| cpu.state(needs));
        needs.is_empty() || matches!(state, State::Present | State::Unknown)
    };
    let mut algorithms: Vec<AlgorithmUse> = Vec::new();
    for (_, algorithm, title, possible, needs, _) in rows(library).filter(usable) {
        let is_used = has(library, title) && !ignored.contains(needs);
        let level = if is_used { *possible } else { ModuleLevel::Portable };
        match algorithms.iter_mut().find(|known| known.algorithm == *algorithm) {
            Some(known) => {
                known.level = known.level.max(level);
                known.possible = known.possible.max(*possible);
            }
            None => algorithms.push(AlgorithmUse { algorithm, level, possible: *possible }),
        }
    }
    algorithms
}

/// Algorithms that run slower than possible, with the reason.
pub(super) fn slow(library: &Library) -> Vec<Slow> {
    let algorithms = library.algorithms.iter();
    if library.assembly == Assembly::None {
        let all: Vec<&str> = algorithms.map(|used| used.algorithm).collect();
        let (what, why) = match all[..] {
            [] => ("everything".to_owned(), "it cannot report the processor"),
            _ => (all.join(", "), "it has none of the modules of a full build"),
        };
        let evidence = format!("a build without assembly: {why}");
        return vec![Slow { what, evidence }];
    }
    let slower = algorithms.filter(|used| used.level < used.possible);
    let slow = slower.map(|used| {
        let missing: Vec<&str> = rows(library)
            .filter(|(_, algorithm, title, level, ..)| {
                *algorithm == used.algorithm && *level > used.level && !has(library, title)
            })
            .map(|row| row.2)
            .collect();
        Slow {
            what: used.algorithm.to_owned(),
            evidence: format!(
                "it runs as {} instead of {}: the module \"{}\" is missing",
                used.level.words(),
                used.possible.words(),
                missing.join("\", \"")
            ),
        }
    });
    slow.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_separated_from_preceding_bytes() {
        let bytes = b"\0pGGHASH for ARMv8, CRYPTOGAMS by <appro@openssl.org>\0\
            GHASH for ARMv8, CRYPTOGAMS by <appro@openssl.org>\0\
            New thing for ARMv9, CRYPTOGAMS by <appro@openssl.org>\0, CRYPTOGAMS by\0";
        let named: Vec<String> =
            named(bytes).into_iter().filter(|title| !title.is_empty()).collect();
        assert_eq!(named, ["GHASH for ARMv8", "New thing for ARMv9"]);
    }

    #[test]
    fn every_algorithm_of_the_table_can_be_judged_without_features() {
        for row in ROWS {
            assert!(row.5 <= V300 && !row.2.is_empty());
            assert!(row.3 > ModuleLevel::Portable);
        }
    }
}
