// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Exposes parsers to the fuzz targets (feature `fuzzing`; no other build has this module).

use std::sync::LazyLock;

use millrace_service::store::bundle::KeyBundle;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{HeartbeatReport, Leave, NewKey, NewToken, QuotaBody};
use crate::client::http::parse_answer;
use crate::model::audit::AuditEntry;
use crate::model::holder::SealedKey;
use crate::model::keys::PoolKey;
use crate::model::ledger::Ledger;
use crate::model::node::{Node, Registration};
use crate::model::tenant::{Placement, Tenant};
use crate::sealing::SealingPair;
use crate::vault;

/// Reads a body of the API, or a record of the store, as each type that it may be; and an answer of a manager.
///
/// # Panics
/// If what was read is written as something else.
pub fn document(bytes: &[u8]) {
    let _ = parse_answer(bytes);
    if let Some(registration) = same::<Registration>(bytes) {
        let _ = registration.problems();
    }
    if let Some(tenant) = same::<Tenant>(bytes) {
        let _ = tenant.problems();
    }
    let _ = same::<HeartbeatReport>(bytes);
    let _ = same::<Leave>(bytes);
    let _ = same::<QuotaBody>(bytes);
    let _ = same::<Placement>(bytes);
    let _ = same::<NewToken>(bytes);
    let _ = same::<Node>(bytes);
    let _ = same::<Ledger>(bytes);
    let _ = same::<AuditEntry>(bytes);
    let _ = same::<NewKey>(bytes);
    if let Some(key) = same::<PoolKey>(bytes) {
        let _ = key.problems();
        let _ = vault::describe(&key.sealed);
    }
}

/// The value, which must be the same after it was written and read again.
fn same<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_vec(&value).expect("a document of ours can be written");
    let again: T = serde_json::from_slice(&text).expect("and read");
    assert_eq!(value, again);
    Some(value)
}

/// Reads the secret inside a seal, which has one encoding, and a sealed key, which was not sealed to this node.
///
/// # Panics
/// If the secret has a second encoding, or the sealed key opens.
pub fn sealed_key(bytes: &[u8]) {
    static PAIR: LazyLock<SealingPair> =
        LazyLock::new(|| SealingPair::generate().expect("random numbers"));
    if let Ok(bundle) = KeyBundle::parse(bytes) {
        assert_eq!(**bundle.encode().expect("within the bounds"), *bytes);
    }
    if let Some(sealed) = same::<SealedKey>(bytes) {
        let node = "node-1".parse().expect("a name");
        assert!(PAIR.open(&node, 1, 1, &sealed).is_err());
    }
}

/// Reads an answer of etcd: HTTP head and JSON body.
pub fn etcd_answer(bytes: &[u8]) {
    crate::store::etcd::read_as_any_answer(bytes);
}
