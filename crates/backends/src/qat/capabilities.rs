// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the qat backend offers: all of those with an RSA private key of 2048, 3072, 4096 or 8192
//! bits. A key of another size is not taken.

use millrace_engine::KeyType;
use millrace_engine::backend::Capability;

use crate::raw_rsa;

/// Sizes of the card's function for private operations with the Chinese remainder theorem, in bits. With other
/// sizes the library computes two plain exponentiations, which costs four times as much.
pub(super) const SIZES: [u16; 4] = [2048, 3072, 4096, 8192];

/// One row per size and operation.
pub(super) const CAPABILITIES: &[Capability] = &{
    let every = raw_rsa::capabilities(SIZES[0]);
    let mut rows = [every[0]; SIZES.len() * OPERATIONS];
    let mut row = 0;
    while row < rows.len() {
        let size = KeyType::Rsa {
            bits: SIZES[row / OPERATIONS],
        };
        rows[row] = Capability {
            operation: every[row % OPERATIONS].operation,
            smallest: size,
            largest: size,
        };
        row += 1;
    }
    rows
};

const OPERATIONS: usize = raw_rsa::capabilities(SIZES[0]).len();
