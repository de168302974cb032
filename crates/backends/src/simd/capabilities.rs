// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the simd backend offers: all of those with an RSA private key of up to 4096 bits.

use millrace_engine::backend::Capability;

use crate::raw_rsa;

/// Largest modulus that runs in lanes, in bits. Longer keys are rare, and eight of them do not fit the
/// caches.
pub(super) const MAX_RSA_BITS: u16 = 4096;

/// One row per operation.
pub(super) const CAPABILITIES: &[Capability] = &raw_rsa::capabilities(MAX_RSA_BITS);
