// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Negotiation of version and features. A client offers a range of versions and a set of features. The node
//! answers with the highest common version and the features that both have.
//!
//! Every code and layout of a version is fixed. New codes and messages need a new version or a new feature,
//! and are sent only where it is in force. So a decoder can refuse unknown codes, and old and new peers still
//! understand each other.

use millrace_operation::{Hash, HashAlgorithms, KeyKind, Operation, OperationKind, OperationSet};

use crate::error::WireError;
use crate::message::{Hello, Welcome};
use crate::report::{EdgeCounter, EdgeReport};

/// Lowest protocol version spoken here.
pub const VERSION_MIN: u16 = 1;

/// Highest protocol version spoken here.
pub const VERSION_MAX: u16 = 1;

/// Feature: the client may send [`Report`](crate::ClientMessage::Report).
pub const FEATURE_REPORTS: u64 = 1 << 0;

/// Feature: ML-DSA, its operation and its types of keys.
pub const FEATURE_ML_DSA: u64 = 1 << 1;

/// Feature: the client may send [`Describe`](crate::ClientMessage::Describe).
pub const FEATURE_DESCRIPTION: u64 = 1 << 2;

/// Feature: the node may send [`RetryAfter`](crate::NodeMessage::RetryAfter).
pub const FEATURE_RETRY_AFTER: u64 = 1 << 3;

/// Feature: reports and descriptions may have the counters [of devices](EdgeCounter::is_of_device).
pub const FEATURE_DEVICE_COUNTERS: u64 = 1 << 4;

/// Every feature known here, with its name in the specification.
pub const FEATURE_NAMES: &[(u64, &str)] = &[
    (FEATURE_REPORTS, "edge-reports"),
    (FEATURE_ML_DSA, "ml-dsa"),
    (FEATURE_DESCRIPTION, "description"),
    (FEATURE_RETRY_AFTER, "retry-after"),
    (FEATURE_DEVICE_COUNTERS, "device-counters"),
];

/// Features known here.
pub const FEATURES: u64 = FEATURE_REPORTS
    | FEATURE_ML_DSA
    | FEATURE_DESCRIPTION
    | FEATURE_RETRY_AFTER
    | FEATURE_DEVICE_COUNTERS;

/// The feature that an operation needs; 0 if version 1 always has the operation. A new operation needs a new
/// feature, because peers without it treat its code as a protocol violation.
#[must_use]
pub const fn feature_of_operation(kind: OperationKind) -> u64 {
    match kind {
        OperationKind::RsaPkcs1Sign
        | OperationKind::RsaPssSign
        | OperationKind::RsaOaepDecrypt
        | OperationKind::RsaPkcs1Decrypt
        | OperationKind::RsaTlsPremaster
        | OperationKind::RsaRaw
        | OperationKind::EcdsaSign
        | OperationKind::Ecdh
        | OperationKind::X25519
        | OperationKind::Ed25519Sign
        | OperationKind::DhDerive
        | OperationKind::DsaSign => 0,
        OperationKind::MlDsaSign => FEATURE_ML_DSA,
    }
}

/// The feature that a hash needs; 0 if version 1 always has the hash.
#[must_use]
pub const fn feature_of_hash(hash: Hash) -> u64 {
    match hash {
        Hash::Md5Sha1
        | Hash::Sha1
        | Hash::Sha224
        | Hash::Sha256
        | Hash::Sha384
        | Hash::Sha512
        | Hash::Sha512_256 => 0,
    }
}

/// The feature that a kind of key needs; 0 if version 1 always has the kind.
#[must_use]
pub const fn feature_of_key(kind: KeyKind) -> u64 {
    match kind {
        KeyKind::Rsa
        | KeyKind::P256
        | KeyKind::P384
        | KeyKind::P521
        | KeyKind::X25519
        | KeyKind::Ed25519
        | KeyKind::Dh
        | KeyKind::Dsa => 0,
        KeyKind::MlDsa44 | KeyKind::MlDsa65 | KeyKind::MlDsa87 => FEATURE_ML_DSA,
    }
}

/// The codes that may be sent on a connection, given its features.
///
/// A node lists only the operations and hashes that pass [`Self::operations`] and [`Self::hashes`], and
/// treats a key without [`Self::has_key`] as one that does not exist. A client sends a job only if
/// [`Self::has_operation`] allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vocabulary(u64);

impl Vocabulary {
    /// The vocabulary of a connection with these features in force.
    #[must_use]
    pub const fn new(features: u64) -> Self {
        Self(features)
    }

    const fn has(self, feature: u64) -> bool {
        self.0 & feature == feature
    }

    /// Whether keys of this kind may be sent.
    #[must_use]
    pub const fn has_key(self, kind: KeyKind) -> bool {
        self.has(feature_of_key(kind))
    }

    /// Whether the operation and its hashes may be sent.
    #[must_use]
    pub fn has_operation(self, operation: &Operation) -> bool {
        self.has(feature_of_operation(operation.kind()))
            && operation.hashes().into_iter().flatten().all(|hash| self.has(feature_of_hash(hash)))
    }

    /// Whether [`RetryAfter`](crate::NodeMessage::RetryAfter) may be sent.
    #[must_use]
    pub const fn has_retry_after(self) -> bool {
        self.has(FEATURE_RETRY_AFTER)
    }

