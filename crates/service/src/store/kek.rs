// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The key-encryption key: loading it, and sealing with it.
//!
//! The key consists of 32 random bytes in a file that only its owner can read, or in a systemd credential. It never
//! leaves this module.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use millrace_hostfs::ordinary::{self, Links};
use thiserror::Error;
use zeroize::Zeroizing;

use super::files::{IfExists, write_private};
use super::format::{FINGERPRINT_LEN, NONCE_LEN, TAG_LEN};

/// Length of a key-encryption key: AES-256.
pub const KEK_LEN: usize = 32;

/// Length of a proof by [`KeySealer::authenticate`](super::KeySealer::authenticate): HMAC-SHA256.
pub const MAC_LEN: usize = 32;

/// Name of the systemd credential.
pub const CREDENTIAL_NAME: &str = "millrace-kek";

/// The location of the key-encryption key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KekSource {
    /// A file of [`KEK_LEN`] bytes that only its owner can read.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Whether to create a missing file.
        create: bool,
    },
    /// `$CREDENTIALS_DIRECTORY/millrace-kek`, as `LoadCredentialEncrypted=` of systemd provides it.
    Credential,
    /// None: the store can only list its keys.
    Absent,
}

/// Id of a key-encryption key: no secret, and the same for all copies of it. Key files, a node's report and
/// error messages show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KekId(pub(super) [u8; FINGERPRINT_LEN]);

impl fmt::Display for KekId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KekId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KekId({self})")
    }
}

/// Error of loading or creating the key-encryption key.
#[derive(Debug, Error)]
pub enum KekError {
    /// The file cannot be read or created.
    #[error("cannot use the key-encryption key {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Other users can read the file.
    #[error("the key-encryption key {} can be read by others (mode {mode:04o}): chmod 0600", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// Another user owns the file.
    #[error("the key-encryption key {} belongs to uid {owner}, not to this user or root: run millrace as its owner, or chown it", path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// The user id of the owner.
        owner: u32,
    },
    /// The file does not have 32 bytes.
    #[error("the key-encryption key {} is not a file of {KEK_LEN} bytes", path.display())]
    Length {
        /// The file.
        path: PathBuf,
    },
    /// systemd did not start this process with that credential.
    #[error(
        "systemd passes the key-encryption key ({CREDENTIAL_NAME}) to the node alone: run this command as root, or \
         name its file with --kek-file"
    )]
    NoCredential,
    /// The system's random number generator failed.
    #[error("the system has no random numbers")]
    Random,
}

/// A loaded key-encryption key.
pub(crate) struct Kek {
    key: LessSafeKey,
    /// Authenticates what is not encrypted: derived from the key-encryption key.
    authentication: hmac::Key,
    fingerprint: [u8; FINGERPRINT_LEN],
}

impl fmt::Debug for Kek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kek")
    }
}

/// The seal does not open: it was made with another key, or bytes have changed.
#[derive(Debug)]
pub(crate) struct Unsealable;

impl Kek {
    /// Loads or creates the key; `None` for [`KekSource::Absent`].
    pub(crate) fn load(source: &KekSource) -> Result<Option<Self>, KekError> {
        match source {
            KekSource::Absent => Ok(None),
            KekSource::Credential => {
                let directory =
                    std::env::var_os("CREDENTIALS_DIRECTORY").ok_or(KekError::NoCredential)?;
                Self::read(&Path::new(&directory).join(CREDENTIAL_NAME), CREDENTIAL_EXPOSED)
                    .map(Some)
            }
            KekSource::File { path, create } => {
                if *create && !path.exists() {
                    Self::create(path)?;
                }
                Self::read(path, FILE_EXPOSED).map(Some)
            }
        }
    }

    pub(crate) fn id(&self) -> KekId {
        KekId(self.fingerprint)
    }

    pub(crate) fn fingerprint(&self) -> [u8; FINGERPRINT_LEN] {
        self.fingerprint
    }

