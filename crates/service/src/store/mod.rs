// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys at rest: a directory with one file per key, each sealed under a key-encryption key.
//!
//! ```text
//!  kek                       0600  the key-encryption key (by default; a systemd credential is better)
//!  keys/                     0700
//!    www.key                 0600  public metadata in the clear, PKCS#8 under AES-256-GCM
//!    www.3f9a….former        0600  the same of a former version, named by the hash of its public half
//!    www.pool                0600  empty: the key `www` is from the manager of a pool
//!    audit.jsonl             0600  one line per change
//! ```
//!
//! Replacing a key keeps its former version, so that gateways whose stubs have the former public half continue
//! until they have the new stub. The policy in `NAME.key` applies to all versions; of a former version's own
//! policy the operations count, where the replacement is a key of another kind.
//!
//! The seal authenticates the metadata (name, type, public key, policy), so a changed byte anywhere makes the
//! file unusable. Writes are atomic: a full disk changes nothing. Several processes may use one store; a node
//! applies changes by `millrace key` within a second.
//!
//! The store does not protect keys from a user who can read both the directory and the key-encryption key, or from the
//! node's own user.

mod audit;
pub mod bundle;
mod changes;
mod error;
mod files;
mod format;
mod kek;
pub mod pem;
mod pool_marks;
mod sealed;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, DirEntry};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use aws_lc_rs::digest::{SHA256, digest};
use millrace_hostfs::ordinary::{self, Links};
use millrace_hostfs::replace::remove_leftovers;
use millrace_hostfs::trusted;
use millrace_operation::{KeyInfo, OperationKind, PrivateKey};
use serde_json::{Value, json};

use crate::policy::KeyPolicy;
pub use audit::AUDIT_LOG;
pub(crate) use changes::FolderChanges;
pub use error::StoreError;
use files::{Disk, FileLayer, write_atomically};
pub use files::{IfExists, exposed_bits, write_private};
pub use format::{
    FINGERPRINT_LEN, FormatError, KeyFile, MAX_FILE_LEN, MAX_IDENTITIES, MAX_IDENTITY_LEN,
    MAX_NAME_LEN, MAX_SPKI_LEN, Metadata, NONCE_LEN, parse, valid_identity, valid_name,
};
pub use kek::{CREDENTIAL_NAME, KEK_LEN, KekError, KekId, KekSource, MAC_LEN};
pub use sealed::{KeySealer, OpenError};

/// Bound on the keys of one store. Each key takes memory in every backend, and the node scans the directory
/// after every change. Files beyond it are listed, and the node says that it does not serve them.
pub const MAX_KEYS: usize = 10_000;

/// Bound on the former versions of one key: more renewals than gateways can miss while one is brought up to
/// date. The oldest is removed for a further one.
pub const MAX_FORMER: usize = 4;

/// Keys that an error names.
const NAMED_KEYS: usize = 5;

/// Suffix of the file of a current version.
const SUFFIX: &str = ".key";

/// Suffix of the file of a former version. Nodes before former versions ignore such files.
const FORMER_SUFFIX: &str = ".former";

/// Keys at rest. Share it in an `Arc`; every method may be called from any thread and blocks on the disk.
pub struct KeyStore {
    directory: PathBuf,
    sealer: Option<KeySealer>,
    files: Box<dyn FileLayer>,
}

impl KeyStore {
    /// Opens the store in `directory`; creates the directory (0700) if it does not exist.
    ///
    /// # Errors
    /// If the directory cannot be used, if other users control it, or if the key-encryption key cannot be
    /// loaded from `kek`.
    pub fn open(directory: impl Into<PathBuf>, kek: &KekSource) -> Result<Self, StoreError> {
        let directory = directory.into();
        let failed = |source| StoreError::Directory { path: directory.clone(), source };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let metadata = fs::metadata(&directory).map_err(failed)?;
        check(&directory, &metadata)?;
        let store = Self { directory, sealer: None, files: Box::new(Disk) };
        store.unlock(kek)
    }

