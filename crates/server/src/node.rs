// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Node`]: listeners and connections in front of a service, and an orderly end.
//!
//! ```text
//!  bind ──► run ─┬─ accept (unix)  ─┐
//!                ├─ accept (TCP)   ─┼─► one task per connection: TLS, identity, caps, serve
//!                ├─ watch the store
//!                ├─ administration
//!                └─ status over HTTP
//!  shutdown ──► stop accepting ──► Drain to every connection ──► wait, bounded ──► close
//! ```

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use millrace_operation::sync::lock;
use millrace_service::admission::{Activity, PlaceClass, PlaceSource};
use millrace_service::log_limit::RateLimit;
use millrace_service::metrics::ConnectionRefusal;
use millrace_service::outbox::Outbox;
use millrace_service::{ConnectionSlot, Service};
use millrace_wire::{Fault, Message, NodeMessage};
use thiserror::Error;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout, timeout_at};
use tracing::{error, info, warn};

use crate::admin;
use crate::config::{AdminConfig, NodeConfig, UnixConfig};
use crate::connection::{ClientStream, PartyShare, Turns, serve};
use crate::handle::NodeHandle;
use crate::http;
use crate::imports::Imports;
use crate::listener::{BoundSocket, Inherited, ListenError, tune, unix_identity};
use crate::on_demand_writable::OnDemandWritable;
use crate::places::{Place, Places};
use crate::tls::{self, Acceptor, TlsError};

/// Interval between checks of the store for changes. With the time to load a key, a change takes effect
/// within a second.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Pause after a failed accept. The usual cause is exhausted file descriptors, and an immediate retry would
/// only use up a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time within which a TCP client must have sent its first TLS message. Clients send it with the last packet of the
/// TCP handshake.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bound on the time that connections have to end after the order to close. Each only has to write what is in its
/// buffer; a client that does not read must not hold up the end of the node.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which a drain checks whether all connections have ended.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// A node whose sockets are open. It serves from [`Self::run`] on.
pub struct Node {
    inner: Arc<NodeInner>,
    unix: Option<BoundSocket>,
    tcp: Option<(TcpListener, Arc<Acceptor>)>,
    metrics: Option<TcpListener>,
    status: Option<BoundSocket>,
    admin: Option<(BoundSocket, AdminConfig)>,
    drain_timeout: Duration,
}

