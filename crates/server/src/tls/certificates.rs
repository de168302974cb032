// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! A private CA in a directory, for sites without one: certificates for a node and its clients.
//!
//! With several nodes, one directory has the CA, on one of the nodes or on another machine; the others have only the
//! files that [`issue_node_certificate`] returns. The CA serves no other purpose.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use millrace_service::store::{IfExists, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::{Duration, OffsetDateTime};
use tracing::warn;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use zeroize::{Zeroize, Zeroizing};

use super::authority::{
    BACKDATE_HOURS, CA, CA_DAYS, CertificateError, CertificateFiles, NODE, at, client_files, files,
    load_ca,
};
use super::{read_public, revocation};

/// Common name of every node's certificate: its clients know it by its alternative names.
const NODE_COMMON_NAME: &str = "millrace node";

/// Validity of a node's or client's certificate, days. Some clients refuse more than 398 days.
const LEAF_DAYS: i64 = 397;

/// Days before expiry from which on a node's certificate is replaced.
const RENEW_DAYS: i64 = 30;

/// The files of a node whose CA is elsewhere, as PEM.
#[derive(Debug)]
pub struct IssuedNode {
    /// The certificate of the CA.
    pub ca: Vec<u8>,
    /// The revocation list of the CA.
    pub revoked: Vec<u8>,
    /// The certificate of the node.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: Zeroizing<String>,
}

/// Ensures that `directory` holds a CA. An existing one stays unchanged.
///
/// # Errors
/// The folder or a file in it cannot be made.
pub fn ensure_authority(directory: &Path) -> Result<(), CertificateError> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(at(directory))?;
    if files(directory, CA).certificate.exists() { Ok(()) } else { make_ca(directory) }
}

/// Issues the certificate of another node known as `names` (DNS names or addresses). Its key is not kept.
///
/// # Errors
/// If there is no CA in `directory`, or a name is invalid.
pub fn issue_node_certificate(
    directory: &Path,
    names: &[String],
) -> Result<IssuedNode, CertificateError> {
    if let Some(name) = names.iter().find(|name| !is_node_name(name)) {
        return Err(CertificateError::NodeName(name.chars().take(128).collect()));
    }
    let usage = ExtendedKeyUsagePurpose::ServerAuth;
    let (certificate, key) = sign(directory, NODE_COMMON_NAME, names.to_vec(), usage)?;
    let read = |path: PathBuf| read_public(&path).map_err(at(&path));
    Ok(IssuedNode {
        ca: read(files(directory, CA).ca)?,
        revoked: read(revocation::revocation_list(directory))?,
        certificate,
        key: pem_of(key),
    })
}

/// Whether `name` has the characters and the length of a DNS name or an address.
fn is_node_name(name: &str) -> bool {
    (1..=253).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:".contains(&byte))
}

/// Ensures that `directory` holds a CA and a certificate for a node known as `names` (DNS names or
/// addresses). Valid files stay unchanged, so a node may call this at every start. A certificate that expires
/// soon or lacks a name is replaced, if the CA's key is in the directory.
pub fn ensure_node_certificates(
    directory: &Path,
    names: &[String],
) -> Result<CertificateFiles, CertificateError> {
    ensure_authority(directory)?;
    let node = files(directory, NODE);
    if node.key.exists() && good_for(&node.certificate, names, RENEW_DAYS) {
        return Ok(node);
    }
    if files(directory, CA).key.exists() {
        let usage = ExtendedKeyUsagePurpose::ServerAuth;
        let names = names.to_vec();
        issue(directory, &node, NODE_COMMON_NAME, names, usage, IfExists::Replace)?;
    } else if node.key.exists() && good_for(&node.certificate, &[], 0) {
        warn!(
            certificate = %node.certificate.display(),
            "the node's certificate expires within {RENEW_DAYS} days or lacks one of the names {names:?}; the authority \
             is elsewhere, where `millrace cert node` issues another"
        );
    } else {
        return Err(CertificateError::AuthorityElsewhere(directory.to_owned()));
    }
    Ok(node)
}

/// Issues a certificate for the client `name`, which a node will know as `cert:name`.
///
/// # Errors
/// If there is no CA in `directory` yet, if the client has a certificate there, or if files cannot
/// be read or written.
pub fn issue_client_certificate(
    directory: &Path,
    name: &str,
) -> Result<CertificateFiles, CertificateError> {
    let files = client_files(directory, name)?;
    for path in [&files.certificate, &files.key] {
        if path.exists() {
            return Err(CertificateError::Exists(path.clone()));
        }
    }
    let usage = ExtendedKeyUsagePurpose::ClientAuth;
    let names = vec![name.to_owned()];
    issue(directory, &files, name, names, usage, IfExists::Fail)?;
    Ok(files)
}

fn make_ca(directory: &Path) -> Result<(), CertificateError> {
    let files = files(directory, CA);
    let mut params = params("millrace private CA", Vec::new(), CA_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    // The certificate is written after the key, because its presence means that the CA exists.
    write_key(&files.key, key, IfExists::Fail)?;
    write_private(&files.certificate, certificate.pem().as_bytes(), IfExists::Fail)
        .map_err(at(&files.certificate))?;
    // With an empty list, a node that starts now sees later revocations.
    revocation::write(directory, Vec::new())
}

fn issue(
    directory: &Path,
    files: &CertificateFiles,
    common: &str,
    names: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
    if_exists: IfExists,
) -> Result<(), CertificateError> {
    let (certificate, key) = sign(directory, common, names, usage)?;
    if if_exists == IfExists::Replace && files.certificate.exists() {
        // From here on, an interruption leaves no pair of key and certificate that does not match.
        fs::remove_file(&files.certificate).map_err(at(&files.certificate))?;
    }
    write_key(&files.key, key, if_exists)?;
    write_private(&files.certificate, certificate.as_bytes(), if_exists)
        .map_err(at(&files.certificate))
}

/// A new certificate, as PEM, and its key.
fn sign(
    directory: &Path,
    common: &str,
    names: Vec<String>,
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, KeyPair), CertificateError> {
    let mut params = params(common, names, LEAF_DAYS)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let issuer = load_ca(directory)?;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok((certificate.pem(), key))
}

fn params(
    common: &str,
    names: Vec<String>,
    days: i64,
) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(BACKDATE_HOURS);
    params.not_after = now + Duration::days(days);
    Ok(params)
}

