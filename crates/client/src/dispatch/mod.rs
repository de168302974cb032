// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pool without I/O: it chooses a node for each job, and another one when that node fails.
//!
//! ```text
//!            submit ──► choose a node ──► key open there? ──► sent ──► completion ──► ended
//!                          ▲    │ none yet      │ no             │ lost, busy, …
//!                          │    ▼               ▼                │
//!                          │  waiting      awaiting key ─refused─┤
//!                          └─────────────────────────────────────┘ while time and budget allow
//! ```
//!
//! A job whose key only the nodes have waits for a node until its deadline, since its owner has no other
//! way: nodes restart, and fill up. A job whose key this process holds waits only for a first connection.
//! A job without a node makes the nodes in back-off be tried at once, within the bounds of [`crate::node`].
//!
//! Every operation of the protocol is idempotent, so a job whose answer is missing may be sent again.
//! Retries are bounded twice: per job by [`retry::MAX_RETRIES`], and over all jobs by [`Budget`] where a retry adds
//! load to nodes that have just said that they are overloaded.

mod assign;
mod ends;
mod events;
mod hedge;
mod judge;
mod listing;
mod retry;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use millrace_wire::{FEATURE_DESCRIPTION, FEATURE_REPORTS, FEATURES};

use self::hedge::{Hedging, Latencies};
use self::judge::Looks;
use self::retry::{Budget, FailedAttempt, Retry};
use crate::buffer::OutBuffer;
use crate::config::PoolConfig;
use crate::connection::{Connection, ConnectionFault, Timings};
use crate::error::ClientError;
use crate::job::{
    Attempts, Demand, Job, JobAnswer, JobCallback, JobOutcome, JobRef, JobTable, NodeReply,
    Recipient,
};
use crate::key::{KeyData, KeyId};
use crate::node::{ConfiguredNode, ConnectionState, NodeIndex, NodeSet};
use crate::random::Random;
use crate::report::Reporter;
use crate::standing::Offence;
use crate::stats::{ClientStats, Totals};

/// Late replies that one connection may owe. Nodes answer by the deadline they are given, so a node that
/// owes more has lost the jobs.
const MAX_LATE_REPLIES: u32 = 1024;

/// Time after its deadline within which a node answers a job, also when it is swamped. A reply that is later has been
/// lost, and its place with it: the node gets a new connection.
const LOST_REPLY_AFTER: Duration = Duration::from_secs(5);

/// Time between two looks for lost replies.
const LOST_REPLY_LOOK: Duration = Duration::from_secs(1);

/// Answers to deliver outside of any lock: callbacks to call, sleeping callers to wake.
#[derive(Default)]
pub(crate) struct Deliveries {
    pub(crate) callbacks: Vec<(JobCallback, Result<NodeReply, ClientError>)>,
    pub(crate) wakes: Vec<Arc<Condvar>>,
}

/// Use of a key: the number of jobs that need it, and whether its owner has closed it.
struct KeyUse {
    data: Arc<KeyData>,
    jobs: u32,
    closed: bool,
}

