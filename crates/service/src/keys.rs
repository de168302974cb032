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
//!
//! An entry is one version of a key. A replaced key keeps its entry as a former version: found by its public
//! half, no more by the name, for the identities in the policy of the current version.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use millrace_engine::{Engine, Key};
use millrace_operation::sync::lock;
use millrace_operation::{KeyError, KeyInfo};
use millrace_wire::KeySelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::policy::{KeyPolicy, admits};
use crate::store::{FolderChanges, KeyStore, MAX_FORMER, MAX_KEYS, Stamp, StoreError, VersionId};

/// A version of a key that sessions can have open. `K` is the engine's key type.
pub struct KeyEntry<K> {
    name: Arc<str>,
    key: K,
    info: KeyInfo,
    /// Of the public half: reports have it for each of thousands of keys each second.
    spki_sha256: [u8; 32],
    policy: RwLock<Arc<KeyPolicy>>,
    /// Increases with every change of the policy; [`REVOKED`] at the end.
    revision: AtomicU64,
    /// Seconds from [`FIRST_USE`] to the last job, plus 1; 0 before the first.
    last_used: AtomicU64,
}

/// The revision of an entry that is no longer in the store.
const REVOKED: u64 = u64::MAX;

/// The origin of [`KeyEntry::last_used`]: the first use of any key of this process.
static FIRST_USE: LazyLock<Instant> = LazyLock::new(Instant::now);

