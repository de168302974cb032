// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! [`Node`]: listeners, connections, reloads, and an orderly end.
//!
//! ```text
//!  bind ──► run ─┬─ accept (unix)  ─┐
//!                ├─ accept (TCP)   ─┼─► one task per connection: TLS, identity, caps, serve
//!                ├─ watch the store │
//!                ├─ SIGHUP: reload  │
//!                └─ status over HTTP
//!  shutdown ──► stop accepting ──► Drain to every connection ──► wait, bounded ──► close
//! ```

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_engine::Engine;
use millrace_wire::{Fault, Message, NodeMessage};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{error, info, warn};

use crate::config::{Limits, MAX_CONNECTIONS, NodeConfig, UnixConfig};
use crate::connection::{Shared, Turns, serve};
use crate::http;
use crate::listener::{BoundSocket, ListenError, tune, unix_identity};
use crate::on_demand_writable::OnDemandWritable;
use crate::tls::{self, Acceptor, TlsError};
use millrace_service::Status;
use millrace_service::client_reports::ClientReports;
use millrace_service::keys::{Keyring, Reloaded};
use millrace_service::log_limit::RateLimit;
use millrace_service::metrics::{Metrics, Refusal};
use millrace_service::outbox::{Order, Outbox};
use millrace_service::quota::Quotas;
use millrace_service::session::Rules;
use millrace_service::store::{KeyStore, StoreError};

/// How often the store is looked at for changes. With the time to load a key, a change takes effect
/// within a second.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Pause after a failed accept: the usual reason is that there are no file descriptors left, and
/// trying at once again would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time that connections get to end once they were told to, after a drain.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Key checks of clients that run at once. Each takes a core for milliseconds; with two, imports go
/// on beside a slow one, and jobs keep most of any machine.
const CONCURRENT_IMPORTS: usize = 2;

/// A node that listens, but does not serve yet.
pub struct Node {
    inner: Arc<Inner>,
    unix: Option<BoundSocket>,
    tcp: Option<(TcpListener, Arc<Acceptor>)>,
    metrics: Option<TcpListener>,
    status: Option<BoundSocket>,
    drain_timeout: Duration,
}

/// What outlives [`Node::run`]'s tasks.
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) started: Instant,
    draining: AtomicBool,
    slots: Arc<Semaphore>,
    /// For those of them that are in a TLS handshake.
    handshakes: Arc<Semaphore>,
    open: Mutex<Open>,
    acceptor: Option<Arc<Acceptor>>,
}

/// The connections that are open, by number, and how many each identity has.
#[derive(Default)]
struct Open {
    next: u64,
    outboxes: HashMap<u64, Arc<Outbox>>,
    of_identity: HashMap<Arc<str>, OfIdentity>,
}

/// What the connections of one identity share.
struct OfIdentity {
    connections: usize,
    /// One permit for each thread of the runtime: see [`crate::connection`].
    turns: Arc<Semaphore>,
}

impl OfIdentity {
    fn new() -> Self {
        let threads = Handle::current().metrics().num_workers();
        Self {
            connections: 0,
            turns: Arc::new(Semaphore::new(threads)),
        }
    }
}

