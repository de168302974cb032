// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys at rest: a directory with one file per key, each sealed under a key-encryption key.
//!
//! ```text
//!  keys/                     0700
//!    www.key                 0600  public metadata in the clear, PKCS#8 under AES-256-GCM
//!    kek                     0600  (by default; a systemd credential is better)
//! ```
//!
//! The seal authenticates the metadata (name, type, public key, policy), so a changed byte anywhere makes the
//! file unusable. Writes are atomic: a full disk changes nothing. Several processes may use one store; a node
//! applies changes by `millrace key` within a second.
//!
//! It does not protect keys from a user who can read both the directory and the key-encryption key, or from
//! the node's own user.

mod audit;
mod files;
mod format;
mod kek;
pub mod pem;

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, fs};

use millrace_engine::{KeyInfo, KeyPolicy, KeyType, OperationKind, PrivateKey};
use serde_json::{Value, json};
use thiserror::Error;

pub use audit::AUDIT_LOG;
pub use files::write_private;
use files::{Disk, FileLayer, write_atomically};
use kek::Kek;

pub use format::{
    FINGERPRINT_LEN, FormatError, KeyFile, MAX_FILE_LEN, MAX_IDENTITIES, MAX_IDENTITY_LEN,
    MAX_NAME_LEN, MAX_SPKI_LEN, Metadata, NONCE_LEN, parse, valid_identity, valid_name,
};
pub use kek::{CREDENTIAL_NAME, KEK_LEN, KekError, KekSource};

/// Bound on the keys of one store. Each key takes memory in every backend, and the node scans the directory
/// every second.
pub const MAX_KEYS: usize = 10_000;

