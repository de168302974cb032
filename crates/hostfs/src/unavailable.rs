// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Why something could not be read.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::root::Kind;

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Why {
    /// It is not there
    Missing,
    /// This user may not read it, or the kernel forbids it to everybody
    Denied,
    /// It is there, but is no ordinary file
    #[serde(rename_all = "snake_case")]
    NotRegular {
        /// What it is
        kind: Kind,
    },
    /// It is larger than such a file can sensibly be
    TooLarge {
        /// How much would have been read
        limit_bytes: usize,
    },
    /// The system gave an error, or no answer in time
    Unreadable {
        /// In words
        reason: String,
    },
    /// It was read, and does not say what such a file says
    Malformed {
        /// In words
        reason: String,
    },
    /// Files do not say it: it is known of the machine itself only, not below `--root`
    NotInFiles,
    /// The bundle does not hold it
    NotCollected,
}

impl Why {
    /// An error of the system, in words.
    #[must_use]
    pub fn unreadable(reason: impl Into<String>) -> Self {
        Self::Unreadable {
            reason: reason.into(),
        }
    }

    /// What is wrong with a content, in words.
    #[must_use]
    pub fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed {
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Why {
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
