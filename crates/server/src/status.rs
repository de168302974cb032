// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What a node tells operators: `/metrics`, `/healthz` and `/status`, over HTTP without
//! authentication, on loopback and on a unix socket. Names and numbers only; nothing here is secret,
//! and nothing here changes anything. Connections are few, and each request and each answer has its
//! time, so that nobody can keep others from looking.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::Limits;
use crate::metrics::{self, Moment};
use crate::node::Inner;

/// What `/status` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Status {
    /// Name of the node.
    pub node: String,
    /// Version of Millrace.
    pub version: String,
    /// `ready` or `draining`.
    pub state: String,
    /// Seconds since the start.
    pub uptime_seconds: u64,
    /// Connections open now.
    pub connections: u64,
    /// Connections refused before they became sessions.
    pub connections_refused: u64,
    /// Connections closed for a fault of the client.
    pub faults: u64,
    /// Keys of the store that are loaded.
    pub keys: u64,
    /// Files of the store that cannot be used.
    pub keys_broken: u64,
    /// Jobs submitted and not yet completed.
    pub in_flight: usize,
    /// Jobs waiting, by class.
    pub waiting: Vec<Waiting>,
    /// Backends in order of preference.
    pub backends: Vec<Backend>,
    /// What was served, by backend and operation.
    pub operations: Vec<Operation>,
    /// Which of several backends serves what, by measured cost.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// Jobs that ended without a result, by reason, those that the node refused included.
    pub errors: Vec<Errors>,
    /// The clients that report about themselves and are connected, the busiest first.
    #[serde(default)]
    pub edges: Vec<Edge>,
    /// What all clients have reported since the node was started.
    #[serde(default)]
    pub edge_totals: EdgeCounts,
}

/// A client that reports about itself: all its connections together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Edge {
    /// Its identity.
    pub identity: String,
    /// What software it says it is.
    pub agent: String,
    /// Its connections that have reported and are open.
    pub connections: u64,
    /// What it reported since the first of them was opened.
    #[serde(flatten)]
    pub counts: EdgeCounts,
}

/// What edges have counted, as far as this node was told; an edge with several nodes tells each thing
/// to one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EdgeCounts {
    /// Operations that the pool did.
    pub pooled: u64,
    /// Jobs whose answer the application awaited without holding its thread.
    pub paused: u64,
    /// Jobs whose answer a thread of the application waited for.
    pub blocking: u64,
    /// Jobs that were sent to a second node, which answered first.
    pub hedges_won: u64,
    /// Jobs that were sent to a second node in vain.
    pub hedges_lost: u64,
    /// Operations that ended as an error of the application.
    pub failed: u64,
    /// Operations that nobody waited for any more.
    pub abandoned: u64,
    /// Jobs that the application took back.
    pub cancelled: u64,
    /// Results that did not verify.
    pub wrong_results: u64,
    /// Operations that the edge did itself, by reason.
    pub fallbacks: Vec<Errors>,
}

impl EdgeCounts {
    /// Jobs given to the pool.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.paused.saturating_add(self.blocking)
    }

    /// Operations that the edge did itself.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        self.fallbacks
            .iter()
            .fold(0, |sum: u64, reason| sum.saturating_add(reason.jobs))
    }
}

/// Jobs waiting in a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Waiting {
    /// The class.
    pub class: String,
    /// How many.
    pub jobs: usize,
}

/// A backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Backend {
    /// Its name.
    pub backend: String,
    /// Library or device with its version.
    pub version: String,
    /// Why it cannot be used here, if it cannot.
    pub unusable: Option<String>,
    /// Whether it computed something wrong lately and is passed over.
    pub quarantined: bool,
}

/// What was served of one operation by one backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Operation {
    /// The backend.
    pub backend: String,
    /// The operation.
    pub operation: String,
    /// Jobs that ended with a result.
    pub completed: u64,
    /// Tasks that the backend did not answer with a result.
    pub failed: u64,
    /// Median and 99th percentile of the time before service, in microseconds.
    pub queue_p50_us: f64,
    /// See above.
    pub queue_p99_us: f64,
    /// Median and 99th percentile of the time of service, in microseconds.
    pub service_p50_us: f64,
    /// See above.
    pub service_p99_us: f64,
}

/// Which of several backends serves jobs of one kind that wait together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Choice {
    /// The jobs: `rsa-2048` (any private operation), `p-256 sign`, ….
    pub jobs: String,
    /// How many of them wait together, at most; none: any more than in the rows before.
    pub together: Option<usize>,
    /// The backend that serves them.
    pub serving: String,
    /// How often that changed.
    pub switches: u64,
    /// What a job costs, by backend.
    pub costs: Vec<Cost>,
}

/// What a job costs on a backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cost {
    /// The backend.
    pub backend: String,
    /// Time that it works on one job, in microseconds, the median about.
    pub us: f64,
}

/// Jobs that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Errors {
    /// The reason.
    pub reason: String,
    /// How many.
    pub jobs: u64,
}