/// Why a node does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A unix socket is not to be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A TCP address is not to be had.
    #[error("cannot listen on {address} for {what}: {source}; is another node running?")]
    Address {
        /// The address.
        address: SocketAddr,
        /// For what.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// Metrics have no authentication.
    #[error("cannot serve metrics on {0}: it is not a loopback address")]
    NotLoopback(SocketAddr),
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Node {
    /// Opens all sockets and loads the keys. Must be called within a Tokio runtime; blocks on disk.
    ///
    /// # Errors
    /// What is not to be had, in words for the person who started it. Then nothing listens.
    pub fn bind(config: NodeConfig, engine: Engine, store: KeyStore) -> Result<Self, StartError> {
        let unix = config.unix.as_ref().map(BoundSocket::bind).transpose()?;
        let tcp = match &config.tcp {
            Some(tcp) => {
                let acceptor = Arc::new(Acceptor::new(tcp.tls.clone())?);
                Some((listen(tcp.address, "clients")?, acceptor))
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
        let status = config.status_socket.clone().map(UnixConfig::at);
        let status = status.as_ref().map(BoundSocket::bind).transpose()?;
        let limits = config.limits;
        let inner = Arc::new(Inner {
            slots: Arc::new(Semaphore::new(limits.connections.min(MAX_CONNECTIONS))),
            handshakes: Arc::new(Semaphore::new(handshakes(&limits))),
            acceptor: tcp.as_ref().map(|(_, acceptor)| Arc::clone(acceptor)),
            shared: Arc::new(Shared {
                keyring: Keyring::new(Arc::new(store), engine.clone()),
                engine,
                rules: Arc::new(Rules {
                    node: config.name,
                    allow_import: config.allow_import,
                    max_in_flight: limits.in_flight,
                    max_keys: limits.keys,
                    max_budget: limits.max_budget,
                }),
                quotas: Quotas::new(limits.quota),
                limits,
                metrics: Metrics::default(),
                reports: ClientReports::default(),
                imports: Arc::new(Semaphore::new(CONCURRENT_IMPORTS)),
                denials: RateLimit::default(),
                faults: RateLimit::default(),
                refusals: RateLimit::default(),
            }),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            open: Mutex::default(),
        });
        inner.reload_keys()?;
        Ok(Self {
            inner,
            unix,
            tcp,
            metrics,
            status,
            drain_timeout: config.drain_timeout,
        })
    }

    /// Where TCP clients connect, with the port that was chosen for 0.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
            .as_ref()
            .and_then(|(listener, _)| listener.local_addr().ok())
    }

    /// Where metrics are served over TCP.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// A handle to the node while it runs.
    #[must_use]
    pub fn handle(&self) -> NodeHandle {
        NodeHandle {
            inner: Arc::clone(&self.inner),
        }
    }

    /// Serves until `shutdown` is done, then drains: takes no new connections and jobs, lets jobs in
    /// flight end within the configured time, and closes. SIGHUP reloads keys and certificates.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self {
            inner,
            unix,
            tcp,
            metrics,
            mut status,
            drain_timeout,
        } = self;
        let mut helpers = JoinSet::new();
        // Before anybody can know that the node runs: without a handler, SIGHUP would end it.
        match signal(SignalKind::hangup()) {
            Ok(hangup) => drop(helpers.spawn(watch(Arc::clone(&inner), hangup))),
            Err(error) => error!(%error, "cannot receive SIGHUP: the key store is not watched"),
        }
        if let Some(listener) = metrics {
            helpers.spawn(report(http::serve(listener, Arc::clone(&inner))));
        }
        if let Some(listener) = status.as_mut().and_then(BoundSocket::take_listener) {
            helpers.spawn(report(http::serve(listener, Arc::clone(&inner))));
        }
        let mut accepting = JoinSet::new();
        if let Some(socket) = unix {
            accepting.spawn(accept_unix(socket, Arc::clone(&inner)));
        }
        if let Some((listener, acceptor)) = tcp {
            accepting.spawn(accept_tcp(listener, acceptor, Arc::clone(&inner)));
        }
        info!(node = inner.shared.rules.node, "ready");
        shutdown.await;
        inner.draining.store(true, Ordering::Release);
        accepting.shutdown().await;
        inner.drain(drain_timeout).await;
        helpers.shutdown().await;
        info!(node = inner.shared.rules.node, "stopped");
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.inner.shared.rules.node)
            .finish_non_exhaustive()
    }
}

/// Looks into a running node and makes it reload. Cheap to clone.
#[derive(Clone)]
pub struct NodeHandle {
    inner: Arc<Inner>,
}

impl NodeHandle {
    /// The node as it is now: what `/status` answers.
    #[must_use]
    pub fn status(&self) -> Status {
        self.inner.status()
    }

    /// Reads keys, policies and certificates again, as SIGHUP does. Blocks on disk and key checks.
    ///
    /// # Errors
    /// The first thing that could not be read; what was in force before stays so.
    pub fn reload(&self) -> Result<Reloaded, StartError> {
        self.inner.reload()
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeHandle")
    }
}

