// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The loaded keys of a node. Changes in the store reach sessions that have keys open.
//!
//! ```text
//!  store ──reload()──► KeySet (replaced as a whole) ──find──► KeyEntry ◄── sessions hold it
//!                                                             policy, revision: changed in place
//! ```
//!
//! A session stores the revision of an entry when it reads the policy, and compares one number per job. A
//! changed policy or a removal changes the revision, so it takes effect with the next job.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use aws_lc_rs::digest::{SHA256, digest};
use millrace_engine::{Engine, Key, KeyError, KeyInfo, KeyPolicy};
use millrace_wire::KeySelector;
use tracing::{info, warn};

use crate::store::{KeyStore, Stamp, StoreError};

/// A key that sessions can have open. `K` is the engine's key type.
pub struct KeyEntry<K> {
    name: Arc<str>,
    key: K,
    info: KeyInfo,
    policy: RwLock<Arc<KeyPolicy>>,
    /// Increases with every change of the policy; [`REVOKED`] at the end.
    revision: AtomicU64,
}

/// The revision of an entry that is no longer in the store.
const REVOKED: u64 = u64::MAX;

impl<K> KeyEntry<K> {
    /// An entry with a policy in force.
    pub fn new(name: &str, key: K, info: KeyInfo, policy: KeyPolicy) -> Self {
        let policy = RwLock::new(Arc::new(policy));
        Self {
            name: name.into(),
            key,
            info,
            policy,
            revision: AtomicU64::new(0),
        }
    }

    /// The key's name in the store.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The engine's key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Type and public half.
    pub fn info(&self) -> &KeyInfo {
        &self.info
    }

    /// The revision of [`Self::policy`]. Read the revision first, then the policy: an older revision only
    /// makes the next check read the policy again.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The policy in force; `None` once the key was removed or replaced by another.
    pub fn policy(&self) -> Option<Arc<KeyPolicy>> {
        if self.revision() == REVOKED {
            return None;
        }
        Some(Arc::clone(
            &self.policy.read().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// Replaces the policy. Sessions with the key open use the new one for their next job.
    pub fn set_policy(&self, policy: KeyPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// Takes the key out of service, also for sessions that have it open.
    pub fn revoke(&self) {
        self.revision.store(REVOKED, Ordering::Release);
    }
}

impl<K> fmt::Debug for KeyEntry<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyEntry({}, {})", self.name, self.info.key_type)
    }
}

/// A snapshot of all keys.
#[derive(Debug)]
pub struct KeySet<K> {
    by_name: HashMap<Arc<str>, Arc<KeyEntry<K>>>,
    /// Several names may have the same key with different policies.
    by_spki: HashMap<[u8; 32], Vec<Arc<KeyEntry<K>>>>,
}

impl<K> KeySet<K> {
    /// The key that `selector` names, if `identity` may use it. The result is the same for a key that the
    /// identity may not use and for one that does not exist.
    pub fn find(&self, selector: &KeySelector, identity: &str) -> Option<Arc<KeyEntry<K>>> {
        let admits = |entry: &&Arc<KeyEntry<K>>| {
            entry.policy().is_some_and(|policy| policy.admits(identity))
        };
        match selector {
            KeySelector::Name(name) => self.by_name.get(name.as_str()).filter(admits).cloned(),
            KeySelector::SpkiSha256(hash) => self.by_spki.get(hash)?.iter().find(admits).cloned(),
        }
    }

    /// The number of names.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }
}

impl<K> FromIterator<Arc<KeyEntry<K>>> for KeySet<K> {
    fn from_iter<I: IntoIterator<Item = Arc<KeyEntry<K>>>>(entries: I) -> Self {
        let mut set = Self {
            by_name: HashMap::new(),
            by_spki: HashMap::new(),
        };
        for entry in entries {
            let mut hash = [0; 32];
            hash.copy_from_slice(digest(&SHA256, &entry.info.spki).as_ref());
            set.by_spki
                .entry(hash)
                .or_default()
                .push(Arc::clone(&entry));
            set.by_name.insert(Arc::clone(&entry.name), entry);
        }
        set
    }
}

/// The keys of a store, loaded into an engine.
pub(crate) struct Keyring {
    store: Arc<KeyStore>,
    engine: Engine,
    current: RwLock<Arc<KeySet<Arc<Key>>>>,
    /// The result of loading each file. Locked during a reload, so only one reload runs at a time.
    files: Mutex<BTreeMap<String, Loaded>>,
}

struct Loaded {
    /// The stamp of the file at the time of reading; `None` if a transient error prevented reading.
    stamp: Option<Stamp>,
    /// The key in service; that of an earlier file where the present one cannot be used.
    entry: Option<Arc<KeyEntry<Arc<Key>>>>,
    /// Whether the present file cannot be used.
    broken: bool,
}

/// Result of a reload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Reloaded {
    /// Keys that were loaded, or whose policy changed.
    pub changed: usize,
    /// Keys that were removed.
    pub removed: usize,
    /// Files that cannot be used, including those known from earlier reloads.
    pub broken: usize,
}

impl Keyring {
    /// An empty ring over `store`; [`Self::reload`] fills it.
    pub(crate) fn new(store: Arc<KeyStore>, engine: Engine) -> Self {
        Self {
            store,
            engine,
            current: RwLock::new(Arc::new(KeySet::from_iter([]))),
            files: Mutex::new(BTreeMap::new()),
        }
    }

    /// The store that the keys are from.
    pub(crate) fn store(&self) -> &KeyStore {
        &self.store
    }

