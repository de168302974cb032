// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`StoreError`]. Its texts name the file and what the operator can do.

use std::io;
use std::path::PathBuf;

use millrace_hostfs::trusted::Untrusted;
use thiserror::Error;

use super::MAX_KEYS;
use super::format::{FormatError, MAX_NAME_LEN};
use super::kek::{KekError, KekId};

/// Error of [`KeyStore`](super::KeyStore).
#[derive(Debug, Error)]
pub enum StoreError {
    /// The directory cannot be read or created.
    #[error("cannot use the key store {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Other users can write to the directory.
    #[error("others can write to the key store {} (mode {mode:04o}): chmod 0700", path.display())]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// Permission bits of the directory.
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
    /// Another user could put another directory in the place of this one.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
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
    #[error("there is no key named {name}: `millrace key list` shows the names")]
    NoSuchKey {
        /// Name that was asked for.
        name: String,
    },
    /// The store already has a key of that name.
    #[error("there is a key named {name} already: replace it with --replace, or remove it first")]
    Exists {
        /// Name that was asked for.
        name: String,
    },
    /// The store has [`MAX_KEYS`] keys.
    #[error("the key store is full ({MAX_KEYS} keys): remove some (millrace key remove NAME)")]
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
        /// The operating system's answer.
        source: io::Error,
    },
    /// A file cannot be written, for instance because the disk is full.
    #[error("cannot write {}: {source}; nothing was changed", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The change was made, but could not be logged.
    #[error("the change was made, but the audit log {} cannot be written: {source}", path.display())]
    Audit {
        /// The log.
        path: PathBuf,
        /// The operating system's answer.
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
    #[error(
        "{} was sealed under another key-encryption key ({sealed}, this one is {ours})",
        path.display()
    )]
    WrongKek {
        /// The file.
        path: PathBuf,
        /// The key-encryption key of the file.
        sealed: KekId,
        /// The key-encryption key of this store.
        ours: KekId,
    },
    /// Keys of the store were sealed under another key-encryption key than that of this process.
    #[error(
        "{names} in {} {} sealed under the key-encryption key {sealed}, not under {ours}: use the file that \
         they were sealed under (--kek-file FILE), or remove them (millrace key remove NAME)",
        directory.display(),
        if *several { "are" } else { "is" }
    )]
    ForeignKeys {
        /// The store.
        directory: PathBuf,
        /// The first of the keys, by name.
        names: String,
        /// Whether there are several.
        several: bool,
        /// The key-encryption key of the first of the keys.
        sealed: KekId,
        /// The key-encryption key of this process.
        ours: KekId,
    },
    /// The file of the key-encryption key is missing, and a new one would not open the keys of the store.
    #[error(
        "the key-encryption key {} is missing, and keys in {} are sealed under it ({sealed}): put it back, or \
         name its place with --kek-file FILE; without it the keys are lost (millrace key remove NAME)",
        kek.display(),
        directory.display()
    )]
    MissingKek {
        /// The missing file.
        kek: PathBuf,
        /// The store.
        directory: PathBuf,
        /// The key-encryption key of the first key.
        sealed: KekId,
    },
    /// The seal does not open: a byte of the file was changed.
    #[error(
        "{} was changed after it was sealed (edited, or damaged on the disk): its name, policy and key cannot be \
         trusted; put the file back, or remove the key and import it again", path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl StoreError {
    /// Whether reading the file may succeed another time although it does not change.
    pub(crate) fn is_passing(&self) -> bool {
        // A pipe or a file that is too long stays that.
        let stays = [io::ErrorKind::InvalidInput, io::ErrorKind::FileTooLarge];
        matches!(self, Self::Read { source, .. } if !stays.contains(&source.kind()))
    }

    /// Whether the file is whole and was written on purpose, but this process cannot follow it: it then must
    /// not serve what the file said before. Damage is different: a failing disk must not end handshakes.
    pub(crate) fn is_deliberate(&self) -> bool {
        match self {
            Self::WrongKek { .. } => true,
            Self::Damaged { source, .. } => match source {
                FormatError::Version(_) | FormatError::Unknown(_) => true,
                FormatError::Magic | FormatError::Damaged(_) => false,
            },
            Self::Directory { .. }
            | Self::Exposed { .. }
            | Self::Owner { .. }
            | Self::Untrusted(_)
            | Self::Kek(_)
            | Self::Locked
            | Self::Name { .. }
            | Self::NoSuchKey { .. }
            | Self::Exists { .. }
            | Self::Full
            | Self::RawRsa
            | Self::Bounds(_)
            | Self::Read { .. }
            | Self::Write { .. }
            | Self::Audit { .. }
            | Self::ForeignKeys { .. }
            | Self::MissingKek { .. }
            | Self::Changed { .. } => false,
        }
    }
}
