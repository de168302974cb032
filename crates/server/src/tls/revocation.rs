// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The revocation list of the private CA: clients' certificates that are refused before they expire.
//!
//! This module only writes the list. [`crate::config::TlsFiles`] configures whether a node checks a list, of
//! any CA.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use millrace_service::store::{IfExists, write_private};
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams, SerialNumber};
use rustix::fs::{FlockOperation, flock};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::authority::{BACKDATE_HOURS, CA_DAYS, CertificateError, at, client_files, load_ca};
use super::read_public;

/// The path of the revocation list of the CA in `directory`.
#[must_use]
pub fn revocation_list(directory: &Path) -> PathBuf {
    directory.join("ca.crl")
}

/// Revokes the certificate of the client `name` and deletes its file, so that the client may get a new one. A
/// node that has the list refuses the old one from its next reload on, which also ends its open connections.
///
/// # Errors
/// If the client has no certificate, or files cannot be read or written; then nothing is revoked.
pub fn revoke_client_certificate(directory: &Path, name: &str) -> Result<(), CertificateError> {
    let path = client_files(directory, name)?.certificate;
    if !path.exists() {
        return Err(CertificateError::NotIssued(path));
    }
    // Two concurrent revocations must not overwrite each other.
    let lock = File::open(directory).map_err(at(directory))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| at(directory)(error.into()))?;
    let serial = serial_of(&path)?;
    let mut revoked = revoked_before(directory)?;
    revoked.push(entry(&serial, OffsetDateTime::now_utc()));
    write(directory, revoked)?;
    fs::remove_file(&path).map_err(at(&path))
}

/// Writes a list with a validity that never ends in practice: it is replaced only when it changes.
pub(super) fn write(
    directory: &Path,
    revoked_certs: Vec<RevokedCertParams>,
) -> Result<(), CertificateError> {
    let now = OffsetDateTime::now_utc();
    // Higher than those before, as RFC 5280 section 5.2.3 requires.
    let number = u64::try_from(now.unix_timestamp()).unwrap_or_default();
    let params = CertificateRevocationListParams {
        this_update: now - Duration::hours(BACKDATE_HOURS),
        next_update: now + Duration::days(CA_DAYS),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let pem = params.signed_by(&load_ca(directory)?)?.pem()?;
    let path = revocation_list(directory);
    write_private(&path, pem.as_bytes(), IfExists::Replace).map_err(at(&path))
}

fn entry(serial: &[u8], at: OffsetDateTime) -> RevokedCertParams {
    RevokedCertParams {
        serial_number: SerialNumber::from(serial.to_vec()),
        revocation_time: at,
        reason_code: None,
        invalidity_date: None,
    }
}

fn serial_of(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let bad = || at(path)(io::ErrorKind::InvalidData.into());
    let text = read_public(path).map_err(at(path))?;
    let der = CertificateDer::from_pem_slice(&text).map_err(|_| bad())?;
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| bad())?;
    Ok(certificate.raw_serial().to_vec())
}

/// The entries of the list; empty if the file does not exist.
pub(super) fn revoked_before(directory: &Path) -> Result<Vec<RevokedCertParams>, CertificateError> {
    let path = revocation_list(directory);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let bad = || at(&path)(io::ErrorKind::InvalidData.into());
    let text = read_public(&path).map_err(at(&path))?;
    let der = CertificateRevocationListDer::from_pem_slice(&text).map_err(|_| bad())?;
    let (_, list) = CertificateRevocationList::from_der(&der).map_err(|_| bad())?;
    let old = list.iter_revoked_certificates();
    Ok(old.map(|old| entry(old.raw_serial(), old.revocation_date.to_datetime())).collect())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::tls::{ensure_node_certificates, issue_client_certificate};

    fn serials(directory: &Path) -> Vec<Vec<u8>> {
        let revoked = revoked_before(directory).unwrap();
        revoked.iter().map(|entry| entry.serial_number.to_bytes()).collect()
    }

    #[test]
    fn revocation_extends_the_list_and_frees_the_name() {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        ensure_node_certificates(path, &[]).unwrap();
        assert_eq!(serials(path).len(), 0);
        let issue = |name| serial_of(&issue_client_certificate(path, name).unwrap().certificate);
        let one = issue("one").unwrap();
        let two = issue("two").unwrap();
        revoke_client_certificate(path, "one").unwrap();
        revoke_client_certificate(path, "two").unwrap();
        assert_eq!(serials(path), [one.clone(), two]);
        assert!(matches!(
            revoke_client_certificate(path, "one"),
            Err(CertificateError::NotIssued(_))
        ));
        fs::remove_file(path.join("one.key")).unwrap();
        assert_ne!(issue("one").unwrap(), one);
    }

    #[test]
    fn name_without_a_client_certificate_is_not_revoked() {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        ensure_node_certificates(path, &[]).unwrap();
        for name in ["ca", "node", "", "../x"] {
            let error = revoke_client_certificate(path, name).unwrap_err();
            assert!(matches!(error, CertificateError::Name(_)), "{name}");
        }
    }

    #[test]
    fn invalid_revocation_list_is_not_replaced() {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        ensure_node_certificates(path, &[]).unwrap();
        let files = issue_client_certificate(path, "one").unwrap();
        fs::write(revocation_list(path), b"rubbish").unwrap();
        let error = revoke_client_certificate(path, "one").unwrap_err();
        assert!(error.to_string().contains("ca.crl"), "{error}");
        assert!(files.certificate.exists());
        assert_eq!(fs::read(revocation_list(path)).unwrap(), b"rubbish");
    }
}