/// Keys at rest. Share it in an `Arc`; every method may be called from any thread and blocks on the disk.
pub struct KeyStore {
    directory: PathBuf,
    kek: Option<Kek>,
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
        let failed = |source| StoreError::Directory {
            path: directory.clone(),
            source,
        };
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(failed)?;
        let metadata = fs::metadata(&directory).map_err(failed)?;
        check(&directory, &metadata)?;
        let store = Self {
            directory,
            kek: None,
            files: Box::new(Disk),
        };
        store.unlock(kek)
    }

    /// Loads the key-encryption key of a store that was opened with [`KekSource::Absent`]: for a caller with
    /// different rights on the directory and on the key-encryption key.
    ///
    /// # Errors
    /// If the key-encryption key cannot be loaded from `kek`.
    pub fn unlock(mut self, kek: &KekSource) -> Result<Self, StoreError> {
        self.kek = Kek::load(kek)?;
        Ok(self)
    }

    /// The directory of the store.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Stores a key. `info` is the engine's description of the accepted key.
    ///
    /// # Errors
    /// If a key of that name exists and `replace` is not set, if the name or the policy is invalid, or if the
    /// disk is full; then the store is unchanged.
    pub fn import(
        &self,
        name: &str,
        key: &PrivateKey,
        info: KeyInfo,
        policy: KeyPolicy,
        replace: bool,
    ) -> Result<KeyMeta, StoreError> {
        let created = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |age| age.as_secs());
        let metadata = Metadata {
            name: name.to_owned(),
            created,
            policy: fitting(policy, info.key_type)?,
            info,
        };
        let full = || self.entries().map(|entries| entries.len() >= MAX_KEYS);
        let replaced = self.path(name)?.exists();
        if !replaced && full()? {
            return Err(StoreError::Full);
        }
        self.write(&metadata, key, replace)?;
        let action = if replaced { "replace" } else { "import" };
        let detail = json!({
            "type": metadata.info.key_type.to_string(),
            "policy": policy_of(&metadata.policy),
        });
        self.audit(None, action, Some(name), &detail)?;
        Ok(KeyMeta::new(metadata, true))
    }

    /// The keys of the store, by name, without opening their seals: the result is not authenticated. Files
    /// that do not parse are errors in the list.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Result<KeyMeta, StoreError>>, StoreError> {
        let mut keys = Vec::new();
        for (name, _) in self.entries()? {
            match self.read(&name) {
                Ok(bytes) => keys.push(
                    self.parse(&name, &bytes)
                        .map(|file| KeyMeta::new(file.metadata, false)),
                ),
                Err(StoreError::NoSuchKey { .. }) => {} // removed since the listing
                Err(error) => keys.push(Err(error)),
            }
        }
        Ok(keys)
    }

    /// Loads a key and its authenticated metadata.
    ///
    /// # Errors
    /// If the key does not exist, if another key-encryption key sealed it, or if any byte of the file was
    /// changed.
    pub fn load(&self, name: &str) -> Result<(PrivateKey, KeyMeta), StoreError> {
        let bytes = self.read(name)?;
        let file = self.parse(name, &bytes)?;
        let kek = self.kek.as_ref().ok_or(StoreError::Locked)?;
        let path = || self.path_of(name);
        if file.fingerprint != kek.fingerprint() {
            return Err(StoreError::WrongKek { path: path() });
        }
        let secret = kek
            .open(file.aad, file.nonce, file.sealed)
            .map_err(|_| StoreError::Changed { path: path() })?;
        Ok((
            PrivateKey::from_pkcs8(secret),
            KeyMeta::new(file.metadata, true),
        ))
    }

    /// Removes a key. Nodes that have loaded it revoke it within a second.
    ///
    /// # Errors
    /// If the key does not exist or cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path(name)?;
        match self.files.remove(&path) {
            Ok(()) => {
                self.sync()?;
                self.audit(None, "remove", Some(name), &Value::Null)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::NoSuchKey {
                name: name.to_owned(),
            }),
            Err(source) => Err(StoreError::Write { path, source }),
        }
    }

    /// Replaces the policy of a key. Nodes that have loaded the key apply it within a second.
    ///
    /// # Errors
    /// As [`Self::load`] and [`Self::import`].
    pub fn set_policy(&self, name: &str, policy: KeyPolicy) -> Result<KeyMeta, StoreError> {
        let (key, meta) = self.load(name)?;
        let policy = fitting(policy, meta.info.key_type)?;
        let metadata = Metadata {
            name: meta.name.clone(),
            created: meta.created,
            info: meta.info.clone(),
            policy: policy.clone(),
        };
        self.write(&metadata, &key, true)?;
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
        audit::append(&self.directory, actor, action, key, detail).map_err(|source| {
            StoreError::Audit {
                path: self.directory.join(AUDIT_LOG),
                source,
            }
        })
    }

    /// The names in the store, sorted, each with a stamp that changes with every write of its file.
    pub(crate) fn entries(&self) -> Result<Vec<(String, Stamp)>, StoreError> {
        let failed = |source| StoreError::Directory {
            path: self.directory.clone(),
            source,
        };
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let file_name = entry.file_name();
            let name = file_name
                .to_str()
                .and_then(|name| name.strip_suffix(SUFFIX));
            let Some(name) = name.filter(|name| valid_name(name)) else {
                continue;
            };
            // Removed between the listing and this call: treated as absent.
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if entries.len() == MAX_KEYS {
                break;
            }
            entries.push((name.to_owned(), Stamp::of(&metadata)));
        }
        entries.sort();
        Ok(entries)
    }

    fn write(
        &self,
        metadata: &Metadata,
        key: &PrivateKey,
        replace: bool,
    ) -> Result<(), StoreError> {
        let path = self.path(&metadata.name)?;
        let kek = self.kek.as_ref().ok_or(StoreError::Locked)?;
        let aad = format::encode_aad(metadata, kek.fingerprint())?;
        let (nonce, sealed) = kek.seal(&aad, key.dangerous_pkcs8())?;
        let bytes = format::encode(&aad, nonce, &sealed);
        // Never writes a file that it could not read again.
        parse(&bytes)?;
        write_atomically(&*self.files, &path, &bytes, replace).map_err(|source| {
            if source.kind() == io::ErrorKind::AlreadyExists {
                StoreError::Exists {
                    name: metadata.name.clone(),
                }
            } else {
                StoreError::Write { path, source }
            }
        })?;
        self.sync()
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.files
            .sync_directory(&self.directory)
            .map_err(|source| StoreError::Directory {
                path: self.directory.clone(),
                source,
            })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.path(name)?;
        let mut bytes = Vec::new();
        let limit = u64::try_from(MAX_FILE_LEN + 1).unwrap_or(u64::MAX);
        File::open(&path)
            .and_then(|file| file.take(limit).read_to_end(&mut bytes))
            .map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => StoreError::NoSuchKey {
                    name: name.to_owned(),
                },
                _ => StoreError::Read {
                    path: path.clone(),
                    source,
                },
            })?;
        Ok(bytes)
    }

    fn parse<'a>(&self, name: &str, bytes: &'a [u8]) -> Result<KeyFile<'a>, StoreError> {
        let damaged = |source| StoreError::Damaged {
            path: self.path_of(name),
            source,
        };
        let file = parse(bytes).map_err(damaged)?;
        if file.metadata.name != name {
            return Err(damaged(FormatError::Damaged("name")));
        }
        Ok(file)
    }

    fn path(&self, name: &str) -> Result<PathBuf, StoreError> {
        if valid_name(name) {
            Ok(self.path_of(name))
        } else {
            Err(StoreError::Name {
                name: name.chars().take(MAX_NAME_LEN).collect(),
            })
        }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }
}

