// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors, each saying whose fault it is and whether another try makes sense.

use thiserror::Error;

/// Why a job ended without a result. A small closed set: this is what a remote caller learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum JobError {
    /// Caller: no such key handle in this session (also the answer for somebody else's).
    #[error("no such key")]
    NoSuchKey = 0x01,
    /// Caller: the key cannot do this operation, or nothing here implements it.
    #[error("operation not offered for this key")]
    NotOffered = 0x02,
    /// Caller: the policy of the key does not allow this operation, hash or identity.
    #[error("denied by the policy of the key")]
    Denied = 0x03,
    /// Input: wrong length, out of range, not a point on the curve, undecryptable.
    #[error("bad input for this operation")]
    BadInput = 0x04,
    /// Resource: a queue is full; try another node, or later.
    #[error("busy")]
    Busy = 0x05,
    /// Resource: the deadline passed before the job was started.
    #[error("deadline passed")]
    Expired = 0x06,
    /// Caller: cancelled on request, or the session ended.
    #[error("cancelled")]
    Cancelled = 0x07,
    /// Resource: the node is draining and takes no new jobs; use another node.
    #[error("draining")]
    Draining = 0x08,
    /// Bug or broken hardware: every backend that could do it failed. The log has the reason.
    #[error("operation failed")]
    Failed = 0x09,
    /// Caller: over the quota of its tenant; a later try will do.
    #[error("over quota")]
    OverQuota = 0x0a,
}

impl JobError {
    /// Every error, in the order of its code.
    pub const ALL: &'static [Self] = &[
        Self::NoSuchKey,
        Self::NotOffered,
        Self::Denied,
        Self::BadInput,
        Self::Busy,
        Self::Expired,
        Self::Cancelled,
        Self::Draining,
        Self::Failed,
        Self::OverQuota,
    ];

    /// The code used on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The error with this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|error| error.code() == code)
    }

    /// The name used in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSuchKey => "no-such-key",
            Self::NotOffered => "not-offered",
            Self::Denied => "denied",
            Self::BadInput => "bad-input",
            Self::Busy => "busy",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Draining => "draining",
            Self::Failed => "failed",
            Self::OverQuota => "over-quota",
        }
    }

    /// Whether the same job may succeed on another node right now.
    #[must_use]
    pub fn retry_elsewhere(self) -> bool {
        matches!(
            self,
            Self::Busy | Self::Draining | Self::Failed | Self::NoSuchKey | Self::NotOffered
        )
    }
}

/// Why a key was not accepted. Says nothing about the secret part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[repr(u8)]
#[non_exhaustive]
pub enum KeyError {
    /// Not a PKCS#8 `PrivateKeyInfo`, or one with trailing or missing bytes.
    #[error("the key does not parse as PKCS#8")]
    Malformed = 0x01,
    /// An algorithm, curve or number of primes that Millrace does not offer.
    #[error("this type of key is not offered")]
    NotOffered = 0x02,
    /// Below or above the accepted sizes.
    #[error("the size of the key is not accepted (2048 to 8192 bits)")]
    Size = 0x03,
    /// Its parts do not belong together (p·q ≠ n, wrong CRT exponents, a point off the curve…).
    #[error("the parts of the key are inconsistent")]
    Inconsistent = 0x04,
    /// RSA without a usable public exponent: its results could not be verified.
    #[error("the key has no usable public exponent")]
    NoPublicExponent = 0x05,
    /// The bound on keys is reached.
    #[error("too many keys")]
    TooMany = 0x06,
    /// The backend failed for a reason that is not the key's.
    #[error("the backend could not load the key")]
    Backend = 0x07,
}

impl KeyError {
    /// Every error, in the order of its code.
    pub const ALL: &'static [Self] = &[
        Self::Malformed,
        Self::NotOffered,
        Self::Size,
        Self::Inconsistent,
        Self::NoPublicExponent,
        Self::TooMany,
        Self::Backend,
    ];

    /// The code used on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The error with this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().copied().find(|error| error.code() == code)
    }
}

/// What a backend says about one task. The dispatcher turns it into a retry, a quarantine or a
/// [`JobError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The input is at fault: no other backend would do better.
    #[error("bad input")]
    BadInput,
    /// This backend does not do this; another may.
    #[error("not offered by this backend")]
    NotOffered,
    /// This backend computed a wrong result and noticed: retry elsewhere and quarantine it.
    #[error("a result failed its verification")]
    Fault,
    /// This backend failed otherwise: retry elsewhere.
    #[error("the backend failed")]
    Failed,
}

impl BackendError {
    /// Whether another backend may be tried.
    #[must_use]
    pub fn retry_elsewhere(self) -> bool {
        self != Self::BadInput
    }
}