/// The state that tasks and handles share.
pub(crate) struct NodeInner {
    pub(crate) service: Service,
    handle: NodeHandle,
    imports: Imports,
    /// State that the connections of one party share: see [`crate::connection`].
    turns: Mutex<HashMap<Arc<str>, Weak<PartyShare>>>,
    /// Places of TLS handshakes.
    handshakes: Places,
    /// Failed accepts that may be logged.
    accept_complaints: RateLimit,
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A unix socket cannot be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A TCP address cannot be bound.
    #[error("cannot listen on {address} for {what}: {source}; is another node running?")]
    Address {
        /// Address from the configuration.
        address: SocketAddr,
        /// Purpose of the listener.
        what: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
    /// The address for metrics is not on loopback; metrics have no authentication.
    #[error("cannot serve metrics on {0}: it is not a loopback address")]
    NotLoopback(SocketAddr),
    /// A certificate file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Node {
    /// Opens all sockets of a node in front of `service`. Of `config` it uses the sockets and the drain
    /// timeout. Must be called within a Tokio runtime; blocks on disk.
    ///
    /// # Errors
    /// The socket or file that cannot be used, with a text for the operator. No socket stays open.
    pub fn bind(config: NodeConfig, service: Service) -> Result<Self, StartError> {
        Self::bind_inherited(config, service, Inherited::default())
    }

    /// Binds like [`Self::bind`], with clients' sockets that a service manager has opened.
    ///
    /// # Errors
    /// As [`Self::bind`].
    pub fn bind_inherited(
        config: NodeConfig,
        service: Service,
        inherited: Inherited,
    ) -> Result<Self, StartError> {
        let unix = match inherited.unix {
            Some(listener) => Some(BoundSocket::adopt(listener, config.unix.as_ref())?),
            None => config.unix.as_ref().map(BoundSocket::bind).transpose()?,
        };
        let tcp = match &config.tcp {
            Some(tcp) => {
                let acceptor = Arc::new(Acceptor::new(tcp.tls.clone())?);
                service.set_certificate(acceptor.certificate());
                let listener = match inherited.tcp {
                    Some(listener) => adopt_tcp(listener, tcp.address)?,
                    None => listen(tcp.address, "clients")?,
                };
                Some((listener, acceptor))
            }
            None => None,
        };
        let metrics = match config.metrics {
            Some(address) if !address.ip().is_loopback() => {
                return Err(StartError::NotLoopback(address));
            }
            Some(address) => Some(listen(address, "metrics")?),
            None => None,
        };
        let status = config.status_socket.map(UnixConfig::at);
        let status = status.as_ref().map(BoundSocket::bind).transpose()?;
        let admin = match config.admin {
            Some(admin) => {
                let socket = UnixConfig {
                    mode: admin::socket_mode(&admin.uids),
                    ..UnixConfig::at(&admin.socket)
                };
                Some((BoundSocket::bind(&socket)?, admin))
            }
            None => None,
        };
        let inner = Arc::new(NodeInner {
            handle: NodeHandle::new(service.clone(), tcp.as_ref().map(|(_, acceptor)| acceptor)),
            imports: Imports::new(service.clone()),
            turns: Mutex::default(),
            handshakes: http::counted(&service),
            accept_complaints: RateLimit::default(),
            service,
        });
        Ok(Self { inner, unix, tcp, metrics, status, admin, drain_timeout: config.drain_timeout })
    }

    /// The address of the TCP listener, with the actual port if 0 was configured.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// The path of the clients' unix socket.
    #[must_use]
    pub fn unix_path(&self) -> Option<&Path> {
        self.unix.as_ref().map(BoundSocket::path)
    }

    /// The TCP address of the metrics.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// A handle to the node while it runs.
    #[must_use]
    pub fn handle(&self) -> NodeHandle {
        self.inner.handle.clone()
    }

    /// Serves until `shutdown` completes, then drains: accepts no new connections and jobs, waits for jobs in
    /// flight up to the configured time, and closes.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self { inner, unix, tcp, metrics, mut status, mut admin, drain_timeout } = self;
        let name = inner.service.name().to_owned();
        let mut helpers = JoinSet::new();
        helpers.spawn(watch(Arc::clone(&inner)));
        let overviews = http::overviews(inner.service.clone());
        if let Some(listener) = metrics {
            let service = inner.service.clone();
            let overviews = overviews.clone();
            let server = http::serve_tcp(listener, service, overviews);
            helpers.spawn(report("metrics", server));
        }
        if let Some(listener) = status.as_mut().and_then(BoundSocket::take_listener) {
            let service = inner.service.clone();
            let server = http::serve_unix(listener, service, overviews);
            helpers.spawn(report("status", server));
        }
        if let Some((socket, config)) = &mut admin
            && let Some(listener) = socket.take_listener()
        {
            let handle = inner.handle.clone();
            let uids = mem::take(&mut config.uids);
            helpers.spawn(report("admin", admin::serve(listener, uids, handle)));
        }
        let mut accepting = JoinSet::new();
        if let Some(socket) = unix {
            accepting.spawn(accept_unix(socket, Arc::clone(&inner)));
        }
        if let Some((listener, acceptor)) = tcp {
            accepting.spawn(accept_tcp(listener, acceptor, Arc::clone(&inner)));
        }
        info!(node = name, "ready");
        shutdown.await;
        // The listeners close before the node asks its clients to leave, so that they do not reconnect here.
        accepting.shutdown().await;
        inner.service.drain();
        inner.drain(drain_timeout).await;
        helpers.shutdown().await;
        info!(node = name, "stopped");
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("service", &self.inner.service).finish_non_exhaustive()
    }
}

