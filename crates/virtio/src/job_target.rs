// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The target of a device's private-key jobs: a session of the service in this process.
//!
//! A device speaks to its service as any client does, in messages: it has an identity, and policy, quota, fair
//! shares, statistics and draining hold for it. Only the encoding and the socket are missing.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_engine::Completion;
use millrace_operation::{JobError, JobId, KeyInfo, Operation, Output, PrivateKey};
use millrace_service::sink::SessionSink;
use millrace_service::{Service, Session};
use millrace_wire::{
    ClientMessage, Fault, Hello, KeyHandle, KeyRefusal, NodeMessage, SubmittedJob, VERSION_MAX,
};
use thiserror::Error;

use crate::statistics::ServedBy;

/// Does the private-key jobs of a device.
pub trait JobTarget: Send {
    /// Hands over a key for private operations. Takes milliseconds of a core.
    fn import(&mut self, key: PrivateKey, now: Instant)
    -> Result<(KeyHandle, KeyInfo), KeyRefusal>;

    /// Forgets a key. Jobs in flight end normally.
    fn close(&mut self, key: KeyHandle, now: Instant);

    /// Submits jobs, each of which ends once: here if it is refused, otherwise through the sink of the target.
    fn submit(&mut self, jobs: Vec<TargetJob>, now: Instant) -> Vec<(JobId, JobError)>;

    /// Records completions that arrived, and returns the jobs that ended; a job that goes to another place is not
    /// among them.
    fn completed(&mut self, arrived: Vec<Completion>, now: Instant) -> Vec<EndedJob>;
}

/// A job that ended at its target, with its result.
#[derive(Debug)]
pub struct EndedJob {
    /// The id of [`TargetJob`].
    pub id: JobId,
    /// Verified result of the job, or the error.
    pub result: Result<Output, JobError>,
    /// The thread, backend or node that computed the job, if any did.
    pub served_by: Option<ServedBy>,
}

/// One private-key operation to submit.
#[derive(Debug)]
pub struct TargetJob {
    /// Number of the job, unique among those in flight.
    pub id: JobId,
    /// A handle of [`JobTarget`], open until the job ends.
    pub key: KeyHandle,
    /// Must fit the type of the key; otherwise the job ends with an error.
    pub operation: Operation,
    /// A digest, a ciphertext or a raw number, as [`Operation`] states it.
    pub input: Vec<u8>,
    /// Time until the guest no longer waits.
    pub budget: Duration,
}

/// Why a device has no session with its service.
#[derive(Debug, Error)]
pub enum SessionOpenError {
    /// The service refused the identity of the device.
    #[error("the service does not admit this device: {0}")]
    Refused(&'static str),
    /// The service closed the session; device and service come from one build, so this is a bug.
    #[error("the service closed the session of this device: {0}")]
    Fault(Fault),
    /// The operating system refused a thread.
    #[error("cannot start the thread that offers keys to nodes")]
    Thread(#[from] std::io::Error),
}

/// A session of a [`Service`] in this process.
pub struct ServiceTarget {
    session: Session,
    next_request: u32,
    /// Set once the service has closed the session. Every later job ends as [`JobError::Failed`].
    fault: Option<Fault>,
}

impl ServiceTarget {
    /// Opens the session of a device. Completions go to `sink`.
    ///
    /// # Errors
    /// If the service does not admit the identity, or has no room for another session.
    pub fn open(
        service: &Service,
        identity: Arc<str>,
        sink: Arc<dyn SessionSink>,
    ) -> Result<Self, SessionOpenError> {
        let session = service
            .open(identity, sink)
            .map_err(|reason| SessionOpenError::Refused(reason.name()))?;
        let mut pool = Self { session, next_request: 0, fault: None };
        let hello = ClientMessage::Hello(Hello {
            min_version: VERSION_MAX,
            max_version: VERSION_MAX,
            features: 0,
            agent: concat!("millrace-virtio/", env!("CARGO_PKG_VERSION")).to_owned(),
        });
        pool.receive(hello, Instant::now());
        pool.session.carry_out();
        match pool.fault {
            None => Ok(pool),
            Some(fault) => Err(SessionOpenError::Fault(fault)),
        }
    }

    fn receive(&mut self, message: ClientMessage, now: Instant) {
        if let Err(fault) = self.session.receive(message, now) {
            self.session.count_fault(fault, "a message of the virtio device");
            self.fault = Some(fault);
        }
    }
}

impl JobTarget for ServiceTarget {
    fn import(
        &mut self,
        key: PrivateKey,
        now: Instant,
    ) -> Result<(KeyHandle, KeyInfo), KeyRefusal> {
        self.session.begin_turn(now);
        self.next_request = self.next_request.wrapping_add(1);
        let request = self.next_request;
        self.receive(ClientMessage::ImportKey { request, key }, now);
        let imports: Vec<_> = self.session.take_imports().collect();
        for (request, key) in imports {
            let checked = self.session.service().check_import(&key);
            self.session.imported(request, checked);
        }
        let mut answer = Err(KeyRefusal::Draining);
        for reply in self.session.carry_out().replies {
            match reply {
                NodeMessage::KeyOpened { request: of, handle, info, .. } if of == request => {
                    answer = Ok((handle, info))
                }
                NodeMessage::KeyRefused { request: of, reason } if of == request => {
                    answer = Err(reason)
                }
                NodeMessage::KeyOpened { .. }
                | NodeMessage::KeyRefused { .. }
                | NodeMessage::Welcome(_)
                | NodeMessage::Complete(_)
                | NodeMessage::Pong { .. }
                | NodeMessage::Drain
                | NodeMessage::Fault(_)
                | NodeMessage::Description { .. }
                | NodeMessage::RetryAfter { .. } => {}
            }
        }
        answer
    }

    fn close(&mut self, key: KeyHandle, now: Instant) {
        self.receive(ClientMessage::CloseKey { handle: key }, now);
        self.session.carry_out();
    }

    fn submit(&mut self, jobs: Vec<TargetJob>, now: Instant) -> Vec<(JobId, JobError)> {
        if self.fault.is_some() {
            return jobs.into_iter().map(|job| (job.id, JobError::Failed)).collect();
        }
        self.session.begin_turn(now);
        let jobs = jobs.into_iter().map(|job| SubmittedJob {
            id: job.id,
            key: job.key,
            budget: job.budget,
            operation: job.operation,
            input: job.input,
        });
        self.receive(ClientMessage::Submit(jobs.collect()), now);
        self.session.carry_out().refused.collect()
    }

    fn completed(&mut self, mut arrived: Vec<Completion>, _now: Instant) -> Vec<EndedJob> {
        self.session.completed(&mut arrived);
        let ended = |completion: Completion| EndedJob {
            id: completion.id,
            result: completion.result,
            served_by: completion.served_by.map(ServedBy::Local),
        };
        arrived.into_iter().map(ended).collect()
    }
}

impl fmt::Debug for ServiceTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceTarget").field("session", &self.session).finish_non_exhaustive()
    }
}
