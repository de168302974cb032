// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The messages of clients and nodes, as values. [`crate::codec`] has their encoding; `docs/protocol.md`
//! specifies it for other implementations.

use std::fmt;
use std::time::Duration;

use millrace_operation::{
    BackendKind, HashAlgorithms, JobError, JobId, KeyError, KeyInfo, Operation, OperationSet,
    Output, PrivateKey, coded_enum,
};
use thiserror::Error;

use crate::report::EdgeReport;

/// Number of a request. The client chooses it, unique among its open requests on the connection; the answer
/// echoes it.
pub type RequestId = u32;

/// Names a key on one connection. Handles are not valid on other connections.
pub type KeyHandle = u32;

/// A message from client to node.
#[derive(Debug)]
pub enum ClientMessage {
    /// First message of a connection.
    Hello(Hello),
    /// Asks for a key that the node holds. Answered by `KeyOpened` or `KeyRefused`.
    OpenKey {
        /// Echoed in the answer.
        request: RequestId,
        /// Name or hash that selects the key.
        selector: KeySelector,
    },
    /// Imports a key until this connection closes. Answered by `KeyOpened` or `KeyRefused`.
    ImportKey {
        /// Echoed in the answer.
        request: RequestId,
        /// Private key, for this connection only.
        key: PrivateKey,
    },
    /// Closes a handle. Not answered; jobs in flight end normally.
    CloseKey {
        /// A handle of this session; another one is ignored.
        handle: KeyHandle,
    },
    /// Jobs, as many as fit the frame. Each is answered by exactly one completion.
    Submit(Vec<SubmittedJob>),
    /// Asks the node to end a job soon. The job is still answered by exactly one completion.
    Cancel {
        /// A job of this session; one that has ended is ignored.
        job: JobId,
    },
    /// Answered by `Pong` with the same token.
    Ping {
        /// Any number; the answer has it again.
        token: u64,
    },
    /// The counters of the edge behind this connection. Only with
    /// [`FEATURE_REPORTS`](crate::FEATURE_REPORTS); not answered.
    Report(Box<EdgeReport>),
    /// Asks what the node is and what it knows of this identity. Only with
    /// [`FEATURE_DESCRIPTION`](crate::FEATURE_DESCRIPTION); answered by `Description`.
    Describe,
}

/// A message from node to client.
#[derive(Debug)]
pub enum NodeMessage {
    /// Answer to `Hello`: the version and features in force, and the node's bounds.
    Welcome(Welcome),
    /// A key is open under this handle.
    KeyOpened {
        /// Id of the request.
        request: RequestId,
        /// The key's name on this connection.
        handle: KeyHandle,
        /// The key's type and public half.
        info: KeyInfo,
        /// Operations that this client may do with the key.
        operations: OperationSet,
        /// Hashes that this client may use with the key.
        hashes: HashAlgorithms,
    },
    /// A key was not opened.
    KeyRefused {
        /// Id of the request.
        request: RequestId,
        /// Cause of the refusal.
        reason: KeyRefusal,
    },
    /// Jobs that ended.
    Complete(Vec<JobCompletion>),
    /// Answer to `Ping`.
    Pong {
        /// Token of the ping.
        token: u64,
    },
    /// The node takes no new jobs: finish what is in flight and go elsewhere (GOAWAY).
    Drain,
    /// The connection is closed after this message.
    Fault(Fault),
    /// Answer to `Describe`.
    Description {
        /// Name and version of the node's software; bounded like [`Hello::agent`].
        software: String,
        /// The sum of all reports of this identity over the connections that are open now.
        edges: Box<EdgeReport>,
    },
    /// The node refuses jobs with this key, and expects to take them after this time. Only with
    /// [`FEATURE_RETRY_AFTER`](crate::FEATURE_RETRY_AFTER); sent before the completion of the refused job.
    RetryAfter {
        /// Valid in this session until `CloseKey`.
        handle: KeyHandle,
        /// Whole microseconds on the wire, at most 4295 s.
        wait: Duration,
    },
}

/// First message of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest protocol version that the client speaks.
    pub min_version: u16,
    /// Highest protocol version that the client speaks.
    pub max_version: u16,
    /// Features that the client would like, as bits.
    pub features: u64,
    /// Software name and version, for logs; at most [`crate::MAX_NAME_LEN`] bytes of UTF-8 without control
    /// characters. Encoding cuts a longer name and replaces control characters by `_`.
    pub agent: String,
}

