// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The keys that a node has from its manager: opened from an answer, stored in the node's own key store, deleted when
//! their tenant is no longer on the node.
//!
//! ```text
//!  answer ── install (before its grants are in force) ──► key store
//!         ── reconcile (after)                         ──► keys that it does not name leave after 2 s
//!  start  ── open ──► deletes what was leaving or half stored; the others after an hour without an answer
//! ```
//!
//! The key store marks each key of a manager, so that a key which an operator imported at this node is never replaced
//! or deleted. The file `keys` of the node folder has their versions, and 0 for each that the next process is to
//! delete when it starts. Without the list, or with a damaged one, all keys with a mark are deleted then.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use millrace_hostfs::ordinary::{self, Links};
use millrace_operation::sync::lock;
use millrace_service::policy::{KeyPolicy, TENANT_PREFIX};
use millrace_service::store::{IfExists, StoreError, write_private};
use millrace_service::{InstallError, Service};
use tracing::{info, warn};

use super::ManagedNodeError;
use crate::model::holder::{GrantSet, SealedKey};
use crate::model::keys::{HeldKeys, KeyRefused};
use crate::model::name::{KeyName, NodeName};
use crate::sealing::{SealingError, SealingPair};

/// Time between two looks for keys that are to be deleted.
const TURN: Duration = Duration::from_millis(250);

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
    /// The keys of earlier processes of the node, and a new pair to seal further ones to. Deletes what was leaving.
    ///
    /// # Errors
    /// The system has no random numbers, the key store cannot be read, or a damaged list is the only record of which
    /// keys are the manager's.
    pub(super) fn open(
        folder: &Path,
        node: NodeName,
        service: Service,
        now: Instant,
    ) -> Result<Self, ManagedNodeError> {
        let list = folder.join("keys");
        let noted = of_before(&list, &service)?;
        let mut keys = Self {
            node,
            list,
            service,
            pair: SealingPair::generate()?,
            held: HeldKeys::of_before(noted, now),
            complained: BTreeMap::new(),
        };
        keys.delete_due(now);
        Ok(keys)
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
        let before = self.held.clone();
        let mut admitted = Vec::new();
        for sealed in &set.sealed_keys {
            match self.admit(set, sealed) {
                Ok(()) => admitted.push(sealed),
                Err(error) => self.complain(&sealed.name, &error),
            }
        }
        if admitted.is_empty() {
            return;
        }
        // First on the list, then in the store: a process that ends in between deletes it when it starts again.
        for sealed in &admitted {
            self.held.note(sealed.name.clone(), 0);
        }
        if let Err(error) = self.write_list(&self.held) {
            self.held = before;
            return self.complain(&admitted[0].name, &error);
        }
        for sealed in admitted {
            match self.install_one(set, sealed) {
                Ok(()) => {
                    self.held.note(sealed.name.clone(), sealed.version);
                    self.complained.remove(&sealed.name);
                    info!(key = %sealed.name, version = sealed.version, "key of the manager is served");
                }
                Err(error) => self.complain(&sealed.name, &error),
            }
        }
        self.write_list_or_warn(&self.held);
    }

    fn admit(&self, set: &GrantSet, sealed: &SealedKey) -> Result<(), NodeKeyError> {
        let name = &sealed.name;
        self.held.admit(name, sealed.version, &set.keys)?;
        if !self.held.contains(name) && self.service.stored_key(name.as_str())?.is_some() {
            return Err(NodeKeyError::Own);
        }
        Ok(())
    }

    fn install_one(&self, set: &GrantSet, sealed: &SealedKey) -> Result<(), NodeKeyError> {
        let bundle = self.pair.open(&self.node, set.fence, set.revision, sealed)?;
        let tenants = sealed.tenants.iter();
        let policy = KeyPolicy {
            identities: tenants.map(|tenant| format!("{TENANT_PREFIX}{tenant}")).collect(),
            operations: bundle.operations,
            hashes: bundle.hashes,
        };
        Ok(self.service.install_key(sealed.name.as_str(), &bundle.versions, &policy)?)
    }

    /// Takes the list of an answer whose grants are in force: the keys that it does not name leave. Their time begins
    /// when the disk has that they are to go, so that a process which ends before leaves it to the next one.
    pub(super) fn reconcile(&mut self, wanted: &[(KeyName, u64)]) {
        let mut reconciled = self.held.clone();
        reconciled.reconcile(wanted, Instant::now());
        if reconciled.noted() != self.held.noted() {
            self.write_list_or_warn(&reconciled);
        }
        self.held.reconcile(wanted, Instant::now());
    }

    /// Deletes the keys whose time has come.
    fn delete_due(&mut self, now: Instant) {
        self.delete(self.held.due(now));
    }

    fn delete(&mut self, names: Vec<KeyName>) {
        if names.is_empty() {
            return;
        }
        for name in names {
            match self.service.remove_key(name.as_str()) {
                Ok(()) => {
                    self.held.deleted(&name);
                    self.complained.remove(&name);
                    info!(key = %name, "key of the manager is deleted: no tenant of this node uses it");
                }
                Err(error) => self.complain(&name, &error.into()),
            }
        }
        self.write_list_or_warn(&self.held);
    }

    fn write_list(&self, held: &HeldKeys) -> Result<(), NodeKeyError> {
        let failed = |source| NodeKeyError::List { path: self.list.clone(), source };
        let text = serde_json::to_vec(&held.noted()).unwrap_or_default();
        write_private(&self.list, &text, IfExists::Replace).map_err(failed)
    }

    /// For changes that are safe without the list: this process deletes what leaves, and a next one that finds a key
    /// with a former version keeps it until an answer comes, or for an hour.
    fn write_list_or_warn(&self, held: &HeldKeys) {
        if let Err(error) = self.write_list(held) {
            warn!("{error}");
        }
    }

    fn complain(&mut self, name: &KeyName, error: &NodeKeyError) {
        let text = error.to_string();
        if self.complained.get(name) != Some(&text) {
            warn!(key = %name, reason = text, "a key of the manager: no change");
            self.complained.insert(name.clone(), text);
        }
    }
}

