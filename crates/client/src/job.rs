// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Jobs under way, and the table that holds them.
//!
//! A [`Job`] has a [`JobOutcome`], which names the recipient of its answer, and up to two [`Attempt`]s: the
//! first, and a hedge at another node. Opening a key is a job too, whose request is
//! [`JobRequest::OpenKey`].
//!
//! ```text
//! outcome   Pending(owner) ──► Ready(answer) ──► Delivered     (a blocked caller takes the answer)
//!                 └────────────────────────────►               (a callback gets it at once)
//!
//! attempt   none ──► AwaitingKey ──► Sent ──► none                    the node completed it
//!                                     └─► AwaitingLateReply ──► none  the job ended before that
//! ```
//!
//! An entry leaves the table when its outcome is `Delivered` and it has no attempt: until then its id
//! must not be given to another job, since a node may still answer it.

use std::ops::{Index, IndexMut};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use millrace_operation::{BackendKind, JobId, Operation, Output};
use millrace_wire::KeyHandle;

use crate::error::ClientError;
use crate::key::KeyData;
use crate::node::{NodeIndex, NodeSet};

/// The result of a job, with the backend and the node that computed it.
#[derive(Debug)]
pub struct NodeReply {
    /// The result bytes, zeroised on drop.
    pub output: Output,
    /// The backend that computed it, if the node said so.
    pub served_by: Option<BackendKind>,
    /// The name that the node gave itself in its `Welcome`.
    pub node: Arc<str>,
    /// Time that the job waited in the node.
    pub queue_time: Duration,
    /// Time that the backend worked on it.
    pub service_time: Duration,
    /// The node, for a verdict on the result.
    pub source: ReplySource,
}

/// The node that gave a result, as [`crate::Pool::report_wrong`] takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplySource {
    pub(crate) node: NodeIndex,
    /// The node's [`serial`](crate::node::ConfiguredNode::serial).
    pub(crate) serial: u32,
    pub(crate) doubtful: bool,
    pub(crate) on_trial: bool,
}

impl ReplySource {
    /// Whether the result should be verified even by an owner that verifies samples: the node was wrong before, or
    /// is new to this process.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Whether the node waits for a verdict on this result, to get jobs again: see [`crate::Pool::report_right`].
    #[must_use]
    pub fn is_on_trial(&self) -> bool {
        self.on_trial
    }
}

/// The nodes that answered one operation wrongly. Its next job goes to others.
#[derive(Clone, Copy, Debug, Default)]
pub struct WrongNodes(pub(crate) NodeSet);

/// Result of a job. Opening a key has no reply.
pub(crate) type JobAnswer = Result<Option<NodeReply>, ClientError>;

/// The function given to [`crate::Pool::submit`].
pub(crate) type JobCallback = Box<dyn FnOnce(Result<NodeReply, ClientError>) + Send>;

/// Request of a job to a node.
pub(crate) enum JobRequest {
    /// Open the key at some node.
    OpenKey,
    /// An operation with the key.
    Operation { operation: Operation, input: Vec<u8> },
}

/// Recipient of a job's answer.
pub(crate) enum Recipient {
    /// A blocked caller. If the caller sleeps, the condition variable wakes it.
    Caller { waiter: Option<Arc<Condvar>> },
    /// A callback, called with the answer.
    Callback(JobCallback),
}

/// Whether a job has ended, and whether its owner has the answer.
pub(crate) enum JobOutcome {
    Pending(Recipient),
    /// The blocked caller has not taken the answer yet.
    Ready(JobAnswer),
    Delivered,
}

/// One try of a job at one node.
pub(crate) struct Attempt {
    /// Last byte of the job's id on the wire: an answer to an earlier attempt must not count for this one.
    pub(crate) number: u8,
    pub(crate) node: NodeIndex,
    pub(crate) stage: Stage,
    /// Whether the attempt tries a node that is out.
    pub(crate) is_trial: bool,
}

/// Progress of an attempt.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// The node was asked to open the key. The connection counts the job as in flight already.
    AwaitingKey,
    Sent {
        handle: KeyHandle,
        at: Instant,
    },
    /// The job ended before the node answered; the answer, when it comes, is only counted.
    AwaitingLateReply,
}

/// Index of a job's attempt: a job has two at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    First,
    Hedge,
}

/// The attempts of a job that are under way.
#[derive(Default)]
pub(crate) struct Attempts {
    first: Option<Attempt>,
    hedge: Option<Attempt>,
}

impl Attempts {
    /// The slot of the attempt at this node. There is one at most: a hedge goes to another node.
    pub(crate) fn slot_at(&self, node: NodeIndex) -> Option<Slot> {
        [Slot::First, Slot::Hedge]
            .into_iter()
            .find(|slot| self[*slot].as_ref().is_some_and(|attempt| attempt.node == node))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.hedge.is_none()
    }
}

impl Index<Slot> for Attempts {
    type Output = Option<Attempt>;

