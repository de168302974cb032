// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the qat backend offers: all of those with an RSA private key of 2048, 3072, 4096 or 8192
//! bits. A key of another size is not taken.

use millrace_engine::backend::Capability;

use crate::raw_rsa;

/// Sizes of the card's function for private operations with the Chinese remainder theorem, in bits. With other
/// sizes the library computes two plain exponentiations, which costs four times as much.
pub(super) const SIZES: [u16; 4] = [2048, 3072, 4096, 8192];

/// One row per size and operation.
pub(super) const CAPABILITIES: &[Capability] = &raw_rsa::capabilities_of::<24>(&SIZES);
