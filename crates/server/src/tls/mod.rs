// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Mutual TLS 1.3: the identity of a client over TCP, and the files with which the node proves its own.
//!
//! The crypto provider is AWS-LC, passed explicitly: the process-wide default belongs to the application.
//! There is no resumption and no early data: a ticket would admit a client whose certificate has expired
//! since, and connections last hours, so resumption would save nothing.

mod authority;
mod certificates;
mod issued;
mod revocation;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use millrace_hostfs::ordinary::{self, Links};
use millrace_operation::sync::lock;
use millrace_service::NodeCertificate;
use millrace_service::sink::{Order, SessionSink};
use millrace_service::store::{exposed_bits, valid_identity};
use millrace_wire::ALPN;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ServerConfig, VerifierBuilderError, WebPkiClientVerifier,
};
use rustls::{CertificateError as Rejected, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tracing::warn;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::config::TlsFiles;

pub use authority::{CertificateError, CertificateFiles};
pub use certificates::{
    IssuedNode, ensure_authority, ensure_node_certificates, issue_client_certificate,
    issue_node_certificate,
};
pub use issued::{CertificateKind, IssuedCertificate, client_certificate, issued_certificates};
pub use revocation::{revocation_list, revoke_client_certificate};

/// The TLS settings in force, replaced as a whole by a reload.
pub(crate) struct Acceptor {
    files: TlsFiles,
    current: RwLock<Arc<TlsInForce>>,
    open: Mutex<OpenConnections>,
}

/// TLS configuration of new connections.
pub(crate) struct TlsInForce {
    pub(crate) config: Arc<ServerConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// The open connections with their certificates, to end those of clients that are revoked later.
#[derive(Default)]
struct OpenConnections {
    next: u64,
    connections: HashMap<u64, Certified>,
}

/// A client that has proved its identity by a certificate.
struct Certified {
    chain: Vec<CertificateDer<'static>>,
    /// The time of the handshake: a certificate that has expired since is not a reason to end the connection.
    at: UnixTime,
    identity: Arc<str>,
    connection: Arc<dyn SessionSink>,
}

impl Acceptor {
    /// Reads the files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(load(&files)?);
        let open = Mutex::default();
        Ok(Self { files, current, open })
    }

    /// Reads the files again, and ends the connections of clients whose certificates are revoked now. Other open
    /// connections keep their settings.
    ///
    /// # Errors
    /// The problem with the files; the previous settings stay in force.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let in_force = load(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&in_force);
        for client in self.open().connections.values() {
            client.end_if_revoked(&in_force);
        }
        Ok(())
    }

    /// The node's own certificate, for the page.
    pub(crate) fn certificate(&self) -> Option<NodeCertificate> {
        let chain = read_all::<CertificateDer<'_>>(&self.files.certificate).ok()?;
        let own = chain.first()?;
        let (_, parsed) = X509Certificate::from_der(own).ok()?;
        let subject = parsed.subject().iter_common_name().next();
        Some(NodeCertificate {
            name: subject.and_then(|name| name.as_str().ok()).unwrap_or_default().to_owned(),
            spki: parsed.public_key().raw.to_vec(),
            expires: parsed.validity().not_after.timestamp(),
        })
    }

    /// The settings for one new connection.
    pub(crate) fn current(&self) -> Arc<TlsInForce> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Keeps the certificates of a connection that was accepted with `accepted_by`, until the guard is dropped.
    pub(crate) fn watch(
        self: &Arc<Self>,
        accepted_by: &Arc<TlsInForce>,
        chain: &[CertificateDer<'_>],
        identity: Arc<str>,
        connection: Arc<dyn SessionSink>,
    ) -> WatchedCertificate {
        let client = Certified {
            chain: chain.iter().map(|certificate| certificate.clone().into_owned()).collect(),
            at: UnixTime::now(),
            identity,
            connection,
        };
        let mut open = self.open();
        // A reload from here on sees the connection; one since the handshake did not.
        let current = self.current();
        if !Arc::ptr_eq(&current, accepted_by) {
            client.end_if_revoked(&current);
        }
        let number = open.next;
        open.next += 1;
        open.connections.insert(number, client);
        drop(open);
        WatchedCertificate { acceptor: Arc::clone(self), number }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        lock(&self.open)
    }
}

impl Certified {
    fn end_if_revoked(&self, in_force: &TlsInForce) {
        let Some((own, authorities)) = self.chain.split_first() else {
            return;
        };
        let verdict = in_force.verifier.verify_client_cert(own, authorities, self.at);
        if let Err(rustls::Error::InvalidCertificate(Rejected::Revoked)) = verdict {
            warn!(identity = &*self.identity, "certificate revoked: connection closed");
            self.connection.order(Order::Close);
        }
    }
}

/// An open connection whose certificate is checked at each reload.
pub(crate) struct WatchedCertificate {
    acceptor: Arc<Acceptor>,
    number: u64,
}

impl Drop for WatchedCertificate {
    fn drop(&mut self) {
        self.acceptor.open().connections.remove(&self.number);
    }
}

/// Accepts connections up to the client's first message, which names the protocol that it wants.
#[must_use]
pub fn first_message(stream: TcpStream) -> LazyConfigAcceptor<TcpStream> {
    LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream)
}