    fn index(&self, slot: Slot) -> &Option<Attempt> {
        match slot {
            Slot::First => &self.first,
            Slot::Hedge => &self.hedge,
        }
    }
}

impl IndexMut<Slot> for Attempts {
    fn index_mut(&mut self, slot: Slot) -> &mut Option<Attempt> {
        match slot {
            Slot::First => &mut self.first,
            Slot::Hedge => &mut self.hedge,
        }
    }
}

/// A request with its key, deadline, owner and attempts.
pub(crate) struct Job {
    pub(crate) key: Arc<KeyData>,
    pub(crate) request: JobRequest,
    pub(crate) deadline: Instant,
    pub(crate) outcome: JobOutcome,
    /// A pending job without any waits for a node. One with a hedge alone has lost its first attempt and is not
    /// tried elsewhere before the hedge fails, too.
    pub(crate) attempts: Attempts,
    /// Attempts made so far: the number of the next one. A job has at most two for each node that refuses
    /// its key and for each retry, far fewer than 256.
    pub(crate) attempts_made: u8,
    pub(crate) retries: u8,
    /// The nodes that are not to be asked again.
    pub(crate) tried: NodeSet,
    /// The nodes that failed the job without a reason that is theirs alone.
    pub(crate) failed: NodeSet,
    /// The nodes that refused the job, as busy, or for the policy of its key.
    pub(crate) declined: NodeSet,
    /// The nodes whose connection was lost with the job: they get it again if no other node can take it.
    pub(crate) lost: NodeSet,
    /// The nodes that gave a wrong result for the same operation: they get it again if there is no other node.
    pub(crate) wrong: NodeSet,
    /// Start of the present first attempt. `None` if the job does not wait for a hedge.
    pub(crate) hedge_from: Option<Instant>,
}

impl Job {
    pub(crate) fn new(
        key: Arc<KeyData>,
        request: JobRequest,
        recipient: Recipient,
        deadline: Instant,
    ) -> Self {
        Self {
            key,
            request,
            deadline,
            outcome: JobOutcome::Pending(recipient),
            attempts: Attempts::default(),
            attempts_made: 0,
            retries: 0,
            tried: NodeSet::default(),
            failed: NodeSet::default(),
            declined: NodeSet::default(),
            lost: NodeSet::default(),
            wrong: NodeSet::default(),
            hedge_from: None,
        }
    }

    /// This job, at other nodes than these if there are any.
    pub(crate) fn avoiding(self, wrong: WrongNodes) -> Self {
        Self { wrong: wrong.0, ..self }
    }

    pub(crate) fn is_operation(&self) -> bool {
        matches!(self.request, JobRequest::Operation { .. })
    }

    /// Whether a wrong result does no harm: its owner can verify it with the public key alone, or there is none.
    pub(crate) fn is_proof(&self) -> bool {
        match &self.request {
            JobRequest::OpenKey => true,
            JobRequest::Operation { operation, .. } => operation.is_signature(),
        }
    }

    /// The properties that decide the choice of a node.
    pub(crate) fn demand(&self) -> Demand {
        Demand {
            key: Arc::clone(&self.key),
            tried: self.tried,
            lost: self.lost,
            wrong: self.wrong,
            deadline: self.deadline,
            is_proof: self.is_proof(),
            may_try: self.attempts_made == 0 && self.wrong.is_empty() && self.is_operation(),
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        matches!(self.outcome, JobOutcome::Pending(_))
    }

    /// Whether a callback will be called with its answer.
    pub(crate) fn has_callback(&self) -> bool {
        matches!(self.outcome, JobOutcome::Pending(Recipient::Callback(_)))
    }

    /// Whether the job waits for a node.
    pub(crate) fn is_unassigned(&self) -> bool {
        self.is_pending() && self.attempts.is_empty()
    }

    /// Whether the first attempt, which started at `since`, is the only one and unanswered.
    pub(crate) fn waits_for_hedge(&self, since: Instant) -> bool {
        let first_alone =
            self.attempts[Slot::First].is_some() && self.attempts[Slot::Hedge].is_none();
        self.is_pending() && first_alone && self.hedge_from == Some(since)
    }

    /// Whether the entry can leave the table.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.outcome, JobOutcome::Delivered) && self.attempts.is_empty()
    }

    /// The slot of the attempt with this number, if it was sent to this node.
    pub(crate) fn sent_slot(&self, node: NodeIndex, number: u8) -> Option<Slot> {
        let slot = self.attempts.slot_at(node)?;
        let attempt = self.attempts[slot].as_ref()?;
        let sent = !matches!(attempt.stage, Stage::AwaitingKey);
        (attempt.number == number && sent).then_some(slot)
    }

