// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Choice of a node for a job, at first and after a failure.
//!
//! A new job goes through [`Dispatcher::assign`]: choose, then attempt, or wait. An attempt sends the job, or asks for
//! its key first. Events of connections lead to [`Dispatcher::reassign`] and [`Dispatcher::fill_room`] for the jobs
//! that wait, and to [`Dispatcher::attempt_failed`]. Second attempts beside a running one are those of `hedge`.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_operation::JobError;
use millrace_wire::KeyHandle;

use super::Dispatcher;
use super::retry::{FailedAttempt, MAX_RETRIES, Retry};
use crate::config::MAX_NODES;
use crate::connection::{KeyPause, KeyStage, OutgoingJob};
use crate::error::ClientError;
use crate::job::{Attempt, JobRef, JobRequest, Slot, Stage};
use crate::key::KeyData;
use crate::node::{ConfiguredNode, ConnectionState, NodeIndex, NodeSet};

/// Bound on the jobs in a row that find no node while room is filled. Their keys are paused: when a pause ends, all
/// waiting jobs are assigned again.
const MAX_STUCK: usize = 16;

/// Result of [`Dispatcher::choose`].
pub(super) enum Assignment {
    Node(NodeIndex),
    /// No node can take the job now, but one may soon.
    Wait,
    None(ClientError),
}

/// The nodes that may take one job, and what keeps the others from it.
pub(super) struct Candidates {
    /// Nodes that can take the job: the first `count`.
    able: [NodeIndex; MAX_NODES],
    count: usize,
    /// A node has no room.
    full: bool,
    /// The pause that ends first, of those that nodes announced for this key. `None` if no node did.
    paused: Option<KeyPause>,
    /// The nodes without a connection that is ready.
    absent: NodeSet,
    /// Error of the last connected node that refuses the key or may not be sent it. `None` if there is no such node.
    refused: Option<ClientError>,
}

impl Candidates {
    /// Why no node takes the job.
    pub(super) fn into_error(self, nodes: &[ConfiguredNode]) -> ClientError {
        match (self.paused, self.refused) {
            _ if self.full => ClientError::Busy,
            (Some(pause), _) if pause.over_quota => ClientError::Job(JobError::OverQuota),
            (Some(_), _) => ClientError::Busy,
            (None, Some(refused)) => refused,
            (None, None) => ClientError::NoNode(describe_errors(nodes)),
        }
    }
}

/// The last error of each node.
fn describe_errors(nodes: &[ConfiguredNode]) -> String {
    nodes
        .iter()
        .filter(|node| node.listed)
        .map(ConfiguredNode::describe_error)
        .collect::<Vec<_>>()
        .join("; ")
}

impl Dispatcher {
    /// Gives a job to a node, or leaves it waiting.
    ///
    /// # Errors
    /// There is nothing to wait for.
    pub(super) fn assign(&mut self, id: JobRef, now: Instant) -> Result<(), ClientError> {
        let Some(job) = self.jobs.get(id) else {
            return Ok(());
        };
        let key = Arc::clone(&job.key);
        let tried = job.tried;
        let deadline = job.deadline;
        let choice = self.choose(&key, tried, deadline, now);
        if let Assignment::Node(node) = choice {
            self.attempt(id, Slot::First, node, now);
            return Ok(());
        }
        for node in &mut self.nodes {
            node.retry_early(now);
        }
        if let Assignment::None(error) = choice {
            return Err(error);
        }
        if self.waiting.len() >= 2 * self.max_in_flight {
            let jobs = &mut self.jobs;
            self.waiting.retain(|id| jobs.get(*id).is_some_and(|job| job.is_unassigned()));
        }
        self.waiting.push_back(id);
        Ok(())
    }

    /// Starts an attempt at a node: sends the job, or asks for the key first.
    pub(super) fn attempt(&mut self, id: JobRef, slot: Slot, node: NodeIndex, now: Instant) {
        let (Some(job), Some(connection)) = (self.jobs.get(id), self.nodes[node].connection())
        else {
            return;
        };
        let state = connection.key_state(job.key.id, now);
        job.attempts[slot] =
            Some(Attempt { number: job.attempts_made, node, stage: Stage::AwaitingKey });
        job.attempts_made = job.attempts_made.wrapping_add(1);
        if let Some(KeyStage::Open(handle)) = state {
            self.send(id, slot, handle, now);
        } else {
            if !matches!(state, Some(KeyStage::Opening)) {
                connection.open_key(&job.key, now);
            }
            // It counts as in flight from here. Otherwise a burst would go to a node without the key open.
            connection.add_promised_job();
        }
        if slot == Slot::First {
            self.hedge_from(id, now);
        }
    }

    /// Power of two choices (Mitzenmacher 2001) by load times latency, among the nodes that can take
    /// the job.
    pub(super) fn choose(
        &mut self,
        key: &KeyData,
        tried: NodeSet,
        deadline: Instant,
        now: Instant,
    ) -> Assignment {
        let candidates = self.candidates(key, tried, now);
        let waits = if key.is_import() {
            // Its owner can do the work at once.
            !candidates.full
                && candidates.absent.iter().any(|node| self.nodes[node].is_connecting())
        } else {
            let resumes = candidates.paused.is_some_and(|pause| pause.until < deadline);
            candidates.full || !candidates.absent.is_empty() || resumes
        };
        match candidates.count {
            0 if waits => Assignment::Wait,
            0 => Assignment::None(candidates.into_error(&self.nodes)),
            1 => Assignment::Node(candidates.able[0]),
            count => Assignment::Node(self.better_of_two(&candidates.able[..count], now)),
        }
    }