/// Whether the client wants to speak Millrace's protocol. rustls continues with a client that offers none.
pub(crate) fn offers_our_protocol(hello: &ClientHello<'_>) -> bool {
    let mut offered = hello.alpn().into_iter().flatten();
    offered.any(|protocol| protocol == ALPN)
}

/// The fatal alert `no_application_protocol` (RFC 7301, section 3.2) as a record in plain text, as it is before
/// both sides have keys.
pub(crate) const NO_PROTOCOL_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 120];

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Checks that a node could use these files.
///
/// # Errors
/// The first file that a listener would refuse, with the reason.
pub fn check_files(files: &TlsFiles) -> Result<(), TlsError> {
    load(files).map(drop)
}

fn load(files: &TlsFiles) -> Result<Arc<TlsInForce>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = verifier(files, &provider)?;
    let failed = |source: rustls::Error| TlsError::Use {
        path: files.certificate.clone(),
        reason: source.to_string(),
    };
    let key = private_key(&files.key)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_single_cert(read_all(&files.certificate)?, key)
        .map_err(failed)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.max_early_data_size = 0;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(TlsInForce { config: Arc::new(config), verifier }))
}

/// The verifier of clients' certificates: checks the CA, and its revocation lists if there are any.
fn verifier(
    files: &TlsFiles,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let failed = |path: &Path, reason: &dyn fmt::Display| TlsError::Use {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let ca = &files.client_ca;
    let mut roots = RootCertStore::empty();
    for certificate in read_all::<CertificateDer<'_>>(ca)? {
        roots.add(certificate).map_err(|error| failed(ca, &error))?;
    }
    let mut verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
    if let Some(crl) = &files.crl {
        // An expired list would admit clients that were revoked after it was issued.
        verifier = verifier
            .with_crls(read_all::<CertificateRevocationListDer<'_>>(crl)?)
            .enforce_revocation_expiration();
    }
    verifier.build().map_err(|error| match (&error, &files.crl) {
        (VerifierBuilderError::InvalidCrl(_), Some(crl)) => failed(crl, &error),
        _ => failed(ca, &error),
    })
}

/// All items of one kind in a PEM file. None is an error.
fn read_all<T: PemObject>(path: &Path) -> Result<Vec<T>, TlsError> {
    let failed = |error| TlsError::read(path, &error);
    let text =
        read_public(path).map_err(|error| failed(rustls_pki_types::pem::Error::Io(error)))?;
    let found: Result<Vec<_>, _> = T::pem_slice_iter(&text).collect();
    let found = found.map_err(failed)?;
    if found.is_empty() {
        return Err(TlsError::read(path, &rustls_pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// Bound on a file of certificates or revocation lists, in bytes: the longest lists of public authorities have 20 MB.
const MAX_PUBLIC: usize = 64 << 20;

/// Reads a file of certificates or revocation lists.
fn read_public(path: &Path) -> io::Result<Vec<u8>> {
    ordinary::read(path, Links::Follow, MAX_PUBLIC)
}

/// Reads a private key. Refuses a file that other users can read.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let failed = |error| TlsError::read(path, &error);
    let io_failed = |error| failed(rustls_pki_types::pem::Error::Io(error));
    let file = ordinary::open(path, Links::Follow).map_err(io_failed)?;
    // Metadata of the open file, so that the check and the read see the same file.
    let metadata = file.metadata().map_err(io_failed)?;
    let user = rustix::process::geteuid().as_raw();
    check_private(path, metadata.mode() & 0o7777, metadata.uid(), user)?;
    PrivateKeyDer::from_pem_reader(file).map_err(failed)
}

fn check_private(path: &Path, mode: u32, owner: u32, user: u32) -> Result<(), TlsError> {
    let path = || path.to_owned();
    if owner != user && owner != 0 {
        return Err(TlsError::Owner { path: path(), owner });
    }
    if mode & exposed_bits(owner) != 0 {
        return Err(TlsError::Exposed { path: path(), mode });
    }
    Ok(())
}

/// The identity of a client whose certificate the handshake has verified: `cert:` and the first DNS name; without one
/// the SPIFFE ID, or `cert:` and the common name. `None` if that is not a valid identity.
#[must_use]
pub fn identity(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()?;
    let dns =
        names.iter().flat_map(|names| &names.value.general_names).find_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
    let common = || certificate.subject().iter_common_name().next()?.as_str().ok();
    let mut spiffe =
        names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::URI(uri) => uri.starts_with(SPIFFE).then_some(*uri),
            _ => None,
        });
    let identity = match (dns, spiffe.next(), spiffe.next()) {
        (Some(name), _, _) => certified(name)?,
        // A workload has one SPIFFE ID (X509-SVID section 2): which of two would decide?
        (None, Some(_), Some(_)) => return None,
        (None, Some(uri), None) => uri.to_owned(),
        (None, None, _) => certified(common()?)?,
    };
    // `*` in a policy stands for every client.
    (!identity.contains('*') && valid_identity(&identity)).then(|| identity.into())
}

/// Prefix of a SPIFFE ID.
const SPIFFE: &str = "spiffe://";

/// The identity of a certificate with this name.
fn certified(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| format!("cert:{name}"))
}

/// The identity in a client's certificate, without `cert:`, and the end of a certificate, in seconds since 1970;
/// `None` for bytes that are not a certificate.
#[must_use]
pub fn facts(certificate: &[u8]) -> Option<(String, i64)> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let end = parsed.validity().not_after.timestamp();
    let identity = identity(&CertificateDer::from(certificate));
    let name = identity.as_deref().unwrap_or_default();
    let name = name.strip_prefix("cert:").unwrap_or(name);
    Some((name.to_owned(), end))
}

