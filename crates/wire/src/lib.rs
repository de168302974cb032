// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What clients and nodes say to each other: messages as values, frames as bytes, versions.
//!
//! ```text
//!  bytes ──► Decoder<ClientMessage> ──► node            bytes ──► Decoder<NodeMessage> ──► client
//!  bytes ◄── NodeMessage::encode   ◄── node             bytes ◄── ClientMessage::encode ◄── client
//! ```
//!
//! This crate does no I/O, holds no clock and keeps no connection state beyond an unfinished frame:
//! which message may follow which is the business of the two ends. The bytes are specified in
//! `docs/protocol.md`, whose tables and byte vectors are compared with this code by a test.
//!
//! - [`message`]: the messages.
//! - [`codec`]: each message as bytes and back, batch writers.
//! - [`decoder`]: bytes of a stream, in whatever pieces they come, as messages.
//! - [`codes`]: the numbers that stand for things, as tables.
//! - [`report`]: what an edge tells about itself.
//! - [`version`]: how the two ends agree on a version and on features.
//! - [`error`]: what can be wrong with bytes from outside.
#![forbid(unsafe_code)]

pub mod codec;
pub mod codes;
pub mod decoder;
pub mod error;
pub mod message;
mod reader;
pub mod report;
pub mod version;
mod writer;

pub use codec::Message;
pub use decoder::Decoder;
pub use error::{Peer, WireError};
pub use message::{
    ClientMessage, Fault, Hello, JobCompletion, JobId, KeyHandle, KeyRefusal, KeySelector,
    NodeMessage, RequestId, SubmittedJob, Welcome,
};
pub use report::{EdgeCounter, EdgeReport};
pub use version::{
    FEATURE_ML_DSA, FEATURE_REPORTS, FEATURES, VERSION_MAX, VERSION_MIN, Vocabulary,
};

/// The protocol's name in the TLS handshake (ALPN, RFC 7301). The number changes only with the
/// frame header itself; everything else is negotiated by `Hello` and `Welcome`.
pub const ALPN: &[u8] = b"millrace/1";

/// First bytes of the payload of `Hello` and `Welcome`: another protocol is recognised
/// at the first message.
pub const MAGIC: [u8; 8] = *b"MILLRACE";

/// Length of the header of every frame, in bytes.
pub const HEADER_LEN: usize = 8;

/// Bound on a frame with its header, in bytes: room for a batch of 64 jobs of RSA-4096 or for the
/// largest single job, and small enough that a thousand connections fit into 64 MiB of buffers.
pub const MAX_FRAME_LEN: usize = 64 * 1024;

/// Bound on the payload of a frame, in bytes.
pub const MAX_PAYLOAD_LEN: usize = MAX_FRAME_LEN - HEADER_LEN;

/// Bound on the jobs in one frame: beyond, the header costs nothing any more, and the first job
/// would wait for the last to arrive.
pub const MAX_JOBS_PER_FRAME: usize = 256;

/// Bound on the name of a software or a node, in bytes: it goes into logs and metrics.
pub const MAX_NAME_LEN: usize = 64;

/// Bound on the name of a key, in bytes: a host name (253) is not meant, a label is.
pub const MAX_KEY_NAME_LEN: usize = 128;

/// Bound on a DER `SubjectPublicKeyInfo`, in bytes: DH-8192 with its group takes about 3.1 KiB.
pub const MAX_SPKI_LEN: usize = 4 * 1024;

/// Bound on the output of one job, in bytes: a signature of ML-DSA-87 has 4627, a group element of 8192 bits 1024.
pub const MAX_OUTPUT_LEN: usize = 8 * 1024;