    pub(super) fn candidates(&self, key: &KeyData, tried: NodeSet, now: Instant) -> Candidates {
        let mut candidates = Candidates {
            able: [0; MAX_NODES],
            count: 0,
            full: false,
            paused: None,
            absent: NodeSet::default(),
            refused: None,
        };
        for (index, node) in self.nodes.iter().enumerate().take(MAX_NODES) {
            if tried.contains(index) || !node.listed {
                continue;
            }
            let ready = match &node.state {
                ConnectionState::Up(connection) if connection.is_ready() => connection,
                _ => {
                    candidates.absent.insert(index);
                    continue;
                }
            };
            if let Some(KeyStage::Refused { reason, .. }) = ready.key_state(key.id, now) {
                candidates.refused = Some(ClientError::Key(reason));
            } else if let Some(why) = node.distrust.as_ref().filter(|_| key.is_import()) {
                candidates.refused = Some(ClientError::Untrusted(why.clone()));
            } else if let Some(pause) = ready.paused(key.id, now) {
                let first = candidates.paused.filter(|first| first.until <= pause.until);
                candidates.paused = first.or(Some(pause));
            } else if ready.has_room() {
                candidates.able[candidates.count] = index;
                candidates.count += 1;
            } else {
                candidates.full = true;
            }
        }
        candidates
    }

    fn better_of_two(&mut self, able: &[NodeIndex], now: Instant) -> NodeIndex {
        let count = u32::try_from(able.len()).unwrap_or(1);
        let first = self.random.below(count);
        let second = (first + 1 + self.random.below(count - 1)) % count;
        let [one, other] = [first, second].map(|index| able[index as usize]);
        if self.nodes[other].cost(now) < self.nodes[one].cost(now) { other } else { one }
    }

    /// The key is open at the node of this attempt: sends the job, or ends it if opening was all.
    pub(super) fn send(&mut self, id: JobRef, slot: Slot, handle: KeyHandle, now: Instant) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let JobRequest::Operation { operation, input } = &job.request else {
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
            let failed = FailedAttempt {
                node: attempt.node,
                reason: Retry::NotOffered,
                error: ClientError::Job(JobError::NotOffered),
            };
            job.attempts[slot] = None;
            return self.attempt_failed(id, slot, failed, now);
        }
        let time_left = job.deadline.saturating_duration_since(now);
        let outgoing = OutgoingJob {
            id: id.job_id(attempt.number),
            handle,
            // 0 would mean the node's own bound.
            budget: time_left.max(Duration::from_micros(1)),
            operation,
            input,
        };
        connection.send_job(&outgoing, now);
        node.counters.jobs += 1;
        attempt.stage = Stage::Sent { handle, at: now };
    }

    /// Tries again to find nodes for the jobs that wait.
    pub(super) fn reassign(&mut self, now: Instant) {
        for id in mem::take(&mut self.waiting) {
            self.assign_again(id, now);
        }
    }

    /// Gives waiting jobs to nodes that have room again.
    pub(super) fn fill_room(&mut self, now: Instant) {
        let mut stuck = 0;
        for _ in 0..self.waiting.len() {
            if !self.nodes.iter().any(ConfiguredNode::has_room) || stuck == MAX_STUCK {
                return;
            }
            if let Some(id) = self.waiting.pop_front() {
                self.assign_again(id, now);
                stuck = match self.jobs.get(id) {
                    Some(job) if job.is_unassigned() => stuck + 1,
                    _ => 0,
                };
            }
        }
    }

    fn assign_again(&mut self, id: JobRef, now: Instant) {
        let waits = self.jobs.get(id).is_some_and(|job| job.is_unassigned());
        if waits && let Err(error) = self.assign(id, now) {
            self.end(id, Err(error));
        }
    }

    /// An attempt failed. Its job continues with its other attempt if it has one, and is retried if not.
    pub(super) fn attempt_failed(
        &mut self,
        id: JobRef,
        slot: Slot,
        failed: FailedAttempt,
        now: Instant,
    ) {
        if slot == Slot::Hedge {
            self.totals.hedge_losses += 1;
        }
        match self.jobs.get(id) {
            Some(job) if !job.attempts.is_empty() => {
                if !failed.reason.leaves_with_the_connection() {
                    job.tried.insert(failed.node);
                }
            }
            _ => self.retry(id, failed, now),
        }
    }

    /// Sends a job elsewhere if that is allowed and possible. Otherwise the job ends with the error of its attempt or,
    /// if its connection was lost, with those of the other nodes.
    fn retry(&mut self, id: JobRef, failed: FailedAttempt, now: Instant) {
        let FailedAttempt { node, reason, error } = failed;
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        if job.retries >= MAX_RETRIES || job.deadline <= now {
            let error = if reason == Retry::Lost {
                ClientError::NoNode(describe_errors(&self.nodes))
            } else {
                error
            };
            return self.end(id, Err(error));
        }
        // A node that said when it takes such a job again gets it then, if no other node takes it before. Where this
        // process has the key, its owner does the work at once.
        let resumes = matches!(reason, Retry::Busy | Retry::OverQuota)
            && !job.key.is_import()
            && self.nodes[node]
                .connection()
                .and_then(|connection| connection.paused(job.key.id, now))
                .is_some_and(|pause| pause.until < job.deadline);
        // A node that forgot a handle may open the key again, once.
        let same_node_again = resumes
            || reason.leaves_with_the_connection()
            || (reason == Retry::NoSuchKey && job.retries == 0);
        if !same_node_again {
            job.tried.insert(node);
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
