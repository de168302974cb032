// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Messages of a node: keys that it opened or refused, jobs that it completed, its drain.

use std::sync::Arc;
use std::time::Instant;

use millrace_operation::JobError;
use millrace_wire::{JobCompletion, KeyHandle, KeyRefusal};

use super::Dispatcher;
use super::retry::{FailedAttempt, Retry};
use crate::connection::{ConnectionEvent, KeyStage};
use crate::error::ClientError;
use crate::job::{Attempt, JobRef, JobRequest, NodeReply, Slot, Stage};
use crate::key::{KeyFacts, KeyId};
use crate::node::{ConnectionState, NodeIndex};
use crate::standing::Offence;

/// An attempt that its node answered: the node, and the key with the handle that the attempt named.
struct AnsweredAttempt {
    slot: Slot,
    node: NodeIndex,
    key: KeyId,
    handle: KeyHandle,
}

impl Dispatcher {
    /// Acts on a message of this node.
    pub(super) fn on_event(&mut self, node: NodeIndex, event: ConnectionEvent, now: Instant) {
        match event {
            ConnectionEvent::Ready => {
                let ready = &mut self.nodes[node];
                if let ConnectionState::Up(connection) = &ready.state {
                    let name = Arc::clone(connection.node());
                    ready.handshake_completed(&name);
                }
                // Reports the counts of the time without a node.
                self.report_soon(now);
                self.reassign(now);
            }
            ConnectionEvent::KeyOpened { key, handle, facts } => {
                self.on_key_opened(node, key, handle, &facts, now);
            }
            ConnectionEvent::KeyRefused { key, reason } => {
                self.on_key_refused(node, key, reason, now)
            }
            ConnectionEvent::Completed(completions) => {
                for completion in completions {
                    self.on_completion(node, completion, now);
                }
            }
            ConnectionEvent::Draining => self.on_draining(node, now),
            ConnectionEvent::Paused { until } => {
                self.resume_at = Some(self.resume_at.map_or(until, |at| at.min(until)));
            }
        }
    }

    /// A job that waits for a key at a node that drains will not get it in time.
    pub(super) fn on_draining(&mut self, node: NodeIndex, now: Instant) {
        for id in self.jobs.select(|job| job.awaits_key_at(node)) {
            let error = ClientError::Key(KeyRefusal::Draining);
            self.fail_key_wait(id, FailedAttempt { node, reason: Retry::Draining, error }, now);
        }
    }

    fn on_key_opened(
        &mut self,
        node: NodeIndex,
        key: KeyId,
        handle: KeyHandle,
        facts: &KeyFacts,
        now: Instant,
    ) {
        // If the owner closed the key in the meantime, the connection has closed the handle.
        let Some(usage) = self.keys.get(&key) else {
            return;
        };
        let is_asked_for = usage.data.is_answered_by(facts);
        if !is_asked_for || !usage.data.agrees_with(facts) {
            if !is_asked_for {
                self.accuse(node, Offence::Contradiction, now);
            }
            if let Some(connection) = self.connection(node) {
                connection.close_key(key);
            }
            return self.on_key_refused(node, key, KeyRefusal::NoSuchKey, now);
        }
        for id in self.waiting_for(node, key) {
            let job = self.jobs.get(id).filter(|job| job.awaits_key_at(node));
            let slot = job.and_then(|job| job.attempts.slot_at(node));
            if let Some(slot) = slot {
                self.settle_key_wait(node);
                self.send(id, slot, handle, now);
            }
        }
    }

    fn on_key_refused(&mut self, node: NodeIndex, key: KeyId, reason: KeyRefusal, now: Instant) {
        let Some(connection) = self.connection(node) else {
            return;
        };
        connection.refuse(key, reason, now);
        let retry = match reason {
            KeyRefusal::Draining => {
                connection.drain();
                Retry::Draining
            }
            _ => Retry::KeyRefused,
        };
        for id in self.waiting_for(node, key) {
            let error = ClientError::Key(reason);
            self.fail_key_wait(id, FailedAttempt { node, reason: retry, error }, now);
        }
    }

    fn waiting_for(&self, node: NodeIndex, key: KeyId) -> Vec<JobRef> {
        self.jobs.select(|job| job.key.id == key && job.awaits_key_at(node))
    }

