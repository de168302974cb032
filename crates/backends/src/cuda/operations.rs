// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations around the private operation, and the private operation of a task that runs on AWS-LC.

use millrace_engine::{BackendError, Output};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::keys::CudaKey;
use super::queue::Waiting;
use crate::raw_rsa;
use crate::software::keys::Secret;
use crate::software::operations as alone;

/// The number that a task has to be exponentiated; see [`raw_rsa::prepare`].
pub(super) fn prepare(
    key: &CudaKey,
    waiting: &Waiting,
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    raw_rsa::prepare(&key.software, &waiting.task.operation, &waiting.task.input)
}

/// The output of a task from its verified result; see [`raw_rsa::finish`].
pub(super) fn finish(
    key: &CudaKey,
    waiting: &Waiting,
    block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    raw_rsa::finish(
        &key.software,
        &waiting.task.operation,
        &waiting.task.input,
        block,
    )
}

/// One task on AWS-LC.
pub(super) fn run_alone(waiting: &Waiting) -> Result<Output, BackendError> {
    match &waiting.key {
        Some(key) => alone::run(&key.software, &waiting.task.operation, &waiting.task.input),
        None => Err(BackendError::Failed),
    }
}

/// Whether a result is right by one public operation on this machine: what the device did before it gave
/// the result away.
pub(super) fn is_root(key: &CudaKey, input: &[u8], result: &[u8]) -> bool {
    let Secret::Rsa(rsa) = &key.software.secret else {
        return false;
    };
    let mut undone = Zeroizing::new(vec![0; result.len()]);
    rsa.key.public(result, &mut undone).is_ok() && bool::from(undone.ct_eq(input))
}
