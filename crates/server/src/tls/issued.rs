// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The certificates that the private CA in a directory has issued, from the files there and its revocation list.
//!
//! The CA keeps no record of the certificates of nodes elsewhere, and none of the name of a certificate that it
//! revoked: that file is deleted, so that the client may get another.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use schemars::JsonSchema;
use serde::Serialize;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::{CA, CertificateError, NODE, at, client_files};
use super::read_public;
use super::revocation::revoked_before;

/// One certificate of the private CA.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct IssuedCertificate {
    /// Its use.
    pub kind: CertificateKind,
    /// The name of its files; for a client's, the identity without `cert:`. Null once revoked.
    pub name: Option<String>,
    /// Serial number, in hex.
    pub serial: String,
    /// End of its validity, in seconds since 1970; null once revoked.
    pub valid_until: Option<i64>,
    /// Time of its revocation, in seconds since 1970; null while it is valid.
    pub revoked: Option<i64>,
}

/// The use of a certificate.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema, strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CertificateKind {
    /// Signs the others.
    Authority,
    /// Identifies the node that shares the directory.
    Node,
    /// Identifies a client by its name.
    Client,
}

/// All certificates of the CA in `directory`: by kind and name, then the revoked ones; none without a CA.
///
/// # Errors
/// The folder, or a certificate in it, cannot be read.
pub fn issued_certificates(directory: &Path) -> Result<Vec<IssuedCertificate>, CertificateError> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(at(directory))?,
    };
    let mut issued = Vec::new();
    for entry in entries {
        let path = entry.map_err(at(directory))?.path();
        if path.extension().is_some_and(|extension| extension == "crt") {
            issued.push(read(&path)?);
        }
    }
    issued.sort();
    let revoked = revoked_before(directory)?.into_iter();
    issued.extend(revoked.map(|entry| IssuedCertificate {
        kind: CertificateKind::Client,
        name: None,
        serial: hex(&entry.serial_number.to_bytes()),
        valid_until: None,
        revoked: Some(entry.revocation_time.unix_timestamp()),
    }));
    Ok(issued)
}

/// The certificate of the client `name` that [`super::revoke_client_certificate`] would revoke.
///
/// # Errors
/// The client has no certificate, or it cannot be read.
pub fn client_certificate(
    directory: &Path,
    name: &str,
) -> Result<IssuedCertificate, CertificateError> {
    let path = client_files(directory, name)?.certificate;
    if path.exists() { read(&path) } else { Err(CertificateError::NotIssued(path)) }
}

fn read(path: &Path) -> Result<IssuedCertificate, CertificateError> {
    let bad = || at(path)(io::ErrorKind::InvalidData.into());
    let text = read_public(path).map_err(at(path))?;
    let der = CertificateDer::from_pem_slice(&text).map_err(|_| bad())?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| bad())?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok(IssuedCertificate {
        kind: match &*name {
            CA => CertificateKind::Authority,
            NODE => CertificateKind::Node,
            _ => CertificateKind::Client,
        },
        name: Some(name.into_owned()),
        serial: hex(certificate.raw_serial()),
        valid_until: Some(certificate.validity().not_after.timestamp()),
        revoked: None,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::tls::{
        ensure_node_certificates, issue_client_certificate, revoke_client_certificate,
    };

    #[test]
    fn issued_and_revoked_certificates_are_listed() {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        assert_eq!(issued_certificates(&path.join("none")).unwrap(), []);
        ensure_node_certificates(path, &[]).unwrap();
        for name in ["two", "one"] {
            issue_client_certificate(path, name).unwrap();
        }
        let two = client_certificate(path, "two").unwrap();
        revoke_client_certificate(path, "two").unwrap();
        let listed = issued_certificates(path).unwrap();
        let names: Vec<_> = listed.iter().map(|entry| entry.name.as_deref()).collect();
        assert_eq!(names, [Some("ca"), Some("node"), Some("one"), None]);
        let revoked = listed.last().unwrap();
        assert_eq!(revoked.serial, two.serial);
        assert!(revoked.revoked.is_some() && two.revoked.is_none());
        assert!(matches!(client_certificate(path, "two"), Err(CertificateError::NotIssued(_))));
        fs::write(path.join("bad.crt"), "rubbish").unwrap();
        let error = issued_certificates(path).unwrap_err();
        assert!(error.to_string().contains("bad.crt"), "{error}");
    }
}
