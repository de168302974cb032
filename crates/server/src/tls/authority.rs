// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The directory of a private CA: the names of its files, and the key that signs certificates and revocations.
//!
//! ```text
//!  tls/            0700
//!    ca.crt        ca.key      0600: signs certificates of clients
//!    ca.crl                    the certificates that it revoked
//!    node.crt      node.key    0600
//!    NAME.crt      NAME.key    0600, one pair per client, to be moved to its host
//! ```

use std::io;
use std::path::{Path, PathBuf};

use millrace_hostfs::ordinary::{self, Links};
use millrace_service::store::pem::MAX_PEM_LEN;
use millrace_service::store::valid_name;
use rcgen::{Issuer, KeyPair};
use thiserror::Error;
use zeroize::Zeroizing;

/// Validity of the CA, days: longer than the life of its machine.
pub(super) const CA_DAYS: i64 = 3650;

/// Certificates are valid from this many hours before their issue, since clocks of two machines may differ.
pub(super) const BACKDATE_HOURS: i64 = 1;

/// The certificate files of a node or client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The CA that both sides trust.
    pub ca: PathBuf,
    /// Certificate of the node or client, PEM.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

/// Why the private CA did not do what was asked.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    Io {
        /// The file or directory that was to be read or written.
        path: PathBuf,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The CA in the directory cannot be used.
    #[error("cannot use the CA {}: {reason}", path.display())]
    Ca {
        /// Path of its certificate.
        path: PathBuf,
        /// The objection of rcgen to the certificate or its key.
        reason: String,
    },
    /// The name cannot be in a certificate.
    #[error("{0:?} cannot name a client: use letters, digits, '.' and '-'; not \"ca\" or \"node\"")]
    Name(String),
    /// The directory has no certificate for that name.
    #[error("there is no certificate {}: it was not issued here, or is revoked already (`millrace cert list` shows which)", .0.display())]
    NotIssued(PathBuf),
    /// Files of that client already exist.
    #[error("{} exists: remove it first to issue another certificate", .0.display())]
    Exists(PathBuf),
    /// The node's certificate is missing or expired, and the CA that could issue another is elsewhere.
    #[error(
        "{} has no valid node.crt and node.key, and the authority is elsewhere: issue them there \
         (millrace cert node NAME -o DIR) and copy them here",
        .0.display()
    )]
    AuthorityElsewhere(PathBuf),
    /// The name of a node is empty or has other characters than names and addresses have.
    #[error("{0:?} cannot name a node: use its DNS name or its address")]
    NodeName(String),
    /// Creating the certificate failed.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// Name of the CA's files, which no client may have.
pub(super) const CA: &str = "ca";

/// Name of the node's files, which no client may have.
pub(super) const NODE: &str = "node";

/// The paths of the files with this name.
pub(super) fn files(directory: &Path, name: &str) -> CertificateFiles {
    CertificateFiles {
        ca: directory.join(format!("{CA}.crt")),
        certificate: directory.join(format!("{name}.crt")),
        key: directory.join(format!("{name}.key")),
    }
}

/// The paths of a client's files; an error if the name is not allowed.
pub(super) fn client_files(
    directory: &Path,
    name: &str,
) -> Result<CertificateFiles, CertificateError> {
    let dns = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    if !valid_name(name) || !dns || [CA, NODE].contains(&name) {
        return Err(CertificateError::Name(name.chars().take(128).collect()));
    }
    Ok(files(directory, name))
}

/// The CA, ready to sign.
pub(super) fn load_ca(directory: &Path) -> Result<Issuer<'static, KeyPair>, CertificateError> {
    let files = files(directory, CA);
    let read = |path: &Path| {
        ordinary::read_text(path, Links::Follow, MAX_PEM_LEN).map_err(at(path)).map(Zeroizing::new)
    };
    let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
    let bad = |error: rcgen::Error| CertificateError::Ca {
        path: files.certificate.clone(),
        reason: error.to_string(),
    };
    let key = KeyPair::from_pem(&key).map_err(bad)?;
    Issuer::from_ca_cert_pem(&certificate, key).map_err(bad)
}

/// Makes an error about `path` of one of the operating system.
pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> CertificateError {
    move |source| CertificateError::Io { path: path.to_owned(), source }
}
