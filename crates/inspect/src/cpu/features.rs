// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The instruction-set extensions that make cryptography fast, and their words in each architecture's
//! `/proc/cpuinfo`.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::cpuinfo::CpuInfo;
use crate::architecture::Architecture;

/// An extension and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Feature {
    /// Name in this program's tables
    pub name: &'static str,
    /// Whether the processors have it
    pub state: State,
    /// The algorithms that it makes fast
    pub serves: &'static str,
}

/// State of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Every processor has it
    Present,
    /// Only some processors have it: programs may not rely on it
    Some,
    /// No processor shows it
    Absent,
    /// The kernel does not report it
    Unknown,
}

/// An extension; the words of `/proc/cpuinfo` of which any means that it is present; the algorithms that it makes
/// fast.
type Row = (&'static str, &'static [&'static str], &'static str);

/// Extensions of x86 for which Linux has no word in `/proc/cpuinfo`: only CPUID reports them.
const ONLY_CPUID: [&str; 2] = ["sha512", "avx-ifma"];

/// An extension of the processors of these vendors alone: others do not lack it.
const PADLOCK: &str = "padlock";
const PADLOCK_VENDORS: [&str; 2] = ["CentaurHauls", "Shanghai"];

#[rustfmt::skip]
const X86: &[Row] = &[
    ("aes-ni", &["aes"], "AES"),
    ("vaes", &["vaes"], "AES, two or four blocks at a time"),
    ("pclmul", &["pclmulqdq"], "GCM"),
    ("vpclmul", &["vpclmulqdq"], "GCM, two or four blocks at a time"),
    ("sha", &["sha_ni"], "SHA-1, SHA-256"),
    ("sha512", &["sha512"], "SHA-384, SHA-512"),
    ("ssse3", &["ssse3"], "ChaCha20, SHA, AES without AES-NI"),
    ("avx", &["avx"], "SHA, ChaCha20, Poly1305"),
    ("avx2", &["avx2"], "ChaCha20, Poly1305, RSA"),
    ("avx512f", &["avx512f"], "ChaCha20, Poly1305, lanes"),
    ("avx512bw", &["avx512bw"], "with AVX-512F"),
    ("avx512dq", &["avx512dq"], "with AVX-512F"),
    ("avx512vl", &["avx512vl"], "with AVX-512F"),
    ("avx512ifma", &["avx512ifma"], "RSA, Poly1305, lanes"),
    ("avx-ifma", &["avx_ifma"], "RSA, where AVX-512 is not"),
    ("bmi2", &["bmi2"], "RSA, elliptic curves (MULX)"),
    ("adx", &["adx"], "RSA, elliptic curves (ADCX, ADOX)"),
    ("gfni", &["gfni"], "SM4, ARIA, Camellia"),
    ("padlock", &["ace_en"], "AES (VIA, Zhaoxin)"),
];

#[rustfmt::skip]
const ARM: &[Row] = &[
    ("neon", &["neon", "asimd"], "AES without table look-ups, GCM, ChaCha20, SHA-512"),
    ("aes", &["aes"], "AES"),
    ("pmull", &["pmull"], "GCM"),
    ("sha1", &["sha1"], "SHA-1"),
    ("sha2", &["sha2"], "SHA-256"),
];

#[rustfmt::skip]
const AARCH64: &[Row] = &[
    ("asimd", &["asimd"], "ChaCha20, Poly1305, AES without table look-ups"),
    ("aes", &["aes"], "AES"),
    ("pmull", &["pmull"], "GCM"),
    ("sha1", &["sha1"], "SHA-1"),
    ("sha2", &["sha2"], "SHA-256"),
    ("sha512", &["sha512"], "SHA-384, SHA-512"),
    ("sha3", &["sha3"], "SHA-3, ML-KEM, ML-DSA, and GCM with EOR3"),
    ("sm3", &["sm3"], "SM3"),
    ("sm4", &["sm4"], "SM4"),
    ("sve", &["sve"], "ChaCha20"),
    ("sve2", &["sve2"], "ChaCha20, Poly1305"),
    ("sve-aes", &["sveaes"], "AES in wide vectors"),
    ("sve-pmull", &["svepmull"], "GCM in wide vectors"),
    ("sve-sha3", &["svesha3"], "SHA-3 in wide vectors"),
];

#[rustfmt::skip]
const RISCV: &[Row] = &[
    ("v", &["v"], "ChaCha20, Poly1305"),
    ("zbb", &["zbb", "zbkb", "zkn", "zk"], "rotations: ChaCha20, SHA"),
    ("zbc", &["zbc", "zbkc", "zkn", "zk"], "GCM, scalar"),
    ("zkne", &["zkne", "zkn", "zk"], "AES encryption, scalar"),
    ("zknd", &["zknd", "zkn", "zk"], "AES decryption, scalar"),
    ("zknh", &["zknh", "zkn", "zk"], "SHA-256, SHA-512, scalar"),
    ("zvkned", &["zvkned", "zvkn", "zvknc", "zvkng"], "AES"),
    ("zvkg", &["zvkg", "zvkng"], "GCM"),
    ("zvbc", &["zvbc", "zvknc"], "GCM"),
    ("zvkb", &["zvkb", "zvbb", "zvkn", "zvknc", "zvkng"], "ChaCha20"),
    ("zvknha", &["zvknha", "zvknhb", "zvkn", "zvknc", "zvkng"], "SHA-256"),
    ("zvknhb", &["zvknhb", "zvkn", "zvknc", "zvkng"], "SHA-512"),
];

#[rustfmt::skip]
const S390X: &[Row] = &[
    ("cpacf", &["msa"], "AES, SHA, GCM (CPACF)"),
    ("vx", &["vx"], "ChaCha20, Poly1305"),
];

/// POWER has no word for its cryptographic instructions: they are part of the processor since POWER8.
#[rustfmt::skip]
const POWER: &[Row] = &[
    ("vcipher", &["vcipher"], "AES, GCM, SHA-2 (POWER8 and later)"),
];

/// The extensions that matter on this architecture; none for an architecture without a table.
pub(super) fn features(architecture: Architecture, info: &CpuInfo) -> Vec<Feature> {
    let rows = match architecture {
        Architecture::X86_64 | Architecture::X86 => X86,
        Architecture::Arm => ARM,
        Architecture::Aarch64 => AARCH64,
        Architecture::Riscv64 | Architecture::Riscv32 => RISCV,
        Architecture::S390x => S390X,
        Architecture::Power => POWER,
        Architecture::Mips | Architecture::Loongarch64 | Architecture::Other => &[],
    };
    let in_words = architecture == Architecture::Power && has_vcipher(info);
    let vendor = info.field("vendor_id").unwrap_or_default();
    let rows =
        rows.iter().filter(|(name, ..)| *name != PADLOCK || PADLOCK_VENDORS.contains(&vendor));
    let features = rows.map(|row| Feature {
        name: row.0,
        state: if in_words { State::Present } else { state(row, info) },
        serves: row.2,
    });
    features.collect()
}

fn state((name, words, _): &Row, info: &CpuInfo) -> State {
    let any = |flags: &BTreeSet<String>| words.iter().any(|word| flags.contains(*word));
    if any(&info.flags) {
        State::Present
    } else if any(&info.some_flags) {
        State::Some
    } else if info.flags.is_empty() || (is_x86(info) && ONLY_CPUID.contains(name)) {
        State::Unknown
    } else {
        State::Absent
    }
}

fn is_x86(info: &CpuInfo) -> bool {
    matches!(info.architecture, Some(Architecture::X86_64 | Architecture::X86))
}

/// `cpu: POWER9 (architected), altivec supported`: POWER8 or later.
fn has_vcipher(info: &CpuInfo) -> bool {
    let cpu = info.field("cpu").unwrap_or_default();
    let digits = cpu.split("POWER").nth(1).unwrap_or_default();
    let generation: String = digits.chars().take_while(char::is_ascii_digit).collect();
    generation.parse::<u32>().is_ok_and(|generation| generation >= 8)
}

/// The extensions of this processor by its CPUID instruction, in the words of `/proc/cpuinfo`.
#[cfg(target_arch = "x86_64")]
pub(super) fn asked() -> String {
    use std::arch::is_x86_feature_detected as has;
    let found = [
        ("aes", has!("aes")),
        ("vaes", has!("vaes")),
        ("pclmulqdq", has!("pclmulqdq")),
        ("vpclmulqdq", has!("vpclmulqdq")),
        ("sha_ni", has!("sha")),
        ("sha512", has!("sha512")),
        ("ssse3", has!("ssse3")),
        ("avx", has!("avx")),
        ("avx2", has!("avx2")),
        ("avx512f", has!("avx512f")),
        ("avx512bw", has!("avx512bw")),
        ("avx512dq", has!("avx512dq")),
        ("avx512vl", has!("avx512vl")),
        ("avx512ifma", has!("avx512ifma")),
        ("avx_ifma", has!("avxifma")),
        ("bmi2", has!("bmi2")),
        ("adx", has!("adx")),
        ("gfni", has!("gfni")),
    ];
    let words: Vec<&str> = found.iter().filter(|(_, has)| *has).map(|(word, _)| *word).collect();
    words.join(" ")
}

/// Other architectures have no such instruction for ordinary programs.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn asked() -> String {
    String::new()
}