impl<K> KeyEntry<K> {
    /// An entry with a policy in force.
    pub fn new(name: &str, key: K, info: KeyInfo, policy: KeyPolicy) -> Self {
        Self {
            name: name.into(),
            key,
            spki_sha256: spki_sha256(&info),
            info,
            policy: RwLock::new(Arc::new(policy)),
            revision: AtomicU64::new(0),
            last_used: AtomicU64::new(0),
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

    /// The policy in force; `None` once the version was removed.
    pub fn policy(&self) -> Option<Arc<KeyPolicy>> {
        if self.revision() == REVOKED {
            return None;
        }
        Some(Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Replaces the policy. Sessions with the key open use the new one for their next job. A revoked entry
    /// stays revoked.
    pub fn set_policy(&self, policy: KeyPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
        let _ = self.revision.fetch_update(Ordering::AcqRel, Ordering::Acquire, |revision| {
            (revision != REVOKED).then(|| revision + 1)
        });
    }

    /// Takes over the policy of the current version of the key. A version of another kind keeps its operations:
    /// those of the current one do not fit it.
    fn follow(&self, current: &Self) {
        let (Some(policy), Some(own)) = (current.policy(), self.policy()) else {
            return;
        };
        let same_kind = self.info.key_type.kind() == current.info.key_type.kind();
        let operations = if same_kind { policy.operations } else { own.operations };
        let follows = own.identities == policy.identities
            && own.hashes == policy.hashes
            && own.operations == operations;
        if !follows {
            self.set_policy(KeyPolicy { operations, ..KeyPolicy::clone(&policy) });
        }
    }

    /// Takes the key out of service, also for sessions that have it open.
    pub fn revoke(&self) {
        self.revision.store(REVOKED, Ordering::Release);
    }

    /// Notes a job at `now`. Writes at most once a second, so that jobs on many cores share the cache line.
    pub(crate) fn used(&self, now: Instant) {
        let seconds = now.saturating_duration_since(*FIRST_USE).as_secs() + 1;
        if self.last_used.load(Ordering::Relaxed) != seconds {
            self.last_used.store(seconds, Ordering::Relaxed);
        }
    }

    /// The time of the last job, in seconds since 1970.
    fn last_used(&self) -> Option<u64> {
        let seconds = self.last_used.load(Ordering::Relaxed).checked_sub(1)?;
        let ago = FIRST_USE.elapsed().saturating_sub(Duration::from_secs(seconds));
        let time = SystemTime::now().checked_sub(ago)?;
        Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
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
    /// The current versions.
    by_name: HashMap<Arc<str>, Arc<KeyEntry<K>>>,
    /// All versions. Several names may have the same key with different policies.
    by_spki: HashMap<[u8; 32], Vec<Arc<KeyEntry<K>>>>,
}

impl<K> KeySet<K> {
    /// A set of current versions, and of former versions, which have no name.
    pub fn new(
        current: impl IntoIterator<Item = Arc<KeyEntry<K>>>,
        former: impl IntoIterator<Item = Arc<KeyEntry<K>>>,
    ) -> Self {
        let mut set = Self { by_name: HashMap::new(), by_spki: HashMap::new() };
        for entry in current {
            set.by_name.insert(Arc::clone(&entry.name), Arc::clone(&entry));
            set.insert_by_spki(entry);
        }
        former.into_iter().for_each(|entry| set.insert_by_spki(entry));
        set
    }

    fn insert_by_spki(&mut self, entry: Arc<KeyEntry<K>>) {
        let entries = self.by_spki.entry(entry.spki_sha256).or_default();
        // A name appears once: while a key is replaced, its version is the current and a former one.
        if entries.iter().all(|known| known.name != entry.name) {
            entries.push(entry);
        }
    }

    /// The key that `selector` names, if `identity` may use it. A name selects the current version, a public
    /// half any. The result is the same for a key that the identity may not use and for one that does not
    /// exist.
    pub fn find(&self, selector: &KeySelector, identity: &str) -> Option<Arc<KeyEntry<K>>> {
        self.find_for(selector, identity, None)
    }

    /// Finds a key like [`Self::find`], for an identity of a tenant that policies know as `tenant:NAME`.
    pub(crate) fn find_for(
        &self,
        selector: &KeySelector,
        identity: &str,
        tenant: Option<&str>,
    ) -> Option<Arc<KeyEntry<K>>> {
        let admits = |entry: &&Arc<KeyEntry<K>>| {
            let policy = entry.policy();
            policy.is_some_and(|policy| admits(&policy, identity, tenant))
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
        Self::new(entries, [])
    }
}

fn spki_sha256(info: &KeyInfo) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, &info.spki).as_ref());
    hash
}

/// The keys of a store, loaded into an engine.
pub(crate) struct Keyring {
    store: Arc<KeyStore>,
    engine: Engine,
    current: RwLock<Arc<KeySet<Arc<Key>>>>,
    /// The result of loading each file. Locked during a reload, so only one reload runs at a time.
    files: Mutex<BTreeMap<VersionId, Loaded>>,
    /// State of the store at the last reload. Never locked while `files` is waited for.
    watched: Mutex<Option<Watched>>,
    changes: Mutex<FolderChanges>,
}

/// The state of the store at the last reload.
#[derive(Clone, Copy)]
struct Watched {
    /// Stamp of the directory, taken before it was read, and the time at which it was first seen.
    folder: (Stamp, Instant),
    /// The time of the reload.
    read: Instant,
    /// Whether a file must be read again although it did not change.
    is_passing: bool,
}

/// Age of a directory's stamp from which on it says that nothing changed: a change in the same tick of the file
/// system's clock as the last one leaves the stamp as it is. The coarsest tick, FAT's, is 2 s.
const SETTLED: Duration = Duration::from_secs(3);

/// Interval of reloads that look at each file of a directory without a change: a file that another host writes in
/// place, as no command of Millrace does, changes only its own stamp. A look at 10,000 files takes 20 ms of a core.
const FULL_SCAN: Duration = Duration::from_secs(10);

type Entry = Arc<KeyEntry<Arc<Key>>>;

#[derive(Clone, Default)]
struct Loaded {
    /// The stamp of the file at the time of reading; `None` if it must be read again: a transient error
    /// prevented reading, a former version had no current one, or there was no room.
    stamp: Option<Stamp>,
    /// Whether it must be read again although no file of the store changes.
    is_passing: bool,
    /// The version in service; that of an earlier file where the present one is damaged.
    entry: Option<Entry>,
    /// Why the present file cannot be used.
    problem: Option<String>,
}

/// The keys of a node, as its administration socket reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyReport {
    /// Name of the node.
    pub node: String,
    /// The folder of the store.
    pub directory: String,
    /// Device number of the folder: with `inode` it tells whether another process sees the same store.
    pub device: u64,
    /// Inode number of the folder.
    pub inode: u64,
    /// Id of the node's key-encryption key; no secret.
    pub kek: Option<String>,
    /// One row per version of a key, by name, the current version first.
    pub keys: Vec<KeyRow>,
}

/// A version of a key, or a file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeyRow {
    /// Name of the key.
    pub name: String,
    /// Whether another key has taken its place.
    pub former: bool,
    /// SHA-256 of the public half of the version in service, in hexadecimal digits.
    pub spki_sha256: Option<String>,
    /// Time of the last job since the node started, in seconds since 1970.
    pub last_used: Option<u64>,
    /// Why the file cannot be used.
    pub problem: Option<String>,
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
            watched: Mutex::default(),
            changes: Mutex::default(),
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

    /// Reloads like [`Self::reload`] if the store may have changed since the last reload; `None` if it did not.
    ///
    /// # Errors
    /// As [`Self::reload`].
    pub(crate) fn watch(&self, now: Instant) -> Result<Option<Reloaded>, StoreError> {
        let happened = lock(&self.changes).any();
        let watched = *lock(&self.watched);
        let unchanged = watched.is_some_and(|watched| {
            let (_, seen) = watched.folder;
            !happened
                && !watched.is_passing
                && now.saturating_duration_since(seen) >= SETTLED
                && now.saturating_duration_since(watched.read) < FULL_SCAN
        });
        if unchanged && watched.map(|watched| watched.folder.0) == Some(self.store.stamp()?) {
            return Ok(None);
        }
        self.reload().map(Some)
    }

    /// Updates the loaded keys from the store, reading only changed files. Blocks on the disk and on key
    /// checks.
    ///
    /// A file that cannot be used is logged and skipped. If it was usable before and is now damaged, the loaded
    /// version stays in service until the file is repaired or removed: a failing disk must not end handshakes.
    /// A file that is whole, but of a later version of Millrace or under another key-encryption key, ends the
    /// service of its key: it may have narrowed the policy.
    ///
    /// # Errors
    /// If the directory cannot be read; then nothing changes.
    pub(crate) fn reload(&self) -> Result<Reloaded, StoreError> {
        let mut files = lock(&self.files);
        let read = Instant::now();
        let folder = self.store.stamp()?;
        lock(&self.changes).follow(self.store.directory(), folder.inode());
        let present = self.store.entries()?;
        let mut room = Room::beside(&files, &present);
        let mut report = Reloaded::default();
        let mut differs = false;
        let mut after: BTreeMap<VersionId, Loaded> = BTreeMap::new();
        // The current version of the name of this round, if it serves: the versions of a name are adjacent.
        let mut current: Option<Entry> = None;
        for (id, stamp) in present {
            let known = files.get(&id).cloned().unwrap_or_default();
            current = current.filter(|entry| id.former.is_some() && **entry.name() == *id.name);
            let loaded = if id.former.is_some() && current.is_none() {
                // A former version serves under the policy of the current one.
                Loaded::default()
            } else if let Some(problem) = room.refuse(&id, &known) {
                if known.problem.is_none() {
                    warn!(
                        key = id.name,
                        former = id.former.is_some(),
                        problem,
                        "key file is not served"
                    );
                }
                Loaded { problem: Some(problem), ..Loaded::default() }
            } else if known.stamp == Some(stamp) {
                known.clone()
            } else {
                let loaded = self.load(&id, stamp, &known, &versions(&files, &id.name));
                report.changed += usize::from(loaded.stamp.is_some() && loaded.problem.is_none());
                loaded
            };
            match (&current, &loaded.entry) {
                (None, entry) => current.clone_from(entry),
                (Some(current), Some(entry)) => entry.follow(current),
                (Some(_), None) => {}
            }
            differs |=
                loaded.entry.as_ref().map(Arc::as_ptr) != known.entry.as_ref().map(Arc::as_ptr);
            report.broken += usize::from(loaded.problem.is_some());
            after.insert(id, loaded);
        }
        let is_passing = after.values().any(|loaded| loaded.is_passing);
        let serving: HashSet<_> = entries(&after).map(Arc::as_ptr).collect();
        for entry in entries(&files).filter(|entry| !serving.contains(&Arc::as_ptr(entry))) {
            info!(key = &**entry.name(), "key or former version removed");
            entry.revoke();
            differs = true;
        }
        report.removed =
            files.keys().filter(|id| id.former.is_none() && !after.contains_key(*id)).count();
        *files = after;
        let mut watched = lock(&self.watched);
        let seen = watched.map(|before| before.folder).filter(|(stamp, _)| *stamp == folder);
        let folder = seen.unwrap_or((folder, read));
        *watched = Some(Watched { folder, read, is_passing });
        drop(watched);
        if differs || report.changed > 0 {
            let of = |former: bool| {
                let files = files.iter().filter(move |(id, _)| id.former.is_some() == former);
                files.filter_map(|(_, loaded)| loaded.entry.clone())
            };
            let set = Arc::new(KeySet::new(of(false), of(true)));
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = set;
        }
        Ok(report)
    }

    /// The result of loading a changed file. `known` is what the file had before, `versions` are those of its key.
    fn load(&self, id: &VersionId, stamp: Stamp, known: &Loaded, versions: &[Entry]) -> Loaded {
        let before = known.entry.clone();
        let error = match self.try_load(id, versions) {
            Ok(entry) => {
                return Loaded { stamp: Some(stamp), entry: Some(entry), ..Loaded::default() };
            }
            // Removed since the listing: the next reload sees that.
            Err(Broken::Store(StoreError::NoSuchKey { .. })) => {
                return Loaded { entry: before, is_passing: true, ..Loaded::default() };
            }
            Err(error) => error,
        };
        let deliberate = matches!(&error, Broken::Store(error) if error.is_deliberate());
        let entry = before.filter(|_| !deliberate);
        if let (Some(entry), Broken::Key { policy, .. }) = (&entry, &error) {
            // The file is genuine: its policy holds, although this node cannot use its key.
            entry.set_policy((**policy).clone());
        }
        let problem = Some(error.to_string());
        // One that stays unreadable is not news at every reload.
        if known.problem != problem {
            warn!(key = id.name, former = id.former.is_some(), kept = entry.is_some(), %error, "key file cannot be used");
        }
        // A bad file is read again when it changes; an unreadable file at every reload.
        let is_passing = matches!(&error, Broken::Store(error) if error.is_passing());
        Loaded { stamp: (!is_passing).then_some(stamp), entry, problem, is_passing }
    }

    fn try_load(&self, id: &VersionId, versions: &[Entry]) -> Result<Entry, Broken> {
        let (key, meta) = self.store.load_version(id)?;
        if let Some(entry) = versions.iter().find(|entry| entry.info == meta.info) {
            // The same key: sessions with it open continue under the new policy.
            if id.former.is_none() && entry.policy().is_none_or(|policy| *policy != meta.policy) {
                info!(key = id.name, "key policy changed");
                entry.set_policy(meta.policy);
            }
            return Ok(Arc::clone(entry));
        }
        let refused =
            |reason: Refused| Broken::Key { reason, policy: Box::new(meta.policy.clone()) };
        let key = self.engine.load_key(&key).map_err(|error| refused(error.into()))?;
        if *key.info() != meta.info {
            return Err(refused(Refused::PublicKey));
        }
        let key_type = meta.info.key_type;
        let replaced = !versions.is_empty();
        info!(key = id.name, %key_type, former = id.former.is_some(), replaced, "key loaded");
        Ok(Arc::new(KeyEntry::new(&id.name, key, meta.info, meta.policy)))
    }

    /// The keys, or the one with this name, and what is wrong with them, for the node named `node`.
    pub(crate) fn report(&self, node: &str, name: Option<&str>) -> KeyReport {
        let directory = self.store.directory();
        let metadata = std::fs::metadata(directory).ok();
        let files = lock(&self.files);
        let wanted = files.iter().filter(|(id, _)| name.is_none_or(|name| name == id.name));
        let keys = wanted.map(|(id, loaded)| KeyRow {
            name: id.name.clone(),
            former: id.former.is_some(),
            spki_sha256: loaded.entry.as_ref().map(|entry| hex::encode(entry.spki_sha256)),
            last_used: loaded.entry.as_ref().and_then(|entry| entry.last_used()),
            problem: loaded.problem.clone(),
        });
        KeyReport {
            node: node.to_owned(),
            directory: directory.display().to_string(),
            device: metadata.as_ref().map_or(0, MetadataExt::dev),
            inode: metadata.as_ref().map_or(0, MetadataExt::ino),
            kek: self.store.kek().map(|kek| kek.to_string()),
            keys: keys.collect(),
        }
    }
}

/// The room for keys that are not in service yet, within the bounds of the store. Its commands keep them; files may
/// also be copied into it.
struct Room {
    names: usize,
    /// A name, and its former versions so far.
    former: (String, usize),
}

impl Room {
    /// A key in service keeps its place.
    fn beside(files: &BTreeMap<VersionId, Loaded>, present: &[(VersionId, Stamp)]) -> Self {
        let serves = |id: &VersionId| files.get(id).is_some_and(|known| known.entry.is_some());
        let serving = present.iter().filter(|(id, _)| id.former.is_none() && serves(id)).count();
        Self { names: MAX_KEYS.saturating_sub(serving), former: (String::new(), 0) }
    }

