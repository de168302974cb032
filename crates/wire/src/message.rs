// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What clients and nodes say to each other, as values. How each looks in bytes is in
//! [`crate::codec`] and, for other implementations, in `docs/protocol.md`.

use std::fmt;
use std::time::Duration;

use millrace_engine::error::{JobError, KeyError};
use millrace_engine::key::{KeyInfo, PrivateKey};
use millrace_engine::operation::{Operation, Output};
use millrace_engine::policy::{HashSet, OperationSet};
use millrace_engine::{BackendKind, coded_enum};
use thiserror::Error;

use crate::report::EdgeReport;

/// Chosen by the client, unique among its open requests of that connection; echoed in the answer.
pub type RequestId = u32;

/// Chosen by the client, unique among its jobs in flight on that connection.
pub type JobId = u64;

/// Names a key inside one connection. Another connection's handles mean nothing here.
pub type KeyHandle = u32;

/// From client to node.
#[derive(Debug)]
pub enum ClientMessage {
    /// First message of a connection.
    Hello(Hello),
    /// Asks for a key that the node holds. Answered by `KeyOpened` or `KeyRefused`.
    OpenKey {
        /// Echoed in the answer.
        request: RequestId,
        /// Which key.
        selector: KeySelector,
    },
    /// Brings a key for the life of this connection. Answered by `KeyOpened` or `KeyRefused`.
    ImportKey {
        /// Echoed in the answer.
        request: RequestId,
        /// The key.
        key: PrivateKey,
    },
    /// Gives up a handle. Not answered; jobs in flight end normally.
    CloseKey {
        /// The handle.
        handle: KeyHandle,
    },
    /// Jobs, in any number that fits the frame. Each is answered by exactly one completion.
    Submit(Vec<SubmittedJob>),
    /// Asks that a job ends soon. The job is still answered by exactly one completion.
    Cancel {
        /// The job.
        job: JobId,
    },
    /// Answered by `Pong` with the same token.
    Ping {
        /// Echoed.
        token: u64,
    },
    /// What the edge behind this connection has counted. Only with
    /// [`FEATURE_REPORTS`](crate::FEATURE_REPORTS); not answered.
    Report(EdgeReport),
}

/// From node to client.
#[derive(Debug)]
pub enum NodeMessage {
    /// Answer to `Hello`: the version and features in force, and the node's bounds.
    Welcome(Welcome),
    /// A key is open under this handle.
    KeyOpened {
        /// From the request.
        request: RequestId,
        /// Its name on this connection.
        handle: KeyHandle,
        /// Its type and public half.
        info: KeyInfo,
        /// What this client may do with it.
        operations: OperationSet,
        /// With which hashes.
        hashes: HashSet,
    },
    /// A key was not opened.
    KeyRefused {
        /// From the request.
        request: RequestId,
        /// Why.
        reason: KeyRefusal,
    },
    /// Jobs that ended.
    Complete(Vec<JobCompletion>),
    /// Answer to `Ping`.
    Pong {
        /// From the ping.
        token: u64,
    },
    /// The node takes no new jobs: finish what is in flight and go elsewhere (GOAWAY).
    Drain,
    /// The connection is closed after this message.
    Fault(Fault),
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
    /// Software name and version, for logs; at most [`crate::MAX_NAME_LEN`] bytes of UTF-8 without
    /// control characters. What is too long is cut, a control character becomes `_`.
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
    /// Jobs that this connection may have in flight; more are answered `Busy`.
    pub max_in_flight: u32,
    /// Keys that this connection may have open.
    pub max_keys: u32,
}

/// Which key a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeySelector {
    /// By its name in the node's key store; at most [`crate::MAX_KEY_NAME_LEN`] bytes of UTF-8
    /// without control characters. Another string cannot name a key: it is sent as the empty name,
    /// which no key has.
    Name(String),
    /// By the SHA-256 of its DER `SubjectPublicKeyInfo`.
    SpkiSha256([u8; 32]),
}

/// Why a key was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum KeyRefusal {
    /// There is no such key *for this client*: also the answer for keys of others.
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
    /// This node does not take keys from its clients.
    #[error("this node takes no keys from its clients")]
    ImportDisabled,
}

/// One job in a `Submit`. Its `Debug` shows the length of the input only.
pub struct SubmittedJob {
    /// Its id.
    pub id: JobId,
    /// The key.
    pub key: KeyHandle,
    /// Time from its arrival until it is useless; 0 and anything above the node's own bound mean
    /// that bound.
    pub budget: Duration,
    /// What to do.
    pub operation: Operation,
    /// The input.
    pub input: Vec<u8>,
}

impl fmt::Debug for SubmittedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            key,
            budget,
            operation,
            input,
        } = self;
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
    /// The job.
    pub id: JobId,
    /// What came of it.
    pub result: Result<Output, JobError>,
    /// The backend that served it; `None` if it never reached one.
    pub served_by: Option<BackendKind>,
    /// Time it waited in the node.
    pub queue_time: Duration,
    /// Time the backend worked on it.
    pub service_time: Duration,
}

impl fmt::Debug for JobCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            result,
            served_by,
            queue_time,
            service_time,
        } = self;
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
        /// Bytes that do not decode, an unknown message, or one out of order.
        #[error("protocol violation")]
        Protocol = 0x02 "protocol",
        /// A frame above the bound.
        #[error("frame too large")]
        TooLarge = 0x03 "too-large",
        /// This identity may not use this node.
        #[error("this identity may not use this node")]
        Unauthorized = 0x04 "unauthorized",
        /// Too many connections.
        #[error("too many connections: use another node, or later")]
        TooManyConnections = 0x05 "too-many-connections",
        /// The client stayed silent in the handshake, or never read its completions.
        #[error("timed out")]
        TimedOut = 0x06 "timed-out",
    }
}
