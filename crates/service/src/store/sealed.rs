// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Keys under a key-encryption key, in the form of a key file, for a store that is not a directory: a manager keeps
//! such bytes in its records.

use millrace_operation::{KeyInfo, OperationKind, PrivateKey};
use thiserror::Error;

use super::error::StoreError;
use super::format::{self, KeyFile, Metadata, parse, split};
use super::kek::{Kek, KekError, KekId, KekSource, MAC_LEN};
use crate::policy::KeyPolicy;

/// Seals keys under one key-encryption key, and opens them.
#[derive(Debug)]
pub struct KeySealer(Kek);

/// Why the seal of a key does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// Another key-encryption key sealed it.
    #[error("it was sealed under another key-encryption key ({sealed}, this one is {ours})")]
    OtherKek {
        /// The key-encryption key of the bytes.
        sealed: KekId,
        /// The one that was loaded.
        ours: KekId,
    },
    /// A byte was changed.
    #[error("it was changed after it was sealed")]
    Changed,
}

impl KeySealer {
    /// Loads or makes the key-encryption key; `None` for [`KekSource::Absent`].
    pub fn load(source: &KekSource) -> Result<Option<Self>, KekError> {
        Ok(Kek::load(source)?.map(Self))
    }

    /// Id of the key-encryption key.
    #[must_use]
    pub fn id(&self) -> KekId {
        self.0.id()
    }

    /// Proof that a holder of the key-encryption key has seen `parts`: HMAC-SHA256 under a key derived from it. The
    /// first part names the use, so that a proof of one counts for no other.
    #[must_use]
    pub fn authenticate(&self, parts: &[&[u8]]) -> [u8; MAC_LEN] {
        self.0.authenticate(parts)
    }

    /// The bytes of a key file with this key.
    ///
    /// # Errors
    /// A field is out of its bounds, or the system has no random numbers.
    pub fn seal(&self, metadata: &Metadata, key: &PrivateKey) -> Result<Vec<u8>, StoreError> {
        let aad = format::encode_aad(metadata, self.0.fingerprint())?;
        let (nonce, sealed) = self.0.seal(&aad, key.dangerous_pkcs8())?;
        let bytes = format::encode(&aad, nonce, &sealed);
        // Never returns bytes that it could not read again.
        parse(&bytes)?;
        Ok(bytes)
    }

    /// Opens a parsed key file: its metadata is authentic then.
    ///
    /// # Errors
    /// [`OpenError::OtherKek`] and [`OpenError::Changed`].
    pub fn open(&self, file: &KeyFile<'_>) -> Result<PrivateKey, OpenError> {
        if file.fingerprint != self.0.fingerprint() {
            return Err(OpenError::OtherKek { sealed: KekId(file.fingerprint), ours: self.id() });
        }
        let secret = self.0.open(file.aad, file.nonce, file.sealed);
        let secret = secret.map_err(|_| OpenError::Changed)?;
        Ok(PrivateKey::from_pkcs8(secret))
    }
}

impl KeySealer {
    /// Whether this key-encryption key sealed a file, and a byte was changed since. Tells an edited file from one of a
    /// later version, which has metadata that this one cannot read, too.
    pub(super) fn finds_changed(&self, bytes: &[u8]) -> bool {
        split(bytes).is_ok_and(|file| {
            file.fingerprint == self.0.fingerprint()
                && self.0.open(file.aad, file.nonce, file.sealed).is_err()
        })
    }

    /// The file with a genuine seal over changed metadata, as a later version may write it.
    #[cfg(test)]
    pub(super) fn reseal(&self, bytes: &[u8], change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let file = split(bytes).unwrap();
        let secret = self.0.open(file.aad, file.nonce, file.sealed).unwrap();
        let mut aad = file.aad.to_vec();
        change(&mut aad);
        let (nonce, sealed) = self.0.seal(&aad, &secret).unwrap();
        format::encode(&aad, nonce, &sealed)
    }
}

impl Metadata {
    /// The metadata of a key that is stored now. Operations that do not fit its type are left out of the policy: they
    /// would have no meaning, and one that a later version adds would make every key unreadable for this version.
    ///
    /// # Errors
    /// [`StoreError::RawRsa`].
    pub fn new(name: &str, info: KeyInfo, mut policy: KeyPolicy) -> Result<Self, StoreError> {
        if policy.operations.contains(OperationKind::RsaRaw) {
            return Err(StoreError::RawRsa);
        }
        let operations = policy.operations.iter();
        policy.operations = operations.filter(|kind| kind.fits(info.key_type)).collect();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Self {
            name: name.to_owned(),
            created: now.map_or(0, |age| age.as_secs()),
            info,
            policy,
        })
    }
}

impl KeyFile<'_> {
    /// Id of the key-encryption key under which it was sealed.
    #[must_use]
    pub fn kek(&self) -> KekId {
        KekId(self.fingerprint)
    }
}
