// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Extensions that a processor of a known model must have. If one is not visible, it is hidden by a
//! hypervisor, a switch in the firmware, or the kernel's command line.
//!
//! Models are recognised by vendor, family and model number, not by name: names are free text, also for
//! hypervisors. Source of the numbers: the vendors' lists (Intel SDM volume 4 table 2-1, AMD revision guides), and the
//! kernel's `arch/x86/include/asm/intel-family.h`.

use super::cpuinfo::CpuInfo;

// Names of extensions, separated by blanks.
const AES: &str = "aes-ni pclmul";
const ATOM: &str = "aes-ni pclmul sha";
const HASWELL: &str = "aes-ni pclmul avx avx2 bmi2";
const BROADWELL: &str = "aes-ni pclmul avx avx2 bmi2 adx";
const ZEN: &str = "aes-ni pclmul sha avx avx2 bmi2 adx";
const WIDE_AES: &str = "aes-ni pclmul sha avx avx2 bmi2 adx vaes vpclmul";
const SKYLAKE: &str = "aes-ni pclmul avx avx2 bmi2 adx avx512f avx512bw avx512dq avx512vl";
const FULL: &str = "aes-ni pclmul sha avx avx2 bmi2 adx vaes vpclmul avx512f avx512bw avx512dq avx512vl avx512ifma";