impl fmt::Debug for KeyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyStore")
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

/// Refuses a directory in which other users can add, replace or remove files. The keys are sealed, but the
/// store could not detect a missing file or an old one put back.
fn check(directory: &Path, metadata: &fs::Metadata) -> Result<(), StoreError> {
    let mode = metadata.mode() & 0o7777;
    let user = rustix::process::geteuid().as_raw();
    if mode & 0o022 != 0 {
        return Err(StoreError::Exposed {
            path: directory.to_owned(),
            mode,
        });
    }
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(StoreError::Owner {
            path: directory.to_owned(),
            owner: metadata.uid(),
            user,
        });
    }
    Ok(())
}

/// The policy without operations that do not fit the type of the key. If stored, they would have no meaning,
/// and an operation added by a later version would make the file of every key unreadable for this one.
fn fitting(mut policy: KeyPolicy, key_type: KeyType) -> Result<KeyPolicy, StoreError> {
    if policy.operations.contains(OperationKind::RsaRaw) {
        return Err(StoreError::RawRsa);
    }
    let operations = policy.operations.iter();
    policy.operations = operations.filter(|kind| kind.fits(key_type)).collect();
    Ok(policy)
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

/// Suffix of key files.
const SUFFIX: &str = ".key";

/// The public description of a stored key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyMeta {
    /// Name of the key.
    pub name: String,
    /// Time of the import, in seconds since 1970.
    pub created: u64,
    /// Type and public half of the key.
    pub info: KeyInfo,
    /// The identities that may use the key, and the operations that they may do.
    pub policy: KeyPolicy,
    /// Whether the seal was opened and has verified the other fields.
    pub authenticated: bool,
}

impl KeyMeta {
    fn new(metadata: Metadata, authenticated: bool) -> Self {
        let Metadata {
            name,
            created,
            info,
            policy,
        } = metadata;
        Self {
            name,
            created,
            info,
            policy,
            authenticated,
        }
    }
}

/// A value that changes whenever a file is replaced or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    inode: u64,
    len: u64,
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            len: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Error of [`KeyStore`].
#[derive(Debug, Error)]
pub enum StoreError {
    /// The directory cannot be read or created.
    #[error("cannot use the key store {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users can write to the directory.
    #[error("others can write to the key store {} (mode {mode:04o}): chmod 0700", path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Another user owns the directory.
    #[error(
        "the key store {} belongs to uid {owner}, not to this user (uid {user}) or root: run millrace as its owner, or chown it",
        path.display()
    )]
    Owner {
        /// The directory.
        path: PathBuf,
        /// The user id of the owner.
        owner: u32,
        /// The user id of this process.
        user: u32,
    },
    /// The key-encryption key is missing, or sealing failed.
    #[error(transparent)]
    Kek(#[from] KekError),
    /// The store was opened without a key-encryption key.
    #[error("the key store was opened without its key-encryption key")]
    Locked,
    /// The name is not valid for a key.
    #[error(
        "{name:?} cannot name a key: use letters, digits, '.', '_' and '-', at most {MAX_NAME_LEN}, no leading dot"
    )]
    Name {
        /// The name, cut to the bound.
        name: String,
    },
    /// The store has no key of that name.
    #[error("there is no key named {name}")]
    NoSuchKey {
        /// The name.
        name: String,
    },
    /// The store already has a key of that name.
    #[error("there is a key named {name} already: remove it first, or ask for it to be replaced")]
    Exists {
        /// The name.
        name: String,
    },
    /// The store has [`MAX_KEYS`] keys.
    #[error("the key store is full ({MAX_KEYS} keys)")]
    Full,
    /// The policy allows raw RSA, which a key of the store must not.
    #[error("raw RSA is never allowed on a stored key: it is a signing and a decryption oracle")]
    RawRsa,
    /// A name, public key or policy is out of its bounds.
    #[error("the key cannot be stored: {0}")]
    Bounds(#[from] FormatError),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file cannot be written, for instance because the disk is full.
    #[error("cannot write {}: {source}; nothing was changed", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The change was made, but could not be logged.
    #[error("the change was made, but the audit log {} cannot be written: {source}", path.display())]
    Audit {
        /// The log.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file does not parse.
    #[error("cannot use {}: {source}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem of the content.
        source: FormatError,
    },
    /// Another key-encryption key sealed the file.
    #[error("{} was sealed under another key-encryption key", path.display())]
    WrongKek {
        /// The file.
        path: PathBuf,
    },
    /// The seal does not open: a byte of the file was changed.
    #[error("{} was changed after it was sealed", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

#[cfg(test)]
mod tests;
