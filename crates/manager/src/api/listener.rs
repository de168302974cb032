// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The listener of the API: TLS 1.3, with a client certificate or without one.
//!
//! Handshakes run in tasks of their own, so a slow one delays no other. Their number and their time are bounded, as
//! are the connections of each class of callers ([`super::standing`]).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use millrace_server::config::TlsFiles;
use millrace_server::http::{TimedStream, Timeouts};
use millrace_server::places::{Displaced, Place, Places};
use millrace_server::tls::{first_message, identity};
use millrace_service::admission::{Activity, PlaceSource};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, yield_now};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::server::TlsStream;
use tracing::debug;

use super::standing::{CERTIFICATE, HANDSHAKE, STRANGER};

/// Time for a TLS handshake, a request and the reading of an answer, each.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// Time within which a client must have sent its first TLS message: it comes with the last packet of the TCP
/// handshake.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

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
    place: Arc<Place>,
}

impl Peer {
    /// The place of its connection.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

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
        let source = PlaceSource::of(std::net::Ipv4Addr::LOCALHOST.into());
        let (place, _) = Places::new(|_, _| {}).enter(STRANGER, source);
        let settings = watch::channel(Arc::new(config)).1;
        Self { identity: identity.map(Arc::from), settings, place: Arc::new(place) }
    }
}

type Ready = (TimedStream<TlsStream<TcpStream>>, Peer);

/// TLS connections that have ended their handshake.
pub(super) struct TlsListener {
    ready: mpsc::Receiver<Ready>,
    address: SocketAddr,
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
pub(super) fn listen(
    listener: TcpListener,
    tls: &ServerTls,
    places: &Places,
) -> io::Result<TlsListener> {
    let address = listener.local_addr()?;
    let (send, ready) = mpsc::channel(1);
    let accepting = accept(listener, tls.0.subscribe(), places.clone(), send);
    Ok(TlsListener { ready, address, accepting: tokio::spawn(accepting).abort_handle() })
}

async fn accept(
    listener: TcpListener,
    settings: watch::Receiver<Arc<ServerConfig>>,
    places: Places,
    ready: mpsc::Sender<Ready>,
) {
    loop {
        let (socket, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (place, displaced) = places.enter(HANDSHAKE, PlaceSource::of(address.ip()));
        let handshake = Handshake { socket, address, place, displaced, settings: settings.clone() };
        let ready = ready.clone();
        tokio::spawn(async move {
            if let Some(accepted) = handshake.finish().await {
                // The manager is stopping if there is no receiver.
                let _ = ready.send(accepted).await;
            }
        });
        // The task reads the client's first message, if it is there, before another connection comes: a crowd of nodes
        // that connects at once is not silent.
        yield_now().await;
    }
}

/// A TLS handshake in progress.
struct Handshake {
    socket: TcpStream,
    address: SocketAddr,
    place: Place,
    displaced: Displaced,
    settings: watch::Receiver<Arc<ServerConfig>>,
}

impl Handshake {
    /// The connection, in the class of strangers or of certificates.
    async fn finish(self) -> Option<Ready> {
        let Self { socket, address, place, mut displaced, mut settings } = self;
        let handshake = async {
            let began = Instant::now();
            let start = timeout(FIRST_MESSAGE_TIMEOUT, first_message(socket)).await??;
            place.mark(Activity::Working);
            let config = Arc::clone(&settings.borrow_and_update());
            timeout_at(began + TIMEOUT, start.into_stream(config)).await?
        };
        let handshake = tokio::select! {
            () = &mut displaced => return None,
            handshake = handshake => handshake,
        };
        let stream = match handshake {
            Ok(stream) => stream,
            Err(error) => {
                debug!(%address, %error, "a TLS handshake failed");
                return None;
            }
        };
        let chain = stream.get_ref().1.peer_certificates();
        let identity = chain.and_then(<[_]>::first).and_then(identity);
        match &identity {
            Some(identity) => place.pass(CERTIFICATE, PlaceSource::Identity(Arc::clone(identity))),
            None => place.pass(STRANGER, PlaceSource::of(address.ip())),
        }
        // No work for it is under way until its first request.
        place.mark(Activity::Waiting);
        let place = Arc::new(place);
        let timeouts = Timeouts { request: TIMEOUT, answer: TIMEOUT };
        let timed = TimedStream::new(stream, timeouts, Arc::clone(&place), displaced);
        Some((timed, Peer { identity, settings, place }))
    }
}

impl Listener for TlsListener {
    type Io = TimedStream<TlsStream<TcpStream>>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(accepted) => accepted,
            // The accepting task ends only with this listener.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        // An address is a peer, and there is none.
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
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
