// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Stores of the pool's records: a map from keys to bytes with revisions, as etcd has it.
//!
//! ```text
//!  commit(when: mod revisions, then: puts and deletes) ──► revision, or Conflict and nothing has changed
//!  read(prefix)                                        ──► entries at one revision
//!  changes(after)                                      ──► every change after a revision, in their order
//! ```
//!
//! A revision counts the commits of a store. All changes of one commit have its revision. [`MemoryStore`] is for
//! simulations, [`SqliteStore`] for one manager, [`EtcdStore`] for several. One
//! suite tests all three. Calls block; a caller with tasks gives them a thread.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod etcd;
mod memory;
mod sqlite;

pub use etcd::{EtcdConfig, EtcdStore};
pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

/// Bound on the operations of a transaction: etcd refuses more than 128 (`--max-txn-ops`).
pub const MAX_OPERATIONS: usize = 100;

/// Bound on a value: etcd refuses requests above 1.5 MiB (`--max-request-bytes`).
pub const MAX_VALUE_LEN: usize = 1024 * 1024;

/// Bound on a key, in bytes: a prefix and two names.
pub const MAX_KEY_LEN: usize = 200;

/// Bytes under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEntry {
    /// Name of the record.
    pub key: String,
    /// Content of the record.
    pub value: Arc<[u8]>,
    /// Revision of the commit that wrote it last.
    pub revision: u64,
}

/// All entries below a prefix at one revision, in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Revision of the store.
    pub revision: u64,
    /// Records in the order of their names.
    pub entries: Vec<StoreEntry>,
}

/// Change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the changed record.
    pub key: String,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Arc<[u8]>>,
    /// Revision of the commit.
    pub revision: u64,
}

/// Changes after a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Every change up to this revision is in `changes`. Never within a commit.
    pub revision: u64,
    /// The changes, by revision.
    pub changes: Vec<Change>,
}

/// Precondition of a transaction on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Name of the record that must not have changed.
    pub key: String,
    /// Revision of its last write; 0 requires that there is none.
    pub revision: u64,
}

/// Write of a transaction to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets the value.
    Put {
        /// Name of the record.
        key: String,
        /// New content of the record.
        value: Vec<u8>,
    },
    /// Deletes the key, if it is there.
    Delete {
        /// Name of the record.
        key: String,
    },
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Writes that happen together if all conditions hold, and not at all otherwise. A key is written once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Preconditions; all must hold.
    pub when: Vec<Condition>,
    /// Writes that are made if the preconditions hold.
    pub then: Vec<Write>,
}

impl Transaction {
    /// Adds the condition that `key` was written last at `revision`; 0 for a key that is not there.
    pub fn require(&mut self, key: impl Into<String>, revision: u64) {
        self.when.push(Condition { key: key.into(), revision });
    }

    /// Sets a value.
    pub fn put(&mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) {
        self.then.push(Write::Put { key: key.into(), value: value.into() });
    }

    /// Deletes a key.
    pub fn delete(&mut self, key: impl Into<String>) {
        self.then.push(Write::Delete { key: key.into() });
    }

    /// Checks the bounds that every store has.
    ///
    /// # Errors
    /// [`StoreError::Bounds`].
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let bad = |problem: String| Err(StoreError::Bounds(problem));
        if self.when.len() > MAX_OPERATIONS || self.then.len() > MAX_OPERATIONS {
            return bad(format!("a transaction has at most {MAX_OPERATIONS} operations"));
        }
        if self.then.is_empty() {
            return bad("a transaction writes at least one key".to_owned());
        }
        let conditions = self.when.iter().map(|condition| condition.key.as_str());
        for key in conditions.chain(self.then.iter().map(Write::key)) {
            let printable = key.bytes().all(|byte| byte.is_ascii_graphic());
            if !(1..=MAX_KEY_LEN).contains(&key.len()) || !printable {
                return bad(format!("a key has 1 to {MAX_KEY_LEN} printable ASCII characters"));
            }
        }
        for write in &self.then {
            match write {
                Write::Put { key, value } if value.len() > MAX_VALUE_LEN => {
                    return bad(format!("{key}: a record has at most {MAX_VALUE_LEN} bytes"));
                }
                Write::Put { .. } | Write::Delete { .. } => {}
            }
        }
        let mut keys: Vec<&str> = self.then.iter().map(Write::key).collect();
        keys.sort_unstable();
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return bad("a transaction writes a key once".to_owned());
        }
        Ok(())
    }
}

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A condition does not hold. Nothing has changed; read again.
    #[error("another manager changed the same record: try again")]
    Conflict,
    /// The changes after this revision are no longer kept. Read everything again.
    #[error("the store no longer has the changes after revision {0}")]
    Compacted(u64),
    /// The store did not answer: whether a transaction was done is not known.
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    /// The store refuses writes until an operator acts, for example because its disk is full. Nothing has changed.
    #[error("the store takes no writes: {0}")]
    Full(String),
    /// A bound of this module.
    #[error("{0}")]
    Bounds(String),
    /// The store holds what it should not.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The store cannot be opened as it is configured.
    #[error("{0}")]
    Configuration(String),
}

impl StoreError {
    /// Whether the same call can succeed later without a change of configuration.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Conflict | Self::Compacted(_) | Self::Unavailable(_) | Self::Full(_) => true,
            Self::Bounds(_) | Self::Damaged(_) | Self::Configuration(_) => false,
        }
    }
}

/// Opens the store that a command line names: `memory:`, `sqlite:PATH`, `etcd://HOST:PORT[,HOST:PORT…]`, or
/// `etcds://HOST:PORT[,…]?ca=FILE[&cert=FILE&key=FILE]` for etcd over TLS.
///
/// # Errors
/// The text names no store, or the store cannot be opened. Etcd need not run yet.
pub fn open(location: &str) -> Result<Arc<dyn Store>, StoreError> {
    if location == "memory:" {
        return Ok(Arc::new(MemoryStore::new()));
    }
    if let Some(path) = location.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
        return Ok(Arc::new(SqliteStore::open(Path::new(path))?));
    }
    Ok(Arc::new(EtcdStore::open(&EtcdConfig::parse(location)?)?))
}

/// A store of records.
pub trait Store: Send + Sync + fmt::Debug {
    /// Does a transaction; returns its revision.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if a condition does not hold. After [`StoreError::Unavailable`] the transaction may
    /// have been done.
    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError>;

    /// Everything below `prefix`, not older than every commit that ended before the call.
    ///
    /// # Errors
    /// The store cannot be reached or is damaged.
    fn read(&self, prefix: &str) -> Result<Snapshot, StoreError>;

    /// The first `limit` entries with keys from `from` on, below `prefix`.
    ///
    /// # Errors
    /// The store cannot be reached or is damaged.
    fn page(&self, prefix: &str, from: &str, limit: usize) -> Result<Snapshot, StoreError>;

    /// The changes below `prefix` after a revision. Waits up to `wait` for the first one, and returns an answer
    /// without changes then.
    ///
    /// # Errors
    /// [`StoreError::Compacted`], or the store cannot be reached.
    fn changes(&self, prefix: &str, after: u64, wait: Duration) -> Result<Changes, StoreError>;
}
