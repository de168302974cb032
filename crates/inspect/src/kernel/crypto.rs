// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `/proc/crypto`: the kernel's implementations of an algorithm, and the one that it prefers.
//!
//! The kernel uses the instantiated implementation with the highest priority. A device whose driver is loaded,
//! up, and second by priority is idle: the state of most "accelerated" gateways (the priority of QAT's drivers
//! went from 4001 to 100 in August 2025).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bound on one name, in bytes: the kernel's own (`CRYPTO_MAX_ALG_NAME`) is 128.
const MAX_NAME: usize = 256;

/// One implementation of one algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Algorithm {
    /// Algorithm: `cbc(aes)`, `rfc4106(gcm(aes))`, `rsa`.
    pub name: String,
    /// Driver: `cbc-aes-aesni`, `qat_aes_cbc`, `pkcs1pad(rsa-generic,sha256)`.
    pub driver: String,
    /// Its module; `kernel` if it is built in.
    pub module: String,
    /// The kernel prefers the highest.
    pub priority: i64,
    /// `skcipher`, `aead`, `akcipher`, …
    pub kind: String,
    /// Whether it passed its self-test.
    pub tested: bool,
    /// Whether it is reserved for other implementations.
    pub internal: bool,
    /// Whether it completes asynchronously, as hardware does.
    pub asynchronous: bool,
}

/// Place where an implementation computes, judged by its driver's name.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeSite {
    /// Portable code.
    Generic,
    /// The processor's vector or crypto instructions.
    Instructions,
    /// An accelerator, by its driver.
    Device,
    /// A template, or unknown.
    Other,
}

/// Parts of driver names that identify devices: substring, and name of the device.
///
/// Source: the `cra_driver_name` of the drivers below `drivers/crypto` of Linux 6.18.
const DEVICES: [(&str, &str); 31] = [
    ("qat", "Intel QAT"),
    ("virtio", "virtio-crypto"),
    ("caam", "NXP CAAM"),
    ("marvell-cesa", "Marvell CESA"),
    ("mv-", "Marvell CESA"),
    ("safexcel", "Inside Secure SafeXcel"),
    ("sun4i-ss", "Allwinner Security System"),
    ("sun8i-ce", "Allwinner Crypto Engine"),
    ("sun8i-ss", "Allwinner Security System"),
    ("rk-", "Rockchip crypto"),
    ("rk3", "Rockchip crypto"),
    ("omap-", "TI OMAP crypto"),
    ("sa2ul", "TI SA2UL"),
    ("qce", "Qualcomm Crypto Engine"),
    ("ccree", "Arm CryptoCell"),
    ("ccp", "AMD CCP"),
    ("chcr", "Chelsio"),
    ("n5_", "Cavium Nitrox"),
    ("nitrox", "Cavium Nitrox"),
    ("cpt_", "Marvell OcteonTX CPT"),
    ("otx_", "Marvell OcteonTX CPT"),
    ("hisi_", "HiSilicon SEC/HPRE"),
    ("hpre", "HiSilicon HPRE"),
    ("-dcp", "NXP DCP"),
    ("stm32", "ST STM32 crypto"),
    ("mtk-eip", "MediaTek EIP"),
    ("eip93", "Inside Secure EIP-93"),
    ("ipsec-bcm", "Broadcom SPU"),
    ("spu-", "Broadcom SPU"),
    ("iaa", "Intel IAA"),
    ("deflate-iaa", "Intel IAA"),
];

/// Parts of driver names that compute AES in portable code, even where another part of the name computes the
/// integrity with instructions: `gcm_base(ctr(aes-generic),ghash-pclmulqdqni)`.
///
/// Source: `crypto/aes_generic.c` and `crypto/aes_ti.c` of Linux 6.18.
const PORTABLE_AES: [&str; 2] = ["aes-generic", FIXED_TIME_AES];

/// Portable AES whose time does not depend on the key or the data. It is slower than `aes-generic`.
const FIXED_TIME_AES: &str = "aes-fixed-time";

/// Parts of driver names that identify instructions of the processor.
const INSTRUCTIONS: [&str; 21] = [
    "aesni", "vaes", "avx", "sse", "-ni", "pclmul", "neon", "-ce", "ce-", "arm64", "asm", "sve",
    "riscv", "zvk", "s390", "power", "p10", "p8_", "vsx", "-lib", "padlock",
];

impl Algorithm {
    /// Place where the implementation computes.
    #[must_use]
    pub fn site(&self) -> ComputeSite {
        if self.device().is_some() {
            return ComputeSite::Device;
        }
        let driver = self.driver.to_ascii_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| driver.contains(part));
        if has(&PORTABLE_AES) {
            ComputeSite::Generic
        } else if has(&INSTRUCTIONS) {
            ComputeSite::Instructions
        } else if driver.contains("generic") {
            ComputeSite::Generic
        } else {
            ComputeSite::Other
        }
    }

    /// The device that computes it, if one does.
    #[must_use]
    pub fn device(&self) -> Option<&'static str> {
        let driver = self.driver.to_ascii_lowercase();
        DEVICES
            .iter()
            .find(|(part, _)| driver.starts_with(part) || (part.len() > 3 && driver.contains(part)))
            .map(|(_, device)| *device)
    }
}

