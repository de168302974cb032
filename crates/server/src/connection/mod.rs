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
//! Each turn reads the available bytes, submits their jobs in one call, encodes all completions into one
//! buffer and writes it at once. So batches form without a timer, and the task answers a lone job that the
//! engine computes within `submit` in the same turn, without another task or thread.
//!
//! The connections of one party share a bounded number of turns on the runtime's threads ([`Turns`]).
//! Otherwise a message of another party would wait until thousands of readable connections were served.
//!
//! [`millrace_service::session`] decides about messages. This module enforces limits that need a clock or a
//! byte count: the deadline of the hello, a client that does not read, idleness, draining.

use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use millrace_engine::Completion;
use millrace_operation::JobError;
use millrace_operation::sync::lock;
use millrace_service::bucket::Bucket;
use millrace_service::outbox::{Outbox, UnsentAnswers};
use millrace_service::sink::Order;
use millrace_service::{Answers, Session};
use millrace_wire::{
    ClientMessage, Decoder, Fault, JobCompletion, Message, NodeMessage, encode_completions,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tracing::debug;
use zeroize::{Zeroize, Zeroizing};

use crate::imports::ImportLine;

/// Unsent bytes above which the node stops to read from the client. It holds a few full frames: enough to
/// keep a fast reader busy, and small enough for thousands of slow ones.
const HIGH_WATER: usize = 256 * 1024;

/// Answers that a turn encodes before it writes. A request has 15 bytes and its answer up to 4 KiB, so one
/// full read of requests would cost the node 20 MiB; with this bound it costs [`HIGH_WATER`].
const REPLIES_PER_TURN: usize = 64;

/// Unsent bytes above which the node closes the connection. Jobs in flight are bounded and reading stops at
/// [`HIGH_WATER`], so only thousands of large results reach this bound.
const MAX_UNSENT: usize = 8 * 1024 * 1024;

/// Bound on the time to send a fault to the client before the node closes the connection: several round trips
/// around the world, and a client that reads nothing holds the connection no longer.
const FAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time that a client has to close the connection after its last job on a draining node. The node still
/// answers jobs that crossed with `Drain` during this time.
const DRAIN_LINGER: Duration = Duration::from_millis(500);

/// The node frees an empty send buffer above this size, in bytes.
const KEPT_BUFFER: usize = 64 * 1024;

/// Jobs and answers after which a turn decodes no further message, even if more bytes were read, and after
/// which the runtime serves other connections: about 50 µs of decoding, 200 µs if the last frame is full. A
/// message of another party waits that long for each thread.
const JOBS_PER_TURN: usize = 64;

/// Reads of one connection, each with its turn and its answers, before the runtime serves other connections.
const ROUNDS_PER_POLL: usize = 4;

/// Jobs of one party per second that the engine's queue may refuse before the node reads its connections less often:
/// about 5 % of a core by estimate. Clients that honour the retry-after of a refusal stay below that at five times the
/// load of RSA-2048 on one core, even if they keep their jobs until then. A pause would cost them the jobs that wait in
/// the socket.
const REFUSALS_PER_SECOND: u64 = 20_000;

/// Refused jobs beyond [`REFUSALS_PER_SECOND`] at once: what the connections of a party have on the way.
const REFUSALS_AHEAD: u64 = 4_000;

/// Jobs of one party per second that are refused before they reach the engine, over its quota above all, before the
/// node reads its connections less often: about 1 % of a core by estimate. Each connection of a party that honours
/// the retry-after of a refusal has about a hundred such jobs per second. A pause costs such a client no part of
/// its quota if the burst lasts for longer.
const DENIALS_PER_SECOND: u64 = 5_000;

/// Such jobs beyond [`DENIALS_PER_SECOND`] at once: what a connection sends before it gets the first refusal.
const DENIALS_AHEAD: u64 = 2_000;

/// Time for which the node stops reading a connection once its party exceeds [`REFUSALS_PER_SECOND`] or
/// [`DENIALS_PER_SECOND`]; doubles with each further turn that has a refused job. The party holds its whole share of a
/// full queue, or has used up its quota, and a client that sends refused jobs again at once would keep the threads
/// that read for others busy.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Doublings of [`BUSY_PAUSE`]: 400 ms at most, so that a client gets the answer to its ping in time.
const MAX_DOUBLINGS: u32 = 3;

/// Jobs of the first turn after such a pause: all 1024 connections of a party together cost at most 20,000
/// refusals per second.
const JOBS_AFTER_REFUSAL: usize = 8;

/// Interval at which a connection with imports that are not checked yet asks whether its client has closed it. While
/// they wait it may not read, so it would not see that, and checks for a lost client would delay those of others.
const HANG_UP_INTERVAL: Duration = Duration::from_millis(100);

/// The stream of a client.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin {
    /// Whether the client has closed its end, also while bytes before that are unread.
    fn hung_up(&self) -> bool;
}