impl NodeInner {
    /// The turns for a connection of this party, one per thread of the runtime. The first call for a party drops the
    /// entries of parties without a connection.
    fn turns_of(&self, party: &Arc<str>) -> Turns {
        let mut turns = lock(&self.turns);
        if let Some(known) = turns.get(party).and_then(Weak::upgrade) {
            return Turns::new(known);
        }
        turns.retain(|_, turns| turns.strong_count() > 0);
        let threads = Handle::current().metrics().num_workers();
        let fresh = Arc::new(PartyShare::new(threads, Instant::now()));
        turns.insert(Arc::clone(party), Arc::downgrade(&fresh));
        Turns::new(fresh)
    }

    /// Waits after a failed accept.
    async fn pause(&self, error: &io::Error) {
        if let Some(suppressed) = self.accept_complaints.pass(Instant::now()) {
            warn!(%error, suppressed, "cannot accept a connection");
        }
        sleep(ACCEPT_PAUSE).await;
    }

    async fn drain(&self, limit: Duration) {
        let service = &self.service;
        info!(connections = service.connections(), "draining");
        if timeout(limit, self.until_empty()).await.is_err() {
            warn!(connections = service.connections(), "drain timed out, closing what is left");
            service.close();
            let _ = timeout(CLOSE_TIMEOUT, self.until_empty()).await;
        }
    }

    /// Polls, because the service counts connections of every front end and does not depend on the runtime.
    async fn until_empty(&self) {
        while self.service.connections() > 0 {
            sleep(DRAIN_POLL).await;
        }
    }
}

async fn accept_unix(socket: BoundSocket, node: Arc<NodeInner>) {
    loop {
        match socket.accept().await {
            Ok(stream) => {
                node.service.metrics().connections_accepted.add(1);
                tokio::spawn(admit_unix(stream, Arc::clone(&node)));
            }
            Err(error) => node.pause(&error).await,
        }
    }
}

async fn accept_tcp(listener: TcpListener, acceptor: Arc<Acceptor>, node: Arc<NodeInner>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                node.service.metrics().connections_accepted.add(1);
                // Checked before TLS: a handshake costs the node more than the client.
                if let Some(slot) = node.service.admit() {
                    let class = PlaceClass::new("handshake", node.service.max_handshakes());
                    let (place, displaced) =
                        node.handshakes.enter(class, PlaceSource::of(address.ip()));
                    let handshake = Handshake { place, slot, node: Arc::clone(&node) };
                    let admitted = admit_tcp(stream, address, Arc::clone(&acceptor), handshake);
                    tokio::spawn(async move {
                        tokio::select! {
                            () = displaced => {}
                            () = admitted => {}
                        }
                    });
                    // The task reads the client's first message, if it is there, before another connection comes: a
                    // crowd that connects at once is not silent.
                    yield_now().await;
                } else {
                    node.service.refuse(ConnectionRefusal::TooMany, &address);
                }
            }
            Err(error) => node.pause(&error).await,
        }
    }
}

/// A TLS handshake in progress.
struct Handshake {
    place: Place,
    slot: ConnectionSlot,
    node: Arc<NodeInner>,
}

async fn admit_unix(stream: UnixStream, node: Arc<NodeInner>) {
    let Some(place) = node.service.admit() else {
        node.service.refuse(ConnectionRefusal::TooMany, &"unix socket");
        return send_fault(stream, Fault::TooManyConnections).await;
    };
    let identity = match unix_identity(&stream) {
        Ok(identity) => identity,
        Err(error) => {
            node.service.refuse(ConnectionRefusal::Identity, &error);
            return send_fault(stream, Fault::Unauthorized).await;
        }
    };
    match OnDemandWritable::new(stream) {
        Ok(stream) => {
            enter_and_serve(stream, identity, place, Arc::default(), &node).await;
        }
        Err(error) => warn!(%error, "cannot serve a connection"),
    }
}

