// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors of received bytes. Each is the peer's fault and ends the connection. An error shows numbers of the
//! peer, but never other bytes that it sent.

use std::fmt;

use thiserror::Error;

use crate::MAX_JOBS_PER_FRAME;
use crate::message::Fault;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The first bytes of the connection belong to another protocol.
    #[error("the peer speaks {0}: check that address, port and TLS settings of both ends match")]
    NotMillrace(Peer),
    /// `Hello` or `Welcome` lacks the magic number.
    #[error("the first message lacks the magic number: the peer is not Millrace")]
    Magic,
    /// The header announces a payload longer than its kind allows.
    #[error("frame of kind {kind:#04x} announces {length} bytes, at most {limit} are possible")]
    TooLarge {
        /// The kind in the header.
        kind: u8,
        /// The announced length of the payload.
        length: u32,
        /// The bound of this kind, in bytes.
        limit: usize,
    },
    /// No version of the protocol has this kind of message.
    #[error("message kind {0:#04x} is unknown")]
    UnknownKind(u8),
    /// Only the other side sends this kind of message.
    #[error("message kind {0:#04x} belongs to the other direction")]
    WrongDirection(u8),
    /// The header has flags; the protocol defines none yet.
    #[error("frame flags {0:#04x} are unknown")]
    Flags(u8),
    /// The reserved bytes of the header are not zero.
    #[error("the reserved header field is {0:#06x} instead of zero")]
    Reserved(u16),
    /// The payload ends inside a field.
    #[error("the payload ends inside the field \"{0}\"")]
    Truncated(&'static str),
    /// The payload continues after the last field.
    #[error("{0} bytes follow the last field of the message")]
    Trailing(usize),
    /// A field of variable length is above its bound.
    #[error("field \"{field}\" has {length} bytes, at most {limit} are allowed")]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// Received length, in bytes.
        length: usize,
        /// Bound, in bytes.
        limit: usize,
    },
    /// A text is not UTF-8.
    #[error("field \"{0}\" is not UTF-8")]
    NotUtf8(&'static str),
    /// A text has control characters, which could forge lines in a log.
    #[error("field \"{0}\" has a control character")]
    ControlCharacter(&'static str),
    /// A code is in no table of the protocol.
    #[error("{field} {code:#04x} is unknown")]
    UnknownCode {
        /// Name of the field.
        field: &'static str,
        /// As it was received.
        code: u32,
    },
    /// A number is outside its range.
    #[error("{field} is {value}, which is out of range")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Received number.
        value: u32,
    },
    /// A batch has no items.
    #[error("a batch without jobs")]
    EmptyBatch,
    /// A batch has more jobs than the bound.
    #[error("a batch of {0} jobs, at most {MAX_JOBS_PER_FRAME} are allowed")]
    TooManyJobs(usize),
    /// Two entries of one batch have the same id.
    #[error("job {0} occurs twice in one batch")]
    DuplicateJob(u64),
    /// This job has an error and also an output.
    #[error("job {0} failed and has an output")]
    OutputOfFailedJob(u64),
    /// The counters of a report do not ascend, or one has the value 0, which must be left out.
    #[error("counter {0:#04x} of a report is zero, or not above the one before it")]
    ReportOrder(u8),
    /// The peer's highest version is below its lowest.
    #[error("the version range {min} to {max} is empty")]
    VersionRange {
        /// Lowest version.
        min: u16,
        /// Highest version.
        max: u16,
    },
    /// No version is spoken by both ends.
    #[error("the peer speaks versions {min} to {max}, which are not ours: update the older side")]
    NoCommonVersion {
        /// The peer's lowest version.
        min: u16,
        /// The peer's highest version.
        max: u16,
    },
    /// The node chose a version that the client did not offer.
    #[error("the node chose version {0}, which was not offered")]
    VersionNotOffered(u16),
    /// The node enabled features that the client did not ask for.
    #[error("the node put features {0:#x} in force, which were not asked for")]
    FeaturesNotOffered(u64),
}

impl WireError {
    /// The fault that a node sends before it closes the connection for this error.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::TooLarge { .. } => Fault::TooLarge,
            Self::NoCommonVersion { .. } => Fault::Version,
            _ => Fault::Protocol,
        }
    }
}

/// Another protocol, recognised by the peer's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TLS record: one end uses TLS, the other does not.
    Tls,
    /// Printable text: HTTP, SSH, SMTP or a person with a terminal.
    Text,
}

impl Peer {
    /// Recognises another protocol by the first bytes of an invalid frame header.
    pub(crate) fn recognise(first: [u8; 4]) -> Option<Self> {
        // Content type change_cipher_spec to application_data, legacy version 3.x (RFC 8446, 5.1).
        if matches!(first, [0x14..=0x17, 0x03, 0x00..=0x04, _]) {
            return Some(Self::Tls);
        }
        first.iter().all(|byte| matches!(byte, 0x20..=0x7e | b'\r' | b'\n')).then_some(Self::Text)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "TLS where plain Millrace was expected",
            Self::Text => "a text protocol such as HTTP",
        })
    }
}
