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
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::Limits;
use crate::node::Inner;
use millrace_service::metrics::{self, Moment};

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
    match serde_json::to_string(&node.status()) {
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