    /// The current keys.
    pub(crate) fn current(&self) -> Arc<KeySet<Arc<Key>>> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Updates the loaded keys from the store, reading only changed files. Blocks on the disk and on key
    /// checks.
    ///
    /// A file that cannot be used is logged and skipped. If it was usable before, the loaded key stays in
    /// service until the file is repaired or removed: a failing disk must not end handshakes.
    ///
    /// # Errors
    /// If the directory cannot be read; then nothing changes.
    pub(crate) fn reload(&self) -> Result<Reloaded, StoreError> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let entries: BTreeMap<String, Stamp> = self.store.entries()?.into_iter().collect();
        let mut report = Reloaded::default();
        files.retain(|name, loaded| {
            let stays = entries.contains_key(name);
            if !stays {
                info!(key = name, "key removed");
                loaded.entry.iter().for_each(|entry| entry.revoke());
                report.removed += 1;
            }
            stays
        });
        for (name, stamp) in entries {
            let known = files.get(&name);
            if known.is_some_and(|known| known.stamp == Some(stamp)) {
                continue;
            }
            let before = known.and_then(|known| known.entry.clone());
            let loaded = self.load(&name, stamp, before);
            report.changed += usize::from(loaded.stamp.is_some() && !loaded.broken);
            files.insert(name, loaded);
        }
        report.broken = files.values().filter(|loaded| loaded.broken).count();
        if report.changed + report.removed > 0 {
            let set = files
                .values()
                .filter_map(|loaded| loaded.entry.clone())
                .collect();
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(set);
        }
        Ok(report)
    }

    fn load(&self, name: &str, stamp: Stamp, before: Option<Arc<KeyEntry<Arc<Key>>>>) -> Loaded {
        match self.try_load(name, before.as_ref()) {
            Ok(entry) => Loaded {
                stamp: Some(stamp),
                entry: Some(entry),
                broken: false,
            },
            Err(Broken::Store(StoreError::NoSuchKey { .. })) => Loaded {
                stamp: None,
                entry: before,
                broken: false,
            },
            Err(error) => {
                warn!(key = name, kept = before.is_some(), %error, "key file cannot be used");
                // An invalid file is read again when it changes; an unreadable file at every reload.
                let passing = matches!(error, Broken::Store(StoreError::Read { .. }));
                Loaded {
                    stamp: (!passing).then_some(stamp),
                    entry: before,
                    broken: true,
                }
            }
        }
    }

    fn try_load(
        &self,
        name: &str,
        before: Option<&Arc<KeyEntry<Arc<Key>>>>,
    ) -> Result<Arc<KeyEntry<Arc<Key>>>, Broken> {
        let (key, meta) = self.store.load(name)?;
        if let Some(entry) = before.filter(|entry| entry.info == meta.info) {
            // The same key: sessions with it open continue under the new policy.
            if entry.policy().is_none_or(|policy| *policy != meta.policy) {
                info!(key = name, "key policy changed");
                entry.set_policy(meta.policy);
            }
            return Ok(Arc::clone(entry));
        }
        let key = self.engine.load_key(&key)?;
        if *key.info() != meta.info {
            return Err(Broken::PublicKey);
        }
        info!(key = name, key_type = %meta.info.key_type, replaced = before.is_some(), "key loaded");
        before.into_iter().for_each(|entry| entry.revoke());
        Ok(Arc::new(KeyEntry::new(name, key, meta.info, meta.policy)))
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("keys", &self.current().len())
            .finish_non_exhaustive()
    }
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the key is not accepted: {0}")]
    Key(#[from] KeyError),
    #[error("the stored public key does not belong to the private key")]
    PublicKey,
}

#[cfg(test)]
mod tests {
    use millrace_engine::KeyType;

    use super::*;

    fn entry(name: &str, spki: u8, identities: &[&str]) -> Arc<KeyEntry<u32>> {
        let info = KeyInfo {
            key_type: KeyType::Ed25519,
            spki: vec![spki; 44],
        };
        let mut policy = KeyPolicy::signing();
        policy.identities = identities.iter().map(|&name| name.to_owned()).collect();
        Arc::new(KeyEntry::new(name, 1, info, policy))
    }

    fn by_spki(spki: u8) -> KeySelector {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, &[spki; 44]).as_ref());
        KeySelector::SpkiSha256(hash)
    }

    #[test]
    fn key_is_found_only_by_identities_in_its_policy() {
        let set: KeySet<u32> = [entry("a", 1, &["uid:1"])].into_iter().collect();
        for selector in [KeySelector::Name("a".to_owned()), by_spki(1)] {
            assert!(set.find(&selector, "uid:1").is_some());
            assert!(set.find(&selector, "uid:2").is_none());
        }
        assert!(set.find(&by_spki(2), "uid:1").is_none());
    }

    #[test]
    fn one_key_under_two_names_serves_the_identities_of_both() {
        let set: KeySet<u32> = [entry("a", 1, &["uid:1"]), entry("b", 1, &["uid:2"])]
            .into_iter()
            .collect();
        assert_eq!(&**set.find(&by_spki(1), "uid:1").unwrap().name(), "a");
        assert_eq!(&**set.find(&by_spki(1), "uid:2").unwrap().name(), "b");
    }

    #[test]
    fn revoked_key_and_changed_policy_change_the_revision() {
        let entry = entry("a", 1, &["*"]);
        let before = entry.revision();
        entry.set_policy(KeyPolicy::signing());
        assert_ne!(entry.revision(), before);
        entry.revoke();
        assert!(entry.policy().is_none());
        let set: KeySet<u32> = [entry].into_iter().collect();
        assert!(set.find(&by_spki(1), "uid:1").is_none());
    }
}