    /// Loads the key-encryption key of a store that was opened with [`KekSource::Absent`]: for a caller with
    /// different rights on the directory and on the key-encryption key.
    ///
    /// # Errors
    /// If the key-encryption key cannot be loaded from `kek`, or if its file is missing while the store has
    /// keys, which a new one would not open.
    pub fn unlock(mut self, kek: &KekSource) -> Result<Self, StoreError> {
        if let KekSource::File { path, create: true } = kek
            && !path.exists()
            && let Some(sealed) = self.first_kek()?
        {
            return Err(StoreError::MissingKek {
                kek: path.clone(),
                directory: self.directory,
                sealed,
            });
        }
        self.sealer = KeySealer::load(kek)?;
        Ok(self)
    }

    /// The id of the loaded key-encryption key.
    #[must_use]
    pub fn kek(&self) -> Option<KekId> {
        self.sealer.as_ref().map(KeySealer::id)
    }

    /// Checks that the store's keys were sealed under the key-encryption key that is loaded: a further key would be
    /// sealed under one that the node of this store does not use. One key stands for all: the check costs the same in a
    /// store of 10,000, and a node names each key that was sealed under another one.
    ///
    /// # Errors
    /// Names the keys under another one. [`StoreError::Locked`] without a key-encryption key.
    pub fn check_kek(&self) -> Result<(), StoreError> {
        let ours = self.kek().ok_or(StoreError::Locked)?;
        if self.first_kek()?.is_none_or(|first| first == ours) {
            return Ok(());
        }
        let mut foreign = Vec::new();
        self.each_version(|id, _| {
            let kek = id.former.is_none().then(|| self.kek_of(&id)).flatten();
            foreign.extend(kek.filter(|kek| *kek != ours).map(|kek| (id.name, kek)));
        })?;
        foreign.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let Some(&(_, sealed)) = foreign.first() else {
            return Ok(());
        };
        let names = foreign.iter().take(NAMED_KEYS).map(|(name, _)| name.as_str());
        let mut names = names.collect::<Vec<_>>().join(", ");
        if foreign.len() > NAMED_KEYS {
            names.push_str(&format!(" and {} more", foreign.len() - NAMED_KEYS));
        }
        let directory = self.directory.clone();
        Err(StoreError::ForeignKeys { directory, names, several: foreign.len() > 1, sealed, ours })
    }

    /// The key-encryption key of the first key in the order of the directory.
    fn first_kek(&self) -> Result<Option<KekId>, StoreError> {
        for version in self.versions()? {
            let (id, _) = version?;
            if let Some(kek) = self.kek_of(&id).filter(|_| id.former.is_none()) {
                return Ok(Some(kek));
            }
        }
        Ok(None)
    }

    /// The directory of the store.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Stores a key as [`KeyImporter::import`] does.
    ///
    /// # Errors
    /// As [`KeyImporter::import`].
    pub fn import(
        &self,
        name: &str,
        key: &PrivateKey,
        info: KeyInfo,
        policy: KeyPolicy,
        if_exists: IfExists,
    ) -> Result<KeyMeta, StoreError> {
        self.importer()?.import(name, key, info, policy, if_exists)
    }

