// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Choice of a node for a job, at first and after a failure.
//!
//! A new job goes through [`Dispatcher::assign`]: choose, then attempt, or wait. An attempt sends the job, or asks for
//! its key first. Events of connections lead to [`Dispatcher::reassign`] and [`Dispatcher::fill_room`] for the jobs
//! that wait, and to [`Dispatcher::attempt_failed`]. Second attempts beside a running one are those of `hedge`.

use std::mem;
use std::time::{Duration, Instant};

use millrace_operation::JobError;
use millrace_wire::KeyHandle;

use super::Dispatcher;
use super::retry::{FailedAttempt, MAX_RETRIES, Retry};
use crate::config::MAX_NODES;
use crate::connection::{KeyPause, KeyStage, OutgoingJob};
use crate::error::ClientError;
use crate::job::{Attempt, Demand, JobRef, JobRequest, Slot, Stage};
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
#[derive(Default)]
pub(super) struct Candidates {
    /// Nodes that can take the job.
    able: NodeSet,
    /// Nodes that could, and lost it with an earlier connection.
    lost: NodeSet,
    /// Nodes that could, and are out.
    out: NodeSet,
    /// Nodes that could, and answered the same operation wrongly.
    wrong: NodeSet,
    /// Nodes that could, and refused jobs with this key that others did.
    unwilling: NodeSet,
    /// A node that is out and that this job may try.
    trial: Option<NodeIndex>,
    /// A node has no room.
    full: bool,
    /// A node that is out has no room.
    out_is_full: bool,
    /// The pause that ends first, of those that nodes announced for this key. `None` if no node did.
    paused: Option<KeyPause>,
    /// The nodes without a connection that is ready.
    absent: NodeSet,
    /// Error of the last connected node that refuses the key or may not be sent it. `None` if there is no such node.
    refused: Option<ClientError>,
}

impl Candidates {
    /// Whether a node takes the job now, or has room for it soon.
    fn has_willing(&self) -> bool {
        let takes = [self.able, self.lost, self.unwilling].iter().any(|set| !set.is_empty());
        takes || self.full
    }