/// Why a node cannot use its TLS files.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or lacks the expected content.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's answer, or what the file lacks.
        reason: String,
    },
    /// Other users can read or write a private key.
    #[error("the private key {} is open to others (mode {mode:04o}): chmod 0600, or 0640 if root owns it and a group is to read it", path.display())]
    Exposed {
        /// Path of the key.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user owns a private key.
    #[error("the private key {} belongs to uid {owner}, not to this user or root: chown it", path.display())]
    Owner {
        /// Path of the key.
        path: PathBuf,
        /// Its owner, a user id.
        owner: u32,
    },
    /// The content of a file cannot be used.
    #[error("cannot use {}: {reason}", path.display())]
    Use {
        /// Path of the file.
        path: PathBuf,
        /// The objection of rustls to it.
        reason: String,
    },
}

impl TlsError {
    fn read(path: &Path, error: &rustls_pki_types::pem::Error) -> Self {
        let reason = match error {
            rustls_pki_types::pem::Error::Io(error) => error.to_string(),
            rustls_pki_types::pem::Error::NoItemsFound => "nothing in PEM form in it".to_owned(),
            _ => "not in PEM form".to_owned(),
        };
        Self::Read { path: path.to_owned(), reason }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn pipe_in_the_place_of_a_file_is_named_and_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        ensure_node_certificates(path, &[]).unwrap();
        issue_client_certificate(path, "one").unwrap();
        let files = TlsFiles::in_directory(path);
        check_files(&files).unwrap();
        for name in ["node.crt", "node.key", "ca.crt", "one.crt", "ca.crl", "ca.key"] {
            let file = path.join(name);
            let kept = std::fs::read(&file).unwrap();
            std::fs::remove_file(&file).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &file,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap();
            let error = match name {
                "one.crt" | "ca.crl" => {
                    revoke_client_certificate(path, "one").unwrap_err().to_string()
                }
                "ca.key" => issue_client_certificate(path, "two").unwrap_err().to_string(),
                _ => check_files(&files).unwrap_err().to_string(),
            };
            assert!(error.contains(name) && error.contains("a pipe"), "{name}: {error}");
            std::fs::remove_file(&file).unwrap();
            std::fs::write(&file, kept).unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
                .unwrap();
        }
    }

