// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! One connection to a node, without I/O: bytes and time in, events and bytes out.
//!
//! A connection keeps the handshake, the keys that are open on it, the number of jobs that the node owes, and the
//! timers for its silence. It does not know the jobs themselves: those are in [`crate::dispatch`].

mod refusals;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_operation::{JobId, Operation};
use millrace_wire::{
    ClientMessage, Decoder, EdgeReport, FEATURE_REPORTS, FEATURE_RETRY_AFTER, Fault, Hello,
    JobCompletion, KeyHandle, KeyRefusal, Message, NodeMessage, RequestId, SubmitWriter,
    VERSION_MAX, VERSION_MIN, Vocabulary, Welcome, accept_version,
};

use self::refusals::REFUSAL_LASTS;
pub(crate) use self::refusals::{KeyPause, KeyPauses};
use crate::buffer::OutBuffer;
use crate::key::{KeyData, KeyFacts, KeyId, KeySource};

/// The timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timings {
    /// Time limit from the start to the node's `Welcome`.
    pub(crate) handshake: Duration,
    /// Silence with jobs or requests open, until a ping.
    pub(crate) ping_after: Duration,
    /// Silence after a ping, until the connection is given up.
    pub(crate) dead_after: Duration,
}

/// A message of the node that the dispatcher has to act on.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The handshake is over.
    Ready,
    /// A key can be used.
    KeyOpened { key: KeyId, handle: KeyHandle, facts: KeyFacts },
    /// A key cannot be used here.
    KeyRefused { key: KeyId, reason: KeyRefusal },
    /// Jobs ended.
    Completed(Vec<JobCompletion>),
    /// The node takes no new jobs.
    Draining,
    /// The node refuses jobs with a key until then.
    Paused { until: Instant },
}

/// Why a connection cannot be used any longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionFault {
    /// The reason in words.
    pub(crate) why: String,
    /// Whether the node said what no node may say.
    pub(crate) broke_protocol: bool,
}

impl ConnectionFault {
    fn protocol(what: &str) -> Self {
        Self { why: format!("the node broke the protocol: {what}"), broke_protocol: true }
    }

    fn other(why: String) -> Self {
        Self { why, broke_protocol: false }
    }
}

/// State of a key on this connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyStage {
    /// The request is unanswered.
    Opening,
    /// The key can be used under this handle.
    Open(KeyHandle),
    /// The node refused the key. It is not asked again before `until`.
    Refused { reason: KeyRefusal, until: Instant },
}

/// A job on its way to a node.
pub(crate) struct OutgoingJob<'a> {
    pub(crate) id: JobId,
    pub(crate) handle: KeyHandle,
    /// Time until the job's deadline.
    pub(crate) budget: Duration,
    pub(crate) operation: &'a Operation,
    pub(crate) input: &'a [u8],
}

enum Phase {
    /// `Hello` is sent.
    Greeting,
    Ready,
    /// The node finishes its jobs and takes no new ones.
    Draining,
}

/// One connection. Who calls what: bytes go into [`space`](Self::space) and are announced by
/// [`filled`](Self::filled), then [`next_event`](Self::next_event) until it returns `None`; [`out`](Self::out)
/// holds bytes to send after any call; [`tick`](Self::tick) is due at [`next_timer`](Self::next_timer).
pub(crate) struct Connection {
    decoder: Decoder<NodeMessage>,
    out: OutBuffer,
    hello: Hello,
    /// Protocol features in force. Before the welcome there are none.
    features: u64,
    phase: Phase,
    timings: Timings,
    started: Instant,
    node: Arc<str>,
    max_in_flight: u32,
    in_flight: u32,
    keys: HashMap<KeyId, KeyStage>,
    pauses: KeyPauses,
    requests: HashMap<RequestId, KeyId>,
    next_request: RequestId,
    /// Start of the node's silence: when its last bytes arrived, or when a job or request was sent while none was open,
    /// whichever is later.
    quiet_since: Instant,
    ping: Option<Instant>,
    pings: u64,
    /// The edge's counters as this node knows them.
    reported: EdgeReport,
    /// Jobs that the node has done since its last report.
    done_since_report: u64,
}

