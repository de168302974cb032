// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The private keys of a pool, in its records: each is a key file under the pool's key-encryption key, in the form that
//! a node's key store has. The key-encryption key is a file beside the manager, never in the store, so that a copy of
//! the store opens no key.
//!
//! ```text
//!  PEM ── make ──► PoolKey (sealed) ──► store
//!                     └── transit ──► SealedKey (to one node)       the only two places where a key is in the clear
//! ```
//!
//! All managers of a pool have the same key-encryption key. Its id is in the record [`KEK_RECORD`]; a manager with
//! another one does not start.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millrace_operation::sync::lock;
use millrace_operation::{HashAlgorithms, KeyError, KeyInfo, OperationSet, PrivateKey};
use millrace_service::policy::{KeyPolicy, TENANT_PREFIX};
use millrace_service::store::bundle::KeyBundle;
use millrace_service::store::pem::{PemError, read_private_key};
use millrace_service::store::{
    FormatError, KekError, KekSource, KeySealer, MAC_LEN, MAX_FORMER, Metadata, OpenError,
    StoreError as KeyStoreError, parse,
};
use serde::{Deserialize, Serialize};
use tracing::error;

use crate::model::holder::SealedKey;
use crate::model::keys::PoolKey;
use crate::model::name::{KeyName, TenantName};
use crate::sealing::{SealingError, TransitContext, seal};
use crate::store::{Store, StoreError, Transaction};

/// Key of the record with the id of the key-encryption key. Outside of [`PREFIX`](crate::model::view::PREFIX): managers
/// of the version before would call it damaged.
pub const KEK_RECORD: &str = "millrace-pool/kek";

/// Prefix below which [`KEK_RECORD`] is the only record.
const KEK_PREFIX: &str = "millrace-pool/";

/// Says whether an engine takes a key, and what it is.
pub type CheckKey = fn(&PrivateKey) -> Result<KeyInfo, KeyError>;