/// Vendor, family, first and last model, name, required features.
type Row = (&'static str, u32, u32, u32, &'static str, &'static str);

#[rustfmt::skip]
const MODELS: &[Row] = &[
    ("GenuineIntel", 6, 0x3F, 0x3F, "Xeon E5 v3 (Haswell)", HASWELL),
    ("GenuineIntel", 6, 0x4F, 0x4F, "Xeon E5 v4 (Broadwell)", BROADWELL),
    ("GenuineIntel", 6, 0x56, 0x56, "Xeon D-1500 (Broadwell)", BROADWELL),
    ("GenuineIntel", 6, 0x5E, 0x5E, "Skylake client", AES),
    ("GenuineIntel", 6, 0x8E, 0x8E, "Kaby Lake and later client", AES),
    ("GenuineIntel", 6, 0x9E, 0x9E, "Kaby Lake and later client", AES),
    ("GenuineIntel", 6, 0x55, 0x55, "1st to 3rd Gen Xeon Scalable (Skylake, Cascade Lake, Cooper Lake)", SKYLAKE),
    ("GenuineIntel", 6, 0x6A, 0x6A, "3rd Gen Xeon Scalable (Ice Lake)", FULL),
    ("GenuineIntel", 6, 0x6C, 0x6C, "Xeon D-1700, D-2700 (Ice Lake)", FULL),
    ("GenuineIntel", 6, 0x8F, 0x8F, "4th Gen Xeon Scalable (Sapphire Rapids)", FULL),
    ("GenuineIntel", 6, 0xCF, 0xCF, "5th Gen Xeon Scalable (Emerald Rapids)", FULL),
    ("GenuineIntel", 6, 0xAD, 0xAE, "Xeon 6 P-core (Granite Rapids)", FULL),
    ("GenuineIntel", 6, 0xAF, 0xAF, "Xeon 6 E-core (Sierra Forest)", WIDE_AES),
    ("GenuineIntel", 6, 0x97, 0x97, "Alder Lake", WIDE_AES),
    ("GenuineIntel", 6, 0x9A, 0x9A, "Alder Lake", WIDE_AES),
    ("GenuineIntel", 6, 0xB7, 0xB7, "Raptor Lake", WIDE_AES),
    ("GenuineIntel", 6, 0xBA, 0xBA, "Raptor Lake", WIDE_AES),
    ("GenuineIntel", 6, 0xBE, 0xBE, "Alder Lake-N", WIDE_AES),
    ("GenuineIntel", 6, 0xBF, 0xBF, "Raptor Lake", WIDE_AES),
    ("GenuineIntel", 6, 0x5C, 0x5C, "Apollo Lake", ATOM),
    ("GenuineIntel", 6, 0x5F, 0x5F, "Atom C3000 (Denverton)", ATOM),
    ("GenuineIntel", 6, 0x7A, 0x7A, "Gemini Lake", ATOM),
    ("GenuineIntel", 6, 0x86, 0x86, "Atom P5900 (Snow Ridge)", ATOM),
    ("AuthenticAMD", 0x17, 0x00, 0xFF, "Zen and Zen 2", ZEN),
    ("HygonGenuine", 0x18, 0x00, 0xFF, "Dhyana", ZEN),
    ("AuthenticAMD", 0x19, 0x00, 0x0F, "EPYC 7003 (Zen 3)", WIDE_AES),
    ("AuthenticAMD", 0x19, 0x20, 0x5F, "Zen 3", WIDE_AES),
    ("AuthenticAMD", 0x19, 0x10, 0x1F, "EPYC 9004 (Zen 4)", FULL),
    ("AuthenticAMD", 0x19, 0x60, 0x7F, "Zen 4", FULL),
    ("AuthenticAMD", 0x19, 0xA0, 0xAF, "EPYC 9704, 8004 (Zen 4c)", FULL),
    ("AuthenticAMD", 0x1A, 0x00, 0xFF, "Zen 5", FULL),
];

/// Names that hypervisors give to a generic processor.
const GENERIC: &[&str] = &["QEMU Virtual CPU", "Common KVM processor", "Common 32-bit KVM"];

/// Cores of Arm's and others' design, by implementer and part (`MIDR_EL1`).
const ARM_PARTS: &[(u32, u32, &str)] = &[
    (0x41, 0xB02, "ARM11 MPCore"),
    (0x41, 0xB76, "ARM1176"),
    (0x41, 0xC05, "Cortex-A5"),
    (0x41, 0xC07, "Cortex-A7"),
    (0x41, 0xC08, "Cortex-A8"),
    (0x41, 0xC09, "Cortex-A9"),
    (0x41, 0xC0D, "Cortex-A17"),
    (0x41, 0xC0E, "Cortex-A17"),
    (0x41, 0xC0F, "Cortex-A15"),
    (0x41, 0xD03, "Cortex-A53"),
    (0x41, 0xD04, "Cortex-A35"),
    (0x41, 0xD05, "Cortex-A55"),
    (0x41, 0xD07, "Cortex-A57"),
    (0x41, 0xD08, "Cortex-A72"),
    (0x41, 0xD09, "Cortex-A73"),
    (0x41, 0xD0A, "Cortex-A75"),
    (0x41, 0xD0B, "Cortex-A76"),
    (0x41, 0xD0C, "Neoverse N1"),
    (0x41, 0xD0D, "Cortex-A77"),
    (0x41, 0xD40, "Neoverse V1"),
    (0x41, 0xD41, "Cortex-A78"),
    (0x41, 0xD46, "Cortex-A510"),
    (0x41, 0xD47, "Cortex-A710"),
    (0x41, 0xD49, "Neoverse N2"),
    (0x41, 0xD4F, "Neoverse V2"),
    (0x41, 0xD84, "Neoverse V3"),
    (0x41, 0xD8E, "Neoverse N3"),
    (0x51, 0x04D, "Krait"),
    (0x51, 0x06F, "Krait"),
    (0x51, 0x800, "Kryo"),
    (0x56, 0x131, "Feroceon 88FR131"),
    (0x56, 0x581, "Marvell PJ4"),
    (0x56, 0x584, "Marvell PJ4B"),
    (0xC0, 0xAC3, "Ampere-1"),
    (0xC0, 0xAC4, "Ampere-1a"),
];

/// Name and required features of a model; none if it is not in the table.
pub(super) fn known(info: &CpuInfo) -> Option<(&'static str, impl Iterator<Item = &'static str>)> {
    let vendor = info.field("vendor_id")?;
    let family = info.number("cpu family")?;
    let model = info.number("model")?;
    let row = MODELS.iter().find(|(v, f, from, to, ..)| {
        *v == vendor && *f == family && (*from..=*to).contains(&model)
    })?;
    Some((row.4, row.5.split(' ')))
}

/// Whether only hypervisors present this model; it says nothing about the real processor.
pub(super) fn generic(info: &CpuInfo) -> bool {
    let name = info.field("model name").unwrap_or_default();
    GENERIC.iter().any(|generic| name.contains(generic))
}

/// The name of an Arm core.
pub(super) fn arm_core(info: &CpuInfo) -> Option<&'static str> {
    let implementer = info.number("CPU implementer")?;
    let part = info.number("CPU part")?;
    let row = ARM_PARTS.iter().find(|(i, p, _)| (*i, *p) == (implementer, part))?;
    Some(row.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_model_is_in_two_rows() {
        for (index, row) in MODELS.iter().enumerate() {
            for other in &MODELS[index + 1..] {
                let apart =
                    row.0 != other.0 || row.1 != other.1 || row.3 < other.2 || other.3 < row.2;
                assert!(apart, "{} and {}", row.4, other.4);
            }
        }
    }

    #[test]
    fn models_are_recognised_by_their_numbers() {
        let info = CpuInfo::parse(
            "processor: 0\nvendor_id: GenuineIntel\ncpu family: 6\nmodel: 106\nmodel name: anything\nflags: lm\n",
        );
        assert_eq!(known(&info).unwrap().0, "3rd Gen Xeon Scalable (Ice Lake)");
        let info = CpuInfo::parse(
            "processor: 0\nCPU implementer: 0x41\nCPU part: 0xc0f\nFeatures: neon\n",
        );
        assert_eq!(arm_core(&info), Some("Cortex-A15"));
        assert!(known(&info).is_none());
    }
}