impl Inner {
    pub(crate) fn status(&self) -> Status {
        let shared = &self.shared;
        Status::of(
            &shared.rules.node,
            &shared.engine,
            &shared.metrics,
            &shared.reports,
            self.draining(),
            self.started.elapsed(),
        )
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    fn reload(&self) -> Result<Reloaded, StartError> {
        let keys = self.reload_keys();
        if let Some(acceptor) = &self.acceptor {
            match acceptor.reload() {
                Ok(()) => self.shared.metrics.reloads.add(1),
                Err(error) => {
                    self.shared.metrics.reloads_failed.add(1);
                    return Err(error.into());
                }
            }
        }
        Ok(keys?)
    }

    fn reload_keys(&self) -> Result<Reloaded, StoreError> {
        let metrics = &self.shared.metrics;
        let reloaded = self.shared.keyring.reload().inspect_err(|_| {
            metrics.reloads_failed.add(1);
        })?;
        if reloaded.changed + reloaded.removed > 0 {
            metrics.reloads.add(1);
        }
        metrics.keys_loaded.set(self.shared.keyring.current().len());
        metrics.keys_broken.set(reloaded.broken);
        Ok(reloaded)
    }

    fn refuse(&self, reason: Refusal, detail: &dyn fmt::Display) {
        self.shared.metrics.connections_refused.add(reason, 1);
        if let Some(suppressed) = self.shared.refusals.pass(Instant::now()) {
            warn!(?reason, %detail, suppressed, "connection refused");
        }
    }

    /// Enters a connection of an authenticated client, if its identity may have another one.
    fn enter(self: &Arc<Self>, identity: &Arc<str>) -> Option<Entered> {
        let mut open = self.open();
        let connections = open.outboxes.len();
        let held = open
            .of_identity
            .get(identity)
            .map_or(0, |known| known.connections);
        if !has_room(&self.shared.limits, held, connections) {
            return None;
        }
        let of_identity = open
            .of_identity
            .entry(Arc::clone(identity))
            .or_insert_with(OfIdentity::new);
        of_identity.connections += 1;
        let turns = Arc::clone(&of_identity.turns);
        let number = open.next;
        open.next += 1;
        let outbox = Arc::new(Outbox::default());
        open.outboxes.insert(number, Arc::clone(&outbox));
        self.shared
            .metrics
            .connections_open
            .set(open.outboxes.len());
        // Looked at under the lock under which the order to drain goes to those in the list.
        if self.draining() {
            outbox.order(Order::Drain);
        }
        Some(Entered {
            node: Arc::clone(self),
            number,
            identity: Arc::clone(identity),
            outbox,
            turns,
        })
    }

    async fn drain(&self, limit: Duration) {
        self.order(Order::Drain);
        info!(connections = self.connections(), "draining");
        if timeout(limit, self.until_empty()).await.is_err() {
            warn!(
                connections = self.connections(),
                "drain timed out, closing what is left"
            );
            self.order(Order::Close);
            let _ = timeout(CLOSE_TIMEOUT, self.until_empty()).await;
        }
    }

    fn order(&self, order: Order) {
        for outbox in self.open().outboxes.values() {
            outbox.order(order);
        }
    }

    /// Every connection holds a slot until it has ended.
    async fn until_empty(&self) {
        let slots = self.shared.limits.connections.min(MAX_CONNECTIONS);
        let all = u32::try_from(slots).unwrap_or(u32::MAX);
        let _ = self.slots.acquire_many(all).await;
    }

    fn connections(&self) -> usize {
        self.open().outboxes.len()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in the list of those that are open; leaves it when dropped.
struct Entered {
    node: Arc<Inner>,
    number: u64,
    identity: Arc<str>,
    outbox: Arc<Outbox>,
    turns: Arc<Semaphore>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.node.open();
        open.outboxes.remove(&self.number);
        if let Some(of_identity) = open.of_identity.get_mut(&self.identity) {
            of_identity.connections -= 1;
            if of_identity.connections == 0 {
                open.of_identity.remove(&self.identity);
            }
        }
        self.node
            .shared
            .metrics
            .connections_open
            .set(open.outboxes.len());
    }
}

async fn accept_unix(socket: BoundSocket, node: Arc<Inner>) {
    loop {
        match socket.accept().await {
            Ok(stream) => {
                node.shared.metrics.connections_accepted.add(1);
                tokio::spawn(admit_unix(stream, Arc::clone(&node)));
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn accept_tcp(listener: TcpListener, acceptor: Arc<Acceptor>, node: Arc<Inner>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                node.shared.metrics.connections_accepted.add(1);
                // Before TLS: a handshake costs us more than it costs the client.
                let slot = Arc::clone(&node.slots).try_acquire_owned();
                let handshake = Arc::clone(&node.handshakes).try_acquire_owned();
                if let (Ok(slot), Ok(handshake)) = (slot, handshake) {
                    let (acceptor, node) = (Arc::clone(&acceptor), Arc::clone(&node));
                    let permits = (slot, handshake);
                    tokio::spawn(admit_tcp(stream, address, acceptor, permits, node));
                } else {
                    node.refuse(Refusal::TooMany, &address);
                }
            }
            Err(error) => pause(&error).await,
        }
    }
}

/// Connections that may be in a TLS handshake at once: a quarter. Whoever reaches the port can open
/// them and say nothing, and must not keep out those who come by the unix socket.
fn handshakes(limits: &Limits) -> usize {
    (limits.connections.min(MAX_CONNECTIONS) / 4).max(1)
}

/// Whether an identity that holds `held` of `open` connections may have another one. Its own bound
/// aside, nobody gets more who has more than are left: then however many fill the node together, each
/// leaves about as much as it has, and a newcomer finds room.
///
/// Those that are still in a handshake count as left: who they are is not known yet.
fn has_room(limits: &Limits, held: usize, open: usize) -> bool {
    let left = limits.connections.min(MAX_CONNECTIONS).saturating_sub(open);
    held < limits.connections_per_identity && held <= left
}

async fn pause(error: &io::Error) {
    warn!(%error, "cannot accept a connection");
    sleep(ACCEPT_PAUSE).await;
}

async fn admit_unix(stream: UnixStream, node: Arc<Inner>) {
    let Ok(slot) = Arc::clone(&node.slots).try_acquire_owned() else {
        node.refuse(Refusal::TooMany, &"unix socket");
        return tell(stream, Fault::TooManyConnections).await;
    };
    let Some(identity) = unix_identity(&stream) else {
        node.refuse(Refusal::Identity, &"no peer credentials");
        return tell(stream, Fault::Unauthorized).await;
    };
    match OnDemandWritable::new(stream) {
        Ok(stream) => enter_and_serve(stream, identity, slot, node).await,
        Err(error) => warn!(%error, "cannot serve a connection"),
    }
}

async fn admit_tcp(
    stream: TcpStream,
    address: SocketAddr,
    acceptor: Arc<Acceptor>,
    (slot, handshaking): (OwnedSemaphorePermit, OwnedSemaphorePermit),
    node: Arc<Inner>,
) {
    // Without these options a connection is slower to notice its end, and no worse.
    let _ = tune(&stream);
    let handshake = acceptor.current().accept(stream);
    let stream = match timeout(node.shared.limits.handshake_timeout, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return node.refuse(Refusal::Tls, &format_args!("{address}: {error}")),
        Err(_) => return node.refuse(Refusal::TimedOut, &address),
    };
    drop(handshaking);
    let (_, connection) = stream.get_ref();
    if connection.alpn_protocol() != Some(millrace_wire::ALPN) {
        return node.refuse(Refusal::Alpn, &address);
    }
    let certificate = connection
        .peer_certificates()
        .and_then(|chain| chain.first());
    let Some(identity) = certificate.and_then(tls::identity) else {
        node.refuse(Refusal::Identity, &address);
        return tell(stream, Fault::Unauthorized).await;
    };
    enter_and_serve(stream, identity, slot, node).await;
}

/// `slot` counts among all connections until this returns.
async fn enter_and_serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    identity: Arc<str>,
    slot: OwnedSemaphorePermit,
    node: Arc<Inner>,
) {
    let Some(entered) = node.enter(&identity) else {
        node.refuse(Refusal::TooManyOfIdentity, &identity);
        return tell(stream, Fault::TooManyConnections).await;
    };
    let outbox = Arc::clone(&entered.outbox);
    let turns = Turns::new(Arc::clone(&entered.turns));
    serve(stream, identity, outbox, turns, Arc::clone(&node.shared)).await;
    drop(entered);
    drop(slot);
}

/// Says why, to a client that will not be served, as far as it takes it at once.
async fn tell<S: AsyncWrite + Unpin>(mut stream: S, fault: Fault) {
    let mut bytes = Vec::new();
    NodeMessage::Fault(fault).encode(&mut bytes);
    let _ = timeout(CLOSE_TIMEOUT, async {
        stream.write_all(&bytes).await?;
        stream.shutdown().await
    })
    .await;
}

/// Applies changes in the store, and everything on SIGHUP.
async fn watch(node: Arc<Inner>, mut hangup: Signal) {
    let mut ticks = interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let complaints = RateLimit::default();
    loop {
        let everything = tokio::select! {
            _ = ticks.tick() => false,
            _ = hangup.recv() => true,
        };
        let inner = Arc::clone(&node);
        let reloaded = spawn_blocking(move || {
            if everything {
                inner.reload()
            } else {
                inner.reload_keys().map_err(Into::into)
            }
        })
        .await;
        match reloaded {
            Ok(Ok(reloaded)) if everything => info!(?reloaded, "reloaded"),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                if let Some(suppressed) = complaints.pass(Instant::now()) {
                    warn!(%error, suppressed, "cannot reload, what was in force stays so");
                }
            }
            Err(error) => error!(%error, "a reload panicked"),
        }
    }
}

async fn report(server: impl Future<Output = io::Result<()>>) {
    if let Err(error) = server.await {
        error!(%error, "the status server ended");
    }
}

fn listen(address: SocketAddr, what: &'static str) -> Result<TcpListener, StartError> {
    let failed = |source| StartError::Address {
        address,
        what,
        source,
    };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    TcpListener::from_std(listener).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of `identities` holds after all have asked in turn for more than there is.
    fn shares(limits: &Limits, identities: usize) -> Vec<usize> {
        let mut held = vec![0; identities];
        for _ in 0..=limits.connections {
            for one in 0..identities {
                let open = held.iter().sum();
                if has_room(limits, held[one], open) {
                    held[one] += 1;
                }
            }
        }
        held
    }

    #[test]
    fn whoever_is_alone_gets_what_was_configured_for_one() {
        let limits = Limits::default();
        assert_eq!(shares(&limits, 1), [limits.connections_per_identity]);
        assert_eq!(
            shares(&limits, 3),
            [limits.connections_per_identity; 3],
            "three leave a quarter"
        );
    }

    #[test]
    fn several_identities_leave_room_for_another_one() {
        let limits = Limits::default();
        for identities in [4, 10, 100] {
            let held = shares(&limits, identities);
            let (least, most) = (held.iter().min().unwrap(), held.iter().max().unwrap());
            let left = limits.connections - held.iter().sum::<usize>();
            let share = limits.connections / (identities + 1);
            assert!(most - least <= 1, "{held:?}");
            assert!(
                least.abs_diff(share) <= 1 && left + 2 >= *most,
                "{left}: {held:?}"
            );
            assert!(has_room(&limits, 0, limits.connections - left));
        }
    }

    #[test]
    fn the_edge_is_where_one_has_more_than_are_left() {
        let mut limits = Limits {
            connections: 8,
            connections_per_identity: 8,
            ..Limits::default()
        };
        assert!(has_room(&limits, 4, 4));
        assert!(!has_room(&limits, 5, 5));
        assert!(has_room(&limits, 0, 7) && has_room(&limits, 1, 7));
        assert!(!has_room(&limits, 2, 7));
        limits.connections_per_identity = 2;
        assert!(has_room(&limits, 1, 1) && !has_room(&limits, 2, 2));
        limits.connections = 1;
        assert!(has_room(&limits, 0, 0), "the only one");
    }
}
