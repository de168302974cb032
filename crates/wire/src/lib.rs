// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The protocol between clients and nodes: messages as values, frames as bytes, versions.
//!
//! ```text
//!  bytes ──► Decoder<ClientMessage> ──► node            bytes ──► Decoder<NodeMessage> ──► client
//!  bytes ◄── NodeMessage::encode   ◄── node             bytes ◄── ClientMessage::encode ◄── client
//! ```
//!
//! This crate does no I/O, holds no clock and keeps no connection state except an unfinished frame. Client
//! and node check the order of messages. `docs/protocol.md` specifies the bytes; a test compares its tables
//! and byte vectors with this code.
//!
//! - `message`: the messages.
//! - `codec`: encodes and decodes each message, by the fields of `reader` and the frames of `writer`.
//! - `decoder`: decodes a stream into messages.
//! - [`codes`]: tables of codes.
//! - `report`: the counters of an edge.
//! - `version`: negotiation of version and features.
//! - `error`: errors of received bytes.
#![forbid(unsafe_code)]

mod codec;
pub mod codes;
mod decoder;
mod error;
mod message;
mod reader;
mod report;
mod version;
mod writer;

pub use codec::{Message, parse_header};
pub use decoder::{Decoder, MAX_BUFFER, MIN_SPACE};
pub use error::{Peer, WireError};
pub use message::{
    ClientMessage, Fault, Hello, JobCompletion, KeyHandle, KeyRefusal, KeySelector, NodeMessage,
    RequestId, SubmittedJob, Welcome,
};
pub use report::{EDGE_COUNTERS, EdgeCounter, EdgeReport};
pub use version::{
    FEATURE_DESCRIPTION, FEATURE_DEVICE_COUNTERS, FEATURE_ML_DSA, FEATURE_NAMES, FEATURE_REPORTS,
    FEATURE_RETRY_AFTER, FEATURES, VERSION_MAX, VERSION_MIN, Vocabulary, accept_version,
    feature_of_hash, feature_of_key, feature_of_operation, negotiate_version,
};
pub use writer::{
    CompleteWriter, MAX_COMPLETION_LEN, MAX_JOB_LEN, SubmitWriter, encode_completions,
    encode_submit_batch, job_fits, wipe,
};

/// The protocol's name in the TLS handshake (ALPN, RFC 7301). Its number changes only with the frame header;
/// `Hello` and `Welcome` negotiate everything else.
pub const ALPN: &[u8] = b"millrace/1";

/// First bytes of the payload of `Hello` and `Welcome`. They reveal another protocol at the first message.
pub const MAGIC: [u8; 8] = *b"MILLRACE";

/// Length of the header of every frame, in bytes.
pub const HEADER_LEN: usize = 8;

/// Bound on a frame with its header, in bytes. It fits a batch of 64 jobs of RSA-4096 or the largest single
/// job, and a thousand connections need at most 64 MiB of buffers.
pub const MAX_FRAME_LEN: usize = 64 * 1024;

/// Bound on the payload of a frame, in bytes: what [`MAX_FRAME_LEN`] leaves beside the header.
pub const MAX_PAYLOAD_LEN: usize = MAX_FRAME_LEN - HEADER_LEN;

/// Bound on the jobs in one frame. With more, the header's cost per job is negligible already, and the first
/// job would wait until the last arrives.
pub const MAX_JOBS_PER_FRAME: usize = 256;

/// Bound on the name of a software or a node, in bytes. The name goes into logs and metrics.
pub const MAX_NAME_LEN: usize = 64;

/// Bound on a DER `SubjectPublicKeyInfo`, in bytes: DH-8192 with its group takes about 3.1 KiB.
pub const MAX_SPKI_LEN: usize = 4 * 1024;

/// Bound on the output of one job, in bytes: a signature of ML-DSA-87 has 4627, a group element of 8192 bits
/// 1024.
pub const MAX_OUTPUT_LEN: usize = 8 * 1024;
