// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The listener of the API: TLS 1.3, with a client certificate or without one.
//!
//! Handshakes run in tasks of their own, so a slow one delays no other. Their number and their time are bounded, as
//! are the connections ([`millrace_server::http::Bounded`]).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use millrace_server::config::TlsFiles;
use millrace_server::http::{Bounded, Timeouts};
use millrace_server::tls::identity;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;

/// Bound on the connections of a manager: 1,000 nodes that send a heartbeat at once, and their watchers. One takes
/// about 50 KiB.
pub(super) const MAX_CONNECTIONS: usize = 2048;

/// Bound on the TLS handshakes under way: peers without an identity hold no more of the connections than these.
const MAX_HANDSHAKES: usize = 256;

/// Time for a TLS handshake, a request and the reading of an answer, each.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a failed accept, whose usual cause is that descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A certificate file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("cannot use {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// The files do not fit each other.
    #[error("cannot use the certificates of the manager: {0}")]
    Use(#[from] rustls::Error),
    /// The authority of the clients cannot be used.
    #[error("cannot verify clients' certificates: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// The TLS settings of a listener, for the handshakes that begin. Every later change of them ends the rights of client
/// certificates on connections from before: one may have been revoked.
#[derive(Debug)]
pub struct ServerTls(watch::Sender<Arc<ServerConfig>>);

impl ServerTls {
    /// Reads the files. A client without a certificate is let in: it needs a token.
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self(watch::channel(server_config(files)?).0))
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// [`TlsError`]; the former settings stay in force.
    pub fn reload(&self, files: &TlsFiles) -> Result<(), TlsError> {
        self.0.send_replace(server_config(files)?);
        Ok(())
    }
}

/// The caller at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    identity: Option<Arc<str>>,
    /// The settings of its handshake; changed if others are in force.
    settings: watch::Receiver<Arc<ServerConfig>>,
}

impl Peer {
    /// The identity in its verified certificate: `cert:NAME`. `None` once the settings have changed since the
    /// handshake.
    #[must_use]
    pub(super) fn identity(&self) -> Option<&Arc<str>> {
        let changed = self.settings.has_changed().unwrap_or(false);
        self.identity.as_ref().filter(|_| !changed)
    }

    /// Completes when the settings have changed since the handshake.
    pub(super) async fn outdated(mut self) {
        if self.settings.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// A caller in a test.
    #[cfg(test)]
    pub(super) fn of(identity: Option<&str>) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let none = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
        let config = versions.with_no_client_auth().with_cert_resolver(none);
        Self { identity: identity.map(Arc::from), settings: watch::channel(Arc::new(config)).1 }
    }
}

/// TLS connections that have ended their handshake.
pub(super) struct TlsListener {
    ready: mpsc::Receiver<(TlsStream<TcpStream>, Peer)>,
    address: SocketAddr,
    settings: watch::Receiver<Arc<ServerConfig>>,
    accepting: AbortHandle,
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Opens the listener, with its bounds.
pub(super) fn listen(listener: TcpListener, tls: &ServerTls) -> io::Result<Bounded<TlsListener>> {
    let address = listener.local_addr()?;
    let (send, ready) = mpsc::channel(1);
    let settings = tls.0.subscribe();
    let accepting = tokio::spawn(accept(listener, settings.clone(), send)).abort_handle();
    let tls = TlsListener { ready, address, settings, accepting };
    let timeouts = Timeouts { request: TIMEOUT, answer: TIMEOUT };
    Ok(Bounded::new(tls, MAX_CONNECTIONS, move || timeouts))
}

async fn accept(
    listener: TcpListener,
    settings: watch::Receiver<Arc<ServerConfig>>,
    ready: mpsc::Sender<(TlsStream<TcpStream>, Peer)>,
) {
    let places = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let mut settings = settings.clone();
        let ready = ready.clone();
        tokio::spawn(async move {
            let tls = TlsAcceptor::from(Arc::clone(&settings.borrow_and_update()));
            let handshake = timeout(TIMEOUT, tls.accept(socket)).await;
            drop(place);
            match handshake {
                Ok(Ok(stream)) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let own = chain.and_then(<[_]>::first);
                    let peer = Peer { identity: own.and_then(identity), settings };
                    // The manager is stopping if there is no receiver.
                    let _ = ready.send((stream, peer)).await;
                }
                Ok(Err(error)) => debug!(%address, %error, "a TLS handshake failed"),
                Err(_) => debug!(%address, "a TLS handshake timed out"),
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            // The accepting task ends only with this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(Peer { identity: None, settings: self.settings.clone() })
    }
}

impl Connected<IncomingStream<'_, Bounded<TlsListener>>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded<TlsListener>>) -> Self {
        stream.remote_addr().clone()
    }
}

fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in read_all::<CertificateDer<'_>>(&files.client_ca)? {
        roots.add(certificate)?;
    }
    let mut verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
            .allow_unauthenticated();
    if let Some(crl) = &files.crl {
        verifier = verifier.with_crls(read_all(crl)?).enforce_revocation_expiration();
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| TlsError::File {
        path: files.key.display().to_string(),
        reason: error.to_string(),
    })?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier.build()?)
        .with_single_cert(read_all(&files.certificate)?, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read_all<T: PemObject>(path: &std::path::Path) -> Result<Vec<T>, TlsError> {
    let failed = |error: rustls::pki_types::pem::Error| TlsError::File {
        path: path.display().to_string(),
        reason: error.to_string(),
    };
    let items: Result<Vec<T>, _> = T::pem_file_iter(path).map_err(failed)?.collect();
    let items = items.map_err(failed)?;
    if items.is_empty() {
        return Err(failed(rustls::pki_types::pem::Error::NoItemsFound));
    }
    Ok(items)
}
