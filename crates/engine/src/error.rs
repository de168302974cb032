// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors of tasks in backends. Those of jobs and keys are in `millrace_operation`.

use millrace_operation::JobError;
use thiserror::Error;

/// Why a task failed in a backend. The dispatcher turns it into a retry, a quarantine or a [`JobError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum BackendError {
    /// The input is bad; another backend would fail too.
    #[error("bad input")]
    BadInput,
    /// This backend does not offer the operation; another may.
    #[error("not offered by this backend")]
    NotOffered,
    /// This backend computed a wrong result and noticed it: retry elsewhere and quarantine the backend.
    #[error("a result failed its verification")]
    Fault,
    /// This backend failed for another reason: retry elsewhere.
    #[error("the backend failed")]
    Failed,
}

impl BackendError {
    /// Whether the dispatcher may try another backend.
    #[must_use]
    pub fn retry_elsewhere(self) -> bool {
        self != Self::BadInput
    }

    /// Error of the job if no other backend is left to try.
    pub(crate) fn if_untried(self) -> JobError {
        match self {
            Self::BadInput => JobError::BadInput,
            Self::NotOffered => JobError::NotOffered,
            Self::Fault | Self::Failed => JobError::Failed,
        }
    }
}
