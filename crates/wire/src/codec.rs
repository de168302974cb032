// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Encodes and decodes every message. Encoding is canonical: one value has one form, and `decode`
//! accepts no other. So decoded bytes encode to themselves.
//!
//! Encoding cannot fail. A value outside the bounds, which a caller should not build, is replaced by the
//! nearest valid one: a job that the node refuses, a completion with the status "operation failed", a name
//! that no key has.

use std::time::Duration;

use millrace_operation::{
    BackendKind, Hash, HashAlgorithms, JobError, KeyError, KeyInfo, MAX_INPUT_LEN,
    MAX_KEY_NAME_LEN, MAX_LABEL_LEN, MAX_PRIVATE_KEY_LEN, MlDsaInput, Operation, OperationKind,
    OperationSet, Output, PrivateKey,
};
use zeroize::Zeroizing;

use crate::codes::{self, MessageKind};
use crate::error::WireError;
use crate::message::{
    ClientMessage, Fault, Hello, JobCompletion, KeyRefusal, KeySelector, NodeMessage, SubmittedJob,
    Welcome,
};
use crate::reader::PayloadReader;
use crate::report::{EdgeCounter, EdgeReport};
use crate::writer::{
    MIN_COMPLETION_LEN, MIN_JOB_LEN, begin_frame, encode_completions, encode_submit_batch,
    end_frame, put_bytes, reserve,
};
use crate::{HEADER_LEN, MAGIC, MAX_JOBS_PER_FRAME, MAX_NAME_LEN, MAX_OUTPUT_LEN, MAX_SPKI_LEN};

/// One direction of the protocol.
pub trait Message: Sized {
    /// Every kind of message of this direction.
    const KINDS: &'static [MessageKind];

    /// Every kind of message of the other direction.
    const FOREIGN_KINDS: &'static [MessageKind];

    /// Appends the message with its header. A batch too long for one frame becomes several frames; an empty
    /// batch appends nothing.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the payload of a message of this kind.
    ///
    /// # Errors
    /// The first defect of the bytes.
    fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError>;

    /// Whether payloads of this kind may hold secrets. The decoder overwrites such payloads after use.
    fn may_be_secret(kind: u8) -> bool;
}

/// Returns kind and payload length of a frame, if this can be the header of a message of `M`.
///
/// # Errors
/// An unknown kind, one of the other direction, an impossible length, flags, reserved bytes.
pub fn parse_header<M: Message>(header: [u8; HEADER_LEN]) -> Result<(u8, usize), WireError> {
    let [l0, l1, l2, l3, code, flags, r0, r1] = header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]);
    let Some(kind) = M::KINDS.iter().find(|kind| kind.code == code) else {
        let foreign = M::FOREIGN_KINDS.iter().any(|kind| kind.code == code);
        return Err(if foreign {
            WireError::WrongDirection(code)
        } else {
            WireError::UnknownKind(code)
        });
    };
    if flags != 0 {
        return Err(WireError::Flags(flags));
    }
    match u16::from_le_bytes([r0, r1]) {
        0 => {}
        reserved => return Err(WireError::Reserved(reserved)),
    }
    match usize::try_from(length) {
        Ok(payload) if payload <= kind.max_payload => Ok((code, payload)),
        _ => Err(WireError::TooLarge { kind: code, length, limit: kind.max_payload }),
    }
}

