// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the client owes its callers: tasks, and the table that they live in.

use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use millrace_engine::BackendKind;
use millrace_engine::operation::{Operation, Output};
use millrace_wire::{JobId, KeyHandle};

use crate::error::ClientError;
use crate::key::KeyData;

/// The result of a job, and who made it.
#[derive(Debug)]
pub struct Reply {
    /// The result bytes, zeroised on drop.
    pub output: Output,
    /// The backend that computed it.
    pub served_by: Option<BackendKind>,
    /// The node that it came from, by the node's own name.
    pub node: Arc<str>,
    /// Time that the job waited in the node.
    pub queue_time: Duration,
    /// Time that the backend worked on it.
    pub service_time: Duration,
}

/// What a task ends as. Opening a key has no reply.
pub(crate) type Answer = Result<Option<Reply>, ClientError>;

/// What [`crate::Pool::submit`] calls.
pub(crate) type Callback = Box<dyn FnOnce(Result<Reply, ClientError>) + Send>;

/// What is to be done.
pub(crate) enum Work {
    /// Open the key at some node.
    Open,
    /// A job with the key.
    Job {
        operation: Operation,
        input: Vec<u8>,
    },
}

/// Who waits for it.
pub(crate) enum Owner {
    /// A blocked caller. It is woken by the condition variable, if it sleeps on one.
    Caller { waiter: Option<Arc<Condvar>> },
    /// A callback.
    Callback(Callback),
    /// A job that waits too long elsewhere: whoever answers first counts.
    Hedge { of: TaskId },
    /// Nobody any more; the entry only waits for the node's completion.
    Nobody,
}

/// How far it is.
pub(crate) enum Phase {
    /// Waits for a node.
    Unassigned,
    /// Waits for this node to open the key.
    OnKey { node: usize },
    /// Sent to this node, under this handle.
    Sent { node: usize, handle: KeyHandle },
    /// Its node failed; its hedge is all that is left of it.
    OnHedge,
    /// Ended; waits to be taken by its caller. A node may still owe an answer, under this handle.
    Done {
        answer: Answer,
        owed: Option<(usize, KeyHandle)>,
    },
}

/// One thing that the client owes.
pub(crate) struct Task {
    pub(crate) key: Arc<KeyData>,
    pub(crate) work: Work,
    pub(crate) deadline: Instant,
    pub(crate) owner: Owner,
    pub(crate) phase: Phase,
    pub(crate) retries: u8,
    /// Bit per node that is not to be asked again.
    pub(crate) tried: u64,
    pub(crate) sent_at: Instant,
    /// The task that does the same at another node.
    pub(crate) hedge: Option<TaskId>,
    /// Since when it waits for its present node, if it may be hedged.
    pub(crate) waits_since: Option<Instant>,
}

impl Task {
    pub(crate) fn new(
        key: Arc<KeyData>,
        work: Work,
        owner: Owner,
        deadline: Instant,
        now: Instant,
    ) -> Self {
        let phase = Phase::Unassigned;
        Self {
            key,
            work,
            deadline,
            owner,
            phase,
            retries: 0,
            tried: 0,
            sent_at: now,
            hedge: None,
            waits_since: None,
        }
    }

    pub(crate) fn is_job(&self) -> bool {
        matches!(self.work, Work::Job { .. })
    }

    pub(crate) fn is_hedge(&self) -> bool {
        matches!(self.owner, Owner::Hedge { .. })
    }

    /// Whether it has ended and this node owes it an answer all the same.
    pub(crate) fn is_owed_by(&self, at: usize) -> bool {
        matches!(self.phase, Phase::Done { owed: Some((node, _)), .. } if node == at)
    }

    /// Whether this node has to do with it.
    pub(crate) fn is_at(&self, at: usize) -> bool {
        matches!(self.phase, Phase::OnKey { node } | Phase::Sent { node, .. } if node == at)
    }
}

/// Names a task. The name is never given again while anybody could mean the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TaskId {
    index: u32,
    serial: u32,
}

/// Bits of a job's id that count its attempts: an answer to an earlier attempt must not pass for one
/// to the present.
const ATTEMPT_BITS: u32 = 8;

/// Bits of a job's id that say where it is in the table: more than the bound on `max_in_flight`.
const INDEX_BITS: u32 = 24;

impl TaskId {
    /// The id on the wire.
    pub(crate) fn job_id(self, attempt: u8) -> JobId {
        (u64::from(self.serial) << (INDEX_BITS + ATTEMPT_BITS))
            | (u64::from(self.index) << ATTEMPT_BITS)
            | u64::from(attempt)
    }

    /// The task and the attempt that an id on the wire means.
    pub(crate) fn from_job_id(job: JobId) -> (Self, u8) {
        let field = |shift: u32, bits: u32| (job >> shift) & ((1 << bits) - 1);
        // Each field is narrower than its type.
        let serial = u32::try_from(field(INDEX_BITS + ATTEMPT_BITS, 32)).unwrap_or(0);
        let index = u32::try_from(field(ATTEMPT_BITS, INDEX_BITS)).unwrap_or(0);
        let attempt = u8::try_from(field(0, ATTEMPT_BITS)).unwrap_or(0);
        (Self { index, serial }, attempt)
    }
}

struct Entry {
    serial: u32,
    task: Option<Task>,
}

/// The tasks. Producer: callers. Consumer: whoever drives the I/O. Bound: `max_in_flight`, kept by
/// [`crate::dispatch`].
#[derive(Default)]
pub(crate) struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Table {
    /// Entries in use.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, task: Task) -> TaskId {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.serial = entry.serial.wrapping_add(1);
            entry.task = Some(task);
            return TaskId {
                index,
                serial: entry.serial,
            };
        }
        let index = u32::try_from(self.entries.len()).expect("bounded by max_in_flight");
        self.entries.push(Entry {
            serial: 0,
            task: Some(task),
        });
        TaskId { index, serial: 0 }
    }

    pub(crate) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.serial == id.serial {
            entry.task.as_mut()
        } else {
            None
        }
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Task> {
        self.get(id)?;
        self.free.push(id.index);
        self.entries[id.index as usize].task.take()
    }

    /// The names of all tasks for which `wanted` holds.
    pub(crate) fn select(&self, wanted: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let name = |(index, entry): (usize, &Entry)| {
            let index = u32::try_from(index).ok()?;
            let chosen = entry.task.as_ref().is_some_and(&wanted);
            chosen.then_some(TaskId {
                index,
                serial: entry.serial,
            })
        };
        self.entries.iter().enumerate().filter_map(name).collect()
    }

    /// All tasks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.entries.iter().filter_map(|entry| entry.task.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeySource;
    use millrace_wire::KeySelector;

    fn task() -> Task {
        let now = Instant::now();
        let source = KeySource::Selector(KeySelector::Name("k".to_owned()));
        Task::new(
            Arc::new(KeyData::new(source)),
            Work::Open,
            Owner::Nobody,
            now,
            now,
        )
    }

    #[test]
    fn a_reused_entry_has_another_name() {
        let mut table = Table::default();
        let first = table.insert(task());
        assert!(table.remove(first).is_some());
        let second = table.insert(task());
        assert_eq!(first.index, second.index);
        assert!(table.get(first).is_none());
        assert!(table.remove(first).is_none());
        assert!(table.get(second).is_some());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn names_survive_the_wire() {
        let id = TaskId {
            index: 0x00ab_cdef,
            serial: 0x8765_4321,
        };
        assert_eq!(TaskId::from_job_id(id.job_id(3)), (id, 3));
        assert_eq!(id.job_id(3), 0x8765_4321_abcd_ef03);
    }
}
