// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The check of an operation and its input against a key: a backend can be called without the dispatcher.

use millrace_engine::BackendError;
use millrace_operation::{JobError, KeyType, Operation};

/// [`Operation::check`], with the error as a [`BackendError`].
pub(crate) fn check_arguments(
    operation: &Operation,
    key_type: KeyType,
    input: &[u8],
) -> Result<(), BackendError> {
    operation.check(key_type, input).map_err(|error| {
        if error == JobError::NotOffered {
            BackendError::NotOffered
        } else {
            BackendError::BadInput
        }
    })
}
