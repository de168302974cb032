// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations around the private operation, by the half of a key that AWS-LC has.

use millrace_engine::{BackendError, Operation, Output};
use zeroize::Zeroizing;

use super::keys::SimdKey;
use crate::raw_rsa;

/// The number that a task has to be exponentiated; see [`raw_rsa::prepare`].
pub(super) fn prepare(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    raw_rsa::prepare(&key.software, operation, input)
}

/// The output of a task from its verified result; see [`raw_rsa::finish`].
pub(super) fn finish(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
    block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    raw_rsa::finish(&key.software, operation, input, block)
}