/// The pool as a state machine: it has no socket, thread or clock. Each call that may start or end a job
/// takes the time.
///
/// There are four kinds of methods. [`crate::io`] calls them in this order:
///
/// 1. **Callers**, at any time: [`submit`](Self::submit), [`cancel`](Self::cancel),
///    [`close_key`](Self::close_key), [`report_soon`](Self::report_soon). A blocked caller asks
///    [`take_done`](Self::take_done) for its answer and calls [`give_up`](Self::give_up) at its deadline.
/// 2. **`handle_*`**, after an I/O event: the connection asked for by
///    [`poll_connect`](Self::poll_connect) was started ([`handle_connected`](Self::handle_connected)) or is
///    over ([`handle_lost`](Self::handle_lost)); bytes were put into
///    [`connection`](Self::connection)`.space()` ([`handle_received`](Self::handle_received)); the time of
///    [`poll_timeout`](Self::poll_timeout) has come ([`handle_timeout`](Self::handle_timeout)).
/// 3. **`poll_*`**, after any of those, until they return nothing: sockets to close
///    ([`poll_close`](Self::poll_close)) and to open, bytes to send ([`poll_output`](Self::poll_output)), the
///    time of the next timer.
/// 4. [`deliveries`](Self::deliveries): the answers, to be delivered without the lock that guards this.
///
/// [`close`](Self::close) ends every job; nothing else may be called after it but `deliveries` and `take_done`.
pub(crate) struct Dispatcher {
    nodes: Vec<ConfiguredNode>,
    jobs: JobTable,
    /// The jobs without an attempt in the order in which they began to wait, and some that have ended since.
    waiting: VecDeque<JobRef>,
    keys: HashMap<KeyId, KeyUse>,
    max_in_flight: usize,
    max_keys: usize,
    timings: Timings,
    agent: String,
    deliveries: Deliveries,
    closed: Vec<NodeIndex>,
    /// Pending jobs with a callback.
    callbacks_open: usize,
    /// A lower bound on the deadlines of pending jobs with a callback. `None` if there are none.
    next_deadline: Option<Instant>,
    /// End of the first pause that a node asked for. `None` if there is no pause.
    resume_at: Option<Instant>,
    random: Random,
    budget: Budget,
    latencies: Latencies,
    looks: Looks,
    /// Earliest time of the next look for lost replies.
    next_lost_reply_look: Instant,
    hedging: Option<Hedging>,
    totals: Totals,
    reporter: Option<Reporter>,
}

impl Dispatcher {
    pub(crate) fn new(config: &PoolConfig, now: Instant) -> Self {
        let timings = Timings {
            handshake: config.connect_timeout,
            ping_after: config.ping_after,
            dead_after: config.dead_after,
        };
        Self {
            nodes: config.nodes.iter().map(|node| ConfiguredNode::new(node, now)).collect(),
            jobs: JobTable::default(),
            waiting: VecDeque::new(),
            keys: HashMap::new(),
            max_in_flight: config.max_in_flight,
            max_keys: config.max_keys,
            timings,
            agent: config.agent_name(),
            deliveries: Deliveries::default(),
            closed: Vec::new(),
            callbacks_open: 0,
            next_deadline: None,
            resume_at: None,
            random: Random::new(),
            budget: Budget::for_retries(),
            latencies: Latencies::default(),
            looks: Looks::new(now),
            next_lost_reply_look: now,
            hedging: Hedging::new(config.hedge),
            totals: Totals::default(),
            reporter: config.report.clone().map(Reporter::new),
        }
    }

    // ---- callers ------------------------------------------------------------------------------