    /// Imports several keys. The directory is read here, once for all of them.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn importer(&self) -> Result<KeyImporter<'_>, StoreError> {
        let mut importer = KeyImporter { store: self, keys: 0, former: BTreeMap::new() };
        self.each_version(|id, _| match id.former {
            None => importer.keys += 1,
            Some(_) => importer.former.entry(id.name.clone()).or_default().push(id),
        })?;
        Ok(importer)
    }

    /// Copies the current file of a key to that of a former version, if `replacement` is another key. The
    /// current file stays until the new one takes its place, so the name always has one.
    fn keep_former(
        &self,
        id: &VersionId,
        replacement: &KeyInfo,
    ) -> Result<Option<VersionId>, StoreError> {
        let bytes = self.read(id)?;
        // A damaged file is not a version that a node could serve.
        let Ok(file) = self.parse(id, &bytes) else {
            return Ok(None);
        };
        if file.metadata.info == *replacement {
            return Ok(None);
        }
        let former = VersionId::former(&id.name, &file.metadata.info);
        let path = self.path_of(&former);
        write_atomically(&*self.files, &path, &bytes, IfExists::Replace)
            .map_err(|source| StoreError::Write { path, source })?;
        Ok(Some(former))
    }

    /// Removes those of the former versions that are above [`MAX_FORMER`], the oldest first, and the one that is
    /// current again.
    fn prune(
        &self,
        name: &str,
        current: &KeyInfo,
        former: Vec<VersionId>,
    ) -> Result<(), StoreError> {
        let again = VersionId::former(name, current);
        let (again, mut former): (Vec<_>, Vec<_>) = former.into_iter().partition(|id| *id == again);
        former.sort_by_cached_key(|id| {
            fs::symlink_metadata(self.path_of(id)).map(|it| Stamp::of(&it).modified).ok()
        });
        former.truncate(former.len().saturating_sub(MAX_FORMER));
        for id in again.iter().chain(&former) {
            self.remove_file(id)?;
        }
        self.sync()
    }

    fn former_of(&self, name: &str) -> Result<Vec<VersionId>, StoreError> {
        let mut former = Vec::new();
        self.each_version(|id, _| {
            former.extend((id.former.is_some() && id.name == name).then_some(id));
        })?;
        former.sort_unstable();
        Ok(former)
    }

    /// All versions of all keys, by name and the current version first, without opening their seals: the result
    /// is not authenticated. Files that do not parse are errors in the list.
    pub fn list(&self) -> Result<Vec<Result<KeyMeta, StoreError>>, StoreError> {
        let mut keys = Vec::new();
        for (id, _) in self.entries()? {
            match self.look(&id) {
                Err(StoreError::NoSuchKey { .. }) => {} // removed since the listing
                other => keys.push(other),
            }
        }
        Ok(keys)
    }

    /// The current version of a key as [`Self::list`] shows it, not authenticated.
    ///
    /// # Errors
    /// If the key does not exist or its file does not parse.
    pub fn describe(&self, name: &str) -> Result<KeyMeta, StoreError> {
        self.look(&VersionId::current(name))
    }

    /// The former versions of a key as [`Self::list`] shows them, the newest first.
    ///
    /// # Errors
    /// The name is none, or the directory cannot be read; in the list, files that do not parse.
    pub fn former(&self, name: &str) -> Result<Vec<Result<KeyMeta, StoreError>>, StoreError> {
        self.path(&VersionId::current(name))?;
        let former = self.former_of(name)?;
        let mut former: Vec<_> = former.iter().map(|id| self.look(id)).collect();
        former.sort_by_key(|meta| std::cmp::Reverse(meta.as_ref().ok().and_then(|it| it.replaced)));
        Ok(former)
    }

    fn look(&self, id: &VersionId) -> Result<KeyMeta, StoreError> {
        let bytes = self.read(id)?;
        let file = self.parse(id, &bytes)?;
        Ok(self.meta(id, &file))
    }

    /// Opens the seal of a version from [`Self::list`], and returns its authenticated metadata.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn verify(&self, meta: &KeyMeta) -> Result<KeyMeta, StoreError> {
        let id = match meta.replaced {
            None => VersionId::current(&meta.name),
            Some(_) => VersionId::former(&meta.name, &meta.info),
        };
        self.load_version(&id).map(|(_, meta)| meta)
    }

    /// Loads the current version of a key and its authenticated metadata.
    ///
    /// # Errors
    /// If the key does not exist, if another key-encryption key sealed it, or if any byte of the file was
    /// changed.
    pub fn load(&self, name: &str) -> Result<(PrivateKey, KeyMeta), StoreError> {
        self.load_version(&VersionId::current(name))
    }

    /// Loads a key like [`Self::load`], in any version.
    pub(crate) fn load_version(&self, id: &VersionId) -> Result<(PrivateKey, KeyMeta), StoreError> {
        let bytes = self.read(id)?;
        let file = self.parse(id, &bytes).map_err(|error| match &self.sealer {
            // A later version may have written what this one cannot read, but only under the seal.
            Some(sealer) if sealer.finds_changed(&bytes) => {
                StoreError::Changed { path: self.path_of(id) }
            }
            _ => error,
        })?;
        let sealer = self.sealer.as_ref().ok_or(StoreError::Locked)?;
        let key = sealer.open(&file).map_err(|error| match error {
            OpenError::OtherKek { sealed, ours } => {
                StoreError::WrongKek { path: self.path_of(id), sealed, ours }
            }
            OpenError::Changed => StoreError::Changed { path: self.path_of(id) },
        })?;
        Ok((key, KeyMeta { authenticated: true, ..self.meta(id, &file) }))
    }

    /// The description in a file whose seal was not opened.
    fn meta(&self, id: &VersionId, file: &KeyFile<'_>) -> KeyMeta {
        let Metadata { name, created, info, policy } = file.metadata.clone();
        // The copy was written when the version was replaced.
        let replaced = id.former.as_ref().map(|_| {
            let metadata = fs::metadata(self.path_of(id));
            metadata.map_or(0, |metadata| u64::try_from(metadata.mtime()).unwrap_or(0))
        });
        KeyMeta { name, created, replaced, info, policy, kek: file.kek(), authenticated: false }
    }

    /// Removes a key with its former versions. Nodes that have loaded it revoke it within a second.
    ///
    /// # Errors
    /// If the key does not exist or cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let id = VersionId::current(name);
        let is_current = is_there(&self.path(&id)?);
        // The current version last: after a failure the key is still listed and can be removed again.
        let former = self.remove_former(name)?;
        if !is_current {
            self.unmark(name)?;
            // Files that were left without a current version are gone now.
            let none = StoreError::NoSuchKey { name: name.to_owned() };
            return if former > 0 { Ok(()) } else { Err(none) };
        }
        self.remove_file(&id)?;
        self.sync()?;
        self.unmark(name)?;
        self.audit(None, "remove", Some(name), &Value::Null)
    }

    /// The files of a key: the one of its current version, then those of its former versions.
    ///
    /// # Errors
    /// If there is no version of that name, or the directory cannot be read.
    pub fn files_of(&self, name: &str) -> Result<KeyFiles, StoreError> {
        let current = Some(self.path(&VersionId::current(name))?).filter(|path| is_there(path));
        let former: Vec<_> = self.former_of(name)?.iter().map(|id| self.path_of(id)).collect();
        if current.is_none() && former.is_empty() {
            return Err(StoreError::NoSuchKey { name: name.to_owned() });
        }
        Ok(KeyFiles { current, former })
    }

    /// Removes the former versions of a key, and returns how many there were. Nodes revoke them within a
    /// second: for a key that was replaced because it is no longer secret.
    ///
    /// # Errors
    /// If a version cannot be removed.
    pub fn remove_former(&self, name: &str) -> Result<usize, StoreError> {
        self.path(&VersionId::current(name))?;
        let former = self.former_of(name)?;
        self.remove_versions(name, &former)?;
        Ok(former.len())
    }

    fn remove_versions(&self, name: &str, former: &[VersionId]) -> Result<(), StoreError> {
        for id in former {
            self.remove_file(id)?;
        }
        if !former.is_empty() {
            self.sync()?;
            let detail = json!({ "versions": former.len() });
            self.audit(None, "remove-former", Some(name), &detail)?;
        }
        Ok(())
    }

    fn remove_file(&self, id: &VersionId) -> Result<(), StoreError> {
        self.remove_path(self.path_of(id))
    }

    fn remove_path(&self, path: PathBuf) -> Result<(), StoreError> {
        remove_leftovers(&path);
        match self.files.remove(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(StoreError::Write { path, source }),
        }
    }

    /// Replaces the policy of a key. Nodes that have loaded the key apply it to all its versions within a
    /// second.
    ///
    /// # Errors
    /// As [`Self::load`] and [`Self::import`].
    pub fn set_policy(&self, name: &str, policy: KeyPolicy) -> Result<KeyMeta, StoreError> {
        let (key, meta) = self.load(name)?;
        let metadata = Metadata {
            created: meta.created,
            ..Metadata::new(&meta.name, meta.info.clone(), policy)?
        };
        let policy = metadata.policy.clone();
        self.write(&metadata, &key, IfExists::Replace)?;
        let detail = json!({
            "before": policy_of(&meta.policy),
            "policy": policy_of(&policy),
        });
        self.audit(None, "policy", Some(name), &detail)?;
        Ok(KeyMeta { policy, ..meta })
    }

    /// Appends a line to the audit log ([`AUDIT_LOG`]) of the store. `actor` caused the change; `None` is the
    /// user of this process.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub fn audit(
        &self,
        actor: Option<&str>,
        action: &str,
        key: Option<&str>,
        detail: &Value,
    ) -> Result<(), StoreError> {
        audit::append(&self.directory, actor, action, key, detail)
            .map_err(|source| StoreError::Audit { path: self.directory.join(AUDIT_LOG), source })
    }

    /// The versions in the store, by name and the current version first, each with a stamp that changes with
    /// every write of its file.
    pub(crate) fn entries(&self) -> Result<Vec<(VersionId, Stamp)>, StoreError> {
        let mut entries = Vec::new();
        self.each_version(|id, entry| {
            // Removed between the listing and this call: treated as absent.
            entries.extend(entry.metadata().ok().map(|metadata| (id, Stamp::of(&metadata))));
        })?;
        entries.sort_unstable();
        Ok(entries)
    }

    /// Calls `each` with all versions, in the order of the directory. It has no bound: a version that is not listed
    /// could be neither seen nor removed, and only the owner of the store makes files there.
    fn each_version(&self, mut each: impl FnMut(VersionId, &DirEntry)) -> Result<(), StoreError> {
        for version in self.versions()? {
            let (id, entry) = version?;
            each(id, &entry);
        }
        Ok(())
    }

    fn versions(
        &self,
    ) -> Result<impl Iterator<Item = Result<(VersionId, DirEntry), StoreError>>, StoreError> {
        let failed = |source| StoreError::Directory { path: self.directory.clone(), source };
        let entries = fs::read_dir(&self.directory).map_err(failed)?;
        Ok(entries.filter_map(move |entry| match entry {
            Ok(entry) => {
                let id = entry.file_name().to_str().and_then(VersionId::of_file)?;
                Some(Ok((id, entry)))
            }
            Err(error) => Some(Err(failed(error))),
        }))
    }

    /// A stamp of the directory, which changes when a file is added, replaced or removed, but not when one is written
    /// in place.
    pub(crate) fn stamp(&self) -> Result<Stamp, StoreError> {
        let metadata = fs::metadata(&self.directory);
        let metadata = metadata
            .map_err(|source| StoreError::Directory { path: self.directory.clone(), source })?;
        Ok(Stamp::of(&metadata))
    }

    fn write(
        &self,
        metadata: &Metadata,
        key: &PrivateKey,
        if_exists: IfExists,
    ) -> Result<(), StoreError> {
        let path = self.path(&VersionId::current(&metadata.name))?;
        let sealer = self.sealer.as_ref().ok_or(StoreError::Locked)?;
        let bytes = sealer.seal(metadata, key)?;
        write_atomically(&*self.files, &path, &bytes, if_exists).map_err(|source| {
            if source.kind() == io::ErrorKind::AlreadyExists {
                StoreError::Exists { name: metadata.name.clone() }
            } else {
                StoreError::Write { path, source }
            }
        })?;
        self.sync()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.files
            .sync_directory(&self.directory)
            .map_err(|source| StoreError::Directory { path: self.directory.clone(), source })
    }

    fn read(&self, id: &VersionId) -> Result<Vec<u8>, StoreError> {
        let path = self.path(id)?;
        ordinary::read(&path, Links::Refuse, MAX_FILE_LEN).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StoreError::NoSuchKey { name: id.name.clone() },
            _ => StoreError::Read { path, source },
        })
    }

    /// The key-encryption key of a file, from its first bytes; `None` for a file that does not begin as one.
    fn kek_of(&self, id: &VersionId) -> Option<KekId> {
        let mut head = [0; format::HEAD_LEN];
        let mut file = ordinary::open(&self.path_of(id), Links::Refuse).ok()?;
        file.read_exact(&mut head).ok()?;
        format::fingerprint(&head).ok().map(KekId)
    }

    fn parse<'a>(&self, id: &VersionId, bytes: &'a [u8]) -> Result<KeyFile<'a>, StoreError> {
        let damaged = |source| StoreError::Damaged { path: self.path_of(id), source };
        let file = parse(bytes).map_err(damaged)?;
        if file.metadata.name != id.name {
            return Err(damaged(FormatError::Damaged("name")));
        }
        if id.former.is_some() && *id != VersionId::former(&id.name, &file.metadata.info) {
            return Err(damaged(FormatError::Damaged("public key")));
        }
        Ok(file)
    }

    fn path(&self, id: &VersionId) -> Result<PathBuf, StoreError> {
        if valid_name(&id.name) {
            Ok(self.path_of(id))
        } else {
            Err(StoreError::Name { name: id.name.chars().take(MAX_NAME_LEN).collect() })
        }
    }

    fn path_of(&self, id: &VersionId) -> PathBuf {
        let VersionId { name, former } = id;
        self.directory.join(match former {
            None => format!("{name}{SUFFIX}"),
            Some(hash) => format!("{name}.{hash}{FORMER_SUFFIX}"),
        })
    }
}