impl ClientStream for TlsStream<TcpStream> {
    fn hung_up(&self) -> bool {
        socket_hung_up(self.get_ref().0.as_fd())
    }
}

/// Asks the kernel whether the other end of a socket was closed.
pub(crate) fn socket_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    poll(&mut sockets, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// State that the connections of one party share.
pub(crate) struct PartyShare {
    /// Permits to decode messages.
    turns: Arc<Semaphore>,
    refusals: Mutex<RefusalsLeft>,
}

/// Jobs of a party that may still be refused before the node pauses its connections.
struct RefusalsLeft {
    /// By the engine's queue.
    by_queue: Bucket,
    /// Before they reach the engine.
    before: Bucket,
}

impl PartyShare {
    /// The share of a party without a connection, with this number of permits.
    pub(crate) fn new(turns: usize, now: Instant) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(turns)),
            refusals: Mutex::new(RefusalsLeft {
                by_queue: Bucket::new(REFUSALS_PER_SECOND, REFUSALS_AHEAD, now),
                before: Bucket::new(DENIALS_PER_SECOND, DENIALS_AHEAD, now),
            }),
        }
    }

    /// Counts refused jobs. Returns `false` if the connection must pause.
    fn tolerates(&self, by_queue: usize, before: usize, now: Instant) -> bool {
        let count = |jobs| u64::try_from(jobs).unwrap_or(u64::MAX);
        let mut left = lock(&self.refusals);
        let queue_tolerates = left.by_queue.take(count(by_queue), now);
        let tolerates = left.before.has(count(before), now);
        // Refusals beyond the rate also count; otherwise each connection could send one turn of them free of charge.
        left.before.overdraw(count(before), now);
        tolerates && queue_tolerates
    }
}

/// Turns of one connection to decode messages. A party has as many at once as the runtime has threads; its other
/// connections wait in order, outside the runtime's queue.
pub(crate) struct Turns {
    of_party: Arc<PartyShare>,
    waiting: Option<Pin<Box<dyn Future<Output = DecodePermit> + Send>>>,
}

/// One turn, returned on drop. `None` only if the semaphore is closed, which never happens.
type DecodePermit = Option<OwnedSemaphorePermit>;

