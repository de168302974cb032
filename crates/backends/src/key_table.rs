// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The table of open keys. Each backend has its own, with its own form of a key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use millrace_engine::backend::BackendKey;
use millrace_operation::KeyError;

/// Most keys that a backend may have open at once. An RSA-8192 key takes about 20 KiB with AWS-LC's contexts, so
/// the table of the software backend is bounded at about 1.3 GiB.
pub(crate) const MAX_KEYS: usize = 65_536;

type OpenKeys<K> = HashMap<BackendKey, Arc<K>>;

/// The open keys by name. A name is never reused.
pub(crate) struct KeyTable<K> {
    limit: usize,
    next: AtomicU64,
    keys: RwLock<OpenKeys<K>>,
}

impl<K> KeyTable<K> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, next: AtomicU64::new(0), keys: RwLock::default() }
    }

    pub(crate) fn insert(&self, loaded: K) -> Result<BackendKey, KeyError> {
        let mut keys = self.write();
        if keys.len() >= self.limit {
            return Err(KeyError::TooMany);
        }
        let name = BackendKey(self.next.fetch_add(1, Ordering::Relaxed));
        keys.insert(name, Arc::new(loaded));
        Ok(name)
    }

    pub(crate) fn remove(&self, name: BackendKey) {
        // The key is freed after the lock is released.
        let removed = self.write().remove(&name);
        drop(removed);
    }

    pub(crate) fn find(&self, name: BackendKey) -> Option<Arc<K>> {
        self.read().get(&name).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.read().len()
    }

    fn read(&self) -> RwLockReadGuard<'_, OpenKeys<K>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, OpenKeys<K>> {
        self.keys.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_table_is_bounded_and_never_reuses_names() {
        let table = KeyTable::new(2);
        let first = table.insert("first").expect("room");
        let second = table.insert("second").expect("room");
        assert_eq!(table.insert("third"), Err(KeyError::TooMany));
        table.remove(first);
        let third = table.insert("third").expect("room");
        assert!(third != first && third != second);
        assert_eq!(table.find(first), None);
        assert_eq!(table.find(third).as_deref(), Some(&"third"));
    }
}
