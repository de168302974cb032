// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `/proc/cpuinfo` of any architecture. Architectures use different words for the same facts, and the words
//! identify the architecture.
//!
//! A pure parser: text in, facts out. It accepts any text and returns the facts that it recognises.

use std::collections::{BTreeMap, BTreeSet};

use crate::architecture::Architecture;

/// Bound on processors; the largest machine that Linux supports has 8,192.
const MAX_PROCESSORS: usize = 8_192;

/// The content of a `/proc/cpuinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuInfo {
    /// The architecture that uses these words.
    pub architecture: Option<Architecture>,
    /// Logical processors.
    pub processors: usize,
    /// Physical cores, if the text gives them.
    pub cores: Option<usize>,
    /// Sockets, if the text gives them.
    pub sockets: Option<usize>,
    /// Instruction-set extensions that every processor has.
    pub flags: BTreeSet<String>,
    /// Extensions that only some processors have (big and little cores).
    pub some_flags: BTreeSet<String>,
    /// All other fields; of fields that every processor has, the first processor's.
    fields: BTreeMap<String, String>,
}

impl CpuInfo {
    /// Parses the text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut blocks = 0_usize;
        let mut fields = BTreeMap::new();
        let mut flags: Option<BTreeSet<String>> = None;
        let mut all_flags = BTreeSet::new();
        let mut topology = Topology::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(':') else {
                continue;
            };
            let name = name.trim();
            let value = value.trim();
            // s390x has "processor 0: version = …", one line each.
            if name == "processor" || name.starts_with("processor ") {
                blocks += 1;
            }
            if blocks > MAX_PROCESSORS {
                break;
            }
            if is_flags(name) {
                if name == "isa" {
                    fields.entry("isa-string".to_owned()).or_insert_with(|| value.to_owned());
                }
                let these = words(name, value);
                all_flags.extend(these.iter().cloned());
                flags = Some(match flags {
                    Some(flags) => flags.intersection(&these).cloned().collect(),
                    None => these,
                });
                continue;
            }
            topology.see(name, value);
            fields.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
        let flags = flags.unwrap_or_default();
        let mut info = Self {
            architecture: None,
            processors: blocks.min(MAX_PROCESSORS),
            cores: topology.cores(),
            sockets: topology.sockets(),
            some_flags: all_flags.difference(&flags).cloned().collect(),
            flags,
            fields,
        };
        info.settle();
        info
    }

    /// A field's value; the first processor's, where each has one.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A field that is a number, decimal or `0x…`.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        let value = self.field(name)?;
        match value.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    }

    /// Facts that need the whole text: the architecture, and quirks of some architectures.
    fn settle(&mut self) {
        self.architecture = self.guess();
        match self.architecture {
            // Old 32-bit kernels say "Processor: ARMv7 …" once, and number the cores below it.
            Some(Architecture::Arm)
                if self.field("Processor").is_some() && self.processors == 0 =>
            {
                self.processors = 1;
            }
            Some(Architecture::S390x) => {
                let told =
                    self.number("# processors").and_then(|count| usize::try_from(count).ok());
                self.processors = told.unwrap_or(self.processors).min(MAX_PROCESSORS);
            }
            _ => {}
        }
    }

    fn guess(&self) -> Option<Architecture> {
        let has = |name: &str| self.field(name).is_some();
        let flag = |name: &str| self.flags.contains(name) || self.some_flags.contains(name);
        if self.field("vendor_id").is_some_and(|vendor| vendor.contains("S390")) {
            return Some(Architecture::S390x);
        }
        if has("CPU implementer") || has("Processor") {
            let wide = flag("asimd") || self.field("CPU architecture") == Some("AArch64");
            return Some(if wide { Architecture::Aarch64 } else { Architecture::Arm });
        }
        if has("vendor_id") || has("cpu family") {
            return Some(if flag("lm") { Architecture::X86_64 } else { Architecture::X86 });
        }
        if let Some(isa) = self.field("isa-string") {
            let narrow = isa.starts_with("rv32");
            return Some(if narrow { Architecture::Riscv32 } else { Architecture::Riscv64 });
        }
        if self.field("CPU Family").is_some_and(|family| family.contains("Loongson")) {
            return Some(Architecture::Loongarch64);
        }
        if self.field("cpu model").is_some() && (has("ASEs implemented") || has("system type")) {
            return Some(Architecture::Mips);
        }
        if self.field("cpu").is_some_and(|cpu| cpu.contains("POWER") || cpu.contains("PPC")) {
            return Some(Architecture::Power);
        }
        None
    }
}

/// Whether a field lists extensions.
fn is_flags(name: &str) -> bool {
    matches!(name, "flags" | "Features" | "features" | "isa" | "hart isa" | "ASEs implemented")
}

