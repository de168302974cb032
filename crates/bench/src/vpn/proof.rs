// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Proof of where a link's work was done: signatures that a node counted, the kernel's implementation of the cipher,
//! and counters of devices before and after.

use std::time::Duration;

use millrace_hostfs::Root;
use millrace_inspect::kernel::crypto::{self, ComputeSite};
use millrace_inspect::offload_status::{CounterReading, Moved};
use serde::Serialize;

use super::cases::{CaseEngine, LinkCase};
use crate::error::BenchError;
use crate::node::NodeProcess;

/// Counters before a link comes up.
pub(super) struct CountersBefore {
    devices: CounterReading,
    signed: Option<u64>,
}

/// Where the work of one link was done, once it has carried its load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct LinkProof {
    /// Signatures that the node counted for the keys of the tunnels. `None` where the keys are files.
    pub(super) pool_signatures: Option<u64>,
    /// The kernel's implementation of the cipher of the packets, where the kernel encrypts them.
    pub(super) driver: Option<CipherDriver>,
    /// Counters of devices that moved from the start of the link to the end of its load.
    pub(super) moved: Vec<Moved>,
}

/// An entry of /proc/crypto.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CipherDriver {
    /// The kernel's name of the algorithm.
    pub(super) algorithm: String,
    /// The implementation that the kernel prefers. `None` if no entry of the list passed its test.
    pub(super) driver: Option<String>,
    /// Where that computes.
    pub(super) site: Option<ComputeSite>,
    /// The device, if one computes it.
    pub(super) device: Option<&'static str>,
}

impl CountersBefore {
    pub(super) fn read(node: Option<&NodeProcess>) -> Result<Self, BenchError> {
        Ok(Self { devices: CounterReading::read(&root()?), signed: signatures(node)? })
    }

    /// Compares with the counters now, after the load of a case, whose link is still up.
    pub(super) fn proof(
        self,
        case: &LinkCase,
        node: Option<&NodeProcess>,
    ) -> Result<LinkProof, BenchError> {
        let root = root()?;
        let later = CounterReading::read(&root);
        let signed = signatures(node)?;
        let counted = || signed.unwrap_or(0).saturating_sub(self.signed.unwrap_or(0));
        let pool_signatures = case.pooled.then(counted);
        // Each end of each member signs once in a handshake.
        let handshakes = 2 * u64::from(case.members);
        if let Some(counted) = pool_signatures.filter(|counted| *counted < handshakes) {
            return Err(BenchError::Wrong(format!(
                "case {}: the node counts {counted} signatures for {handshakes} sides of handshakes",
                case.name
            )));
        }
        let list = std::fs::read_to_string("/proc/crypto").unwrap_or_default();
        let driver = kernel_algorithm(case).map(|name| CipherDriver::of(name, &list));
        Ok(LinkProof {
            pool_signatures,
            driver,
            moved: self.devices.watched(&later, Duration::ZERO).moved,
        })
    }
}

fn root() -> Result<Root, BenchError> {
    Root::open("/").map_err(|error| BenchError::Setup(error.to_string()))
}

/// Jobs that the node has completed; it has no keys but those of the tunnels.
fn signatures(node: Option<&NodeProcess>) -> Result<Option<u64>, BenchError> {
    node.map(|node| Ok(node.completed()?.values().sum())).transpose()
}

/// The kernel's name of the cipher of a case. `None` where a process encrypts, and for WireGuard, which calls the
/// kernel's library past the list of algorithms.
fn kernel_algorithm(case: &LinkCase) -> Option<&'static str> {
    match case.engine {
        CaseEngine::OpenVpn | CaseEngine::UserIpsec | CaseEngine::WireGuard => None,
        CaseEngine::Dco => Some(if case.cipher.starts_with("CHACHA20") {
            "rfc7539(chacha20,poly1305)"
        } else {
            "gcm(aes)"
        }),
        CaseEngine::KernelIpsec | CaseEngine::PerCpuSas => {
            Some(if case.cipher.contains("chacha20") {
                "rfc7539esp(chacha20,poly1305)"
            } else if case.cipher.contains("gcm") {
                "rfc4106(gcm(aes))"
            } else {
                "authenc(hmac(sha256),cbc(aes))"
            })
        }
    }
}

impl CipherDriver {
    fn of(algorithm: &str, list: &str) -> Self {
        let entries = crypto::algorithms(list);
        let preferred = crypto::winner(&entries, algorithm);
        Self {
            algorithm: algorithm.to_owned(),
            driver: preferred.map(|entry| entry.driver.clone()),
            site: preferred.map(crypto::Algorithm::site),
            device: preferred.and_then(crypto::Algorithm::device),
        }
    }

    fn text(&self) -> String {
        let Some(driver) = &self.driver else {
            return format!("the kernel; /proc/crypto has no {}", self.algorithm);
        };
        match (self.site, self.device) {
            (_, Some(device)) => format!("{driver}: {device}"),
            (Some(ComputeSite::Instructions), _) => format!("{driver}: instructions"),
            (Some(ComputeSite::Generic), _) => format!("{driver}: portable code"),
            _ => driver.clone(),
        }
    }
}