    /// Why no node takes the job.
    pub(super) fn into_error(self, nodes: &[ConfiguredNode]) -> ClientError {
        match (self.paused, self.refused) {
            _ if self.full || !self.unwilling.is_empty() => ClientError::Busy,
            (Some(pause), _) if pause.over_quota => ClientError::Job(JobError::OverQuota),
            (Some(_), _) => ClientError::Busy,
            (None, Some(refused)) => refused,
            (None, None) if self.out_is_full || !self.out.is_empty() || !self.wrong.is_empty() => {
                ClientError::Distrusted
            }
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
        let demand = job.demand();
        let choice = self.choose(&demand, now);
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
        let is_trial = self.nodes[node].standing.tried_since() == Some(now);
        let (Some(job), Some(connection)) = (self.jobs.get(id), self.nodes[node].connection())
        else {
            return;
        };
        let state = connection.key_state(job.key.id, now);
        let number = job.attempts_made;
        job.attempts[slot] = Some(Attempt { number, node, stage: Stage::AwaitingKey, is_trial });
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
        self.look_at(id, number, now);
    }

    /// Power of two choices (Mitzenmacher 2001) by load times latency, among the nodes that can take
    /// the job. A node that is out gets it if it may be tried now, or if there is none to wait for.
    pub(super) fn choose(&mut self, demand: &Demand, now: Instant) -> Assignment {
        let candidates = self.candidates(demand, now);
        if let Some(node) = candidates.trial {
            self.nodes[node].standing.try_begins(now);
            return Assignment::Node(node);
        }
        for set in [candidates.able, candidates.lost] {
            if let Some(node) = self.better_of_two(set, now) {
                self.nodes[node].is_chosen(demand.key.id, now);
                return Assignment::Node(node);
            }
        }
        let connects = candidates.absent.iter().any(|node| self.nodes[node].is_connecting());
        if demand.key.is_import() {
            // Its owner can do the work at once.
            return if connects && !candidates.full {
                Assignment::Wait
            } else {
                Assignment::None(candidates.into_error(&self.nodes))
            };
        }
        let resumes = candidates.paused.is_some_and(|pause| pause.until < demand.deadline);
        // A result that its owner can verify is better than none; of others only the nodes that finished their pause
        // are asked.
        let last = if demand.is_proof {
            candidates.out
        } else {
            self.with_pause_over(candidates.out, now)
        };
        let has_better = connects || candidates.full || resumes;
        for set in [candidates.unwilling, last] {
            if let Some(node) = self.better_of_two(set, now).filter(|_| !has_better) {
                return Assignment::Node(node);
            }
        }
        let has_out = candidates.out_is_full || !candidates.out.is_empty();
        if candidates.full || resumes || has_out || !candidates.absent.is_empty() {
            self.resume_after_pauses(candidates.out, now);
            return Assignment::Wait;
        }
        match self.better_of_two(candidates.wrong, now) {
            Some(node) => Assignment::Node(node),
            None => Assignment::None(candidates.into_error(&self.nodes)),
        }
    }

    /// The nodes of the set whose pause is over.
    fn with_pause_over(&self, out: NodeSet, now: Instant) -> NodeSet {
        let mut over = NodeSet::default();
        out.iter()
            .filter(|node| self.nodes[*node].standing.is_over(now))
            .for_each(|node| over.insert(node));
        over
    }

    /// Has the waiting jobs assigned again when the pause of one of these nodes ends.
    fn resume_after_pauses(&mut self, out: NodeSet, now: Instant) {
        let ends = out.iter().filter_map(|node| self.nodes[node].standing.next_try());
        let ends = ends.filter(|at| *at > now);
        self.resume_at = self.resume_at.into_iter().chain(ends).min();
    }

    pub(super) fn candidates(&self, demand: &Demand, now: Instant) -> Candidates {
        let Demand { key, .. } = demand;
        let mut candidates = Candidates::default();
        for (index, node) in self.nodes.iter().enumerate().take(MAX_NODES) {
            if demand.tried.contains(index) || !node.listed {
                continue;
            }
            let ready = match &node.state {
                ConnectionState::Up(connection) if connection.is_ready() => connection,
                _ => {
                    candidates.absent.insert(index);
                    continue;
                }
            };
            let is_out = node.standing.is_out();
            if let Some(KeyStage::Refused { reason, .. }) = ready.key_state(key.id, now) {
                candidates.refused = Some(ClientError::Key(reason));
            } else if let Some(why) = node.distrust.as_ref().filter(|_| key.is_import()) {
                candidates.refused = Some(ClientError::Untrusted(why.clone()));
            } else if demand.wrong.contains(index) {
                candidates.wrong.insert(index);
            } else if let Some(pause) = ready.paused(key.id, now) {
                let first = candidates.paused.filter(|first| first.until <= pause.until);
                candidates.paused = first.or(Some(pause));
            } else if !ready.has_room() {
                *(if is_out { &mut candidates.out_is_full } else { &mut candidates.full }) = true;
            } else if is_out {
                if demand.may_try && node.standing.may_try(demand.is_proof, now) {
                    candidates.trial = Some(index);
                }
                candidates.out.insert(index);
            } else if node.is_avoided(key.id, now) {
                candidates.unwilling.insert(index);
            } else if demand.lost.contains(index) {
                candidates.lost.insert(index);
            } else {
                candidates.able.insert(index);
            }
        }
        candidates
    }

    /// The better one of two random nodes of the set.
    fn better_of_two(&mut self, able: NodeSet, now: Instant) -> Option<NodeIndex> {
        let count = able.len();
        let nth = |index: u32| able.iter().nth(index as usize);
        if count < 2 {
            return nth(0);
        }
        let first = self.random.below(count);
        let second = (first + 1 + self.random.below(count - 1)) % count;
        let (one, other) = (nth(first)?, nth(second)?);
        Some(if self.nodes[other].cost(now) < self.nodes[one].cost(now) { other } else { one })
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
        self.rescue_stranded(now);
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
                job.note_failure(failed.node, failed.reason, false);
                if slot == Slot::Hedge {
                    self.rescue_again(id, now);
                }
            }
            _ => self.retry(id, failed, now),
        }
    }

    /// Sends a job elsewhere if that is allowed and possible. Otherwise the job ends with the error of its attempt or,
    /// if its connection was lost, with those of the other nodes.
    fn retry(&mut self, id: JobRef, failed: FailedAttempt, now: Instant) {
        let FailedAttempt { node, reason, error } = failed;
        let is_lost = matches!(reason, Retry::Lost | Retry::Unsent);
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        if job.retries >= MAX_RETRIES || job.deadline <= now {
            let error =
                if is_lost { ClientError::NoNode(describe_errors(&self.nodes)) } else { error };
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
        let same_node_again = resumes || (reason == Retry::NoSuchKey && job.retries == 0);
        job.note_failure(node, reason, same_node_again);
        if is_lost {
            job.lost.insert(node);
        }
        if reason.counts() {
            job.retries += 1;
        }
        job.hedge_from = None;
        if reason == Retry::Denied {
            // A refusal for good: the job waits for no node that may come.
            let demand = job.demand();
            if demand.key.is_import() || !self.candidates(&demand, now).has_willing() {
                return self.end(id, Err(error));
            }
        }
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
                self.end(id, Err(if is_lost { elsewhere } else { error }));
            }
        }
    }
}