/// Deletes keys when their time has come, until `stopped`: on a thread of its own, which no request of the node holds
/// up. What is leaving then goes at once, since the node serves no more.
pub(super) fn delete_until(keys: &Mutex<NodeKeys>, stopped: &Receiver<()>) {
    while matches!(stopped.recv_timeout(TURN), Err(RecvTimeoutError::Timeout)) {
        lock(keys).delete_due(Instant::now());
    }
    let mut keys = lock(keys);
    let leaving = keys.held.leaving();
    keys.delete(leaving);
}

/// Names and versions of the keys that earlier processes have from a manager, by the list or else by the marks. A
/// version is 0 for a key that is to be deleted.
fn of_before(list: &Path, service: &Service) -> Result<BTreeMap<KeyName, u64>, ManagedNodeError> {
    let marked = service.marked_keys()?;
    // Another name is of no manager.
    let marked: BTreeSet<KeyName> = marked.iter().filter_map(|name| name.parse().ok()).collect();
    let mut noted = match read_list(list) {
        Ok(Some(noted)) => noted,
        Ok(None) => marked.iter().map(|name| (name.clone(), 0)).collect(),
        Err(error) => {
            let doubtful = service.unmarked_tenant_keys()?;
            if marked.is_empty() && !doubtful.is_empty() {
                // A version without marks may have stored them: which are the manager's is for an operator to say.
                let path = list.to_owned();
                let keys = doubtful.join(", ");
                return Err(ManagedNodeError::KeyList { path, error, keys });
            }
            warn!(file = %list.display(), error, "the list of the manager's keys is damaged: the node gets them again");
            marked.iter().map(|name| (name.clone(), 0)).collect()
        }
    };
    for (name, version) in &mut noted {
        if !matches!(service.stored_key(name.as_str()), Ok(Some(_))) {
            // It is gone or damaged.
            *version = 0;
        }
        if !marked.contains(name)
            && let Err(error) = service.mark_key(name.as_str())
        {
            warn!(key = %name, %error, "a key of the manager has no mark");
        }
    }
    // A version without marks has deleted these keys. One of the same name is an operator's.
    for name in marked.iter().filter(|name| !noted.contains_key(*name)) {
        service.unmark_key(name.as_str())?;
    }
    Ok(noted)
}

/// Bound on the list, in bytes: a name of 128 bytes and a version for each of the most keys of a pool.
const MAX_LIST: usize = 16 << 20;

/// The list of an earlier process, if there is one.
fn read_list(path: &Path) -> Result<Option<BTreeMap<KeyName, u64>>, String> {
    match ordinary::read(path, Links::Refuse, MAX_LIST) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| error.to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}