    /// Seals `secret` with a fresh nonce. Random nonces are safe for 2^32 seals under one key (SP 800-38D
    /// section 8.3), far more than a key store writes.
    pub(crate) fn seal(
        &self,
        aad: &[u8],
        secret: &[u8],
    ) -> Result<([u8; NONCE_LEN], Vec<u8>), KekError> {
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(|_| KekError::Random)?;
        // Reserves room for the tag: growing would leave a copy of the secret in freed memory.
        let mut buffer = Zeroizing::new(Vec::with_capacity(secret.len() + TAG_LEN));
        buffer.extend_from_slice(secret);
        let tag = self
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(aad),
                &mut buffer,
            )
            .map_err(|_| KekError::Random)?;
        buffer.extend_from_slice(tag.as_ref());
        Ok((nonce, buffer.to_vec()))
    }

    /// HMAC-SHA256 over the parts, each after its length in 8 bytes.
    pub(crate) fn authenticate(&self, parts: &[&[u8]]) -> [u8; MAC_LEN] {
        let mut context = hmac::Context::with_key(&self.authentication);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut mac = [0; MAC_LEN];
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }

    pub(crate) fn open(
        &self,
        aad: &[u8],
        nonce: [u8; NONCE_LEN],
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Unsealable> {
        let mut buffer = Zeroizing::new(sealed.to_vec());
        let len = self
            .key
            .open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(aad), &mut buffer)
            .map_err(|_| Unsealable)?
            .len();
        buffer.truncate(len);
        Ok(buffer)
    }

    fn read(path: &Path, exposed: u32) -> Result<Self, KekError> {
        let failed = |source| KekError::Io { path: path.to_owned(), source };
        let mut file = ordinary::open(path, Links::Follow).map_err(failed)?;
        check(path, &file.metadata().map_err(failed)?, exposed)?;
        let mut bytes = Zeroizing::new([0; KEK_LEN]);
        let mut extra = [0; 1];
        let whole = file.read_exact(&mut *bytes).is_ok() && matches!(file.read(&mut extra), Ok(0));
        if !whole {
            return Err(KekError::Length { path: path.to_owned() });
        }
        Ok(Self::from_bytes(&bytes))
    }

    fn create(path: &Path) -> Result<(), KekError> {
        let failed = |source| KekError::Io { path: path.to_owned(), source };
        let mut bytes = Zeroizing::new([0; KEK_LEN]);
        rand::fill(&mut *bytes).map_err(|_| KekError::Random)?;
        match write_private(path, &*bytes, IfExists::Fail) {
            // Another process has created the key at the same time: use that one.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.map_err(failed),
        }
    }

    fn from_bytes(bytes: &[u8; KEK_LEN]) -> Self {
        let derivation = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let mac = hmac::sign(&derivation, FINGERPRINT_LABEL);
        let derived = hmac::sign(&derivation, AUTHENTICATION_LABEL);
        let authentication = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        let mut fingerprint = [0; FINGERPRINT_LEN];
        fingerprint.copy_from_slice(&mac.as_ref()[..FINGERPRINT_LEN]);
        let key =
            UnboundKey::new(&AES_256_GCM, bytes).expect("a key of 32 bytes is right for AES-256");
        Self { key: LessSafeKey::new(key), authentication, fingerprint }
    }
}

/// Authenticated data from which the fingerprint of a key-encryption key is computed.
const FINGERPRINT_LABEL: &[u8] = b"millrace key-encryption key fingerprint 1";

/// Label of the key that authenticates what is not encrypted.
const AUTHENTICATION_LABEL: &[u8] = b"millrace authentication of records 1";

/// Mode bits that give access to others than the owner.
const FILE_EXPOSED: u32 = 0o077;

/// Mode bits that a systemd credential must not have. systemd grants the service's user access with an ACL, whose mask
/// shows as the group's read permission.
const CREDENTIAL_EXPOSED: u32 = 0o037;

/// Refuses a file that other users can read or own.
fn check(path: &Path, metadata: &Metadata, exposed: u32) -> Result<(), KekError> {
    let mode = metadata.mode() & 0o7777;
    let user = rustix::process::geteuid().as_raw();
    if mode & exposed != 0 {
        return Err(KekError::Exposed { path: path.to_owned(), mode });
    }
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(KekError::Owner { path: path.to_owned(), owner: metadata.uid() });
    }
    Ok(())
}
