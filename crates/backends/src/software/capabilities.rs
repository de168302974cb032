// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What the software backend can do: everything that the vocabulary names.

use millrace_engine::backend::Capability;
use millrace_engine::key::{MAX_MODULUS_BITS, MIN_MODULUS_BITS};
use millrace_engine::{Curve, KeyType, OperationKind};

/// Largest DSA prime (FIPS 186-4 section 4.2).
pub(super) const MAX_DSA_BITS: u16 = 3072;

/// One row per operation.
pub(super) const CAPABILITIES: &[Capability] = &[
    rsa(OperationKind::RsaPkcs1Sign),
    rsa(OperationKind::RsaPssSign),
    rsa(OperationKind::RsaOaepDecrypt),
    rsa(OperationKind::RsaPkcs1Decrypt),
    rsa(OperationKind::RsaTlsPremaster),
    rsa(OperationKind::RsaRaw),
    ec(OperationKind::EcdsaSign),
    ec(OperationKind::Ecdh),
    Capability {
        operation: OperationKind::X25519,
        smallest: KeyType::X25519,
        largest: KeyType::X25519,
    },
    Capability {
        operation: OperationKind::Ed25519Sign,
        smallest: KeyType::Ed25519,
        largest: KeyType::Ed25519,
    },
    Capability {
        operation: OperationKind::DhDerive,
        smallest: KeyType::Dh {
            bits: MIN_MODULUS_BITS,
        },
        largest: KeyType::Dh {
            bits: MAX_MODULUS_BITS,
        },
    },
    Capability {
        operation: OperationKind::DsaSign,
        smallest: KeyType::Dsa {
            bits: MIN_MODULUS_BITS,
        },
        largest: KeyType::Dsa { bits: MAX_DSA_BITS },
    },
];

const fn rsa(operation: OperationKind) -> Capability {
    Capability {
        operation,
        smallest: KeyType::Rsa {
            bits: MIN_MODULUS_BITS,
        },
        largest: KeyType::Rsa {
            bits: MAX_MODULUS_BITS,
        },
    }
}

const fn ec(operation: OperationKind) -> Capability {
    Capability {
        operation,
        smallest: KeyType::Ec(Curve::P256),
        largest: KeyType::Ec(Curve::P521),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_exactly_one_row() {
        for kind in OperationKind::ALL {
            assert_eq!(
                CAPABILITIES
                    .iter()
                    .filter(|row| row.operation == *kind)
                    .count(),
                1
            );
        }
    }
}
