// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The I/O of one connection: one task, and no wake-up of another task on the path of a job.
//!
//! ```text
//!  socket ─read─► Decoder ─► Session ─► engine.submit (once per read: that makes batches)
//!                                │                 │
//!  socket ◄─write─ one buffer ◄──┴── Outbox ◄──────┘  workers, or inline within submit
//! ```
//!
//! Each turn reads what there is, submits it in one call, encodes everything that has ended into
//! one buffer and writes it at once. So batches form by themselves, and a lone job that the engine
//! computes within `submit` is answered in the same turn, without any other task or thread.
//!
//! The connections of one identity also take turns at the threads of the runtime ([`Turns`]): otherwise a
//! message of another identity waits until thousands of connections with something to read were served.
//!
//! It decides nothing about messages (that is [`millrace_service::session`]); it enforces what needs a clock or
//! a byte count: the deadline of the hello, a client that does not read, idleness, draining.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use millrace_engine::{BackendKind, JobError, KeyError, Output, PrivateKey};
use millrace_service::outbox::{Order, Outbox, Waiting};
use millrace_service::{Service, Session};
use millrace_wire::codec::CompleteWriter;
use millrace_wire::{ClientMessage, Decoder, Fault, JobId, Message, NodeMessage, RequestId};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep_until};
use tracing::debug;
use zeroize::{Zeroize, Zeroizing};

/// Unsent bytes above which nothing more is read from the client. A few full frames: enough to keep
/// a fast reader busy, little enough for thousands of slow ones.
const HIGH_WATER: usize = 256 * 1024;

/// Answers that are encoded before they are sent. A request takes 15 bytes and its answer up to 4 KiB, so
/// that one full read of requests would cost the node 20 MiB; with this bound it costs [`HIGH_WATER`].
const REPLIES_PER_TURN: usize = 64;

/// Unsent bytes above which the connection is closed. Jobs in flight are bounded and reading stops
/// at [`HIGH_WATER`], so this is reached only with thousands of large results.
const MAX_UNSENT: usize = 8 * 1024 * 1024;

/// Time that a fault gets to reach the client before the connection is closed.
const FAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a client gets to hang up by itself after its last job on a draining node. Jobs that crossed
/// with `Drain` are answered during this time.
const DRAIN_LINGER: Duration = Duration::from_millis(500);

/// Key checks of one connection that stand in line with those of others, in order of arrival: equal to the
/// number that run at once, so that a client with a thousand keys delays the one key of another by two.
const IMPORTS_IN_LINE: usize = 2;

/// Send buffers above this size are given back when they are empty.
const KEPT_BUFFER: usize = 64 * 1024;

/// Jobs and answers after which a turn ends although more was read: about 50 µs of decoding, which is what
/// another identity's message waits for each thread.
const JOBS_PER_TURN: usize = 64;

/// Reads of one connection, each with its turn and its answers, before other connections are served.
const ROUNDS_PER_POLL: usize = 4;

/// The right to decode messages, which at most as many connections of one identity have at once as the runtime
/// has threads. The others wait in order, outside the runtime's queue.
pub(crate) struct Turns {
    of_identity: Arc<Semaphore>,
    waiting: Option<Pin<Box<dyn Future<Output = Turn> + Send>>>,
}

/// One turn, given back on drop; none if the semaphore was closed, which none is.
type Turn = Option<OwnedSemaphorePermit>;

