// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Writes frames directly into the buffer that goes to the socket.
//!
//! Buffers grow only in this module, and never by `realloc`, because that would leave a copy of an imported
//! key or of a decrypted secret in freed memory.

use std::borrow::Borrow;
use std::hint::black_box;
use std::time::Duration;

use millrace_operation::{BackendKind, JobError, JobId, MAX_INPUT_LEN, MAX_LABEL_LEN, Operation};
use zeroize::Zeroize;

use crate::codes::{self, MessageKind};
use crate::message::{JobCompletion, KeyHandle, SubmittedJob};
use crate::{HEADER_LEN, MAX_FRAME_LEN, MAX_JOBS_PER_FRAME, MAX_OUTPUT_LEN};

/// Fewest bytes of a job in a `Submit`: the fixed fields, without parameters and input.
pub(crate) const MIN_JOB_LEN: usize = 8 + 4 + 4 + 1 + 2;

/// Bytes of a completion in a `Complete` without its output.
pub(crate) const MIN_COMPLETION_LEN: usize = 8 + 1 + 1 + 4 + 4 + 2;

/// Most bytes that one job takes in a `Submit`.
pub const MAX_JOB_LEN: usize = MIN_JOB_LEN + 2 + 2 + MAX_LABEL_LEN + MAX_INPUT_LEN;

/// Most bytes that one completion takes in a `Complete`.
pub const MAX_COMPLETION_LEN: usize = MIN_COMPLETION_LEN + MAX_OUTPUT_LEN;

// Every job and every completion must fit into an empty frame.
const _: () = assert!(HEADER_LEN + 2 + MAX_JOB_LEN <= MAX_FRAME_LEN);
const _: () = assert!(HEADER_LEN + 2 + MAX_COMPLETION_LEN <= MAX_FRAME_LEN);

/// Whether the OAEP label and the input of a job are within the bounds of the protocol. Every job that passes
/// `Operation::check` is.
#[must_use]
pub fn job_fits(operation: &Operation, input: &[u8]) -> bool {
    let (_, label) = parameters(operation);
    let label_fits = label.is_none_or(|label| label.len() <= MAX_LABEL_LEN);
    label_fits && input.len() <= MAX_INPUT_LEN
}

/// Overwrites bytes of a buffer that stays allocated. `black_box` makes the compiler assume that they are
/// read, so that this is one `memset` and not the byte-wise volatile loop of `zeroize`.
pub(crate) fn wipe_bytes(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}

/// Overwrites and empties a buffer but keeps its memory, for buffers that held secrets and are reused.
pub fn wipe(buffer: &mut Vec<u8>) {
    wipe_bytes(buffer);
    buffer.clear();
}

/// Writes one `Submit` frame, job by job. Without [`Self::finish`] the frame is removed again.
///
/// Enlarges the buffer, where needed, without leaving a copy of its contents behind.
#[derive(Debug)]
pub struct SubmitWriter<'a> {
    batch: Batch<'a>,
}

impl<'a> SubmitWriter<'a> {
    /// Begins a frame at the end of `out`.
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { batch: Batch::new(out, codes::SUBMIT) }
    }

    /// Adds a job. Returns `false` if the frame is full: finish it and begin another. The first job of a
    /// frame always fits.
    ///
    /// The budget is rounded up to microseconds. A job that fails [`job_fits`] is replaced by one that no
    /// node can do with any key (X25519 with an empty input). So it still ends with a completion:
    /// `NotOffered` or `BadInput`.
    pub fn push(
        &mut self,
        id: JobId,
        key: KeyHandle,
        budget: Duration,
        operation: &Operation,
        input: &[u8],
    ) -> bool {
        if !job_fits(operation, input) {
            return self.push(id, key, budget, &Operation::X25519, &[]);
        }
        let (parameters, label) = parameters(operation);
        let label_len = label.map_or(0, |label| 2 + label.len());
        let length = MIN_JOB_LEN + parameters.len() + label_len + input.len();
        let Some(out) = self.batch.begin_item(length) else {
            return false;
        };
        out.extend_from_slice(&id.to_le_bytes());
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&micros(budget).to_le_bytes());
        out.push(operation.kind().code());
        out.extend_from_slice(parameters.as_slice());
        if let Some(label) = label {
            put_bytes(out, label);
        }
        put_bytes(out, input);
        true
    }

    /// Number of jobs in the frame.
    #[must_use]
    pub fn count(&self) -> usize {
        self.batch.count
    }

    /// Ends the frame. One without jobs vanishes.
    pub fn finish(self) {
        self.batch.finish();
    }
}

