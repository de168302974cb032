// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `/metrics`, `/healthz`, `/status` and the page over HTTP without authentication, on loopback and on a unix socket.
//! The answers contain names and numbers, no secrets, and no request changes the node: the module `admin` does
//! that. The number of connections is bounded, each request and each answer has a timeout, and a newcomer always
//! enters: a connection that waits for its client, or only watches, gives way ([`crate::places`]).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::{IncomingStream, Listener};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, MissedTickBehavior, Sleep, interval, sleep};

use millrace_service::Service;
use millrace_service::admission::{Activity, PlaceClass, PlaceSource};
use millrace_service::metrics::ConnectionRefusal;
use millrace_service::overview::OverviewSampler;

use crate::listener::unix_source;
use crate::places::{Displaced, Place, Places};
use crate::web::{self, Addressed};

/// Serves a loopback address until the task is dropped. A browser on this machine can reach it, so a page of
/// a foreign site could read the answers through a name that it resolves to 127.0.0.1 (DNS rebinding). The
/// node therefore refuses requests that name another host, and requests made by any web page but its own.
pub(crate) async fn serve_tcp(
    listener: TcpListener,
    service: Service,
    overviews: Overviews,
) -> io::Result<()> {
    let router = router(&service, overviews).layer(from_fn(refuse_foreign));
    let router = router.into_make_service_with_connect_info::<Seat>();
    axum::serve(Bounded::new(listener, service, METRICS, tcp_source), router).await
}

/// Serves a unix socket until the task is dropped. No browser reaches it, so it may be addressed by any one name.
pub(crate) async fn serve_unix(
    listener: UnixListener,
    service: Service,
    overviews: Overviews,
) -> io::Result<()> {
    let router = router(&service, overviews).layer(from_fn(refuse_ambiguous));
    let router = router.into_make_service_with_connect_info::<Seat>();
    let source: SourceOf<UnixListener> = |stream, _| unix_source(stream);
    axum::serve(Bounded::new(listener, service, STATUS, source), router).await
}

fn tcp_source(_: &TcpStream, address: &std::net::SocketAddr) -> PlaceSource {
    PlaceSource::of(address.ip())
}

/// The latest overview of the node, as JSON.
pub(crate) type Overviews = watch::Receiver<Arc<str>>;

/// Interval between two overviews: a person sees a change at once, and one takes 100 µs of a core.
const OVERVIEW_INTERVAL: Duration = Duration::from_secs(1);

