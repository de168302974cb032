// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Marks of the keys that a node has from the manager of its pool: an empty file `NAME.pool` beside `NAME.key`. A mark
//! is on the disk before its key, and goes after it, so that no key of a pool is without one. It has no content that
//! could be damaged. Versions of Millrace before marks ignore such files.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{fs, io};

use millrace_operation::{KeyInfo, PrivateKey};

use super::files::write_atomically;
use super::{IfExists, KeyMeta, KeyStore, StoreError, VersionId, valid_name};
use crate::policy::{KeyPolicy, TENANT_PREFIX};

/// Suffix of a mark.
const MARK_SUFFIX: &str = ".pool";

impl KeyStore {
    /// Stores a key of the pool, marked. It takes the place of a key of that name.
    ///
    /// # Errors
    /// As [`Self::import`]. A mark without a key may be left.
    pub(crate) fn import_of_pool(
        &self,
        name: &str,
        key: &PrivateKey,
        info: KeyInfo,
        policy: KeyPolicy,
    ) -> Result<KeyMeta, StoreError> {
        self.mark(name)?;
        self.importer()?.store(name, key, info, policy, IfExists::Replace)
    }

    /// Marks a key as one of the pool.
    ///
    /// # Errors
    /// The name is none, or the disk is full.
    pub(crate) fn mark(&self, name: &str) -> Result<(), StoreError> {
        let path = self.mark_of(name)?;
        match write_atomically(&*self.files, &path, b"", IfExists::Fail) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(source) => Err(StoreError::Write { path, source }),
        }
    }

    /// Takes the mark of a key away, if there is one.
    ///
    /// # Errors
    /// The name is none, or the file cannot be removed.
    pub(crate) fn unmark(&self, name: &str) -> Result<(), StoreError> {
        self.remove_path(self.mark_of(name)?)
    }

    /// Names with a mark, also those without a key.
    pub(crate) fn marked(&self) -> Result<BTreeSet<String>, StoreError> {
        let failed = |source| StoreError::Directory { path: self.directory.clone(), source };
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let file = entry.map_err(failed)?.file_name();
            let name = file.to_str().and_then(|file| file.strip_suffix(MARK_SUFFIX));
            names.extend(name.filter(|name| valid_name(name)).map(str::to_owned));
        }
        Ok(names)
    }

    /// Names of keys without a mark that tenants alone may use, as all keys of a pool.
    pub(crate) fn unmarked_of_tenants(&self) -> Result<Vec<String>, StoreError> {
        let marked = self.marked()?;
        let mut keys = self.list()?.into_iter().flatten().collect::<Vec<_>>();
        keys.retain(|key| {
            let identities = &key.policy.identities;
            key.replaced.is_none()
                && !marked.contains(&key.name)
                && !identities.is_empty()
                && identities.iter().all(|identity| identity.starts_with(TENANT_PREFIX))
        });
        Ok(keys.into_iter().map(|key| key.name).collect())
    }

    fn mark_of(&self, name: &str) -> Result<PathBuf, StoreError> {
        // The check of the name is that of the key's own file.
        self.path(&VersionId::current(name))?;
        Ok(self.directory.join(format!("{name}{MARK_SUFFIX}")))
    }
}