    /// Keeps the counters that may be sent.
    #[must_use]
    pub fn report(self, report: &EdgeReport) -> EdgeReport {
        let mut kept = *report;
        if !self.has(FEATURE_DEVICE_COUNTERS) {
            for counter in EdgeCounter::ALL.iter().filter(|it| it.is_of_device()) {
                kept.set(*counter, 0);
            }
        }
        kept
    }

    /// Keeps the operations that may be sent.
    #[must_use]
    pub fn operations(self, operations: OperationSet) -> OperationSet {
        operations.iter().filter(|kind| self.has(feature_of_operation(*kind))).collect()
    }

    /// Keeps the hashes that may be sent.
    #[must_use]
    pub fn hashes(self, hashes: HashAlgorithms) -> HashAlgorithms {
        hashes.iter().filter(|hash| self.has(feature_of_hash(*hash))).collect()
    }
}

/// Node side: chooses the version and the features for this `Hello`.
///
/// # Errors
/// [`WireError::NoCommonVersion`].
pub fn negotiate_version(hello: &Hello) -> Result<(u16, u64), WireError> {
    let Hello { min_version: min, max_version: max, .. } = *hello;
    let version = max.min(VERSION_MAX);
    if version < min.max(VERSION_MIN) {
        return Err(WireError::NoCommonVersion { min, max });
    }
    Ok((version, hello.features & FEATURES))
}

/// Client side: checks that this `Welcome` is a valid answer to the `Hello`.
///
/// # Errors
/// [`WireError::VersionNotOffered`] or [`WireError::FeaturesNotOffered`]: the node is broken.
pub fn accept_version(hello: &Hello, welcome: &Welcome) -> Result<(), WireError> {
    if !(hello.min_version..=hello.max_version).contains(&welcome.version) {
        return Err(WireError::VersionNotOffered(welcome.version));
    }
    match welcome.features & !hello.features {
        0 => Ok(()),
        excess => Err(WireError::FeaturesNotOffered(excess)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(min_version: u16, max_version: u16) -> Hello {
        Hello { min_version, max_version, features: u64::MAX, agent: String::new() }
    }

    #[test]
    fn highest_common_version_wins_and_unknown_features_are_ignored() {
        assert_eq!(negotiate_version(&hello(1, 1)), Ok((1, FEATURES)));
        assert_eq!(negotiate_version(&hello(1, u16::MAX)), Ok((VERSION_MAX, FEATURES)));
        assert_eq!(negotiate_version(&hello(0, 1)), Ok((1, FEATURES)));
    }

    #[test]
    fn disjoint_version_ranges_are_a_version_fault() {
        for (min, max) in [(VERSION_MAX + 1, u16::MAX), (0, VERSION_MIN - 1)] {
            let error = negotiate_version(&hello(min, max)).unwrap_err();
            assert_eq!(error, WireError::NoCommonVersion { min, max });
            assert_eq!(error.fault(), crate::Fault::Version);
        }
    }

    #[test]
    fn codes_without_features_equal_those_of_the_first_release() {
        let all: OperationSet = OperationKind::ALL.iter().copied().collect();
        let hashes: HashAlgorithms = Hash::ALL.iter().copied().collect();
        let first = Vocabulary::new(0);
        // Bits 1 to 12 and 1 to 7 are the codes that peers without any feature know.
        assert_eq!(first.operations(all).bits(), 0x1ffe);
        assert_eq!(first.hashes(hashes).bits(), 0xfe);
        let keys = KeyKind::ALL.iter().filter(|kind| first.has_key(**kind));
        assert!(keys.map(|kind| kind.code()).eq(1..=8));
        let now = Vocabulary::new(FEATURES);
        assert_eq!(now.operations(all), all);
        assert_eq!(now.hashes(hashes), hashes);
        assert!(KeyKind::ALL.iter().all(|kind| now.has_key(*kind)));
    }

    #[test]
    fn counters_without_the_feature_are_those_of_the_first_release() {
        let mut all = EdgeReport::default();
        for counter in EdgeCounter::ALL {
            all.set(*counter, 1);
        }
        let first = Vocabulary::new(FEATURE_REPORTS).report(&all);
        let codes = first.iter().filter(|(_, count)| *count > 0);
        let codes = codes.map(|(counter, _)| counter.code());
        assert!(codes.eq((0x01..=0x09).chain(0x10..=0x17)));
        assert_eq!(Vocabulary::new(FEATURES).report(&all), all);
    }

    #[test]
    fn features_have_one_bit_and_a_name_each() {
        assert_eq!(FEATURE_NAMES.iter().fold(0, |all, (bit, _)| all | bit), FEATURES);
        assert!(FEATURE_NAMES.iter().all(|(bit, _)| bit.is_power_of_two()));
    }

    #[test]
    fn welcome_that_does_not_match_the_hello_is_refused() {
        let hello = Hello { min_version: 1, max_version: 2, features: 0b101, agent: String::new() };
        let welcome = |version, features| Welcome {
            version,
            features,
            node: String::new(),
            max_in_flight: 1,
            max_keys: 1,
        };
        assert_eq!(accept_version(&hello, &welcome(2, 0b100)), Ok(()));
        assert_eq!(accept_version(&hello, &welcome(3, 0)), Err(WireError::VersionNotOffered(3)));
        assert_eq!(accept_version(&hello, &welcome(0, 0)), Err(WireError::VersionNotOffered(0)));
        assert_eq!(
            accept_version(&hello, &welcome(1, 0b110)),
            Err(WireError::FeaturesNotOffered(0b010))
        );
    }
}
