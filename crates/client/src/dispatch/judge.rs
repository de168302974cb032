// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Nodes that are taken out, and tried again: for wrong results, broken promises of the protocol, and silence.
//!
//! A node is silent if it has owed an answer for longer than the client's patience lasts, while another node has
//! answered a later job with the same key. Pings do not show that: such a node may answer them. A pool whose nodes are
//! all slow loses none by this rule, since it compares nodes, each job with jobs of the same key, and a node's time
//! with that of the others.
//!
//! The jobs under way at a node that is taken out get a second attempt at another one. Hedges pay from a budget; these
//! attempts do not, as there is one per job and pause, and the first node does no work that anybody can rely on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millrace_operation::JobError;

use super::Dispatcher;
use crate::job::{JobRef, ReplySource, Slot};
use crate::node::{ConfiguredNode, NodeIndex};
use crate::standing::{EarlierResults, Offence};

/// Shortest patience. Shorter silences come from the scheduler of a busy machine.
const MIN_PATIENCE: Duration = Duration::from_millis(250);

/// Longest patience: a quarter of the default deadline stays for the second node.
const MAX_PATIENCE: Duration = Duration::from_millis(1500);

/// Patience with a node, in answers of the quickest other one: where jobs queue, one node may take much longer than
/// another.
const PATIENCE: u32 = 8;

/// First time between two looks at silent nodes that cannot be judged yet. It doubles up to [`LOOK_SELDOM`], so that
/// a process whose nodes never answer is woken once a second.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

const LOOK_SELDOM: Duration = Duration::from_secs(1);

/// The attempts that nodes have not answered, and the times at which they are looked at.
pub(super) struct Looks {
    /// Start, job and number of each attempt in the order of their starts, and of some that were answered or whose node
    /// is out. Bound: twice `max_in_flight`; further ones are not watched before the next look.
    attempts: VecDeque<(Instant, JobRef, u8)>,
    /// Earliest time of the next one.
    not_before: Instant,
    /// Time between the last one and that.
    pause: Duration,
}

impl Looks {
    pub(super) fn new(now: Instant) -> Self {
        Self { attempts: VecDeque::new(), not_before: now, pause: LOOK_AGAIN }
    }

    /// A node answered, so that a look may find more.
    pub(super) fn answered(&mut self) {
        self.pause = LOOK_AGAIN;
    }

    fn taken(&mut self, now: Instant) {
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(LOOK_SELDOM);
    }
}

impl Dispatcher {
    /// The owner of a result found it to be wrong.
    pub(crate) fn report_wrong(&mut self, source: ReplySource, now: Instant) {
        if let Some(node) = self.node_of(source) {
            self.nodes[node].counters.wrong += 1;
            self.report_soon(now);
            self.accuse(node, Offence::Wrong, now);
        }
    }

    /// The owner of a result has verified it. That brings a node back that waited for it.
    pub(crate) fn report_right(&mut self, source: ReplySource, now: Instant) {
        if let Some(node) = self.node_of(source).filter(|_| source.on_trial) {
            self.nodes[node].standing.acquit(now);
            self.reassign(now);
        }
    }

    fn node_of(&self, source: ReplySource) -> Option<NodeIndex> {
        let node = self.nodes.get(source.node)?;
        (node.serial == source.serial).then_some(source.node)
    }

    /// The source of a result that this node has just given, after these earlier ones.
    pub(super) fn source(
        &self,
        node: NodeIndex,
        earlier: EarlierResults,
        on_trial: bool,
    ) -> ReplySource {
        let from = &self.nodes[node];
        ReplySource {
            node,
            serial: from.serial,
            doubtful: from.standing.is_doubtful(earlier),
            on_trial,
        }
    }

    /// Takes a node out, unless it is, and sends its jobs to others.
    pub(super) fn accuse(&mut self, node: NodeIndex, offence: Offence, now: Instant) {
        let accused = &mut self.nodes[node];
        if offence == Offence::Contradiction {
            self.totals.contradictions += 1;
        }
        if accused.standing.offend(offence, &mut self.random, now) {
            accused.counters.outs += 1;
            self.rescue(node, now);
        }
    }

    /// Whether the node has said welcome over its present connection.
    pub(super) fn is_greeted(&mut self, node: NodeIndex) -> bool {
        self.connection(node)
            .is_some_and(|connection| connection.is_ready() || connection.is_draining())
    }

    /// The job that tries this node was answered. Returns whether its owner's verdict decides.
    pub(super) fn end_trial(
        &mut self,
        node: NodeIndex,
        error: Option<JobError>,
        now: Instant,
    ) -> bool {
        let standing = &mut self.nodes[node].standing;
        if standing.tried_since().is_none() {
            return false;
        }
        match error {
            None if !standing.needs_proof() => {
                standing.acquit(now);
                false
            }
            Some(JobError::Failed) => {
                self.accuse(node, Offence::Contradiction, now);
                false
            }
            result => {
                standing.awaits_verdict();
                result.is_none()
            }
        }
    }