impl Turns {
    pub(crate) fn new(of_identity: Arc<Semaphore>) -> Self {
        Self {
            of_identity,
            waiting: None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Turn> {
        if self.waiting.is_none() {
            if let Ok(turn) = Arc::clone(&self.of_identity).try_acquire_owned() {
                return Poll::Ready(Some(turn));
            }
            let next = Arc::clone(&self.of_identity).acquire_owned();
            self.waiting = Some(Box::pin(async move { next.await.ok() }));
        }
        let turn = match &mut self.waiting {
            Some(waiting) => ready!(waiting.as_mut().poll(context)),
            None => None,
        };
        self.waiting = None;
        Poll::Ready(turn)
    }
}

/// How a connection ended, for the log.
#[derive(Debug)]
enum End {
    /// The client hung up, or everything was done after a drain.
    Closed,
    /// The transport failed.
    Lost(io::Error),
}

/// Serves one authenticated client until its connection ends. `checks` bounds the key checks of all
/// connections.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    session: Session,
    outbox: Arc<Outbox>,
    turns: Turns,
    checks: Arc<Semaphore>,
) {
    let identity = Arc::clone(session.identity());
    let connection = Connection::new(stream, session, outbox, turns, checks);
    match connection.await {
        End::Closed => debug!(%identity, "connection closed"),
        End::Lost(error) => debug!(%identity, %error, "connection lost"),
    }
}

struct Connection<S> {
    stream: S,
    session: Session,
    outbox: Arc<Outbox>,
    decoder: Decoder<ClientMessage>,
    /// Set while the decoder may hold whole messages: then they come before anything that is read.
    unread: bool,
    turns: Turns,
    waiting: Waiting,
    sending: SendBuffer,
    /// Key checks in progress. Those that have not begun end with the connection: otherwise a client could
    /// pile them up by connecting again and again.
    imports: JoinSet<()>,
    /// Bounds those of them that stand in line with other connections'.
    in_line: Arc<Semaphore>,
    /// Bounds the key checks of all connections that run at once.
    checks: Arc<Semaphore>,
    /// Set once the last message is in the send buffer.
    closing: bool,
    timer: Pin<Box<Sleep>>,
    deadlines: Deadlines,
}

/// Moments at which the connection stops to wait for its client.
struct Deadlines {
    /// When the timer fires; later than the earliest deadline only if there is none.
    armed: Option<Instant>,
    hello: Instant,
    active: Instant,
    linger: Option<Instant>,
    close: Option<Instant>,
}

impl<S> Connection<S> {
    fn new(
        stream: S,
        session: Session,
        outbox: Arc<Outbox>,
        turns: Turns,
        checks: Arc<Semaphore>,
    ) -> Self {
        let now = Instant::now();
        let hello = now + session.settings().limits.handshake_timeout;
        Self {
            stream,
            session,
            outbox,
            decoder: Decoder::new(),
            unread: false,
            turns,
            waiting: Waiting::default(),
            sending: SendBuffer::default(),
            imports: JoinSet::new(),
            in_line: Arc::new(Semaphore::new(IMPORTS_IN_LINE)),
            checks,
            closing: false,
            timer: Box::pin(sleep_until(hello.into())),
            deadlines: Deadlines {
                armed: Some(hello),
                hello,
                active: now,
                linger: None,
                close: None,
            },
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Connection<S> {
    type Output = End;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        let this = self.get_mut();
        for _ in 0..ROUNDS_PER_POLL {
            let paused = this.paused();
            let read = match this.poll_read(context) {
                Poll::Ready(Ok(true)) => true,
                Poll::Ready(Ok(false)) => return Poll::Ready(End::Closed),
                Poll::Ready(Err(error)) => return Poll::Ready(End::Lost(error)),
                Poll::Pending => false,
            };
            let news = this.outbox.take(&mut this.waiting, context);
            if news && !this.take_news() {
                return Poll::Ready(End::Closed);
            }
            match this.poll_write(context) {
                Poll::Ready(Ok(())) if this.closing => return this.poll_shutdown(context),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(End::Lost(error)),
                // The write wakes this task; completions may arrive before that.
                Poll::Pending if read || news => continue,
                Poll::Pending => return this.poll_timer(context),
            }
            // If the write made room to read again, no other event wakes this task to do so.
            let resumed = paused && !this.paused();
            if !(read || news || resumed) {
                return this.poll_timer(context);
            }
        }
        // Others come first, and then the rest.
        context.waker().wake_by_ref();
        this.poll_timer(context)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Reads once, if reading is in order; submits the jobs. `false` at the end of the stream.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.closing || self.paused() {
            return Poll::Pending;
        }
        if self.unread {
            return self.poll_messages(context).map(Ok);
        }
        let mut buffer = ReadBuf::new(self.decoder.space());
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len();
        if count == 0 {
            if self.decoder.buffered() == 0 {
                return Poll::Ready(Ok(false));
            }
            self.fault(Fault::Protocol, "the stream ends within a frame");
            return Poll::Ready(Ok(true));
        }
        self.decoder.filled(count);
        self.session.service().metrics().bytes_received.add(count);
        self.unread = true;
        self.poll_messages(context).map(Ok)
    }

    /// Takes what was read, when it is this connection's turn among those of its identity.
    fn poll_messages(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let turn = ready!(self.turns.poll(context));
        self.take_messages();
        drop(turn);
        Poll::Ready(true)
    }

    /// Whether the client has to wait until more has ended or was sent.
    fn paused(&self) -> bool {
        !self.session.wants_more() || self.sending.len() >= HIGH_WATER
    }

    fn take_messages(&mut self) {
        self.unread = false;
        let now = Instant::now();
        self.deadlines.active = now;
        self.session.begin_turn(now);
        let ended = loop {
            let jobs = self.session.jobs_waiting();
            if self.session.replies_waiting() >= REPLIES_PER_TURN || jobs >= JOBS_PER_TURN {
                self.unread = true;
                break None;
            }
            match self.decoder.next() {
                Ok(None) => break None,
                Ok(Some(message)) => {
                    if let Err(fault) = self.session.receive(message, now) {
                        break Some((fault, fault.to_string()));
                    }
                }
                Err(error) => break Some((error.fault(), error.to_string())),
            }
        };
        self.carry_out();
        if let Some((fault, reason)) = ended {
            self.fault(fault, &reason);
        }
    }

    /// Does what the session decided.
    fn carry_out(&mut self) {
        // Imports that are done free their place in line; their answers are in the outbox.
        while self.imports.try_join_next().is_some() {}
        let service = self.session.service().clone();
        let answers = self.session.carry_out();
        for (request, key) in answers.imports {
            self.imports.spawn(import(
                request,
                key,
                Arc::clone(&self.in_line),
                Arc::clone(&self.checks),
                service.clone(),
                Arc::clone(&self.outbox),
            ));
        }
        for reply in answers.replies {
            reply.encode(&mut self.sending.bytes);
        }
        let refused = answers.refused;
        encode_completions(
            refused.map(|(id, error)| (id, Err(error), None, Duration::ZERO, Duration::ZERO)),
            &mut self.sending.bytes,
        );
    }

    /// Takes what other threads put into the outbox. `false` if the connection is to end at once.
    fn take_news(&mut self) -> bool {
        let mut completions = mem::take(&mut self.waiting.completions);
        self.session.completed(&mut completions);
        let ended = completions
            .drain(..)
            .map(|c| (c.id, c.result, c.served_by, c.queue_time, c.service_time));
        encode_completions(ended, &mut self.sending.bytes);
        self.waiting.completions = completions;
        for (request, result) in self.waiting.imports.drain(..) {
            self.session.imported(request, result);
        }
        match self.waiting.order {
            Order::Serve => {}
            Order::Drain => self.session.drain(),
            Order::Close => return false,
        }
        self.carry_out();
        true
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.sending.is_empty() {
            let unsent = self.sending.unsent();
            match Pin::new(&mut self.stream).poll_write(context, unsent) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    let metrics = self.session.service().metrics();
                    metrics.bytes_sent.add(count);
                    metrics.writes.add(1);
                    self.sending.sent(count);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let timeout = self.session.settings().limits.write_timeout;
                    self.sending.blocked(Instant::now() + timeout);
                    if self.sending.len() > MAX_UNSENT {
                        return Poll::Ready(Err(self.slow_reader()));
                    }
                    return Poll::Pending;
                }
            }
        }
        // TLS keeps records of its own.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Ready(_) => Poll::Ready(End::Closed),
            Poll::Pending => self.poll_timer(context),
        }
    }