impl Status {
    /// The node as it is now.
    pub(crate) fn of(node: &Inner) -> Self {
        let engine = node.shared.engine.stats();
        let metrics = &node.shared.metrics;
        let refused = metrics.jobs_refused.values();
        Self {
            node: node.shared.rules.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: if node.draining() { "draining" } else { "ready" }.to_owned(),
            uptime_seconds: node.started.elapsed().as_secs(),
            connections: metrics.connections_open.value(),
            connections_refused: metrics.connections_refused.sum(),
            faults: metrics.faults.sum(),
            keys: metrics.keys_loaded.value(),
            keys_broken: metrics.keys_broken.value(),
            in_flight: engine.in_flight,
            waiting: engine
                .waiting
                .iter()
                .map(|(class, jobs)| Waiting {
                    class: class.name().to_owned(),
                    jobs: *jobs,
                })
                .collect(),
            backends: node
                .shared
                .engine
                .backends()
                .into_iter()
                .map(Backend::of)
                .collect(),
            operations: engine.series.iter().map(Operation::of).collect(),
            choices: node
                .shared
                .engine
                .choices()
                .into_iter()
                .map(Choice::of)
                .collect(),
            errors: engine
                .errors
                .iter()
                .zip(refused)
                .map(|((error, jobs), refused)| Errors {
                    reason: error.name().to_owned(),
                    jobs: jobs + refused,
                })
                .filter(|errors| errors.jobs > 0)
                .collect(),
            edges: node.shared.edges.rows(),
            edge_totals: node.shared.edges.totals(),
        }
    }
}

impl Backend {
    fn of(status: millrace_engine::engine::BackendStatus) -> Self {
        Self {
            backend: status.description.kind.name().to_owned(),
            version: status.description.version,
            unusable: status.unusable,
            quarantined: status.quarantined,
        }
    }
}

impl Choice {
    fn of(choice: millrace_engine::engine::Choice) -> Self {
        let cost = |(kind, time): (millrace_engine::BackendKind, Duration)| Cost {
            backend: kind.name().to_owned(),
            us: time.as_secs_f64() * 1e6,
        };
        Self {
            jobs: choice.jobs,
            together: choice.together,
            serving: choice.serving.name().to_owned(),
            switches: choice.switches,
            costs: choice.costs.into_iter().map(cost).collect(),
        }
    }
}

impl Operation {
    fn of(series: &millrace_engine::stats::SeriesSnapshot) -> Self {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Self {
            backend: series.backend.name().to_owned(),
            operation: series.operation.name().to_owned(),
            completed: series.completed,
            failed: series.failed,
            queue_p50_us: us(series.queue_time.quantile(0.5)),
            queue_p99_us: us(series.queue_time.quantile(0.99)),
            service_p50_us: us(series.service_time.quantile(0.5)),
            service_p99_us: us(series.service_time.quantile(0.99)),
        }
    }
}

/// Answers HTTP on `listener` until the task is dropped.
pub(crate) async fn serve<L: Listener>(listener: L, node: Arc<Inner>) -> io::Result<()>
where
    L::Addr: std::fmt::Debug,
{
    let listener = Bounded::new(listener, &node.shared.limits);
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/status", get(status))
        .with_state(node);
    axum::serve(listener, router).await
}

async fn metrics(State(node): State<Arc<Inner>>) -> Response {
    let moment = Moment {
        engine: &node.shared.engine.stats(),
        backends: &node.shared.engine.backends(),
        draining: node.draining(),
        uptime: node.started.elapsed(),
    };
    let text = metrics::render(&node.shared.metrics, &moment);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn healthz(State(node): State<Arc<Inner>>) -> Response {
    if node.draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response()
    } else {
        (StatusCode::OK, "ready\n").into_response()
    }
}

async fn status(State(node): State<Arc<Inner>>) -> Response {
    match serde_json::to_string(&Status::of(&node)) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Bound on HTTP connections per listener: a scraper, a health check, a person, and some that were
/// forgotten open.
const MAX_HTTP_CONNECTIONS: usize = 64;

/// A listener that accepts the next connection when one of its [`MAX_HTTP_CONNECTIONS`] ended, and
/// ends those that take too long.
struct Bounded<L> {
    listener: L,
    permits: Arc<Semaphore>,
    patience: Patience,
}

/// How long a client may take.
#[derive(Clone, Copy)]
struct Patience {
    /// For its request, from the moment at which it can send one.
    request: Duration,
    /// To take the answer.
    answer: Duration,
}

impl<L> Bounded<L> {
    fn new(listener: L, limits: &Limits) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(MAX_HTTP_CONNECTIONS)),
            patience: Patience {
                request: limits.handshake_timeout,
                answer: limits.write_timeout,
            },
        }
    }
}

impl<L: Listener> Listener for Bounded<L> {
    type Io = Timed<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (stream, address) = self.listener.accept().await;
        (Timed::new(stream, self.patience, permit), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection that counts, and fails when its client has taken too long: for a whole request or a
/// whole answer, so that one byte now and then gains nothing. An answer begins with the first byte
/// that is written, and ends when everything is flushed.
struct Timed<S> {
    stream: S,
    patience: Patience,
    answering: bool,
    timer: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<S> Timed<S> {
    fn new(stream: S, patience: Patience, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            stream,
            patience,
            answering: false,
            timer: Box::pin(sleep(patience.request)),
            _permit: permit,
        }
    }

    /// Says what the client has to do next, and from when on.
    fn turn(&mut self, answering: bool) {
        if self.answering != answering {
            self.answering = answering;
            let time = if answering {
                self.patience.answer
            } else {
                self.patience.request
            };
            self.timer.as_mut().reset(Instant::now() + time);
        }
    }

    /// Waits for the client, or for the end of patience with it.
    fn or_timeout<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            return outcome;
        }
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.or_timeout(read, context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.turn(true);
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.or_timeout(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.turn(false);
        }
        self.or_timeout(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.or_timeout(shut, context)
    }
}
