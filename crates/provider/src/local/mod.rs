// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Primitives that the provider computes itself, in the application's process, with AWS-LC.
//!
//! [`Primitive`] has one row for each of them; the setting `local` says which are offered. Here is the ephemeral part
//! of a TLS handshake, which holds no key of the application: key shares ([`share`], some of them made [`ahead`]) and
//! the key schedule of TLS 1.3 ([`schedule`]). Nothing here knows OpenSSL; `ffi::local` puts it under OpenSSL, and
//! signs with keys of the application by the `software` backend.
//!
//! AWS-LC makes the random numbers. Its generator notices a fork and, where the kernel tells, a restored
//! snapshot.
//!
//! Ciphers of records and digests are here for a libcrypto that was built without assembly.

pub mod choice;
pub mod hkdf;
pub mod precomputed;
pub mod schedule;
pub mod share;
#[expect(unsafe_code, reason = "calls of AWS-LC that aws-lc-rs does not offer")]
mod sys;

use thiserror::Error;

pub(crate) use sys::{Ciphering, Digesting, TAG_LEN, equal, now, random};

pub use crate::algorithms::Primitive;

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
        let mut all = Self::ALL.iter().copied();
        all.find(|known| known.row().name.eq_ignore_ascii_case(name))
    }
}