/// Why the pool's keys cannot be opened, or a key cannot be taken. Never with the key.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The file is missing, and the records name a key-encryption key.
    #[error(
        "the key-encryption key {} is missing, and the pool's keys are sealed under it ({sealed}): put it back, or \
         copy manager/pool.kek of another manager of this pool; if it is lost, start with --new-kek and import the keys \
         again", path.display()
    )]
    Missing {
        /// Path where it is expected.
        path: PathBuf,
        /// Id in the records.
        sealed: String,
    },
    /// The records name another key-encryption key.
    #[error(
        "{} is the key-encryption key {ours}, and the pool's keys are sealed under {sealed}: copy manager/pool.kek of \
         another manager of this pool; if that is lost, start with --new-kek and import the keys again", path.display()
    )]
    OtherKek {
        /// The file.
        path: PathBuf,
        /// Id of the file.
        ours: String,
        /// Id in the records.
        sealed: String,
    },
    /// The file cannot be used.
    #[error(transparent)]
    Kek(#[from] KekError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// This manager was started without keys.
    #[error("this manager keeps no keys")]
    NoKeys,
    /// The text is not a private key.
    #[error("the private key cannot be read: {0}")]
    Pem(#[from] PemError),
    /// No backend takes the key.
    #[error("the key is refused: {0}")]
    Refused(#[from] KeyError),
    /// Allowed operations of which none fits the key.
    #[error("a {0} key can do none of these operations")]
    Operations(String),
    /// A field is out of its bounds.
    #[error("the key cannot be sealed: {0}")]
    Seal(#[from] KeyStoreError),
}

/// Why a key of the records does not get to a node.
#[derive(Debug, thiserror::Error)]
enum TransitError {
    #[error("its record is not base64")]
    Encoding,
    #[error(transparent)]
    Form(#[from] FormatError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("its record has the name or the tenants of another key")]
    Record,
    #[error(transparent)]
    Sealing(#[from] SealingError),
}

/// Content of the record [`KEK_RECORD`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KekRecord {
    id: String,
}

/// Tenants, operations and hashes that the policy of a key allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRights {
    /// Tenants that may use it; empty for those of the key that is replaced.
    pub tenants: BTreeSet<TenantName>,
    /// Allowed operations; `None` for the former ones, or those of [`KeyPolicy::signing`].
    pub operations: Option<OperationSet>,
    /// Allowed hashes; `None` for the former ones, or all.
    pub hashes: Option<HashAlgorithms>,
}

/// The private keys of a pool at one manager.
pub struct Vault {
    sealer: KeySealer,
    path: PathBuf,
    store: Arc<dyn Store>,
    check: CheckKey,
    /// Whether the records are taken as they are, whatever their seals say.
    accepts_records: bool,
    /// Versions of keys about which the log has an error: each heartbeat of each node would repeat it. Bound: as many
    /// as the pool has keys, since it is emptied at that size.
    complained: Mutex<BTreeSet<(KeyName, u64)>>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vault({})", self.sealer.id())
    }
}

impl Vault {
    /// Loads the key-encryption key in `path`, and makes one for a pool that has none. `renew` takes it for the pool's
    /// although the records name another: that one is lost.
    ///
    /// # Errors
    /// [`VaultError::Missing`], [`VaultError::OtherKek`], the file or the store fails.
    pub fn open(
        path: &Path,
        store: Arc<dyn Store>,
        renew: bool,
        check: CheckKey,
    ) -> Result<Self, VaultError> {
        let (record, _) = read_record(&*store)?;
        if let Some(record) = record.filter(|_| !renew && !path.exists()) {
            return Err(VaultError::Missing { path: path.to_owned(), sealed: record.id });
        }
        let source = KekSource::File { path: path.to_owned(), create: true };
        let vault = Self {
            sealer: KeySealer::load(&source)?.ok_or(VaultError::NoKeys)?,
            path: path.to_owned(),
            store,
            check,
            accepts_records: renew,
            complained: Mutex::default(),
        };
        vault.claim(renew)?;
        Ok(vault)
    }

    /// Has the manager that starts with it take the pool's records as they are, and seal them anew.
    #[must_use]
    pub fn accepting_records(mut self, accepts: bool) -> Self {
        self.accepts_records |= accepts;
        self
    }

    pub(crate) fn accepts_records(&self) -> bool {
        self.accepts_records
    }

    /// The file of the key-encryption key.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Proof that a manager of this pool has written `parts`.
    pub(crate) fn authenticate(&self, parts: &[&[u8]]) -> [u8; MAC_LEN] {
        self.sealer.authenticate(parts)
    }

    /// Writes the id into a store that has none.
    fn claim(&self, renew: bool) -> Result<(), VaultError> {
        let ours = self.sealer.id().to_string();
        let (record, revision) = read_record(&*self.store)?;
        match record {
            Some(record) if record.id == ours => return Ok(()),
            Some(record) if !renew => return Err(self.other(record.id)),
            Some(_) | None => {}
        }
        let mut transaction = Transaction::default();
        transaction.require(KEK_RECORD, revision);
        let text = serde_json::json!(KekRecord { id: ours }).to_string();
        transaction.put(KEK_RECORD, text);
        match self.store.commit(&transaction) {
            Ok(_) => Ok(()),
            // Another manager was faster: it has the same key-encryption key, or this one does not start.
            Err(StoreError::Conflict) => self.require_own(),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that the pool's keys still are those under this key-encryption key.
    fn require_own(&self) -> Result<(), VaultError> {
        let (record, _) = read_record(&*self.store)?;
        match record {
            Some(record) if record.id != self.sealer.id().to_string() => Err(self.other(record.id)),
            Some(_) | None => Ok(()),
        }
    }

    fn other(&self, sealed: String) -> VaultError {
        VaultError::OtherKek { path: self.path.clone(), ours: self.sealer.id().to_string(), sealed }
    }

    /// The record of a key. Its former versions and, where `rights` does not name them, its operations and hashes are
    /// those of `before`. `pem` is PKCS#8, PKCS#1 or SEC 1.
    pub fn make(
        &self,
        name: &KeyName,
        pem: &[u8],
        rights: &KeyRights,
        before: Option<&PoolKey>,
        now_ms: u64,
    ) -> Result<PoolKey, VaultError> {
        self.require_own()?;
        let key = read_private_key(pem)?;
        let info = (self.check)(&key)?;
        let public = public_hash(&info);
        let KeyRights { tenants, operations, hashes } = rights;
        let tenants = match before {
            Some(before) if tenants.is_empty() => &before.tenants,
            Some(_) | None => tenants,
        };
        let mut policy = KeyPolicy::signing([]);
        policy.identities =
            tenants.iter().map(|tenant| format!("{TENANT_PREFIX}{tenant}")).collect();
        let described = before.and_then(|before| Some((before, describe(&before.sealed).ok()?)));
        if let Some((before, described)) = described {
            let former = before.former.iter().filter_map(|former| describe(former).ok());
            let former = former.map(|former| (former.info.key_type, former.policy.operations));
            let identities = policy.identities;
            policy = described.policy.renewed(described.info.key_type, info.key_type, former);
            policy.identities = identities;
        }
        policy.operations = operations.unwrap_or(policy.operations);
        policy.hashes = hashes.unwrap_or(policy.hashes);
        let key_type = info.key_type;
        let metadata = Metadata::new(name.as_str(), info, policy)?;
        if metadata.policy.operations.iter().next().is_none() {
            return Err(VaultError::Operations(key_type.to_string()));
        }
        let sealed = STANDARD.encode(self.sealer.seal(&metadata, &key)?);
        let former = before.map_or_else(Vec::new, |before| {
            // The same key again is not a version of itself.
            let own = (before.public != public).then(|| before.sealed.clone());
            let older = before.former.iter().filter(|former| {
                describe(former).is_ok_and(|former| public_hash(&former.info) != public)
            });
            own.into_iter().chain(older.cloned()).take(MAX_FORMER).collect()
        });
        Ok(PoolKey {
            name: name.clone(),
            version: next_version(before, now_ms),
            public,
            tenants: tenants.clone(),
            sealed,
            former,
        })
    }

    /// The key sealed to a node with the sealing key `public`; `None`, with a line in the log, if its record cannot be
    /// opened here.
    #[must_use]
    pub fn transit(
        &self,
        key: &PoolKey,
        public: &str,
        node: &crate::model::name::NodeName,
        fence: u64,
        revision: u64,
    ) -> Option<SealedKey> {
        let context = TransitContext {
            node,
            fence,
            revision,
            key: &key.name,
            version: key.version,
            tenants: &key.tenants,
        };
        match self.try_transit(key, public, context) {
            Ok(sealed) => Some(sealed),
            Err(reason) => {
                let mut complained = lock(&self.complained);
                if complained.len() >= crate::model::keys::MAX_POOL_KEYS {
                    complained.clear();
                }
                if complained.insert((key.name.clone(), key.version)) {
                    error!(key = %key.name, %node, %reason, "a key of the pool cannot be given to nodes");
                }
                None
            }
        }
    }

    fn try_transit(
        &self,
        key: &PoolKey,
        public: &str,
        context: TransitContext<'_>,
    ) -> Result<SealedKey, TransitError> {
        let mut policy = None;
        let mut versions = Vec::new();
        for text in [&key.sealed].into_iter().chain(&key.former) {
            let bytes = STANDARD.decode(text).map_err(|_| TransitError::Encoding)?;
            let file = parse(&bytes)?;
            let Metadata { name, policy: of_file, .. } = &file.metadata;
            let opened = match self.sealer.open(&file) {
                Ok(opened) => opened,
                // One that was sealed under a lost key-encryption key must not hold the current version back.
                Err(OpenError::OtherKek { .. }) if policy.is_some() => continue,
                Err(error) => return Err(error.into()),
            };
            if *name != key.name.as_str() {
                return Err(TransitError::Record);
            }
            if policy.is_none() {
                // The tenants of the record are not authenticated; those in the key file are.
                let tenants = key.tenants.iter();
                let named = tenants.map(|tenant| format!("{TENANT_PREFIX}{tenant}"));
                if !named.eq(of_file.identities.iter().cloned()) {
                    return Err(TransitError::Record);
                }
                policy = Some(of_file.clone());
            }
            versions.push(opened);
        }
        let policy = policy.ok_or(TransitError::Record)?;
        let bundle = KeyBundle { operations: policy.operations, hashes: policy.hashes, versions };
        Ok(seal(public, context, &bundle)?)
    }
}

/// The version after `before`.
#[must_use]
pub fn next_version(before: Option<&PoolKey>, now_ms: u64) -> u64 {
    before.map_or(now_ms, |before| now_ms.max(before.version + 1))
}

/// The clear part of a sealed version in base64. Not authenticated.
pub fn describe(sealed: &str) -> Result<Metadata, FormatError> {
    let bytes = STANDARD.decode(sealed).map_err(|_| FormatError::Magic)?;
    Ok(parse(&bytes)?.metadata)
}

fn public_hash(info: &KeyInfo) -> String {
    hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &info.spki))
}

fn read_record(store: &dyn Store) -> Result<(Option<KekRecord>, u64), VaultError> {
    let snapshot = store.read(KEK_PREFIX)?;
    let Some(entry) = snapshot.entries.iter().find(|entry| entry.key == KEK_RECORD) else {
        return Ok((None, 0));
    };
    let record = serde_json::from_slice(&entry.value)
        .map_err(|error| StoreError::Damaged(format!("{KEK_RECORD}: {error}")))?;
    Ok((Some(record), entry.revision))
}