    /// Why the node does not serve a version. Asked for each, in their order.
    fn refuse(&mut self, id: &VersionId, known: &Loaded) -> Option<String> {
        if id.former.is_some() {
            if self.former.0 != id.name {
                self.former = (id.name.clone(), 0);
            }
            self.former.1 += 1;
            return (self.former.1 > MAX_FORMER).then(|| {
                let name = &id.name;
                format!(
                    "{name} has more than {MAX_FORMER} former versions: millrace key remove {name} --former"
                )
            });
        }
        if known.entry.is_some() {
            return None;
        }
        match self.names.checked_sub(1) {
            Some(left) => {
                self.names = left;
                None
            }
            None => Some(StoreError::Full.to_string()),
        }
    }
}

/// The versions in service.
fn entries(files: &BTreeMap<VersionId, Loaded>) -> impl Iterator<Item = &Entry> {
    files.values().filter_map(|loaded| loaded.entry.as_ref())
}

/// The versions of one key in service.
fn versions(files: &BTreeMap<VersionId, Loaded>, name: &str) -> Vec<Entry> {
    let of_name = files.range(VersionId::current(name)..).take_while(|(id, _)| id.name == name);
    of_name.filter_map(|(_, loaded)| loaded.entry.clone()).collect()
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("keys", &self.current().len()).finish_non_exhaustive()
    }
}

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file is genuine, but the node cannot use the key in it.
    #[error("{reason}")]
    Key { reason: Refused, policy: Box<KeyPolicy> },
}