/// Imports keys into a store. It sees each name as the store has it at that moment; the number of keys, and former
/// versions that were left without a current one, are those of its beginning.
pub struct KeyImporter<'a> {
    store: &'a KeyStore,
    /// The number of current versions.
    keys: usize,
    /// The former versions, by name.
    former: BTreeMap<String, Vec<VersionId>>,
}

impl KeyImporter<'_> {
    /// Keys for which the store has room yet.
    #[must_use]
    pub fn room(&self) -> usize {
        MAX_KEYS.saturating_sub(self.keys)
    }

    /// Stores a key. `info` is the engine's description of the accepted key. With
    /// [`IfExists::Replace`] the key of that name, if there is one, becomes a former version of it; [`MAX_FORMER`]
    /// former versions are kept.
    ///
    /// # Errors
    /// If a key of that name exists and is not to be replaced, if the name or the policy is invalid, or if the
    /// disk is full; then the store is unchanged.
    pub fn import(
        &mut self,
        name: &str,
        key: &PrivateKey,
        info: KeyInfo,
        policy: KeyPolicy,
        if_exists: IfExists,
    ) -> Result<KeyMeta, StoreError> {
        if !is_there(&self.store.path(&VersionId::current(name))?) {
            // A mark that is left from a removed key must not give this one to the manager.
            self.store.unmark(name)?;
        }
        self.store(name, key, info, policy, if_exists)
    }

    fn store(
        &mut self,
        name: &str,
        key: &PrivateKey,
        info: KeyInfo,
        policy: KeyPolicy,
        if_exists: IfExists,
    ) -> Result<KeyMeta, StoreError> {
        let store = self.store;
        let metadata = Metadata::new(name, info, policy)?;
        let id = VersionId::current(name);
        let replaced = is_there(&store.path(&id)?);
        if replaced && if_exists == IfExists::Fail {
            return Err(StoreError::Exists { name: name.to_owned() });
        }
        let former = if replaced {
            store.keep_former(&id, &metadata.info)?
        } else {
            if self.room() == 0 {
                return Err(StoreError::Full);
            }
            // Files that are left from a removed key must not become versions of the new one.
            store.remove_versions(name, &self.former.remove(name).unwrap_or_default())?;
            None
        };
        if let Err(error) = store.write(&metadata, key, if_exists) {
            if let Some(former) = former {
                let _ = store.files.remove(&store.path_of(&former));
            }
            return Err(error);
        }
        if replaced {
            let mut versions = self.former.remove(name).unwrap_or_default();
            versions.retain(|version| Some(version) != former.as_ref());
            versions.extend(former);
            store.prune(name, &metadata.info, versions)?;
        } else {
            self.keys += 1;
        }
        let action = if replaced { "replace" } else { "import" };
        let detail = json!({
            "type": metadata.info.key_type.to_string(),
            "policy": policy_of(&metadata.policy),
        });
        store.audit(None, action, Some(name), &detail)?;
        let meta = store.describe(name)?;
        Ok(KeyMeta { authenticated: true, ..meta })
    }
}

