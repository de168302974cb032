// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Which node gets a job, at first and after a failure.

use std::time::{Duration, Instant};

use millrace_engine::JobError;
use millrace_wire::KeyHandle;

use super::Dispatcher;
use super::retry::{MAX_RETRIES, Retry};
use crate::config::MAX_NODES;
use crate::connection::KeyState;
use crate::error::ClientError;
use crate::job::{Attempt, FIRST, HEDGE, JobRef, Request, Stage};
use crate::key::KeyId;
use crate::node::{Link, Node};

/// Result of [`Dispatcher::choose`].
pub(super) enum Choice {
    Node(usize),
    /// No node can take the job now, but one is connecting.
    Wait,
    None(ClientError),
}

impl Dispatcher {
    /// Gives a job to a node, or leaves it unassigned while a node is connecting.
    pub(super) fn assign(&mut self, id: JobRef, now: Instant) -> Result<(), ClientError> {
        let Some(job) = self.jobs.get(id) else {
            return Ok(());
        };
        let (key, tried) = (job.key.id, job.tried);
        match self.choose(key, tried, now) {
            Choice::Wait => Ok(()),
            Choice::None(error) => Err(error),
            Choice::Node(node) => {
                self.attempt(id, FIRST, node, now);
                Ok(())
            }
        }
    }

    /// Starts an attempt at a node: sends the job, or asks for the key first.
    pub(super) fn attempt(&mut self, id: JobRef, slot: usize, node: usize, now: Instant) {
        let (Some(job), Some(connection)) = (self.jobs.get(id), self.nodes[node].connection())
        else {
            return;
        };
        let state = connection.key_state(job.key.id, now);
        job.attempts[slot] = Some(Attempt {
            number: job.attempts_made,
            node,
            stage: Stage::AwaitingKey,
        });
        job.attempts_made = job.attempts_made.wrapping_add(1);
        if let Some(KeyState::Open(handle)) = state {
            self.send(id, slot, handle, now);
        } else {
            if !matches!(state, Some(KeyState::Opening)) {
                connection.open_key(&job.key, now);
            }
            // It counts as in flight from here. Otherwise a burst would go to a node without the key open.
            connection.promised();
        }
        if slot == FIRST {
            self.hedge_from(id, now);
        }
    }

    /// Power of two choices (Mitzenmacher 2001) by load times latency, among the nodes that can take
    /// the job.
    pub(super) fn choose(&mut self, key: KeyId, tried: u64, now: Instant) -> Choice {
        let mut able = [0usize; MAX_NODES];
        let mut count = 0;
        let (mut full, mut hopeful, mut refused) = (false, false, None);
        for (index, node) in self.nodes.iter().enumerate().take(MAX_NODES) {
            if tried & (1 << index) != 0 {
                continue;
            }
            match &node.link {
                Link::Up(connection) if connection.is_ready() => {
                    if let Some(KeyState::Refused { reason, .. }) = connection.key_state(key, now) {
                        refused = Some(reason);
                    } else if connection.has_room() {
                        able[count] = index;
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

    /// The key is open at the node of this attempt: sends the job, or ends it if opening was all.
    pub(super) fn send(&mut self, id: JobRef, slot: usize, handle: KeyHandle, now: Instant) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let Request::Operation { operation, input } = &job.request else {
            job.attempts[slot] = None;
            return self.end(id, Ok(None));
        };
        let Some(attempt) = &mut job.attempts[slot] else {
            return;
        };
        let node = &mut self.nodes[attempt.node];
        let Some(connection) = node.connection() else {
            return;
        };
        if !connection.can_name(operation) {
            let node = attempt.node;
            job.attempts[slot] = None;
            let error = ClientError::Job(JobError::NotOffered);
            return self.attempt_failed(id, slot, node, Retry::NotOffered, error, now);
        }
        // 0 would mean the node's own bound.
        let budget = job.deadline.saturating_duration_since(now);
        let budget = budget.max(Duration::from_micros(1));
        let job_id = id.job_id(attempt.number);
        connection.send_job(job_id, handle, budget, operation, input, now);
        node.counters.jobs += 1;
        attempt.stage = Stage::Sent { handle, at: now };
    }

    /// Tries again to find nodes for the jobs that have none.
    pub(super) fn reassign(&mut self, now: Instant) {
        for id in self.jobs.select(crate::job::Job::is_unassigned) {
            if let Err(error) = self.assign(id, now) {
                self.end(id, Err(error));
            }
        }
    }

    /// An attempt failed and is no longer in its job. The job goes on with its other attempt if it has
    /// one, and is retried if not.
    pub(super) fn attempt_failed(
        &mut self,
        id: JobRef,
        slot: usize,
        node: usize,
        reason: Retry,
        error: ClientError,
        now: Instant,
    ) {
        if slot == HEDGE {
            if !self.hedge_is_dispensable(id) {
                self.retry(id, node, reason, error, now);
            }
            return;
        }
        match self.jobs.get(id) {
            Some(job) if job.attempts[HEDGE].is_some() => {
                if reason != Retry::Lost {
                    job.tried |= 1 << node;
                }
            }
            _ => self.retry(id, node, reason, error, now),
        }
    }

    /// Sends a job elsewhere if that is allowed and possible; otherwise the job ends as `error` (or, if
    /// its connection was lost, as what is wrong with the other nodes).
    fn retry(&mut self, id: JobRef, node: usize, reason: Retry, error: ClientError, now: Instant) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        if job.retries >= MAX_RETRIES || job.deadline <= now {
            let error = if reason == Retry::Lost {
                ClientError::NoNode(self.troubles())
            } else {
                error
            };
            return self.end(id, Err(error));
        }
        // A node that forgot a handle may open the key again, once.
        let same_node_again =
            reason == Retry::Lost || (reason == Retry::NoSuchKey && job.retries == 0);
        if !same_node_again {
            job.tried |= 1 << node;
        }
        if reason != Retry::KeyRefused {
            job.retries += 1;
        }
        job.hedge_from = None;
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
                let lost = reason == Retry::Lost;
                self.end(id, Err(if lost { elsewhere } else { error }));
            }
        }
    }
}