    /// A job has a result: the nodes that failed or refused it before were wrong about it.
    pub(super) fn note_outvoted(&mut self, id: JobRef, now: Instant) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let (failed, declined, key) = (job.failed, job.declined, job.key.id);
        for node in declined.iter() {
            self.nodes[node].was_refuted(key, now);
        }
        for node in failed.iter() {
            if self.nodes[node].standing.was_outvoted() {
                self.accuse(node, Offence::Contradiction, now);
            }
        }
    }

    /// Gives the jobs that are under way at a node a second attempt at another one.
    fn rescue(&mut self, node: NodeIndex, now: Instant) {
        let is_there = |job: &crate::job::Job| {
            let first = job.attempts[Slot::First].as_ref();
            job.is_pending()
                && first.is_some_and(|first| first.node == node)
                && job.attempts[Slot::Hedge].is_none()
        };
        let mut strands_jobs = false;
        for id in self.jobs.select(is_there) {
            strands_jobs |= !self.rescue_one(id, now);
        }
        self.nodes[node].strands_jobs = strands_jobs;
    }

    /// Tries again to find second nodes: there may be room now.
    pub(super) fn rescue_stranded(&mut self, now: Instant) {
        if !self.nodes.iter().any(ConfiguredNode::is_good) {
            return;
        }
        for node in 0..self.nodes.len() {
            if self.nodes[node].strands_jobs {
                self.rescue(node, now);
            }
        }
    }

    fn rescue_one(&mut self, id: JobRef, now: Instant) -> bool {
        let second = self.second_node(id, now);
        if let Some(node) = second {
            self.totals.rescues += 1;
            self.attempt(id, Slot::Hedge, node, now);
        }
        second.is_some()
    }

    /// The second attempt of a job failed. The first one continues: if its node is out, there should be another.
    pub(super) fn rescue_again(&mut self, id: JobRef, now: Instant) {
        let first = self.jobs.get(id).and_then(|job| job.attempts[Slot::First].as_ref());
        if let Some(node) = first.map(|first| first.node)
            && self.nodes[node].standing.is_out()
            && !self.rescue_one(id, now)
        {
            self.nodes[node].strands_jobs = true;
        }
    }

    /// An attempt starts.
    pub(super) fn look_at(&mut self, id: JobRef, number: u8, now: Instant) {
        if self.nodes.len() > 1 && self.looks.attempts.len() < 2 * self.max_in_flight {
            self.looks.attempts.push_back((now, id, number));
        }
    }

    /// The node that owes the answer to this attempt. `None` if it was answered, or its node is out and not tried by
    /// it.
    fn debtor(&mut self, id: JobRef, number: u8) -> Option<NodeIndex> {
        let job = self.jobs.get(id)?;
        let mut attempts =
            [Slot::First, Slot::Hedge].into_iter().filter_map(|slot| job.attempts[slot].as_ref());
        let attempt = attempts.find(|attempt| attempt.number == number)?;
        let standing = &self.nodes[attempt.node].standing;
        let is_watched =
            !standing.is_out() || (attempt.is_trial && standing.tried_since().is_some());
        is_watched.then_some(attempt.node)
    }

    /// Drops the attempts at the front that are not watched any more, so that no timer goes off for them.
    pub(super) fn trim_looks(&mut self) {
        while let Some(&(_, id, number)) = self.looks.attempts.front() {
            if self.debtor(id, number).is_some() {
                return;
            }
            self.looks.attempts.pop_front();
        }
    }

    /// Time at which a node that owes answers may have to be taken out.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let oldest = self.looks.attempts.front().map(|(since, ..)| *since + MIN_PATIENCE);
        // Without a good node there is nothing to find.
        let stranded = self.nodes.iter().any(|node| node.strands_jobs)
            && self.nodes.iter().any(ConfiguredNode::is_good);
        let stranded = stranded.then_some(self.looks.not_before);
        oldest.into_iter().chain(stranded).min().map(|at| at.max(self.looks.not_before))
    }

    /// Takes out the nodes that owe answers for too long.
    pub(super) fn look_if_due(&mut self, now: Instant) {
        if self.next_look().is_none_or(|at| now < at) {
            return;
        }
        self.looks.taken(now);
        let attempts = std::mem::take(&mut self.looks.attempts);
        let mut left = VecDeque::with_capacity(attempts.len());
        for (since, id, number) in attempts {
            let Some(node) = self.debtor(id, number) else {
                continue;
            };
            if since + MIN_PATIENCE <= now && self.is_silent(node, id, since, now) {
                self.accuse(node, Offence::Stalled, now);
            } else {
                left.push_back((since, id, number));
            }
        }
        // Second attempts that started just now come after the others.
        left.append(&mut self.looks.attempts);
        self.looks.attempts = left;
        self.rescue_stranded(now);
        self.trim_looks();
    }

    /// Whether a node has owed the answer to this job since then for too long: another one has answered a later job
    /// with the same key, or the node was silent before and is tried.
    fn is_silent(&mut self, node: NodeIndex, id: JobRef, since: Instant, now: Instant) -> bool {
        let Some(key) = self.jobs.get(id).map(|job| job.key.id) else {
            return false;
        };
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(other, state)| *other != node && state.is_good());
        let paces = others.filter_map(|(_, state)| state.paces.get(&key));
        let quickest = paces.clone().map(|pace| pace.latency).min();
        let patience = quickest
            .map_or(MAX_PATIENCE, |latency| (latency * PATIENCE).clamp(MIN_PATIENCE, MAX_PATIENCE));
        let is_later = |at: Instant| at > since;
        let is_compared = paces.clone().any(|pace| is_later(pace.answered));
        since + patience <= now && (is_compared || self.nodes[node].standing.is_out())
    }
}