/// Whether a driver is portable AES whose time does not depend on the key or the data.
#[must_use]
pub fn is_fixed_time_aes(driver: &str) -> bool {
    driver.contains(FIXED_TIME_AES)
}

/// Reads `/proc/crypto`.
#[must_use]
pub fn algorithms(text: &str) -> Vec<Algorithm> {
    let mut found = Vec::new();
    let mut entry = Algorithm::default();
    for line in text.lines().chain(std::iter::once("")) {
        let Some((key, value)) = line.split_once(':') else {
            if !entry.name.is_empty() && !entry.driver.is_empty() {
                found.push(entry);
            }
            entry = Algorithm::default();
            continue;
        };
        let value = value.trim();
        if value.len() > MAX_NAME {
            continue;
        }
        match key.trim() {
            "name" => value.clone_into(&mut entry.name),
            "driver" => value.clone_into(&mut entry.driver),
            "module" => value.clone_into(&mut entry.module),
            "priority" => entry.priority = value.parse().unwrap_or(0),
            "type" => value.clone_into(&mut entry.kind),
            "selftest" => entry.tested = value == "passed",
            "internal" => entry.internal = value == "yes",
            "async" => entry.asynchronous = value == "yes",
            _ => {}
        }
    }
    found
}

/// The implementation that the kernel prefers for an algorithm: the highest priority among those that passed
/// their test and are not internal.
#[must_use]
pub fn winner<'a>(algorithms: &'a [Algorithm], name: &str) -> Option<&'a Algorithm> {
    algorithms
        .iter()
        .filter(|entry| entry.name == name && entry.tested && !entry.internal)
        .max_by_key(|entry| entry.priority)
}

/// All implementations of an algorithm except internal ones, the preferred one first.
#[must_use]
pub fn candidates<'a>(algorithms: &'a [Algorithm], name: &str) -> Vec<&'a Algorithm> {
    let mut found: Vec<&Algorithm> =
        algorithms.iter().filter(|entry| entry.name == name && !entry.internal).collect();
    found.sort_by_key(|entry| (!entry.tested, -entry.priority));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name         : cbc(aes)
driver       : qat_aes_cbc
module       : intel_qat
priority     : 100
refcnt       : 1
selftest     : passed
internal     : no
type         : skcipher
async        : yes
blocksize    : 16

name         : cbc(aes)
driver       : cbc-aes-aesni
module       : aesni_intel
priority     : 400
refcnt       : 1
selftest     : passed
internal     : no
type         : skcipher
async        : no

name         : cbc(aes)
driver       : __cbc-aes-best
module       : aesni_intel
priority     : 9999
selftest     : passed
internal     : yes
type         : skcipher

name         : cbc(aes)
driver       : cbc(aes-generic)
module       : kernel
priority     : 100
selftest     : unknown
internal     : no
type         : skcipher
";

    #[test]
    fn usable_driver_with_the_highest_priority_wins() {
        let all = algorithms(TEXT);
        assert_eq!(all.len(), 4);
        let taken = winner(&all, "cbc(aes)").map(|entry| entry.driver.as_str());
        assert_eq!(taken, Some("cbc-aes-aesni"));
        let order: Vec<&str> =
            candidates(&all, "cbc(aes)").iter().map(|entry| entry.driver.as_str()).collect();
        assert_eq!(order, ["cbc-aes-aesni", "qat_aes_cbc", "cbc(aes-generic)"]);
        assert!(winner(&all, "gcm(aes)").is_none());
    }

    #[test]
    fn name_of_a_driver_gives_its_compute_site() {
        let site =
            |driver: &str| Algorithm { driver: driver.to_owned(), ..Algorithm::default() }.site();
        assert_eq!(site("qat_aes_cbc_hmac_sha256"), ComputeSite::Device);
        assert_eq!(site("virtio-crypto-rsa"), ComputeSite::Device);
        assert_eq!(site("mv-cbc-aes"), ComputeSite::Device);
        assert_eq!(site("cbc-aes-caam"), ComputeSite::Device);
        assert_eq!(site("generic-gcm-vaes-avx10_512"), ComputeSite::Instructions);
        assert_eq!(site("cbc-aes-neonbs"), ComputeSite::Instructions);
        assert_eq!(site("sha256-ce"), ComputeSite::Instructions);
        assert_eq!(site("aes-generic"), ComputeSite::Generic);
        assert_eq!(site("cbc(ecb(aes-fixed-time))"), ComputeSite::Generic);
        let mixed = "gcm_base(ctr(aes-generic),ghash-pclmulqdqni)";
        assert_eq!(site(mixed), ComputeSite::Generic);
        assert_eq!(site("cryptd(something)"), ComputeSite::Other);
    }

    #[test]
    fn lines_that_are_not_proc_crypto_are_skipped() {
        for text in ["", "\0", "name : x", ":\n:\n:", "name : x\ndriver :\n", "no colon at all"] {
            assert!(algorithms(text).is_empty(), "{text:?}");
        }
        let long = format!("name : {}\ndriver : d\n", "x".repeat(5000));
        assert!(algorithms(&long).is_empty());
    }
}