/// The extensions that a field lists; for RISC-V also the string itself as a field.
fn words(name: &str, value: &str) -> BTreeSet<String> {
    if name == "isa" || name == "hart isa" {
        return riscv(value);
    }
    value.split_ascii_whitespace().map(str::to_owned).collect()
}

/// `rv64imafdcv_zicsr_zkne`: single letters first, then names.
fn riscv(isa: &str) -> BTreeSet<String> {
    let mut parts = isa.split('_');
    let base = parts.next().unwrap_or_default();
    let letters = base
        .get(4..)
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_alphabetic)
        .map(String::from);
    letters
        .chain(parts.map(|part| part.trim().to_owned()))
        .filter(|part| !part.is_empty())
        .collect()
}

/// Cores and sockets, from the numbers that x86 gives with every processor.
#[derive(Default)]
struct Topology {
    package: String,
    packages: BTreeSet<String>,
    cores: BTreeSet<(String, String)>,
}

impl Topology {
    fn see(&mut self, name: &str, value: &str) {
        match name {
            "physical id" => {
                self.package = value.to_owned();
                self.packages.insert(value.to_owned());
            }
            "core id" => {
                self.cores.insert((self.package.clone(), value.to_owned()));
            }
            _ => {}
        }
    }

    fn cores(&self) -> Option<usize> {
        Some(self.cores.len()).filter(|cores| *cores > 0)
    }

    fn sockets(&self) -> Option<usize> {
        Some(self.packages.len()).filter(|sockets| *sockets > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(info: &CpuInfo) -> Vec<&str> {
        info.flags.iter().map(String::as_str).collect()
    }

    #[test]
    fn words_of_cpuinfo_give_the_architecture() {
        let cases = [
            (
                "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu lm aes\n",
                Architecture::X86_64,
            ),
            ("processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu sse\n", Architecture::X86),
            (
                "processor\t: 0\nFeatures\t: half thumb neon\nCPU implementer\t: 0x41\nCPU part\t: 0xc0f\n",
                Architecture::Arm,
            ),
            ("Processor\t: ARMv7 Processor rev 1 (v7l)\nFeatures\t: neon\n", Architecture::Arm),
            (
                "processor\t: 0\nFeatures\t: fp asimd aes\nCPU implementer\t: 0x41\n",
                Architecture::Aarch64,
            ),
            ("processor\t: 0\nhart\t: 0\nisa\t: rv64imafdcv_zicsr_zvkned\n", Architecture::Riscv64),
            (
                "processor\t: 0\ncpu\t\t: POWER9 (architected), altivec supported\n",
                Architecture::Power,
            ),
            (
                "vendor_id       : IBM/S390\n# processors    : 4\nfeatures\t: esan3 msa vx\n",
                Architecture::S390x,
            ),
            (
                "system type\t: MT7621\nprocessor\t: 0\ncpu model\t: MIPS 1004Kc V2.15\n",
                Architecture::Mips,
            ),
            (
                "system type\t: generic-loongson-machine\nprocessor\t: 0\nCPU Family\t: Loongson-64bit\n",
                Architecture::Loongarch64,
            ),
        ];
        for (text, architecture) in cases {
            assert_eq!(CpuInfo::parse(text).architecture, Some(architecture), "{text}");
        }
    }

    #[test]
    fn extensions_of_some_cores_are_separate() {
        let text = "processor: 0\nFeatures: neon aes\nCPU implementer: 0x41\n\nprocessor: 1\nFeatures: neon\n";
        let info = CpuInfo::parse(text);
        assert_eq!(flags(&info), ["neon"]);
        assert!(info.some_flags.contains("aes"));
        assert_eq!(info.processors, 2);
    }

    #[test]
    fn isa_string_of_risc_v_is_split() {
        let info = CpuInfo::parse("processor: 0\nisa: rv64imafdcv_zicsr_zkne_zvkg\n");
        assert_eq!(flags(&info), ["a", "c", "d", "f", "i", "m", "v", "zicsr", "zkne", "zvkg"]);
    }

    #[test]
    fn threads_share_cores() {
        let block = |id: u32, package: u32, core: u32| {
            format!(
                "processor: {id}\nvendor_id: x\nphysical id: {package}\ncore id: {core}\nflags: lm\n\n"
            )
        };
        let text = [block(0, 0, 0), block(1, 0, 0), block(2, 1, 0), block(3, 1, 0)].concat();
        let info = CpuInfo::parse(&text);
        assert_eq!((info.processors, info.cores, info.sockets), (4, Some(2), Some(2)));
    }

    #[test]
    fn noise_states_nothing() {
        for text in ["", "\n\n", "no colon", ":::", "processor", "processor:\n", "flags:"] {
            let info = CpuInfo::parse(text);
            assert!(info.flags.is_empty() && info.architecture.is_none(), "{text:?}");
        }
        let many = "processor: 1\n".repeat(MAX_PROCESSORS + 10);
        assert_eq!(CpuInfo::parse(&many).processors, MAX_PROCESSORS);
    }
}
