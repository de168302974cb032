// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Encoding and decoding around the private operation, with the AWS-LC form of the key.

use millrace_engine::BackendError;
use millrace_operation::{Operation, Output};
use zeroize::Zeroizing;

use super::keys::SimdKey;
use crate::raw_rsa;

pub(super) fn prepare(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
) -> Result<Zeroizing<Vec<u8>>, BackendError> {
    raw_rsa::prepare(&key.software, operation, input)
}

pub(super) fn finish(
    key: &SimdKey,
    operation: &Operation,
    input: &[u8],
    block: Zeroizing<Vec<u8>>,
) -> Result<Output, BackendError> {
    raw_rsa::finish(&key.software, operation, input, block)
}