/// Why a genuine key file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the key is not accepted: {0}")]
    Key(#[from] KeyError),
    #[error("the stored public key does not belong to the private key")]
    PublicKey,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use millrace_engine::EngineConfig;
    use millrace_operation::{KeyType, OperationKind};
    use millrace_testkit::fake::FakeBackend;
    use millrace_testkit::keys;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::store::{IfExists, KekSource};

    fn entry(name: &str, spki: u8, identities: &[&str]) -> Arc<KeyEntry<u32>> {
        let info = KeyInfo { key_type: KeyType::Ed25519, spki: vec![spki; 44] };
        let policy = KeyPolicy::signing(identities.iter().copied());
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
        let set: KeySet<u32> =
            [entry("a", 1, &["uid:1"]), entry("b", 1, &["uid:2"])].into_iter().collect();
        assert_eq!(&**set.find(&by_spki(1), "uid:1").unwrap().name(), "a");
        assert_eq!(&**set.find(&by_spki(1), "uid:2").unwrap().name(), "b");
    }

    #[test]
    fn former_version_is_found_by_its_public_half_alone() {
        let current = entry("www", 2, &["uid:1"]);
        let former = entry("www", 1, &["uid:1"]);
        let set: KeySet<u32> = KeySet::new([current], [former]);
        let found = |selector| set.find(&selector, "uid:1").unwrap().info().spki[0];
        assert_eq!(found(KeySelector::Name("www".to_owned())), 2);
        assert_eq!(found(by_spki(2)), 2);
        assert_eq!(found(by_spki(1)), 1);
        assert!(set.find(&by_spki(1), "uid:2").is_none());
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn former_version_follows_the_policy_but_keeps_operations_of_its_kind() {
        let mut current = entry("www", 2, &["uid:1"]);
        let mut policy = KeyPolicy::signing(["uid:2"]);
        policy.operations = [OperationKind::Ed25519Sign].into_iter().collect();
        current.set_policy(policy.clone());
        let former = entry("www", 1, &["uid:1"]);
        former.follow(&current);
        assert_eq!(*former.policy().unwrap(), policy);
        let revision = former.revision();
        former.follow(&current);
        assert_eq!(former.revision(), revision, "an unchanged policy is not news");
        Arc::get_mut(&mut current).unwrap().info.key_type = KeyType::Rsa { bits: 2048 };
        policy.operations = [OperationKind::RsaPssSign].into_iter().collect();
        policy.identities = vec!["uid:3".to_owned()];
        current.set_policy(policy);
        former.follow(&current);
        let followed = former.policy().unwrap();
        assert_eq!(followed.identities, ["uid:3"]);
        assert!(followed.operations.contains(OperationKind::Ed25519Sign));
        assert!(!followed.operations.contains(OperationKind::RsaPssSign));
    }

    #[test]
    fn policy_change_after_a_revocation_keeps_the_key_revoked() {
        let entry = entry("a", 1, &["*"]);
        entry.revoke();
        entry.set_policy(KeyPolicy::signing(["*"]));
        assert_eq!(entry.revision(), REVOKED);
        assert!(entry.policy().is_none());
    }

    #[test]
    fn last_use_is_the_time_of_the_last_job() {
        let entry = entry("a", 1, &["*"]);
        assert_eq!(entry.last_used(), None);
        let unix = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = unix(SystemTime::now());
        entry.used(Instant::now());
        let used = entry.last_used().unwrap();
        assert!(used + 1 >= before && used <= unix(SystemTime::now()) + 1, "{used}");
    }

    /// A ring over a store with the key `www`, loaded, and the folder of the store.
    fn ring(folder: &tempfile::TempDir) -> (Keyring, std::path::PathBuf) {
        let kek = KekSource::File { path: folder.path().join("kek"), create: true };
        let store = KeyStore::open(folder.path().join("keys"), &kek).unwrap();
        let engine =
            Engine::start(EngineConfig::default(), vec![Arc::new(FakeBackend::default())]).unwrap();
        let key = keys::rsa_2048().private_key();
        let info = engine.load_key(&key).unwrap().info().clone();
        store.import("www", &key, info, KeyPolicy::signing(["*"]), IfExists::Fail).unwrap();
        let ring = Keyring::new(Arc::new(store), engine);
        assert_eq!(ring.reload().unwrap().changed, 1);
        (ring, folder.path().join("keys"))
    }

    #[test]
    fn store_without_a_change_is_not_read_again_and_each_change_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let (ring, keys) = ring(&folder);
        let settled = Instant::now() + SETTLED;
        assert!(ring.watch(Instant::now()).unwrap().is_some(), "a change in the same tick");
        assert_eq!(ring.watch(settled).unwrap(), None);
        let good = fs::read(keys.join("www.key")).unwrap();
        fs::write(keys.join("www.key"), b"rubbish").unwrap();
        assert_eq!(ring.watch(settled).unwrap().unwrap().broken, 1, "written in place");
        assert_eq!(ring.watch(settled).unwrap(), None);
        fs::write(keys.join("www.key"), good).unwrap();
        assert_eq!(ring.watch(settled).unwrap().unwrap().broken, 0);
        *lock(&ring.changes) = FolderChanges::default();
        assert_eq!(ring.watch(settled).unwrap(), None);
        ring.store().remove("www").unwrap();
        assert_eq!(ring.watch(settled).unwrap().unwrap().removed, 1, "by the stamp alone");
        assert!(ring.watch(settled + FULL_SCAN).unwrap().is_some(), "for other hosts");
    }

    #[test]
    fn pipe_in_the_store_is_reported_and_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let (ring, keys) = ring(&folder);
        let pipe = keys.join("pipe.key");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert_eq!(ring.watch(Instant::now()).unwrap().unwrap().broken, 1);
        let report = ring.report("node", Some("pipe"));
        let row = report.keys.iter().find(|row| row.name == "pipe").unwrap();
        let problem = row.problem.as_deref().unwrap();
        assert!(problem.contains("pipe.key") && problem.contains("a pipe"), "{problem}");
        ring.store().set_policy("www", KeyPolicy::signing(["uid:33"])).unwrap();
        ring.watch(Instant::now()).unwrap();
        let name = KeySelector::Name("www".to_owned());
        assert!(ring.current().find(&name, "uid:7").is_none(), "the change is in force");
        ring.store().remove("pipe").unwrap();
        assert_eq!(ring.watch(Instant::now()).unwrap().unwrap().broken, 0);
    }

    #[test]
    fn versions_past_the_bounds_are_refused_by_name_and_those_in_service_stay() {
        let served = Loaded { entry: None, ..Loaded::default() };
        let mut room = Room::beside(&BTreeMap::new(), &[]);
        for number in 0..MAX_KEYS {
            let id = VersionId::current(&format!("k{number}"));
            assert_eq!(room.refuse(&id, &served), None);
        }
        let problem = room.refuse(&VersionId::current("zzz"), &served).unwrap();
        assert!(problem.contains("10000 keys"), "{problem}");
        for number in 0..=MAX_FORMER {
            let id = VersionId { name: "www".to_owned(), former: Some(number.to_string()) };
            let problem = room.refuse(&id, &served);
            assert_eq!(problem.is_some(), number == MAX_FORMER, "{problem:?}");
        }
        let other = VersionId { name: "www2".to_owned(), former: Some("0".to_owned()) };
        assert_eq!(room.refuse(&other, &served), None, "each name has its own bound");
    }

    #[test]
    fn revoked_key_and_changed_policy_change_the_revision() {
        let entry = entry("a", 1, &["*"]);
        let before = entry.revision();
        entry.set_policy(KeyPolicy::signing(["*"]));
        assert_ne!(entry.revision(), before);
        entry.revoke();
        assert!(entry.policy().is_none());
        let set: KeySet<u32> = [entry].into_iter().collect();
        assert!(set.find(&by_spki(1), "uid:1").is_none());
    }
}