    /// The attempt that waits for a key at this node will not get it.
    fn fail_key_wait(&mut self, id: JobRef, failed: FailedAttempt, now: Instant) {
        let node = failed.node;
        let Some(job) = self.jobs.get(id).filter(|job| job.awaits_key_at(node)) else {
            return;
        };
        if let Some(slot) = job.attempts.slot_at(node) {
            job.attempts[slot] = None;
            self.settle_key_wait(node);
            self.attempt_failed(id, slot, failed, now);
        }
    }

    /// A job does not wait for a key at this node any more.
    fn settle_key_wait(&mut self, node: NodeIndex) {
        if let Some(connection) = self.connection(node) {
            connection.release_job();
        }
    }

    fn on_completion(&mut self, node: NodeIndex, completion: JobCompletion, now: Instant) {
        let (id, number) = JobRef::from_job_id(completion.id);
        let found = self.jobs.get(id).and_then(|job| Some((job.sent_slot(node, number)?, job)));
        let Some((slot, job)) = found else {
            self.totals.stray_completions += 1;
            return self.accuse(node, Offence::Contradiction, now);
        };
        let key = job.key.id;
        let operation = match &job.request {
            JobRequest::Operation { operation, .. } => Some(operation.kind()),
            JobRequest::OpenKey => None,
        };
        let Some(Attempt { stage, is_trial, .. }) = job.attempts[slot].take() else {
            return;
        };
        let error = completion.result.as_ref().err().copied();
        let on_trial = is_trial && self.end_trial(node, error, now);
        let Stage::Sent { handle, at } = stage else {
            return self.on_late_reply(id, node);
        };
        self.note_completed(node, key, at, error, now);
        let JobCompletion { result, served_by, queue_time, service_time, .. } = completion;
        match result {
            Ok(output) => {
                let earlier = operation.map(|kind| self.nodes[node].record_result(kind, key));
                let source = self.source(node, earlier.unwrap_or_default(), on_trial);
                if slot == Slot::Hedge {
                    self.totals.hedge_wins += 1;
                    self.note_outrun(id, now);
                }
                let reply = NodeReply {
                    output,
                    served_by,
                    node: self.nodes[node].name(),
                    queue_time,
                    service_time,
                    source,
                };
                self.nodes[node].refusals.remove(&key);
                self.note_outvoted(id, now);
                self.end(id, Ok(Some(reply)));
            }
            Err(error) => {
                self.on_job_error(id, AnsweredAttempt { slot, node, key, handle }, error, now);
            }
        }
    }

    /// The answer to an attempt whose job had ended before.
    fn on_late_reply(&mut self, id: JobRef, node: NodeIndex) {
        self.totals.late_completions += 1;
        self.nodes[node].late_replies -= 1;
        if let Some(connection) = self.connection(node) {
            connection.release_job();
        }
        self.remove_if_over(id);
        self.trim_looks();
    }

    /// Counts a completion that its job waited for.
    fn note_completed(
        &mut self,
        node: NodeIndex,
        key: KeyId,
        sent: Instant,
        error: Option<JobError>,
        now: Instant,
    ) {
        let latency = now.saturating_duration_since(sent);
        let node = &mut self.nodes[node];
        node.record_answer(key, sent, now);
        if error.is_none() {
            node.counters.succeeded += 1;
            node.standing.succeeded();
            self.latencies.add(latency);
        } else {
            node.counters.failed += 1;
        }
        self.looks.answered();
        if let Some(connection) = node.connection() {
            connection.release_job();
            connection.record_served();
        }
        self.report_soon(now);
    }

    fn on_job_error(
        &mut self,
        id: JobRef,
        AnsweredAttempt { slot, node, key, handle }: AnsweredAttempt,
        error: JobError,
        now: Instant,
    ) {
        let mut reason = Retry::of(error);
        if let Some(connection) = self.connection(node) {
            if error == JobError::OverQuota && connection.paused(key, now).is_some() {
                connection.pauses().set_over_quota(key);
                reason = Retry::OverQuota;
            }
            match (reason, connection.key_state(key, now)) {
                (Retry::Draining, _) => connection.drain(),
                (Retry::NoSuchKey, Some(KeyStage::Open(now_open))) if now_open == handle => {
                    connection.forget_key(key);
                }
                _ => {}
            }
        }
        let failed = FailedAttempt { node, reason, error: ClientError::Job(error) };
        self.attempt_failed(id, slot, failed, now);
    }
}
