// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Why something could not be read.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kind::FileKind;

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Unavailable {
    /// Nothing is there
    Missing,
    /// This user may not read it, or the kernel forbids it to all (lockdown)
    Denied,
    /// The path does not lead to an ordinary file
    #[serde(rename_all = "snake_case")]
    NotRegular {
        /// The kind of file
        kind: FileKind,
    },
    /// The file is larger than the bound on such files
    TooLarge {
        /// The bound, in bytes
        limit_bytes: usize,
    },
    /// The system reported an error, or nothing in time
    Unreadable {
        /// Error of the system, in words
        reason: String,
    },
    /// The content is not of the form that such a file has
    Malformed {
        /// Expected form, in words
        reason: String,
    },
    /// Only the running machine can say it, not files below `--root`
    NotInFiles,
    /// The bundle does not hold it
    NotCollected,
}

impl Unavailable {
    /// An error of the system.
    #[must_use]
    pub fn unreadable(reason: impl Into<String>) -> Self {
        Self::Unreadable { reason: reason.into() }
    }

    /// Content that is not what such a file holds.
    #[must_use]
    pub fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("not there"),
            Self::Denied => f.write_str("permission denied; root may be needed"),
            Self::NotRegular { kind } => write!(f, "it is {kind}"),
            Self::TooLarge { limit_bytes } => write!(f, "larger than {limit_bytes} bytes"),
            Self::Unreadable { reason } | Self::Malformed { reason } => f.write_str(reason),
            Self::NotInFiles => f.write_str("not known from files"),
            Self::NotCollected => f.write_str("the bundle does not hold it"),
        }
    }
}

/// Something that was read, or why it could not be.
pub type ReadResult<T> = Result<T, Unavailable>;
