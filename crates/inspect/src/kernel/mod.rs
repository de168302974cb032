// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The kernel's own cryptography: the implementation that it prefers for each algorithm of a gateway, and the
//! alternatives.

pub mod blocked;
pub mod crypto;
pub mod programs;

use millrace_hostfs::{ReadResult, Root, TABLE_BYTES};
use schemars::JsonSchema;
use serde::Serialize;

use self::crypto::{Algorithm, ComputeSite, algorithms, candidates};
use self::programs::ProgramCiphers;
use crate::architecture::Architecture;
use crate::section::{Section, SectionReader};

/// Algorithms that gateways use from the kernel, and their users.
#[rustfmt::skip]
const ASKED_FOR: [(&str, &str); 12] = [
    ("rfc4106(gcm(aes))", "IPsec with AES-GCM"),
    ("authenc(hmac(sha256),cbc(aes))", "IPsec with AES-CBC and SHA-256"),
    ("authenc(hmac(sha512),cbc(aes))", "IPsec with AES-CBC and SHA-512"),
    ("authenc(hmac(sha1),cbc(aes))", "IPsec with AES-CBC and SHA-1"),
    ("rfc7539esp(chacha20,poly1305)", "IPsec with ChaCha20-Poly1305"),
    ("gcm(aes)", "kernel TLS, OpenVPN DCO"),
    ("cbc(aes)", "IPsec, /dev/crypto, AF_ALG"),
    ("ctr(aes)", "IPsec, AF_ALG"),
    ("xts(aes)", "disk encryption"),
    ("sha256", "IPsec, AF_ALG"),
    ("rsa", "keyrings, AF_ALG"),
    ("dh", "keyrings"),
];

/// Cryptography in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Kernel {
    /// Algorithms that gateways use, and their implementations
    pub choices: Vec<AlgorithmChoice>,
    /// Devices with registered implementations
    pub devices: Vec<DeviceDriver>,
    /// Number of registered implementations
    pub implementations: usize,
    /// Whether the kernel is in FIPS mode (approved algorithms only)
    pub fips: Option<bool>,
    /// Its ciphers for programs: AF_ALG, and the sizes measured for `kernel_bulk`
    pub programs: ProgramCiphers,
}

impl Kernel {
    /// The implementation that the kernel prefers; none if nothing has requested the algorithm yet.
    #[must_use]
    pub fn preferred(&self, algorithm: &str) -> Option<&AlgorithmCandidate> {
        let mut choices = self.choices.iter();
        choices.find(|choice| choice.algorithm == algorithm)?.candidates.first()
    }

    /// The modes of AES that the kernel computes in portable code: algorithm and implementation.
    pub fn portable_aes(&self) -> impl Iterator<Item = (&str, &AlgorithmCandidate)> {
        let modes = self.choices.iter().filter(|choice| choice.algorithm.contains("aes"));
        let preferred =
            modes.filter_map(|choice| Some((&*choice.algorithm, choice.candidates.first()?)));
        preferred.filter(|(_, candidate)| candidate.site == ComputeSite::Generic)
    }
}

/// The modules with the processor's AES instructions.
#[must_use]
pub fn aes_modules(architecture: Option<Architecture>) -> [&'static str; 2] {
    match architecture {
        Some(Architecture::Arm | Architecture::Aarch64) => ["aes_ce_blk", "ghash_ce"],
        _ => ["aesni_intel", "ghash_clmulni_intel"],
    }
}

/// One algorithm and its implementations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AlgorithmChoice {
    /// The kernel's name of the algorithm
    pub algorithm: String,
    /// Its users
    pub for_what: String,
    /// Implementations, the preferred one first. Empty if none was requested yet: the kernel assembles one at the
    /// first request
    pub candidates: Vec<AlgorithmCandidate>,
}

/// One implementation of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AlgorithmCandidate {
    /// Its name
    pub driver: String,
    /// The kernel prefers the highest
    pub priority: i64,
    /// Portable code, instructions, or a device
    #[serde(rename = "engine")]
    pub site: ComputeSite,
    /// Name of the device, if it is one
    pub device: Option<String>,
    /// Whether it passed its self-test
    pub tested: bool,
}