/// Writes one `Complete` frame, completion by completion. Without [`Self::finish`] the frame is removed
/// again.
///
/// Enlarges the buffer, where needed, without leaving a copy of its contents behind.
#[derive(Debug)]
pub struct CompleteWriter<'a> {
    batch: Batch<'a>,
}

impl<'a> CompleteWriter<'a> {
    /// Begins a frame at the end of `out`.
    #[must_use]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { batch: Batch::new(out, codes::COMPLETE) }
    }

    /// Adds a completion. Returns `false` if the frame is full: finish it and begin another. The first
    /// completion of a frame always fits.
    ///
    /// Times are cut at 4.29 s, the maximum of their field. [`JobError::Failed`] replaces an output above
    /// [`MAX_OUTPUT_LEN`], so that the job still ends.
    pub fn push(
        &mut self,
        id: JobId,
        result: Result<&[u8], JobError>,
        served_by: Option<BackendKind>,
        queue_time: Duration,
        service_time: Duration,
    ) -> bool {
        let (status, output) = match result {
            Ok(output) if output.len() <= MAX_OUTPUT_LEN => (codes::STATUS_OK, output),
            Ok(_) => (JobError::Failed.code(), [].as_slice()),
            Err(error) => (error.code(), [].as_slice()),
        };
        let Some(out) = self.batch.begin_item(MIN_COMPLETION_LEN + output.len()) else {
            return false;
        };
        out.extend_from_slice(&id.to_le_bytes());
        out.push(status);
        out.push(served_by.map_or(codes::SERVED_BY_NONE, BackendKind::code));
        out.extend_from_slice(&nanos(queue_time).to_le_bytes());
        out.extend_from_slice(&nanos(service_time).to_le_bytes());
        put_bytes(out, output);
        true
    }

    /// Number of completions in the frame.
    #[must_use]
    pub fn count(&self) -> usize {
        self.batch.count
    }

    /// Ends the frame. One without completions vanishes.
    pub fn finish(self) {
        self.batch.finish();
    }
}

/// Appends the jobs in as many `Submit` frames as they need.
pub fn encode_submit_batch<'a>(
    jobs: impl IntoIterator<Item = &'a SubmittedJob>,
    out: &mut Vec<u8>,
) {
    let mut jobs = jobs.into_iter().peekable();
    while jobs.peek().is_some() {
        let mut writer = SubmitWriter::new(out);
        while let Some(SubmittedJob { id, key, budget, operation, input }) = jobs.peek() {
            if !writer.push(*id, *key, *budget, operation, input) {
                break;
            }
            jobs.next();
        }
        writer.finish();
    }
}

/// Appends the completions in as many `Complete` frames as they need.
pub fn encode_completions(
    completions: impl IntoIterator<Item: Borrow<JobCompletion>>,
    out: &mut Vec<u8>,
) {
    let mut completions = completions.into_iter().peekable();
    while completions.peek().is_some() {
        let mut writer = CompleteWriter::new(out);
        while let Some(completion) = completions.peek() {
            let JobCompletion { id, result, served_by, queue_time, service_time } =
                completion.borrow();
            let result = result.as_ref().map(|output| output.as_slice()).map_err(|error| *error);
            if !writer.push(*id, result, *served_by, *queue_time, *service_time) {
                break;
            }
            completions.next();
        }
        writer.finish();
    }
}

/// An unfinished frame that holds a batch.
#[derive(Debug)]
struct Batch<'a> {
    out: &'a mut Vec<u8>,
    /// Offset of the frame in `out`.
    start: usize,
    count: usize,
    finished: bool,
}

