// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A loaded library's own report of the processor: `openssl version -c` prints the capability words that it uses,
//! and whether the environment changed them.

use millrace_hostfs::Probe;
use schemars::JsonSchema;
use serde::Serialize;

use super::masks::VARIABLES;
use super::{Library, Maker, Slow};
use crate::architecture::Architecture;
use crate::cpu::{Cpu, State};
use crate::section::SectionReader;

/// A library's own report of the processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OwnReport {
    /// The report as printed: `OPENSSL_ia32cap=0x…:0x…`; `N/A` for a build without assembly
    pub processor: String,
    /// The mask from the environment (` env:…`), if there is one
    pub masked_by: Option<String>,
}

/// Programs that print the report of the library that they load.
const PROGRAMS: &[&str] = &["/usr/bin/openssl", "/usr/local/bin/openssl", "/bin/openssl"];

/// Gets the report of a library, if it is OpenSSL's and a program loads it.
pub(super) fn ask(reader: &mut SectionReader<'_>, library: &Library) -> Option<OwnReport> {
    let loadable =
        library.elf.soname.as_deref().is_some_and(|name| name.starts_with("libcrypto.so"));
    if library.identity.maker != Maker::OpenSsl || !library.identity.since((3, 0, 0)) || !loadable {
        return None;
    }
    let program = PROGRAMS.iter().find(|program| reader.exists(program))?;
    let folder = format!("/{}", library.path.rsplit_once('/')?.0);
    // The report is made with the masks of this process's environment.
    let ours: Vec<(&str, String)> =
        VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?))).collect();
    let mut environment: Vec<(&str, &str)> =
        ours.iter().map(|(name, value)| (*name, value.as_str())).collect();
    environment.push(("LD_LIBRARY_PATH", &folder));
    let what = format!("{program} version, with {}", library.path);
    let answer = reader.ask(&Probe {
        name: format!("openssl-version-{}.txt", library.path.replace('/', "-")),
        what: &what,
        program,
        arguments: &["version", "-v", "-c"],
        environment: &environment,
    })?;
    // The loader may have found another library of the same name first.
    let version = library.identity.version.as_deref()?;
    let loaded = format!("Library: OpenSSL {version} ");
    answer.contains(&loaded).then(|| parse(&answer)).flatten()
}

/// `CPUINFO: OPENSSL_ia32cap=0x…:0x… env:~0x…`
fn parse(answer: &str) -> Option<OwnReport> {
    let line = answer.lines().find_map(|line| line.strip_prefix("CPUINFO: "))?;
    let (processor, masked_by) = match line.split_once(" env:") {
        Some((processor, mask)) => (processor, Some(mask.trim().to_owned())),
        None => (line, None),
    };
    Some(OwnReport { processor: processor.trim().to_owned(), masked_by })
}

/// A feature, its word, and its bit in the word.
type Bit = (&'static str, usize, u32);

/// `OPENSSL_ia32cap(3)`: words of CPUID leaf 1 (EDX, then ECX) and leaf 7 (EBX, then ECX).
const IA32: &[Bit] = &[
    ("aes-ni", 0, 57),
    ("pclmul", 0, 33),
    ("ssse3", 0, 41),
    ("avx", 0, 60),
    ("avx2", 1, 5),
    ("bmi2", 1, 8),
    ("avx512f", 1, 16),
    ("adx", 1, 19),
    ("avx512ifma", 1, 21),
    ("sha", 1, 29),
    ("vaes", 1, 41),
    ("vpclmul", 1, 42),
];

/// `include/crypto/arm_arch.h`.
const ARM: &[Bit] = &[
    ("neon", 0, 0),
    ("asimd", 0, 0),
    ("aes", 0, 2),
    ("sha1", 0, 3),
    ("sha2", 0, 4),
    ("pmull", 0, 5),
    ("sha512", 0, 6),
];

impl OwnReport {
    /// `OPENSSL_ia32cap` in 64-bit words, the first one first.
    fn words(&self) -> Vec<u64> {
        let Some((_, words)) = self.processor.split_once('=') else {
            return Vec::new();
        };
        // `0x…:0x…`; the library reads a malformed word as 0.
        const MAX_WORDS: usize = 8;
        let word =
            |word: &str| u64::from_str_radix(word.trim().trim_start_matches("0x"), 16).unwrap_or(0);
        words.split(':').take(MAX_WORDS).map(word).collect()
    }

    /// Features of the processor that the library does not use.
    pub(super) fn ignored(&self, architecture: Architecture, cpu: &Cpu) -> Vec<&'static str> {
        let bits = match architecture {
            Architecture::X86_64 | Architecture::X86 => IA32,
            Architecture::Arm | Architecture::Aarch64 => ARM,
            _ => return Vec::new(),
        };
        let words = self.words();
        if words.is_empty() {
            return Vec::new();
        }
        let ignored = bits.iter().filter(|(feature, word, bit)| {
            let taken = words.get(*word).is_some_and(|word| word >> bit & 1 == 1);
            cpu.state(feature) == State::Present && !taken
        });
        ignored.map(|(feature, ..)| *feature).collect()
    }

    /// The reason for slowness that these ignored features cause.
    pub(super) fn slow(&self, ignored: &[&str]) -> Option<Slow> {
        let why = match &self.masked_by {
            Some(mask) => format!("the environment masks it: env:{mask}"),
            None => "it reports the processor without".to_owned(),
        };
        (!ignored.is_empty()).then(|| Slow {
            what: format!("what uses {}", ignored.join(", ")),
            evidence: format!("{why} ({})", self.processor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Feature;

    fn cpu(features: &[&'static str]) -> Cpu {
        Cpu {
            features: features
                .iter()
                .map(|name| Feature { name, state: State::Present, serves: "" })
                .collect(),
            ..Cpu::default()
        }
    }

    fn ignored(answer: &str, architecture: Architecture, features: &[&'static str]) -> Vec<String> {
        let report = parse(answer).unwrap();
        let slow = report.slow(&report.ignored(architecture, &cpu(features)));
        slow.into_iter().map(|slow| slow.what).collect()
    }

    #[test]
    fn full_report_ignores_nothing() {
        let answer =
            "OpenSSL 3.0.22\nCPUINFO: OPENSSL_ia32cap=0xfffa3203078bffff:0x405fc6f1bf07ab\n";
        let all: Vec<&str> = IA32.iter().map(|(feature, ..)| *feature).collect();
        assert_eq!(ignored(answer, Architecture::X86_64, &all), Vec::<String>::new());
    }

    /// The mask that guides call "without AES-NI" has one word and also zeroes the second one.
    #[test]
    fn popular_mask_switches_off_more_than_it_says() {
        let answer = "CPUINFO: OPENSSL_ia32cap=0xfdfa3201078bffff:0x0 env:~0x200000200000000\n";
        let what =
            ignored(answer, Architecture::X86_64, &["aes-ni", "pclmul", "avx2", "sha", "avx"]);
        assert_eq!(what, ["what uses aes-ni, pclmul, avx2, sha"]);
        assert_eq!(parse(answer).unwrap().masked_by.as_deref(), Some("~0x200000200000000"));
    }

    #[test]
    fn arm_reports_one_word() {
        let what =
            ignored("CPUINFO: OPENSSL_armcap=0x1\n", Architecture::Aarch64, &["asimd", "aes"]);
        assert_eq!(what, ["what uses aes"]);
        assert!(ignored("CPUINFO: N/A\n", Architecture::Arm, &["neon"]).is_empty());
        assert!(ignored("CPUINFO: OPENSSL_armcap=junk\n", Architecture::Arm, &["neon"]).len() == 1);
    }
}
