// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Reasons why there is no profile.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Reasons why there is no profile. Every message names the remedy.
#[derive(Debug, Error)]
pub enum SampleError {
    /// Resource: the system does not permit sampling.
    #[error("sampling process {pid} is not permitted: {remedy}")]
    NotPermitted {
        /// As it was named.
        pid: u32,
        /// The permission that would allow it.
        remedy: String,
    },
    /// Caller: the process does not exist, or ended before it could be sampled.
    #[error("there is no process {0}")]
    Gone(u32),
    /// Resource: more than the sampler handles at a time.
    #[error("{what}; name fewer processes")]
    TooMuch {
        /// The resource that exceeds its bound.
        what: String,
    },
    /// Input: a malformed program file.
    #[error("cannot read the functions of {path:?}: {problem}")]
    Image {
        /// Program or library with the samples.
        path: PathBuf,
        /// The part that does not parse.
        problem: String,
    },
    /// Resource: the calibration of a libcrypto failed.
    #[error("cannot calibrate {path:?}: {problem}")]
    Calibration {
        /// The libcrypto that was to be calibrated.
        path: PathBuf,
        /// Why it was not.
        problem: String,
    },
    /// Resource: a system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// A verb, as in "cannot open".
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl SampleError {
    pub(super) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }
}