impl Turns {
    pub(crate) fn new(of_party: Arc<PartyShare>) -> Self {
        Self { of_party, waiting: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<DecodePermit> {
        if self.waiting.is_none() {
            if let Ok(turn) = Arc::clone(&self.of_party.turns).try_acquire_owned() {
                return Poll::Ready(Some(turn));
            }
            let next = Arc::clone(&self.of_party.turns).acquire_owned();
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

/// Cause of a connection's end, for the log.
#[derive(Debug)]
enum End {
    /// The client closed the connection, or a drain has completed.
    Closed,
    /// The transport failed.
    Lost(io::Error),
}

/// Serves one authenticated client until its connection ends.
pub(crate) async fn serve<S: ClientStream>(
    stream: S,
    session: Session,
    outbox: Arc<Outbox>,
    turns: Turns,
    imports: ImportLine,
) {
    let identity = Arc::clone(session.identity());
    let connection = Connection::new(stream, session, outbox, turns, imports);
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
    /// Set while the decoder may hold whole messages. The task handles them before it reads again.
    unread: bool,
    turns: Turns,
    waiting: UnsentAnswers,
    sending: SendBuffer,
    /// Imports that wait for a check. They end with the connection: otherwise a client could accumulate them by
    /// reconnecting.
    imports: ImportLine,
    refusals: Refusals,
    unread_time: UnreadTime,
    timer: Pin<Box<Sleep>>,
    deadlines: Deadlines,
}

/// Turns in a row with a refused job.
#[derive(Default)]
struct Refusals {
    turns: u32,
    /// Whether a job of the last turn was refused.
    last: bool,
}

impl Refusals {
    /// Begins a turn. Returns the number of jobs that it may take.
    fn begin_turn(&mut self) -> usize {
        if !mem::take(&mut self.last) {
            self.turns = 0;
        }
        if self.turns == 0 { JOBS_PER_TURN } else { JOBS_AFTER_REFUSAL }
    }

    /// Pauses the connection until `until`, unless it pauses already.
    fn pause(&mut self, until: &mut Option<Instant>, now: Instant) {
        if until.is_none() {
            *until = Some(now + BUSY_PAUSE * (1 << self.turns.min(MAX_DOUBLINGS)));
            self.turns += 1;
        }
        self.last = true;
    }
}

/// Time for which bytes may have waited in the socket because the node did not read. A job's budget runs during that
/// time, and a node that took it for a new job would compute a result that its client no longer waits for. Reset when
/// the socket is empty.
#[derive(Default)]
struct UnreadTime {
    stopped: Option<Instant>,
    longest: Duration,
}

impl UnreadTime {
    /// The node does not read for now.
    fn stop(&mut self, now: Instant) {
        self.stopped.get_or_insert(now);
    }

    /// The node reads. Returns the longest time for which the bytes that come now may have waited.
    fn resume(&mut self, now: Instant) -> Duration {
        if let Some(stopped) = self.stopped.take() {
            self.longest = now.saturating_duration_since(stopped);
        }
        self.longest
    }
}

/// Times at which the connection stops to wait for its client.
struct Deadlines {
    /// Time at which the timer fires: at or before the earliest deadline.
    armed: Option<Instant>,
    hello: Instant,
    active: Instant,
    /// Start of the message of which the decoder holds a part.
    message: Option<Instant>,
    linger: Option<Instant>,
    /// The end of a pause after refused jobs ([`BUSY_PAUSE`]).
    busy: Option<Instant>,
    /// The end of the time to send the last message, once it is in the send buffer.
    close: Option<Instant>,
    /// The next look for the client's end while imports wait ([`HANG_UP_INTERVAL`]).
    hang_up: Instant,
}

impl<S> Connection<S> {
    fn new(
        stream: S,
        session: Session,
        outbox: Arc<Outbox>,
        turns: Turns,
        imports: ImportLine,
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
            waiting: UnsentAnswers::default(),
            sending: SendBuffer::default(),
            imports,
            refusals: Refusals::default(),
            unread_time: UnreadTime::default(),
            timer: Box::pin(sleep_until(hello.into())),
            deadlines: Deadlines {
                armed: Some(hello),
                hello,
                active: now,
                message: None,
                linger: None,
                busy: None,
                close: None,
                hang_up: now,
            },
        }
    }
}

impl<S: ClientStream> Future for Connection<S> {
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
                Poll::Ready(Ok(())) if this.closing() => return this.poll_shutdown(context),
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(End::Lost(error)),
                // The write wakes this task; completions may arrive before that.
                Poll::Pending if read || news => continue,
                Poll::Pending => return this.poll_timer(context),
            }
            if read && this.unread {
                break;
            }
            // If the write made room to read again, no other event wakes this task for it.
            let resumed = paused && !this.paused();
            if !(read || news || resumed) {
                return this.poll_timer(context);
            }
        }
        // Other tasks run first; then this task continues.
        context.waker().wake_by_ref();
        this.poll_timer(context)
    }
}

impl<S: ClientStream> Connection<S> {
    /// Reads once unless the connection is paused, and submits the jobs. Returns `false` at the end of the
    /// stream.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.closing() || self.paused() {
            self.unread_time.stop(Instant::now());
            return Poll::Pending;
        }
        if self.unread {
            return self.poll_messages(context).map(Ok);
        }
        let mut buffer = ReadBuf::new(self.decoder.space());
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, &mut buffer) else {
            self.unread_time = UnreadTime::default();
            return Poll::Pending;
        };
        read?;
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

    /// Handles the bytes read, once this connection holds one of its party's turns.
    fn poll_messages(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let turn = ready!(self.turns.poll(context));
        self.take_messages();
        drop(turn);
        Poll::Ready(true)
    }

    /// Whether reading must stop until more jobs have ended, more keys are checked, more bytes were sent, or a pause
    /// has passed.
    fn paused(&self) -> bool {
        !self.session.wants_more()
            || self.sending.len() >= HIGH_WATER
            || self.deadlines.busy.is_some()
            || self.imports.must_wait(self.session.importing())
    }

    /// Whether the last message is in the send buffer.
    fn closing(&self) -> bool {
        self.deadlines.close.is_some()
    }

    fn take_messages(&mut self) {
        self.unread = false;
        let now = Instant::now();
        self.deadlines.active = now;
        self.session.begin_turn(now);
        self.session.set_unread_for(self.unread_time.resume(now));
        let jobs_of_turn = self.refusals.begin_turn();
        let mut message_began = self.deadlines.message.unwrap_or(now);
        let ended = loop {
            let jobs = self.session.jobs_waiting();
            if self.session.replies_waiting() >= REPLIES_PER_TURN || jobs >= jobs_of_turn {
                self.unread = true;
                break None;
            }
            match self.decoder.next() {
                Ok(None) => break None,
                Ok(Some(message)) => {
                    message_began = now;
                    if let Err(fault) = self.session.receive(message, now) {
                        break Some((fault, fault.to_string()));
                    }
                    self.begin_imports();
                    if self.imports.must_wait(self.session.importing()) {
                        self.unread = true;
                        break None;
                    }
                }
                Err(error) => break Some((error.fault(), error.to_string())),
            }
        };
        self.deadlines.message = (self.decoder.buffered() > 0).then_some(message_began);
        self.carry_out();
        if let Some((fault, reason)) = ended {
            self.fault(fault, &reason);
        }
    }

    /// Queues the key checks that the session asks for.
    fn begin_imports(&mut self) {
        for (request, key) in self.session.take_imports() {
            self.imports.push(request, key, Arc::clone(&self.outbox));
        }
    }

    /// Performs the actions that the session returned.
    fn carry_out(&mut self) {
        let Answers { replies, refused } = self.session.carry_out();
        for reply in replies {
            reply.encode(&mut self.sending.bytes);
        }
        let before_engine = refused.len();
        encode_completions(
            refused.map(|(id, error)| JobCompletion {
                id,
                result: Err(error),
                served_by: None,
                queue_time: Duration::ZERO,
                service_time: Duration::ZERO,
            }),
            &mut self.sending.bytes,
        );
        self.note_refused(0, before_engine);
    }

    /// Pauses the connection if more jobs of its party were refused than the node tolerates.
    fn note_refused(&mut self, by_queue: usize, before: usize) {
        if by_queue + before == 0 {
            return;
        }
        let now = Instant::now();
        if !self.turns.of_party.tolerates(by_queue, before, now) {
            self.refusals.pause(&mut self.deadlines.busy, now);
        }
    }

    /// Moves the contents of the outbox, filled by other threads, into the send buffer. Returns `false` if
    /// the connection must end at once.
    fn take_news(&mut self) -> bool {
        let mut completions = mem::take(&mut self.waiting.completions);
        let refused = |c: &&Completion| matches!(c.result, Err(JobError::Busy));
        let refused = completions.iter().filter(refused).count();
        self.note_refused(refused, 0);
        self.session.completed(&mut completions);
        // When to try again comes before the refusals that it is about.
        if self.session.replies_waiting() > 0 {
            self.carry_out();
        }
        let ended = completions.drain(..).map(|ended| JobCompletion {
            id: ended.id,
            result: ended.result,
            served_by: ended.served_by,
            queue_time: ended.queue_time,
            service_time: ended.service_time,
        });
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
        // TLS buffers records, so a flush is needed.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Ready(_) => Poll::Ready(End::Closed),
            Poll::Pending => self.poll_timer(context),
        }
    }

    /// Ends the connection if a deadline has passed, and arms the timer for the next one.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<End> {
        loop {
            let Some(next) = self.next_deadline() else {
                return Poll::Pending;
            };
            // A timer that fires too early is harmless, and cheaper than rearming it each time.
            if self.deadlines.armed.is_none_or(|armed| armed > next) {
                self.timer.as_mut().reset(next.into());
                self.deadlines.armed = Some(next);
            }
            ready!(self.timer.as_mut().poll(context));
            self.deadlines.armed = None;
            let now = Instant::now();
            let resumed = self.deadlines.busy.take_if(|end| now >= *end).is_some();
            let looked = self.session.importing() > 0 && now >= self.deadlines.hang_up;
            if looked {
                self.deadlines.hang_up = now + HANG_UP_INTERVAL;
                if self.stream.hung_up() {
                    return Poll::Ready(End::Closed);
                }
            }
            if !resumed
                && !looked
                && now >= next
                && let Some(end) = self.expired(now)
            {
                return Poll::Ready(end);
            }
            if self.closing() || resumed {
                // There is a fault to send, or reading continues.
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
            self.deadlines.linger.get_or_insert_with(|| Instant::now() + DRAIN_LINGER);
        } else {
            self.deadlines.linger = None;
        }
        if self.paused() || self.unread {
            // The client cannot complete a message that the node does not read.
            self.deadlines.message = self.deadlines.message.map(|_| Instant::now());
        }
        let message = self.message_deadline();
        let deadlines = &self.deadlines;
        let hello = (!self.session.greeted()).then_some(deadlines.hello);
        let idle = (idle_now && !idle_timeout.is_zero()).then(|| deadlines.active + idle_timeout);
        if self.closing() {
            return deadlines.close;
        }
        let sending = self.sending.deadline();
        let hang_up = (self.session.importing() > 0).then_some(deadlines.hang_up);
        let all = [hello, message, idle, deadlines.linger, deadlines.busy, sending, hang_up];
        all.into_iter().flatten().min()
    }

    /// Time by which the message that the decoder holds in part must be complete.
    fn message_deadline(&self) -> Option<Instant> {
        let began = self.deadlines.message?;
        Some(began + self.session.settings().limits.message_timeout)
    }

    /// The effect of a passed deadline: the end of the connection, or a fault to send first.
    fn expired(&mut self, now: Instant) -> Option<End> {
        let passed = |deadline: Option<Instant>| deadline.is_some_and(|at| now >= at);
        if self.closing() {
            return Some(End::Closed);
        }
        if passed(self.sending.deadline()) {
            return Some(End::Lost(self.slow_reader()));
        }
        if passed(self.deadlines.linger) {
            return Some(End::Closed);
        }
        let reason = if !self.session.greeted() {
            "no hello"
        } else if passed(self.message_deadline()) {
            "a message is not complete in time"
        } else {
            "idle"
        };
        self.fault(Fault::TimedOut, reason);
        None
    }

    fn slow_reader(&self) -> io::Error {
        self.session.count_fault(Fault::TimedOut, "the client does not read");
        io::ErrorKind::TimedOut.into()
    }

    /// Puts the last message into the send buffer.
    fn fault(&mut self, fault: Fault, reason: &str) {
        self.session.count_fault(fault, reason);
        NodeMessage::Fault(fault).encode(&mut self.sending.bytes);
        self.deadlines.close = Some(Instant::now() + FAULT_TIMEOUT);
    }
}

/// Unsent bytes. They may contain secrets, so sending overwrites them.
#[derive(Default)]
struct SendBuffer {
    bytes: Zeroizing<Vec<u8>>,
    start: usize,
    /// Total bytes sent so far, and the total that must be reached by the deadline: everything that was
    /// unsent when the client first stopped reading. So a client gains nothing by reading a few bytes now and
    /// then.
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
        self.total = self.total.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
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
            // If the client never empties the buffer, the sent part must not grow without bound.
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
        self.mark.get_or_insert_with(|| (total.saturating_add(unsent), deadline));
    }

    fn deadline(&self) -> Option<Instant> {
        self.mark.map(|(_, deadline)| deadline)
    }
}

#[cfg(test)]
mod tests;
