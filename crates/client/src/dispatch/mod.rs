// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which node does what, and what happens when it does not: the pool without I/O.
//!
//! ```text
//!            submit ──► choose a node ──► key open there? ──► sent ──► completion ──► ended
//!                          ▲    │ none yet      │ no             │ lost, busy, …
//!                          │    ▼               ▼                │
//!                          │  unassigned      on key ── refused ─┤
//!                          └─────────────────────────────────────┘ while time and budget allow
//! ```
//!
//! Every operation of the protocol is idempotent, so a job whose answer is missing may be sent again.
//! How often is bounded twice: per job by [`retry::MAX_RETRIES`], and over all jobs, where a retry adds load to
//! nodes that have just said that they have too much, by [`Budget`].

mod assign;
mod hedge;
mod retry;

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Condvar};
use std::time::Instant;

use millrace_engine::error::JobError;
use millrace_wire::{FEATURE_REPORTS, JobCompletion, KeyHandle, KeyRefusal};

use self::hedge::Hedging;
use self::retry::{Budget, Retry};
use crate::buffer::OutBuffer;
use crate::config::PoolConfig;
use crate::connection::{Connection, Event, Gone, KeyState, Timings};
use crate::error::ClientError;
use crate::key::{KeyData, KeyFacts, KeyId};
use crate::node::{Link, Node};
use crate::random::Random;
use crate::report::Reporter;
use crate::stats::{ClientStats, Totals};
use crate::task::{Answer, Callback, Owner, Phase, Reply, Table, Task, TaskId, Work};

/// Jobs that one connection may owe after their deadline. Nodes answer by the deadline they are given,
/// so one that owes more has lost them.
const MAX_ABANDONED: u32 = 1024;

/// What ended and must be told to its owner, outside of any lock.
#[derive(Default)]
pub(crate) struct Outbox {
    /// To be called on the I/O thread.
    pub(crate) callbacks: Vec<(Callback, Result<Reply, ClientError>)>,
    /// To be notified by whoever holds this.
    pub(crate) wakes: Vec<Arc<Condvar>>,
}

/// How many tasks need a key, and whether its owner still does.
struct KeyUse {
    data: Arc<KeyData>,
    tasks: u32,
    closed: bool,
}