impl Connection {
    /// A connection that has just been started: its greeting, which offers `features`, is ready to be
    /// sent.
    pub(crate) fn new(agent: String, features: u64, timings: Timings, now: Instant) -> Self {
        let hello = Hello { min_version: VERSION_MIN, max_version: VERSION_MAX, features, agent };
        let mut out = OutBuffer::default();
        ClientMessage::Hello(hello.clone()).encode(out.append());
        Self {
            decoder: Decoder::new(),
            out,
            hello,
            features: 0,
            phase: Phase::Greeting,
            timings,
            started: now,
            node: Arc::from(""),
            max_in_flight: 0,
            in_flight: 0,
            keys: HashMap::new(),
            pauses: KeyPauses::default(),
            requests: HashMap::new(),
            next_request: 0,
            quiet_since: now,
            ping: None,
            pings: 0,
            reported: EdgeReport::default(),
            done_since_report: 0,
        }
    }

    /// Bytes to be sent.
    pub(crate) fn out(&mut self) -> &mut OutBuffer {
        &mut self.out
    }

    /// Whether there are bytes to be sent.
    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Space for the next bytes from the node; never empty.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.decoder.space()
    }

    /// `n` bytes were put into [`Self::space`].
    pub(crate) fn filled(&mut self, n: usize, now: Instant) {
        self.decoder.filled(n);
        self.quiet_since = now;
        self.ping = None;
    }

    /// The next complete message of the node.
    ///
    /// # Errors
    /// The connection cannot be used any longer.
    pub(crate) fn next_event(
        &mut self,
        now: Instant,
    ) -> Result<Option<ConnectionEvent>, ConnectionFault> {
        loop {
            let message = self
                .decoder
                .next()
                .map_err(|error| ConnectionFault::protocol(&error.to_string()))?;
            let Some(message) = message else {
                return Ok(None);
            };
            if let Some(event) = self.on_message(message, now)? {
                return Ok(Some(event));
            }
        }
    }

    /// Handles one message. Returns what the dispatcher has to act on.
    fn on_message(
        &mut self,
        message: NodeMessage,
        now: Instant,
    ) -> Result<Option<ConnectionEvent>, ConnectionFault> {
        let greeting = matches!(self.phase, Phase::Greeting);
        match message {
            NodeMessage::Fault(fault) => Err(ConnectionFault::other(fault_text(fault))),
            NodeMessage::Welcome(welcome) if greeting => self.on_welcome(&welcome).map(Some),
            _ if greeting => Err(ConnectionFault::protocol("it did not begin with a welcome")),
            NodeMessage::Welcome(_) => Err(ConnectionFault::protocol("a second welcome")),
            NodeMessage::KeyOpened { request, handle, info, operations, hashes } => {
                let key = self.answered(request)?;
                if !self.keys.contains_key(&key) {
                    // Its owner dropped it after the request.
                    ClientMessage::CloseKey { handle }.encode(self.out.append());
                    return Ok(None);
                }
                self.keys.insert(key, KeyStage::Open(handle));
                let facts = KeyFacts { info, operations, hashes };
                Ok(Some(ConnectionEvent::KeyOpened { key, handle, facts }))
            }
            NodeMessage::KeyRefused { request, reason } => {
                let key = self.answered(request)?;
                if !self.keys.contains_key(&key) {
                    return Ok(None);
                }
                self.refuse(key, reason, now);
                Ok(Some(ConnectionEvent::KeyRefused { key, reason }))
            }
            NodeMessage::Complete(completions) => Ok(Some(ConnectionEvent::Completed(completions))),
            // Any byte is a sign of life; the token is for readers of traces.
            NodeMessage::Pong { .. } => Ok(None),
            NodeMessage::Description { .. } => {
                Err(ConnectionFault::protocol("a description that was not asked for"))
            }
            NodeMessage::RetryAfter { .. } if self.features & FEATURE_RETRY_AFTER == 0 => {
                Err(ConnectionFault::protocol("a feature that is not in force"))
            }
            NodeMessage::RetryAfter { handle, wait } => Ok(self.pause(handle, now + wait)),
            NodeMessage::Drain => {
                self.drain();
                Ok(Some(ConnectionEvent::Draining))
            }
        }
    }

    /// Notes that the node refuses jobs with this key. One that was closed in the meantime has no jobs.
    fn pause(&mut self, handle: KeyHandle, until: Instant) -> Option<ConnectionEvent> {
        let (key, _) = self
            .keys
            .iter()
            .find(|(_, stage)| matches!(stage, KeyStage::Open(own) if *own == handle))?;
        self.pauses.insert(*key, until);
        Some(ConnectionEvent::Paused { until })
    }

    /// The pause during which the node refuses jobs with this key, if it has not ended.
    pub(crate) fn paused(&self, key: KeyId, now: Instant) -> Option<KeyPause> {
        self.pauses.get(key, now)
    }

    /// The pauses that the node has announced.
    pub(crate) fn pauses(&mut self) -> &mut KeyPauses {
        &mut self.pauses
    }

    fn on_welcome(&mut self, welcome: &Welcome) -> Result<ConnectionEvent, ConnectionFault> {
        accept_version(&self.hello, welcome)
            .map_err(|error| ConnectionFault::protocol(&error.to_string()))?;
        self.phase = Phase::Ready;
        self.node = Arc::from(welcome.node.as_str());
        self.max_in_flight = welcome.max_in_flight.max(1);
        self.features = welcome.features;
        Ok(ConnectionEvent::Ready)
    }

    /// The key that a request was about.
    fn answered(&mut self, request: RequestId) -> Result<KeyId, ConnectionFault> {
        let key = self.requests.remove(&request);
        key.ok_or_else(|| ConnectionFault::protocol("an answer to a request that was not made"))
    }

    /// Whether jobs may be sent.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Whether the node finishes its jobs and takes no new ones.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.phase, Phase::Draining)
    }

    /// Records that the node has announced a drain.
    pub(crate) fn drain(&mut self) {
        self.phase = Phase::Draining;
    }

    /// Whether no job or request is open and no bytes wait.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.requests.is_empty() && self.out.is_empty()
    }

    /// The node's name for itself; empty before its welcome.
    pub(crate) fn node(&self) -> &Arc<str> {
        &self.node
    }

    /// Requests for keys that the node has not answered, including those for keys closed since.
    pub(crate) fn unanswered(&self) -> usize {
        self.requests.len()
    }

    /// Time at which the connection was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Jobs that the node has not answered, and those that wait for their key.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether a further job has room, at the node and in the buffer.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < self.max_in_flight && !self.out.is_full()
    }

    /// State of a key here. `None` if the node was not asked, or its refusal has expired.
    pub(crate) fn key_state(&self, key: KeyId, now: Instant) -> Option<KeyStage> {
        match self.keys.get(&key) {
            Some(KeyStage::Refused { until, .. }) if *until <= now => None,
            state => state.copied(),
        }
    }

    /// Asks the node for a key.
    pub(crate) fn open_key(&mut self, key: &KeyData, now: Instant) {
        self.busy_from(now);
        let request = self.next_request;
        self.next_request = self.next_request.wrapping_add(1);
        self.requests.insert(request, key.id);
        self.keys.insert(key.id, KeyStage::Opening);
        match &key.source {
            KeySource::Selector(selector) => {
                let selector = selector.clone();
                ClientMessage::OpenKey { request, selector }.encode(self.out.append());
            }
            KeySource::Import(private) => {
                let key = private.clone();
                ClientMessage::ImportKey { request, key }.encode(self.out.append_secret());
            }
        }
    }

    /// Gives a key up; its handle is closed if it has one.
    pub(crate) fn close_key(&mut self, key: KeyId) {
        self.pauses.remove(key);
        if let Some(KeyStage::Open(handle)) = self.keys.remove(&key) {
            ClientMessage::CloseKey { handle }.encode(self.out.append());
        }
    }

    /// The node no longer knows the handle of this key.
    pub(crate) fn forget_key(&mut self, key: KeyId) {
        if matches!(self.keys.get(&key), Some(KeyStage::Open(_))) {
            self.keys.remove(&key);
        }
    }

    /// Treats a key as refused.
    pub(crate) fn refuse(&mut self, key: KeyId, reason: KeyRefusal, now: Instant) {
        self.keys.insert(key, KeyStage::Refused { reason, until: now + REFUSAL_LASTS });
    }

    /// Whether the features in force have this operation. A node without them closes the connection over it.
    pub(crate) fn can_name(&self, operation: &Operation) -> bool {
        Vocabulary::new(self.features).has_operation(operation)
    }

    /// Sends a job, which [`Self::can_name`].
    pub(crate) fn send_job(&mut self, job: &OutgoingJob<'_>, now: Instant) {
        self.busy_from(now);
        self.in_flight += 1;
        let mut writer = SubmitWriter::new(self.out.append());
        let fits = writer.push(job.id, job.handle, job.budget, job.operation, job.input);
        writer.finish();
        debug_assert!(fits, "one job always fits a frame: its input was checked");
    }

    /// Asks the node to end a job early.
    pub(crate) fn cancel(&mut self, job: JobId) {
        ClientMessage::Cancel { job }.encode(self.out.append());
    }

    /// Counts a job that will be sent as soon as its key is open.
    pub(crate) fn add_promised_job(&mut self) {
        self.in_flight += 1;
    }

    /// Releases the place of a job that the node answered, or that no longer waits for its key.
    pub(crate) fn release_job(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Whether a job or request is open.
    fn is_busy(&self) -> bool {
        self.in_flight > 0 || !self.requests.is_empty()
    }

    /// Counts a job that was waited for and that the node did.
    pub(crate) fn record_served(&mut self) {
        self.done_since_report += 1;
    }

    /// Jobs that the node has done since its last report. `None` if it wants no reports.
    pub(crate) fn done_since_report(&self) -> Option<u64> {
        let asked = self.features & FEATURE_REPORTS != 0;
        let able = self.is_ready() || self.is_draining();
        (asked && able && !self.out.is_full()).then_some(self.done_since_report)
    }

    /// Sends the edge's counters, increased by `news`, without those that the node does not know.
    pub(crate) fn report(&mut self, news: &EdgeReport) {
        let known = Vocabulary::new(self.features).report(news);
        self.done_since_report = 0;
        if known.is_zero() {
            return;
        }
        self.reported.merge(&known);
        ClientMessage::Report(Box::new(self.reported)).encode(self.out.append());
    }

    /// The silence counts from `now` if nothing was open before.
    fn busy_from(&mut self, now: Instant) {
        if !self.is_busy() {
            self.quiet_since = now;
            self.ping = None;
        }
    }

    /// Does what is due at `now`.
    ///
    /// # Errors
    /// The node was silent for too long.
    pub(crate) fn tick(&mut self, now: Instant) -> Result<(), ConnectionFault> {
        if self.next_timer().is_none_or(|at| now < at) {
            return Ok(());
        }
        if matches!(self.phase, Phase::Greeting) {
            let limit = self.timings.handshake;
            return Err(ConnectionFault::other(format!("no welcome within {limit:?}")));
        }
        if self.ping.is_some() {
            let silence = self.timings.ping_after + self.timings.dead_after;
            let why = format!("silent for {silence:?} with jobs in flight");
            return Err(ConnectionFault::other(why));
        }
        self.ping = Some(now);
        self.pings += 1;
        ClientMessage::Ping { token: self.pings }.encode(self.out.append());
        Ok(())
    }

    /// Time at which [`Self::tick`] has something to do.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        if matches!(self.phase, Phase::Greeting) {
            return Some(self.started + self.timings.handshake);
        }
        if let Some(sent) = self.ping {
            return Some(sent + self.timings.dead_after);
        }
        self.is_busy().then(|| self.quiet_since + self.timings.ping_after)
    }
}

/// Why the node closed, in words that say what to do.
pub(crate) fn fault_text(fault: Fault) -> String {
    match fault {
        Fault::Version => "the node speaks no version of the protocol that this client does",
        Fault::Protocol => "the node says that this client broke the protocol",
        Fault::TooLarge => "the node says that a frame was too large",
        Fault::Unauthorized => {
            let user = rustix::process::geteuid().as_raw();
            return format!(
                "this identity (uid {user} here, which a container may change) may not use the node; its log has the \
                 identity that it sees, and what admits it"
            );
        }
        Fault::TooManyConnections => "the node has too many connections",
        Fault::TimedOut => "the node gave up waiting for this client",
    }
    .to_owned()
}

#[cfg(test)]
mod tests;
