// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The key store of the settings, opened and used with the rights of its owner.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Result;
use millrace_service::keys::KeyReport;
use millrace_service::store::{KekSource, KeyMeta, KeyStore, StoreError};

use crate::exit::{Failure, chain, fail};
use crate::node_socket::get;
use crate::owner_rights::as_owner_of;
use crate::settings::Settings;

impl Settings {
    /// Opens the key store for a node, which cannot change its user: the node must run as the owner of its
    /// keys.
    pub(crate) fn open_own_store(&self) -> Result<KeyStore> {
        let store = &self.node.store;
        Ok(KeyStore::open(store.directory.as_path(), &store.kek)?)
    }

    /// Opens the key store to write keys, with its key-encryption key.
    ///
    /// # Errors
    /// The folder or the key-encryption key cannot be used, or the keys of the store or the running node have
    /// another one.
    pub(crate) fn open_store(&self) -> Result<OwnedStore> {
        let store = self.unlock(&self.node.store.kek)?;
        store.act(KeyStore::check_kek)?;
        let node = self.running_node(&store, Some(""));
        let ours = store.keys.kek().map(|kek| kek.to_string());
        if let Some(node) = node.filter(|node| node.kek != ours) {
            let message = format!(
                "the node {} unseals keys with the key-encryption key {}, not with {} ({}): use the node's \
                 (--kek-file FILE), or restart the node with this one",
                node.node,
                node.kek.as_deref().unwrap_or("-"),
                ours.as_deref().unwrap_or("-"),
                self.kek_place(),
            );
            return Err(fail(Failure::Failed, message));
        }
        Ok(store)
    }

    /// Opens the key store to show keys. Without the key-encryption key, or with another, the result is not
    /// verified; the second value says why.
    pub(crate) fn view_store(&self) -> Result<(OwnedStore, Option<String>)> {
        let kek = match &self.node.store.kek {
            KekSource::File { path, .. } => KekSource::File { path: path.clone(), create: false },
            other => other.clone(),
        };
        match self.unlock(&kek) {
            Ok(store) => Ok((store, None)),
            Err(reason) => Ok((self.look_at_store()?, Some(chain(&reason)))),
        }
    }

    fn unlock(&self, kek: &KekSource) -> Result<OwnedStore> {
        let keys = self.look_at_store()?.keys;
        // Root may own the key-encryption key and the node the store, so each is opened with its owner's
        // rights.
        let place = match kek {
            KekSource::File { path, .. } => path,
            KekSource::Credential | KekSource::Absent => &self.node.store.directory,
        };
        let keys = as_owner_of(place, || keys.unlock(kek))??;
        Ok(OwnedStore { keys })
    }

    fn kek_place(&self) -> String {
        match &self.node.store.kek {
            KekSource::File { path, .. } => path.display().to_string(),
            KekSource::Credential | KekSource::Absent => "the systemd credential".to_owned(),
        }
    }

    /// The keys of the node that serves `store`, if it runs here and this user may ask it. With a name only the
    /// versions of that key, from a node that knows the question.
    pub(crate) fn running_node(&self, store: &OwnedStore, name: Option<&str>) -> Option<KeyReport> {
        let admin = self.node.admin.as_ref()?;
        let path = name.map_or_else(|| "/keys".to_owned(), |name| format!("/keys?name={name}"));
        let report = get(&admin.socket, &path).ok()?;
        let report: KeyReport = serde_json::from_slice(&report).ok()?;
        let folder = fs::metadata(store.directory()).ok()?;
        ((report.device, report.inode) == (folder.dev(), folder.ino())).then_some(report)
    }

    /// Opens the key store only to list and remove, without the key-encryption key.
    pub(crate) fn look_at_store(&self) -> Result<OwnedStore> {
        let folder = self.node.store.directory.as_path();
        let keys = as_owner_of(folder, || KeyStore::open(folder, &KekSource::Absent))??;
        Ok(OwnedStore { keys })
    }
}

/// The key store, used with the rights of its owner.
#[derive(Debug)]
pub(crate) struct OwnedStore {
    keys: KeyStore,
}

impl OwnedStore {
    /// Runs an operation on the store.
    ///
    /// # Errors
    /// The store's error, with its exit code.
    pub(crate) fn act<T>(
        &self,
        work: impl FnOnce(&KeyStore) -> Result<T, StoreError>,
    ) -> Result<T> {
        as_owner_of(self.keys.directory(), || work(&self.keys))?.map_err(|error| match error {
            StoreError::NoSuchKey { .. } | StoreError::Exists { .. } => {
                fail(Failure::KeyName, error.to_string())
            }
            StoreError::Name { .. } => fail(Failure::Usage, error.to_string()),
            other => other.into(),
        })
    }

    /// `meta` as the seal authenticates it, or the reason for which the file cannot be used. Without the
    /// key-encryption key it stays as it is.
    ///
    /// # Errors
    /// This process cannot act as the owner of the store.
    pub(crate) fn verify(&self, meta: KeyMeta) -> Result<(KeyMeta, Option<String>)> {
        if self.keys.kek().is_none() {
            return Ok((meta, None));
        }
        let verified = as_owner_of(self.keys.directory(), || self.keys.verify(&meta))?;
        Ok(match verified {
            Ok(verified) => (verified, None),
            Err(error) => (meta, Some(error.to_string())),
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.keys.directory()
    }
}
