// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Why there is no profile.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no profile. Every message says what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// Resource: the system does not let us look.
    #[error("sampling process {pid} is not permitted: {remedy}")]
    NotPermitted {
        /// Which process.
        pid: u32,
        /// What would allow it.
        remedy: String,
    },
    /// Caller: there is no such process, or it ended before it could be looked at.
    #[error("there is no process {0}")]
    Gone(u32),
    /// Resource: more than is looked at at a time.
    #[error("{what}; name fewer processes")]
    TooMuch {
        /// What there is too much of.
        what: String,
    },
    /// Input: a program file that cannot be understood.
    #[error("cannot read the functions of {path:?}: {problem}")]
    Image {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Resource: the calibration of a libcrypto failed.
    #[error("cannot calibrate {path:?}: {problem}")]
    Calibration {
        /// Which libcrypto.
        path: PathBuf,
        /// What went wrong.
        problem: String,
    },
    /// Resource: a system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl SampleError {
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