impl fmt::Debug for KeyImporter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyImporter").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// Refuses a directory in which other users can add, replace or remove files. The keys are sealed, but the
/// store could not detect a missing file or an old one put back.
fn check(directory: &Path, metadata: &fs::Metadata) -> Result<(), StoreError> {
    let mode = metadata.mode() & 0o7777;
    let user = rustix::process::geteuid().as_raw();
    if mode & 0o022 != 0 {
        return Err(StoreError::Exposed { path: directory.to_owned(), mode });
    }
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(StoreError::Owner { path: directory.to_owned(), owner: metadata.uid(), user });
    }
    Ok(trusted::check_own_folder(directory)?)
}

/// Whether a path has a file of any kind.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// A policy in the form of the audit log.
fn policy_of(policy: &KeyPolicy) -> Value {
    let operations = policy.operations.iter().map(OperationKind::name);
    json!({
        "identities": policy.identities,
        "operations": operations.collect::<Vec<_>>(),
        "hashes": policy.hashes.iter().map(|hash| hash.name()).collect::<Vec<_>>(),
    })
}

/// One version of a key, by its file. Sorts by name, the current version first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VersionId {
    pub(crate) name: String,
    /// `None` for the current version, else the first half of the public key's SHA-256 in hex.
    pub(crate) former: Option<String>,
}

