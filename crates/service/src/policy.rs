// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The policy of a key: which identities may do which operations with which hashes.

use millrace_operation::{
    Hash, HashAlgorithms, KeyType, Operation, OperationKind, OperationSet, Purpose,
};

/// Begins the name of a tenant in key policies.
pub const TENANT_PREFIX: &str = "tenant:";

/// The identity in a policy that admits every authenticated client.
pub const EVERY_CLIENT: &str = "*";

/// Permissions for a key: clients, operations and hashes. Everything that is not allowed is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPolicy {
    /// Identities that may use the key, as exact names (`uid:33`, `cert:gateway-1`); [`EVERY_CLIENT`] admits
    /// every client that the node has authenticated.
    pub identities: Vec<String>,
    /// The operations that are allowed.
    pub operations: OperationSet,
    /// The hashes that are allowed, for message and MGF1 alike, where an operation names one.
    pub hashes: HashAlgorithms,
}

impl KeyPolicy {
    /// The default operations and hashes for these identities: signatures, OAEP and key agreement; all hashes.
    /// PKCS#1 v1.5 decryption, the TLS premaster operation and raw RSA are off.
    #[must_use]
    pub fn signing<'a>(identities: impl IntoIterator<Item = &'a str>) -> Self {
        let off =
            [OperationKind::RsaPkcs1Decrypt, OperationKind::RsaTlsPremaster, OperationKind::RsaRaw];
        Self {
            identities: identities.into_iter().map(str::to_owned).collect(),
            operations: OperationKind::ALL.iter().copied().filter(|k| !off.contains(k)).collect(),
            hashes: Hash::ALL.iter().copied().collect(),
        }
    }

    /// The policy of a key that a session imported for itself: the session owns it, so everything is
    /// allowed, raw RSA included.
    #[must_use]
    pub fn session_owned() -> Self {
        Self {
            identities: vec![EVERY_CLIENT.to_owned()],
            operations: OperationKind::ALL.iter().copied().collect(),
            hashes: Hash::ALL.iter().copied().collect(),
        }
    }

    /// The policy of a key of type `new` that takes the place of one of type `old` with this policy. A key of another
    /// kind has other operations: it gets those of the same purposes, and no purpose is added. If a former version
    /// (`former`, the newest first, each with its type and its operations) was of the new kind, it gets no operation
    /// that this version did not have.
    #[must_use]
    pub fn renewed(
        self,
        old: KeyType,
        new: KeyType,
        former: impl IntoIterator<Item = (KeyType, OperationSet)>,
    ) -> Self {
        if old.kind() == new.kind() {
            return self;
        }
        let before = self.operations.iter().filter(|kind| kind.fits(old));
        let purposes: Vec<Purpose> = before.map(OperationKind::purpose).collect();
        let of_kind = former.into_iter().find(|(key_type, _)| key_type.kind() == new.kind());
        let bound = of_kind.map_or_else(|| Self::signing([]).operations, |(_, bound)| bound);
        let operations = bound.iter().filter(|kind| kind.fits(new));
        let operations = operations.filter(|kind| purposes.contains(&kind.purpose())).collect();
        Self { operations, ..self }
    }

    /// Whether `identity` may use the key at all. If not, the key does not exist for it.
    #[must_use]
    pub fn admits(&self, identity: &str) -> bool {
        self.identities.iter().any(|allowed| allowed == EVERY_CLIENT || allowed == identity)
    }

    /// Whether the operation, with its hashes, is allowed.
    #[must_use]
    pub fn permits(&self, operation: &Operation) -> bool {
        self.operations.contains(operation.kind())
            && operation.hashes().into_iter().flatten().all(|hash| self.hashes.contains(hash))
    }
}

/// Whether a policy names the client: its identity, its tenant (`tenant:NAME`), or every client.
pub(crate) fn admits(policy: &KeyPolicy, identity: &str, tenant: Option<&str>) -> bool {
    policy.admits(identity) || tenant.is_some_and(|tenant| policy.admits(tenant))
}

#[cfg(test)]
mod tests {
    use millrace_operation::Curve;

    use super::*;

    #[test]
    fn default_policy_denies_what_makes_an_oracle() {
        let policy = KeyPolicy::signing(["*"]);
        assert!(!policy.permits(&Operation::RsaRaw));
        assert!(!policy.permits(&Operation::RsaPkcs1Decrypt));
        assert!(!policy.permits(&Operation::RsaTlsPremaster { client_version: 0x0303 }));
        assert!(policy.permits(&Operation::RsaPkcs1Sign { hash: Hash::Sha256 }));
        assert!(policy.permits(&Operation::Ecdh));
    }

    #[test]
    fn hash_of_mgf1_counts_too() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.hashes = [Hash::Sha256].into_iter().collect();
        let pss = |mgf_hash| Operation::RsaPssSign { hash: Hash::Sha256, mgf_hash, salt_len: 32 };
        assert!(policy.permits(&pss(Hash::Sha256)));
        assert!(!policy.permits(&pss(Hash::Sha1)));
    }

    #[test]
    fn renewal_with_another_kind_of_key_adds_no_purpose_and_no_operation_of_before() {
        use OperationKind::*;
        let rsa = KeyType::Rsa { bits: 2048 };
        let (p256, p384) = (KeyType::Ec(Curve::P256), KeyType::Ec(Curve::P384));
        let policy = |kinds: &[OperationKind]| KeyPolicy {
            operations: kinds.iter().copied().collect(),
            ..KeyPolicy::signing(["uid:33"])
        };
        let set = |kinds: &[OperationKind]| kinds.iter().copied().collect::<OperationSet>();
        let everything = OperationKind::ALL;
        for (before, old, new, after) in [
            (&[RsaPssSign][..], rsa, p256, &[EcdsaSign][..]),
            (everything, rsa, p256, &[EcdsaSign]),
            (&[RsaOaepDecrypt], rsa, p256, &[]),
            (&[EcdsaSign], p256, rsa, &[RsaPkcs1Sign, RsaPssSign]),
            (everything, p256, rsa, &[RsaPkcs1Sign, RsaPssSign]),
            (&[EcdsaSign, Ecdh], p256, p384, &[EcdsaSign, Ecdh]),
            (&[EcdsaSign], p256, KeyType::X25519, &[]),
            (&[Ecdh], p256, KeyType::X25519, &[X25519]),
            (&[RsaPssSign], rsa, KeyType::Rsa { bits: 4096 }, &[RsaPssSign]),
        ] {
            let renewed = policy(before).renewed(old, new, []);
            assert_eq!(renewed.operations, set(after), "{before:?} of {old} to {new}");
            assert_eq!(renewed.identities, ["uid:33"]);
        }
        let former = [(p384, set(&[EcdsaSign])), (rsa, set(&[RsaPssSign, RsaOaepDecrypt]))];
        let back = policy(&[EcdsaSign]).renewed(p256, rsa, former);
        assert_eq!(back.operations, set(&[RsaPssSign]));
    }

    #[test]
    fn identities_are_exact() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.identities = vec!["uid:33".to_owned()];
        assert!(policy.admits("uid:33"));
        assert!(!policy.admits("uid:333"));
        assert!(!policy.admits("uid:3"));
        assert!(!policy.admits(""));
    }
}
