// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A key as the client holds it: its source, and the facts that a node stated about it. Its handles, one
//! per connection, belong to [`crate::connection`] and come and go with the nodes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use millrace_operation::key::{KeyInfo, PrivateKey};
use millrace_operation::sets::{HashAlgorithms, OperationSet};
use millrace_wire::KeySelector;

use crate::pool::PoolShared;

/// Names a key in this process and in everything forked from it.
pub(crate) type KeyId = u64;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

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

    /// Whether a node that states these facts has the same key as the first node. A name may belong to
    /// different keys on two nodes, but the certificate fits one of them only.
    pub(crate) fn agrees_with(&self, facts: &KeyFacts) -> bool {
        self.facts.get_or_init(|| facts.clone()).info == facts.info
    }
}

/// A key that can be used at every node that has it. Cheap to clone; when the last clone is dropped,
/// its handles are closed, and an imported key is zeroised.
///
/// The key survives reconnects, failover and fork: it is opened again wherever it is needed.
#[derive(Clone)]
pub struct RemoteKey {
    inner: Arc<OwnedKey>,
}

struct OwnedKey {
    data: Arc<KeyData>,
    facts: KeyFacts,
    pool: Weak<PoolShared>,
}

impl RemoteKey {
    /// A key that a node has opened, with the facts it stated.
    pub(crate) fn new(data: Arc<KeyData>, facts: KeyFacts, pool: Weak<PoolShared>) -> Self {
        Self { inner: Arc::new(OwnedKey { data, facts, pool }) }
    }

    /// Type and public half of the key.
    #[must_use]
    pub fn info(&self) -> &KeyInfo {
        &self.inner.facts.info
    }

    /// The operations that this client might do with it when the first node opened it. The policy may have
    /// changed since: the node that gets a job decides.
    #[must_use]
    pub fn operations(&self) -> OperationSet {
        self.inner.facts.operations
    }

    /// The hashes that it might be used with when the first node opened it; see [`Self::operations`].
    #[must_use]
    pub fn hashes(&self) -> HashAlgorithms {
        self.inner.facts.hashes
    }

    pub(crate) fn data(&self) -> &Arc<KeyData> {
        &self.inner.data
    }

    pub(crate) fn belongs_to(&self, pool: &Arc<PoolShared>) -> bool {
        std::ptr::eq(self.inner.pool.as_ptr(), Arc::as_ptr(pool))
    }
}

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteKey({})", self.info().key_type)
    }
}

impl Drop for OwnedKey {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.close_key(self.data.id);
        }
    }
}