impl VersionId {
    pub(crate) fn current(name: &str) -> Self {
        Self { name: name.to_owned(), former: None }
    }

    fn former(name: &str, info: &KeyInfo) -> Self {
        let hash = digest(&SHA256, &info.spki);
        Self { name: name.to_owned(), former: Some(hex::encode(&hash.as_ref()[..16])) }
    }

    fn of_file(file_name: &str) -> Option<Self> {
        let (name, former) = match file_name.strip_suffix(SUFFIX) {
            Some(name) => (name, None),
            None => {
                let (name, hash) = file_name.strip_suffix(FORMER_SUFFIX)?.rsplit_once('.')?;
                let digits = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
                (name, Some(digits.then(|| hash.to_owned())?))
            }
        };
        valid_name(name).then(|| Self { name: name.to_owned(), former })
    }
}

/// The files of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The one of the current version; `None` if former versions were left without one.
    pub current: Option<PathBuf>,
    /// Those of former versions.
    pub former: Vec<PathBuf>,
}

/// The public description of a version of a stored key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMeta {
    /// Name of the key.
    pub name: String,
    /// Time of the import, in seconds since 1970.
    pub created: u64,
    /// Time at which another key took its place, in seconds since 1970; `None` for the current version.
    pub replaced: Option<u64>,
    /// Type and public half of the key.
    pub info: KeyInfo,
    /// The identities that may use the key, and the operations that they may do. Nodes apply the policy of the
    /// current version to all versions.
    pub policy: KeyPolicy,
    /// The key-encryption key that sealed the file.
    pub kek: KekId,
    /// Whether the seal was opened and has verified the other fields.
    pub authenticated: bool,
}

/// A value that changes whenever a file is replaced or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    inode: u64,
    len: u64,
    changed: (i64, i64),
    modified: (i64, i64),
}

impl Stamp {
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests;