fn pem_of(mut key: KeyPair) -> Zeroizing<String> {
    let pem = Zeroizing::new(key.serialize_pem());
    key.zeroize();
    pem
}

fn write_key(path: &Path, key: KeyPair, if_exists: IfExists) -> Result<(), CertificateError> {
    let pem = pem_of(key);
    write_private(path, pem.as_bytes(), if_exists).map_err(at(path))
}

/// Whether the certificate exists, is valid for at least this many days, and has all names.
fn good_for(path: &Path, names: &[String], days: i64) -> bool {
    let text = read_public(path).unwrap_or_default();
    let Ok(certificate) = CertificateDer::from_pem_slice(&text) else {
        return false;
    };
    let Ok((_, certificate)) = X509Certificate::from_der(&certificate) else {
        return false;
    };
    let renew = OffsetDateTime::now_utc() + Duration::days(days);
    if certificate.validity().not_after.timestamp() < renew.unix_timestamp() {
        return false;
    }
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else {
        return false;
    };
    names.iter().all(|wanted| {
        alternatives.value.general_names.iter().any(|name| match name {
            GeneralName::DNSName(name) => name == wanted,
            GeneralName::IPAddress(octets) => match wanted.parse() {
                Ok(std::net::IpAddr::V4(address)) => octets[..] == address.octets(),
                Ok(std::net::IpAddr::V6(address)) => octets[..] == address.octets(),
                Err(_) => false,
            },
            _ => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use tempfile::TempDir;

    use super::*;

    fn names() -> Vec<String> {
        vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]
    }

    #[test]
    fn node_keeps_its_certificate_until_it_needs_another_name() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("tls");
        let files = ensure_node_certificates(&path, &names()).unwrap();
        let before = fs::read(&files.certificate).unwrap();
        ensure_node_certificates(&path, &names()[..1]).unwrap();
        assert_eq!(fs::read(&files.certificate).unwrap(), before);
        let mut more = names();
        more.push("node-1.example".to_owned());
        let ca = fs::read(&files.ca).unwrap();
        ensure_node_certificates(&path, &more).unwrap();
        assert_ne!(fs::read(&files.certificate).unwrap(), before);
        assert_eq!(fs::read(&files.ca).unwrap(), ca);
    }

    #[test]
    fn node_without_the_authority_uses_what_was_issued_for_it() {
        let directory = TempDir::new().unwrap();
        let authority = directory.path().join("a");
        let node = directory.path().join("n");
        ensure_authority(&authority).unwrap();
        let issued = issue_node_certificate(&authority, &names()).unwrap();
        fs::create_dir(&node).unwrap();
        fs::write(node.join("ca.crt"), &issued.ca).unwrap();
        fs::write(node.join("ca.crl"), &issued.revoked).unwrap();
        let error = ensure_node_certificates(&node, &names()).unwrap_err();
        assert!(error.to_string().contains("millrace cert node"), "{error}");
        fs::write(node.join("node.crt"), &issued.certificate).unwrap();
        fs::write(node.join("node.key"), issued.key.as_bytes()).unwrap();
        let mut names = names();
        names.push("a-name-it-lacks".to_owned());
        ensure_node_certificates(&node, &names).unwrap();
        let now = fs::read_to_string(node.join("node.crt")).unwrap();
        assert_eq!(now, issued.certificate);
        for name in ["", "two words", "a/b"] {
            let error = issue_node_certificate(&authority, &[name.to_owned()]).unwrap_err();
            assert!(matches!(error, CertificateError::NodeName(_)), "{name}");
        }
    }

    #[test]
    fn every_file_is_private() {
        let directory = TempDir::new().unwrap();
        ensure_node_certificates(directory.path(), &names()).unwrap();
        issue_client_certificate(directory.path(), "gateway-1").unwrap();
        let mut count = 0;
        for entry in fs::read_dir(directory.path()).unwrap().flatten() {
            assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600, "{:?}", entry.path());
            count += 1;
        }
        assert_eq!(count, 7);
    }

    #[test]
    fn client_certificate_is_issued_once_and_never_overwrites_the_ca() {
        let directory = TempDir::new().unwrap();
        let issue = |name| issue_client_certificate(directory.path(), name);
        assert!(matches!(issue("a"), Err(CertificateError::Io { .. })));
        ensure_node_certificates(directory.path(), &names()).unwrap();
        let files = issue("gateway-1").unwrap();
        let certificate = CertificateDer::from_pem_file(&files.certificate).unwrap();
        assert_eq!(super::super::identity(&certificate).as_deref(), Some("cert:gateway-1"));
        assert!(matches!(issue("gateway-1"), Err(CertificateError::Exists(_))));
        for name in ["ca", "node", "", "a/b", "two words", "*", ".."] {
            assert!(matches!(issue(name), Err(CertificateError::Name(_))), "{name}");
        }
    }
}
