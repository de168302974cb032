// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The end of a job: its owner gets the answer, its attempts are taken back, its key is released.

use std::mem;
use std::sync::Arc;

use super::retry::Retry;
use super::{Dispatcher, KeyUse};
use crate::error::ClientError;
use crate::job::{JobAnswer, JobOutcome, JobRef, Recipient, Slot, Stage};
use crate::key::{KeyData, KeyId};

impl Dispatcher {
    /// Ends a job: its owner gets `answer`, and what is left of its attempts is cancelled. Does nothing
    /// if it has ended.
    pub(super) fn end(&mut self, id: JobRef, answer: JobAnswer) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let recipient = match mem::replace(&mut job.outcome, JobOutcome::Delivered) {
            JobOutcome::Pending(recipient) => recipient,
            other => {
                job.outcome = other;
                return;
            }
        };
        let key = job.key.id;
        match &answer {
            Ok(Some(_)) => self.totals.succeeded += 1,
            Ok(None) => {}
            Err(error) => self.count_error(error),
        }
        match recipient {
            Recipient::Caller { waiter } => {
                self.deliveries.wakes.extend(waiter);
                if let Some(job) = self.jobs.get(id) {
                    job.outcome = JobOutcome::Ready(answer);
                }
            }
            Recipient::Callback(callback) => {
                self.callbacks_open -= 1;
                let result = answer.and_then(|reply| reply.ok_or(ClientError::Closed));
                self.deliveries.callbacks.push((callback, result));
            }
        }
        self.cancel_attempts(id);
        self.release_key(key);
        self.trim_hedges();
        self.trim_looks();
    }

    /// Takes back what is left of the attempts of a job that has ended. A node that has the job is asked
    /// to drop it, and its completion is awaited, so that what the node owes stays counted.
    pub(super) fn cancel_attempts(&mut self, id: JobRef) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        for slot in [Slot::First, Slot::Hedge] {
            let Some(attempt) = &mut job.attempts[slot] else {
                continue;
            };
            if slot == Slot::Hedge {
                self.totals.hedge_losses += 1;
            }
            let node = &mut self.nodes[attempt.node];
            if matches!(attempt.stage, Stage::AwaitingKey) {
                if let Some(connection) = node.connection() {
                    connection.release_job();
                }
                job.attempts[slot] = None;
            } else {
                attempt.stage = Stage::AwaitingLateReply;
                node.late_replies += 1;
                if let Some(connection) = node.connection() {
                    connection.cancel(id.job_id(attempt.number));
                }
            }
        }
        self.remove_if_over(id);
    }

    pub(super) fn remove_if_over(&mut self, id: JobRef) {
        if self.jobs.get(id).is_some_and(|job| job.is_over()) {
            self.jobs.remove(id);
        }
    }

    pub(super) fn use_key(&mut self, key: &Arc<KeyData>) -> Result<(), ClientError> {
        if let Some(usage) = self.keys.get_mut(&key.id) {
            usage.jobs += 1;
            return Ok(());
        }
        if self.keys.len() >= self.max_keys {
            return Err(ClientError::TooManyKeys);
        }
        self.keys.insert(key.id, KeyUse { data: Arc::clone(key), jobs: 1, closed: false });
        Ok(())
    }

    pub(super) fn release_key(&mut self, key: KeyId) {
        if let Some(usage) = self.keys.get_mut(&key) {
            usage.jobs -= 1;
            self.drop_key_if_unused(key);
        }
    }

    pub(super) fn drop_key_if_unused(&mut self, key: KeyId) {
        if self.keys.get(&key).is_some_and(|usage| usage.closed && usage.jobs == 0) {
            self.keys.remove(&key);
            for node in &mut self.nodes {
                node.paces.remove(&key);
                node.refusals.remove(&key);
                if let Some(connection) = node.connection() {
                    connection.close_key(key);
                }
            }
        }
    }

    pub(super) fn count_error(&mut self, error: &ClientError) {
        match error {
            ClientError::Job(_) => self.totals.failed += 1,
            ClientError::NoNode(_) => self.totals.no_node += 1,
            ClientError::TimedOut => self.totals.timed_out += 1,
            ClientError::Cancelled => self.totals.cancelled += 1,
            ClientError::Busy => self.totals.busy += 1,
            _ => {}
        }
    }

    pub(super) fn count_retry(&mut self, reason: Retry) {
        let retries = &mut self.totals.retries;
        let counter = match reason {
            Retry::Lost | Retry::Unsent => &mut retries.connection_lost,
            Retry::Busy => &mut retries.busy,
            Retry::OverQuota => &mut retries.over_quota,
            Retry::Draining => &mut retries.draining,
            Retry::Failed => &mut retries.failed,
            Retry::NoSuchKey => &mut retries.no_such_key,
            Retry::NotOffered => &mut retries.not_offered,
            Retry::KeyRefused | Retry::Denied => &mut retries.key_refused,
        };
        *counter += 1;
    }
}