impl Message for ClientMessage {
    const KINDS: &'static [MessageKind] = codes::CLIENT_KINDS;
    const FOREIGN_KINDS: &'static [MessageKind] = codes::NODE_KINDS;

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => frame(out, codes::HELLO, |out| {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&hello.min_version.to_le_bytes());
                out.extend_from_slice(&hello.max_version.to_le_bytes());
                out.extend_from_slice(&hello.features.to_le_bytes());
                put_name(out, &hello.agent);
            }),
            Self::OpenKey { request, selector } => frame(out, codes::OPEN_KEY, |out| {
                out.extend_from_slice(&request.to_le_bytes());
                put_selector(out, selector);
            }),
            Self::ImportKey { request, key } => frame(out, codes::IMPORT_KEY, |out| {
                out.extend_from_slice(&request.to_le_bytes());
                put_bytes(out, at_most(key.dangerous_pkcs8(), MAX_PRIVATE_KEY_LEN));
            }),
            Self::CloseKey { handle } => {
                frame(out, codes::CLOSE_KEY, |out| out.extend_from_slice(&handle.to_le_bytes()));
            }
            Self::Submit(jobs) => encode_submit_batch(jobs, out),
            Self::Cancel { job } => {
                frame(out, codes::CANCEL, |out| out.extend_from_slice(&job.to_le_bytes()));
            }
            Self::Ping { token } => {
                frame(out, codes::PING, |out| out.extend_from_slice(&token.to_le_bytes()));
            }
            Self::Report(report) => frame(out, codes::REPORT, |out| put_report(out, report)),
            Self::Describe => frame(out, codes::DESCRIBE, |_| {}),
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = PayloadReader::new(payload);
        let r = &mut reader;
        let message = match kind {
            k if k == codes::HELLO.code => Self::Hello(hello(r)?),
            k if k == codes::OPEN_KEY.code => {
                Self::OpenKey { request: r.u32("request")?, selector: selector(r)? }
            }
            k if k == codes::IMPORT_KEY.code => {
                let request = r.u32("request")?;
                let pkcs8 = r.bytes("pkcs8", MAX_PRIVATE_KEY_LEN)?;
                let key = PrivateKey::from_pkcs8(Zeroizing::new(pkcs8.to_vec()));
                Self::ImportKey { request, key }
            }
            k if k == codes::CLOSE_KEY.code => Self::CloseKey { handle: r.u32("handle")? },
            k if k == codes::SUBMIT.code => Self::Submit(batch(r, MIN_JOB_LEN, job, |j| j.id)?),
            k if k == codes::CANCEL.code => Self::Cancel { job: r.u64("job")? },
            k if k == codes::PING.code => Self::Ping { token: r.u64("token")? },
            k if k == codes::REPORT.code => Self::Report(Box::new(report(r)?)),
            k if k == codes::DESCRIBE.code => Self::Describe,
            unknown => return Err(WireError::UnknownKind(unknown)),
        };
        reader.finish()?;
        Ok(message)
    }

    fn may_be_secret(kind: u8) -> bool {
        kind == codes::IMPORT_KEY.code
    }
}

impl Message for NodeMessage {
    const KINDS: &'static [MessageKind] = codes::NODE_KINDS;
    const FOREIGN_KINDS: &'static [MessageKind] = codes::CLIENT_KINDS;

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Welcome(welcome) => frame(out, codes::WELCOME, |out| {
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&welcome.version.to_le_bytes());
                out.extend_from_slice(&welcome.features.to_le_bytes());
                put_name(out, &welcome.node);
                out.extend_from_slice(&welcome.max_in_flight.to_le_bytes());
                out.extend_from_slice(&welcome.max_keys.to_le_bytes());
            }),
            Self::KeyOpened { request, handle, info, operations, hashes } => {
                let Some((code, bits)) = codes::key_type_to_codes(info.key_type)
                    .filter(|_| info.spki.len() <= MAX_SPKI_LEN)
                else {
                    // This version has no code for the type of the key, so it does not offer the key.
                    let reason = KeyRefusal::Key(KeyError::NotOffered);
                    return Self::KeyRefused { request: *request, reason }.encode(out);
                };
                frame(out, codes::KEY_OPENED, |out| {
                    out.extend_from_slice(&request.to_le_bytes());
                    out.extend_from_slice(&handle.to_le_bytes());
                    out.push(code);
                    out.extend_from_slice(&bits.to_le_bytes());
                    put_bytes(out, &info.spki);
                    out.extend_from_slice(&operations.bits().to_le_bytes());
                    out.extend_from_slice(&hashes.bits().to_le_bytes());
                });
            }
            Self::KeyRefused { request, reason } => frame(out, codes::KEY_REFUSED, |out| {
                let (reason, detail) = reason.codes();
                out.extend_from_slice(&request.to_le_bytes());
                out.extend_from_slice(&[reason, detail]);
            }),
            Self::Complete(completions) => encode_completions(completions, out),
            Self::Pong { token } => {
                frame(out, codes::PONG, |out| out.extend_from_slice(&token.to_le_bytes()));
            }
            Self::Drain => frame(out, codes::DRAIN, |_| {}),
            Self::Fault(fault) => frame(out, codes::FAULT, |out| out.push(fault.code())),
            Self::Description { software, edges } => frame(out, codes::DESCRIPTION, |out| {
                put_name(out, software);
                put_report(out, edges);
            }),
            Self::RetryAfter { handle, wait } => frame(out, codes::RETRY_AFTER, |out| {
                let micros = u32::try_from(wait.as_micros()).unwrap_or(u32::MAX);
                out.extend_from_slice(&handle.to_le_bytes());
                out.extend_from_slice(&micros.to_le_bytes());
            }),
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, WireError> {
        let mut reader = PayloadReader::new(payload);
        let r = &mut reader;
        let message = match kind {
            k if k == codes::WELCOME.code => Self::Welcome(welcome(r)?),
            k if k == codes::KEY_OPENED.code => key_opened(r)?,
            k if k == codes::KEY_REFUSED.code => {
                let request = r.u32("request")?;
                let (reason, detail) = (r.u8("reason")?, r.u8("detail")?);
                let reason = KeyRefusal::from_codes(reason, detail).ok_or_else(|| {
                    let code = u32::from(u16::from_be_bytes([reason, detail]));
                    WireError::UnknownCode { field: "reason and detail", code }
                })?;
                Self::KeyRefused { request, reason }
            }
            k if k == codes::COMPLETE.code => {
                Self::Complete(batch(r, MIN_COMPLETION_LEN, completion, |c| c.id)?)
            }
            k if k == codes::PONG.code => Self::Pong { token: r.u64("token")? },
            k if k == codes::DRAIN.code => Self::Drain,
            k if k == codes::FAULT.code => {
                let code = r.u8("fault")?;
                Self::Fault(known("fault", code, Fault::from_code(code))?)
            }
            k if k == codes::DESCRIPTION.code => Self::Description {
                software: r.text("software", MAX_NAME_LEN)?,
                edges: Box::new(report(r)?),
            },
            k if k == codes::RETRY_AFTER.code => Self::RetryAfter {
                handle: r.u32("handle")?,
                wait: Duration::from_micros(r.u32("wait")?.into()),
            },
            unknown => return Err(WireError::UnknownKind(unknown)),
        };
        reader.finish()?;
        Ok(message)
    }

    fn may_be_secret(kind: u8) -> bool {
        kind == codes::COMPLETE.code
    }
}