    /// Ends what took too long, and makes sure that the next deadline wakes us.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            let Some(next) = self.next_deadline() else {
                return Poll::Pending;
            };
            // An alarm that comes too early is harmless and cheaper than moving it each time.
            if self.deadlines.armed.is_none_or(|armed| armed > next) {
                self.timer.as_mut().reset(next.into());
                self.deadlines.armed = Some(next);
            }
            ready!(self.timer.as_mut().poll(context));
            self.deadlines.armed = None;
            let now = Instant::now();
            if now >= next
                && let Some(end) = self.expired(now)
            {
                return Poll::Ready(end);
            }
            if self.closing {
                // The fault is in the buffer: send it.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        let idle_timeout = self.session.settings().limits.idle_timeout;
        let idle_now = self.session.idle() && self.sending.is_empty();
        let draining = self.waiting.order == Order::Drain;
        if draining && idle_now {
            self.deadlines
                .linger
                .get_or_insert_with(|| Instant::now() + DRAIN_LINGER);
        } else {
            self.deadlines.linger = None;
        }
        let deadlines = &self.deadlines;
        let hello = (!self.session.greeted()).then_some(deadlines.hello);
        let idle = (idle_now && !idle_timeout.is_zero()).then(|| deadlines.active + idle_timeout);
        if self.closing {
            return deadlines.close;
        }
        [hello, idle, deadlines.linger, self.sending.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What a passed deadline means: the end, or a fault that is still to be sent.
    fn expired(&mut self, now: Instant) -> Option<End> {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|at| now >= at);
        if self.closing {
            return Some(End::Closed);
        }
        if passed(self.sending.deadline()) {
            return Some(End::Lost(self.slow_reader()));
        }
        if passed(self.deadlines.linger) {
            return Some(End::Closed);
        }
        let reason = if self.session.greeted() {
            "idle"
        } else {
            "no hello"
        };
        self.fault(Fault::TimedOut, reason);
        None
    }

    fn slow_reader(&self) -> io::Error {
        self.session
            .count_fault(Fault::TimedOut, "the client does not read");
        io::ErrorKind::TimedOut.into()
    }

    /// Puts the last message into the send buffer.
    fn fault(&mut self, fault: Fault, reason: &str) {
        self.session.count_fault(fault, reason);
        NodeMessage::Fault(fault).encode(&mut self.sending.bytes);
        self.closing = true;
        self.deadlines.close = Some(Instant::now() + FAULT_TIMEOUT);
    }
}

