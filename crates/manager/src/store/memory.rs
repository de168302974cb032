// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A store in memory, for simulations and tests. It ends with the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_operation::sync::lock;

use super::{Change, Changes, Snapshot, Store, StoreEntry, StoreError, Transaction, Write};

/// Records in memory, for tests and trials.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    revision: u64,
    entries: BTreeMap<String, (Arc<[u8]>, u64)>,
    log: Vec<Change>,
    /// Changes up to this revision are no longer in the log.
    compacted: u64,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets changes up to a revision, as etcd does after a compaction.
    pub fn compact(&self, revision: u64) {
        let mut state = lock(&self.state);
        state.compacted = revision.min(state.revision);
        let compacted = state.compacted;
        state.log.retain(|change| change.revision > compacted);
    }
}

impl Store for MemoryStore {
    fn commit(&self, transaction: &Transaction) -> Result<u64, StoreError> {
        transaction.check()?;
        let mut state = lock(&self.state);
        let holds = transaction.when.iter().all(|condition| {
            let entry = state.entries.get(&condition.key);
            entry.map_or(0, |(_, revision)| *revision) == condition.revision
        });
        if !holds {
            return Err(StoreError::Conflict);
        }
        let revision = state.revision + 1;
        for write in &transaction.then {
            let (key, value) = match write {
                Write::Put { key, value } => {
                    let value: Arc<[u8]> = value.as_slice().into();
                    state.entries.insert(key.clone(), (Arc::clone(&value), revision));
                    (key, Some(value))
                }
                Write::Delete { key } => {
                    if state.entries.remove(key).is_none() {
                        continue;
                    }
                    (key, None)
                }
            };
            state.log.push(Change { key: key.clone(), value, revision });
        }
        state.revision = revision;
        drop(state);
        self.changed.notify_all();
        Ok(revision)
    }

    fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        self.page(prefix, prefix, usize::MAX)
    }

    fn page(&self, prefix: &str, from: &str, limit: usize) -> Result<Snapshot, StoreError> {
        let state = lock(&self.state);
        let below = state.entries.range(from.max(prefix).to_owned()..);
        let below = below.take_while(|(key, _)| key.starts_with(prefix));
        let entries = below.take(limit).map(|(key, (value, revision))| StoreEntry {
            key: key.clone(),
            value: Arc::clone(value),
            revision: *revision,
        });
        Ok(Snapshot { revision: state.revision, entries: entries.collect() })
    }

    fn changes(&self, prefix: &str, after: u64, wait: Duration) -> Result<Changes, StoreError> {
        let until = Instant::now() + wait;
        let mut state = lock(&self.state);
        loop {
            if after < state.compacted {
                return Err(StoreError::Compacted(after));
            }
            let from = state.log.partition_point(|change| change.revision <= after);
            let changes = state.log[from..].iter();
            let changes: Vec<Change> =
                changes.filter(|change| change.key.starts_with(prefix)).cloned().collect();
            let left = until.saturating_duration_since(Instant::now());
            if !changes.is_empty() || left.is_zero() {
                return Ok(Changes { revision: state.revision.max(after), changes });
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
