// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The pool as two small traits, and their implementation over the client. Tests implement the traits with a pool that
//! gives wrong results.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use millrace_client::{
    ClientError, HostLoop, KeyRefusal, KeySelector, NodeReply, Pool as ClientPool, PoolConfig,
    RemoteKey, ReplySource, WrongNodes,
};
use millrace_operation::{JobError, KeyInfo, Operation, Output, PrivateKey};

/// Why the pool did not do an operation, by its consequence for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No node could be reached.
    NoNode,
    /// No answer by the deadline.
    TimedOut,
    /// A node or this process has as many jobs or keys as it may.
    Busy,
    /// Over this client's quota at the node: no other node would do it either.
    Quota,
    /// The key was refused.
    Refused,
    /// The operation is not allowed for the key, or not offered.
    Denied,
    /// No backend of the node could do it.
    Failed,
    /// The result did not verify.
    WrongResult,
    /// The circuit breaker is open.
    Breaker,
    /// Nothing waits for the result any more: the connection was given up, or the process forked.
    Abandoned,
}

/// A failure of the pool, with a sentence.
#[derive(Clone, Debug)]
pub struct PoolError {
    /// Consequence of the failure.
    pub kind: FailureKind,
    /// Description of the failure, a sentence.
    pub text: String,
    /// Whether the pool was asked. Not if this process decided, or repeats an earlier answer: that says
    /// nothing about the pool's state.
    pub asked: bool,
}

impl PoolError {
    /// A failure with its sentence.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), asked: true }
    }

    /// This failure, marked as one that the process decided without asking the pool.
    pub(crate) fn unasked(self) -> Self {
        Self { asked: false, ..self }
    }

    pub(crate) fn abandoned() -> Self {
        Self::new(FailureKind::Abandoned, "the connection was given up during the operation")
    }

    /// Whether the pool did not answer at all.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self.kind, FailureKind::NoNode | FailureKind::TimedOut)
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<ClientError> for PoolError {
    fn from(error: ClientError) -> Self {
        let kind = match &error {
            ClientError::TimedOut | ClientError::Job(JobError::Expired) => FailureKind::TimedOut,
            ClientError::Busy
            | ClientError::TooManyKeys
            | ClientError::Key(KeyRefusal::Draining | KeyRefusal::TooManyKeys)
            | ClientError::Job(JobError::Busy | JobError::Draining) => FailureKind::Busy,
            ClientError::Job(JobError::OverQuota) => FailureKind::Quota,
            ClientError::Key(_) | ClientError::Untrusted(_) => FailureKind::Refused,
            ClientError::Distrusted => FailureKind::WrongResult,
            ClientError::Job(JobError::Denied | JobError::NotOffered) => FailureKind::Denied,
            ClientError::Job(_) | ClientError::Cancelled => FailureKind::Failed,
            _ => FailureKind::NoNode,
        };
        let asked = !matches!(error, ClientError::Busy | ClientError::Distrusted);
        Self { kind, text: error.to_string(), asked }
    }
}

/// A result of the pool, not yet checked.
#[derive(Debug)]
pub struct Answer {
    /// The result.
    pub output: Output,
    /// The node that gave it, for a verdict.
    pub source: ReplySource,
    /// Name of that node.
    pub node: Arc<str>,
}

impl From<NodeReply> for Answer {
    fn from(reply: NodeReply) -> Self {
        Self { output: reply.output, source: reply.source, node: reply.node }
    }
}

/// Called with the result of a job, on the client's I/O thread or in the host's event loop.
pub type AnswerCallback = Box<dyn FnOnce(Result<Answer, PoolError>) + Send>;

/// A pool of nodes.
pub trait Pool: Send + Sync {
    /// Opens a key that the pool holds: the version with the public half `spki`, else the current version of
    /// that name. Blocks.
    fn open(
        &self,
        name: &str,
        spki: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<Arc<dyn Remote>, PoolError>;

    /// Imports a key. Blocks.
    fn import(&self, key: PrivateKey, deadline: Instant) -> Result<Arc<dyn Remote>, PoolError>;

    /// Asks for a report to the nodes soon: a counter changed although no job ended.
    fn report_soon(&self) {}

    /// Handle for an event loop that may drive the pool's sockets. `None` before the first key is open.
    fn host_loop(&self) -> Option<HostLoop> {
        None
    }
}

/// A key that is open at a pool.
pub trait Remote: Send + Sync {
    /// Type and public half of the key.
    fn info(&self) -> &KeyInfo;

    /// Does an operation, at other nodes than those of `wrong` if there are any. Blocks until `deadline` at most.
    fn call(
        &self,
        operation: &Operation,
        input: &[u8],
        deadline: Instant,
        wrong: WrongNodes,
    ) -> Result<Answer, PoolError>;