    /// The nodes that have not answered an attempt whose job has ended.
    pub(crate) fn late_at(&self) -> impl Iterator<Item = NodeIndex> {
        let attempts = [Slot::First, Slot::Hedge].into_iter();
        let attempts = attempts.filter_map(|slot| self.attempts[slot].as_ref());
        let late = attempts.filter(|attempt| matches!(attempt.stage, Stage::AwaitingLateReply));
        late.map(|attempt| attempt.node)
    }

    /// Whether an attempt waits for this node to open the key.
    pub(crate) fn awaits_key_at(&self, node: NodeIndex) -> bool {
        let attempt = self.attempts.slot_at(node).and_then(|slot| self.attempts[slot].as_ref());
        attempt.is_some_and(|attempt| matches!(attempt.stage, Stage::AwaitingKey))
    }
}

/// The properties of a job that decide the choice of a node.
pub(crate) struct Demand {
    pub(crate) key: Arc<KeyData>,
    pub(crate) tried: NodeSet,
    pub(crate) lost: NodeSet,
    pub(crate) wrong: NodeSet,
    pub(crate) deadline: Instant,
    pub(crate) is_proof: bool,
    /// Whether the job may try a node that is out. Not if it has failed before.
    pub(crate) may_try: bool,
}

/// Names a job in the table. A name is not reused while a node could answer the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobRef {
    index: u32,
    serial: u32,
}

/// Bits of a job's id on the wire that hold [`Attempt::number`].
const ATTEMPT_BITS: u32 = 8;

/// Bits of a job's id on the wire that hold its index in the table: more than the bound on
/// `max_in_flight`.
const INDEX_BITS: u32 = 24;

impl JobRef {
    /// The id on the wire.
    pub(crate) fn job_id(self, attempt: u8) -> JobId {
        (u64::from(self.serial) << (INDEX_BITS + ATTEMPT_BITS))
            | (u64::from(self.index) << ATTEMPT_BITS)
            | u64::from(attempt)
    }

    /// The job and the attempt that an id on the wire names.
    pub(crate) fn from_job_id(job: JobId) -> (Self, u8) {
        let field = |shift: u32, bits: u32| (job >> shift) & ((1 << bits) - 1);
        // Each field is narrower than its type.
        let serial = u32::try_from(field(INDEX_BITS + ATTEMPT_BITS, 32)).unwrap_or(0);
        let index = u32::try_from(field(ATTEMPT_BITS, INDEX_BITS)).unwrap_or(0);
        let attempt = u8::try_from(field(0, ATTEMPT_BITS)).unwrap_or(0);
        (Self { index, serial }, attempt)
    }
}

struct JobSlot {
    serial: u32,
    job: Option<Job>,
}

/// The jobs of one process. Producer: callers. Consumer: the leader of the I/O. Bound: `max_in_flight`,
/// kept by [`crate::dispatch`].
#[derive(Default)]
pub(crate) struct JobTable {
    entries: Vec<JobSlot>,
    free: Vec<u32>,
}

impl JobTable {
    /// Entries in use.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, job: Job) -> JobRef {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.serial = entry.serial.wrapping_add(1);
            entry.job = Some(job);
            return JobRef { index, serial: entry.serial };
        }
        let index = u32::try_from(self.entries.len()).expect("bounded by max_in_flight");
        self.entries.push(JobSlot { serial: 0, job: Some(job) });
        JobRef { index, serial: 0 }
    }

    pub(crate) fn get(&mut self, id: JobRef) -> Option<&mut Job> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.serial == id.serial { entry.job.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: JobRef) -> Option<Job> {
        self.get(id)?;
        self.free.push(id.index);
        self.entries[id.index as usize].job.take()
    }

    /// The names of all jobs for which `wanted` holds.
    pub(crate) fn select(&self, wanted: impl Fn(&Job) -> bool) -> Vec<JobRef> {
        (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.job.as_ref().is_some_and(&wanted))
            .map(|(index, entry)| JobRef { index, serial: entry.serial })
            .collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.entries.iter().filter_map(|entry| entry.job.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeySource;
    use millrace_wire::KeySelector;

    fn job() -> Job {
        let source = KeySource::Selector(KeySelector::Name("k".to_owned()));
        let key = Arc::new(KeyData::new(source));
        let recipient = Recipient::Caller { waiter: None };
        Job::new(key, JobRequest::OpenKey, recipient, Instant::now())
    }

    #[test]
    fn reused_entry_has_another_name() {
        let mut table = JobTable::default();
        let first = table.insert(job());
        assert!(table.remove(first).is_some());
        let second = table.insert(job());
        assert_eq!(first.index, second.index);
        assert!(table.get(first).is_none());
        assert!(table.remove(first).is_none());
        assert!(table.get(second).is_some());
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn name_survives_the_wire() {
        let id = JobRef { index: 0x00ab_cdef, serial: 0x8765_4321 };
        assert_eq!(JobRef::from_job_id(id.job_id(3)), (id, 3));
        assert_eq!(id.job_id(3), 0x8765_4321_abcd_ef03);
    }
}