impl<'a> Batch<'a> {
    fn new(out: &'a mut Vec<u8>, kind: MessageKind) -> Self {
        reserve(out, HEADER_LEN + 2);
        let start = begin_frame(out, kind);
        out.extend_from_slice(&[0; 2]);
        Self { out, start, count: 0, finished: false }
    }

    /// Begins an item of `length` bytes. `None` if the frame has no room for it.
    fn begin_item(&mut self, length: usize) -> Option<&mut Vec<u8>> {
        let full = self.count == MAX_JOBS_PER_FRAME
            || self.out.len() - self.start + length > MAX_FRAME_LEN;
        if full {
            return None;
        }
        self.count += 1;
        reserve(self.out, length);
        Some(self.out)
    }

    fn finish(mut self) {
        self.finished = self.count > 0;
        if let (true, Ok(count)) = (self.finished, u16::try_from(self.count)) {
            let at = self.start + HEADER_LEN;
            self.out[at..at + 2].copy_from_slice(&count.to_le_bytes());
            end_frame(self.out, self.start);
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.finished {
            wipe_bytes(&mut self.out[self.start..]);
            self.out.truncate(self.start);
        }
    }
}

/// Makes room for `additional` bytes without leaving a copy of the contents in freed memory.
pub(crate) fn reserve(out: &mut Vec<u8>, additional: usize) {
    let needed = out.len() + additional;
    if needed <= out.capacity() {
        return;
    }
    let mut larger = Vec::with_capacity(needed.max(2 * out.capacity()));
    larger.extend_from_slice(out);
    out.zeroize();
    *out = larger;
}

/// Appends a header whose length is filled in by [`end_frame`]. Returns where the frame starts.
pub(crate) fn begin_frame(out: &mut Vec<u8>, kind: MessageKind) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind.code, 0, 0, 0]);
    start
}

/// Fills in the length of the frame that starts at `start` and ends with the buffer.
pub(crate) fn end_frame(out: &mut [u8], start: usize) {
    let length = out.len() - start - HEADER_LEN;
    let length = u32::try_from(length).expect("frames are bounded by MAX_FRAME_LEN");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends bytes after their `u16` length; the caller has checked the bound.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("bounded far below 64 KiB by the caller");
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The parameters of an operation without the label: at most four bytes.
struct Parameters {
    bytes: [u8; 4],
    length: usize,
}

impl Parameters {
    fn new(parameters: &[u8]) -> Self {
        let mut bytes = [0; 4];
        bytes[..parameters.len()].copy_from_slice(parameters);
        Self { bytes, length: parameters.len() }
    }

    fn len(&self) -> usize {
        self.length
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The parameters of an operation in wire order, and the label if it has one.
fn parameters(operation: &Operation) -> (Parameters, Option<&[u8]>) {
    let parameters = match operation {
        Operation::RsaPkcs1Sign { hash }
        | Operation::EcdsaSign { hash }
        | Operation::DsaSign { hash } => Parameters::new(&[hash.code()]),
        Operation::RsaPssSign { hash, mgf_hash, salt_len } => {
            let [low, high] = salt_len.to_le_bytes();
            Parameters::new(&[hash.code(), mgf_hash.code(), low, high])
        }
        Operation::RsaOaepDecrypt { hash, mgf_hash, label } => {
            return (Parameters::new(&[hash.code(), mgf_hash.code()]), Some(label));
        }
        Operation::RsaTlsPremaster { client_version } => {
            Parameters::new(&client_version.to_le_bytes())
        }
        Operation::MlDsaSign { input } => Parameters::new(&[input.code()]),
        Operation::RsaPkcs1Decrypt
        | Operation::RsaRaw
        | Operation::Ecdh
        | Operation::X25519
        | Operation::Ed25519Sign
        | Operation::DhDerive => Parameters::new(&[]),
    };
    (parameters, None)
}

/// Converts to microseconds. Rounds up, so that a short budget does not become 0 (no budget); cuts at the
/// maximum of the field.
fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX)
}

/// Converts to nanoseconds; cuts at 4.29 s, the maximum of the field.
fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