    fn identity_of(common: &str, names: Vec<SanType>) -> Option<Arc<str>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if !common.is_empty() {
            params.distinguished_name.push(DnType::CommonName, common);
        }
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        identity(params.self_signed(&key).unwrap().der())
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    #[test]
    fn first_dns_name_wins_over_the_common_name() {
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        let names = vec![address, dns("gateway-1"), dns("gateway-2")];
        assert_eq!(identity_of("other", names).as_deref(), Some("cert:gateway-1"));
        assert_eq!(identity_of("gateway-3", vec![]).as_deref(), Some("cert:gateway-3"));
    }

    #[test]
    fn spiffe_id_is_the_identity_of_a_certificate_without_a_dns_name() {
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        let id = "spiffe://pool/gateway-1";
        assert_eq!(identity_of("", vec![uri(id)]).as_deref(), Some(id));
        assert_eq!(identity_of("other", vec![uri(id)]).as_deref(), Some(id));
        let both = vec![uri(id), dns("gateway-1")];
        assert_eq!(identity_of("", both).as_deref(), Some("cert:gateway-1"));
        let two = vec![uri(id), uri("spiffe://pool/gateway-2")];
        assert_eq!(identity_of("gateway-1", two), None);
        let foreign = vec![uri("https://pool/gateway-1")];
        assert_eq!(identity_of("gateway-3", foreign).as_deref(), Some("cert:gateway-3"));
        assert_eq!(identity_of("", vec![uri("spiffe://pool/*")]), None);
    }

    #[test]
    fn private_key_open_to_others_than_roots_group_is_refused() {
        const ROOT: u32 = 0;
        const USER: u32 = 1000;
        let verdict = |mode, owner, user| check_private(Path::new("/k"), mode, owner, user);
        for (owner, user) in [(USER, USER), (ROOT, USER), (ROOT, ROOT)] {
            for mode in [0o600, 0o400] {
                assert!(verdict(mode, owner, user).is_ok(), "{mode:o} of {owner}");
            }
            for mode in [0o604, 0o620, 0o610, 0o644, 0o660, 0o666, 0o602, 0o601] {
                let error = verdict(mode, owner, user).unwrap_err();
                assert!(matches!(error, TlsError::Exposed { .. }), "{mode:o}");
                assert!(error.to_string().contains("chmod 0600"), "{error}");
            }
        }
        for mode in [0o640, 0o440] {
            assert!(verdict(mode, ROOT, USER).is_ok());
            assert!(verdict(mode, ROOT, ROOT).is_ok());
            let error = verdict(mode, USER, USER).unwrap_err();
            assert!(matches!(error, TlsError::Exposed { .. }));
        }
        for user in [ROOT, USER + 1] {
            let error = verdict(0o600, USER, user).unwrap_err();
            assert!(matches!(error, TlsError::Owner { owner: USER, .. }));
        }
    }

    #[test]
    fn certificate_without_a_plain_name_has_no_identity() {
        for common in ["", "two words", "*", "new\nline", "g\u{e4}teway"] {
            assert_eq!(identity_of(common, vec![]), None, "{common:?}");
        }
        assert_eq!(identity_of("a", vec![dns("*.example.com")]), None);
    }
}
