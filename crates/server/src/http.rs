// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! `/metrics`, `/healthz`, `/status` and the page over HTTP without authentication, on loopback and on a unix socket.
//! The answers contain names and numbers, no secrets, and no request changes the node: the module `admin` does
//! that. The number of connections is bounded, each request and each answer has a timeout, and the oldest
//! connection that has not sent a whole request gives way to a new one, so that slow clients do not block others.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use millrace_operation::sync::lock;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, Sleep, interval, sleep};

use millrace_service::Service;
use millrace_service::overview::OverviewSampler;

use crate::web;

/// Serves a loopback address until the task is dropped. A browser on this machine can reach it, so a page of
/// a foreign site could read the answers through a name that it resolves to 127.0.0.1 (DNS rebinding). The
/// node therefore refuses requests that name another host, and requests made by any web page but its own.
pub(crate) async fn serve_tcp(
    listener: TcpListener,
    service: Service,
    overviews: Overviews,
) -> io::Result<()> {
    let router = router(&service, overviews).layer(from_fn(refuse_foreign));
    axum::serve(Bounded::of_node(listener, service), router).await
}

/// Serves a unix socket until the task is dropped.
pub(crate) async fn serve_unix(
    listener: UnixListener,
    service: Service,
    overviews: Overviews,
) -> io::Result<()> {
    let router = router(&service, overviews);
    axum::serve(Bounded::of_node(listener, service), router).await
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

async fn events(State(overviews): State<Overviews>) -> Response {
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
    let headers = request.headers();
    if !web::same_origin(headers) {
        return (StatusCode::FORBIDDEN, "not for web pages\n").into_response();
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_loopback) {
        let reason = "name this server localhost, 127.0.0.1 or [::1]\n";
        return (StatusCode::MISDIRECTED_REQUEST, reason).into_response();
    }
    next.run(request).await
}

/// Whether a `Host` header names a loopback address, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = web::host_name(host);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Bound on HTTP connections per listener: enough for a scraper, a health check, a person, and some
/// connections left open.
const MAX_HTTP_CONNECTIONS: usize = 64;

/// A listener with a bound on its connections. It ends connections that exceed their timeouts, and for a new one the
/// oldest that waits for its first request.
pub struct Bounded<L> {
    listener: L,
    permits: Arc<Semaphore>,
    waiting: HttpWait,
    timeouts: Box<dyn Fn() -> Timeouts + Send>,
}

/// Timeouts of a client.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time limit for the whole request, from the time at which the client can send it.
    pub request: Duration,
    /// Time limit for reading the whole answer. A stream of events begins another answer with each event.
    pub answer: Duration,
}

impl<L> Bounded<L> {
    /// Limits `listener` to `connections` at a time, each with the timeouts at the time of its begin.
    pub fn new(
        listener: L,
        connections: usize,
        timeouts: impl Fn() -> Timeouts + Send + 'static,
    ) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(connections)),
            waiting: HttpWait::default(),
            timeouts: Box::new(timeouts),
        }
    }

    /// Limits `listener` to `MAX_HTTP_CONNECTIONS`, with the timeouts of the node's settings.
    pub(crate) fn of_node(listener: L, service: Service) -> Self {
        Self::new(listener, MAX_HTTP_CONNECTIONS, move || {
            let limits = &service.settings().settings.limits;
            Timeouts { request: limits.handshake_timeout, answer: limits.write_timeout }
        })
    }
}

impl<L> fmt::Debug for Bounded<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").finish_non_exhaustive()
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = TimedStream<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, address) = self.listener.accept().await;
        if self.permits.available_permits() == 0 {
            self.waiting.end_oldest();
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let timeouts = (self.timeouts)();
        let (first_request, ended) = self.waiting.enter();
        let timed = TimedStream {
            stream,
            timeouts,
            step: Step::Request,
            timer: Box::pin(sleep(timeouts.request)),
            ended,
            first_request: Some(first_request),
            _permit: permit,
        };
        (timed, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that counts against the bound, and fails when its client exceeds a timeout. The timeouts
/// apply to a whole request and a whole answer, so one byte now and then gains nothing. An answer begins with
/// its first written byte and ends when everything is flushed.
pub struct TimedStream<S> {
    stream: S,
    timeouts: Timeouts,
    step: Step,
    timer: Pin<Box<Sleep>>,
    /// Completes when the connection must end for a new one.
    ended: oneshot::Receiver<()>,
    /// First request of the connection, until its answer begins.
    first_request: Option<FirstRequest>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// The next step of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Sends a request.
    Request,
    /// Reads the answer.
    Answer,
}

/// The connections that wait for their first request, by number: the oldest first.
#[derive(Clone, Default)]
struct HttpWait(Arc<Mutex<WaitingState>>);

#[derive(Default)]
struct WaitingState {
    next: u64,
    connections: BTreeMap<u64, oneshot::Sender<()>>,
}

impl HttpWait {
    fn enter(&self) -> (FirstRequest, oneshot::Receiver<()>) {
        let (end, ended) = oneshot::channel();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.connections.insert(number, end);
        drop(state);
        let first_request = FirstRequest { number, waiting: self.clone() };
        (first_request, ended)
    }

    fn end_oldest(&self) {
        if let Some((_, end)) = self.lock().connections.pop_first() {
            // A receiver that is gone belongs to a connection that has just ended.
            let _ = end.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingState> {
        lock(&self.0)
    }
}

/// A connection's place among those that wait for their first request.
struct FirstRequest {
    number: u64,
    waiting: HttpWait,
}

impl Drop for FirstRequest {
    fn drop(&mut self) {
        self.waiting.lock().connections.remove(&self.number);
    }
}

impl<S> fmt::Debug for TimedStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").finish_non_exhaustive()
    }
}

impl<S> TimedStream<S> {
    /// Starts the timeout of the client's next step.
    fn turn_to(&mut self, step: Step) {
        if self.step != step {
            self.step = step;
            self.first_request = None;
            let time = match step {
                Step::Request => self.timeouts.request,
                Step::Answer => self.timeouts.answer,
            };
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
        let displaced = self.first_request.is_some()
            && matches!(Pin::new(&mut self.ended).poll(context), Poll::Ready(Ok(())));
        if !displaced {
            ready!(self.timer.as_mut().poll(context));
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
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
    use super::is_loopback;

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