/// Loads a key that a client brought, without holding up its connection.
async fn import(
    request: RequestId,
    key: PrivateKey,
    in_line: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    service: Service,
    outbox: Arc<Outbox>,
) {
    let _in_line = in_line.acquire().await;
    let permit = checks.acquire_owned().await;
    let answers = Arc::clone(&outbox);
    let answered = tokio::task::spawn_blocking(move || {
        answers.imported((request, service.check_import(&key)));
        // Not before: answers come in the order of the line, and a check goes on when its connection
        // has ended, and counts as long.
        drop(permit);
    });
    if answered.await.is_err() {
        outbox.imported((request, Err(KeyError::Backend)));
    }
}

type Ended = (
    JobId,
    Result<Output, JobError>,
    Option<BackendKind>,
    Duration,
    Duration,
);

/// Appends the completions in as many frames as they need.
fn encode_completions(completions: impl Iterator<Item = Ended>, out: &mut Vec<u8>) {
    let mut completions = completions.peekable();
    while completions.peek().is_some() {
        let mut writer = CompleteWriter::new(out);
        while let Some((id, result, served_by, queue_time, service_time)) = completions.peek() {
            let result = result
                .as_ref()
                .map(|output| output.as_slice())
                .map_err(|error| *error);
            if !writer.push(*id, result, *served_by, *queue_time, *service_time) {
                break;
            }
            completions.next();
        }
        writer.finish();
    }
}

/// Bytes on their way to the client. They may hold secrets, so they are overwritten once sent.
#[derive(Default)]
struct SendBuffer {
    bytes: Zeroizing<Vec<u8>>,
    start: usize,
    /// Bytes ever sent, and the mark that has to be reached by the deadline: what was unsent when
    /// the client first did not take it. So a client that reads a little now and then gains nothing.
    total: u64,
    mark: Option<(u64, Instant)>,
}

impl SendBuffer {
    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn sent(&mut self, count: usize) {
        self.start += count;
        self.total = self
            .total
            .saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        if self.mark.is_some_and(|(mark, _)| self.total >= mark) {
            self.mark = None;
        }
        if self.is_empty() {
            self.start = 0;
            if self.bytes.capacity() > KEPT_BUFFER {
                self.bytes = Zeroizing::default();
            } else {
                // One memset, which `black_box` keeps the compiler from removing.
                self.bytes.fill(0);
                std::hint::black_box(&*self.bytes);
                self.bytes.clear();
            }
        } else if self.start >= KEPT_BUFFER.max(self.len()) {
            // A client that always leaves something must not make the sent part grow for ever.
            let unsent = self.len();
            self.bytes.copy_within(self.start.., 0);
            self.bytes[unsent..].zeroize();
            self.bytes.truncate(unsent);
            self.start = 0;
        }
    }

    fn blocked(&mut self, deadline: Instant) {
        let unsent = u64::try_from(self.len()).unwrap_or(u64::MAX);
        let total = self.total;
        self.mark
            .get_or_insert_with(|| (total.saturating_add(unsent), deadline));
    }

    fn deadline(&self) -> Option<Instant> {
        self.mark.map(|(_, deadline)| deadline)
    }
}

#[cfg(test)]
mod tests;
