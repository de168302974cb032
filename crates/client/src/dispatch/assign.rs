// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which node gets a task, at first and after a failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_wire::KeyHandle;

use super::Dispatcher;
use super::retry::{MAX_RETRIES, Retry};
use crate::config::MAX_NODES;
use crate::connection::KeyState;
use crate::error::ClientError;
use crate::key::{KeyData, KeyId};
use crate::node::{Link, Node};
use crate::task::{Phase, TaskId, Work};

/// What [`Dispatcher::choose`] found.
pub(super) enum Choice {
    Node(usize),
    Wait,
    None(ClientError),
}

impl Dispatcher {
    /// Gives a task to a node, or leaves it for one that is coming up.
    pub(super) fn assign(&mut self, id: TaskId, now: Instant) -> Result<(), ClientError> {
        let Some(task) = self.tasks.get(id) else {
            return Ok(());
        };
        let (key, tried) = (Arc::clone(&task.key), task.tried);
        match self.choose(key.id, tried, now) {
            Choice::Wait => Ok(()),
            Choice::None(error) => Err(error),
            Choice::Node(at) => {
                self.hand_to(id, &key, at, now);
                Ok(())
            }
        }
    }

    pub(super) fn hand_to(&mut self, id: TaskId, key: &KeyData, at: usize, now: Instant) {
        let Some(connection) = self.connection(at) else {
            return;
        };
        let state = connection.key_state(key.id, now);
        if let Some(KeyState::Open(handle)) = state {
            return self.place(id, at, handle, now);
        }
        if !matches!(state, Some(KeyState::Opening)) {
            connection.open_key(key, now);
        }
        // It counts from here, or a burst would pile up where the key is not open yet.
        connection.promised();
        if let Some(task) = self.tasks.get(id) {
            task.phase = Phase::OnKey { node: at };
        }
        self.hedge_from(id, now);
    }

    /// Power of two choices (Mitzenmacher 2001) by load times latency, among the nodes that can take
    /// the job.
    pub(super) fn choose(&mut self, key: KeyId, tried: u64, now: Instant) -> Choice {
        let mut able = [0usize; MAX_NODES];
        let mut count = 0;
        let (mut full, mut hopeful, mut refused) = (false, false, None);
        for (at, node) in self.nodes.iter().enumerate().take(MAX_NODES) {
            if tried & (1 << at) != 0 {
                continue;
            }
            match &node.link {
                Link::Up(connection) if connection.is_ready() => {
                    if let Some(KeyState::Refused { reason, .. }) = connection.key_state(key, now) {
                        refused = Some(reason);
                    } else if connection.has_room() {
                        able[count] = at;
                        count += 1;
                    } else {
                        full = true;
                    }
                }
                _ => hopeful |= node.is_hopeful(),
            }
        }
        match count {
            0 if full => Choice::None(ClientError::Busy),
            0 if hopeful => Choice::Wait,
            0 => Choice::None(match refused {
                Some(reason) => ClientError::Key(reason),
                None => ClientError::NoNode(self.troubles()),
            }),
            1 => Choice::Node(able[0]),
            _ => Choice::Node(self.better_of_two(&able[..count], now)),
        }
    }

    fn better_of_two(&mut self, able: &[usize], now: Instant) -> usize {
        let count = u32::try_from(able.len()).unwrap_or(1);
        let first = self.random.below(count);
        let second = (first + 1 + self.random.below(count - 1)) % count;
        let (first, second) = (able[first as usize], able[second as usize]);
        let cost = |node: &Node| match &node.link {
            Link::Up(connection) => node.cost(connection.in_flight(), now),
            _ => u64::MAX,
        };
        if cost(&self.nodes[second]) < cost(&self.nodes[first]) {
            second
        } else {
            first
        }
    }

    fn troubles(&self) -> String {
        self.nodes
            .iter()
            .map(Node::trouble)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// A task does not wait for a key any more.
    pub(super) fn leave_key(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if let Phase::OnKey { node } = task.phase {
            task.phase = Phase::Unassigned;
            if let Some(connection) = self.connection(node) {
                connection.settled();
            }
        }
    }

    /// The key is open at this node: sends the job, or, if opening was all, ends.
    pub(super) fn place(&mut self, id: TaskId, at: usize, handle: KeyHandle, now: Instant) {
        self.leave_key(id);
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        let Work::Job { operation, input } = &task.work else {
            return self.end(id, Ok(None));
        };
        let budget = task.deadline.saturating_duration_since(now);
        let node = &mut self.nodes[at];
        let Some(connection) = node.connection() else {
            return;
        };
        // 0 would mean the node's own bound.
        let budget = budget.max(Duration::from_micros(1));
        connection.send_job(
            id.job_id(task.retries),
            handle,
            budget,
            operation,
            input,
            now,
        );
        node.counters.jobs += 1;
        task.phase = Phase::Sent { node: at, handle };
        task.sent_at = now;
        self.hedge_from(id, now);
    }

    /// Looks again at everything that has no node.
    pub(super) fn reassign(&mut self, now: Instant) {
        for id in self
            .tasks
            .select(|task| matches!(task.phase, Phase::Unassigned))
        {
            if let Err(error) = self.assign(id, now) {
                self.end(id, Err(error));
            }
        }
    }

    /// Sends a task elsewhere if that is allowed and possible; otherwise it ends as `error` (or, if its
    /// connection was lost, as what is wrong with the others).
    pub(super) fn retry(
        &mut self,
        id: TaskId,
        at: usize,
        reason: Retry,
        error: ClientError,
        now: Instant,
    ) {
        self.leave_key(id);
        let Some(task) = self.tasks.get(id) else {
            return;
        };
        if task.is_hedge() {
            return self.hedge_failed(id, at, Some(reason), error, now);
        }
        if task.hedge.is_some() {
            // It is under way elsewhere already.
            if reason != Retry::Lost {
                task.tried |= 1 << at;
            }
            task.phase = Phase::OnHedge;
            return;
        }
        if task.retries >= MAX_RETRIES || task.deadline <= now {
            let error = if reason == Retry::Lost {
                self.lost_error()
            } else {
                error
            };
            return self.end(id, Err(error));
        }
        // A handle that the node forgot may be opened there again, once.
        let same_node_again =
            reason == Retry::Lost || (reason == Retry::NoSuchKey && task.retries == 0);
        if !same_node_again {
            task.tried |= 1 << at;
        }
        if reason != Retry::KeyRefused {
            task.retries += 1;
        }
        task.phase = Phase::Unassigned;
        task.waits_since = None;
        if reason.costs() && !self.budget.take() {
            self.totals.budget_exhausted += 1;
            return self.end(id, Err(error));
        }
        match self.assign(id, now) {
            Ok(()) => self.count_retry(reason),
            Err(elsewhere) => {
                if reason.costs() {
                    self.budget.give_back();
                }
                self.end(
                    id,
                    Err(if reason == Retry::Lost {
                        elsewhere
                    } else {
                        error
                    }),
                );
            }
        }
    }

    fn lost_error(&self) -> ClientError {
        ClientError::NoNode(self.troubles())
    }
}
