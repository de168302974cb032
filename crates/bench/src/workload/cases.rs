// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The table of operations and keys that are measured.

use std::fmt;

use millrace_operation::OperationKind;
use serde::Serialize;

use crate::bench_key::BenchKey;

/// One operation on one type of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    #[serde(serialize_with = "by_name")]
    pub(crate) operation: OperationKind,
    pub(crate) key: BenchKey,
    /// Argument of `openssl speed` for the same operation, if one exists.
    #[serde(skip)]
    pub(crate) speed: Option<&'static str>,
}

impl Case {
    /// The first case of an operation: the key type that most servers use it with.
    pub(crate) fn first_of(operation: OperationKind) -> Option<Self> {
        CASES.iter().copied().find(|case| case.operation == operation)
    }

    /// The case of an operation with a given key type.
    pub(crate) fn find(operation: OperationKind, key: BenchKey) -> Option<Self> {
        let wanted = (operation, key);
        CASES.iter().copied().find(|case| (case.operation, case.key) == wanted)
    }

    /// Whether batches of every size are measured: all operations on an RSA key cost the same.
    pub(crate) fn stands_for_others(&self) -> bool {
        self.operation == OperationKind::RsaPkcs1Sign
    }

    /// Whether most TLS handshakes ask for it: these cases are measured by load, too.
    pub(crate) fn is_common(&self) -> bool {
        matches!(
            (self.operation, self.key),
            (OperationKind::RsaPkcs1Sign, BenchKey::Rsa2048)
                | (OperationKind::EcdsaSign, BenchKey::P256)
        )
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.operation, self.key)
    }
}

/// Serialises an operation by its name.
fn by_name<S: serde::Serializer>(operation: &OperationKind, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(operation)
}

const fn case(operation: OperationKind, key: BenchKey, speed: Option<&'static str>) -> Case {
    Case { operation, key, speed }
}

/// Every case. The other paddings on larger RSA keys are left out: they cost what signing costs.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    case(OperationKind::RsaPkcs1Sign,    BenchKey::Rsa2048, Some("rsa2048")),
    case(OperationKind::RsaPkcs1Sign,    BenchKey::Rsa3072, Some("rsa3072")),
    case(OperationKind::RsaPkcs1Sign,    BenchKey::Rsa4096, Some("rsa4096")),
    case(OperationKind::RsaPssSign,      BenchKey::Rsa2048, None),
    case(OperationKind::RsaOaepDecrypt,  BenchKey::Rsa2048, None),
    case(OperationKind::RsaPkcs1Decrypt, BenchKey::Rsa2048, None),
    case(OperationKind::RsaTlsPremaster, BenchKey::Rsa2048, None),
    case(OperationKind::RsaRaw,          BenchKey::Rsa2048, None),
    case(OperationKind::EcdsaSign,       BenchKey::P256,    Some("ecdsap256")),
    case(OperationKind::EcdsaSign,       BenchKey::P384,    Some("ecdsap384")),
    case(OperationKind::Ecdh,            BenchKey::P256,    Some("ecdhp256")),
    case(OperationKind::Ecdh,            BenchKey::P384,    Some("ecdhp384")),
    case(OperationKind::X25519,          BenchKey::X25519,  Some("ecdhx25519")),
    case(OperationKind::Ed25519Sign,     BenchKey::Ed25519, Some("ed25519")),
    case(OperationKind::DhDerive,        BenchKey::Dh2048,  Some("ffdh2048")),
    case(OperationKind::DsaSign,         BenchKey::Dsa2048, Some("dsa2048")),
    case(OperationKind::MlDsaSign,       BenchKey::MlDsa65, None),
    case(OperationKind::MlDsaSign,       BenchKey::MlDsa44, None),
    case(OperationKind::MlDsaSign,       BenchKey::MlDsa87, None),
];