/// Takes an overview of the node each second. The task ends with the last receiver.
pub(crate) fn overviews(service: Service) -> Overviews {
    let (send, receive) = watch::channel(Arc::from("{}"));
    tokio::spawn(async move {
        let mut sampler = OverviewSampler::new(service);
        let mut ticks = interval(OVERVIEW_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !send.is_closed() {
            ticks.tick().await;
            // The list of keys waits for a reload, which reads the disk.
            let sampled = tokio::task::spawn_blocking(move || {
                let overview = sampler.sample(std::time::Instant::now());
                (sampler, serde_json::to_string(&overview.shortened()))
            });
            let Ok((back, text)) = sampled.await else {
                return;
            };
            sampler = back;
            if let Ok(text) = text {
                send.send_replace(text.into());
            }
        }
    });
    receive
}

fn router(service: &Service, overviews: Overviews) -> Router {
    let of_page = Router::new()
        .route("/v1/state", get(state))
        .route("/v1/events", get(events))
        .with_state(overviews);
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .with_state(service.clone())
        .merge(of_page)
        .merge(web::page())
}

async fn state(State(overviews): State<Overviews>) -> Response {
    let text = overviews.borrow().to_string();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

async fn events(
    State(overviews): State<Overviews>,
    ConnectInfo(seat): ConnectInfo<Seat>,
) -> Response {
    seat.0.mark(Activity::Watching);
    web::event_stream(overviews, std::future::pending())
}

async fn metrics(State(service): State<Service>) -> Response {
    let text = service.render_metrics();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn healthz(State(service): State<Service>) -> Response {
    if service.draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else {
        (StatusCode::OK, "ready\n").into_response()
    }
}

pub(crate) async fn status(State(service): State<Service>) -> Response {
    json(&service.status())
}

pub(crate) fn json(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Refuses requests whose `Host` is not a loopback name, and requests made by other pages than the node's.
async fn refuse_foreign(request: Request, next: Next) -> Response {
    if !web::same_origin(request.headers()) {
        return (StatusCode::FORBIDDEN, "not for web pages\n").into_response();
    }
    let reason = "name this server localhost, 127.0.0.1 or [::1]\n";
    match Addressed::of(&request, is_loopback).refusal(reason) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

/// Refuses requests to a unix socket that name several hosts. Any one name is right.
pub(crate) async fn refuse_ambiguous(request: Request, next: Next) -> Response {
    let reason = "the target and the host header name two servers\n";
    match Addressed::of(&request, |_| true).refusal(reason) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

/// Whether the name in a `Host` header is that of a loopback address.
fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Bound on HTTP connections per listener: enough for a scraper, a health check, a person, and some
/// connections left open.
const MAX_HTTP_CONNECTIONS: usize = 64;

/// Connections for metrics. They all come from loopback, so that the bound of an address is that of all.
const METRICS: PlaceClass =
    PlaceClass { name: "metrics", most: MAX_HTTP_CONNECTIONS, of_source: MAX_HTTP_CONNECTIONS };

/// Connections of the status socket, of each user a quarter.
const STATUS: PlaceClass = PlaceClass::new("status", MAX_HTTP_CONNECTIONS);

/// Connections of the administration socket, of each user a quarter.
pub(crate) const ADMIN: PlaceClass = PlaceClass::new("admin", MAX_HTTP_CONNECTIONS);

/// Places of a node's listener: the metrics of the service count the connections that give way.
pub(crate) fn counted(service: &Service) -> Places {
    let service = service.clone();
    Places::new(move |class, newcomer| {
        let detail = format_args!("{}, for {newcomer}", class.name);
        service.refuse(ConnectionRefusal::Displaced, &detail);
    })
}

/// The source of a connection.
type SourceOf<L> = fn(&<L as Listener>::Io, &<L as Listener>::Addr) -> PlaceSource;

/// A listener of a node with a bound on its connections. It ends connections that exceed their timeouts, and for a new
/// one the one that gives way.
pub(crate) struct Bounded<L: Listener> {
    listener: L,
    places: Places,
    service: Service,
    class: PlaceClass,
    source: SourceOf<L>,
}

/// Timeouts of a client.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time limit for the whole request, from the time at which the client can send it.
    pub request: Duration,
    /// Time limit for reading the whole answer. A stream of events begins another answer with each event.
    pub answer: Duration,
}

impl<L: Listener> Bounded<L> {
    /// Bounds `listener`, with the timeouts of the node's settings.
    pub(crate) fn new(
        listener: L,
        service: Service,
        class: PlaceClass,
        source: SourceOf<L>,
    ) -> Self {
        Self { listener, places: counted(&service), service, class, source }
    }
}

impl<L: Listener> fmt::Debug for Bounded<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").field("class", &self.class).finish_non_exhaustive()
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = TimedStream<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The task of the last connection reads the request, if it is there, before another connection comes: who asks
        // at once is not silent.
        yield_now().await;
        let (stream, address) = self.listener.accept().await;
        let source = (self.source)(&stream, &address);
        let (place, displaced) = self.places.enter(self.class, source);
        let limits = &self.service.settings().settings.limits;
        let timeouts = Timeouts { request: limits.handshake_timeout, answer: limits.write_timeout };
        (TimedStream::new(stream, timeouts, Arc::new(place), displaced), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// The place of the connection of a request.
#[derive(Clone, Debug)]
struct Seat(Arc<Place>);

impl<L: Listener> Connected<IncomingStream<'_, Bounded<L>>> for Seat {
    fn connect_info(stream: IncomingStream<'_, Bounded<L>>) -> Self {
        Self(Arc::clone(stream.io().place()))
    }
}

/// A connection with a place, that fails when its client exceeds a timeout or another one takes the place. The timeouts
/// apply to a whole request and a whole answer, so one byte now and then gains nothing. An answer begins with
/// its first written byte and ends when everything is flushed.
pub struct TimedStream<S> {
    stream: S,
    timeouts: Timeouts,
    step: Step,
    /// Whether the client has sent nothing yet.
    silent: bool,
    timer: Pin<Box<Sleep>>,
    place: Arc<Place>,
    displaced: Displaced,
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Sends a request.
    Request,
    /// Reads the answer.
    Answer,
}

impl<S> fmt::Debug for TimedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").finish_non_exhaustive()
    }
}

impl<S> TimedStream<S> {
    /// A stream with its place, and the future that completes when it must end for another one.
    pub fn new(stream: S, timeouts: Timeouts, place: Arc<Place>, displaced: Displaced) -> Self {
        let timer = Box::pin(sleep(timeouts.request));
        Self { stream, timeouts, step: Step::Request, silent: true, timer, place, displaced }
    }

    /// Its place.
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// Starts the timeout of the client's next step.
    fn turn_to(&mut self, step: Step) {
        if self.step != step {
            self.step = step;
            let (time, activity) = match step {
                Step::Request => (self.timeouts.request, Activity::Waiting),
                Step::Answer => (self.timeouts.answer, Activity::Working),
            };
            self.place.mark(activity);
            self.timer.as_mut().reset(Instant::now() + time);
        }
    }

    /// Polls for the client until the timeout expires.
    fn or_timeout<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            return outcome;
        }
        let displaced = Pin::new(&mut self.displaced).poll(context).is_ready();
        if displaced || self.timer.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.silent && read.is_ready() {
            self.silent = false;
            self.place.mark(Activity::Waiting);
        }
        self.or_timeout(read, context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.turn_to(Step::Answer);
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_timeout(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.turn_to(Step::Request);
        }
        self.or_timeout(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.or_timeout(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use super::is_loopback as is_loopback_name;
    use crate::web::host_name;

    fn is_loopback(host: &str) -> bool {
        is_loopback_name(host_name(host))
    }

    #[test]
    fn host_header_passes_only_if_it_names_loopback() {
        for host in
            ["localhost", "LocalHost:9464", "127.0.0.1:1", "127.9.9.9", "[::1]:9464", "[::1]"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["evil.example", "127.0.0.1.evil.example:9464", "10.0.0.1", "", "localhost.evil"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