    /// Starts an operation, at other nodes than those of `wrong` if there are any; `done` is called exactly once, by
    /// `deadline`, unless this returns an error.
    fn submit(
        &self,
        operation: Operation,
        input: Vec<u8>,
        deadline: Instant,
        wrong: WrongNodes,
        done: AnswerCallback,
    ) -> Result<(), PoolError>;

    /// A result of this node is wrong. Returns `false` if it is in `wrong` already.
    fn report_wrong(&self, source: ReplySource, wrong: &mut WrongNodes) -> bool;

    /// A result on trial is right.
    fn report_right(&self, source: ReplySource);
}

/// The pool of `config`, over the client. Nothing is connected yet.
#[must_use]
pub fn connect(config: PoolConfig) -> Arc<dyn Pool> {
    Arc::new(Client(ClientPool::new(config)))
}

/// Opens the version of a pooled key that has this public half. Blocks.
///
/// # Errors
/// As [`Pool::open`]; also where the pool has another version only.
pub fn open_version(
    pool: &dyn Pool,
    name: &str,
    spki: &[u8],
    deadline: Instant,
) -> Result<Arc<dyn Remote>, PoolError> {
    let remote = pool.open(name, Some(spki), deadline)?;
    if remote.info().spki == spki {
        return Ok(remote);
    }
    let text = "the pool has a newer version of this key and serves that of this stub no more: \
                make the stub again (millrace key stub NAME)";
    Err(PoolError::new(FailureKind::Refused, text))
}

struct Client(ClientPool);

struct ClientKey {
    pool: ClientPool,
    key: RemoteKey,
}

impl Pool for Client {
    fn open(
        &self,
        name: &str,
        spki: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<Arc<dyn Remote>, PoolError> {
        let key = match spki {
            Some(spki) => self.0.open_version(name, spki, deadline)?,
            None => self.0.open_key(KeySelector::Name(name.to_owned()), deadline)?,
        };
        Ok(Arc::new(ClientKey { pool: self.0.clone(), key }))
    }

    fn import(&self, key: PrivateKey, deadline: Instant) -> Result<Arc<dyn Remote>, PoolError> {
        let key = self.0.import_key(key, deadline)?;
        Ok(Arc::new(ClientKey { pool: self.0.clone(), key }))
    }

    fn report_soon(&self) {
        self.0.report_soon();
    }

    fn host_loop(&self) -> Option<HostLoop> {
        self.0.host_loop()
    }
}

impl Remote for ClientKey {
    fn info(&self) -> &KeyInfo {
        self.key.info()
    }

    fn call(
        &self,
        operation: &Operation,
        input: &[u8],
        deadline: Instant,
        wrong: WrongNodes,
    ) -> Result<Answer, PoolError> {
        Ok(self.pool.call_elsewhere(&self.key, operation, input, deadline, wrong)?.into())
    }

    fn submit(
        &self,
        operation: Operation,
        input: Vec<u8>,
        deadline: Instant,
        wrong: WrongNodes,
        done: AnswerCallback,
    ) -> Result<(), PoolError> {
        let done = Box::new(move |result: Result<NodeReply, ClientError>| {
            done(result.map(Answer::from).map_err(PoolError::from));
        });
        self.pool.submit_elsewhere(&self.key, operation, input, deadline, wrong, done)?;
        Ok(())
    }

    fn report_wrong(&self, source: ReplySource, wrong: &mut WrongNodes) -> bool {
        self.pool.report_wrong(source, wrong)
    }

    fn report_right(&self, source: ReplySource) {
        self.pool.report_right(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_of_the_client_has_a_failure_kind() {
        use FailureKind::*;
        for (error, kind) in [
            (ClientError::TimedOut, TimedOut),
            (ClientError::Busy, Busy),
            (ClientError::TooManyKeys, Busy),
            (ClientError::NoNode(String::new()), NoNode),
            (ClientError::Start(String::new()), NoNode),
            (ClientError::Cancelled, Failed),
            (ClientError::Key(KeyRefusal::NoSuchKey), Refused),
            (ClientError::Untrusted(String::new()), Refused),
            (ClientError::Distrusted, WrongResult),
            (ClientError::Key(KeyRefusal::ImportDisabled), Refused),
            (ClientError::Key(KeyRefusal::TooManyKeys), Busy),
            (ClientError::Key(KeyRefusal::Draining), Busy),
        ] {
            assert_eq!(PoolError::from(error).kind, kind);
        }
        for error in JobError::ALL {
            let kind = match error {
                JobError::NoSuchKey
                | JobError::BadInput
                | JobError::Failed
                | JobError::Cancelled => Failed,
                JobError::NotOffered | JobError::Denied => Denied,
                JobError::Busy | JobError::Draining => Busy,
                JobError::Expired => TimedOut,
                JobError::OverQuota => Quota,
            };
            assert_eq!(PoolError::from(ClientError::Job(*error)).kind, kind);
        }
    }
}
