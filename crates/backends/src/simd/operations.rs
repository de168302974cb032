// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Operations around the private operation, by the half of a key that AWS-LC has.

use millrace_engine::{BackendError, Operation, Output};
use zeroize::Zeroizing;

use super::keys::SimdKey;
use crate::bare;

/// The number that a task has to be exponentiated; see [`bare::prepare`].
pub(super) fn prepare(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    bare::prepare(&key.software, operation, input)
}

/// The output of a task from its verified result; see [`bare::finish`].
pub(super) fn finish(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
    block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    bare::finish(&key.software, operation, input, block)
}
