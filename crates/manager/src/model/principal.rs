// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Principals: the callers of the manager's API. Roles are apart from tenants: a tenant's gateway needs none.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::name::PrincipalName;

/// Rights of a caller of the API. Each role includes the rights of those after it, except that only a node
/// registers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Changes everything, principals and keys included.
    Admin,
    /// Changes tenants, quotas and placement; drains and removes nodes.
    Operator,
    /// Reads.
    Viewer,
    /// Registers and shows that it is there; reads the grants for itself.
    Node,
}

/// A user or program of the API, as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Principal {
    /// Name for the audit log.
    pub name: PrincipalName,
    /// Its rights.
    pub role: Role,
    /// How the principal proves its name.
    pub credential: Credential,
    /// End of its validity, in milliseconds since 1970; `None` for no end.
    #[serde(default)]
    pub expires_ms: Option<u64>,
}

/// Proof of a principal's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Credential {
    /// The identity of a client certificate: `cert:NAME` or a SPIFFE URI.
    Identity(String),
    /// A bearer token, of which only the hash is kept.
    Token(TokenHash),
}

/// SHA-256 of a token of at least 256 random bits, which a fast hash does not weaken. In hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TokenHash(String);

impl TokenHash {
    /// The hash of a token.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(hex::encode(digest(&SHA256, token.as_bytes())))
    }

    /// Whether `token` has this hash; the time taken does not depend on it.
    #[must_use]
    pub fn matches(&self, token: &str) -> bool {
        verify_slices_are_equal(self.0.as_bytes(), Self::of(token).0.as_bytes()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_kept_as_a_hash_and_recognised() {
        let hash = TokenHash::of("mr-7f");
        assert!(hash.matches("mr-7f") && !hash.matches("mr-7g"));
        assert!(!serde_json::to_string(&hash).unwrap().contains("mr-7f"));
    }
}
