// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Jobs of a runner whose tasks are in backends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_operation::{JobError, JobId};

use super::backend_set::{BackendIndex, BackendSet};
use super::job::{Completion, CompletionBatch, EngineSession, Key};
use super::measure::PartId;

/// State of a job while a backend holds its task.
pub(super) struct InFlight {
    pub(super) id: JobId,
    pub(super) session: EngineSession,
    pub(super) key: Arc<Key>,
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    pub(super) backend: BackendIndex,
    /// Backends that had this job.
    pub(super) tried: BackendSet,
    /// The part of the batch that it is measured with; `None` after its first try, and if there was no choice.
    pub(super) part: Option<PartId>,
}

impl InFlight {
    /// The end of a job that no backend has answered.
    pub(super) fn failed(self, error: JobError, completed: &mut CompletionBatch) {
        let queue_time = self.arrived.elapsed();
        let completion = Completion {
            id: self.id,
            result: Err(error),
            served_by: None,
            queue_time,
            service_time: Duration::ZERO,
            retry_after: None,
        };
        completed.push(self.session, completion);
    }
}

/// Jobs that backends hold, by the token of their task.
#[derive(Default)]
pub(super) struct InFlightTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    held: usize,
}

enum Entry {
    Free,
    Held(InFlight),
    /// The job has ended, but this backend has the task still and may answer: the token is not used again.
    Lost(BackendIndex),
}

impl InFlightTable {
    pub(super) fn insert(&mut self, job: InFlight) -> u32 {
        self.held += 1;
        if let Some(token) = self.free.pop() {
            self.entries[token as usize] = Entry::Held(job);
            return token;
        }
        self.entries.push(Entry::Held(job));
        // A few hundred at most: the bound of `Runner::room`.
        u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn get(&self, token: u32) -> Option<&InFlight> {
        match self.entries.get(token as usize)? {
            Entry::Held(job) => Some(job),
            Entry::Free | Entry::Lost(_) => None,
        }
    }

    /// Takes a job out whose task came back; `None` if the job has ended.
    pub(super) fn remove(&mut self, token: u32) -> Option<InFlight> {
        let entry = self.entries.get_mut(token as usize)?;
        let removed = match std::mem::replace(entry, Entry::Free) {
            Entry::Free => return None,
            Entry::Held(job) => {
                self.held -= 1;
                Some(job)
            }
            Entry::Lost(_) => None,
        };
        self.free.push(token);
        removed
    }

    /// Jobs that have not ended.
    pub(super) fn len(&self) -> usize {
        self.held
    }

    /// Tokens of the jobs that a backend holds.
    pub(super) fn held_by(&self, backend: BackendIndex) -> Vec<u32> {
        self.tokens(|entry| matches!(entry, Entry::Held(job) if job.backend == backend))
    }

    /// Takes the jobs out that a backend holds and that are `late`, and keeps their tokens from further use.
    pub(super) fn lose(
        &mut self,
        backend: BackendIndex,
        late: impl Fn(&InFlight) -> bool,
    ) -> Vec<InFlight> {
        let mut lost = Vec::new();
        for entry in &mut self.entries {
            if matches!(entry, Entry::Held(job) if job.backend == backend && late(job))
                && let Entry::Held(job) = std::mem::replace(entry, Entry::Lost(backend))
            {
                lost.push(job);
            }
        }
        self.held -= lost.len();
        lost
    }

    /// The queue of a backend was dropped, so what it lost never comes back.
    pub(super) fn forget_lost(&mut self, backend: BackendIndex) {
        for token in self.tokens(|entry| matches!(entry, Entry::Lost(by) if *by == backend)) {
            self.entries[token as usize] = Entry::Free;
            self.free.push(token);
        }
    }

    fn tokens(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<u32> {
        let tokens = (0_u32..).zip(&self.entries);
        tokens.filter(|(_, entry)| wanted(entry)).map(|(token, _)| token).collect()
    }
}