/// First message of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version in force.
    pub version: u16,
    /// The features in force: a subset of those asked for.
    pub features: u64,
    /// Name of the node, for logs; bounded like [`Hello::agent`].
    pub node: String,
    /// Most jobs that this connection may have in flight; the node answers further ones with `Busy`.
    pub max_in_flight: u32,
    /// Most keys that this connection may have open.
    pub max_keys: u32,
}

/// The key that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeySelector {
    /// Name in the node's key store: at most [`MAX_KEY_NAME_LEN`](millrace_operation::MAX_KEY_NAME_LEN) bytes of UTF-8
    /// without control characters. No key has another name, so any other string is sent as the empty name, which no key
    /// has.
    Name(String),
    /// SHA-256 of the DER `SubjectPublicKeyInfo`.
    SpkiSha256([u8; 32]),
}

/// Why a key was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum KeyRefusal {
    /// There is no such key *for this client*. Keys of other clients get the same answer.
    #[error("no such key")]
    NoSuchKey,
    /// The imported key was not accepted.
    #[error("the key was not accepted: {0}")]
    Key(KeyError),
    /// The bound on keys of this connection is reached.
    #[error("too many keys on this connection: close some first")]
    TooManyKeys,
    /// The node is draining.
    #[error("the node is draining: use another one")]
    Draining,
    /// This node accepts no keys from its clients.
    #[error("this node takes no keys from its clients")]
    ImportDisabled,
}

/// One job in a `Submit`. Its `Debug` shows the length of the input only.
pub struct SubmittedJob {
    /// Number of the job.
    pub id: JobId,
    /// Handle of the key.
    pub key: KeyHandle,
    /// Time from the job's arrival until its result is useless. 0, and anything above the node's own bound,
    /// means that bound.
    pub budget: Duration,
    /// The operation, with its parameters.
    pub operation: Operation,
    /// The operation's input; [`Operation`] describes its form.
    pub input: Vec<u8>,
}

impl fmt::Debug for SubmittedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, key, budget, operation, input } = self;
        f.debug_struct("SubmittedJob")
            .field("id", id)
            .field("key", key)
            .field("budget", budget)
            .field("operation", operation)
            .field("input", &format_args!("{} bytes", input.len()))
            .finish()
    }
}

/// One completion in a `Complete`. Its `Debug` shows the length of the output only, because a
/// decryption or a key agreement yields a secret.
pub struct JobCompletion {
    /// Number of the job.
    pub id: JobId,
    /// The output, or the error.
    pub result: Result<Output, JobError>,
    /// The backend that served the job. `None` if the job never reached one.
    pub served_by: Option<BackendKind>,
    /// Time that the job waited in the node's queues.
    pub queue_time: Duration,
    /// Time that the backend worked on the job.
    pub service_time: Duration,
}

impl fmt::Debug for JobCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, result, served_by, queue_time, service_time } = self;
        let mut shown = f.debug_struct("JobCompletion");
        shown.field("id", id);
        match result {
            Ok(output) => shown.field("output", &format_args!("{} bytes", output.len())),
            Err(error) => shown.field("error", error),
        };
        shown
            .field("served_by", served_by)
            .field("queue_time", queue_time)
            .field("service_time", service_time)
            .finish()
    }
}

coded_enum! {
    /// Why a node closes a connection.
    #[derive(Error)]
    pub enum Fault {
        /// No common protocol version.
        #[error("no common protocol version: update the older side")]
        Version = 0x01 "version",
        /// The peer sent bytes that do not decode, an unknown message, or a message out of order.
        #[error("protocol violation")]
        Protocol = 0x02 "protocol",
        /// A frame above the bound.
        #[error("frame too large")]
        TooLarge = 0x03 "too-large",
        /// This identity may not use this node.
        #[error("this identity may not use this node")]
        Unauthorized = 0x04 "unauthorized",
        /// This identity, or the node, has as many connections as it may.
        #[error("too many connections: use another node, or later")]
        TooManyConnections = 0x05 "too-many-connections",
        /// The client stayed silent in the handshake, or never read its completions.
        #[error("timed out")]
        TimedOut = 0x06 "timed-out",
    }
}
