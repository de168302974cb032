// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! TLS as a client of nodes: version 1.3 only, mutual, with the CA that was configured and no other,
//! without early data and without resumption (a connection lasts for days).

use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsConfig;

/// The configuration that the files make.
///
/// # Errors
/// What is wrong with which file.
pub(crate) fn client_config(files: &TlsConfig) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots
            .add(certificate)
            .map_err(|error| problem(&files.ca, &error))?;
    }
    let chain = certificates(&files.cert)?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| problem(&files.key, &error))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| problem(&files.cert, &error))?;
    config.alpn_protocols = vec![millrace_wire::ALPN.to_vec()];
    config.enable_early_data = false;
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|error| problem(path, &error))?
        .collect();
    let all = all.map_err(|error| problem(path, &error))?;
    if all.is_empty() {
        return Err(format!("{}: holds no certificate", path.display()));
    }
    Ok(all)
}

fn problem(path: &Path, error: &dyn std::error::Error) -> String {
    format!("{}: {error}", path.display())
}

/// A TLS error, with what to do about the frequent ones.
pub(crate) fn explain(error: &Error) -> String {
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
