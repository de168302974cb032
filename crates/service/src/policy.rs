// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The policy of a key: which identities may do which operations with which hashes.

use millrace_operation::{Hash, HashAlgorithms, Operation, OperationKind, OperationSet};

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
    fn identities_are_exact() {
        let mut policy = KeyPolicy::signing(["*"]);
        policy.identities = vec!["uid:33".to_owned()];
        assert!(policy.admits("uid:33"));
        assert!(!policy.admits("uid:333"));
        assert!(!policy.admits("uid:3"));
        assert!(!policy.admits(""));
    }
}