impl LinkProof {
    /// The proofs of all rounds as one: counts are added.
    pub(super) fn sum<'a>(proofs: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = Self::default();
        for Self { pool_signatures, driver, moved } in proofs {
            all.pool_signatures = match (all.pool_signatures, pool_signatures) {
                (None, more) => *more,
                (some, None) => some,
                (Some(some), Some(more)) => Some(some + more),
            };
            all.driver = driver.clone().or(all.driver);
            for one in moved {
                let same =
                    |known: &&mut Moved| known.device == one.device && known.counter == one.counter;
                match all.moved.iter_mut().find(same) {
                    Some(known) => known.by += one.by,
                    None => all.moved.push(one.clone()),
                }
            }
        }
        all
    }

    /// Where packets were encrypted, in words.
    pub(super) fn packets(&self, case: &LinkCase) -> String {
        match (&self.driver, case.engine) {
            (Some(driver), _) => driver.text(),
            (None, CaseEngine::WireGuard) => "the kernel's library, past /proc/crypto".to_owned(),
            (None, _) if case.members == 0 => "not encrypted".to_owned(),
            (None, _) => "OpenSSL in the process: no device, no AF_ALG".to_owned(),
        }
    }

    /// Signatures by the pool, in words.
    pub(super) fn signatures(&self) -> String {
        self.pool_signatures.map_or_else(
            || "none: the keys are files".to_owned(),
            |count| format!("{count} counted by the node"),
        )
    }

    /// Counters of devices, in words.
    pub(super) fn devices(&self) -> String {
        let expected = self.driver.as_ref().and_then(|driver| driver.device);
        match (&self.moved[..], expected) {
            ([], Some(device)) => format!("{device}: none moved, so it was not used"),
            ([], None) => "none moved".to_owned(),
            (moved, _) => moved.iter().map(Moved::to_string).collect::<Vec<_>>().join("; "),
        }
    }

    /// The remark of a plot's category: what differs from a process that computes everything itself.
    pub(super) fn remark(&self) -> Option<String> {
        let driver = self.driver.as_ref().map(CipherDriver::text);
        let pool = self.pool_signatures.map(|count| format!("{count} signatures by the pool"));
        driver.or(pool)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::*;

    const LIST: &str = "\
name         : rfc4106(gcm(aes))
driver       : rfc4106(gcm_base(ctr(aes-generic),ghash-generic))
priority     : 100
selftest     : passed
internal     : no
type         : aead

name         : rfc4106(gcm(aes))
driver       : qat_aes_gcm
priority     : 4001
selftest     : passed
internal     : no
type         : aead
";

    fn case(name: &str) -> &'static LinkCase {
        CASES.into_iter().find(|case| case.name == name).expect("a case")
    }

    #[test]
    fn device_that_is_preferred_and_counts_nothing_is_called_unused() {
        let driver = CipherDriver::of("rfc4106(gcm(aes))", LIST);
        assert_eq!(driver.device, Some("Intel QAT"));
        let mut proof = LinkProof { driver: Some(driver), ..LinkProof::default() };
        assert_eq!(proof.packets(case("esp-aes256")), "qat_aes_gcm: Intel QAT");
        assert_eq!(proof.devices(), "Intel QAT: none moved, so it was not used");
        let moved = Moved { device: "Intel QAT".to_owned(), counter: "requests".to_owned(), by: 7 };
        proof.moved.push(moved);
        assert_eq!(proof.devices(), "Intel QAT: requests moved by 7");
        let both = LinkProof::sum([&proof, &proof]);
        assert_eq!(both.moved[0].by, 14);
        let portable =
            CipherDriver::of("rfc4106(gcm(aes))", LIST.split("\n\n").next().expect("one"));
        assert!(portable.text().ends_with("portable code"), "{}", portable.text());
        assert_eq!(CipherDriver::of("gcm(aes)", LIST).driver, None);
    }

    #[test]
    fn each_case_of_the_kernel_has_an_algorithm_of_its_list() {
        for case in CASES {
            let kernel = case.engine.encrypts_in_kernel() && case.engine != CaseEngine::WireGuard;
            assert_eq!(kernel_algorithm(case).is_some(), kernel, "{}", case.name);
        }
        let text = LinkProof::default().packets(case("one"));
        assert!(text.contains("no device, no AF_ALG"), "{text}");
    }

    #[test]
    fn signatures_of_rounds_are_added_and_absent_ones_stay_absent() {
        let one = |pool_signatures| LinkProof { pool_signatures, ..LinkProof::default() };
        assert_eq!(LinkProof::sum([&one(Some(2)), &one(Some(3))]).pool_signatures, Some(5));
        assert_eq!(LinkProof::sum([&one(None)]).signatures(), "none: the keys are files");
    }
}
