// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the qat backend offers: all of those with an RSA private key of 2048, 3072, 4096 or 8192
//! bits, ECDH on the larger curves, and Diffie-Hellman; P-256 and X25519 where asked for. An RSA key of another size is
//! not taken.

use millrace_engine::backend::Capability;
use millrace_operation::{Curve, KeyType, MAX_MODULUS_BITS, MIN_MODULUS_BITS, OperationKind};

use crate::raw_rsa;

/// Sizes of the card's function for private operations with the Chinese remainder theorem, in bits. With other
/// sizes the library computes two plain exponentiations, which costs four times as much.
pub(super) const SIZES: [u16; 4] = [2048, 3072, 4096, 8192];

const ROOTS: [Capability; 24] = raw_rsa::capabilities_of(&SIZES);

/// Key agreements of the classes `Medium` and `Slow`.
const AGREEMENTS: [Capability; 2] = [
    Capability {
        operation: OperationKind::Ecdh,
        smallest: KeyType::Ec(Curve::P384),
        largest: KeyType::Ec(Curve::P521),
    },
    Capability {
        operation: OperationKind::DhDerive,
        smallest: KeyType::Dh { bits: MIN_MODULUS_BITS },
        largest: KeyType::Dh { bits: MAX_MODULUS_BITS },
    },
];

/// Those of the class `Fast`.
const FAST: [Capability; 2] = [
    Capability {
        operation: OperationKind::Ecdh,
        smallest: KeyType::Ec(Curve::P256),
        largest: KeyType::Ec(Curve::P256),
    },
    Capability {
        operation: OperationKind::X25519,
        smallest: KeyType::X25519,
        largest: KeyType::X25519,
    },
];

/// All rows, those of the class `Fast` last.
const ALL: [Capability; 28] = {
    let mut rows = [ROOTS[0]; 28];
    let mut row = 0;
    while row < rows.len() {
        rows[row] = if row < ROOTS.len() {
            ROOTS[row]
        } else if row < ROOTS.len() + AGREEMENTS.len() {
            AGREEMENTS[row - ROOTS.len()]
        } else {
            FAST[row - ROOTS.len() - AGREEMENTS.len()]
        };
        row += 1;
    }
    rows
};

/// The rows, those of the class `Fast` only with `fast_curves`.
pub(super) fn offered(fast_curves: bool) -> &'static [Capability] {
    static ROWS: [Capability; 28] = ALL;
    if fast_curves { &ROWS } else { &ROWS[..ROWS.len() - FAST.len()] }
}
