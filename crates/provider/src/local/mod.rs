// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Primitives that the provider computes itself, in the application's process, with AWS-LC.
//!
//! [`Primitive`] has one row for each; the setting `local` says which are offered. `ffi::local` puts them under
//! OpenSSL.
//!
//! | module | contents |
//! |---|---|
//! | [`choice`] | measured costs of primitives, and the file that keeps them |
//! | [`hkdf`] | HKDF |
//! | [`precomputed`] | X25519 pairs that are made before they are needed |
//! | [`schedule`] | the key schedule of TLS 1.3 |
//! | [`share`] | key shares of TLS |
//! | `sys` | the calls of AWS-LC, also for ciphers of records and digests |
//!
//! AWS-LC makes the random numbers. Its generator notices a fork and, where the kernel reports it, a restored
//! snapshot.

pub mod choice;
pub mod hkdf;
pub mod precomputed;
pub mod schedule;
pub mod share;
#[expect(unsafe_code, reason = "calls of AWS-LC that aws-lc-rs does not offer")]
mod sys;

use thiserror::Error;

pub(crate) use sys::{Ciphering, Digesting, TAG_LEN, equal, now, random};

use crate::algorithms::Primitive;

/// AWS-LC refused an input, or had no memory.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LocalError {
    /// A key share, a ciphertext or a parameter of the peer or of the application cannot be used.
    #[error("{0}")]
    Refused(&'static str),
    /// A function of AWS-LC failed for another reason.
    #[error("AWS-LC failed")]
    Failed,
}

impl Primitive {
    /// The primitive with this name, compared without case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.row().name.eq_ignore_ascii_case(name))
    }
}