/// Completes a list of features with the result of CPUID. Returns the features that the processor has but the
/// kernel does not show.
pub(super) fn settle(features: &mut [Feature], asked: &str) -> Vec<&'static str> {
    let said: Vec<&str> = asked.split_ascii_whitespace().collect();
    let mut hidden = Vec::new();
    if said.is_empty() {
        return hidden;
    }
    for feature in features {
        let Some((name, words, _)) = X86.iter().find(|row| row.0 == feature.name) else {
            continue;
        };
        let has = words.iter().any(|word| said.contains(word));
        match (feature.state, has) {
            (State::Unknown, true) => feature.state = State::Present,
            (State::Unknown, false) if ONLY_CPUID.contains(name) => feature.state = State::Absent,
            (State::Absent, true) => hidden.push(feature.name),
            _ => {}
        }
    }
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(text: &str, name: &str) -> Option<State> {
        let info = CpuInfo::parse(text);
        let features = features(info.architecture?, &info);
        features.iter().find(|feature| feature.name == name).map(|feature| feature.state)
    }

    #[test]
    fn present_some_absent_and_unknown() {
        let x86 = "processor: 0\nvendor_id: x\nflags: lm aes\n";
        assert_eq!(state_of(x86, "aes-ni"), Some(State::Present));
        assert_eq!(state_of(x86, "vaes"), Some(State::Absent));
        assert_eq!(state_of(x86, "sha512"), Some(State::Unknown));
        let arm = "processor: 0\nCPU implementer: 0x41\nFeatures: neon\n\nprocessor: 1\nFeatures: neon aes\n";
        assert_eq!(state_of(arm, "aes"), Some(State::Some));
        assert_eq!(state_of("processor: 0\nCPU implementer: 0x41\n", "neon"), Some(State::Unknown));
    }

    #[test]
    fn umbrella_extensions_imply_their_parts() {
        let text = "processor: 0\nisa: rv64imafdcv_zkn_zvkng\n";
        for name in ["zkne", "zknh", "zvkned", "zvkg", "zvknhb"] {
            assert_eq!(state_of(text, name), Some(State::Present), "{name}");
        }
        assert_eq!(state_of(text, "zvbc"), Some(State::Absent));
    }

    #[test]
    fn power8_and_later_have_vcipher() {
        assert_eq!(state_of("processor: 0\ncpu: POWER10 (raw)\n", "vcipher"), Some(State::Present));
        assert_ne!(state_of("processor: 0\ncpu: POWER7 (raw)\n", "vcipher"), Some(State::Present));
    }

    #[test]
    fn cpuid_completes_the_kernels_list() {
        let info = CpuInfo::parse("processor: 0\nvendor_id: x\nflags: lm avx2\n");
        let mut found = features(Architecture::X86_64, &info);
        let hidden = settle(&mut found, "aes avx2 sha512");
        assert_eq!(hidden, ["aes-ni"]);
        let state = |name| found.iter().find(|feature| feature.name == name).unwrap().state;
        assert_eq!(state("sha512"), State::Present);
        assert_eq!(state("avx-ifma"), State::Absent);
        assert!(settle(&mut found, "").is_empty());
    }
}
