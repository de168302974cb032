// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Why the client has no result, and whether the edge should do the operation itself.

use millrace_operation::JobError;
use millrace_wire::KeyRefusal;
use thiserror::Error;

/// Why a key was not opened or a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// A node answered the job with this error, and no other node could be tried.
    #[error("a node answered: {0}")]
    Job(JobError),
    /// No node opened the key; the last one gave this reason.
    #[error("the key was refused: {}", refusal(*.0))]
    Key(KeyRefusal),
    /// Resource: no node can be reached now, or none could by the deadline. The text has the last error of each.
    #[error("no node can be reached: {0}")]
    NoNode(String),
    /// Caller: every node that could take the private key may be an impostor: see
    /// [`Pool::import_key`](crate::Pool::import_key).
    #[error("the private key was not sent: {0}")]
    Untrusted(String),
    /// Resource: every node that could take the job has given wrong results lately.
    #[error("the nodes that could take it have given wrong results")]
    Distrusted,
    /// Resource: the deadline passed.
    #[error("no answer by the deadline")]
    TimedOut,
    /// Caller: [`crate::Pool::cancel`].
    #[error("cancelled")]
    Cancelled,
    /// Resource: this process, or every node, has as many jobs in flight as it may.
    #[error("too many jobs in flight")]
    Busy,
    /// Resource: this process has as many keys open as it may.
    #[error("too many keys are open; drop some or raise `max_keys`")]
    TooManyKeys,
    /// Caller: the configuration cannot be used.
    #[error("the client cannot be used as configured: {0}")]
    Config(String),
    /// Caller: the key was opened by another pool.
    #[error("the key belongs to another pool")]
    ForeignKey,
    /// Caller: the pool was shut down.
    #[error("the client was shut down")]
    Closed,
    /// Resource: too many generations of processes, forked from each other, have used this pool.
    #[error("this process descends from too many forks that used the same pool")]
    Forked,
    /// Resource: the descriptors of the I/O could not be created, or, for a job with a callback, its thread.
    #[error("the i/o thread could not be started: {0}")]
    Start(String),
}

impl ClientError {
    /// Whether the edge should do the operation itself, if it holds the key. False for errors that would
    /// repeat there, and for jobs whose result is no longer wanted.
    #[must_use]
    pub fn fall_back(&self) -> bool {
        match self {
            Self::Job(error) => match error {
                JobError::BadInput | JobError::Denied | JobError::Cancelled => false,
                JobError::NoSuchKey
                | JobError::NotOffered
                | JobError::Busy
                | JobError::Expired
                | JobError::Draining
                | JobError::Failed
                | JobError::OverQuota => true,
            },
            Self::Cancelled | Self::ForeignKey => false,
            Self::Key(_)
            | Self::NoNode(_)
            | Self::Untrusted(_)
            | Self::Distrusted
            | Self::TimedOut
            | Self::Busy
            | Self::TooManyKeys
            | Self::Config(_)
            | Self::Closed
            | Self::Forked
            | Self::Start(_) => true,
        }
    }
}

/// A refusal in words.
fn refusal(reason: KeyRefusal) -> String {
    match reason {
        KeyRefusal::NoSuchKey => {
            let user = rustix::process::geteuid().as_raw();
            format!(
                "no such key for this client: it is not there, or its policy does not admit this client (uid {user} \
                 here, which a container may change; the node's log has the identity that it sees, and the command \
                 that admits it)"
            )
        }
        KeyRefusal::Key(error) => error.to_string(),
        KeyRefusal::TooManyKeys => "the node has too many keys open for this client".to_owned(),
        KeyRefusal::Draining => "the node is draining".to_owned(),
        KeyRefusal::ImportDisabled => "the node takes no keys from its clients".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_that_would_repeat_locally_does_not_fall_back() {
        assert!(!ClientError::Job(JobError::BadInput).fall_back());
        assert!(!ClientError::Job(JobError::Denied).fall_back());
        assert!(!ClientError::Cancelled.fall_back());
        assert!(ClientError::Job(JobError::Busy).fall_back());
        assert!(ClientError::Job(JobError::Expired).fall_back());
        assert!(ClientError::NoNode(String::new()).fall_back());
        assert!(ClientError::TimedOut.fall_back());
        assert!(ClientError::Busy.fall_back());
    }
}