/// See the module.
pub(crate) struct Dispatcher {
    nodes: Vec<Node>,
    tasks: Table,
    keys: HashMap<KeyId, KeyUse>,
    abandoned: Vec<u32>,
    max_in_flight: usize,
    max_keys: usize,
    timings: Timings,
    agent: String,
    outbox: Outbox,
    closed: Vec<usize>,
    /// Tasks with a callback that have not ended.
    callbacks_open: usize,
    /// No task with a callback has an earlier deadline.
    next_deadline: Option<Instant>,
    random: Random,
    budget: Budget,
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
            nodes: config
                .nodes
                .iter()
                .map(|node| Node::new(node.to_string(), now))
                .collect(),
            tasks: Table::default(),
            keys: HashMap::new(),
            abandoned: vec![0; config.nodes.len()],
            max_in_flight: config.max_in_flight,
            max_keys: config.max_keys,
            timings,
            agent: config.agent_name(),
            outbox: Outbox::default(),
            closed: Vec::new(),
            callbacks_open: 0,
            next_deadline: None,
            random: Random::new(),
            budget: Budget::for_retries(),
            hedging: Hedging::new(config.hedge),
            totals: Totals::default(),
            reporter: config.report.clone().map(Reporter::new),
        }
    }

    // ---- callers ------------------------------------------------------------------------------

    /// Takes a task.
    ///
    /// # Errors
    /// It was not taken: its owner is told by this error alone.
    pub(crate) fn submit(&mut self, task: Task, now: Instant) -> Result<TaskId, ClientError> {
        if task.deadline <= now {
            return Err(ClientError::TimedOut);
        }
        if self.tasks.len() >= self.max_in_flight {
            self.totals.busy += 1;
            return Err(ClientError::Busy);
        }
        self.use_key(&task.key)?;
        for node in &mut self.nodes {
            if matches!(node.link, Link::Idle) {
                node.link = Link::Wanted;
            }
        }
        let callback = matches!(task.owner, Owner::Callback(_));
        let (job, deadline) = (task.is_job(), task.deadline);
        let key = task.key.id;
        let id = self.tasks.insert(task);
        if let Err(error) = self.assign(id, now) {
            self.tasks.remove(id);
            self.release_key(key);
            self.count_error(&error);
            return Err(error);
        }
        if callback {
            self.callbacks_open += 1;
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |at| at.min(deadline)));
        }
        if job {
            self.totals.jobs += 1;
            self.budget.deposit();
            if let Some(hedging) = &mut self.hedging {
                hedging.deposit();
            }
            self.counted(now);
        }
        Ok(id)
    }

    /// What a caller's task ended as, if it did.
    pub(crate) fn take_done(&mut self, id: TaskId) -> Option<Answer> {
        let task = self.tasks.get(id)?;
        let owed = match &task.phase {
            Phase::Done { owed, .. } => *owed,
            _ => return None,
        };
        let done = if let Some((node, handle)) = owed {
            // The entry stays for the node's answer.
            task.owner = Owner::Nobody;
            mem::replace(&mut task.phase, Phase::Sent { node, handle })
        } else {
            self.tasks.remove(id)?.phase
        };
        match done {
            Phase::Done { answer, .. } => Some(answer),
            _ => None,
        }
    }

    /// Whether a caller's task ended.
    pub(crate) fn is_done(&mut self, id: TaskId) -> bool {
        self.tasks
            .get(id)
            .is_none_or(|task| matches!(task.phase, Phase::Done { .. }))
    }

    /// Has a sleeping caller woken when its task ends.
    pub(crate) fn wake_by(&mut self, id: TaskId, waiter: &Arc<Condvar>) {
        if let Some(task) = self.tasks.get(id) {
            task.owner = Owner::Caller {
                waiter: Some(Arc::clone(waiter)),
            };
        }
    }

    /// Gives a caller's task up: the caller already knows why.
    pub(crate) fn give_up(&mut self, id: TaskId) {
        self.totals.timed_out += 1;
        self.abandon(id);
    }

    /// Ends a callback's task early. Nothing happens if it has ended.
    pub(crate) fn cancel(&mut self, id: TaskId) {
        self.end_early(id, ClientError::Cancelled);
    }

    /// Closes a key once no task needs it.
    pub(crate) fn close_key(&mut self, key: KeyId) {
        if let Some(usage) = self.keys.get_mut(&key) {
            usage.closed = true;
            self.drop_key_if_unused(key);
        }
    }

    /// The edge has counted something, or will soon: its nodes are to be told.
    pub(crate) fn counted(&mut self, now: Instant) {
        if let Some(reporter) = &mut self.reporter {
            reporter.activity(now);
        }
    }

    /// Whether callbacks are owed or waiting to be called.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.callbacks_open > 0 || !self.outbox.callbacks.is_empty()
    }

    /// Whether callbacks are waiting to be called.
    pub(crate) fn has_ended_callbacks(&self) -> bool {
        !self.outbox.callbacks.is_empty()
    }

    /// What is to be told to owners.
    pub(crate) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Counts a callback that panicked.
    pub(crate) fn callback_panicked(&mut self) {
        self.totals.callback_panics += 1;
    }

    /// Jobs taken so far: tells whether there was any activity.
    pub(crate) fn jobs(&self) -> u64 {
        self.totals.jobs
    }

    pub(crate) fn stats(&self) -> ClientStats {
        ClientStats {
            nodes: self.nodes.iter().map(Node::stats).collect(),
            totals: self.totals,
            in_flight: self.tasks.len(),
            keys: self.keys.len(),
        }
    }

    // ---- I/O ----------------------------------------------------------------------------------

    /// Whether a connection is to be made.
    pub(crate) fn wants_connections(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| matches!(node.link, Link::Wanted))
    }

    /// The next node to connect to; whoever asks must say what came of it.
    pub(crate) fn take_wanted(&mut self) -> Option<usize> {
        let node = self
            .nodes
            .iter()
            .position(|node| matches!(node.link, Link::Wanted))?;
        self.nodes[node].link = Link::Connecting;
        Some(node)
    }

    /// Nodes whose sockets are to be closed.
    pub(crate) fn take_closed(&mut self) -> Option<usize> {
        self.closed.pop()
    }

    /// There is a socket, connected or about to be.
    pub(crate) fn connected(&mut self, node: usize, now: Instant) {
        let features = match self.reporter {
            Some(_) => FEATURE_REPORTS,
            None => 0,
        };
        let connection = Connection::new(self.agent.clone(), features, self.timings, now);
        self.nodes[node].link = Link::Up(Box::new(connection));
    }

    /// Where bytes from this node go, if it has a connection.
    pub(crate) fn connection(&mut self, node: usize) -> Option<&mut Connection> {
        self.nodes.get_mut(node)?.connection()
    }

    /// Bytes for this node, if there are any.
    pub(crate) fn output(&mut self, node: usize) -> Option<&mut OutBuffer> {
        let connection = self.nodes[node].connection()?;
        connection.has_output().then(|| connection.out())
    }

    /// Jobs under way at this node.
    pub(crate) fn in_flight(&mut self, node: usize) -> u32 {
        self.connection(node)
            .map_or(0, |connection| connection.in_flight())
    }

    /// Connections to this node that were tried and failed: tells which of its addresses is next.
    pub(crate) fn attempts(&self, node: usize) -> usize {
        usize::try_from(self.nodes[node].counters.connect_failures).unwrap_or(0)
    }

    /// Bytes have come from this node.
    pub(crate) fn received(&mut self, node: usize, now: Instant) {
        loop {
            let Some(connection) = self.connection(node) else {
                return;
            };
            match connection.next_event(now) {
                Ok(Some(event)) => self.on_event(node, event, now),
                Ok(None) => return,
                Err(Gone(why)) => return self.lost(node, why, now),
            }
        }
    }

    /// The connection to this node is over, or never came about.
    pub(crate) fn lost(&mut self, at: usize, why: String, now: Instant) {
        let node = &mut self.nodes[at];
        match mem::replace(&mut node.link, Link::Idle) {
            Link::Up(connection) => {
                self.closed.push(at);
                if connection.is_ready() || connection.is_draining() {
                    let orderly = connection.is_idle();
                    node.lost(connection.started(), orderly, why, &mut self.random, now);
                } else {
                    node.connect_failed(why, &mut self.random, now);
                }
            }
            Link::Connecting => node.connect_failed(why, &mut self.random, now),
            other => node.link = other,
        }
        self.abandoned[at] = 0;
        for id in self.tasks.select(|task| task.is_owed_by(at)) {
            self.forgive(id);
        }
        for id in self.tasks.select(|task| task.is_at(at)) {
            if self
                .tasks
                .get(id)
                .is_some_and(|task| matches!(task.owner, Owner::Nobody))
            {
                self.tasks.remove(id);
            } else {
                self.retry(id, at, Retry::Lost, ClientError::TimedOut, now);
            }
        }
        self.reassign(now);
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.report(now);
        for at in 0..self.nodes.len() {
            match &mut self.nodes[at].link {
                Link::Backoff { until } if *until <= now => self.nodes[at].link = Link::Wanted,
                Link::Up(connection) => {
                    let due = connection.tick(now);
                    let drained = connection.is_draining() && connection.is_idle();
                    let unanswered = connection.unanswered();
                    if let Err(Gone(why)) = due {
                        self.lost(at, why, now);
                    } else if drained {
                        self.lost(at, "the node drained".to_owned(), now);
                    } else if self.abandoned[at] > MAX_ABANDONED {
                        self.lost(at, "the node does not answer its jobs".to_owned(), now);
                    } else if unanswered > self.max_keys {
                        // More than there are keys: it owes answers about some that are gone.
                        self.lost(at, "the node does not open keys".to_owned(), now);
                    }
                }
                _ => {}
            }
        }
        self.hedge_due(now);
        if self.next_deadline.is_some_and(|at| at <= now) {
            let due =
                |task: &Task| matches!(task.owner, Owner::Callback(_)) && task.deadline <= now;
            for id in self.tasks.select(due) {
                self.end_early(id, ClientError::TimedOut);
            }
            let open = self
                .tasks
                .iter()
                .filter(|t| matches!(t.owner, Owner::Callback(_)));
            self.next_deadline = open.map(|task| task.deadline).min();
        }
    }

    /// Tells a node what the edge has counted, if it is time and anybody wants to know.
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
        // Of equals the last one, which matters to nobody.
        if let Some((_, connection)) = listeners.max_by_key(|(done, _)| *done)
            && let Some(news) = reporter.news(&self.totals)
        {
            connection.report(&news);
        }
    }

    /// When [`Self::tick`] has something to do.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        let nodes = self.nodes.iter().filter_map(|node| match &node.link {
            Link::Backoff { until } => Some(*until),
            Link::Up(connection) => connection.next_timer(),
            _ => None,
        });
        let report = self.reporter.as_ref().and_then(Reporter::due);
        let hedge = self.next_hedge();
        nodes
            .chain(self.next_deadline)
            .chain(report)
            .chain(hedge)
            .min()
    }

    /// Ends everything.
    pub(crate) fn close(&mut self) {
        for at in 0..self.nodes.len() {
            if matches!(self.nodes[at].link, Link::Up(_)) {
                self.closed.push(at);
            }
            self.nodes[at].link = Link::Idle;
        }
        for id in self
            .tasks
            .select(|task| !matches!(task.phase, Phase::Done { owed: None, .. }))
        {
            match self.tasks.get(id).map(|task| (&task.owner, &task.phase)) {
                Some((_, Phase::Done { .. })) => self.forgive(id),
                Some((Owner::Nobody, _)) => drop(self.tasks.remove(id)),
                Some((Owner::Hedge { .. }, _)) => drop(self.remove_hedge(id)),
                _ => self.end(id, Err(ClientError::Closed)),
            }
        }
    }

    // ---- events -------------------------------------------------------------------------------

    fn on_event(&mut self, at: usize, event: Event, now: Instant) {
        match event {
            Event::Ready => {
                let node = &mut self.nodes[at];
                if let Link::Up(connection) = &node.link {
                    let name = Arc::clone(connection.node());
                    node.welcomed(&name);
                }
                // What happened while nobody was there to be told.
                self.counted(now);
                self.reassign(now);
            }
            Event::KeyOpened { key, handle, facts } => {
                self.on_key_opened(at, key, handle, &facts, now);
            }
            Event::KeyRefused { key, reason } => self.on_key_refused(at, key, reason, now),
            Event::Completed(completions) => {
                for completion in completions {
                    self.on_completion(at, completion, now);
                }
            }
            Event::Draining => {
                // What waits for a key here will not get it in time.
                let waiting = |t: &Task| matches!(t.phase, Phase::OnKey { node } if node == at);
                for id in self.tasks.select(waiting) {
                    let error = ClientError::Key(KeyRefusal::Draining);
                    self.retry(id, at, Retry::Draining, error, now);
                }
            }
        }
    }

    fn on_key_opened(
        &mut self,
        at: usize,
        key: KeyId,
        handle: KeyHandle,
        facts: &KeyFacts,
        now: Instant,
    ) {
        // A key whose owner is gone was closed by the connection itself.
        let Some(usage) = self.keys.get(&key) else {
            return;
        };
        if !usage.data.agrees_with(facts) {
            if let Some(connection) = self.connection(at) {
                connection.close_key(key);
            }
            return self.on_key_refused(at, key, KeyRefusal::NoSuchKey, now);
        }
        for id in self.waiting_for(at, key) {
            self.place(id, at, handle, now);
        }
    }

    fn on_key_refused(&mut self, at: usize, key: KeyId, reason: KeyRefusal, now: Instant) {
        let Some(connection) = self.connection(at) else {
            return;
        };
        connection.refuse(key, reason, now);
        for id in self.waiting_for(at, key) {
            self.retry(id, at, Retry::KeyRefused, ClientError::Key(reason), now);
        }
    }

    fn waiting_for(&self, at: usize, key: KeyId) -> Vec<TaskId> {
        self.tasks.select(|task| {
            task.key.id == key && matches!(task.phase, Phase::OnKey { node } if node == at)
        })
    }

    fn on_completion(&mut self, at: usize, completion: JobCompletion, now: Instant) {
        let (id, attempt) = TaskId::from_job_id(completion.id);
        let sent = self.tasks.get(id).filter(|task| task.retries == attempt);
        let Some(task) = sent else {
            self.totals.stray_completions += 1;
            return;
        };
        if task.is_owed_by(at) {
            self.forgive(id);
            return self.note_late(at);
        }
        let Phase::Sent { node, handle } = task.phase else {
            self.totals.stray_completions += 1;
            return;
        };
        if node != at {
            self.totals.stray_completions += 1;
            return;
        }
        if matches!(task.owner, Owner::Nobody) {
            self.tasks.remove(id);
            return self.note_late(at);
        }
        let hedge = task.is_hedge();
        let latency = now.saturating_duration_since(task.sent_at);
        task.phase = Phase::Unassigned;
        let key = task.key.id;
        let Some(name) = self.note_served(at, latency, completion.result.is_ok(), now) else {
            return;
        };
        let JobCompletion {
            result,
            served_by,
            queue_time,
            service_time,
            ..
        } = completion;
        match result {
            Ok(output) => {
                let reply = Reply {
                    output,
                    served_by,
                    node: name,
                    queue_time,
                    service_time,
                };
                if hedge {
                    self.hedge_won(id, reply, now);
                } else {
                    self.end(id, Ok(Some(reply)));
                }
            }
            Err(error) => self.on_job_error(id, at, (key, handle), error, now),
        }
    }

    /// Counts a completion that nobody waited for any more.
    fn note_late(&mut self, at: usize) {
        self.abandoned[at] -= 1;
        self.totals.late_completions += 1;
        if let Some(connection) = self.connection(at) {
            connection.settled();
        }
    }

    /// Counts a completion; gives the node's name.
    fn note_served(
        &mut self,
        at: usize,
        latency: std::time::Duration,
        good: bool,
        now: Instant,
    ) -> Option<Arc<str>> {
        let node = &mut self.nodes[at];
        node.served(latency, now);
        if good {
            node.counters.succeeded += 1;
            if let Some(hedging) = &mut self.hedging {
                hedging.took(latency);
            }
        } else {
            node.counters.failed += 1;
        }
        self.counted(now);
        let connection = self.nodes[at].connection()?;
        connection.settled();
        connection.served();
        Some(Arc::clone(connection.node()))
    }

    fn on_job_error(
        &mut self,
        id: TaskId,
        at: usize,
        (key, handle): (KeyId, KeyHandle),
        error: JobError,
        now: Instant,
    ) {
        let Some(reason) = Retry::of(error) else {
            let error = ClientError::Job(error);
            return if self.tasks.get(id).is_some_and(|task| task.is_hedge()) {
                self.hedge_failed(id, at, None, error, now);
            } else {
                self.end(id, Err(error));
            };
        };
        if let Some(connection) = self.connection(at) {
            match (reason, connection.key_state(key, now)) {
                (Retry::Draining, _) => connection.drain(),
                (Retry::NoSuchKey, Some(KeyState::Open(now_open))) if now_open == handle => {
                    connection.forget_key(key);
                }
                _ => {}
            }
        }
        self.retry(id, at, reason, ClientError::Job(error), now);
    }

    // ---- ends ---------------------------------------------------------------------------------

    /// Ends a task that no node owes any more.
    fn end(&mut self, id: TaskId, answer: Answer) {
        self.drop_hedge(id);
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let key = task.key.id;
        match &answer {
            Ok(Some(_)) => self.totals.succeeded += 1,
            Ok(None) => {}
            Err(error) => self.count_error(&error.clone()),
        }
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if let Owner::Caller { waiter } = &mut task.owner {
            self.outbox.wakes.extend(waiter.take());
            task.phase = Phase::Done { answer, owed: None };
        } else if let Some(task) = self.tasks.remove(id) {
            self.call_back(task.owner, answer);
        }
        self.release_key(key);
        self.trim_hedges();
    }

    /// Ends a callback's task before the node answered.
    fn end_early(&mut self, id: TaskId, error: ClientError) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if !matches!(task.owner, Owner::Callback(_)) {
            return;
        }
        let owner = mem::replace(&mut task.owner, Owner::Nobody);
        self.count_error(&error);
        self.call_back(owner, Err(error));
        self.abandon(id);
    }

    fn call_back(&mut self, owner: Owner, answer: Answer) {
        let Owner::Callback(callback) = owner else {
            return;
        };
        self.callbacks_open -= 1;
        let result = match answer {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(ClientError::Closed),
            Err(error) => Err(error),
        };
        self.outbox.callbacks.push((callback, result));
    }

    /// Nobody waits any more: forgets the task, or, if a node has it, asks the node to and waits for
    /// its completion, so that what it owes stays counted.
    fn abandon(&mut self, id: TaskId) {
        self.drop_hedge(id);
        self.leave_key(id);
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let key = task.key.id;
        if let Phase::Sent { node, .. } = task.phase {
            let job = id.job_id(task.retries);
            task.owner = Owner::Nobody;
            task.work = Work::Open;
            self.abandoned[node] += 1;
            if let Some(connection) = self.connection(node) {
                connection.cancel(job);
            }
        } else {
            self.tasks.remove(id);
        }
        self.release_key(key);
    }

    fn use_key(&mut self, key: &Arc<KeyData>) -> Result<(), ClientError> {
        if let Some(usage) = self.keys.get_mut(&key.id) {
            usage.tasks += 1;
            return Ok(());
        }
        if self.keys.len() >= self.max_keys {
            return Err(ClientError::TooManyKeys);
        }
        self.keys.insert(
            key.id,
            KeyUse {
                data: Arc::clone(key),
                tasks: 1,
                closed: false,
            },
        );
        Ok(())
    }

    fn release_key(&mut self, key: KeyId) {
        if let Some(usage) = self.keys.get_mut(&key) {
            usage.tasks -= 1;
            self.drop_key_if_unused(key);
        }
    }

    fn drop_key_if_unused(&mut self, key: KeyId) {
        if self
            .keys
            .get(&key)
            .is_some_and(|usage| usage.closed && usage.tasks == 0)
        {
            self.keys.remove(&key);
            for node in &mut self.nodes {
                if let Some(connection) = node.connection() {
                    connection.close_key(key);
                }
            }
        }
    }

    fn count_error(&mut self, error: &ClientError) {
        match error {
            ClientError::Job(_) => self.totals.failed += 1,
            ClientError::NoNode(_) => self.totals.no_node += 1,
            ClientError::TimedOut => self.totals.timed_out += 1,
            ClientError::Cancelled => self.totals.cancelled += 1,
            ClientError::Busy => self.totals.busy += 1,
            _ => {}
        }
    }

    fn count_retry(&mut self, reason: Retry) {
        let retries = &mut self.totals.retries;
        let counter = match reason {
            Retry::Lost => &mut retries.connection_lost,
            Retry::Busy => &mut retries.busy,
            Retry::Draining => &mut retries.draining,
            Retry::Failed => &mut retries.failed,
            Retry::NoSuchKey => &mut retries.no_such_key,
            Retry::NotOffered => &mut retries.not_offered,
            Retry::KeyRefused => &mut retries.key_refused,
        };
        *counter += 1;
    }
}

#[cfg(test)]
mod tests;
