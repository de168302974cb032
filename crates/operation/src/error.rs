// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Errors. Each states its cause (caller, input, resource, hardware) and whether a retry makes sense.

use thiserror::Error;

use crate::coded_enum;
use crate::key::{MAX_MODULUS_BITS, MIN_MODULUS_BITS};

coded_enum! {
    /// Why a job ended without a result. The set is small and closed, because remote callers see it.
    #[derive(Error)]
    pub enum JobError {
        /// Caller: no such key handle in this session. A handle of another session gets the same answer.
        #[error("no such key")]
        NoSuchKey = 0x01 "no-such-key",
        /// Caller: the key does not have this operation, or no backend here implements it.
        #[error("operation not offered for this key")]
        NotOffered = 0x02 "not-offered",
        /// Caller: the policy of the key does not allow this operation, hash or identity.
        #[error("denied by the policy of the key")]
        Denied = 0x03 "denied",
        /// Input: wrong length, out of range, not a point on the curve, undecryptable.
        #[error("bad input for this operation")]
        BadInput = 0x04 "bad-input",
        /// Resource: a queue is full; try another node, or later.
        #[error("busy")]
        Busy = 0x05 "busy",
        /// Resource: the deadline passed before the job was started.
        #[error("deadline passed")]
        Expired = 0x06 "expired",
        /// Caller: cancelled on request, or the session ended.
        #[error("cancelled")]
        Cancelled = 0x07 "cancelled",
        /// Resource: the node is draining and takes no new jobs; use another node.
        #[error("draining")]
        Draining = 0x08 "draining",
        /// Bug or broken hardware: every backend that offers the operation failed. The log has the reason.
        #[error("operation failed")]
        Failed = 0x09 "failed",
        /// Caller: over the quota of its tenant; a later retry can succeed.
        #[error("over quota")]
        OverQuota = 0x0a "over-quota",
    }
}

impl JobError {
    /// Whether the same job may succeed on another node right now.
    #[must_use]
    pub fn retry_elsewhere(self) -> bool {
        match self {
            Self::Busy | Self::Draining | Self::Failed | Self::NoSuchKey | Self::NotOffered => true,
            Self::Denied | Self::BadInput | Self::Expired | Self::Cancelled | Self::OverQuota => {
                false
            }
        }
    }
}

coded_enum! {
    /// Why a key was not accepted. It reveals nothing about the secret part.
    #[derive(Error)]
    pub enum KeyError {
        /// Not a PKCS#8 `PrivateKeyInfo`, or one with trailing or missing bytes.
        #[error("the key does not parse as PKCS#8")]
        Malformed = 0x01 "malformed",
        /// An algorithm, curve or number of primes that Millrace does not offer.
        #[error("this type of key is not offered")]
        NotOffered = 0x02 "not-offered",
        /// Below or above the accepted sizes.
        #[error("the size of the key is not accepted ({} to {} bits)", MIN_MODULUS_BITS, MAX_MODULUS_BITS)]
        Size = 0x03 "size",
        /// The parts of the key contradict each other (p·q ≠ n, wrong CRT exponents, a point off the curve…).
        #[error("the parts of the key are inconsistent")]
        Inconsistent = 0x04 "inconsistent",
        /// RSA without a usable public exponent: results could not be verified.
        #[error("the key has no usable public exponent")]
        NoPublicExponent = 0x05 "no-public-exponent",
        /// The bound on open keys is reached.
        #[error("too many keys")]
        TooMany = 0x06 "too-many",
        /// The backend failed for a reason other than the key.
        #[error("the backend could not load the key")]
        Backend = 0x07 "backend",
    }
}