fn hello(r: &mut PayloadReader<'_>) -> Result<Hello, WireError> {
    magic(r)?;
    let (min, max) = (r.u16("min_version")?, r.u16("max_version")?);
    if min > max {
        return Err(WireError::VersionRange { min, max });
    }
    Ok(Hello {
        min_version: min,
        max_version: max,
        features: r.u64("features")?,
        agent: r.text("agent", MAX_NAME_LEN)?,
    })
}

fn welcome(r: &mut PayloadReader<'_>) -> Result<Welcome, WireError> {
    magic(r)?;
    Ok(Welcome {
        version: r.u16("version")?,
        features: r.u64("features")?,
        node: r.text("node", MAX_NAME_LEN)?,
        max_in_flight: r.u32("max_in_flight")?,
        max_keys: r.u32("max_keys")?,
    })
}

fn magic(r: &mut PayloadReader<'_>) -> Result<(), WireError> {
    if r.array("magic")? == MAGIC { Ok(()) } else { Err(WireError::Magic) }
}

fn selector(r: &mut PayloadReader<'_>) -> Result<KeySelector, WireError> {
    match r.u8("selector")? {
        codes::SELECT_NAME => Ok(KeySelector::Name(r.text("name", MAX_KEY_NAME_LEN)?)),
        codes::SELECT_SPKI_SHA256 => Ok(KeySelector::SpkiSha256(r.array("spki_sha256")?)),
        code => Err(WireError::UnknownCode { field: "selector", code: code.into() }),
    }
}

/// Decodes the counters that are not 0, in the order of their codes.
fn report(r: &mut PayloadReader<'_>) -> Result<EdgeReport, WireError> {
    let mut report = EdgeReport::default();
    let mut last = 0;
    for _ in 0..r.u8("count")? {
        let code = r.u8("counter")?;
        let counter = known("counter", code, EdgeCounter::from_code(code))?;
        let value = r.u64("value")?;
        if code <= last || value == 0 {
            return Err(WireError::ReportOrder(code));
        }
        last = code;
        report.set(counter, value);
    }
    Ok(report)
}

