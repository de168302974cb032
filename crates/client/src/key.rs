// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A key as the client holds it: its source, and the facts that a node stated about it. Its handles, one
//! per connection, belong to [`crate::connection`] and come and go with the nodes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::digest::{SHA256, digest};
use millrace_operation::{HashAlgorithms, KeyInfo, OperationSet, PrivateKey};
use millrace_wire::KeySelector;

/// Names a key in this process and in everything forked from it.
pub(crate) type KeyId = u64;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The hash by which [`KeySelector::SpkiSha256`] names the key with this SPKI.
pub(crate) fn spki_sha256(spki: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, spki).as_ref());
    hash
}

/// The source from which nodes get a key.
pub(crate) enum KeySource {
    /// The store of each node.
    Selector(KeySelector),
    /// This process. The key is zeroised on drop.
    Import(PrivateKey),
}

/// The facts that a node states about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyFacts {
    pub(crate) info: KeyInfo,
    pub(crate) operations: OperationSet,
    pub(crate) hashes: HashAlgorithms,
}

/// A key without its owner: dropping it closes nothing.
pub(crate) struct KeyData {
    pub(crate) id: KeyId,
    pub(crate) source: KeySource,
    /// The facts from the first node. Later nodes must have the same key.
    pub(crate) facts: OnceLock<KeyFacts>,
}

impl KeyData {
    pub(crate) fn new(source: KeySource) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self { id, source, facts: OnceLock::new() }
    }

    /// Whether this process holds the private key, so that its jobs need not wait for a node.
    pub(crate) fn is_import(&self) -> bool {
        matches!(self.source, KeySource::Import(_))
    }

    /// Whether a node that states these facts has opened the key that it was asked for.
    pub(crate) fn is_answered_by(&self, facts: &KeyFacts) -> bool {
        match &self.source {
            KeySource::Selector(KeySelector::SpkiSha256(hash)) => {
                spki_sha256(&facts.info.spki) == *hash
            }
            KeySource::Selector(KeySelector::Name(_)) | KeySource::Import(_) => true,
        }
    }

    /// Whether a node that states these facts has the same key as the first node. A name may belong to
    /// different keys on two nodes, but the certificate fits one of them only.
    pub(crate) fn agrees_with(&self, facts: &KeyFacts) -> bool {
        self.facts.get_or_init(|| facts.clone()).info == facts.info
    }
}
