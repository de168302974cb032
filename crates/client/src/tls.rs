// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS as a client of nodes: version 1.3 only, mutual, with the CA that was configured and no other,
//! without early data and without resumption (a connection lasts for days).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_hostfs::ordinary::{self, Links};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::{AlertDescription, CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem};
use thiserror::Error as ThisError;
use zeroize::Zeroizing;

use crate::config::TlsConfig;

/// Why the configured files make no TLS client.
#[derive(Debug, ThisError)]
pub(crate) enum TlsSetupError {
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: pem::Error },
    #[error("{}: holds no certificate", .0.display())]
    Empty(PathBuf),
    #[error("{}: {error}", path.display())]
    Unusable { path: PathBuf, error: Error },
    #[error(transparent)]
    Tls(#[from] Error),
}

/// Reads the files and makes the configuration of a TLS client from them.
pub(crate) fn client_config(files: &TlsConfig) -> Result<ClientConfig, TlsSetupError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots.add(certificate).map_err(|error| unusable(&files.ca, error))?;
    }
    let chain = certificates(&files.cert)?;
    let key = Zeroizing::new(read(&files.key)?);
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unreadable(&files.key, error))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(&files.cert, error))?;
    config.alpn_protocols = vec![millrace_wire::ALPN.to_vec()];
    config.enable_early_data = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsSetupError> {
    let text = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| unreadable(path, error))?;
    if all.is_empty() {
        return Err(TlsSetupError::Empty(path.to_owned()));
    }
    Ok(all)
}

/// Bound on a file of certificates or with a key, in bytes: a bundle of all public authorities has 300 KB.
const MAX_FILE: usize = 4 << 20;

/// Reads a file, which may be a link, but not a pipe: a gateway must not wait for one.
fn read(path: &Path) -> Result<Vec<u8>, TlsSetupError> {
    ordinary::read(path, Links::Follow, MAX_FILE)
        .map_err(|error| unreadable(path, pem::Error::Io(error)))
}

/// The first certificate of a file.
pub(crate) fn own_certificate(path: &Path) -> Option<CertificateDer<'static>> {
    certificates(path).ok()?.into_iter().next()
}

fn unreadable(path: &Path, error: pem::Error) -> TlsSetupError {
    let path = path.to_owned();
    TlsSetupError::Unreadable { path, error }
}

fn unusable(path: &Path, error: Error) -> TlsSetupError {
    let path = path.to_owned();
    TlsSetupError::Unusable { path, error }
}

/// Cause of a failed TLS handshake with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFault {
    /// The node's certificate was signed by another authority.
    OtherAuthority,
    /// The node's certificate has expired, or is not valid yet.
    NodeExpired,
    /// The node's certificate is for another name.
    WrongName,
    /// The node does not know the authority of this client's certificate.
    UnknownToNode,
    /// This client's certificate is revoked.
    Revoked,
    /// This client's certificate has expired.
    Expired,
    /// Anything else.
    Other,
}

impl TlsFault {
    pub(crate) fn of(error: &Error) -> Self {
        use CertificateError as Certificate;
        match error {
            // Authorities of the same name differ in their signatures.
            Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => {
                Self::OtherAuthority
            }
            Error::InvalidCertificate(
                Certificate::Expired
                | Certificate::ExpiredContext { .. }
                | Certificate::NotValidYet
                | Certificate::NotValidYetContext { .. },
            ) => Self::NodeExpired,
            Error::InvalidCertificate(
                Certificate::NotValidForName | Certificate::NotValidForNameContext { .. },
            ) => Self::WrongName,
            Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
                Self::UnknownToNode
            }
            Error::AlertReceived(AlertDescription::CertificateRevoked) => Self::Revoked,
            Error::AlertReceived(AlertDescription::CertificateExpired) => Self::Expired,
            _ => Self::Other,
        }
    }
}

/// A TLS error with a hint for the frequent ones.
#[derive(Debug, ThisError)]
#[error("{}", explain(.0))]
pub(crate) struct TlsFailure(pub(crate) Error);

fn explain(error: &Error) -> String {
    let hint = match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the node's certificate was not signed by the configured CA"
        }
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the node's certificate has expired",
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "the node's certificate is for another name; set `server_name`",
        Error::AlertReceived(_) => "the node refused the TLS handshake; see its log",
        _ => return error.to_string(),
    };
    format!("{hint} ({error})")
}