fn key_opened(r: &mut PayloadReader<'_>) -> Result<NodeMessage, WireError> {
    let (request, handle) = (r.u32("request")?, r.u32("handle")?);
    let (code, bits) = (r.u8("key_type")?, r.u16("key_bits")?);
    let key_type = codes::key_type_from_codes(code, bits)?;
    let spki = r.bytes("spki", MAX_SPKI_LEN)?.to_vec();
    let bits = r.u32("operations")?;
    let operations = OperationSet::from_bits(bits);
    if operations.bits() != bits {
        return Err(WireError::OutOfRange { field: "operations", value: bits });
    }
    let bits = r.u32("hashes")?;
    let hashes = HashAlgorithms::from_bits(bits);
    if hashes.bits() != bits {
        return Err(WireError::OutOfRange { field: "hashes", value: bits });
    }
    let info = KeyInfo { key_type, spki };
    Ok(NodeMessage::KeyOpened { request, handle, info, operations, hashes })
}

/// Decodes a batch: the count, then the items. No id may occur twice.
fn batch<T>(
    r: &mut PayloadReader<'_>,
    min_len: usize,
    mut item: impl FnMut(&mut PayloadReader<'_>) -> Result<T, WireError>,
    id: impl Fn(&T) -> u64,
) -> Result<Vec<T>, WireError> {
    let count = usize::from(r.u16("count")?);
    if count == 0 {
        return Err(WireError::EmptyBatch);
    }
    if count > MAX_JOBS_PER_FRAME {
        return Err(WireError::TooManyJobs(count));
    }
    if r.left() < count * min_len {
        // Checked before anything is allocated.
        return Err(WireError::Truncated("batch"));
    }
    let mut items = Vec::with_capacity(count);
    let mut ids = Ids::default();
    for _ in 0..count {
        let item = item(r)?;
        ids.insert(id(&item), items.iter().map(&id))?;
        items.push(item);
    }
    Ok(items)
}

/// The ids of a batch so far. While they ascend, as those of a counter do, it needs only the highest. After
/// that it scans at most 255 ids, which is a few vector instructions.
#[derive(Default)]
struct Ids {
    highest: Option<u64>,
    /// Every id so far; empty while they ascend.
    seen: Vec<u64>,
}

impl Ids {
    /// Adds an id; `before` are the ids that were added before.
    fn insert(&mut self, id: u64, before: impl Iterator<Item = u64>) -> Result<(), WireError> {
        let ascends = self.highest < Some(id);
        if ascends {
            self.highest = Some(id);
        } else if self.seen.is_empty() {
            self.seen.reserve_exact(MAX_JOBS_PER_FRAME);
            self.seen.extend(before);
        }
        // No early exit, so that the compiler can compare several at once.
        if !ascends && self.seen.iter().fold(false, |found, other| found | (*other == id)) {
            return Err(WireError::DuplicateJob(id));
        }
        if !self.seen.is_empty() {
            self.seen.push(id);
        }
        Ok(())
    }
}

fn job(r: &mut PayloadReader<'_>) -> Result<SubmittedJob, WireError> {
    Ok(SubmittedJob {
        id: r.u64("job")?,
        key: r.u32("handle")?,
        budget: Duration::from_micros(r.u32("budget")?.into()),
        operation: operation(r)?,
        input: r.bytes("input", MAX_INPUT_LEN)?.to_vec(),
    })
}

fn operation(r: &mut PayloadReader<'_>) -> Result<Operation, WireError> {
    let code = r.u8("operation")?;
    let kind = known("operation", code, OperationKind::from_code(code))?;
    Ok(match kind {
        OperationKind::RsaPkcs1Sign => Operation::RsaPkcs1Sign { hash: hash(r, "hash")? },
        OperationKind::RsaPssSign => Operation::RsaPssSign {
            hash: hash(r, "hash")?,
            mgf_hash: hash(r, "mgf_hash")?,
            salt_len: r.u16("salt_len")?,
        },
        OperationKind::RsaOaepDecrypt => Operation::RsaOaepDecrypt {
            hash: hash(r, "hash")?,
            mgf_hash: hash(r, "mgf_hash")?,
            label: r.bytes("label", MAX_LABEL_LEN)?.to_vec(),
        },
        OperationKind::RsaPkcs1Decrypt => Operation::RsaPkcs1Decrypt,
        OperationKind::RsaTlsPremaster => {
            Operation::RsaTlsPremaster { client_version: r.u16("client_version")? }
        }
        OperationKind::RsaRaw => Operation::RsaRaw,
        OperationKind::EcdsaSign => Operation::EcdsaSign { hash: hash(r, "hash")? },
        OperationKind::Ecdh => Operation::Ecdh,
        OperationKind::X25519 => Operation::X25519,
        OperationKind::Ed25519Sign => Operation::Ed25519Sign,
        OperationKind::DhDerive => Operation::DhDerive,
        OperationKind::DsaSign => Operation::DsaSign { hash: hash(r, "hash")? },
        OperationKind::MlDsaSign => {
            let code = r.u8("input_form")?;
            Operation::MlDsaSign { input: known("input_form", code, MlDsaInput::from_code(code))? }
        }
    })
}

fn hash(r: &mut PayloadReader<'_>, field: &'static str) -> Result<Hash, WireError> {
    let code = r.u8(field)?;
    known(field, code, Hash::from_code(code))
}

fn completion(r: &mut PayloadReader<'_>) -> Result<JobCompletion, WireError> {
    let id = r.u64("job")?;
    let (status, server) = (r.u8("status")?, r.u8("served_by")?);
    let served_by = match server {
        codes::SERVED_BY_NONE => None,
        code => Some(known("served_by", code, BackendKind::from_code(code))?),
    };
    let queue_time = Duration::from_nanos(r.u32("queue_time")?.into());
    let service_time = Duration::from_nanos(r.u32("service_time")?.into());
    let output = r.bytes("output", MAX_OUTPUT_LEN)?;
    let result = match status {
        codes::STATUS_OK => Ok(Output::new(output.to_vec())),
        _ if !output.is_empty() => return Err(WireError::OutputOfFailedJob(id)),
        code => Err(known("status", code, JobError::from_code(code))?),
    };
    Ok(JobCompletion { id, result, served_by, queue_time, service_time })
}

fn known<T>(field: &'static str, code: u8, value: Option<T>) -> Result<T, WireError> {
    value.ok_or_else(|| WireError::UnknownCode { field, code: code.into() })
}

/// Appends one frame of a message that is not a batch. Its kind bounds the payload, so the buffer is enlarged
/// at most once, without leaving a copy behind.
fn frame(out: &mut Vec<u8>, kind: MessageKind, payload: impl FnOnce(&mut Vec<u8>)) {
    reserve(out, HEADER_LEN + kind.max_payload);
    let start = begin_frame(out, kind);
    payload(out);
    end_frame(out, start);
}

/// Returns the bytes, or none if they are too long: a cut key is useless.
fn at_most(bytes: &[u8], limit: usize) -> &[u8] {
    if bytes.len() <= limit { bytes } else { &[] }
}

/// Appends a name for logs. A name that is too long is cut, and control characters become `_`.
fn put_name(out: &mut Vec<u8>, name: &str) {
    let start = out.len();
    out.push(0);
    let mut length: u8 = 0;
    for c in name.chars().map(|c| if c.is_control() { '_' } else { c }) {
        let mut utf8 = [0; 4];
        let encoded = c.encode_utf8(&mut utf8).as_bytes();
        match u8::try_from(usize::from(length) + encoded.len()) {
            Ok(longer) if usize::from(longer) <= MAX_NAME_LEN => length = longer,
            _ => break,
        }
        out.extend_from_slice(encoded);
    }
    out[start] = length;
}

fn put_report(out: &mut Vec<u8>, report: &EdgeReport) {
    let counted = || report.iter().filter(|(_, value)| *value > 0);
    out.push(u8::try_from(counted().count()).expect("there are fewer than 256 counters"));
    for (counter, value) in counted() {
        out.push(counter.code());
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn put_selector(out: &mut Vec<u8>, selector: &KeySelector) {
    match selector {
        KeySelector::Name(name) => {
            let possible = !name.chars().any(char::is_control);
            let name = if possible { at_most(name.as_bytes(), MAX_KEY_NAME_LEN) } else { &[] };
            let length = u8::try_from(name.len()).expect("MAX_KEY_NAME_LEN is below 256");
            out.extend_from_slice(&[codes::SELECT_NAME, length]);
            out.extend_from_slice(name);
        }
        KeySelector::SpkiSha256(digest) => {
            out.push(codes::SELECT_SPKI_SHA256);
            out.extend_from_slice(digest);
        }
    }
}
