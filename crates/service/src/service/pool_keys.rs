// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys that a manager gives to this node and takes away again. They are in the node's own store, under its own
//! key-encryption key, like every other key, and each has a mark there.

use std::collections::BTreeSet;

use millrace_operation::{KeyError, PrivateKey};
use thiserror::Error;

use super::Service;
use crate::policy::KeyPolicy;
use crate::store::{KeyMeta, StoreError};

/// Why a key of the manager is not served.
#[derive(Debug, Error)]
pub enum InstallError {
    /// The engine refuses it.
    #[error("no backend takes it: {0}")]
    Refused(#[from] KeyError),
    /// The key cannot be stored, or the store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Service {
    /// Stores a key of the manager and serves it when the call returns. `versions` are the current one and its former
    /// ones, the newest first; `policy` applies to all. They take the place of a key of that name. Blocks on the disk
    /// and on key checks.
    ///
    /// # Errors
    /// The first version that is refused or cannot be stored. Versions before it are in the store.
    pub fn install_key(
        &self,
        name: &str,
        versions: &[PrivateKey],
        policy: &KeyPolicy,
    ) -> Result<(), InstallError> {
        let keyring = &self.inner.keyring;
        // The oldest first: each one makes the one before a former version.
        for key in versions.iter().rev() {
            let info = self.inner.engine.load_key(key)?.info().clone();
            let policy = policy.clone();
            keyring.store().import_of_pool(name, key, info, policy)?;
        }
        if versions.len() == 1 {
            keyring.store().remove_former(name)?;
        }
        self.reload_keys()?;
        Ok(())
    }

    /// Removes a key with all its versions; it is no longer served when the call returns. Blocks on the disk.
    ///
    /// # Errors
    /// The key cannot be removed. A key that is not there is no error.
    pub fn remove_key(&self, name: &str) -> Result<(), StoreError> {
        match self.inner.keyring.store().remove(name) {
            Ok(()) | Err(StoreError::NoSuchKey { .. }) => {}
            Err(error) => return Err(error),
        }
        self.reload_keys()?;
        Ok(())
    }

    /// The current version of a key in the store; `None` if there is none.
    ///
    /// # Errors
    /// The key's file cannot be read.
    pub fn stored_key(&self, name: &str) -> Result<Option<KeyMeta>, StoreError> {
        match self.inner.keyring.store().describe(name) {
            Ok(meta) => Ok(Some(meta)),
            Err(StoreError::NoSuchKey { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names of the keys in the store that have a mark as keys of a manager. A mark may be there without its key.
    pub fn marked_keys(&self) -> Result<BTreeSet<String>, StoreError> {
        self.inner.keyring.store().marked()
    }

    /// Marks a key that a version of Millrace without marks has stored for a manager.
    ///
    /// # Errors
    /// The mark cannot be written.
    pub fn mark_key(&self, name: &str) -> Result<(), StoreError> {
        self.inner.keyring.store().mark(name)
    }

    /// Takes the mark of a key away: it is not a manager's.
    ///
    /// # Errors
    /// The mark cannot be removed.
    pub fn unmark_key(&self, name: &str) -> Result<(), StoreError> {
        self.inner.keyring.store().unmark(name)
    }

    /// Names of keys without a mark that tenants alone may use: keys of a manager that such a version has stored are
    /// among them, beside an operator's own.
    pub fn unmarked_tenant_keys(&self) -> Result<Vec<String>, StoreError> {
        self.inner.keyring.store().unmarked_of_tenants()
    }
}