    /// Accepts a job.
    ///
    /// # Errors
    /// The job was not accepted. Its owner gets no other notice.
    pub(crate) fn submit(&mut self, job: Job, now: Instant) -> Result<JobRef, ClientError> {
        if job.deadline <= now {
            return Err(ClientError::TimedOut);
        }
        if self.jobs.len() >= self.max_in_flight {
            self.totals.busy += 1;
            return Err(ClientError::Busy);
        }
        self.use_key(&job.key)?;
        for node in &mut self.nodes {
            node.connect_if_idle(now);
        }
        let has_callback = job.has_callback();
        let is_operation = job.is_operation();
        let key = job.key.id;
        let deadline = job.deadline;
        let id = self.jobs.insert(job);
        // Before the assignment, which may end the job at once.
        self.callbacks_open += usize::from(has_callback);
        if let Err(error) = self.assign(id, now) {
            self.callbacks_open -= usize::from(has_callback);
            self.jobs.remove(id);
            self.release_key(key);
            self.count_error(&error);
            return Err(error);
        }
        if has_callback {
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |at| at.min(deadline)));
        }
        if is_operation {
            self.totals.jobs += 1;
            self.budget.deposit();
            if let Some(hedging) = &mut self.hedging {
                hedging.deposit();
            }
            self.report_soon(now);
        }
        Ok(id)
    }

    /// Takes the answer of a caller's job, if the job has ended.
    pub(crate) fn take_done(&mut self, id: JobRef) -> Option<JobAnswer> {
        let job = self.jobs.get(id)?;
        let answer = match mem::replace(&mut job.outcome, JobOutcome::Delivered) {
            JobOutcome::Ready(answer) => answer,
            other => {
                job.outcome = other;
                return None;
            }
        };
        self.remove_if_over(id);
        Some(answer)
    }

    /// Whether a caller's job has ended.
    pub(crate) fn is_done(&mut self, id: JobRef) -> bool {
        self.jobs.get(id).is_none_or(|job| !job.is_pending())
    }

    /// Has `waiter` notified when the job of a sleeping caller ends.
    pub(crate) fn wake_by(&mut self, id: JobRef, waiter: &Arc<Condvar>) {
        if let Some(job) = self.jobs.get(id)
            && let JobOutcome::Pending(Recipient::Caller { waiter: wakes }) = &mut job.outcome
        {
            *wakes = Some(Arc::clone(waiter));
        }
    }

    /// Ends a caller's job at its deadline, and returns the answer.
    pub(crate) fn give_up(&mut self, id: JobRef, now: Instant) -> JobAnswer {
        self.expire(id, now);
        self.take_done(id).unwrap_or(Err(ClientError::TimedOut))
    }

    /// Ends a job at its deadline.
    fn expire(&mut self, id: JobRef, now: Instant) {
        let waits = self.jobs.get(id).filter(|job| job.is_unassigned());
        let error = match waits.map(|job| job.demand()) {
            Some(demand) => {
                let demand = Demand { tried: NodeSet::default(), ..demand };
                self.candidates(&demand, now).into_error(&self.nodes)
            }
            None => ClientError::TimedOut,
        };
        self.end(id, Err(error));
    }

    /// Ends a callback's job early. Does nothing if it has ended.
    pub(crate) fn cancel(&mut self, id: JobRef) {
        self.end(id, Err(ClientError::Cancelled));
    }

    /// Closes a key once no job needs it.
    pub(crate) fn close_key(&mut self, key: KeyId) {
        if let Some(usage) = self.keys.get_mut(&key) {
            usage.closed = true;
            self.drop_key_if_unused(key);
        }
    }

    /// Makes a report due: the edge has counted something, or will soon.
    pub(crate) fn report_soon(&mut self, now: Instant) {
        if let Some(reporter) = &mut self.reporter {
            reporter.activity(now);
        }
    }

    /// Whether a callback is still to be called.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.callbacks_open > 0 || !self.deliveries.callbacks.is_empty()
    }

    /// Whether a callback can be called now.
    pub(crate) fn has_ended_callbacks(&self) -> bool {
        !self.deliveries.callbacks.is_empty()
    }

    /// The answers to deliver.
    pub(crate) fn deliveries(&mut self) -> &mut Deliveries {
        &mut self.deliveries
    }

    /// Counts a callback that panicked.
    pub(crate) fn callback_panicked(&mut self) {
        self.totals.callback_panics += 1;
    }

    /// Jobs accepted so far; a larger number than before means activity.
    pub(crate) fn jobs_accepted(&self) -> u64 {
        self.totals.jobs
    }

    pub(crate) fn stats(&self) -> ClientStats {
        ClientStats {
            nodes: self
                .nodes
                .iter()
                .filter(|node| node.listed)
                .map(ConfiguredNode::stats)
                .collect(),
            totals: self.totals,
            in_flight: self.jobs.len(),
            keys: self.keys.len(),
        }
    }

    // ---- I/O ----------------------------------------------------------------------------------

    /// Whether [`Self::poll_connect`] has a node.
    pub(crate) fn wants_connections(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.state, ConnectionState::Wanted))
    }

    /// The next node to connect to. To be followed by [`Self::handle_connected`] or
    /// [`Self::handle_lost`].
    pub(crate) fn poll_connect(&mut self) -> Option<NodeIndex> {
        let node =
            self.nodes.iter().position(|node| matches!(node.state, ConnectionState::Wanted))?;
        self.nodes[node].state = ConnectionState::Connecting;
        Some(node)
    }

    /// The next node whose socket is to be closed.
    pub(crate) fn poll_close(&mut self) -> Option<NodeIndex> {
        self.closed.pop()
    }

    /// There is a socket to this node, connected or about to be. `distrust`: why no private key may be sent
    /// over it.
    pub(crate) fn handle_connected(
        &mut self,
        node: NodeIndex,
        distrust: Option<String>,
        now: Instant,
    ) {
        let features = match self.reporter {
            Some(_) => FEATURES & !FEATURE_DESCRIPTION,
            None => FEATURES & !(FEATURE_REPORTS | FEATURE_DESCRIPTION),
        };
        let connection = Connection::new(self.agent.clone(), features, self.timings, now);
        let connected = &mut self.nodes[node];
        connected.state = ConnectionState::Up(Box::new(connection));
        connected.distrust = distrust;
        if !connected.listed {
            connected.retire();
        }
    }

    /// Connection of this node, if it has one.
    pub(crate) fn connection(&mut self, node: NodeIndex) -> Option<&mut Connection> {
        self.nodes.get_mut(node)?.connection()
    }

    /// Bytes for this node, if there are any.
    pub(crate) fn poll_output(&mut self, node: NodeIndex) -> Option<&mut OutBuffer> {
        let connection = self.nodes[node].connection()?;
        connection.has_output().then(|| connection.out())
    }

    /// Jobs under way at this node.
    pub(crate) fn in_flight(&mut self, node: NodeIndex) -> u32 {
        self.connection(node).map_or(0, |connection| connection.in_flight())
    }

    /// Connections to this node that failed so far: the number selects the address to try next.
    pub(crate) fn connect_failures(&self, node: NodeIndex) -> usize {
        usize::try_from(self.nodes[node].counters.connect_failures).unwrap_or(0)
    }

    /// Handles bytes that have come from this node.
    pub(crate) fn handle_received(&mut self, node: NodeIndex, now: Instant) {
        loop {
            let Some(connection) = self.connection(node) else {
                return;
            };
            match connection.next_event(now) {
                Ok(Some(event)) => self.on_event(node, event, now),
                Ok(None) => return self.fill_room(now),
                Err(ConnectionFault { why, broke_protocol }) => {
                    if broke_protocol && self.is_greeted(node) {
                        self.accuse(node, Offence::Contradiction, now);
                    }
                    return self.handle_lost(node, why, now);
                }
            }
        }
    }

    /// The connection to this node is over, or could not be made.
    pub(crate) fn handle_lost(&mut self, node: NodeIndex, why: String, now: Instant) {
        let lost = &mut self.nodes[node];
        lost.late_replies = 0;
        match mem::replace(&mut lost.state, ConnectionState::Idle) {
            ConnectionState::Up(connection) => {
                self.closed.push(node);
                if connection.is_ready() || connection.is_draining() {
                    let orderly = connection.is_idle();
                    lost.lost(connection.started(), orderly, why, &mut self.random, now);
                } else {
                    lost.connect_failed(why, &mut self.random, now);
                }
            }
            ConnectionState::Connecting => lost.connect_failed(why, &mut self.random, now),
            other => lost.state = other,
        }
        if !lost.listed {
            lost.retire();
        }
        for id in self.jobs.select(|job| job.attempts.slot_at(node).is_some()) {
            let Some(job) = self.jobs.get(id) else {
                continue;
            };
            let Some(slot) = job.attempts.slot_at(node) else {
                continue;
            };
            // Opening a key may be what ends the connection.
            let unsent = job.is_operation() && job.awaits_key_at(node);
            job.attempts[slot] = None;
            if job.is_pending() {
                let reason = if unsent { Retry::Unsent } else { Retry::Lost };
                let failed = FailedAttempt { node, reason, error: ClientError::TimedOut };
                self.attempt_failed(id, slot, failed, now);
            } else {
                self.remove_if_over(id);
            }
        }
        self.reassign(now);
    }

    /// Does what is due at `now`.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.report(now);
        let losers = self.losers_of_replies(now);
        for node in 0..self.nodes.len() {
            let loses_replies =
                losers.contains(node) || self.nodes[node].late_replies > MAX_LATE_REPLIES;
            match &mut self.nodes[node].state {
                ConnectionState::Backoff { until, .. } if *until <= now => {
                    self.nodes[node].state = ConnectionState::Wanted
                }
                ConnectionState::Up(connection) => {
                    let due = connection.tick(now);
                    let drained = connection.is_draining() && connection.is_idle();
                    let unanswered = connection.unanswered();
                    let why = if let Err(ConnectionFault { why, .. }) = due {
                        why
                    } else if drained {
                        "the node drained".to_owned()
                    } else if loses_replies {
                        "the node does not answer its jobs".to_owned()
                    } else if unanswered > self.max_keys {
                        // More than there are keys: it owes answers about keys that are closed since.
                        "the node does not open keys".to_owned()
                    } else {
                        continue;
                    };
                    self.handle_lost(node, why, now);
                }
                _ => {}
            }
        }
        self.look_if_due(now);
        self.hedge_due(now);
        if self.resume_at.is_some_and(|at| at <= now) {
            let connections = self.nodes.iter_mut().filter_map(ConfiguredNode::connection);
            self.resume_at =
                connections.filter_map(|connection| connection.pauses().next_end(now)).min();
            self.reassign(now);
        }
        if self.next_deadline.is_some_and(|at| at <= now) {
            for id in self.jobs.select(|job| job.has_callback() && job.deadline <= now) {
                self.expire(id, now);
            }
            let open = self.jobs.iter().filter(|job| job.has_callback());
            self.next_deadline = open.map(|job| job.deadline).min();
        }
    }

    /// The nodes that owe the answer of a job long after its deadline.
    fn losers_of_replies(&mut self, now: Instant) -> NodeSet {
        let mut losers = NodeSet::default();
        let owed = self.nodes.iter().any(|node| node.late_replies > 0);
        if owed && self.next_lost_reply_look <= now {
            self.next_lost_reply_look = now + LOST_REPLY_LOOK;
            for job in self.jobs.iter().filter(|job| job.deadline + LOST_REPLY_AFTER <= now) {
                job.late_at().for_each(|node| losers.insert(node));
            }
        }
        losers
    }

    /// Sends the edge's counters to a node, if a report is due and a node wants it.
    fn report(&mut self, now: Instant) {
        let Some(reporter) = &mut self.reporter else {
            return;
        };
        if !reporter.take_due(now) {
            return;
        }
        let listeners = self.nodes.iter_mut().filter_map(|node| {
            let connection = node.connection()?;
            Some((connection.done_since_report()?, connection))
        });
        // Ties go to the last; any would do.
        if let Some((_, connection)) = listeners.max_by_key(|(done, _)| *done)
            && let Some(news) = reporter.news(&self.totals)
        {
            connection.report(&news);
        }
    }

    /// Time at which [`Self::handle_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let nodes = self.nodes.iter().filter_map(|node| match &node.state {
            ConnectionState::Backoff { until, .. } => Some(*until),
            ConnectionState::Up(connection) => connection.next_timer(),
            _ => None,
        });
        let report = self.reporter.as_ref().and_then(Reporter::due);
        let hedge = self.next_hedge();
        let others = [self.next_deadline, report, hedge, self.next_look(), self.resume_at];
        nodes.chain(others.into_iter().flatten()).min()
    }

    /// Ends every job as [`ClientError::Closed`] and asks for all sockets to be closed.
    pub(crate) fn close(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if matches!(node.state, ConnectionState::Up(_)) {
                self.closed.push(index);
            }
            node.state = ConnectionState::Idle;
        }
        self.waiting.clear();
        for id in self.jobs.select(|_| true) {
            self.end(id, Err(ClientError::Closed));
            if let Some(job) = self.jobs.get(id) {
                job.attempts = Attempts::default();
                self.remove_if_over(id);
            }
        }
        for node in &mut self.nodes {
            node.late_replies = 0;
        }
    }
}

#[cfg(test)]
mod tests;
