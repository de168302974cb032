// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys that a node has from its manager: opened from an answer, stored in the node's own key store, deleted when
//! no tenant of theirs is on the node any more.
//!
//! ```text
//!  answer ── install (before its grants are in force) ──► key store
//!         ── settle  (after)                          ──► keys that it does not name leave after 2 s
//! ```
//!
//! The file `keys` of the node folder lists them, so that a process knows those of the one before, and so that a key
//! which an operator imported at this node is never replaced or deleted.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use millrace_service::service::InstallError;
use millrace_service::store::{StoreError, write_private};
use millrace_service::tenants::TENANT_PREFIX;
use millrace_service::{KeyPolicy, Service};
use tracing::{info, warn};

use crate::model::holder::{GrantSet, SealedKey};
use crate::model::{HeldKeys, KeyName, KeyRefused, NodeName};
use crate::sealing::{SealingError, SealingPair};

/// Why a key of an answer is not served.
#[derive(Debug, thiserror::Error)]
enum NodeKeyError {
    #[error(transparent)]
    Refused(#[from] KeyRefused),
    #[error("this node has a key of that name of its own: remove it (millrace key remove)")]
    Own,
    #[error(transparent)]
    Sealing(#[from] SealingError),
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write {}: {source}", path.display())]
    List { path: PathBuf, source: std::io::Error },
}

/// The keys of one node from its manager.
#[derive(Debug)]
pub(super) struct NodeKeys {
    node: NodeName,
    list: PathBuf,
    service: Service,
    pair: SealingPair,
    held: HeldKeys,
    /// The latest complaint in the log: the same one is not repeated with each answer.
    complained: BTreeMap<KeyName, String>,
}

impl NodeKeys {
    /// The keys that an earlier process of the node noted in `folder`, and a new pair to seal further ones to.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn open(
        folder: &Path,
        node: NodeName,
        service: Service,
    ) -> Result<Self, SealingError> {
        let list = folder.join("keys");
        let versions = read_list(&list);
        Ok(Self {
            node,
            list,
            service,
            pair: SealingPair::generate()?,
            held: HeldKeys::of_before(versions),
            complained: BTreeMap::new(),
        })
    }

    /// The public half, for the registration.
    #[must_use]
    pub(super) fn public_text(&self) -> String {
        self.pair.public_text()
    }

    /// Names and versions, for the heartbeat.
    #[must_use]
    pub(super) fn versions(&self) -> BTreeMap<KeyName, u64> {
        self.held.versions()
    }

    /// Stores and serves the keys of an answer, before its grants are in force: a tenant that comes finds its keys. A
    /// key that cannot be served is in the log, and does not hold the grants back.
    pub(super) fn install(&mut self, set: &GrantSet) {
        for sealed in &set.sealed_keys {
            match self.install_one(set, sealed) {
                Ok(()) => {
                    self.complained.remove(&sealed.name);
                    info!(key = %sealed.name, version = sealed.version, "key of the manager is served");
                }
                Err(error) => self.complain(&sealed.name, &error),
            }
        }
    }

    fn install_one(&mut self, set: &GrantSet, sealed: &SealedKey) -> Result<(), NodeKeyError> {
        let name = &sealed.name;
        self.held.admit(name, sealed.version, &set.keys)?;
        if !self.held.contains(name) && self.service.stored_key(name.as_str())?.is_some() {
            return Err(NodeKeyError::Own);
        }
        let bundle = self.pair.open(&self.node, set.fence, set.revision, sealed)?;
        let tenants = sealed.tenants.iter();
        let policy = KeyPolicy {
            identities: tenants.map(|tenant| format!("{TENANT_PREFIX}{tenant}")).collect(),
            operations: bundle.operations,
            hashes: bundle.hashes,
        };
        // First on the list, then in the store: a process that ends in between knows whose key it is.
        self.note(name, 0)?;
        self.service.install_key(name.as_str(), &bundle.versions, &policy)?;
        self.note(name, sealed.version)
    }

    fn note(&mut self, name: &KeyName, version: u64) -> Result<(), NodeKeyError> {
        self.held.note(name.clone(), version);
        self.write_list()
    }

    /// Takes the list of an answer whose grants are in force: the keys that it does not name leave.
    pub(super) fn settle(&mut self, set: &GrantSet, now: Instant) {
        self.held.settle(&set.keys, now);
        self.delete_due(now);
    }

    /// The node was removed from the pool: all keys leave.
    pub(super) fn settle_none(&mut self, now: Instant) {
        self.held.settle(&[], now);
    }

    /// Deletes the keys whose time has come. The caller calls it several times a second.
    pub(super) fn delete_due(&mut self, now: Instant) {
        for name in self.held.due(now) {
            if let Err(error) = self.delete(&name) {
                self.complain(&name, &error);
            }
        }
    }

    fn delete(&mut self, name: &KeyName) -> Result<(), NodeKeyError> {
        self.service.remove_key(name.as_str())?;
        self.held.deleted(name);
        self.complained.remove(name);
        info!(key = %name, "key of the manager is deleted: no tenant of this node uses it");
        self.write_list()
    }

    fn write_list(&self) -> Result<(), NodeKeyError> {
        let failed = |source| NodeKeyError::List { path: self.list.clone(), source };
        let text = serde_json::to_vec(&self.held.versions()).unwrap_or_default();
        write_private(&self.list, &text, true).map_err(failed)
    }

    fn complain(&mut self, name: &KeyName, error: &NodeKeyError) {
        let text = error.to_string();
        if self.complained.get(name) != Some(&text) {
            warn!(key = %name, reason = text, "a key of the manager: no change");
            self.complained.insert(name.clone(), text);
        }
    }
}

/// The list of an earlier process. Without one, keys that it had count as the operator's and stay.
fn read_list(path: &Path) -> BTreeMap<KeyName, u64> {
    let read = fs::read(path).map(|text| serde_json::from_slice(&text));
    match read {
        Ok(Ok(versions)) => versions,
        Ok(Err(error)) => {
            warn!(file = %path.display(), %error, "the list of the manager's keys is damaged: keys that it named stay until `millrace key remove`");
            BTreeMap::new()
        }
        Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => {
            warn!(file = %path.display(), %error, "the list of the manager's keys cannot be read");
            BTreeMap::new()
        }
    }
}
