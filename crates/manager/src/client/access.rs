// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Access`]: everything that a client needs to speak to the managers, in one file that an operator carries to a
//! node or to a colleague. `millrace token create … -o FILE` writes it.
//!
//! ```json
//! {
//!   "managers": ["https://manager-1:7500", "https://manager-2:7500"],
//!   "ca": "-----BEGIN CERTIFICATE-----…",
//!   "token": "mrt_…"
//! }
//! ```

use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_hostfs::ordinary::{self, Links};
use millrace_service::store::{IfExists, exposed_bits, write_private};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::http::ManagerUrl;

/// Bound on an access file, in bytes: it has a token and the certificates of an authority, 4 KiB.
const MAX_LEN: u64 = 256 * 1024;

/// Bound on the managers of a pool: three survive any failure that the store survives.
const MAX_MANAGERS: usize = 16;

/// Why an access file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// Others may read the file.
    #[error("other users may read {}: chmod 600 it", .0.display())]
    Exposed(PathBuf),
    /// The file is not in the form of an access file.
    #[error("{} is not an access file: {reason}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The file names no manager, or too many, or one wrongly.
    #[error("an access file names 1 to {MAX_MANAGERS} managers as https://HOST:PORT: {0}")]
    Managers(String),
    /// A certificate in it is not PEM.
    #[error("the {what} of the access file is not PEM: {reason}")]
    Pem {
        /// Name of the field.
        what: &'static str,
        /// Reason of the failure.
        reason: String,
    },
}

impl AccessError {
    pub(super) fn ca(error: impl fmt::Display) -> Self {
        Self::Pem { what: "ca", reason: error.to_string() }
    }

    pub(super) fn certificate(error: impl fmt::Display) -> Self {
        Self::Pem { what: "certificate", reason: error.to_string() }
    }
}

/// Managers, the authority that they are known by, and the rights of the holder.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Addresses of the managers.
    pub managers: Vec<String>,
    /// Certificates, as PEM, of the authority that issued those of the managers.
    pub ca: String,
    /// Bearer token of the principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
    /// A client certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<OwnCertificate>,
}

/// A text that is zeroised on drop and never shown.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Zeroizing<String>> for Secret {
    fn from(text: Zeroizing<String>) -> Self {
        Self(text)
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from).map(|text| Self(Zeroizing::new(text)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// A client certificate and its key, as PEM.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnCertificate {
    /// Certificate of the client, and those between it and the authority.
    pub chain: String,
    /// The private key.
    pub key: Secret,
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnCertificate").finish_non_exhaustive()
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("managers", &self.managers).finish_non_exhaustive()
    }
}

impl Access {
    /// Reads an access file. It holds a secret, so no other user may be able to read it; the group of root's file
    /// may ([`exposed_bits`]).
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let failed = |source| AccessError::Io { path: path.to_owned(), source };
        let file = ordinary::open(path, Links::Follow).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.mode() & exposed_bits(metadata.uid()) != 0 {
            return Err(AccessError::Exposed(path.to_owned()));
        }
        let form = |reason| AccessError::Form { path: path.to_owned(), reason };
        let mut text = Zeroizing::new(String::new());
        let length = file.take(MAX_LEN + 1).read_to_string(&mut text).map_err(failed)?;
        if length as u64 > MAX_LEN {
            return Err(form(format!("it is longer than {MAX_LEN} bytes")));
        }
        serde_json::from_str(&text).map_err(|error| form(error.to_string()))
    }

    /// Writes it, mode 0600, also over a former one.
    pub fn write(&self, path: &Path) -> Result<(), AccessError> {
        let text = serde_json::to_string_pretty(self).map(Zeroizing::new);
        let text = text.map_err(|error| AccessError::Form {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        write_private(path, text.as_bytes(), IfExists::Replace)
            .map_err(|source| AccessError::Io { path: path.to_owned(), source })
    }

    /// The addresses.
    ///
    /// # Errors
    /// [`AccessError::Managers`].
    pub fn managers(&self) -> Result<Vec<ManagerUrl>, AccessError> {
        if !(1..=MAX_MANAGERS).contains(&self.managers.len()) {
            return Err(AccessError::Managers(format!("it has {}", self.managers.len())));
        }
        let urls = self.managers.iter().map(|text| text.parse::<ManagerUrl>());
        urls.collect::<Result<_, _>>().map_err(|error| AccessError::Managers(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn access_file_is_private_and_survives_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access");
        let access = Access {
            managers: vec!["https://m:1".to_owned()],
            ca: "CA".to_owned(),
            token: Some(Zeroizing::new("mrt_secret".to_owned()).into()),
            certificate: None,
        };
        fs::write(&path, "{}").unwrap();
        access.write(&path).unwrap();
        let read = Access::read(&path).unwrap();
        assert_eq!(read.token.as_ref().map(Secret::as_str), Some("mrt_secret"));
        assert!(!format!("{read:?}").contains("secret"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Access::read(&path), Err(AccessError::Exposed(_))));
        let owner = fs::metadata(&path).unwrap().uid();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let exposed = matches!(Access::read(&path), Err(AccessError::Exposed(_)));
        assert_eq!(exposed, owner != 0, "the group may read root's file alone");
        if owner == 0 {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            assert!(matches!(Access::read(&path), Err(AccessError::Exposed(_))));
        }
    }

    #[test]
    fn access_file_that_is_too_long_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access");
        let read = |length: u64| {
            let mut text = r#"{"managers": [], "ca": ""}"#.to_owned();
            text.extend(std::iter::repeat_n(' ', usize::try_from(length).unwrap() - text.len()));
            write_private(&path, text.as_bytes(), IfExists::Replace).unwrap();
            Access::read(&path)
        };
        assert!(read(MAX_LEN).is_ok());
        let Err(AccessError::Form { reason, .. }) = read(MAX_LEN + 1) else {
            panic!("a byte more than the bound")
        };
        assert!(reason.contains("longer than 262144 bytes"), "{reason}");
    }

    #[test]
    fn access_file_without_a_manager_is_refused() {
        let access = |managers: &[&str]| Access {
            managers: managers.iter().map(ToString::to_string).collect(),
            ca: String::new(),
            token: None,
            certificate: None,
        };
        assert!(access(&[]).managers().is_err());
        assert!(access(&["http://m"]).managers().is_err());
        assert!(access(&["https://m"; MAX_MANAGERS + 1]).managers().is_err());
        assert_eq!(access(&["https://m"; MAX_MANAGERS]).managers().unwrap().len(), MAX_MANAGERS);
    }
}