async fn admit_tcp(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: Arc<Acceptor>,
    handshake: Handshake,
) {
    let Handshake { place, slot, node } = handshake;
    // Without these options the node only notices the end of the connection later.
    let _ = tune(&stream);
    let service = &node.service;
    let patience = service.settings().settings.limits.handshake_timeout;
    let began = tokio::time::Instant::now();
    let first = timeout(patience.min(FIRST_MESSAGE_TIMEOUT), tls::first_message(stream));
    let failed =
        |error| service.refuse(ConnectionRefusal::Tls, &format_args!("{address}: {error}"));
    let start = match first.await {
        Ok(Ok(start)) => start,
        Ok(Err(error)) => return failed(error),
        Err(_) => return service.refuse(ConnectionRefusal::TimedOut, &address),
    };
    place.mark(Activity::Working);
    if !tls::offers_our_protocol(&start.client_hello()) {
        service.refuse(ConnectionRefusal::Alpn, &address);
        return send_last(start.io, &tls::NO_PROTOCOL_ALERT).await;
    }
    let in_force = acceptor.current();
    let finish = start.into_stream(Arc::clone(&in_force.config));
    let stream = match timeout_at(began + patience, finish).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return failed(error),
        Err(_) => return service.refuse(ConnectionRefusal::TimedOut, &address),
    };
    drop(place);
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let Some(identity) = chain.first().and_then(tls::identity) else {
        service.refuse(ConnectionRefusal::Identity, &address);
        return send_fault(stream, Fault::Unauthorized).await;
    };
    let outbox = Arc::new(Outbox::default());
    let sink = Arc::clone(&outbox) as _;
    let _watched = acceptor.watch(&in_force, chain, Arc::clone(&identity), sink);
    enter_and_serve(stream, identity, slot, outbox, &node).await;
}

async fn enter_and_serve<S: ClientStream>(
    stream: S,
    identity: Arc<str>,
    place: ConnectionSlot,
    outbox: Arc<Outbox>,
    node: &NodeInner,
) {
    let party = node.service.party(&identity);
    let turns = node.turns_of(&party);
    let imports = node.imports.line(party);
    match place.open(identity, Arc::clone(&outbox) as _) {
        Ok(session) => serve(stream, session, outbox, turns, imports).await,
        Err(ConnectionRefusal::NotAdmitted) => send_fault(stream, Fault::Unauthorized).await,
        Err(_) => send_fault(stream, Fault::TooManyConnections).await,
    }
}

/// Sends the reason to a refused client, within [`CLOSE_TIMEOUT`].
async fn send_fault<S: AsyncWrite + Unpin>(stream: S, fault: Fault) {
    let mut bytes = Vec::new();
    NodeMessage::Fault(fault).encode(&mut bytes);
    send_last(stream, &bytes).await;
}

/// Sends bytes and closes, within [`CLOSE_TIMEOUT`].
async fn send_last<S: AsyncWrite + Unpin>(mut stream: S, bytes: &[u8]) {
    let _ = timeout(CLOSE_TIMEOUT, async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    })
    .await;
}

/// Applies changes of the store at every [`WATCH_INTERVAL`].
async fn watch(node: Arc<NodeInner>) {
    let mut ticks = interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let complaints = RateLimit::default();
    loop {
        ticks.tick().await;
        let service = node.service.clone();
        service.expire_grants(Instant::now(), SystemTime::now());
        match spawn_blocking(move || service.watch_keys(Instant::now())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                if let Some(suppressed) = complaints.pass(Instant::now()) {
                    warn!(%error, suppressed, "cannot reload: the former settings stay in force");
                }
            }
            Err(error) => error!(%error, "a reload panicked"),
        }
    }
}

/// Runs an HTTP server, and logs its end.
async fn report(name: &'static str, server: impl Future<Output = io::Result<()>>) {
    if let Err(error) = server.await {
        error!(%error, name, "an HTTP server of the node ended");
    }
}

fn listen(address: SocketAddr, what: &'static str) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Address { address, what, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    TcpListener::from_std(listener).map_err(failed)
}

/// Uses a TCP socket that the service manager opened, on whatever address.
fn adopt_tcp(
    listener: std::net::TcpListener,
    configured: SocketAddr,
) -> Result<TcpListener, StartError> {
    let address = listener.local_addr().unwrap_or(configured);
    if address != configured {
        warn!(%address, %configured, "the service manager opened the socket: its ListenStream= holds, not [tcp]");
    }
    let opened = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    opened.map_err(|source| StartError::Address { address, what: "clients", source })
}
