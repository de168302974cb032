// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The operations that the cuda backend offers: all of those with an RSA private key of up to 4096 bits.

use millrace_engine::backend::Capability;
use millrace_engine::key::MIN_MODULUS_BITS;
use millrace_engine::{KeyType, OperationKind};

/// Largest modulus of any kernel, in bits.
pub(super) const MAX_RSA_BITS: u16 = 4096;

/// One row per operation.
pub(super) const CAPABILITIES: &[Capability] = &[
    rsa(OperationKind::RsaPkcs1Sign),
    rsa(OperationKind::RsaPssSign),
    rsa(OperationKind::RsaOaepDecrypt),
    rsa(OperationKind::RsaPkcs1Decrypt),
    rsa(OperationKind::RsaTlsPremaster),
    rsa(OperationKind::RsaRaw),
];

const fn rsa(operation: OperationKind) -> Capability {
    Capability {
        operation,
        smallest: KeyType::Rsa {
            bits: MIN_MODULUS_BITS,
        },
        largest: KeyType::Rsa { bits: MAX_RSA_BITS },
    }
}
