// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Encoding and decoding around the private operation, and tasks that run on AWS-LC.

use millrace_engine::BackendError;
use millrace_operation::Output;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::job::QueuedJob;
use super::keys::CudaKey;
use crate::raw_rsa;
use crate::software::keys::Secret;
use crate::software::operations::run_task;

pub(super) fn prepare(
    key: &CudaKey,
    waiting: &QueuedJob,
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    raw_rsa::prepare(&key.software, &waiting.task.operation, &waiting.task.input)
}

pub(super) fn finish(
    key: &CudaKey,
    waiting: &QueuedJob,
    block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    raw_rsa::finish(&key.software, &waiting.task.operation, &waiting.task.input, block)
}

/// Runs one task on AWS-LC.
pub(super) fn run_on_cpu(waiting: &QueuedJob) -> Result<Output, BackendError> {
    run_task(waiting.key.as_ref().map(|key| &key.software), &waiting.task)
}

/// Checks a result by one public operation on the host. The device has made the same check before; this one
/// also covers the transfer.
pub(super) fn is_root(key: &CudaKey, input: &[u8], result: &[u8]) -> bool {
    let Secret::Rsa(rsa) = &key.software.secret else {
        return false;
    };
    let mut undone = Zeroizing::new(vec![0; result.len()]);
    rsa.key.public(result, &mut undone).is_ok() && bool::from(undone.ct_eq(input))
}