/// A device with drivers in the kernel's crypto API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceDriver {
    /// Name of the device
    pub device: String,
    /// Algorithms for which the kernel prefers it
    pub taken_for: Vec<String>,
    /// Algorithms for which the kernel prefers another implementation
    pub passed_over_for: Vec<PassedOver>,
}

/// An algorithm of a device for which the kernel prefers another implementation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PassedOver {
    /// The kernel's name of the algorithm, such as `gcm(aes)`
    pub algorithm: String,
    /// Priority of the device
    pub priority: i64,
    /// The preferred implementation
    pub instead: String,
    /// Priority of the preferred implementation
    pub instead_priority: i64,
}

/// The implementation that the kernel prefers for an algorithm; none if none is registered.
pub fn preferred(root: &Root, algorithm: &str) -> ReadResult<Option<Algorithm>> {
    let all = algorithms(&root.text("proc/crypto", TABLE_BYTES)?);
    Ok(crypto::winner(&all, algorithm).cloned())
}

/// Reads the facts about the kernel's cryptography.
#[must_use]
pub fn section(root: &Root) -> Section<Kernel> {
    let mut reader = SectionReader::new(root);
    let text = reader.table("proc/crypto");
    let fips = reader.number_if_there::<u8>("proc/sys/crypto/fips_enabled");
    let kernel = text.map(|text| Kernel {
        programs: programs::read(&mut reader),
        ..kernel(&algorithms(&text), fips.map(|fips| fips != 0))
    });
    reader.section(kernel)
}

fn kernel(all: &[Algorithm], fips: Option<bool>) -> Kernel {
    let choice = |(algorithm, for_what): &(&str, &str)| AlgorithmChoice {
        algorithm: (*algorithm).to_owned(),
        for_what: (*for_what).to_owned(),
        candidates: candidates(all, algorithm).into_iter().map(candidate).collect(),
    };
    Kernel {
        choices: ASKED_FOR.iter().map(choice).collect(),
        devices: devices(all),
        implementations: all.len(),
        fips,
        programs: ProgramCiphers::default(),
    }
}

fn candidate(entry: &Algorithm) -> AlgorithmCandidate {
    AlgorithmCandidate {
        driver: entry.driver.clone(),
        priority: entry.priority,
        site: entry.site(),
        device: entry.device().map(str::to_owned),
        tested: entry.tested,
    }
}

fn devices(all: &[Algorithm]) -> Vec<DeviceDriver> {
    let mut devices: Vec<DeviceDriver> = Vec::new();
    for entry in all.iter().filter(|entry| !entry.internal) {
        let Some(device) = entry.device() else {
            continue;
        };
        let known = devices.iter().position(|known| known.device == device);
        let at = known.unwrap_or_else(|| {
            devices.push(DeviceDriver {
                device: device.to_owned(),
                taken_for: Vec::new(),
                passed_over_for: Vec::new(),
            });
            devices.len() - 1
        });
        match crypto::winner(all, &entry.name) {
            Some(winner) if winner.driver != entry.driver => {
                devices[at].passed_over_for.push(PassedOver {
                    algorithm: entry.name.clone(),
                    priority: entry.priority,
                    instead: winner.driver.clone(),
                    instead_priority: winner.priority,
                });
            }
            Some(_) => devices[at].taken_for.push(entry.name.clone()),
            // Without a passed self-test the kernel does not use it yet.
            None => {}
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name : cbc(aes)
driver : qat_aes_cbc
priority : 100
selftest : passed
internal : no

name : cbc(aes)
driver : cbc-aes-aesni
priority : 400
selftest : passed
internal : no

name : rsa
driver : qat-rsa
priority : 1000
selftest : passed
internal : no
";

    #[test]
    fn device_with_a_low_priority_is_passed_over() {
        let kernel = kernel(&algorithms(TEXT), None);
        assert_eq!(kernel.devices.len(), 1);
        let qat = &kernel.devices[0];
        assert_eq!(qat.device, "Intel QAT");
        assert_eq!(qat.taken_for, ["rsa"]);
        assert_eq!(qat.passed_over_for.len(), 1);
        assert_eq!(qat.passed_over_for[0].instead, "cbc-aes-aesni");
        let cbc = kernel.choices.iter().find(|choice| choice.algorithm == "cbc(aes)");
        let taken = cbc.and_then(|choice| choice.candidates.first());
        assert_eq!(taken.map(|taken| taken.site), Some(ComputeSite::Instructions));
    }
}
